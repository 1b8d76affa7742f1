"""A prediction as a GeoTIFF or a table."""

import os
from itertools import chain
from pathlib import Path

import numpy as np
import rasterio
from rasterio.io import MemoryFile
from rasterio.transform import from_origin

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.inverse_projection import degrees
from bo_scale.survey.output.layers import layers
from bo_scale.survey.whole_files import write_whole

ROWS = 50_000
"""Rows of a table that are formatted at once."""
PLACES = ("longitude", "latitude", "x", "y")
"""First columns of a table."""


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse to write over a table of the user's.

    Raises:
        SurveyError: for a CSV that is there and is none of predictions.
    """
    at, header = Path(path), ",".join(PLACES).encode()
    if at.suffix.lower() != ".csv" or not at.exists():
        return
    with at.open("rb") as file:
        made_here = file.read(len(header)) == header
    if not made_here:
        raise SurveyError(f"{path}: this file exists and is not a table of predictions. Give another name.")


def write_geotiff(prediction: Prediction, path: str | os.PathLike[str]) -> None:
    """Write bands mean, sd, exceedance and ends of intervals where there are some; NaN outside the region. Atomic.

    Args:
        prediction: The prediction.
        path: The file to make or replace.

    Raises:
        SurveyError: if it cannot be written, or read back; what was there before is unchanged.
    """
    raster, bands = prediction.raster, layers(prediction)
    height, width = raster.inside.shape
    profile = {
        "driver": "GTiff",
        "dtype": "float32",
        "count": len(bands),
        "height": height,
        "width": width,
        "crs": rasterio.CRS.from_wkt(raster.crs.to_wkt()),
        "transform": from_origin(raster.left, raster.top, raster.size, raster.size),
        "nodata": np.nan,
        "compress": "deflate",
        "predictor": 3,
        "tiled": True,
        "bigtiff": "if_safer",
    }
    with MemoryFile() as memory:  # on a full disk GDAL would write half a file, and not raise
        with memory.open(**profile) as file:
            if prediction.date:
                file.update_tags(date=prediction.date)
            for number, band in enumerate(bands, start=1):
                file.write(raster.image(band.values).astype(np.float32), number)
                file.set_band_description(number, band.key)
                file.update_tags(number, of=band.label)
        write_whole(path, [memory.read()])


def write_csv(prediction: Prediction, path: str | os.PathLike[str], portion: int = ROWS) -> None:
    """Write longitude, latitude, x, y, mean, sd, and what else there is; a row for each cell. Atomic.

    Args:
        prediction: The prediction.
        path: The file to make or replace.
        portion: Rows that are formatted at once.

    Raises:
        SurveyError: if it cannot be written, or read back; what was there before is unchanged.
    """
    centres, bands = prediction.raster.centres, layers(prediction)
    table = np.column_stack([degrees(centres, prediction.raster.crs), centres, *(band.values for band in bands)])
    line = ",".join(["%.7f"] * 2 + ["%.2f"] * 2 + ["%.7g"] * len(bands)) + "\n"
    header = ",".join([*PLACES, *(band.key for band in bands)])
    portions = (table[start : start + portion] for start in range(0, len(table), portion))
    lines = (line * len(rows) % tuple(rows.ravel().tolist()) for rows in portions)
    write_whole(path, (text.encode() for text in chain([header + "\n"], lines)))
