"""A tile of a raster: predicted by any process, and kept in a file whose name has its check sum."""

import pickle
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import rasterio
from rasterio.io import MemoryFile
from rasterio.transform import from_origin

from bo_scale.errors import SurveyError
from bo_scale.files import replacing
from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.geography.grid import Grid
from bo_scale.threads import one_thread, scipy_on_one_thread

Image = npt.NDArray[np.float32]
Part = tuple[slice, slice]
SIDE = 1024
"""Cells along the side of a tile, a multiple of that of the file's blocks."""
BLOCK = 512
"""Cells along the side of a block of the file."""
SQUARE = 128
"""Cells along the side of a square that is predicted at once."""
SHARED = 32
"""Cells along the side of its parts, which share most of their nearest sites."""
MODEL = "model.pickle"
"""File of the fitted survey, which is written anew by every call before it is read."""
PROFILE = {
    "driver": "GTiff",
    "dtype": "float32",
    "nodata": np.nan,
    "tiled": True,
    "blockxsize": BLOCK,
    "blockysize": BLOCK,
    "compress": "deflate",
    "zlevel": 1,
    "predictor": 3,
}


@dataclass(frozen=True)
class Predicts:
    """Prediction of tiles, as it is sent to a worker.

    Attributes:
        folder: Folder of the tiles, with the file of the fitted survey.
        digest: Digest of what is predicted.
        grid: All cells.
        threshold: Threshold in the user's units; None for no exceedance.
        intervals: Whether there are ends of intervals.
    """

    folder: Path
    digest: str
    grid: Grid
    threshold: float | None
    intervals: bool

    def __call__(self, number: int, part: Part) -> str:
        """Return the name of a tile's file, which is made unless it is there whole; empty if no cell has a value.

        Raises:
            SurveyError: if it cannot be written, or the folder is not there.
        """
        try:
            kept = whole(self.folder, number)
            if kept:
                return kept
            with one_thread(), scipy_on_one_thread():
                image = self.image(_loaded(self.folder / MODEL, self.digest), part)
            if image is None:
                return ""
            return saved(self.folder, number, content_of(image, self.grid, part))
        except OSError as error:
            raise SurveyError(
                f"{self.folder}: tile {number} could not be made ({error.strerror or error}). Tiles that are done are "
                "kept: repeat the call when this is mended, and it goes on from there."
            ) from error

    def image(self, fitted: FittedSurvey, part: Part) -> Image | None:
        """Return the bands of a tile, NaN where there is no value; None if there is none at all."""
        grid, (rows, columns) = self.grid, part
        x, y = grid.x(columns), grid.y(rows)
        inside = fitted.workspace.region.covers(x, y)
        if not inside.any():
            return None
        row, column = np.nonzero(inside)
        xy, beside = np.stack([x[column], y[row]], -1), None
        if fitted.fit.beside is not None:
            beside = fitted.fit.beside(xy)
            known = np.isfinite(beside).all(1)
            row, column, xy, beside = row[known], column[known], xy[known], beside[known]
        square, part_of = (row // side * (len(x) // side + 1) + column // side for side in (SQUARE, SHARED))
        order = np.lexsort((part_of, square))
        found: Image | None = None
        for some in np.split(order, np.flatnonzero(np.diff(square[order])) + 1) if len(order) else []:
            there = None if beside is None else beside[some]
            bands = fitted.values(xy[some], self.threshold, self.intervals, covariates=there).bands
            if found is None:
                found = np.full((len(bands), len(y), len(x)), np.nan, dtype=np.float32)
            for image, values in zip(found, bands, strict=True):
                image[row[some], column[some]] = values
        return found


@lru_cache(maxsize=1)
def _loaded(path: Path, digest: str) -> FittedSurvey:
    """Return the fitted survey of a folder, read once by each process."""
    found = pickle.loads(path.read_bytes())
    assert isinstance(found, FittedSurvey), "it was written by the call that reads it"
    return found


def keep_model(folder: Path, fitted: FittedSurvey) -> None:
    """Write the fitted survey for the workers, with what all tiles need found once."""
    with one_thread(), scipy_on_one_thread():
        for surface in filter(None, (fitted.surface, fitted.presence)):
            if surface.fit.nearest is not None and surface.gaps.least > 0:
                _ = surface.gaps.knots
    with replacing(folder / MODEL) as partial:
        partial.write_bytes(pickle.dumps(fitted))


def content_of(image: Image, grid: Grid, part: Part) -> bytes:
    """Return the file of a tile."""
    rows, columns = part
    left, top = grid.left + columns.start * grid.size, grid.top - rows.start * grid.size
    count, height, width = image.shape
    with MemoryFile() as memory:  # on a full disk GDAL would write half a file, and not raise
        about = {"count": count, "height": height, "width": width, "interleave": "band"}
        crs = rasterio.CRS.from_wkt(grid.crs.to_wkt())
        with memory.open(**PROFILE, **about, crs=crs, transform=from_origin(left, top, grid.size, grid.size)) as file:
            file.write(image)
        return bytes(memory.read())


def saved(folder: Path, number: int, content: bytes) -> str:
    """Write a tile's file and return its name."""
    name = f"{number:08d}-{zlib.crc32(content):08x}.tif"
    with replacing(folder / name) as partial:
        partial.write_bytes(content)
    return name


def whole(folder: Path, number: int) -> str:
    """Return the name of a tile's file if it is there and has its check sum; else remove it and return nothing."""
    for path in folder.glob(f"{number:08d}-*.tif"):
        if path.stem == f"{number:08d}-{zlib.crc32(path.read_bytes()):08x}":
            return path.name
        path.unlink()
    return ""
