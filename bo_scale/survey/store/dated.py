"""Measurements with dates that come in: what they fill in, and which earlier ones they correct."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping.temporal import time_of
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.store.known import NAMED, Same
from bo_scale.survey.tables.columns import SITE

Mask = npt.NDArray[np.bool_]


def time_column(state: State) -> str | None:
    """Return the column of times of a survey; None without one."""
    time = state.settings.get("time")
    return None if time is None else str(time["column"])


def completed(state: State, frame: pd.DataFrame, same: Same) -> tuple[State, Mask, list[str]]:
    """Fill in dates and covariates that measurements lack, and rows that are otherwise the same have.

    Args:
        state: The survey.
        frame: Rows of a table.
        same: Which of them the survey has.

    Returns:
        The survey, which rows filled something in, and a note on them.
    """
    covariates = [str(each["name"]) for each in state.settings.get("covariates", ()) if each.get("file") is None]
    needed, names = [*filter(None, [time_column(state)]), *covariates], set[str]()
    done = np.zeros(len(frame), dtype=np.bool_)
    if not needed or "other" not in state.sites:
        return state, done, []
    others, texts = state.sites.other.to_numpy(copy=True), state.sites.text.to_numpy(copy=True)
    for row in np.flatnonzero(same.sites >= 0):
        place = same.sites[row]
        theirs, mine = _cells(others[place]), _cells(frame.other.iloc[row])
        if missing := {name: mine[name] for name in needed if mine.get(name) and not theirs.get(name)}:
            others[place] = json.dumps({**theirs, **missing}, ensure_ascii=False)
            texts[place], done[row] = frame.text.iloc[row], True
            names |= missing.keys()
    if not done.any():
        return state, done, []
    rows = "; ".join(f"row {row}" for row in frame.row[done][:NAMED]) + ("; …" if done.sum() > NAMED else "")
    note = f"Measurements that had no {', '.join(sorted(names))} and have one now: {int(done.sum()):,} ({rows})."
    return replace(state, sites=state.sites.assign(other=others, text=texts)), done, [note]


def dated_alone(state: State, frame: pd.DataFrame, same: Same) -> list[str]:
    """Return a note on rows that are left out as known, though they alone have a date: they may be new measurements.

    Args:
        state: The survey.
        frame: Rows of a table.
        same: Which of them the survey has.
    """
    if "other" not in state.sites:
        return []
    rows, names = list[str](), dict[str, None]()
    for row in np.flatnonzero(same.sites >= 0):
        theirs, mine = _cells(state.sites.other.iloc[same.sites[row]]), _cells(frame.other.iloc[row])
        dates = [name for name, cell in mine.items() if name not in (*theirs, SITE) and time_of(cell)[1]]
        if dates and theirs != {}:
            rows.append(f"row {frame.row.iloc[row]}")
            names |= dict.fromkeys(dates)
    if not rows:
        return []
    some = "; ".join(rows[:NAMED]) + ("; …" if len(rows) > NAMED else "")
    return [
        f"Rows left out as known, though the survey's rows have no {', '.join(names)}: {len(rows):,} ({some}). If they "
        "are new measurements with the same result, send these rows alone with --repeats."
    ]


def corrected(state: State, sites: gpd.GeoDataFrame, known: npt.NDArray[np.int64], column: str) -> Mask:
    """Return which measurements are corrected by others, of a survey with time.

    A row corrects the measurement of the same site and time, else the one with the same value, whose time was wrong. If
    a planned site has one measurement and one new row, that is corrected whatever it is.

    Args:
        state: The survey.
        sites: New measurements.
        known: Positions of measurements that come again; they correct those of the same time that came before them.
        column: Column of times.

    Raises:
        SurveyError: if there are several such measurements.
    """
    found = np.zeros(len(state.sites), dtype=np.bool_)
    free = state.sites.site.ne("").to_numpy(dtype=np.bool_, copy=True)
    free[known] = False
    earlier = state.sites.assign(place=np.arange(len(state.sites)), time=_times(state.sites, column))[free]
    by_site = dict(iter(earlier.groupby("site", sort=False)))
    planned, times = set(state.planned.site), sites.site.value_counts()
    for row in _rows(sites, column):
        mine = by_site.get(row.site)
        if mine is None:
            continue
        same = mine[(mine.time == row.time) & (row.time != "")]
        same = mine[mine.value == row.value] if not len(same) else same
        if not len(same) and row.site in planned and len(mine) == times[row.site] == 1:
            same = mine
        if len(same) > 1:
            raise SurveyError(
                f"{row.site}: the survey has {len(same):,} values of this site that row {row.row} may correct, so it "
                "is not certain which is to be replaced. Nothing was added. Leave its rows out, send them without "
                "--replace so that all count, or correct the first table and begin the survey again (--overwrite)."
            )
        found[same.place] = True
    for row in _rows(state.sites.iloc[known], column):
        mine = by_site.get(row.site)
        if mine is not None and row.time != "":
            found[mine.place[(mine.time == row.time) & (mine.number < row.number)]] = True
    return found


def _rows(sites: gpd.GeoDataFrame, column: str) -> Iterator[Any]:
    """Yield measurements of sites with ids, with their times."""
    return sites.assign(time=_times(sites, column))[sites.site != ""].itertuples()


def _times(sites: pd.DataFrame, column: str) -> list[str]:
    """Return the cells of the column of times; empty where there is none."""
    return [_cells(text).get(column, "") for text in sites.other] if "other" in sites else [""] * len(sites)


def _cells(text: object) -> dict[str, str]:
    """Return the cells of other columns of a row; none in surveys from before they were kept."""
    cells: dict[str, str] = json.loads(text) if isinstance(text, str) and text else {}
    return cells
