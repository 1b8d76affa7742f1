"""Ids of rows that were set aside: late values of their sites may come by the id alone."""

import json
from collections.abc import Iterator

from bo_scale.survey.store.geopackage import State
from bo_scale.survey.store.known import REPLACED
from bo_scale.survey.tables.columns import SITE
from bo_scale.survey.tables.ids import UNKNOWN, WHOLE, KnownId, KnownIds
from bo_scale.survey.tables.rowkeys import plain_cell, raw_cells
from bo_scale.survey.tables.table import Table

Place = tuple[float, float]
OUTSIDE = "outside the area"
"""The reason of rows that lie there."""
KEEP = "--outside keep uses it"
"""Part of the reason of rows far from all others."""


def placed(state: State, table: Table) -> tuple[Table, set[str]]:
    """Return a table with rows of ids that only rows set aside have, placed where these are, else with the reason.

    With it come the ids that have a place.

    Args:
        state: The survey.
        table: The table, of which some rows have unknown ids.
    """
    lost = {one.site for one in table.refused if one.site}
    if table.with_ids is None or not lost:
        return table, set()
    found = dict[str, KnownId]()
    for site, place, what in _rows(state, lost):
        if site not in found or (found[site].problem and place is not None):
            x, y = (0.0, 0.0) if place is None else place
            problem = f"the row of site {site} was set aside ({what}); send it with its coordinates"
            found[site] = KnownId(site, x, y, problem if place is None else "")
    if not found:
        return table, set()
    return table.with_ids(KnownIds(found)), {site for site, one in found.items() if not one.problem}


def _rows(state: State, lost: set[str]) -> Iterator[tuple[str, Place | None, str]]:
    """Yield ids of rows set aside, their place if it can be used, and file, row and reason."""
    aside = state.rejected
    keys, contents = (aside[name] if name in aside else [""] * len(aside) for name in ("key", "content"))
    plain = {plain_cell(one) for one in lost if not WHOLE.fullmatch(one)}  # 7 may be any number of a row
    for file, row, text, reason, key, content in zip(
        aside.file, aside.row, aside.text, aside.reason, keys, contents, strict=True
    ):
        what = f"{file}, row {row}: {reason}"
        if reason == REPLACED or reason.startswith(UNKNOWN):
            continue
        if isinstance(content, str) and content:
            cells = json.loads(content)
            if cells.get("place") is not None:
                yield cells["site"], tuple(cells["place"]), what
                continue
            site, place = cells["other"].get(SITE), None
        elif isinstance(key, str) and key:
            parts = json.loads(key)
            site = json.loads(parts["other"]).get(SITE)
            place = None if OUTSIDE in reason or KEEP in reason else (parts["x"], parts["y"])
        else:
            site, place = next((each for each in map(plain_cell, raw_cells(text)) if each in plain), None), None
        if site:
            yield next((each for each in raw_cells(text) if plain_cell(each) == site), site), place, what
