"""A survey: what was measured where, what is known of the rest, and where to measure next; all in one GeoPackage."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
import torch
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.choice.objectives import DESIGNS
from bo_scale.survey.geography.coordinates import project_shape, to_metric
from bo_scale.survey.geography.region import Region, make_region, polygons
from bo_scale.survey.mapping.exceedance import CELLS, DRAWS, Exceeding, exceeding
from bo_scale.survey.mapping.model import GROWTH, KERNELS, Fit, Sites, box_of, fit_model, model_of, predict
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.mapping.scales import Scale, empirical_logit, scale_of
from bo_scale.survey.output.exports import require_replaceable, write_csv, write_geotiff
from bo_scale.survey.output.gpx import Waypoint, write_gpx
from bo_scale.survey.output.page import write_page
from bo_scale.survey.output.png import Picture, write_png
from bo_scale.survey.plan.plan import PREDICTED, Plan, propose, recorded, require_unreserved, to_fill_in
from bo_scale.survey.plan.problem import PlanningProblem, Request, places_of
from bo_scale.survey.plan.travel import Depot, Travel
from bo_scale.survey.routes.route import Route, routes_of, to_go
from bo_scale.survey.store.arrivals import Arrival, arrive
from bo_scale.survey.store.create import begin, weights_of
from bo_scale.survey.store.geopackage import State, locked, read_state, write_state
from bo_scale.survey.tables.delimited import read_records
from bo_scale.survey.tables.table import Columns, Table, read_table

Array = npt.NDArray[np.float64]
MAP_CELLS = 60_000
Z95 = 1.959964
MAPS = {".html": write_page, ".htm": write_page, ".png": write_png}
EXPORTS = {".tif": write_geotiff, ".tiff": write_geotiff, ".csv": write_csv}


class Survey:
    """A survey and its file. Whatever changes it is on disk, whole, when the call returns.

    Args:
        path: Of the GeoPackage, as `create` or `bo-scale survey init` made it.

    Raises:
        SurveyError: if there is none.

    Example:
        >>> survey = Survey.create("s.gpkg", "sites.csv", value="zinc")  # doctest: +SKIP
        >>> survey.plan(batch=6).write("next.csv")  # doctest: +SKIP
        >>> survey.update("measured.csv")  # doctest: +SKIP
        >>> survey.map("map.html")  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._load(read_state(self.path))

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        table: str | os.PathLike[str],
        value: str,
        *,
        x: str | None = None,
        y: str | None = None,
        crs: str | None = None,
        error: str | None = None,
        of: str | None = None,
        area: str | os.PathLike[str] | None = None,
        forbidden: Iterable[str | os.PathLike[str]] = (),
        candidates: str | os.PathLike[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
        transform: str | None = None,
        lower: float = 0.0,
        upper: float = 1.0,
        threshold: float | None = None,
        kernel: str = "auto",
        keep_outside: bool = False,
        overwrite: bool = False,
    ) -> "Survey":
        """Begin a survey from a table of measurements.

        Args:
            path: Of the GeoPackage to make.
            table: CSV, a row for each measurement.
            value: Its column of values; with `of`, of how many were positive.
            x: Its column of longitudes or eastings; longitude and latitude are recognised by name, as is y.
            y: Its column of latitudes or northings.
            crs: Of the coordinates; WGS 84 for longitude and latitude unless given.
            error: Its column of standard deviations of measurements, in units of the values; it counts as a
                thousandth of their spread at least.
            of: Its column of how many were examined: values are then k positive of n.
            area: Polygons of where sampling is allowed (GeoJSON, GeoPackage, Shapefile); else the hull of the sites.
            forbidden: Polygons that are cut out of it.
            candidates: CSV of places to choose from, in columns named as in the table; else any place will do.
            weights: CSV of places with a column `weight` (population, say): what counts in integrals over the area.
            transform: "none", "log" or "logit": the scale of the model; "logit" for counts of positives.
            lower: Of a logit.
            upper: Of a logit.
            threshold: Of interest, in units of the values: for exceedance, straddle, misclassification.
            kernel: "auto", or one of `bo_scale.survey.mapping.model.KERNELS`.
            keep_outside: Use measurements from outside the area.
            overwrite: Replace a survey that is there.

        Raises:
            SurveyError: saying what cannot be used, and what to do.
        """
        if Path(path).exists() and not overwrite:
            raise SurveyError(f"{path}: is there already; give another name, or overwrite it (--overwrite).")
        if kernel not in KERNELS:
            raise SurveyError(f"kernel={kernel!r}: choose one of {', '.join(KERNELS)}.")
        if of is not None and (transform not in (None, "logit") or error is not None):
            raise SurveyError(
                "of: k positive of n has a logit scale and an error of its own; leave transform and error."
            )
        if of is not None and (lower, upper) != (0.0, 1.0):
            raise SurveyError("of: shares lie between 0 and 1; leave lower and upper.")
        scale = scale_of("logit" if of is not None else transform or "none", lower, upper)
        if threshold is not None:
            scale.require(threshold)
        read = read_table(table, value, x, y, crs, error, of)
        require_unreserved(read.columns)
        state = begin(read, area, list(forbidden), candidates, weights)
        state.settings |= {
            "transform": {"name": scale.name, "lower": lower, "upper": upper},
            "threshold": threshold,
            "kernel": kernel,
            "keep_outside": keep_outside,
            "fit": None,
            "plans": [],
        }
        survey = cls.__new__(cls)
        survey.path = Path(path)
        survey._load(state)
        arrival = arrive(state, read, Path(table).name, survey.region, scale, keep_outside, repeats=True)
        if not arrival.added:
            reasons = "; ".join(dict.fromkeys(reason for _, reason in arrival.aside)) or "there are none"
            raise SurveyError(f"{table}: no row can be used: {reasons}.")
        unusable = [reason for _, reason in arrival.aside if reason != "outside the area"]
        if len(unusable) > arrival.added:
            some = "; ".join(list(dict.fromkeys(unusable))[:3])
            raise SurveyError(f"{table}: {len(unusable)} rows cannot be used, and only {arrival.added} can: {some}.")
        arrival.state.settings["said"] += arrival.said
        with locked(path):
            survey._save(arrival.state)
        return survey

    # ------------------------------------------------------------------ what there is

    def _load(self, state: State) -> None:
        self._state = state
        self._metric = CRS.from_user_input(state.settings["metric"])
        cuts = [] if state.forbidden is None else [shapely.union_all(state.forbidden.geometry.to_numpy())]
        shapes = [shapely.union_all(state.area.geometry.to_numpy()), *cuts]
        systems = [state.area.crs, *([state.forbidden.crs] if state.forbidden is not None else [])]
        moved = [project_shape(shape, CRS(crs), self._metric) for shape, crs in zip(shapes, systems, strict=True)]
        self.region: Region = make_region(moved[0], moved[1:], self._metric)
        """Where sampling is allowed, metric."""

    def _save(self, state: State) -> None:
        write_state(self.path, state)
        self._state = state

    @property
    def settings(self) -> dict[str, Any]:
        """What was chosen at the beginning, the hyperparameters of the last fit, and the plans made."""
        return dict(self._state.settings)

    @property
    def sites(self) -> gpd.GeoDataFrame:
        """Measurements that are used, one a row."""
        return self._state.sites.copy()

    @property
    def planned(self) -> gpd.GeoDataFrame:
        """Sites proposed, and their status: planned, measured or dropped."""
        return self._state.planned.copy()

    @property
    def routes(self) -> list[Route]:
        """Of teams, to sites that are still to be measured; metres."""
        planned = self._state.planned
        return routes_of(self._state.routes, list(planned.site[planned.status == "planned"]), self._metric)

    def _depots(self) -> list[Depot]:
        """Of the plans whose routes are kept, if any lead to sites that are still to be measured."""
        if self._state.routes is None or not self.routes:
            return []
        kept = set(self._state.routes.batch)
        travels = [plan["travel"] for plan in self._state.settings["plans"] if plan["batch"] in kept]
        ends = [Depot(**each) for one in travels for each in [*one["depots"], *(one["starts"] or ())]]
        return list(dict.fromkeys(ends))

    @property
    def aside(self) -> pd.DataFrame:
        """Rows kept aside: file, row, text and reason."""
        return self._state.aside.copy()

    @property
    def scale(self) -> Scale:
        """Of the model."""
        return scale_of(**self._state.settings["transform"])

    @property
    def said(self) -> list[str]:
        """What was recognised or assumed."""
        return list(self._state.settings["said"])

    def _xy(self, frame: gpd.GeoDataFrame) -> Array:
        return places_of(frame, self._metric)

    def _measured(self) -> Sites:
        """Values and known variances on the model's scale."""
        sites, scale = self._state.sites, self.scale
        value, error, of = (sites[name].to_numpy(dtype=np.float64) for name in ("value", "error", "of"))
        if self._state.settings["columns"]["of"] is not None:
            z, variance = empirical_logit(value, of)
            return Sites(self._xy(sites), z, variance)
        if self._state.settings["columns"]["error"] is None:
            return Sites(self._xy(sites), scale.forward(value), None)
        if np.isnan(error).all():
            raise SurveyError("error: no row has one; begin the survey without that column.")
        error = np.where(np.isnan(error), np.nanmedian(error), error)
        return Sites(self._xy(sites), scale.forward(value), scale.variance(value, error))

    def _values(self) -> Array:
        """In the user's units: of counts, the share that was positive."""
        value, of = (self._state.sites[name].to_numpy(dtype=np.float64) for name in ("value", "of"))
        return value / of if self._state.settings["columns"]["of"] is not None else value

    def _model(self, progress: bool | None = False) -> tuple[Fit, ScalableModel]:
        """The model of all sites: fitted anew where there are a quarter more than at the last fit, and then saved."""
        sites, saved = self._measured(), self._state.settings["fit"]
        box = box_of(sites.xy, self.region.bounds)
        if saved is not None:
            fit = Fit.of(saved)
            inside = all(a >= b for a, b in zip(box[:2], fit.box[:2], strict=True)) and all(
                a <= b for a, b in zip(box[2:], fit.box[2:], strict=True)
            )
            if inside and len(sites.z) < GROWTH * fit.count:
                return fit, model_of(sites, fit)
        with torch.enable_grad():
            fit, model = fit_model(sites, box, self._state.settings["kernel"], progress)
        self._save(replace(self._state, settings={**self._state.settings, "fit": fit.__dict__}))
        return fit, model

    # ------------------------------------------------------------------ what is next

    @torch.no_grad()  # but where a fit needs gradients
    def plan(
        self,
        batch: int | None = None,
        objective: str = "variance",
        *,
        threshold: float | None = None,
        spacing: float = 0.0,
        clearance: float | None = None,
        repeats: int = 1,
        seed: int = 0,
        add: bool = False,
        weights: str | os.PathLike[str] | None = None,
        days: int = 1,
        travel: Travel | None = None,
        progress: bool | None = None,
    ) -> Plan:
        """Choose the next sites, each as if those before were measured already.

        With `travel` the sites are those that teams can visit within their budget, and that are worth most: a site's
        value counts against the way that it adds. Routes are planned with them.

        Sites of an earlier plan that nobody measured are dropped, unless `add`. The same survey, arguments and seed
        give the same sites.

        Args:
            batch: How many a day, 1 to 1000; for teams that travel how many each at most. None for 6, or for as many
                as are within reach.
            objective: "variance" (integrated over the area, more where measurements were far from what the others let
                expect), "uncertainty" (largest variance), "straddle" and "misclassification" (of a threshold),
                "thompson" (hot spots), or one that was registered; or a design that needs no model, "random",
                "stratified", "maximin" (as far apart as can be), "latin" (hypercube).
            threshold: In the user's units; None for that of the survey.
            spacing: Least distance between the sites of the batch, and from those planned, metres.
            clearance: Least distance from measured ones; None for the same.
            repeats: How often a candidate site may be in the batch; with `add`, in all that is planned. To a design
                measured sites count too.
            seed: Of the places tried and of what is drawn.
            add: Plan sites beside those that are planned already, as if these were measured.
            weights: CSV of places with a column `weight`: what counts in integrals over the area, in this plan instead
                of the survey's own weights; not with a design. The file's name is kept with the plan.
            days: Of work that are planned, each as if those before were measured.
            travel: Where teams start, and how far they get in a day; None where that does not matter.
            progress: Whether to show a bar; None for only on a terminal.

        Raises:
            SurveyError: for an unknown objective, a threshold that is missing, no place that keeps the distance, or
                none within reach.
        """
        if weights is not None and objective in DESIGNS:
            raise SurveyError(f"weights: designs such as {objective} use none; leave them out (--weights).")
        name = None if weights is None else Path(weights).name
        request = Request(batch, objective, threshold, spacing, clearance, repeats, seed, add, name, days, travel)
        request = request.checked(self.scale, self._state.settings["threshold"])
        with locked(self.path):
            self._load(read_state(self.path))
            counted, said = (self._state.weights, []) if weights is None else self._weights(weights)
            fit, model = self._model(progress)
            state, measured = replace(self._state, weights=counted), self._measured()
            found = propose(PlanningProblem(request, state, self.region, measured, fit, model, self.scale, progress))
            state, routes = recorded(self._state, request, found, self.region)
            self._save(state)
            table = self._to_fill_in(self._state.planned.tail(len(found.chosen)), fit, model)
        over = "area" if counted is None else "weights"
        said = [*said, *found.said]
        return Plan(table, request.objective, found.sd_before, found.sd_after, said, routes, found.left_out, over)

    def _weights(self, path: str | os.PathLike[str]) -> tuple[gpd.GeoDataFrame, list[str]]:
        """Of one plan, from a file as at the beginning."""
        columns, crs = Columns(**self._state.settings["columns"]), CRS(self._state.sites.crs)
        return weights_of(path, columns, crs, self.region)

    def pending(self) -> pd.DataFrame:
        """The table of all sites that are planned and not measured, as `plan` gave it; for one that was lost."""
        with locked(self.path):
            self._load(read_state(self.path))
            fit, model = self._model()
        return self._to_fill_in(self._state.planned[self._state.planned.status == "planned"], fit, model)

    def _to_fill_in(self, planned: gpd.GeoDataFrame, fit: Fit, model: ScalableModel) -> pd.DataFrame:
        mean, sd = self.scale.moments(*predict(model, fit, self._measured(), self._xy(planned), progress=False))
        return to_fill_in(planned, self._state.settings["columns"], mean, sd)

    def require_replaceable(self, table: str | os.PathLike[str]) -> None:
        """That nothing is lost if a file is written over: it is not there, or a plan's with nothing new filled in.

        Raises:
            SurveyError: if it is another file, or holds measurements that the survey does not.
        """
        if not Path(table).exists():
            return
        if not set(PREDICTED) <= set(read_records(table).header):
            raise SurveyError(f"{table}: is there, and is no table of planned sites. Give another name.")
        read, known = self._read(table), {*self._state.sites.text, *self._state.aside.text}
        filled = [*read.frame.text, *(one.text for one in read.refused if one.reason != read.blank)]
        if unread := set(filled) - known:
            raise SurveyError(
                f"{table}: holds values that are not in the survey yet ({len(unread)}). Take them in with `bo-scale "
                f"survey update {self.path} {table}`, or give another name."
            )

    def _read(self, table: str | os.PathLike[str]) -> Table:
        """A table with the columns of the first one."""
        columns, crs = self._state.settings["columns"], CRS(self._state.sites.crs)
        return read_table(table, columns["value"], columns["x"], columns["y"], crs, columns["error"], columns["of"])

    def update(self, table: str | os.PathLike[str], *, repeats: bool = False, corrections: bool = False) -> Arrival:
        """Take measurements in: of planned sites, in any order and some of them later, or of others.

        Columns are those of the first table. Rows that are there already are left out, rows without a value wait.

        Args:
            table: CSV.
            repeats: Take rows that are there already, word by word, as further measurements.
            corrections: Put earlier measurements of the same planned sites aside; else both count.

        Raises:
            SurveyError: saying what cannot be used, and what to do; nothing is changed then.
        """
        with locked(self.path):
            self._load(read_state(self.path))
            read, keep = self._read(table), bool(self._state.settings["keep_outside"])
            arrival = arrive(self._state, read, Path(table).name, self.region, self.scale, keep, repeats, corrections)
            self._save(arrival.state)
        return arrival

    # ------------------------------------------------------------------ what is known

    def predict(
        self,
        cells: int | None = None,
        size: float | None = None,
        threshold: float | None = None,
        progress: bool | None = None,
    ) -> Prediction:
        """Mean, standard deviation and, with a threshold, the probability to exceed it, over the area.

        Of the quantity itself, without the error of a measurement, in the user's units; from the nearest sites of each
        place where there are more than 1,000, by the model of all else. With a threshold it also says how much of the
        area is above, as `exceeding` does, from cells no finer than the map's.

        Args:
            cells: About how many.
            size: Or their width, metres.
            threshold: In the user's units; None for that of the survey.
            progress: Whether to show a bar; None for only on a terminal.
        """
        threshold = self._state.settings["threshold"] if threshold is None else threshold
        if threshold is not None:
            self.scale.require(threshold)
        raster = self.region.cells(MAP_CELLS if cells is None and size is None else cells, size)
        with locked(self.path):
            self._load(read_state(self.path))
            fit, model = self._model(progress)
        mean, sd = predict(model, fit, self._measured(), raster.centres, progress)
        exceedance, above = None, None
        if threshold is not None:
            exceedance = self.scale.exceedance(mean, sd, threshold)
            above = self._exceeding(fit, model, threshold, min(CELLS, raster.count))
        mean, sd = self.scale.moments(mean, sd)
        notes = self._notes(fit, above)
        return Prediction(raster, mean, sd, exceedance, threshold, self._quantity, notes, above)

    def exceeding(self, threshold: float | None = None, draws: int = DRAWS, seed: int = 0) -> Exceeding:
        """How much of the area, and of the weights where the survey has some, is above a threshold: 90 % intervals.

        From functions drawn from the posterior at 2,500 cells, and as many places with weights: cells vary together,
        and probabilities cell by cell would give the mean only. Seconds, for any number of sites.

        Args:
            threshold: In the user's units; None for that of the survey.
            draws: How many functions, 2 to 10,000.
            seed: Of them.

        Raises:
            SurveyError: without a threshold, or for one that the scale has not.
        """
        threshold = self._state.settings["threshold"] if threshold is None else threshold
        if threshold is None:
            raise SurveyError("threshold: the survey has none; give one.")
        with locked(self.path):
            self._load(read_state(self.path))
            fit, model = self._model()
        return self._exceeding(fit, model, threshold, CELLS, draws, seed)

    def _exceeding(
        self, fit: Fit, model: ScalableModel, threshold: float, cells: int, draws: int = DRAWS, seed: int = 0
    ) -> Exceeding:
        weights, centres = self._state.weights, self.region.cells(cells).centres
        counted = None if weights is None else (self._xy(weights), weights.weight.to_numpy(dtype=np.float64))
        area, sites = self.region.area, self._measured()
        return exceeding(model, fit, self.scale, centres, area, counted, threshold, draws, seed, sites)

    def predict_at(self, x: npt.ArrayLike, y: npt.ArrayLike) -> pd.DataFrame:
        """What is predicted at places of the user's: `mean`, `sd`, and the ends of a 95 % interval, `lower`, `upper`.

        Args:
            x: Longitudes or eastings, as in the table of the survey.
            y: Latitudes or northings.
        """
        given = np.stack([np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (x, y)], -1)
        with locked(self.path):
            self._load(read_state(self.path))
            fit, model = self._model()
        xy = to_metric(given, CRS(self._state.sites.crs), self._metric)
        mean, sd = predict(model, fit, self._measured(), xy, progress=False)
        ends = {name: self.scale.backward(mean + z * sd) for name, z in (("lower", -Z95), ("upper", Z95))}
        mean, sd = self.scale.moments(mean, sd)
        return pd.DataFrame({"mean": mean, "sd": sd, **ends})

    @property
    def _quantity(self) -> str:
        columns = self._state.settings["columns"]
        return str(columns["value"]) if columns["of"] is None else f"{columns['value']} / {columns['of']}"

    def _notes(self, fit: Fit, above: Exceeding | None) -> list[str]:
        count = len(self._state.sites)
        scale = "" if self.scale.name == "none" else f", on a {self.scale.name} scale"
        found = [] if above is None else [above.said]
        kernel = f"with kernel {fit.kernel}" if fit.nearest is None else "of the nearest sites"
        return [f"{count:,} measurements; Gaussian process {kernel}{scale}.", *found, *self.said]

    def map(self, path: str | os.PathLike[str], prediction: Prediction | None = None, title: str | None = None) -> None:
        """A page (.html) or a picture (.png) of what is known, with the sites and those planned.

        Raises:
            SurveyError: for another kind of file.
        """
        write = writer(path, MAPS)
        found = self.predict() if prediction is None else prediction
        pending = self._state.planned[self._state.planned.status == "planned"]
        write(
            Picture(
                found,
                self.region.shape,
                self._xy(self._state.sites),
                self._values(),
                self._xy(pending),
                list(pending.site),
                self._metric,
                title or self._quantity,
                routes=self.routes,
                depots=self._placed(self._depots()),
                barriers=self._barriers(),
            ),
            path,
        )

    def _barriers(self) -> shapely.MultiPolygon:
        """That the routes lead around, metres."""
        walls = self._state.barriers
        if walls is None or not self.routes:
            return shapely.MultiPolygon()
        return polygons(project_shape(shapely.union_all(walls.geometry.to_numpy()), CRS(walls.crs), self._metric))

    def _placed(self, depots: list[Depot]) -> Array:
        """Depots, metres."""
        places = np.array([[each.x, each.y] for each in depots]).reshape(-1, 2)
        return to_metric(places, CRS(self._state.sites.crs), self._metric)

    def gpx(self, path: str | os.PathLike[str]) -> None:
        """Routes that are planned, for a satellite navigation device: their lines, and the sites to be measured.

        Raises:
            SurveyError: if no route is planned, or the file does not end in .gpx.
        """
        write = writer(path, {".gpx": write_gpx})
        routes, depots, pending = self.routes, self._depots(), self.pending()
        if not routes:
            raise SurveyError(f"{self.path}: no route is planned; `plan` makes some with --depot.")
        told = [f"{self._quantity}: {mean:g} ± {sd:g} expected" for mean, sd in pending[list(PREDICTED)].to_numpy()]
        places = dict(zip(self._state.planned.site, self._xy(self._state.planned), strict=True))
        routes = [to_go(route, set(pending.site), places) for route in routes]
        sites = [places[name] for name in pending.site]
        points = [Waypoint(name, at, text) for name, at, text in zip(pending.site, sites, told, strict=True)]
        starts = zip(depots, self._placed(depots), strict=True)
        points += [Waypoint(each.name, at, "start", "depot") for each, at in starts]
        write(routes, points, self._metric, path)

    def export(self, path: str | os.PathLike[str], prediction: Prediction | None = None) -> None:
        """What is predicted, as GeoTIFF (.tif) or CSV (.csv).

        Raises:
            SurveyError: for another kind of file, or a CSV that is there and is none of predictions.
        """
        write = writer(path, EXPORTS)
        require_replaceable(path)
        write(self.predict() if prediction is None else prediction, path)

    def status(self) -> str:
        """What there is, in sentences."""
        state, planned = self._state, self._state.planned
        lines = [f"{self.path}: {self._quantity}", *self.said]
        lines.append(f"Measurements: {len(state.sites):,}. Rows kept aside: {len(state.aside):,}.")
        lines += [f"  {one.file}, row {one.row}: {one.reason}" for one in state.aside.head(20).itertuples()]
        counts = {name: int((planned.status == name).sum()) for name in ("planned", "measured", "dropped")}
        lines.append(
            f"Plans: {len(state.settings['plans'])}. Sites planned: {counts['planned']} to be measured, "
            f"{counts['measured']} measured, {counts['dropped']} dropped."
        )
        lines += [f"  to be measured: {', '.join(planned.site[planned.status == 'planned'])}"] * bool(counts["planned"])
        if state.settings["fit"] is not None:
            fit = Fit.of(state.settings["fit"])
            lines.append(
                f"Model: kernel {fit.kernel}, of all measurements; lengthscales learned from {fit.count:,}, and again "
                f"from {round(np.ceil(GROWTH * fit.count)):,}."
            )
        lines.append(f"Area: {self.region.area / 1e6:,.4g} km².")
        return "\n".join(lines)


def writer(path: str | os.PathLike[str], kinds: dict[str, Any]) -> Any:
    """What writes a file of that name: of `MAPS` or `EXPORTS`.

    Raises:
        SurveyError: if nothing does.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in kinds:
        raise SurveyError(f"{path}: give a file that ends in {' or '.join(kinds)}.")
    return kinds[suffix]
