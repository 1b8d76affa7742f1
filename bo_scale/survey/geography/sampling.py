"""Values of a raster at places."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import rasterio
from pyproj import CRS, Transformer
from rasterio.errors import RasterioError, RasterioIOError
from rasterio.windows import Window

from bo_scale.errors import SurveyError

Array = npt.NDArray[np.float64]
TILE = 2048
"""Width of parts that are read at once, pixels."""
AROUND = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0)]
AROUND.sort(key=lambda step: abs(step[0]) + abs(step[1]))


def require_raster(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is no raster, has no coordinate system, or no numbers.

    Raises:
        SurveyError: naming the file, and what to do.
    """
    with _opened(path) as raster:
        if raster.crs is None:
            raise SurveyError(f"{path}: the raster has no coordinate system; assign one, for example in QGIS.")
        if np.dtype(raster.dtypes[0]).kind == "c":
            raise SurveyError(f"{path}: the raster holds complex numbers; give one of real numbers.")


def bands_of(path: str | os.PathLike[str]) -> int:
    """Return the number of bands of a raster."""
    with _opened(path) as raster:
        return int(raster.count)


def values_at(path: str | os.PathLike[str], xy: Array, crs: CRS, beside: bool = False) -> Array:
    """Return the values of a raster's first band at places; NaN outside and where it has none.

    A place has the value of the pixel that it lies in. Parts of the raster are read one after the other.

    Args:
        path: The raster.
        xy: Places, `n × 2`.
        crs: Their coordinate system.
        beside: Whether a place on a pixel without a value has that of a pixel next to it, if there is one.

    Raises:
        SurveyError: if it cannot be read.
    """
    with _opened(path) as raster:
        to_raster = Transformer.from_crs(crs, CRS.from_wkt(raster.crs.to_wkt()), always_xy=True)
        x, y = to_raster.transform(xy[:, 0], xy[:, 1]) if len(xy) else xy.T
        a = ~raster.transform
        with np.errstate(invalid="ignore"):
            columns, rows = np.floor(a.a * x + a.b * y + a.c), np.floor(a.d * x + a.e * y + a.f)
        found = _read(path, raster, rows, columns)
        for step in AROUND if beside else []:
            missing = np.flatnonzero(np.isnan(found))
            if not len(missing):
                break
            found[missing] = _read(path, raster, rows[missing] + step[0], columns[missing] + step[1])
        return found


def _opened(path: str | os.PathLike[str]) -> rasterio.DatasetReader:
    if not Path(path).exists():
        raise SurveyError(f"{path}: this raster is not there.")
    try:
        return rasterio.open(path)
    except (RasterioError, RasterioIOError) as error:
        raise SurveyError(f"{path}: this file cannot be read as a raster ({error}); give a GeoTIFF.") from error


def _read(path: str | os.PathLike[str], raster: rasterio.DatasetReader, rows: Array, columns: Array) -> Array:
    """Return the values of pixels; NaN for those that are none."""
    found = np.full(len(rows), np.nan)
    with np.errstate(invalid="ignore"):
        inside = np.flatnonzero((rows >= 0) & (rows < raster.height) & (columns >= 0) & (columns < raster.width))
    row, column = rows[inside].astype(np.int64), columns[inside].astype(np.int64)
    tile = (row // TILE) * (raster.width // TILE + 1) + column // TILE
    order = np.argsort(tile, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(tile[order])) + 1) if len(order) else []:
        top, left = int(row[part].min()), int(column[part].min())
        height, width = int(row[part].max()) - top + 1, int(column[part].max()) - left + 1
        try:
            pixels = raster.read(1, window=Window(left, top, width, height), masked=True)
        except (RasterioError, RasterioIOError) as error:
            raise SurveyError(f"{path}: the raster cannot be read ({error}); restore a copy.") from error
        values = pixels.astype(np.float64).filled(np.nan)[row[part] - top, column[part] - left]
        found[inside[part]] = raster.scales[0] * values + raster.offsets[0]
    found[~np.isfinite(found)] = np.nan
    return found
