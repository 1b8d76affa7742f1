"""A survey with its fitted model: predictions, areas above a threshold, and plans."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from bo_scale.errors import SurveyError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.geography.land import note_at_sea
from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.mapping.anisotropy import sentence
from bo_scale.survey.mapping.coefficients import coefficients
from bo_scale.survey.mapping.exceedance import CELLS, DRAWS, Exceeding, exceeding
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.forecast import Forecast, Scaled, TwoPart
from bo_scale.survey.mapping.measurement import Measurement, measured_about
from bo_scale.survey.mapping.model import REFIT, box_of, fit_model, model_of
from bo_scale.survey.mapping.prediction import Intervals, Prediction, Values
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.stand_ins import fit_with_stand_ins, settled
from bo_scale.survey.mapping.surface import Surface
from bo_scale.survey.mapping.temporal import Time
from bo_scale.survey.mapping.trend import Trend
from bo_scale.survey.plan.plan import Plan, propose, recorded
from bo_scale.survey.plan.problem import PlanningProblem, Request
from bo_scale.survey.plan.removal import Removal, remove
from bo_scale.survey.plan.sheet import to_fill_in
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.columns import PREDICTED
from bo_scale.survey.workspace import Workspace

Array = npt.NDArray[np.float64]
TOLD = 0.01
"""Share of the area beyond the covariates of the measurements from which a note says so."""


@dataclass(frozen=True)
class FittedSurvey:
    """A survey and the model of all its sites.

    Attributes:
        workspace: The survey, with the hyperparameters in its settings.
        sites: Measurements on the model's scale.
        fit: Hyperparameters of the model.
        model: The model of the sites.
        presence: Where the quantity is present, if that is modelled apart; `sites` are then where it is.
    """

    workspace: Workspace
    sites: Sites
    fit: Fit
    model: ScalableModel
    presence: Surface | None = None

    @classmethod
    def of(cls, workspace: Workspace, progress: bool | None = False) -> "FittedSurvey":
        """Condition the model on all sites; fit it anew if there are a quarter more, or some lie outside its box.

        Counts and censored values enter by stand-ins, which are found anew where these have changed.

        Args:
            workspace: The survey.
            progress: Whether to show a bar for a fit; None for only on a terminal.
        """
        workspace, main = _surface(workspace, workspace.measured(), "fit", progress)
        if (time := _time_now(workspace, main.fit)) is not None and workspace.when is not None:
            time.require(workspace.when)
        there = workspace.presence()
        if there is None:
            return cls(workspace, main.sites, main.fit, main.model)
        workspace, presence = _surface(workspace, there, "presence_fit", progress)
        return cls(workspace, main.sites, main.fit, main.model, presence)

    @property
    def of_modelled(self) -> "FittedSurvey":
        """The survey without measurements that the model leaves out, because they have no value of a covariate."""
        space, used = self.workspace, self.workspace.modelled
        if used.all():
            return self
        sites = space.state.sites[used].reset_index(drop=True)
        return replace(self, workspace=replace(space, state=replace(space.state, sites=sites)))

    def forecast(
        self, xy: Array, progress: bool | None = False, covariates: Array | None = None
    ) -> tuple[Array, Array]:
        """Return means and standard deviations at places, `n × 2` metres, on the model's scale.

        Covariates of the places, `n × q`, are looked up unless they are given.
        """
        return self.surface.forecast(xy, progress, covariates)

    def known(self, xy: Array, progress: bool | None = False, covariates: Array | None = None) -> Forecast:
        """Return what is known of the quantity at places, `n × 2` metres; covariates as in `forecast`."""
        here = self.forecast(xy, progress, covariates)
        if self.presence is None:
            return Scaled(self.workspace.scale, *here)
        return TwoPart(here, self.presence.forecast(xy, progress, covariates))

    @property
    def dates(self) -> tuple[float, float]:
        """First and last time that can be predicted, of a survey with time."""
        time = _time_now(self.workspace, self.fit)
        if time is None or time.range is None:
            return -np.inf, np.inf
        return time.start - time.range, time.start + time.span + time.range

    def covariates_on(self, xy: Array, when: Array | float) -> Array:
        """Return covariates of places, `n × 2` metres, at times: of a survey with time."""
        beside = self.workspace.covariates
        assert beside is not None, "a time is among the covariates"
        found = beside(xy)
        found[:, 0] = when
        return found

    @cached_property
    def surface(self) -> Surface:
        """The model of the quantity; of two parts, that of its amount."""
        return Surface(self.sites, self.fit, self.model)

    def measured(self, known: Forecast, told: Array | None = None) -> Measurement:
        """Return forecasts of new measurements where the quantity is known so far; see `measured_about`."""
        return measured_about(known, self.surface, self.presence, told, self.workspace.typical_of)

    def predict(
        self, raster: Raster, threshold: float | None, progress: bool | None, intervals: bool = False
    ) -> Prediction:
        """Predict the quantity at the cells of a raster, in the user's units.

        Args:
            raster: The cells.
            threshold: Threshold in the user's units; None for no exceedance.
            progress: Whether to show a bar; None for only on a terminal.
            intervals: Whether to add 95 % intervals of the quantity and of new measurements.
        """
        raster, missing = self._with_covariates(raster)
        found, above = self.values(raster.centres, threshold, intervals, progress), None
        if threshold is not None:
            above = self.exceeding(threshold, min(CELLS, raster.count))
        notes = [*self._notes(above), *missing, *self._beyond(raster.centres)]
        notes += [self.workspace.about_measurements] if intervals else []
        return Prediction(
            raster, found.mean, found.sd, found.exceedance, threshold, self.workspace.quantity, notes, above,
            found.intervals, self.fit.stretch, self.workspace.shown_time,
        )  # fmt: skip

    def values(
        self,
        xy: Array,
        threshold: float | None,
        intervals: bool,
        progress: bool | None = False,
        covariates: Array | None = None,
    ) -> Values:
        """Return what is predicted at places, `n × 2` metres; other arguments as for `predict` and `forecast`."""
        known, exceedance, ends = self.known(xy, progress, covariates), None, None
        if threshold is not None:
            self.workspace.scale.require(threshold)
            exceedance = known.exceedance(threshold)
        if intervals:
            ends = Intervals(_interval(known), _interval(self.measured(known)))
        return Values(*known.moments(), exceedance, ends)

    def _notes(self, above: Exceeding | None) -> list[str]:
        scale = self.workspace.scale.name
        on_scale = "" if scale == "none" else f", on a {scale} scale"
        kernel = f"with kernel {self.fit.kernel}" if self.fit.nearest is None else "conditioned on the nearest sites"
        model = f"Predicted from {len(self.sites.z):,} measurements by a Gaussian process {kernel}{on_scale}."
        if self.presence is not None:
            model = (
                f"Predicted from {len(self.presence.sites.z):,} measurements by two Gaussian processes: of where they "
                f"are above zero, and of the logarithms of the {len(self.sites.z):,} that are, {kernel}."
            )
        model = f"{model[:-1]}, and a trend in {', '.join(self.fit.trend['names'])}." if self.fit.trend else model
        if self.fit.time is not None and self.workspace.covariates is not None:
            when = Time(**self.fit.time).shown(self.workspace.covariates.when)
            latest = "" if self.workspace.when is not None else ", the latest measurement"
            model += f" Predicted for {when}{latest}."
        fits = [self.fit, *([] if self.presence is None else [self.presence.fit])]
        stretched = [sentence(each.stretch) for each in fits if each.stretch is not None]
        return [model, *stretched, *([] if above is None else [above.summary]), *self.workspace.notes]

    def _with_covariates(self, raster: Raster) -> tuple[Raster, list[str]]:
        """Return the cells that have all covariates, and a note on the others.

        Raises:
            SurveyError: if there are none.
        """
        known = self.fit.known(raster.centres)
        if known.all():
            return raster, []
        names = ", ".join(self.fit.trend["names"] if self.fit.trend else ())
        if not known.any():
            table = self.workspace.covariates.from_table if self.workspace.covariates is not None else []
            raise SurveyError(
                f"{names}: no cell of the map has all covariates. "
                + (
                    f"{', '.join(table)}: columns are known where measurements and candidates are; give a raster, or "
                    "candidate sites on a grid that have the column (init --candidates)."
                    if table
                    else "Do the rasters cover the area?"
                )
            )
        inside = raster.inside.copy()
        inside[raster.inside] = known
        share = f"{100 * (1 - known.mean()):.2g} % of the area has no value of {names}"
        return replace(raster, inside=inside), [f"{share}, so nothing is predicted there."]

    def _beyond(self, xy: Array) -> list[str]:
        """Return notes on covariates that are beyond those of the measurements at many places."""
        beside, sites = self.workspace.covariates, self.sites.covariates
        if beside is None or sites is None:
            return []
        notes, first, values = [], int(beside.time is not None), beside(xy)
        for each, own, there in zip(beside.every, sites.T[first:], values.T[first:], strict=True):
            if each.kind == "categorical":
                share = float((~np.isin(there, np.unique(own))).mean())
                what = "has a class of {} that was not measured"
            else:
                share = float(((there < own.min()) | (there > own.max())).mean())
                what = "has {} outside the range of the measurements, so predictions extrapolate its effect"
            if share > TOLD:
                notes.append(f"{100 * share:.2g} % of the area {what.format(each.name)}.")
        return notes

    @property
    def coefficients(self) -> pd.DataFrame:
        """Coefficients of the covariates with 95 % intervals, on the model's scale.

        Of a number: change for each of its units. Of classes: difference from the mean of all classes.
        """
        return coefficients(self.model, self.fit, self.workspace.class_names)

    def exceeding(self, threshold: float, cells: int | None = None, draws: int = DRAWS, seed: int = 0) -> Exceeding:
        """Estimate how much of the area, and of the weights if there are some, is above a threshold.

        Args:
            threshold: Threshold in the user's units.
            cells: Cells of the area, about; None for `CELLS`.
            draws: Functions drawn from the posterior, 2 to 10,000.
            seed: Seed of the draws.
        """
        space, weights = self.workspace, self.workspace.state.weights
        centres = space.region.cells(CELLS if cells is None else cells).centres
        counted = None if weights is None else (space.xy(weights), weights.weight.to_numpy(dtype=np.float64))
        area = space.region.area
        if self.fit.trend is not None:
            known = self.fit.known(centres)
            centres, area = centres[known], area * float(known.mean())
            if counted is not None:
                known = self.fit.known(counted[0])
                counted = counted[0][known], counted[1][known]
        about = (self.model, self.fit, space.scale, centres, area, counted, threshold, draws, seed)
        return exceeding(*about, self.sites, self.presence)

    def _at_sea(self, names: list[str], planned: Array) -> list[str]:
        """Return a note about planned sites at sea, if those measured are on land."""
        space = self.workspace
        remedy = "Cut the sea out of the area (init --area or --forbidden)."
        if space.state.candidates is not None:
            remedy = "Take them out of the candidate sites if they cannot be reached."
        elif space.area_is_assumed:
            remedy = "Give an area of land (init --area), because without one plans may be at sea."
        return note_at_sea("Planned sites at sea", names, planned, self.sites.xy, space.metric, remedy)

    def at(
        self,
        places: Array,
        intervals: bool = False,
        told: Array | None = None,
        covariates: dict[str, npt.ArrayLike] | None = None,
    ) -> pd.DataFrame:
        """Predict at places in the user's coordinates, `n × 2`: mean, sd and the ends of a 95 % interval.

        Args:
            places: The places.
            intervals: Whether to add the ends of intervals of new measurements.
            told: Errors of these, numbers examined or exposures; see `measured_about`.
            covariates: Values of covariates there, by name; others are looked up.
        """
        known = self.known_at(places, covariates)
        ends = dict(zip(("lower", "upper"), _interval(known), strict=True))
        if intervals:
            ends |= zip(("new_lower", "new_upper"), _interval(self.measured(known, told)), strict=True)
        mean, sd = known.moments()
        return pd.DataFrame({"mean": mean, "sd": sd, **ends})

    def known_at(self, places: Array, covariates: dict[str, npt.ArrayLike] | None = None) -> Forecast:
        """Return what is known of the quantity at places in the user's coordinates; arguments as for `at`."""
        xy = self.workspace.metres(places)
        return self.known(xy, covariates=self.workspace.covariates_at(xy, covariates or {}))

    def sheet(self, planned: gpd.GeoDataFrame) -> pd.DataFrame:
        """Return the table of planned sites for the user to fill in."""
        xy, when = self.workspace.xy(planned), self.workspace.when_planned(planned)
        covariates = None if when is None else self.covariates_on(xy, when)
        mean, sd = self.known(xy, covariates=covariates).moments()
        table = to_fill_in(planned, self.workspace.state.settings["columns"], mean, sd)
        for name, cells in self.workspace.columns_of(planned).items():
            table.insert(table.columns.get_loc(PREDICTED[0]), name, cells)
        return table

    def plan(
        self, request: Request, weights: gpd.GeoDataFrame | None, notes: list[str], progress: bool | None
    ) -> tuple[State, Plan]:
        """Choose the next sites; return the survey with them, and the plan.

        Args:
            request: The request, checked.
            weights: Places with weights that integrals are over; None for the candidates, or else the area.
            notes: Notes about these weights.
            progress: Whether to show a bar; None for only on a terminal.
        """
        space = self.workspace
        if space.time is not None and space.covariates is not None:
            request = replace(request, when=space.covariates.when)
        problem = self._problem(request, weights, progress)
        found = propose(problem)
        state, routes = recorded(space.state, request, found, space.region)
        table = self.sheet(state.planned.tail(len(found.chosen)))
        planned = np.stack([one.xy for one in found.chosen])
        notes = [*space.notes_on_date, *notes, *found.notes]
        notes += self._at_sea(list(state.planned.site.tail(len(planned))), planned)
        return state, Plan(
            table,
            request.objective,
            found.sd_before,
            found.sd_after,
            notes,
            routes,
            found.left_out,
            problem.over,
            space.dialect,
        )

    def _problem(self, request: Request, weights: gpd.GeoDataFrame | None, progress: bool | None) -> PlanningProblem:
        space = self.workspace
        return PlanningProblem(
            request,
            replace(space.state, weights=weights),
            space.region,
            self.sites,
            self.fit,
            self.model,
            space.scale,
            progress,
            self.presence,
        )

    def removal(self, count: int, weights: gpd.GeoDataFrame | None, notes: list[str], progress: bool | None) -> Removal:
        """Find the stations whose loss costs the map least; arguments as for `plan`."""
        request = Request(None, "variance", None, 0.0, None, 1, 0, add=False)
        space = self.of_modelled.workspace
        problem = replace(self._problem(request, weights, progress), state=replace(space.state, weights=weights))
        found = remove(problem, count, space.xy(space.state.sites))
        notes = [*self.workspace.notes_on_date, *notes, *found.notes]
        return replace(found, notes=notes, dialect=self.workspace.dialect)


