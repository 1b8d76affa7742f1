"""Measurements that come in: new rows, rows that can be used, and their planned sites."""

from dataclasses import dataclass, field, replace

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from scipy.spatial import cKDTree

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import to_metric
from bo_scale.survey.geography.globe import in_space
from bo_scale.survey.geography.land import note_at_sea
from bo_scale.survey.geography.region import Region
from bo_scale.survey.mapping.scales import Amounts, Scale
from bo_scale.survey.store.aside import OUTSIDE, placed
from bo_scale.survey.store.dated import completed, corrected, dated_alone, time_column
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.store.known import (
    NAMED,
    REPLACED,
    WITHDRAWN,
    Same,
    keys_of,
    repeated_sites,
    same_refused,
    same_rows,
    twins,
)
from bo_scale.survey.tables.table import Table

Array = npt.NDArray[np.float64]
FAR = 10.0
"""Number of interquartile ranges beyond the quartiles from which a value is far from all others."""
FEW = 3
"""Maximum number of such values in one table that are pointed out as possible typos."""
CODES = tuple(sign * float("9" * digits) for sign in (-1, 1) for digits in range(2, 7))
"""Usual codes for missing values."""
NEAR = 0.02
"""Distance from a planned site within which a measurement is taken for its own, in square roots of the area."""
Aside = tuple[str, int, str, str, str, str]
"""File, row, text, reason, key and content of a row that is kept aside."""


@dataclass(frozen=True)
class Arrival:
    """The outcome of an update, for the rows of a table.

    Attributes:
        state: The survey with them.
        added: Measurements that were new.
        known: Rows that were there before, which are left out.
        aside: Those of them that had been set aside.
        blank: Rows of planned sites without a value yet.
        matched: Ids of planned sites that were measured.
        rejected: Rows kept aside: `row`, `reason`.
        notes: Sentences on what the user should look at.
        again: Rows that were kept aside before and stay so, without corrected values: `row`, `reason`.
    """

    state: State
    added: int
    known: int
    aside: int
    blank: int
    matched: list[str]
    rejected: list[tuple[int, str]]
    notes: list[str]
    again: list[tuple[int, str]] = field(default_factory=list)


