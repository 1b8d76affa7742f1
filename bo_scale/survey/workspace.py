"""A survey's state as computations need it: places in metres, values on the model's scale, routes and barriers."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS

from bo_scale.decimals import Mark
from bo_scale.errors import SurveyError
from bo_scale.survey.choice.places import SAME
from bo_scale.survey.covariates import (
    Covariate,
    Covariates,
    cells_of_frame,
    class_names,
    number_of,
    reach_of,
    require_usable,
    saved,
)
from bo_scale.survey.geography.coordinates import project_shape, to_metric
from bo_scale.survey.geography.region import Region, make_region, polygons
from bo_scale.survey.geography.world import is_world
from bo_scale.survey.mapping.anisotropy import Stretch
from bo_scale.survey.mapping.likelihoods import Binomial, Censored, Poisson
from bo_scale.survey.mapping.scales import Amounts, Scale, scale_of
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.stand_ins import sites_of
from bo_scale.survey.mapping.temporal import EPOCH, Time, time_of
from bo_scale.survey.plan.problem import places_of
from bo_scale.survey.plan.travel import Depot
from bo_scale.survey.routes.route import Route, routes_of
from bo_scale.survey.store.create import NO_AREA
from bo_scale.survey.store.far import stand_apart
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.columns import RESERVED, SITE
from bo_scale.survey.tables.ids import known_ids
from bo_scale.survey.tables.records import Dialect
from bo_scale.survey.tables.rowkeys import may_be_two, plain_cell
from bo_scale.survey.tables.table import Columns, Earlier, Table, read_table

Array = npt.NDArray[np.float64]
FEWEST_AMOUNTS = 2
"""Values above zero that amounts are modelled from."""
COVARIATE_SETTINGS = ("covariates", "said_of_covariates")
"""Settings of covariates."""
NAMED = 5
"""Measurements without covariates that are named."""
AGAIN = "correct it and begin the survey again (--overwrite), because the row has no id of a site."
"""Remedy for a mistyped cell of a row that cannot be replaced."""
STAND_INS = ("stand_in", "stand_in_variance")
"""Columns of the Gaussian measurements that stand for counts."""


@dataclass(frozen=True)
class Workspace:
    """A view of a state. It changes nothing: another state is another workspace.

    Attributes:
        state: The state.
        metric: Coordinate system in which distances are taken.
        region: The area where sampling is allowed, metric.
        folder: Folder of the survey, in which rasters are looked for too; None if that is not known.
        when: Time that is predicted, of a survey with time; None for that of the latest measurement.
    """

    state: State
    metric: CRS
    region: Region
    folder: Path | None = None
    when: float | None = None

    @classmethod
    def of(cls, state: State, folder: Path | None = None) -> "Workspace":
        """Project the area of a state."""
        metric = CRS.from_user_input(state.settings["metric"])
        frames = [state.area] if state.forbidden is None else [state.area, state.forbidden]
        shape, *cuts = (project_shape(_valid(frame), CRS(frame.crs), metric) for frame in frames)
        return cls(state, metric, make_region(shape, cuts, metric), folder)

    @property
    def globe(self) -> str | None:
        """Well-known text of the map, if it is one of the whole world; None if it is true to scale."""
        return self.metric.to_wkt() if is_world(self.metric) else None

    def with_settings(self, **settings: Any) -> "Workspace":
        """Return the workspace with other settings."""
        return replace(self, state=replace(self.state, settings={**self.state.settings, **settings}))

    # ------------------------------------------------------------------ settings

    @property
    def crs(self) -> CRS:
        """Coordinate system of the user's tables."""
        return CRS(self.state.sites.crs)

    @property
    def columns(self) -> Columns:
        """Columns of the user's tables."""
        return Columns(**self.state.settings["columns"])

    @property
    def scale(self) -> Scale:
        """Scale of the model."""
        return scale_of(**self.state.settings["transform"])

    @property
    def quantity(self) -> str:
        """Name of what is measured."""
        columns = self.columns
        return columns.value if columns.of is None else f"{columns.value} / {columns.of}"

    @property
    def notes(self) -> list[str]:
        """Sentences on what was recognised or assumed."""
        return [*self.state.settings["said"], *self.said, *self.said_of_divides]

    @property
    def said_of_divides(self) -> list[str]:
        """Sentences on divides."""
        found = self.state.settings.get("divides")
        return [] if found is None else [f"Correlation goes around divides: {', '.join(found['files'])}."]

    @property
    def divides(self) -> str | None:
        """Polygons that correlation goes around, as well-known text, metres; None without any."""
        found = self.state.settings.get("divides")
        return None if found is None else str(found["text"])

    @property
    def said(self) -> list[str]:
        """Sentences on covariates."""
        if self.covariates is None:
            return []
        noted = [*self.state.settings.get("said_of_covariates", ()), *self.notes_on_covariates()]
        if (time := self.time) is not None:
            pace = "" if time.decay is None else f", whose hold falls to 1/e in {time.decay:g}{' days' * time.dates}"
            first, last = time.shown(time.start), time.shown(time.start + time.span)
            noted = [*self.notes_on_times(), *noted]
            noted.insert(0, f"Time: {self.time_column}, from {first} to {last}{pace}.")
        if not self.covariates.every:
            return noted
        named = ", ".join(
            one.name + (f" ({one.kind})" if one.kind != "linear" else "") for one in self.covariates.every
        )
        return [f"Covariates: {named}.", *noted]

    @property
    def area_is_assumed(self) -> bool:
        """Whether the user gave no area."""
        return any(note.startswith(NO_AREA) for note in self.notes)

    @property
    def anisotropy(self) -> "Stretch | str":
        """Anisotropy that was given; "learn" or "none"."""
        asked = self.state.settings.get("anisotropy", "learn")
        return asked if isinstance(asked, str) else Stretch(*asked)

    def with_anisotropy(self, asked: "Stretch | str") -> "Workspace":
        """Return the workspace with another anisotropy, without hyperparameters that were learned with that before.

        Raises:
            SurveyError: on the globe, where no axis has one bearing, or with divides.
        """
        if isinstance(asked, Stretch) and self.globe is not None:
            raise SurveyError(
                "anisotropy: on the globe an axis has no one bearing; give an area (--area), or leave it out."
            )
        if isinstance(asked, Stretch) and self.divides is not None:
            raise SurveyError("anisotropy: none can be given with divides; drop these first (--divide none).")
        if asked == self.anisotropy:
            return self
        spoilt = {name: None for name in ("fit", "presence_fit") if name in self.state.settings}
        kept = asked if isinstance(asked, str) else [asked.ratio, asked.angle]
        return self.with_settings(**spoilt, anisotropy=kept)

    def threshold(self, given: float | None) -> float | None:
        """Return the threshold given, else that of the survey; None if there is none."""
        return self.state.settings["threshold"] if given is None else given

    # ------------------------------------------------------------------ places and values

    def xy(self, frame: gpd.GeoDataFrame) -> Array:
        """Return the points of a table, `n × 2`, metres."""
        return places_of(frame, self.metric)

    def metres(self, places: Array) -> Array:
        """Return places given in the user's coordinates, `n × 2`, metres."""
        return to_metric(places, self.crs, self.metric)

    @cached_property
    def covariates(self) -> Covariates | None:
        """The covariates; None without any."""
        every = [Covariate(**each) for each in self.state.settings.get("covariates", ())]
        column = self.time_column
        if not every and column is None:
            return None
        sites, candidates = self.state.sites, self.state.candidates
        known = [(self.xy(sites), cells_of_frame(sites), SAME)]
        if candidates is not None:
            xy = self.xy(candidates)
            known.insert(0, (xy, cells_of_frame(candidates), reach_of(xy)))
        when = np.nan if column is None else float(np.nanmax(self.times)) if self.when is None else self.when
        return Covariates(every, self.metric, self.folder, known, column, when)

    @property
    def time_column(self) -> str | None:
        """Column of times; None for a survey without time."""
        time = self.state.settings.get("time")
        return None if time is None else str(time["column"])

    @cached_property
    def _read_times(self) -> list[tuple[float, bool]]:
        column = self.time_column
        cells = (json.loads(text) if text else {} for text in cells_of_frame(self.state.sites))
        return [time_of(row.get(column)) for row in cells]

    @property
    def times(self) -> Array:
        """Times of all measurements, NaN where there is none: days since 1970 of dates, else numbers.

        Raises:
            SurveyError: if there are none, or all are the same.
        """
        found = np.array([when for when, _ in self._read_times])
        known = found[np.isfinite(found)]
        if not len(known):
            self._require_time_column()
        if not len(known) or np.ptp(known) == 0:
            what = "no date and no number" if not len(known) else "the same time"
            raise SurveyError(
                f"time: the column {self.time_column} has {what} in all rows."
                f"{self._in_two_ways(self.state.sites)} Write dates as 2024-06-01, or name another column "
                "(bo-scale survey model --time)."
            )
        kinds = {is_date for when, is_date in self._read_times if np.isfinite(when)}
        if len(kinds) == 2:
            raise SurveyError(f"time: the column {self.time_column} has dates in some rows and numbers in others.")
        return found

    def _in_two_ways(self, sites: gpd.GeoDataFrame) -> str:
        """Return a sentence on a date of some measurements that may be read in two ways; empty if there is none."""
        cells = (_cell(text, self.time_column) for text in cells_of_frame(sites))
        found = next((cell for cell in cells if may_be_two(cell)), None)
        return (
            ""
            if found is None
            else f" {found} may begin with the day or with the month; 05.06.2024 is the 5th of June."
        )

    def _require_time_column(self) -> None:
        """Refuse a column of times that no table has.

        Raises:
            SurveyError: naming the other columns.
        """
        cells = cells_of_frame(self.state.sites)
        names = list(dict.fromkeys(name for text in cells if text for name in json.loads(text) if name != SITE))
        if self.time_column in names:
            return
        others = f" Other columns are: {', '.join(names)}." if names else " There is no other column."
        raise SurveyError(f"time: the tables have no column {self.time_column}.{others} Name one of dates or numbers.")

    @property
    def time(self) -> Time | None:
        """Time as the model is to know it; None for a survey without time."""
        setting = self.state.settings.get("time")
        if setting is None:
            return None
        times = self.times
        first, last = float(np.nanmin(times)), float(np.nanmax(times))
        dates = any(is_date for _, is_date in self._read_times)
        return Time(first, last - first, dates, decay=setting["decay"])

    def at_time(self, text: str | float | None) -> "Workspace":
        """Return the workspace that predicts a time: a date, written as in tables, or a number as in the column.

        Raises:
            SurveyError: if it is none, or the survey has no time.
        """
        if text is None:
            return self
        time = self.time
        if time is None:
            raise SurveyError(f"date={text!r}: the survey has no time; name its column (bo-scale survey model --time).")
        when = self.read_time(str(text))
        if not np.isfinite(when):
            example = f"a date such as {time.shown(time.start)}" if time.dates else f"a number such as {time.start:.9g}"
            raise SurveyError(f"date={text!r}: give {example}.")
        return replace(self, when=when)

    def _called(self, time: str | None) -> tuple[str, str] | None:
        """Return a column of times of another table, and its name in the survey.

        Raises:
            SurveyError: if the survey has no time.
        """
        if time is None:
            return None
        if self.time_column is None:
            raise SurveyError(f"time={time!r}: the survey has no time; name its column (bo-scale survey model --time).")
        return time, self.time_column

    @property
    def day_first(self) -> bool | None:
        """Whether times such as 05/06/2024 begin with the day; None if no table has told."""
        found = (self.state.settings.get("dates") or {}).get(self.time_column)
        return None if found is None else bool(found)

    def read_time(self, text: str, day_first: bool | None = None) -> float:
        """Return the time of a text, written as in tables; NaN if it is none, or no date among dates.

        Args:
            text: The text.
            day_first: Whether dates such as 05/06/2024 begin with the day; None for what tables have told.
        """
        when, is_date = time_of(text)
        if not np.isfinite(when):
            when, is_date = time_of(plain_cell(text, self.day_first if day_first is None else day_first))
        return when if self.time is not None and is_date == self.time.dates else np.nan

    @property
    def shown_time(self) -> str:
        """The time that is predicted, as a text; empty for a survey without time."""
        time, beside = self.time, self.covariates
        return "" if time is None or beside is None else time.shown(beside.when)

    @property
    def notes_on_date(self) -> list[str]:
        """A note on the time that is predicted if nobody named one; none for a survey without time."""
        if self.when is not None or self.time is None:
            return []
        return [f"Predicted for {self.shown_time}, the date of the latest measurement. --date gives another one."]

    def when_planned(self, planned: gpd.GeoDataFrame) -> Array | None:
        """Return the times that the plans of some sites are for, that of the latest measurement if it was not kept.

        Args:
            planned: Planned sites.

        Returns:
            Times, `n`; None for a survey without time.
        """
        if self.time is None or self.covariates is None:
            return None
        kept = {plan["batch"]: plan.get("when") for plan in self.state.settings["plans"]}
        found = [kept.get(int(batch)) for batch in planned.batch]
        return np.array([self.covariates.when if when is None else when for when in found], dtype=np.float64)

    @property
    def pending_date(self) -> str | None:
        """The date that the sites still to be measured were planned for, the latest of several; None without any."""
        when = self.when_planned(self.pending)
        return None if when is None or not len(when) or self.time is None else self.time.shown(float(when.max()))

    @cached_property
    def at_sites(self) -> Array | None:
        """Covariates of all measurements, `n × q`, NaN where there is none; None without covariates."""
        if self.covariates is None:
            return None
        return self.covariates.at_sites(self.xy(self.state.sites), cells_of_frame(self.state.sites))

    def covariates_of(self, rows: npt.NDArray[np.intp]) -> Array | None:
        """Return covariates of some measurements; None without covariates."""
        return None if self.at_sites is None else self.at_sites[rows]

    @property
    def modelled(self) -> npt.NDArray[np.bool_]:
        """Which measurements the model uses: those that have all covariates."""
        if self.at_sites is None:
            return np.ones(len(self.state.sites), dtype=np.bool_)
        return np.asarray(np.isfinite(self.at_sites).all(1))

    def measured(self) -> Sites:
        """Return values and known variances on the model's scale, of measurements that have all covariates.

        Raises:
            SurveyError: if there are none, or errors should be known and no row has one.
        """
        if not len(self.state.sites):
            raise SurveyError("the survey has no measurements any more; add some with `bo-scale survey update`.")
        used, scale, columns = self.modelled, self.scale, self.columns
        if not used.any():
            raise SurveyError(
                f"no measurement has all covariates ({', '.join(self.covariates.names if self.covariates else ())}); "
                "drop one (bo-scale survey model --drop)."
            )
        sites, beside = self.state.sites[used], None if self.at_sites is None else self.at_sites[used]
        value, error, of = (sites[name].to_numpy(dtype=np.float64) for name in ("value", "error", "of"))
        if columns.of is not None:
            counts = Poisson(value, of) if columns.exposed else Binomial(value, of)
            return self._with_stand_ins_kept(sites_of(self.xy(sites), counts, beside))
        if isinstance(scale, Amounts):
            there = value > 0
            if there.sum() < FEWEST_AMOUNTS:
                found = int(there.sum())
                raise SurveyError(f"transform='two-part': {found} values above zero; give {FEWEST_AMOUNTS} or more.")
            known = None if columns.error is None else scale.variance(value[there], self._errors(error)[there])
            own = None if beside is None else beside[there]
            return Sites(self.xy(sites)[there], scale.forward(value[there]), known, covariates=own)
        known = None if columns.error is None else scale.variance(value, self._errors(error))
        if (below := self.below[used]).any():
            own = np.zeros_like(value) if known is None else known
            censored = Censored(scale.forward(value), own, below.astype(np.float64))
            return self._with_stand_ins_kept(sites_of(self.xy(sites), censored, beside))
        return Sites(self.xy(sites), scale.forward(value), known, covariates=beside)

    def presence(self) -> Sites | None:
        """Return where the quantity is present and where it is absent, if these are modelled apart from amounts."""
        if not isinstance(self.scale, Amounts):
            return None
        used = self.modelled
        value = self.state.sites.value.to_numpy(dtype=np.float64)[used]
        seen = Binomial((value > 0).astype(np.float64), np.ones(len(value)))
        beside = None if self.at_sites is None else self.at_sites[used]
        return self._with_stand_ins_kept(sites_of(self.xy(self.state.sites[used]), seen, beside))

    def notes_on_covariates(self, since: int = 0) -> list[str]:
        """Return a note on measurements that the model leaves out, because they have no value of a covariate.

        Args:
            since: Number of the first measurement that is looked at.
        """
        if self.covariates is None or self.at_sites is None:
            return []
        lost = ~self.modelled & (self.state.sites.number.to_numpy() >= since)
        if not lost.any():
            return []
        every = [*([] if self.time_column is None else [self.time_column]), *self.covariates.names]
        names = [name for name, own in zip(every, self.at_sites[lost].T, strict=True) if np.isnan(own).any()]
        left = self.state.sites[lost]
        rows = [f"{file}, row {row}" for file, row in zip(left.file, left.row, strict=True)]
        some = "; ".join(rows[:NAMED]) + ("; …" if len(rows) > NAMED else "")
        lost_of = f"because they have no value of {', '.join(names)}: {len(left):,} ({some})."
        return [f"Measurements that are not used, {lost_of}{self._in_two_ways(left)}"]

    def notes_on_times(self, since: int = 0) -> list[str]:
        """Return notes on times that may be mistyped: in the future, or far from all others.

        Args:
            since: Number of the first measurement that is looked at.
        """
        time, sites = self.time, self.state.sites
        if time is None:
            return []
        late = self.times > (datetime.now() - EPOCH) / timedelta(days=1) + 1 if time.dates else self.times > np.inf
        odd = (late | stand_apart(self.times)) & (sites.number.to_numpy() >= since)
        notes = [
            f"{one.file}, row {one.row}: {self.time_column} {time.shown(when)} is "
            f"{'in the future' if is_late else 'far from all others'}. If it is a typo, "
            + ("send the row with the right one (--replace)." if one.site else AGAIN)
            for one, when, is_late in zip(sites[odd].itertuples(), self.times[odd], late[odd], strict=True)
        ]
        more = [f"… and {len(notes) - NAMED} other rows."] if len(notes) > NAMED else []
        return [*notes[:NAMED], *more]

    def notes_on_new(self, since: int) -> list[str]:
        """Return notes on times and covariates of new measurements.

        Args:
            since: Number of the first of them.
        """
        with suppress(SurveyError):  # a raster may be gone, which is no matter of the measurements
            return [*self.notes_on_times(since), *self.notes_on_covariates(since)]
        return []

    def covariates_at(self, xy: Array, given: dict[str, npt.ArrayLike]) -> Array | None:
        """Return covariates at places, `n × q`, some of which are given by name; None for a survey without any.

        Raises:
            SurveyError: for a name of none, or another number of values.
        """
        names = [] if self.covariates is None else self.covariates.names
        given = dict(given)
        times = given.pop(self.time_column, None) if self.time_column is not None else None
        if other := [name for name in given if name not in names]:
            raise SurveyError(f"covariates: {other[0]} is none of this survey's ({', '.join(names) or 'it has none'}).")
        if self.covariates is None:
            return None
        found = self.covariates(xy)
        if times is not None:
            found[:, 0] = self._times_of(times, len(xy))
        for name, values in given.items():
            column = np.array(
                [
                    number_of(None if each is None else str(each).casefold(), self._kind(name))
                    for each in np.atleast_1d(values)
                ]
            )
            if len(column) not in (1, len(xy)):
                raise SurveyError(f"covariates: {name} has {len(column)} values for {len(xy)} places.")
            found[:, names.index(name) + (self.time_column is not None)] = column
        return found

    def _times_of(self, given: npt.ArrayLike, count: int) -> Array:
        """Return times of texts, NaN where there is none; floats are times already."""
        found = list(np.atleast_1d(np.asarray(given, dtype=object)))
        if len(found) not in (1, count):
            raise SurveyError(f"{self.time_column}: there are {len(found)} times for {count} places.")
        return np.array([each if isinstance(each, float) else self.read_time(str(each)) for each in found])

    def known_at(self, places: Array, given: dict[str, npt.ArrayLike]) -> npt.NDArray[np.bool_]:
        """Return which places, in the user's coordinates, have all covariates, some of which are given by name."""
        found = self.covariates_at(self.metres(places), given)
        return np.ones(len(places), dtype=np.bool_) if found is None else np.asarray(np.isfinite(found).all(1))

    def note_on_unknown(self, rows: Iterable[int]) -> list[str]:
        """Return a note on rows of a table that have no value of a covariate."""
        named = [f"row {row}" for row in rows]
        if not named or self.covariates is None:
            return []
        some = "; ".join(named[:NAMED]) + ("; …" if len(named) > NAMED else "")
        return [
            f"Rows without a prediction, because they lack {', '.join(self.covariates.names)}: {len(named):,} ({some})."
        ]

    def _kind(self, name: str) -> str:
        assert self.covariates is not None
        return self.covariates.kinds[self.covariates.names.index(name)]

    @property
    def class_names(self) -> dict[str, dict[float, str]]:
        """Names of the classes of covariates that are columns, by the numbers that stand for them."""
        if self.covariates is None:
            return {}
        named = [one.name for one in self.covariates.every if one.kind == "categorical" and one.file is None]
        cells = [*cells_of_frame(self.state.sites), *cells_of_frame(self.state.candidates)]
        return {name: class_names(cells, name) for name in named}

    def columns_of(self, planned: gpd.GeoDataFrame) -> dict[str, list[Any]]:
        """Return covariates that are columns at planned sites, to be sent back with what is measured there."""
        if self.covariates is None:
            return {}
        values, names = self.covariates(self.xy(planned))[:, self.time_column is not None :], self.class_names
        found: dict[str, list[Any]] = {}
        if self.time_column is not None:
            found[self.time_column] = [""] * len(planned)
        for each, column in zip(self.covariates.every, values.T, strict=True):
            if each.file is None:
                known = names.get(each.name, {})
                found[each.name] = [known.get(cell, "" if np.isnan(cell) else float(cell)) for cell in column.tolist()]
        return found

    def _errors(self, error: Array) -> Array:
        """Return errors, the median of all where there is none."""
        if np.isnan(error).all():
            raise SurveyError(
                f"error: the column {self.columns.error} has no value in any row; begin the survey without it."
            )
        return np.where(np.isnan(error), np.nanmedian(error), error)

    @property
    def below(self) -> npt.NDArray[np.bool_]:
        """Which values are limits of detection; none in surveys from before these were read."""
        sites = self.state.sites
        if "below" not in sites.columns:
            return np.zeros(len(sites), dtype=np.bool_)
        return np.asarray(sites.below.to_numpy(dtype=np.float64) > 0)

    def _with_stand_ins_kept(self, sites: Sites) -> Sites:
        """Return sites with the stand-ins that the survey has instead of first guesses."""
        frame = self.state.sites[self.modelled]
        if not set(STAND_INS) <= set(frame.columns):
            return sites
        z, variance = (frame[name].to_numpy(dtype=np.float64, copy=True) for name in STAND_INS)
        missing = ~(np.isfinite(z) & (variance > 0))
        assert sites.variance is not None
        z[missing], variance[missing] = sites.z[missing], sites.variance[missing]
        return replace(sites, z=z, variance=variance)

    def with_stand_ins(self, sites: Sites) -> "Workspace":
        """Return the workspace with the stand-ins of sites kept, so that they need not be found again."""
        assert sites.variance is not None
        frame, used = self.state.sites, self.modelled
        kept = np.full((2, len(frame)), np.nan)
        kept[:, used] = sites.z, sites.variance
        frame = frame.assign(**dict(zip(STAND_INS, kept, strict=True)))
        return replace(self, state=replace(self.state, sites=frame))

    def values(self) -> Array:
        """Return values in the user's units: of counts, the share that was positive, or the rate."""
        value, of = (self.state.sites[name].to_numpy(dtype=np.float64) for name in ("value", "of"))
        return value if self.columns.of is None else value / of

    @property
    def typical_of(self) -> float:
        """Median of the numbers examined, a whole number, or of the exposures; 1 for other measurements."""
        if self.columns.of is None or not len(self.state.sites):
            return 1.0
        middle = float(np.median(self.state.sites["of"].to_numpy(dtype=np.float64)))
        return middle if self.columns.exposed else float(max(1, round(middle)))

    def told(self, error: npt.ArrayLike | None, of: npt.ArrayLike | None, count: int) -> Array | None:
        """Return errors, numbers examined or exposures of new measurements, one for each; None if none are told.

        Raises:
            SurveyError: if the survey has no such numbers, there are as many as places, or some are not positive.
        """
        columns = self.columns
        for name, given, own in (("error", error, columns.error), ("of", of, columns.of)):
            if given is None:
                continue
            if own is None:
                raise SurveyError(f"{name}: the measurements of this survey have none; leave it out.")
            told = np.asarray(given, dtype=np.float64)
            if told.ndim > 1 or told.size not in (1, count):
                raise SurveyError(f"{name}: give one number, or one for each of the {count} places.")
            if (told <= 0).any() or np.isinf(told).any():
                raise SurveyError(f"{name}: numbers must be positive.")
            return np.broadcast_to(told, count).copy()
        return None

    @property
    def about_measurements(self) -> str:
        """A sentence on what intervals of new measurements are about."""
        columns, typical = self.columns, self.typical_of
        if columns.of is not None:
            what = f"an exposure ({columns.of}) of" if columns.exposed else f"{columns.of} ="
            return f"Intervals of new measurements are those of {what} {typical:,.6g}."
        if columns.error is not None:
            return f"Intervals of new measurements are those with the median of the errors ({columns.error})."
        return "Intervals of new measurements contain their noise beside what is unknown of the quantity."

    @property
    def dialect(self) -> Dialect:
        """The way in which tables are written: that of the first one, if it was kept."""
        return Dialect(**self.state.settings.get("dialect", {}))

    def read(
        self,
        table: str | os.PathLike[str],
        names: dict[str, str] | None = None,
        sheet: str | None = None,
        decimal: str | None = None,
    ) -> Table:
        """Read a table with the columns of the first one, or with ids of sites instead of coordinates.

        Args:
            table: The file.
            names: Names of columns that are called otherwise in this table, by `Columns`' attributes, or "time".
            sheet: Sheet of a workbook; None for the first.
            decimal: "comma" or "point", for cells that may be read in two ways.
        """
        given, own = dict(names or {}), asdict(self.columns)
        time = given.pop("time", None)
        columns = Columns(**{**own, **given})
        return self.read_columns(
            table, columns.value, columns.x, columns.y, columns.error, columns.of, columns.exposed,
            site=given.get("site"), sheet=sheet, decimal=decimal, time=time,
        )  # fmt: skip

    def read_columns(
        self,
        table: str | os.PathLike[str],
        value: str,
        x: str,
        y: str,
        error: str | None = None,
        of: str | None = None,
        exposed: bool = False,
        *,
        site: str | None = None,
        sheet: str | None = None,
        decimal: str | None = None,
        time: str | None = None,
    ) -> Table:
        """Read columns of a table in the survey's coordinates, or by ids of its sites; see `read_table`.

        A column of times may be called otherwise than in the survey's first table.
        """
        planned, sites = self.state.planned, self.state.sites
        places, measured = (shapely.get_coordinates(frame.geometry.to_numpy()).T for frame in (planned, sites))
        ids = known_ids(
            zip(planned.site, planned.name, planned.status == "planned", *places, strict=True),
            zip(sites.site, *measured, strict=True),
        )
        before: Mark | None = "comma" if self.dialect.decimal == "," else None
        again = Earlier(ids, before, self.columns.site, self.state.settings.get("dates"), self._called(time))
        return read_table(
            table, value, x, y, self.crs, error, of, exposed,
            site=site, sheet=sheet, decimal=decimal, again=again,
        )  # fmt: skip

    # ------------------------------------------------------------------ plans

    @property
    def pending(self) -> gpd.GeoDataFrame:
        """Sites that are still to be measured."""
        return self.state.planned[self.state.planned.status == "planned"]

    @property
    def routes(self) -> list[Route]:
        """Routes of teams to sites that are still to be measured, metres."""
        return routes_of(self.state.routes, list(self.pending.site), self.metric)

    @property
    def depots(self) -> list[Depot]:
        """Depots of the plans whose routes are kept, if any lead to sites that are still to be measured."""
        if self.state.routes is None or not self.routes:
            return []
        kept = set(self.state.routes.batch)
        travels = [plan["travel"] for plan in self.state.settings["plans"] if plan["batch"] in kept]
        ends = [Depot(**each) for one in travels for each in [*one["depots"], *(one["starts"] or ())]]
        return list(dict.fromkeys(ends))

    def placed(self, depots: list[Depot]) -> Array:
        """Return places of depots, `d × 2`, metres."""
        return self.metres(np.array([[each.x, each.y] for each in depots]).reshape(-1, 2))

    @property
    def barriers(self) -> shapely.MultiPolygon:
        """Barriers that the routes lead around, metres."""
        walls = self.state.barriers
        if walls is None or not self.routes:
            return shapely.MultiPolygon()
        return polygons(project_shape(shapely.union_all(walls.geometry.to_numpy()), CRS(walls.crs), self.metric))