def _time_now(workspace: Workspace, fit: Fit) -> Time | None:
    """Return the range in time that was learned, beside all measurements of now; None for a survey without time."""
    now = workspace.time
    return None if now is None or fit.time is None else replace(Time(**fit.time), start=now.start, span=now.span)


def _interval(forecast: Forecast) -> tuple[Array, Array]:
    """Return the ends of 95 % intervals."""
    return forecast.quantile(0.025), forecast.quantile(0.975)


def _surface(workspace: Workspace, sites: Sites, setting: str, progress: bool | None) -> tuple[Workspace, Surface]:
    """Return a surface of sites, fitted anew if need be, and the survey with its hyperparameters in a setting."""
    saved = workspace.state.settings.get(setting)
    box = box_of(sites.xy, workspace.region.bounds)
    if saved is not None:
        fit = Fit.of(saved, workspace.covariates)
        inside = all(a >= b for a, b in zip(box[:2], fit.box[:2], strict=True)) and all(
            a <= b for a, b in zip(box[2:], fit.box[2:], strict=True)
        )
        usable = sites.likelihood is None or fit.settled
        if inside and usable and not REFIT.due(len(sites.z), fit.count):
            return _settled(workspace, sites, fit, setting)
    kernel, beside, trend = workspace.state.settings["kernel"], workspace.covariates, None
    how: dict[str, Any] = {"anisotropy": workspace.anisotropy, "beside": beside}
    if beside is not None and sites.covariates is not None:
        own = sites.covariates if workspace.time_column is None else sites.covariates[:, 1:]
        trend = Trend.of(beside.names, beside.kinds, own) if beside.every else None
    how |= {"trend": trend, "time": workspace.time, "divides": workspace.divides}
    with torch.enable_grad():
        if sites.likelihood is None:
            fit, model = fit_model(sites, box, kernel, progress, globe=workspace.globe, **how)
            return workspace.with_settings(**{setting: fit.saved}), Surface(sites, fit, model)
        fit, sites, model = fit_with_stand_ins(sites, box, kernel, progress, workspace.globe, **how)
    return workspace.with_settings(**{setting: fit.saved}).with_stand_ins(sites), Surface(sites, fit, model)


def _settled(workspace: Workspace, sites: Sites, fit: Fit, setting: str) -> tuple[Workspace, Surface]:
    """Condition the model on all sites at hyperparameters; stand-ins that were kept for these counts are used."""
    if sites.digest != fit.settled:
        sites = settled(sites, fit)
        fit = replace(fit, settled=sites.digest)
        workspace = workspace.with_settings(**{setting: fit.saved}).with_stand_ins(sites)
    return workspace, Surface(sites, fit, model_of(sites, fit))