def arrive(
    state: State,
    table: Table,
    file: str,
    region: Region,
    scale: Scale,
    keep_outside: bool,
    repeats: bool,
    replace_earlier: bool = False,
    time: str | None = None,
) -> Arrival:
    """Take the rows of a table in.

    A row that is there already is left out, however another program has written it: a file may be given again with
    more rows, or twice. Rows outside the area, and values that the scale has no place for, are kept aside.

    Args:
        state: The survey before; it stays as it is.
        table: The table.
        file: Its name.
        region: The area where sampling is allowed.
        scale: Scale of the model.
        keep_outside: Use measurements outside the area: they inform the map near its border.
        repeats: Take rows that are there already as further measurements.
        replace_earlier: Put earlier measurements of the same sites aside, as corrected; of rows that are there already
            too. Hyperparameters that were learned with them are forgotten. With time a row replaces the measurement of
            the same date, or else the one with the same value.
        time: Column of times; None for that of the survey, if it has one.

    Raises:
        SurveyError: if a row is to replace one of several measurements of a site that is of no plan.
    """
    table, late = placed(state, table)
    state = _without_withdrawn(state, table) if repeats else state
    same = _none(len(table.frame)) if repeats else same_rows(state, table.frame)
    back = _coming_back(state, table, same) if replace_earlier else np.zeros(len(table.frame), dtype=np.bool_)
    new, time = ~same.any | back, time_column(state) if time is None else time
    state, filled, about_filled = completed(state, table.frame, same)
    frame = table.frame[new]
    refused = [one for one in table.refused if one.reason != table.blank or not len(state.planned)]
    seen = np.full(len(refused), -1) if repeats else same_refused(state, refused)
    fresh = [one for one, place in zip(refused, seen, strict=True) if place < 0]
    reasons = np.full(len(frame), "", dtype=object)
    if table.columns.of is None:
        reasons[~scale.usable(frame.value.to_numpy())] = f"{table.columns.value} is not {scale.requirement()}"
    if isinstance(scale, Amounts):
        limit = frame.below.to_numpy(dtype=np.float64) > 0
        reasons[limit & (reasons == "")] = f"{table.columns.value} is a limit, which tells not whether it is present"
    xy = to_metric(frame[["x", "y"]].to_numpy(dtype=np.float64), table.crs, region.crs)
    if not keep_outside:
        astray = _astray(xy, frame.site.isin(state.planned.site).to_numpy(), region)
        reasons[astray & (reasons == "")] = OUTSIDE
    used = reasons == ""
    first = int(state.sites.number.max()) + 1 if len(state.sites) else 0
    sites = _rows(frame[used], table, file, first)
    planned, matched = _matched(state, sites, xy[used], region, late | (_own(state) if replace_earlier else set()))
    notes = [
        *_odd_values(state, sites),
        *_odd_sites(state, sites, frame[used], xy[used], region, replace_earlier, late),
    ]
    notes += [
        f"row {row}: {name} is placed where its row that was set aside lies."
        for name, row in zip(frame.site[used], frame.row[used], strict=True)
        if name in late
    ]
    notes += [*twins(frame[used], time), *repeated_sites(frame[used], time), *about_filled]
    notes += [] if time is not None else dated_alone(state, table.frame, same)
    if limits := int(sites.below.sum()):
        notes.append(f"Values below a limit of detection: {limits:,}. They count as somewhere below it.")
    every = np.concatenate(
        [xy[used], to_metric(shapely.get_coordinates(state.sites.geometry.to_numpy()), table.crs, region.crs)]
    )
    rows = [f"row {row}" for row in sites.row]
    notes += note_at_sea(
        "Sites at sea", rows, xy[used], every, region.crs, "Check the coordinates if that is a mistake."
    )
    gone: list[Aside] = []
    if not replace_earlier:
        notes += _differing(same, new, time)
    else:
        there = same.sites[same.sites >= 0]
        if time is None:
            outdated = _outdated(state, there) | _of_own_sites(state, sites, there)
            _require_certain(state, sites, outdated)
        else:
            outdated = corrected(state, sites, there, time)
            beside = (set(sites.site) & set(state.sites.site)) - {"", *state.sites.site[outdated]}
            notes += [f"{name}: no earlier value has its {time} or its value, so all count." for name in sorted(beside)]
        notes += [f"{name}: the earlier value was set aside." for name in sorted(set(state.sites.site[outdated]))]
        notes += [
            f"{name}: a value that had been replaced counts again." for name in sorted(set(table.frame.site[back]))
        ]
        state, gone = _without_corrected(state, sites, outdated, time)
    left_out: list[Aside] = [(file, one.row, one.text, one.reason, one.key, one.content) for one in fresh]
    outside = frame[~used]
    left_out += [
        (file, int(row), text, str(reason), key, "")
        for row, text, reason, key in zip(outside.row, outside.text, reasons[~used], keys_of(outside), strict=True)
    ]
    left_out.sort(key=lambda one: one[1])
    rejected = pd.DataFrame(gone + left_out, columns=["file", "row", "text", "reason", "key", "content"])
    whole = replace(
        state,
        sites=_joined(state.sites, sites),
        planned=planned,
        rejected=pd.concat([state.rejected, rejected], ignore_index=True) if len(rejected) else state.rejected,
    )
    aside = int((same.rejected[~new] >= 0).sum()) + len(refused) - len(fresh)
    known = int((same.sites[~new] >= 0).sum()) + aside - int(filled.sum())
    reasons_before = state.rejected.reason.to_numpy()
    again = [
        (int(row), str(reasons_before[place]))
        for row, place in zip(table.frame.row[~new], same.rejected[~new], strict=True)
        if place >= 0 and reasons_before[place] != REPLACED
    ]
    again = sorted(again + [(one.row, one.reason) for one, place in zip(refused, seen, strict=True) if place >= 0])
    refusals = [(row, reason) for _, row, _, reason, *_ in left_out]
    return Arrival(whole, len(sites), known, aside, len(table.refused) - len(refused), matched, refusals, notes, again)