def _cell(text: str, name: str | None) -> str:
    """Return a cell of other columns, as JSON; empty if there is none."""
    return "" if not text or name is None else str(json.loads(text).get(name, ""))


def _valid(frame: gpd.GeoDataFrame) -> shapely.MultiPolygon:
    """Return the polygons of a layer as one shape; another program may have drawn some that cross themselves."""
    return polygons(shapely.union_all([polygons(each) for each in frame.geometry if each is not None]))


def with_covariates(workspace: Workspace, covariates: list[Covariate]) -> Workspace:
    """Return the workspace with other covariates, without hyperparameters that were learned with those before.

    Raises:
        SurveyError: if one has no value at any measurement, or the same at all.
    """
    before = workspace.state.settings.get("covariates", [])
    if saved(covariates) == before:
        return workspace
    kept = {key: value for key, value in workspace.state.settings.items() if key not in COVARIATE_SETTINGS}
    named = {"covariates": saved(covariates)} if covariates else {}
    spoilt: dict[str, Any] = {name: None for name in ("fit", "presence_fit") if name in kept}
    found = replace(workspace, state=replace(workspace.state, settings={**kept, **spoilt, **named}))
    if found.covariates is None or found.at_sites is None:
        return found
    notes = require_usable(found.covariates, found.at_sites[:, found.time_column is not None :])
    _ = found.measured()
    return found.with_settings(said_of_covariates=notes) if notes else found


def with_time(workspace: Workspace, column: str | None, decay: float | None) -> Workspace:
    """Return the workspace with another column of times, without hyperparameters that were learned with that before.

    Args:
        workspace: The survey.
        column: The column; None for none.
        decay: Lengthscale in time: days, or units of the column; None to learn it.

    Raises:
        SurveyError: if the column has no times, or the decay is not positive.
    """
    if decay is not None and (column is None or not (np.isfinite(decay) and decay > 0)):
        raise SurveyError(
            f"decay={decay:g}: give a positive number of days (or units of the column) and a time (--time)."
        )
    if column is not None and column.lower() in RESERVED:
        raise SurveyError(f"time: tables of plans have a column {column} of their own; rename yours in the file.")
    named = {} if column is None else {"time": {"column": column, "decay": decay}}
    if named.get("time") == workspace.state.settings.get("time"):
        return workspace
    kept = {key: value for key, value in workspace.state.settings.items() if key != "time"}
    spoilt: dict[str, Any] = {name: None for name in ("fit", "presence_fit") if name in kept}
    found = replace(workspace, state=replace(workspace.state, settings={**kept, **spoilt, **named}))
    if column is not None:
        _ = found.measured()
    return found
