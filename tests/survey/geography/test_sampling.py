"""Values of rasters at places."""

from pathlib import Path

import numpy as np
import pytest
import rasterio
from pyproj import CRS
from rasterio.transform import from_origin

from bo_scale.errors import SurveyError
from bo_scale.survey.geography import sampling
from bo_scale.survey.geography.coordinates import to_metric
from bo_scale.survey.geography.sampling import bands_of, require_raster, values_at

UTM = CRS.from_epsg(25832)


def raster(path: Path, values: np.ndarray, crs: str | None = "EPSG:25832", nodata: float | None = -1.0) -> Path:
    height, width = values.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=1, dtype=values.dtype, crs=crs, nodata=nodata,
        transform=from_origin(500_000, 5_600_000, 10, 10),
    ) as file:  # fmt: skip
        file.write(values, 1)
    return path


def test_a_place_has_the_value_of_its_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "TILE", 16)
    values = np.arange(40 * 50, dtype=np.float32).reshape(40, 50)
    path = raster(tmp_path / "a.tif", values)
    rows, columns = np.random.default_rng(0).integers((0, 0), (40, 50), (300, 2)).T
    xy = np.stack([500_000 + 10 * columns + 3, 5_600_000 - 10 * rows - 8], -1).astype(float)
    np.testing.assert_array_equal(values_at(path, xy, UTM), values[rows, columns])
    degrees = to_metric(xy, UTM, CRS.from_epsg(4326))
    np.testing.assert_array_equal(values_at(path, degrees, CRS.from_epsg(4326)), values[rows, columns])


def test_places_without_a_value_have_none_or_that_of_a_pixel_next_to_it(tmp_path: Path) -> None:
    values = np.full((4, 4), -1, dtype=np.int16)
    values[1, 1] = 7
    path = raster(tmp_path / "a.tif", values)
    xy = np.array([[500_015.0, 5_599_985.0], [500_025.0, 5_599_975.0], [500_035.0, 5_599_985.0], [0.0, 0.0]])
    np.testing.assert_array_equal(values_at(path, xy, UTM), [7, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(values_at(path, xy, UTM, beside=True), [7, 7, np.nan, np.nan])
    assert bands_of(path) == 1


def test_files_that_are_no_raster_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.tif").write_text("no raster")
    with pytest.raises(SurveyError, match="cannot be read as a raster"):
        require_raster(tmp_path / "b.tif")
    with pytest.raises(SurveyError, match="not there"):
        require_raster(tmp_path / "c.tif")
    with pytest.raises(SurveyError, match="no coordinate system"):
        require_raster(raster(tmp_path / "d.tif", np.zeros((3, 3), dtype=np.float32), crs=None))
