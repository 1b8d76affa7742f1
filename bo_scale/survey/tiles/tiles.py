"""Predictions of any number of cells, by tiles that processes make apart: the same bits whoever makes them."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bo_scale.distributed.scheduling import Submits, finished
from bo_scale.errors import SurveyError
from bo_scale.files import replacing
from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.geography.cell_counts import require_tiled
from bo_scale.survey.geography.grid import Grid
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.layers import layers
from bo_scale.survey.paths import RASTER_ENDINGS, require_target
from bo_scale.survey.tiles.costs import TileCosts
from bo_scale.survey.tiles.folder import clear, digest_of_predictions, folder_of, held, kept
from bo_scale.survey.tiles.mosaic import Mosaic
from bo_scale.survey.tiles.tile import SIDE, Part, Predicts, keep_model

OVERVIEW = 2500
"""Cells from which notes are made."""


@dataclass(frozen=True)
class Tiles:
    """Predictions that are still to be made.

    Attributes:
        fitted: The survey with its model.
        grid: All cells.
        overview: A prediction at a few cells: what there is at each, and notes.
    """

    fitted: FittedSurvey
    grid: Grid
    overview: Prediction

    @classmethod
    def of(
        cls, fitted: FittedSurvey, cells: int | None, size: float | None, threshold: float | None, intervals: bool
    ) -> "Tiles":
        """Return predictions at about so many cells, or at cells of a width in metres.

        Raises:
            SurveyError: unless one of both is given, or if there would be too many cells.
        """
        region = fitted.workspace.region
        width = require_tiled(cells, size, region.area, region.bounds)
        overview = fitted.predict(region.cells(min(OVERVIEW, cells or OVERVIEW)), threshold, False, intervals)
        return cls(fitted, Grid.over(region.bounds, width, region.crs), overview)

    @cached_property
    def costs(self) -> TileCosts:
        """Number of cells, size of the file and time, about; takes about a second."""
        return TileCosts.of(self._task(Path(), ""), self.fitted, len(self._parts))

    def write(
        self,
        path: str | os.PathLike[str],
        executor: "Submits | int | None" = None,
        progress: bool | None = None,
    ) -> Path:
        """Predict all cells, and write one cloud-optimised GeoTIFF: whole, or not at all.

        It has bands, tags and nodata as `Survey.export` gives them, blocks and overviews. Tiles are kept in the folder
        PATH.tiles until the file is there. A second call goes on from them, if the survey and what is asked are
        the same; else they are made anew. The result is the same to the last bit for any executor, any number of
        workers and any interruption. Memory is free of the number of cells.

        Args:
            path: The file to make or replace (.tif).
            executor: Where tiles are predicted: a number of processes on this machine; whatever has the `submit` of
                `concurrent.futures`, such as Dask's `client.get_executor()`, whose workers must see the folder and the
                rasters of covariates; None for this process.
            progress: Whether to show a bar; None for only on a terminal.

        Raises:
            SurveyError: if it cannot be written, or the disk is too small; what was there before is unchanged.
            InvalidArgumentError: for a number of processes below 1, or if processes die again and again.
        """
        target = Path(path).resolve()
        require_target(target, RASTER_ENDINGS, self._rasters)
        about = self.overview
        digest = digest_of_predictions(self.fitted, self.grid, about.threshold, about.intervals is not None)
        with held(target, digest) as folder:
            self._require_space(folder)
            keep_model(folder, self.fitted)
            names = dict(finished(self._task(folder, digest), self._parts, executor, progress, "tiles"))
            made = [(names[number], part) for number, part in enumerate(self._parts) if names[number]]
            if not made:
                raise SurveyError(f"no cell of {self.grid.size:g} m has its centre in the area: choose smaller cells.")
            bands = [(band.key, band.label) for band in layers(about)]
            tags = {"date": about.date} if about.date else {}
            threads = executor if isinstance(executor, int) else 1
            with replacing(folder / "whole.tif") as partial:
                Mosaic(folder, self.grid, made, bands, tags).write(partial, threads)
            with replacing(target) as partial:
                os.replace(folder / "whole.tif", partial)
            clear(folder)
        return target

    @property
    def _rasters(self) -> list[str]:
        """Rasters of covariates."""
        beside = self.fitted.workspace.covariates
        return [] if beside is None else [each.found(beside.folder) for each in beside.every if each.file is not None]

    @property
    def _parts(self) -> list[Part]:
        """Rows and columns of the tiles."""
        return self.grid.parts(SIDE)

    def _task(self, folder: Path, digest: str) -> Predicts:
        about = self.overview
        return Predicts(folder, digest, self.grid, about.threshold, about.intervals is not None)

    def _require_space(self, folder: Path) -> None:
        there = sum(each.stat().st_size for each in kept(folder))
        if shortage := self.costs.shortage(folder, there):
            raise SurveyError(
                f"{folder_of(folder)}: {shortage}. Free some, choose larger cells, or write to another disk."
            )
