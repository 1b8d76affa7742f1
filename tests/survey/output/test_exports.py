import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
from pictures import CORNER, UTM, picture, raster_of, region
from pyproj import CRS, Transformer

from bo_scale.survey.output.png import write_csv, write_geotiff


@pytest.mark.parametrize("crs", [UTM, CRS("+proj=laea +lat_0=52 +lon_0=13 +datum=WGS84")], ids=["utm", "lambert"])
def test_a_geotiff_has_the_values_in_their_places(tmp_path: Path, crs: CRS) -> None:
    shown = picture().prediction
    predicted = replace(shown, raster=raster_of(region(), 100.0, crs))
    write_geotiff(predicted, tmp_path / "grid.tif")

    with rasterio.open(tmp_path / "grid.tif") as file:
        assert file.descriptions == ("mean", "sd", "exceedance")
        assert set(file.dtypes) == {"float32"}
        assert np.isnan(file.nodata)
        assert file.profile["compress"] == "deflate"
        assert CRS.from_wkt(file.crs.to_wkt()).is_exact_same(crs) or CRS.from_wkt(file.crs.to_wkt()) == crs
        found = np.array(list(file.sample(predicted.raster.centres)))
        np.testing.assert_allclose(found[:, 0], predicted.mean, rtol=1e-6)
        np.testing.assert_allclose(found[:, 1], predicted.sd, rtol=1e-6)
        np.testing.assert_allclose(found[:, 2], predicted.exceedance, rtol=1e-6)
        hole = CORNER + 1000 * np.array([8.7, 3.2])
        assert np.isnan(next(file.sample([hole]))).all()
        np.testing.assert_array_equal(np.isfinite(file.read(1)), predicted.raster.inside)


@pytest.mark.parametrize("threshold", [24.0, None])
def test_a_table_has_a_row_for_each_cell(tmp_path: Path, threshold: float | None) -> None:
    predicted = picture(size=250.0).prediction
    if threshold is None:
        predicted = replace(predicted, exceedance=None, threshold=None)
    write_csv(predicted, tmp_path / "grid.csv")
    with (tmp_path / "grid.csv").open(encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    found = np.array(rows, dtype=float)

    assert header == ["longitude", "latitude", "x", "y", "mean", "sd", "exceedance"][: 6 if threshold is None else 7]
    np.testing.assert_allclose(found[:, 2:4], predicted.raster.centres, atol=0.005)
    np.testing.assert_allclose(found[:, 4], predicted.mean, rtol=1e-6)
    np.testing.assert_allclose(found[:, 5], predicted.sd, rtol=1e-6)
    back = Transformer.from_crs(4326, UTM, always_xy=True).transform(found[:, 0], found[:, 1])
    np.testing.assert_allclose(np.stack(back, -1), predicted.raster.centres, atol=0.02)


def test_a_table_is_whole_beyond_one_portion(tmp_path: Path) -> None:
    predicted = picture(size=250.0).prediction
    write_csv(predicted, tmp_path / "at-once.csv")
    write_csv(predicted, tmp_path / "portions.csv", portion=7)

    assert (tmp_path / "portions.csv").read_bytes() == (tmp_path / "at-once.csv").read_bytes()
