"""Tables without coordinates: rows are placed by the ids of sites that the survey knows."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bo_scale.survey.tables.numbers import MISSING, absent
from bo_scale.survey.tables.records import Records, Refused

WHOLE = re.compile(r"0*(\d+)(?:[.,]0+)?")
"""A whole number as spreadsheets may write it."""
ZEROS = re.compile(r"(?<![\d.,])0+(?=\d)")
"""Zeros before a whole number."""
PLANNED = re.compile(r"[pP]\d+")
"""An id as plans give them."""
UNKNOWN = "there is no site"
"""The beginning of the reason of rows with an id that is not known."""
COMPARED = 2000
"""Number of ids up to which the nearest spelling is looked for."""


@dataclass(frozen=True)
class KnownId:
    """An id, and what it stands for.

    Attributes:
        site: The site's own id; a name of a planned site leads to it.
        x: Its place in the coordinates of the survey's tables.
        y: The second coordinate.
        problem: Why the id does not name one place; empty if it does.
    """

    site: str
    x: float
    y: float
    problem: str = ""


class KnownIds:
    """The ids that a survey knows, found also where a program has changed how they are written.

    Args:
        ids: What each id stands for.
        planned: Whether some are of planned sites.
    """

    def __init__(self, ids: dict[str, KnownId], planned: bool = True) -> None:
        self._ids, self._planned = ids, planned
        self._beside: KnownIds | None = None
        self._similar = defaultdict[str, list[str]](list)
        for one in ids:
            self._similar[_plain(one)].append(one)
        self._loose = defaultdict[str, list[str]](list)
        for plain, similar in self._similar.items():
            self._loose[_loose(plain)] += similar

    def find(self, text: str) -> KnownId | str:
        """Return what an id stands for, or the reason why that is not known.

        Blanks, capitals, and zeros before numbers do not matter where one id alone remains. An id that differs in
        zeros within a text, as W007 from W7, counts only if there is no nearer one.
        """
        similar = self._like(text)
        exact = text in similar and (len(similar) == 1 or text.startswith("0") or not WHOLE.fullmatch(text))
        if not exact and len(similar) > 1:
            return f"{text} may be any of these sites: {', '.join(sorted(similar))}; write it as text"
        if not similar:
            return self._elsewhere(text) or f"{UNKNOWN} {text}{self._hint(text)}"
        found = self._ids[text if exact else similar[0]]
        return found.problem or found

    def has(self, text: str) -> bool:
        """Return whether an id is one of these, or may be several."""
        return bool(self._like(text))

    def _like(self, text: str) -> list[str]:
        """Return the ids that a text may stand for."""
        plain = _plain(text)
        return self._similar.get(plain) or self._loose.get(_loose(plain), [])

    def beside(self, others: "KnownIds") -> "KnownIds":
        """Return these ids, and others for texts that are none of these."""
        both = KnownIds(self._ids, self._planned)
        both._beside = others
        return both

    def _elsewhere(self, text: str) -> KnownId | str | None:
        others = self._beside
        return others.find(text) if others is not None and others.has(text) else None

    def _hint(self, text: str) -> str:
        """Return why an id may be unknown, or the nearest one."""
        if PLANNED.fullmatch(text) and not self._planned:
            return ": the survey has no plan (init --overwrite forgets plans); send the row with its coordinates"
        compared = len(self._ids) <= COMPARED and not WHOLE.fullmatch(text)
        near = difflib.get_close_matches(text, self._ids, n=1) if compared else []
        return f"; did you mean {near[0]}?" if near else ""


def known_ids(
    planned: Iterable[tuple[str, str, bool, float, float]], sites: Iterable[tuple[str, float, float]]
) -> KnownIds:
    """Collect the ids of a survey: of planned sites, of measured ones, and the names of planned ones, in this order.

    Args:
        planned: Id, name, whether it is still to be measured, and place of each planned site.
        sites: Id and place of each measurement; ids may be empty.
    """
    ids, names, planned = dict[str, KnownId](), defaultdict[str, list[tuple[bool, KnownId]]](list), list(planned)
    for site, name, pending, x, y in planned:
        ids[site] = KnownId(site, float(x), float(y))
        if name:
            names[name].append((pending, ids[site]))
    own = defaultdict[str, set[tuple[float, float]]](set)
    for site, x, y in sites:
        if site and site not in ids:
            own[site].add((float(x), float(y)))
    for name, found in names.items():
        to_go = [each for pending, each in found if pending] or [found[-1][1]]
        several = ", ".join(each.site for each in to_go)
        problem = f"{name} is the name of several planned sites: {several}; write the id" if len(to_go) > 1 else ""
        if name not in ids and (name not in own or any(pending for pending, _ in found)):
            ids[name] = KnownId(to_go[0].site, to_go[0].x, to_go[0].y, problem)
    for site, places in own.items():
        many = f"site {site} was measured at {len(places)} places; give coordinates" if len(places) > 1 else ""
        ids.setdefault(site, KnownId(site, *next(iter(places)), many))
    return KnownIds(ids, bool(planned))


def located(records: Records, column: str, known: KnownIds, x: str, y: str) -> Records:
    """Return records with the coordinates of their sites in two more columns; rows of unknown sites are refused.

    Args:
        records: The records.
        column: Column of ids.
        known: The survey's ids.
        x: Name of the first column of coordinates.
        y: Name of the second one.
    """
    place, width = records.header.index(column), len(records.header)
    found = [absent(column) if cells[place].lower() in MISSING else known.find(cells[place]) for cells in records.cells]
    lost = [
        Refused(row, text, one, tuple(cells), site=cells[place] if one.startswith(UNKNOWN) else "")
        for row, text, one, cells in zip(records.rows, records.texts, found, records.cells, strict=True)
        if isinstance(one, str)
    ]
    typed = records.typed or [frozenset[int]()] * len(records.rows)
    kept = [(k, one) for k, one in enumerate(found) if isinstance(one, KnownId)]
    return replace(
        records,
        header=[*records.header, x, y],
        rows=[records.rows[k] for k, _ in kept],
        cells=[
            [*records.cells[k][:place], one.site, *records.cells[k][place + 1 :], repr(one.x), repr(one.y)]
            for k, one in kept
        ],
        texts=[records.texts[k] for k, _ in kept],
        refused=[*records.refused, *lost],
        typed=[typed[k] | {width, width + 1} for k, _ in kept],
        notes=[*records.notes, f"The table has no coordinates; its rows are placed by the ids in {column}."],
    )


def _plain(text: str) -> str:
    """Return an id without what spreadsheets and people change: capitals, blanks, zeros before a number."""
    text = " ".join(text.split()).casefold()
    number = WHOLE.fullmatch(text)
    return number[1] if number else text


def _loose(plain: str) -> str:
    """Return a plain id without zeros before the whole numbers in it."""
    return ZEROS.sub("", plain)
