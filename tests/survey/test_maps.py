import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
import shapely
from pictures import CORNER, UTM, picture, raster_of, region
from PIL import Image
from pyproj import CRS, Transformer

from bo_scale.survey.layers import layers
from bo_scale.survey.maps import Picture, round_length, write_csv, write_geotiff, write_png
from bo_scale.survey.raster import Prediction


def colours(path: Path) -> set[tuple[int, ...]]:
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    found = np.unique(pixels @ [65536, 256, 1])
    return {(code >> 16, code >> 8 & 255, code & 255) for code in found.tolist()}


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


def test_a_table_is_whole_beyond_one_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = picture(size=250.0).prediction
    write_csv(predicted, tmp_path / "at-once.csv")
    monkeypatch.setattr("bo_scale.survey.exports.ROWS", 7)
    write_csv(predicted, tmp_path / "portions.csv")

    assert (tmp_path / "portions.csv").read_bytes() == (tmp_path / "at-once.csv").read_bytes()


def test_a_picture_has_the_colours_of_every_layer(tmp_path: Path) -> None:
    shown = picture()
    write_png(shown, tmp_path / "map.png")
    found = colours(tmp_path / "map.png")
    for layer in layers(shown.prediction):
        palette = set(map(tuple, layer.palette.tolist()))
        assert len(palette & found) > 0.9 * len(palette), layer.key

    bare = replace(shown, prediction=replace(shown.prediction, exceedance=None, threshold=None))
    write_png(bare, tmp_path / "two.png")
    narrow, wide = (Image.open(tmp_path / name).size for name in ("two.png", "map.png"))
    assert narrow[0] < wide[0]


def strip(tall: bool) -> Picture:
    shown = picture(size=500.0)
    shape = shapely.box(0, 0, 900, 40_000) if tall else shapely.box(0, 0, 40_000, 900)
    raster = raster_of(shape, 100.0)
    values = np.linspace(0, 1, raster.count)
    return replace(shown, region=shape, prediction=Prediction(raster, values, values))


@pytest.mark.parametrize("tall", [True, False])
def test_a_picture_of_a_strip_is_of_a_sensible_size(tmp_path: Path, tall: bool) -> None:
    write_png(strip(tall), tmp_path / "map.png")
    size = Image.open(tmp_path / "map.png").size

    assert min(size) > 600
    assert max(size) < 3000


def test_names_are_not_taken_for_formulas(tmp_path: Path) -> None:
    shown = picture(title="$\\broken{", said=["$x_", "costs $5 and $6"], labels=["$\\frac", *["P1"] * 5])
    write_png(replace(shown, prediction=replace(shown.prediction, quantity="$\\nothing{$")), tmp_path / "map.png")

    assert Image.open(tmp_path / "map.png").size[0] > 600


def test_a_picture_without_sites_or_batch(tmp_path: Path) -> None:
    none = np.empty((0, 2))
    write_png(replace(picture(), sites=none, values=np.empty(0), proposed=none, labels=[]), tmp_path / "map.png")

    assert (227, 32, 43) not in colours(tmp_path / "map.png")


def test_many_sites_are_thinned_and_that_is_said() -> None:
    shown = picture(sites=12_001)

    assert len(shown.sites[shown.drawn]) == 4001
    assert shown.notes[-1] == "4,001 of 12,001 measured sites are drawn."
    assert len(picture().sites[picture().drawn]) == 60


@pytest.mark.parametrize("write", [write_csv, write_geotiff])
def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    assert callable(write)
    path = tmp_path / "grid"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(picture(size=500.0).prediction, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("most", "expected"), [(1.0, 1), (0.99, 0.5), (4999.0, 2000), (5000.0, 5000), (0.03, 0.02)])
def test_round_lengths(most: float, expected: float) -> None:
    assert round_length(most) == pytest.approx(expected)
