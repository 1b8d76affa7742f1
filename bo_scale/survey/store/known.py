"""Rows that a survey has already, known by their numbers and other cells, not by how they are written."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from pyproj import CRS

from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.records import Refused
from bo_scale.survey.tables.rowkeys import cells_of

Ints = npt.NDArray[np.int64]
NUMBERS = ("value", "error", "of", "below")
DEGREES = 1.1e-6
"""Difference of coordinates in degrees that comes from other rounding."""
METRES = 0.06
"""The same of coordinates in metres."""
REPLACED = "replaced by a later value"
"""The reason of measurements that were corrected."""
WITHDRAWN = "withdrawn (--repeats takes it in again)"
"""The reason of measurements that were withdrawn."""
NAMED = 5
"""Rows that are the same in one table and are named."""


@dataclass(frozen=True)
class Same:
    """Rows of a table that a survey has already.

    Attributes:
        sites: For each row the position of the measurement that it is, -1 if it is none.
        rejected: For each row the position of the rejected row that it is, -1 if it is none.
        differing: For each row with the place and the numbers of a measurement that differs from it in other columns,
            the names of these; empty for all others.
    """

    sites: Ints
    rejected: Ints
    differing: list[list[str]]

    @property
    def any(self) -> npt.NDArray[np.bool_]:
        """Which rows the survey has."""
        return np.asarray((self.sites >= 0) | (self.rejected >= 0))


@dataclass
class _Row:
    """A row to be recognised; `other` is None if it is from before other cells were kept."""

    x: float
    y: float
    numbers: str
    other: str | None
    text: str


class _Index:
    """Rows that may come again, each of them once.

    Args:
        rows: The rows.
        tolerance: Largest difference of coordinates between equal ones.
    """

    def __init__(self, rows: list[_Row], tolerance: float) -> None:
        self._rows, self._tolerance = rows, tolerance
        self._found: dict[tuple[int, int, str], dict[frozenset[str] | None, dict[str, list[int]]]] = {}
        for place, row in enumerate(rows):
            group = self._found.setdefault((self._cell(row.x), self._cell(row.y), row.numbers), {})
            columns = None if row.other is None else frozenset(_cells(row.other))
            group.setdefault(columns, defaultdict(list))[row.other or row.text].append(place)

    def _cell(self, coordinate: float) -> int:
        return math.floor(coordinate / (4 * self._tolerance))

    def take(self, row: _Row) -> int:
        """Return the position of a row that is the same, which is none any more then; -1 without one."""
        for places in self._same(row):
            for place in places:
                if self._near(row, self._rows[place]):
                    places.remove(place)
                    return place
        return -1

    def differing(self, row: _Row) -> list[str]:
        """Return the columns in which a row differs from one of the same place and numbers; none without one."""
        mine = _cells(row.other or "{}")
        for group in self._groups(row):
            for others in group.values():
                for other, places in others.items():
                    if places and self._rows[places[0]].other is not None and self._near(row, self._rows[places[0]]):
                        theirs = _cells(other)
                        return [name for name in mine if name in theirs and mine[name] != theirs[name]]
        return []

    def _groups(self, row: _Row) -> Iterator[dict[frozenset[str] | None, dict[str, list[int]]]]:
        around = (-self._tolerance, self._tolerance)
        for x in {self._cell(row.x + step) for step in around}:
            for y in {self._cell(row.y + step) for step in around}:
                if group := self._found.get((x, y, row.numbers)):
                    yield group

    def _same(self, row: _Row) -> Iterator[list[int]]:
        """Yield positions of rows with the same numbers, whose other cells are equal in the columns of both."""
        mine = _cells(row.other or "{}")
        for group in self._groups(row):  # those with the same columns first
            yield group.get(frozenset(mine), {}).get(row.other or "{}", [])
        for group in self._groups(row):
            for columns, others in group.items():
                for other, places in others.items():
                    if columns != mine.keys() and _agree(mine, other, columns is None):
                        yield places

    def _near(self, one: _Row, other: _Row) -> bool:
        return abs(one.x - other.x) <= self._tolerance and abs(one.y - other.y) <= self._tolerance


def _agree(mine: dict[str, str], other: str, is_text: bool) -> bool:
    """Return whether cells agree with those of another row, of which there may be the text alone."""
    if is_text:
        return set(mine.values()) <= set(cells_of(other))
    theirs = _cells(other)
    return all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())


@lru_cache(maxsize=65536)
def _cells(other: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(other)
    return found


def same_rows(state: State, frame: pd.DataFrame) -> Same:
    """Find the rows of a table that a survey has already; of equal ones, as many as it has.

    Args:
        state: The survey.
        frame: Rows of a table that can be used, in the coordinates of the survey's tables.
    """
    tolerance = _tolerance(CRS(state.sites.crs))
    near = _near(state, frame, tolerance)
    index, aside = _Index(_site_rows(state.sites.iloc[near]), tolerance), state.rejected
    keyed = _with_key(aside)
    # a row that could not be used may look like one that can, which it is not: 7 of 2 corrected is 2 of 7
    texts = _by_text(aside, set(np.flatnonzero(aside.reason.to_numpy() != REPLACED).tolist()))
    keys = _Index([row for _, row in keyed], tolerance)
    sites, rejected = np.full(len(frame), -1), np.full(len(frame), -1)
    differing: list[list[str]] = []
    for place, row in enumerate(_rows(frame)):
        if (found := index.take(row)) >= 0:
            sites[place] = near[found]
        if sites[place] < 0 and (found := keys.take(row)) >= 0:
            rejected[place] = keyed[found][0]
        if sites[place] < 0 and rejected[place] < 0 and texts and (left := texts.get(cells_of(row.text))):
            rejected[place] = left.pop(0)
        differing.append(index.differing(row) if sites[place] < 0 and rejected[place] < 0 else [])
    return Same(sites, rejected, differing)


def same_refused(state: State, refused: list[Refused]) -> Ints:
    """Return for each row that cannot be used the position of the rejected row that it is, -1 if it is new.

    Rows are known by their cells in the columns of both, of equal ones as many as there are. Of rows from before
    columns were kept, and of those whose cells cannot be told apart, the text is compared, in any order of its cells.
    """
    found, aside = np.full(len(refused), -1), state.rejected
    if not refused or not len(aside):
        return found
    contents = [(place, row) for place, text in enumerate(_column(aside, "content")) if (row := _content(text))]
    index, by_text = _Index([row for _, row in contents], 1.0), _by_text(aside, {place for place, _ in contents})
    for place, one in enumerate(refused):
        row = _content(one.content)
        if row is not None and (taken := index.take(row)) >= 0:
            found[place] = contents[taken][0]
        elif left := by_text.get(cells_of(one.text)):
            found[place] = left.pop(0)
    return found


def _content(text: str) -> _Row | None:
    """Return a row that cannot be used, by its cells; None if these are not known."""
    if not text:
        return None
    cells = json.loads(text)
    numbers, other = (json.dumps(cells[name], ensure_ascii=False) for name in ("numbers", "other"))
    return _Row(0.0, 0.0, numbers, other, "")


def keys_of(frame: pd.DataFrame) -> list[str]:
    """Return what rows are known by once they are set aside, as JSON.

    Args:
        frame: Rows with `x`, `y`, numbers and `other`.
    """
    names = ("x", "y", *NUMBERS)
    columns = zip(*(frame[name].astype(float) for name in names), strict=True)
    return [
        json.dumps(
            {**{name: None if math.isnan(cell) else cell for name, cell in zip(names, cells)}, "other": other},
            ensure_ascii=False,
        )
        for cells, other in zip(columns, frame.other, strict=True)
    ]


def twins(frame: pd.DataFrame, time: str | None = None) -> list[str]:
    """Return a note on rows of one table that have the same place and numbers, and the same time if there are times.

    Args:
        frame: The rows that are used.
        time: Column of times; None without one.
    """
    first = dict[tuple[Any, ...], tuple[int, str]]()
    found = list[str]()
    for row, x, y, numbers, other in zip(frame.row, frame.x, frame.y, _numbers(frame), frame.other, strict=True):
        when = None if time is None else _cells(other).get(time)
        before, text = first.setdefault((x, y, numbers, when), (row, other))
        if before != row:
            mine, theirs = _cells(other), _cells(text)
            names = [name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)]
            found.append(f"row {row} as row {before}" + (f" (other {', '.join(sorted(names))})" if names else ""))
    if not found:
        return []
    found.sort(key=lambda text: " (other " in text)  # copies first
    some = "; ".join(found[:NAMED]) + ("; …" if len(found) > NAMED else "")
    what = "the place and the value" if time is None else f"the place, the value and the {time}"
    return [
        f"Rows with {what} of an earlier row of the table: {len(found):,} ({some}). Each counts as a "
        "measurement of its own. If they are copies, delete them."
    ]


def repeated_sites(frame: pd.DataFrame, time: str | None = None) -> list[str]:
    """Return notes on sites with several different values in one table, at one time if there are times.

    Args:
        frame: The rows that are used.
        time: Column of times; None without one.
    """
    notes = []
    when = [""] * len(frame) if time is None else [_cells(other).get(time, "") for other in frame.other]
    for (site, at), rows in frame.assign(when=when)[frame.site != ""].groupby(["site", "when"], sort=False):
        if len(rows) > 1 and rows.value.nunique() > 1:
            on = f" with {time} {at}" if at else ""
            notes.append(f"{site} is in rows {', '.join(map(str, rows.row))} of the table{on}: all values count.")
    more = [f"… and {len(notes) - NAMED} other sites are in several rows."] if len(notes) > NAMED else []
    return [*notes[:NAMED], *more]


def _tolerance(crs: CRS) -> float:
    return DEGREES if crs.is_geographic else METRES / (crs.axis_info[0].unit_conversion_factor or 1.0)


def _numbers(frame: pd.DataFrame) -> list[str]:
    """Return values, errors, numbers examined and limits as texts of nine digits."""
    columns = [frame[name].to_numpy(dtype=np.float64) if name in frame else np.zeros(len(frame)) for name in NUMBERS]
    columns[-1] = np.nan_to_num(columns[-1])
    whole = np.stack(columns, -1) + 0.0  # a GeoPackage does not tell -0 from 0
    return ["|".join(f"{cell:.9g}" for cell in cells) for cells in whole.tolist()]


def _rows(frame: pd.DataFrame) -> Iterator[_Row]:
    for x, y, numbers, other, text in zip(frame.x, frame.y, _numbers(frame), frame.other, frame.text, strict=True):
        yield _Row(x, y, numbers, other, text)


def _near(state: State, frame: pd.DataFrame, tolerance: float) -> Ints:
    """Return the positions of measurements that may be rows of a table, by their places."""
    places = shapely.get_coordinates(state.sites.geometry.to_numpy())
    rows, steps = frame[["x", "y"]].to_numpy(dtype=np.float64), (-tolerance, tolerance)
    around = [_cell_of(rows + np.array([x, y]), tolerance) for x in steps for y in steps]
    return np.flatnonzero(np.isin(_cell_of(places, tolerance), np.concatenate(around)))


def _cell_of(places: npt.NDArray[np.float64], tolerance: float) -> Ints:
    """Return the number of the square cell of each place; a few cells far apart may have the same."""
    x, y = np.floor(places / (4 * tolerance)).astype(np.int64).T
    return np.asarray(x * 4_294_967_291 + y)


def _site_rows(sites: pd.DataFrame) -> list[_Row]:
    """Return measurements as rows that may come again."""
    places = shapely.get_coordinates(sites.geometry.to_numpy()).tolist()
    others = sites.other if "other" in sites else [None] * len(sites)
    return [
        _Row(x, y, numbers, other if isinstance(other, str) and other else None, text)
        for (x, y), numbers, other, text in zip(places, _numbers(sites), others, sites.text, strict=True)
    ]


def _with_key(rejected: pd.DataFrame) -> list[tuple[int, _Row]]:
    """Return the rejected rows whose numbers are known, with their positions."""
    found = []
    for place, (key, text) in enumerate(zip(_column(rejected, "key"), rejected.text, strict=True)):
        if key:
            parts = json.loads(key)
            numbers = pd.DataFrame({name: [parts[name]] for name in NUMBERS}).astype(float)
            found.append((place, _Row(parts["x"], parts["y"], _numbers(numbers)[0], parts["other"], text)))
    return found


def _column(rejected: pd.DataFrame, name: str) -> list[str]:
    """Return a column of the rejected rows that earlier versions have not; empty where there is nothing in it."""
    cells = rejected[name] if name in rejected else [""] * len(rejected)
    return [cell if isinstance(cell, str) else "" for cell in cells]


def _by_text(rejected: pd.DataFrame, without: set[int]) -> dict[tuple[str, ...], list[int]]:
    """Return the positions of rejected rows without a key by their cells, in any order; some are left out."""
    found = defaultdict[tuple[str, ...], list[int]](list)
    for place, (text, key) in enumerate(zip(rejected.text, _column(rejected, "key"), strict=True)):
        if not key and place not in without:
            found[cells_of(text)].append(place)
    return dict(found)