def unread(state: State, table: Table) -> int:
    """Return the number of rows of a table with a value that a survey does not have yet."""
    filled = [one for one in table.refused if one.reason != table.blank]
    return int((~same_rows(state, table.frame).any).sum() + (same_refused(state, filled) < 0).sum())


def _without_withdrawn(state: State, table: Table) -> State:
    """Return the survey without rows that had been withdrawn and come again."""
    aside = state.rejected
    again = same_rows(state, table.frame).rejected
    gone = np.isin(np.arange(len(aside)), again) & (aside.reason == WITHDRAWN).to_numpy()
    return replace(state, rejected=aside[~gone].reset_index(drop=True)) if gone.any() else state


def _none(count: int) -> Same:
    """Return that no row is known."""
    return Same(np.full(count, -1), np.full(count, -1), [[] for _ in range(count)])


def _differing(same: Same, new: npt.NDArray[np.bool_], time: str | None) -> list[str]:
    """Return a note on rows that are new by other columns than place and value alone."""
    found = [names for names, is_new in zip(same.differing, new, strict=True) if is_new and names]
    if not found:
        return []
    names = list(dict.fromkeys(name for each in found for name in each))
    more = " (--replace corrects the time of the earlier ones)" if time in names else ""
    return [
        f"Rows with the place and the value of a measurement that the survey has, but another {', '.join(names)}: "
        f"{len(found):,}. They count as further measurements{more}."
    ]


def _odd_values(state: State, sites: gpd.GeoDataFrame) -> list[str]:
    """Return notes on values far beyond the others, which may be typos or codes for no value."""
    value = sites.value.to_numpy()
    every = np.concatenate([state.sites.value.to_numpy(dtype=np.float64), value])
    if len(every) < 8:
        return []
    low, high = np.quantile(every, [0.25, 0.75])
    reach = FAR * (high - low)
    odd = (value < low - reach) | (value > high + reach)
    if reach == 0 or odd.sum() > FEW:  # many are the tail of a skewed quantity
        odd &= np.isin(value, CODES)
    notes = []
    for row, number, site in zip(sites.row[odd], value[odd], sites.site[odd], strict=True):
        code, again = number in CODES, bool(site)
        what = "looks like a code for a missing value, but it counts" if code else "is far from all other values"
        wrong = "a code" if code else "a typo"
        remedy = "send the row with the right value (--replace)" if again else "clear it" if code else "correct it"
        remedy += "" if again else " and begin the survey again (--overwrite)"
        notes.append(f"row {row}: {number:g} {what}. If it is {wrong}, {remedy}.")
    return notes


def _odd_sites(
    state: State,
    sites: gpd.GeoDataFrame,
    frame: pd.DataFrame,
    xy: Array,
    region: Region,
    replace_earlier: bool,
    late: set[str],
) -> list[str]:
    """Return notes on unplanned names, places far from the plan, and sites that were measured before."""
    where, own, reach = _places(state.planned, region), _own(state) | late, NEAR * region.area**0.5
    single = state.sites[state.sites.site.isin(own) & ~state.sites.site.duplicated(keep=False)]
    before, again, notes = _places(single, region), set(state.sites.site) & set(sites.site) & where.keys(), list[str]()
    for name, row, at in zip(frame.site, frame.row, in_space(xy, region.crs), strict=True):
        if name and name not in where and name not in own and where:
            notes.append(f"row {row}: there is no planned site {name}, so the row is matched by its coordinates.")
        elif name in where and (away := float(np.linalg.norm(at - where[name]))) > reach:
            notes.append(
                f"row {row}: {name} was measured {away:,.0f} m from where it was planned; check the coordinates."
            )
        elif name in before and (away := float(np.linalg.norm(at - before[name]))) <= reach:
            again.add(name)
        elif name in before and replace_earlier:
            notes.append(f"row {row}: {name} was measured {away:,.0f} m from here before; check the coordinates.")
    if not replace_earlier:
        notes += [
            f"{name} was measured before, so both values count (--replace sets the earlier one aside)."
            for name in sorted(again)[:NAMED]
        ]
        notes += [f"… and {len(again) - NAMED} other sites were measured before."] if len(again) > NAMED else []
    return notes


