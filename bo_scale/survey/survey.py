"""A survey: what was measured where, what is known of the rest, and where to measure next; all in one GeoPackage."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from bo_scale.errors import SurveyError
from bo_scale.survey.choice.objectives import DESIGNS
from bo_scale.survey.covariates import changed, parsed_all
from bo_scale.survey.divides import with_divides
from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.geography.region import Region
from bo_scale.survey.mapping.anisotropy import Stretch, parsed
from bo_scale.survey.mapping.exceedance import DRAWS, Exceeding
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.mapping.scales import Scale
from bo_scale.survey.output.dates import write_dates
from bo_scale.survey.output.exports import require_replaceable
from bo_scale.survey.output.layers import with_same_colours
from bo_scale.survey.output.writers import EXPORTS, MAPS, NAVIGATION, picture_of, write_navigation, writer
from bo_scale.survey.places import PredictedTable, predicted_table, read_places
from bo_scale.survey.plan.limits import Costs, Screen
from bo_scale.survey.plan.plan import Plan
from bo_scale.survey.plan.problem import Request
from bo_scale.survey.plan.removal import Removal
from bo_scale.survey.plan.sheet import require_replaceable as require_replaceable_sheet
from bo_scale.survey.plan.sheet import write_table
from bo_scale.survey.plan.travel import Travel
from bo_scale.survey.routes.route import Route
from bo_scale.survey.status import status_of
from bo_scale.survey.store.arrivals import Arrival, arrive, unread
from bo_scale.survey.store.create import create_state, weights_of
from bo_scale.survey.store.geopackage import State, locked, read_state, settle, write_state
from bo_scale.survey.store.soundness import require_sound
from bo_scale.survey.store.withdrawal import Withdrawal, withdraw
from bo_scale.survey.tiles.tiles import Tiles
from bo_scale.survey.workspace import Workspace, with_covariates, with_time
from bo_scale.threads import one_thread

if TYPE_CHECKING:
    from bo_scale.survey.report.report import Report

MAP_CELLS = 60_000


class Survey:
    """A survey and its file. Every change is on disk, whole, when the call returns.

    Args:
        path: The GeoPackage, as `create` or `bo-scale survey init` made it.

    Attributes:
        path: The GeoPackage.
        workspace: The survey as it was last read or written.

    Raises:
        SurveyError: if there is none, or another program has damaged it.

    Examples:
        >>> survey = Survey.create("s.gpkg", "sites.csv", value="zinc")  # doctest: +SKIP
        >>> survey.plan(batch=6).write("next.csv")  # doctest: +SKIP
        >>> survey.update("measured.csv")  # doctest: +SKIP
        >>> survey.map("map.html")  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.workspace = self._read()

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
        exposure: str | None = None,
        area: str | os.PathLike[str] | None = None,
        forbidden: Iterable[str | os.PathLike[str]] = (),
        candidates: str | os.PathLike[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
        transform: str | None = None,
        lower: float = 0.0,
        upper: float = 1.0,
        offset: float = 0.0,
        threshold: float | None = None,
        kernel: str = "auto",
        keep_outside: bool = False,
        overwrite: bool = False,
        site: str | None = None,
        sheet: str | None = None,
        decimal: str | None = None,
        covariates: Iterable[str | os.PathLike[str]] = (),
        time: str | None = None,
        decay: float | None = None,
        anisotropy: str = "learn",
        divides: Iterable[str | os.PathLike[str]] = (),
    ) -> "Survey":
        """Begin a survey from a table of measurements.

        Args:
            path: The GeoPackage to make.
            table: CSV or workbook (.xlsx), a row for each measurement.
            value: Column of values; with `of`, of the numbers of positives; with `exposure`, of the numbers of cases.
            x: Column of longitudes or eastings. Longitude and latitude are recognised by name.
            y: Column of latitudes or northings.
            crs: Coordinate system; by default WGS 84 for longitude and latitude.
            error: Column of standard deviations of measurements, in units of the values; each counts as a thousandth of
                the values' spread at least.
            of: Column of the numbers examined: values are then k positive of n, from one examined upwards, with a
                binomial likelihood. Maps are of the share that is positive.
            exposure: Column of the exposures of cases, such as the population or the hours of watching: counts are then
                Poisson, and maps are of the rate, cases by unit of exposure.
            area: File of polygons where sampling is allowed (GeoJSON, GeoPackage, Shapefile); else the hull of the
                sites, and of a global survey the whole globe.
            forbidden: Files of polygons that are cut out of it.
            candidates: CSV of places to choose from, in columns named as in the table; else any place will do.
            weights: CSV of places with a column `weight` (population, say), over which integrals are taken.
            transform: Scale of the model: "none", "log", "log1p" (with zeros), "two-part" (present or not, and how much
                where it is) or "logit". Counts have their own:
                "logit" for positives, "log" for cases.
            lower: Lower bound of a logit.
            upper: Upper bound of a logit.
            offset: Number added to values before their logarithm is taken, with "log".
            threshold: Value of interest, in units of the values: for exceedance, straddle, misclassification.
            kernel: "auto", or one of `bo_scale.survey.mapping.kernels.KERNELS`.
            keep_outside: Use measurements from outside the area and, without an area, from far away of all others.
            overwrite: Replace a survey that is there.
            site: Column of ids of sites, by which later tables may name them instead of coordinates; None for one
                called site.
            sheet: Sheet of a workbook; None for the first.
            decimal: "comma" or "point", if numbers such as 1,234 may be read in two ways.
            covariates: Rasters (GeoTIFF) and columns of the table that the quantity depends on: `change_covariates`.
            time: Column of dates such as 2024-06-01, or of numbers, of a quantity that changes; see `change_time`.
            decay: Days, or units of a column of numbers, in which what was measured loses its hold; None to learn it.
            anisotropy: "learn", "none", or "ratio,angle", as in `change_anisotropy`.
            divides: Files of polygons or lines that correlation goes around, as in `change_divides`.

        Raises:
            SurveyError: saying what cannot be used, and what to do.
        """
        if Path(path).exists() and not overwrite:
            raise SurveyError(f"{path}: this file exists already. Give another name, or set overwrite (--overwrite).")
        state = create_state(
            table, value, x=x, y=y, crs=crs, error=error, of=of, exposure=exposure, area=area, forbidden=forbidden,
            candidates=candidates, weights=weights, transform=transform, lower=lower, upper=upper, offset=offset,
            threshold=threshold, kernel=kernel, keep_outside=keep_outside, site=site, sheet=sheet, decimal=decimal,
            time=time,
        )  # fmt: skip
        space = Workspace.of(state, Path(path).resolve().parent).with_anisotropy(parsed(anisotropy))
        space = with_divides(with_time(space, time, decay), list(divides))
        write_state(path, with_covariates(space, parsed_all(covariates)).state)
        return cls(path)

    # ------------------------------------------------------------------ reading and writing

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Lock the file and read it, so that nobody writes in between."""
        with locked(self.path):
            self.workspace = self._read()
            yield

    def _read(self) -> Workspace:
        """Return the survey as it is in its file."""
        state = read_state(self.path)
        require_sound(self.path, state)
        return Workspace.of(state, self.path.resolve().parent)

    def _save(self, state: State) -> None:
        write_state(self.path, state)
        self.workspace = replace(self.workspace, state=state)  # what is cached goes

    def _fit(self, progress: bool | None = False, date: str | float | None = None) -> FittedSurvey:
        """Return the model of all sites at a date; save its hyperparameters if they were fitted anew."""
        space = self.workspace.at_time(date)
        found = FittedSurvey.of(space, progress)
        if found.workspace is not space:
            self._save(found.workspace.state)
        return found

    def fitted(self, progress: bool | None = False, date: str | float | None = None) -> FittedSurvey:
        """Return the model of all sites, fitted anew if there are a quarter more than at the last fit.

        Args:
            progress: Whether to show a bar for a fit; None for only on a terminal.
            date: Date that is predicted, of a survey with time; None for that of the latest measurement.
        """
        with self._held():
            return self._fit(progress, date)

    # ------------------------------------------------------------------ what there is

    @property
    def region(self) -> Region:
        """The area where sampling is allowed, metric."""
        return self.workspace.region

    @property
    def settings(self) -> dict[str, Any]:
        """Choices made at the beginning, the hyperparameters of the last fit, and the plans made."""
        return dict(self.workspace.state.settings)

    @property
    def sites(self) -> gpd.GeoDataFrame:
        """Measurements that are used, one a row."""
        return self.workspace.state.sites.copy()

    @property
    def planned(self) -> gpd.GeoDataFrame:
        """Sites proposed, and their status: planned, measured or dropped."""
        return self.workspace.state.planned.copy()

    @property
    def routes(self) -> list[Route]:
        """Routes of teams to sites that are still to be measured, metres."""
        return self.workspace.routes

    @property
    def rejected(self) -> pd.DataFrame:
        """Rows kept aside: file, row, text and reason."""
        return self.workspace.state.rejected[["file", "row", "text", "reason"]].copy()

    @property
    def scale(self) -> Scale:
        """Scale of the model."""
        return self.workspace.scale

    @property
    def notes(self) -> list[str]:
        """Sentences on what was recognised or assumed."""
        return self.workspace.notes

    def status(self) -> str:
        """Describe the survey in sentences."""
        return status_of(self.path, self.workspace)

    # ------------------------------------------------------------------ what the model knows

    @property
    def covariates(self) -> list[str]:
        """Names of the covariates."""
        return [] if self.workspace.covariates is None else self.workspace.covariates.names

    def change_covariates(self, add: Iterable[str | os.PathLike[str]] = (), drop: Iterable[str] = ()) -> None:
        """Add covariates or replace those of the same name, and drop some; what was learned with others is forgotten.

        Each is a raster (GeoTIFF) or a column of the tables, such as `"elevation.tif"` or `"depth"`, and enters as a
        linear trend. With `:categorical` behind it its values are classes; with `:kernel` it is also an input of the
        kernel, which gives it a smooth effect. Rasters stay where they are, or may be put beside the survey.

        Args:
            add: Covariates.
            drop: Names of covariates.

        Raises:
            SurveyError: if one cannot be used, or is not there; nothing is changed then.
        """
        with self._held():
            self._save(with_covariates(self.workspace, changed(self.workspace.covariates, add, drop)).state)

    def change_time(self, column: str | None, decay: float | None = None) -> None:
        """Name the column of times of a quantity that changes, or another one; what was learned without is forgotten.

        The model then has a part that changes, of which what was measured loses its hold as time goes by, and a part
        that stays. Maps and plans are for a date, by default that of the latest measurement. Nothing is forecast
        farther from the measurements than the range in time.

        Args:
            column: Column of dates such as 2024-06-01, or of numbers; None for a quantity that does not change.
            decay: Days, or units of a column of numbers, in which what was measured loses its hold (to 1/e), if all of
                the quantity changes; None to learn that.

        Raises:
            SurveyError: if the column has no times; nothing is changed then.
        """
        with self._held():
            self._save(with_time(self.workspace, column, decay).state)

    @property
    def anisotropy(self) -> tuple[float, float] | None:
        """Ratio and bearing of the anisotropy of the last fit, given or learned; None for none, or before a fit."""
        fit = self.workspace.state.settings.get("fit")
        found = None if fit is None else fit.get("stretch")
        return None if found is None else (float(found[0]), float(found[1]))

    def change_anisotropy(self, asked: tuple[float, float] | str) -> None:
        """Give the anisotropy, or let it be learned; what was learned with another one is forgotten.

        Args:
            asked: How much farther correlation reaches along an axis than across it, and the bearing of the axis,
                degrees clockwise from the north of the map; "learn" (as surveys begin) to learn both where the
                evidence asks for it; "none" for lengthscales to the east and to the north alone, from 400 measurements
                on.

        Raises:
            SurveyError: for a ratio below 1, on the globe, or with divides.
        """
        found = parsed(asked) if isinstance(asked, str) else Stretch(asked[0], asked[1] % 180)
        with self._held():
            self._save(self.workspace.with_anisotropy(found).state)

    @property
    def divides(self) -> list[str]:
        """Names of the files of the divides; see `change_divides`."""
        found = self.workspace.state.settings.get("divides")
        return [] if found is None else list(found["files"])

    def change_divides(self, files: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Give divides, such as a lake between valleys or a ridge; what was learned with others is forgotten.

        Correlation between places falls with the length of the shortest way around them. Places within a polygon count
        as on its shore.

        Args:
            files: Files of polygons or lines (GeoJSON, GeoPackage, Shapefile); none to drop all divides.

        Raises:
            SurveyError: if a file cannot be read, divides have too many corners or lie off the map, the map is of the
                globe, or an anisotropy was given.
        """
        with self._held():
            self._save(with_divides(self.workspace, list(files)).state)

    @property
    def coefficients(self) -> pd.DataFrame:
        """Coefficients of the covariates: `covariate`, `class`, `estimate`, `sd`, and a 95 % interval.

        They are on the scale of the model: of a number the change for each of its units, of a class the difference from
        the mean of all classes. Covariates with a smooth effect have none.
        """
        return self.fitted().coefficients

    def report(self, title: str | None = None, progress: bool | None = None) -> "Report":
        """Report on the model, its predictions and the plans: as text, or as a page by `Report.write`.

        It tells range, sill, nugget and anisotropy with variograms, how well left-out measurements are predicted, which
        of them are suspect, and what plans have gained. Seconds for hundreds of sites, a minute or two for 250,000.

        Args:
            title: Title of the report; None for one of the quantity.
            progress: Whether to show a bar for a fit; None for only on a terminal.
        """
        from bo_scale.survey.report.report import report_of

        return report_of(self.fitted(progress), self.path, title)

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
        exclude: Iterable[str | os.PathLike[str]] = (),
        cost: str | os.PathLike[str] | None = None,
        date: str | float | None = None,
    ) -> Plan:
        """Choose the next sites, each as if those before were measured already.

        With `travel` the sites are those worth most that teams can visit within their budget: a site's value is weighed
        against the detour it costs. Routes are planned with them.

        Sites of an earlier plan that were not measured are dropped, unless `add` is set. The same survey, arguments and
        seed give the same sites.

        Args:
            batch: Number of sites a day, 1 to 1000; for teams that travel the most sites of each. None for 6, or for
                as many as are within reach.
            objective: "variance" (integrated over the area, or over the candidates if there are some, more where
                measurements were far from what the others let expect), "uncertainty" (largest variance), "straddle" and
                "misclassification" (of a threshold), "thompson" (hot spots), or one that was registered; or a design
                that needs no model, "random", "stratified", "maximin" (as far apart as can be), "coverage" (k-means),
                "latin" (hypercube).
            threshold: Threshold in the user's units; None for that of the survey.
            spacing: Least distance between the sites of the batch, and from those planned, metres.
            clearance: Least distance from measured ones; None for the same.
            repeats: Times that a candidate site may be in the batch; with `add`, in all that is planned. For a design
                measured sites count too.
            seed: Seed of the places tried and of all draws.
            add: Plan sites beside those that are planned already, as if these were measured.
            weights: CSV of places with a column `weight`: integrals of this plan are over them, instead of the survey's
                own weights; not with a design. The file's name is kept with the plan.
            days: Days of work to plan, each as if those before were measured.
            travel: Starts of teams, and how far they get in a day; None where that does not matter.
            progress: Whether to show a bar; None for only on a terminal.
            exclude: Rasters of places where no site may be: where they are not 0, or with `slope.tif>30` above 30.
            cost: Raster of what a site costs. Sites are then those with the largest gain for their cost; where it has
                no value above zero, no site may be.
            date: Date of the plan, of a survey with time; None for that of the latest measurement.

        Raises:
            SurveyError: for an unknown objective, a threshold that is missing, no place that keeps the distance, or
                none within reach.
        """
        if weights is not None and objective in DESIGNS:
            raise SurveyError(f"weights: the design {objective} does not use weights; leave them out (--weights).")
        name = None if weights is None else Path(weights).name
        screens, costs = tuple(map(Screen.parsed, exclude)), None if cost is None else Costs.parsed(cost)
        request = Request(
            batch, objective, threshold, spacing, clearance, repeats, seed, add, name, days, travel, screens, costs
        )
        request = request.checked(self.scale, self.workspace.threshold(None))
        with self._held():
            settle(self.path)  # before the plan is made
            space, notes = self.workspace, list[str]()
            counted = space.state.weights
            if weights is not None:
                counted, notes = weights_of(weights, space.columns, space.crs, space.region)
            state, plan = self._fit(progress, date).plan(request, counted, notes, progress)
            self._save(state)
        return plan

    def removable(
        self,
        count: int,
        *,
        weights: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        date: str | float | None = None,
    ) -> Removal:
        """Find measured stations to give up: those whose loss costs the map least, one after the other.

        The cost is the increase of the variance of the quantity, integrated as for `plan`, with the hyperparameters of
        all measurements. Those of one place go together. The survey stays as it is.

        Args:
            count: Number of stations.
            weights: CSV of places with a column `weight`, to integrate over instead of the survey's own weights.
            progress: Whether to show a bar; None for only on a terminal.
            date: Date of the map, of a survey with time; None for that of the latest measurement.

        Raises:
            SurveyError: if so many stations are not there.
        """
        with self._held():
            space, notes = self.workspace, list[str]()
            counted = space.state.weights
            if weights is not None:
                counted, notes = weights_of(weights, space.columns, space.crs, space.region)
            return self._fit(progress, date).removal(count, counted, notes, progress)

    def pending(self) -> pd.DataFrame:
        """Return the table of all sites that are planned and not measured, as `plan` gave it; for one that was lost."""
        found = self.fitted()
        return found.sheet(found.workspace.pending)

    def write_pending(self, path: str | os.PathLike[str]) -> pd.DataFrame:
        """Write the table of `pending` as a plan writes its own, and return it."""
        table = self.pending()
        write_table(table, path, self.workspace.dialect)
        return table

    def require_replaceable(self, table: str | os.PathLike[str]) -> None:
        """Refuse to write over a file with measurements that the survey does not have, or over another file.

        Raises:
            SurveyError: saying what would be lost.
        """
        count = partial(unread, self.workspace.state)
        require_replaceable_sheet(table, self.workspace.read, count, self.path)

    def update(
        self,
        table: str | os.PathLike[str],
        *,
        repeats: bool = False,
        corrections: bool = False,
        names: dict[str, str] | None = None,
        sheet: str | None = None,
        decimal: str | None = None,
    ) -> Arrival:
        """Take measurements in: of planned sites, in any order and some of them later, or of others.

        Columns are those of the first table. A table without coordinates needs a column of ids: `site`, `name`, or that
        of the first table. Rows that are there already are left out, rows without a value wait.

        Args:
            table: CSV or workbook (.xlsx).
            repeats: Take rows that are there already, with the same numbers, as further measurements.
            corrections: Put earlier measurements of the same sites aside; else both count.
            names: Names of columns that are called otherwise in this table: of "value", "x", "y", "error", "of" (also
                of exposures), "site" and "time".
            sheet: Sheet of a workbook; None for the first.
            decimal: "comma" or "point", if numbers such as 1,234 may be read in two ways.

        Raises:
            SurveyError: saying what cannot be used, and what to do; nothing is changed then.
        """
        with self._held():
            space, name = self.workspace, Path(table).name
            read = space.read(table, names, sheet, decimal)
            keep = bool(space.state.settings["keep_outside"])
            arrival = arrive(space.state, read, name, space.region, space.scale, keep, repeats, corrections)
            since = int(space.state.sites.number.max()) + 1 if len(space.state.sites) else 0
            self._save(arrival.state)
            told = self.workspace.notes_on_new(since)
        return replace(arrival, notes=[*read.notes, *arrival.notes, *told])

    def withdraw(
        self,
        table: str | os.PathLike[str],
        *,
        names: dict[str, str] | None = None,
        sheet: str | None = None,
        decimal: str | None = None,
    ) -> Withdrawal:
        """Set the measurements of a table aside, as if they had never been sent, and forget what was learned with them.

        Rows are recognised as `update` does. Sites of the last plan are still to be measured then. `update` with
        `repeats` takes the rows in again.

        Args:
            table: CSV or workbook (.xlsx).
            names: As for `update`.
            sheet: Sheet of a workbook; None for the first.
            decimal: "comma" or "point", if numbers such as 1,234 may be read in two ways.

        Raises:
            SurveyError: if none of its rows is a measurement, or all measurements would go; nothing is changed then.
        """
        with self._held():
            read = self.workspace.read(table, names, sheet, decimal)
            found = withdraw(self.workspace.state, read, Path(table).name)
            self._save(found.state)
        return found

    # ------------------------------------------------------------------ what is known

    def predict(
        self,
        cells: int | None = None,
        size: float | None = None,
        threshold: float | None = None,
        progress: bool | None = None,
        intervals: bool = False,
        date: str | float | None = None,
    ) -> Prediction:
        """Predict mean, standard deviation and, with a threshold, the probability of exceeding it, over the area.

        Predictions are of the quantity itself, without measurement error, in the user's units. With `intervals` there
        are 95 % intervals too, of the quantity and of what a new measurement would be. With more than 1,000
        sites each place is predicted from those nearest to it, and in gaps between sites also from a model of all on a
        grid; else from all. With a threshold the prediction also says
        how much of the area is above it, as `exceeding` does, from cells no finer than the map's.

        Args:
            cells: Number of cells, about.
            size: Their width instead, metres.
            threshold: Threshold in the user's units; None for that of the survey.
            progress: Whether to show a bar; None for only on a terminal.
            intervals: Whether to add intervals. Of counts, new ones are of the typical number examined, or exposure.
            date: Date that is predicted, of a survey with time; None for that of the latest measurement.
        """
        threshold = self.workspace.threshold(threshold)
        if threshold is not None:
            self.scale.require(threshold)
        raster = self.region.cells(MAP_CELLS if cells is None and size is None else cells, size)
        return self.fitted(progress, date).predict(raster, threshold, progress, intervals)

    def tiles(
        self,
        cells: int | None = None,
        size: float | None = None,
        threshold: float | None = None,
        *,
        intervals: bool = False,
        date: str | float | None = None,
    ) -> Tiles:
        """Return predictions of any number of cells, still to be made by tiles: `tiles(size=10.0).write("map.tif")`.

        Arguments are those of `predict`. `costs` of the result tells what it takes.
        """
        threshold = self.workspace.threshold(threshold)
        if threshold is not None:
            self.scale.require(threshold)
        self.fitted(None, date)
        with one_thread():  # another call, after a crash, has the same bits
            fitted = self.fitted(date=date)
        return Tiles.of(fitted, cells, size, threshold, intervals)

    def exceeding(
        self, threshold: float | None = None, draws: int = DRAWS, seed: int = 0, date: str | float | None = None
    ) -> Exceeding:
        """Estimate how much of the area, and of the weights if there are some, is above a threshold: 90 % intervals.

        Functions are drawn from the posterior at 2,500 cells, and as many places with weights, because cells vary
        together. It takes seconds, for any number of sites.

        Args:
            threshold: Threshold in the user's units; None for that of the survey.
            draws: Number of functions, 2 to 10,000.
            seed: Seed of the functions.
            date: Date that is predicted, of a survey with time; None for that of the latest measurement.

        Raises:
            SurveyError: without a threshold, or for one that the scale has not.
        """
        threshold = self.workspace.threshold(threshold)
        if threshold is None:
            raise SurveyError("threshold: the survey has no threshold; give one.")
        return self.fitted(date=date).exceeding(threshold, draws=draws, seed=seed)

    def predict_at(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        intervals: bool = False,
        error: npt.ArrayLike | None = None,
        of: npt.ArrayLike | None = None,
        covariates: dict[str, npt.ArrayLike] | None = None,
        date: str | float | None = None,
    ) -> pd.DataFrame:
        """Predict at places of your own: `mean`, `sd`, and the ends of a 95 % interval, `lower` and `upper`.

        Args:
            x: Longitudes or eastings, as in the table of the survey.
            y: Latitudes or northings.
            intervals: Whether to add `new_lower` and `new_upper`, between which a new measurement is with 95 %.
            error: Standard deviations of the errors of new measurements; None for the median of those known.
            of: Numbers examined, or exposures, of new counts; None for the median.
            covariates: Values of covariates there, by name; those that are left out are looked up.
            date: Date that is predicted, of a survey with time; None for that of the latest measurement.

        Raises:
            SurveyError: for errors or numbers examined that the survey does not have, or that are not positive; if a
                covariate has no value at a place, or has another name.
        """
        x, y = (np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (x, y))
        told = self.workspace.told(error, of, len(x))
        return self.fitted(date=date).at(np.stack([x, y], -1), intervals, told, covariates)

    def predict_table(
        self,
        table: str | os.PathLike[str],
        *,
        intervals: bool = False,
        threshold: float | None = None,
        names: dict[str, str] | None = None,
        sheet: str | None = None,
        decimal: str | None = None,
        date: str | float | None = None,
    ) -> PredictedTable:
        """Predict at the places of a table, whose columns and rows are kept.

        Places are given by coordinates, or by ids of the survey's sites. Numbers examined, exposures and errors of new
        measurements are those of the table where it has the survey's columns.

        Args:
            table: CSV or workbook (.xlsx).
            intervals: Whether to add `new_lower` and `new_upper`, between which a new measurement is with 95 %.
            threshold: Threshold in the user's units; None for that of the survey, without which there is no exceedance.
            names: Names of columns that are called otherwise in this table: of "x", "y", "site", "error", "of"
                and "time".
            sheet: Sheet of a workbook; None for the first.
            decimal: "comma" or "point", if numbers such as 1,234 may be read in two ways.
            date: Date that is predicted, of a survey with time; None for those of the table, if it has the survey's
                column, else for that of the latest measurement.

        Raises:
            SurveyError: saying what cannot be used, and what to do.
        """
        threshold = self.workspace.threshold(threshold)
        if threshold is not None:
            self.scale.require(threshold)
        places = read_places(self.workspace, table, names, sheet, decimal)
        return predicted_table(self.fitted(date=date), places, intervals, threshold)

    def map(
        self,
        path: str | os.PathLike[str],
        prediction: Prediction | None = None,
        title: str | None = None,
        outline: str | os.PathLike[str] | None = None,
        removal: Removal | None = None,
    ) -> None:
        """Draw a page (.html) or a picture (.png) of what is known, with the sites measured and planned.

        Maps that are 100 km across or more have coasts and borders (Natural Earth). On smaller ones these would be
        visibly wrong; there, `outline` is the way to have a coast.

        Args:
            path: The file to make or replace.
            prediction: The prediction to draw; None to predict now.
            title: Title of the map; None for the quantity.
            outline: File of polygons (GeoJSON, GeoPackage, Shapefile) whose boundaries are drawn instead of the coasts
                and borders that ship.
            removal: Stations to give up, which are crossed out.

        Raises:
            SurveyError: for another kind of file, or an outline that cannot be read.

        Warns:
            SurveyWarning: if no line of the outline lies on the map or near it.
        """
        write = writer(path, MAPS)
        found = self.predict() if prediction is None else prediction
        write(picture_of(self.workspace, found, title, outline, removal), path)

    def map_dates(
        self,
        path: str | os.PathLike[str],
        dates: Sequence[str | float],
        cells: int | None = None,
        size: float | None = None,
        *,
        threshold: float | None = None,
        title: str | None = None,
        outline: str | os.PathLike[str] | None = None,
    ) -> None:
        """Draw a page (.html) of several dates with a slider, of a survey with time. All dates have the same colours.

        Args:
            path: The file to make or replace.
            dates: The dates, in the order of the slider.
            cells: Number of cells, about.
            size: Their width instead, metres.
            threshold: Threshold in the user's units; None for that of the survey.
            title: Title of the maps; None for the quantity.
            outline: As for `map`.

        Raises:
            SurveyError: for a date that cannot be predicted, or another kind of file.
        """
        writer(path, {ending: write for ending, write in MAPS.items() if ending != ".png"})
        pages = []
        with TemporaryDirectory() as folder:
            for each in with_same_colours([self.predict(cells, size, threshold, date=date) for date in dates]):
                named = f"{title or self.workspace.quantity}, {each.date}"
                page = Path(folder) / "page.html"
                self.map(page, each, named, outline)
                pages.append((each.date, page.read_text(encoding="utf-8")))
        write_dates(title or self.workspace.quantity, pages, path)

    def gpx(self, path: str | os.PathLike[str]) -> None:
        """Write the sites to be measured for a satellite navigation device, in the plan's order, and the routes.

        Raises:
            SurveyError: if no site is planned, or the file does not end in .gpx.
        """
        self._navigation(path, ".gpx")

    def kml(self, path: str | os.PathLike[str]) -> None:
        """Write the sites to be measured for Google Earth or a phone, in the plan's order, and the routes.

        Raises:
            SurveyError: if no site is planned, or the file does not end in .kml.
        """
        self._navigation(path, ".kml")

    def _navigation(self, path: str | os.PathLike[str], ending: str) -> None:
        writer(path, {ending: NAVIGATION[ending]})
        if not len(self.workspace.pending):
            raise SurveyError(f"{self.path}: no site is still to be measured. Plan some first.")
        write_navigation(self.workspace, self.pending(), path)

    def export(self, path: str | os.PathLike[str], prediction: Prediction | None = None) -> None:
        """Write predictions as GeoTIFF (.tif) or CSV (.csv).

        Raises:
            SurveyError: for another kind of file, or a CSV that is there and is none of predictions.
        """
        write = writer(path, EXPORTS)
        require_replaceable(path)
        write(self.predict() if prediction is None else prediction, path)