def _places(frame: gpd.GeoDataFrame, region: Region) -> dict[str, Array]:
    """Return places by the ids of their sites."""
    if not len(frame):
        return {}
    places = to_metric(shapely.get_coordinates(frame.geometry.to_numpy()), frame.crs, region.crs)
    return dict(zip(frame.site, in_space(places, region.crs), strict=True))


def _own(state: State) -> set[str]:
    """Return the ids of measured sites that are of no plan, such as those of the first table."""
    return set(state.sites.site) - set(state.planned.site) - {""}


def _outdated(state: State, known: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which measurements came before others, at these positions, that come again of the same sites."""
    sites = state.sites
    again = sites.text.isin(set(sites.text.iloc[known]))
    again.iloc[known] = True
    last = sites[again & (sites.site != "")].groupby("site").number.max()
    return np.asarray(~again & (sites.number < sites.site.map(last)))


def _coming_back(state: State, table: Table, same: Same) -> npt.NDArray[np.bool_]:
    """Return which replaced rows come again without a current value of the same site."""
    frame, reasons = table.frame, state.rejected.reason.to_numpy()
    current = set(frame.site[same.sites >= 0])  # a table may hold all values one after another
    replaced = np.array([place >= 0 and reasons[place] == REPLACED for place in same.rejected], dtype=np.bool_)
    return replaced & frame.site.isin((set(state.planned.site) | _own(state)) - current).to_numpy()


def _of_own_sites(state: State, sites: gpd.GeoDataFrame, there: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which measurements are of new ones' sites of no plan, and are not in the same table at these positions.

    Names of the user's own may stand for many measurements, so that one that is sent again is no mistake.
    """
    old = state.sites.site.isin(_own(state) & set(sites.site)).to_numpy(dtype=np.bool_, copy=True)
    old[there] = False
    return old


def _require_certain(state: State, sites: gpd.GeoDataFrame, outdated: npt.NDArray[np.bool_]) -> None:
    """Refuse to replace one of several measurements.

    Raises:
        SurveyError: if several measurements of a site of no plan are outdated.
    """
    own = state.sites.site[outdated & state.sites.site.isin(_own(state)).to_numpy()]
    times = sites.site.value_counts()
    for name, count in own.value_counts().items():
        if count > 1 or times.get(name, 0) > 1:
            raise SurveyError(
                f"{name}: the survey has {count:,} values of this site that the table has not, and the table has "
                f"{times.get(name, 0):,} new ones, so it is not certain which is to be replaced. Nothing was added. "
                "Leave its rows out, send them without --replace so that all count, or correct the first table and "
                "begin the survey again (--overwrite)."
            )


def _without_corrected(
    state: State, sites: gpd.GeoDataFrame, outdated: npt.NDArray[np.bool_], time: str | None
) -> tuple[State, list[Aside]]:
    """Return the survey without outdated measurements and their fit, and the rows.

    Without time, all earlier measurements of planned sites that are measured again are outdated.
    """
    again = state.sites.site.isin(set(sites.site) & set(state.planned.site)).to_numpy()
    return set_aside(state, outdated | again if time is None else outdated, REPLACED)


def set_aside(state: State, old: npt.NDArray[np.bool_], reason: str) -> tuple[State, list[Aside]]:
    """Return the survey without some measurements and their fit, and the rows to keep aside.

    Args:
        state: The survey.
        old: Which measurements go.
        reason: The reason.
    """
    rows = state.sites[old]
    columns = zip(rows.file, rows.row, rows.text, _keys_of_sites(rows), strict=True)
    gone = [(str(file), int(row), str(text), reason, key, "") for file, row, text, key in columns]
    spoilt = {"fit": None, "presence_fit": None} if gone else {}  # a typo may have spoilt them
    settings = {**state.settings, **spoilt}
    return replace(state, sites=state.sites[~old].reset_index(drop=True), settings=settings), gone


def _astray(xy: Array, planned: npt.NDArray[np.bool_], region: Region) -> npt.NDArray[np.bool_]:
    """Return which places lie outside the area. Planned sites, which nobody hits exactly, may be outside by `NEAR`."""
    outside = ~region.contains(xy)
    for place in np.flatnonzero(outside & planned):
        outside[place] = region.shape.distance(shapely.Point(xy[place])) > NEAR * region.area**0.5
    return outside


def _keys_of_sites(sites: gpd.GeoDataFrame) -> list[str]:
    """Return what measurements are known by once they are set aside; empty for those from before that was kept."""
    if "other" not in sites:
        return [""] * len(sites)
    x, y = shapely.get_coordinates(sites.geometry.to_numpy()).T
    kept = sites.other.map(lambda other: isinstance(other, str) and other != "").to_numpy(dtype=np.bool_)
    frame = pd.DataFrame(sites.drop(columns="geometry")).assign(x=x, y=y, other=sites.other.where(kept, "{}"))
    frame["below"] = frame.below.fillna(0) if "below" in frame else 0
    return [key if known else "" for key, known in zip(keys_of(frame), kept, strict=True)]


def _rows(frame: pd.DataFrame, table: Table, file: str, first: int) -> gpd.GeoDataFrame:
    """Return rows as a survey keeps them, numbered from `first`."""
    points = shapely.points(frame[["x", "y"]].to_numpy(dtype=np.float64))
    columns = {
        "number": np.arange(first, first + len(frame)),
        **{name: frame[name].to_numpy() for name in ("value", "error", "of", "below", "site", "other")},
        "file": file,
        "row": frame.row.to_numpy(),
        "text": frame.text.to_numpy(),
        "batch": -1,
    }
    return gpd.GeoDataFrame(columns, geometry=points, crs=table.crs)


def _joined(before: gpd.GeoDataFrame, new: gpd.GeoDataFrame) -> gpd.GeoDataFrame:
    if not len(before):
        return new
    moved = new.to_crs(before.crs) if new.crs != before.crs else new
    return gpd.GeoDataFrame(pd.concat([before, moved], ignore_index=True), crs=before.crs) if len(new) else before


def _matched(
    state: State, sites: gpd.GeoDataFrame, xy: Array, region: Region, by_id: set[str]
) -> tuple[gpd.GeoDataFrame, list[str]]:
    """Match measurements to planned sites, by id or else by place; set ids and batches of `sites` in place.

    An id is known for ever, also after its site was dropped; a place only while its site is to be measured. Sites of
    no plan with these ids are not matched by their places.
    """
    planned = state.planned.copy()
    if not len(planned) or not len(sites):
        return planned, []
    ids, names = planned.site.to_numpy().astype(object), sites.site.to_numpy().astype(object)
    by_name = {name: place for place, name in enumerate(ids)}
    which = np.array([by_name.get(name, -1) for name in names])
    pending = np.flatnonzero((planned.status == "planned").to_numpy())
    if len(pending):
        places = to_metric(shapely.get_coordinates(planned.geometry.to_numpy()[pending]), planned.crs, region.crs)
        places = in_space(places, region.crs)
        distance, nearest = cKDTree(places).query(in_space(xy, region.crs))
        near = (which < 0) & ~np.isin(names.astype(str), sorted(by_id)) & (distance <= _reach(places, region))
        which[near] = pending[nearest[near]]
    found = np.flatnonzero(which >= 0)
    rows = which[found]
    sites.loc[sites.index[found], "batch"] = planned.batch.to_numpy()[rows]
    names[found] = ids[rows]
    sites["site"] = names
    planned.loc[planned.index[rows], "status"] = "measured"
    return planned, sorted(set(ids[rows]), key=lambda name: (len(name), name))


def _reach(places: Array, region: Region) -> float:
    """Return the reach of a planned site: at most half the way to the next one at another place."""
    distinct = np.unique(places, axis=0)
    apart = cKDTree(distinct).query(distinct, k=2)[0][:, 1].min() if len(distinct) > 1 else np.inf
    return float(min(apart / 2, NEAR * region.area**0.5))
