import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
import shapely
from pictures import CORNER, UTM, picture, raster_of, region, routed
from PIL import Image
from pyproj import CRS, Transformer

from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.labels import label_places
from bo_scale.survey.output.layers import layers
from bo_scale.survey.output.png import Picture, round_length, write_csv, write_geotiff, write_png
from bo_scale.survey.output.route_style import COLOURS, colour, dash
from bo_scale.survey.routes.route import Route


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
    monkeypatch.setattr("bo_scale.survey.output.exports.ROWS", 7)
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
    shown = picture(title="$\\broken{", remarks=["$x_", "costs $5 and $6"], labels=["$\\frac", *["P1"] * 5])
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


def rgb(code: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(code[1:]))


ACCENT = (227, 32, 43)


def test_routes_are_drawn_in_their_colours_with_a_legend_below_the_maps(tmp_path: Path) -> None:
    shown = routed()
    write_png(replace(shown, routes=(), depots=np.zeros((0, 2))), tmp_path / "plain.png")
    write_png(shown, tmp_path / "routes.png")
    plain, found = (colours(tmp_path / name) for name in ("plain.png", "routes.png"))
    sizes = [Image.open(tmp_path / name).size for name in ("plain.png", "routes.png")]

    assert {rgb(colour(0)), rgb(colour(1))} <= found
    assert not {rgb(colour(0)), rgb(colour(1))} & plain
    assert ACCENT in plain
    assert ACCENT not in found  # a site on no route is hollow
    assert sizes[0][0] == sizes[1][0]
    legend = np.asarray(Image.open(tmp_path / "routes.png").convert("RGB")).astype(int)[-120:]
    assert (legend == rgb(colour(1))).all(-1).sum() > 100


def test_barriers_are_hatched_under_the_routes(tmp_path: Path) -> None:
    shown = routed()
    hatched = replace(shown, barriers=shapely.box(*(CORNER + 2000), *(CORNER + 6000)))
    write_png(shown, tmp_path / "plain.png")
    write_png(hatched, tmp_path / "hatched.png")
    plain, found = (np.asarray(Image.open(tmp_path / name).convert("RGB")) for name in ("plain.png", "hatched.png"))

    dark = [(image == rgb("#5b6775")).all(-1)[: plain.shape[0] // 2].sum() for image in (plain, found)]
    assert dark[1] > dark[0] + 1000
    assert (found == rgb(colour(0))).all(-1).sum() >= 0.95 * (plain == rgb(colour(0))).all(-1).sum()
    assert hatched.notes[-1] == "Hatched: barriers that routes lead around."
    assert hatched.notes[:-1] == shown.notes
    assert hatched.bounds == shown.bounds


def test_a_map_reaches_to_routes_and_depots() -> None:
    shown, plain = routed(), picture()

    assert plain.bounds == plain.region.bounds
    assert shown.bounds == (CORNER[0] - 2500, *plain.bounds[1:])
    assert replace(shown, routes=(), depots=shown.depots + np.array([0, 99_000.0])).bounds[3] == CORNER[1] + 99_500
    assert shown.visited_by == [1, 1, 0, -1, 0, 0]
    assert plain.visited_by == [-1] * 6


def test_a_map_of_many_routes_and_of_a_day_off(tmp_path: Path) -> None:
    shown = routed()
    many = [Route(day, team, [], shown.routes[0].line, 12_345.0, 1e3) for day in range(1, 9) for team in (1, 2)]
    nothing = [Route(1, 1, [], np.zeros((0, 2)), 0.0, None), Route(1, 2, [], shown.depots, 0.0, None)]
    for name, routes in (("two", shown.routes), ("many", many), ("nothing", nothing)):
        write_png(replace(shown, routes=routes), tmp_path / f"{name}.png")
    two, more, none = (Image.open(tmp_path / f"{name}.png").size for name in ("two", "many", "nothing"))

    assert two[0] == more[0] == none[0]
    assert two[1] < more[1] < two[1] + 300


def test_a_route_says_what_it_is() -> None:
    first, second = routed().routes

    assert (first.name, first.cost) == ("Day 1, team 1", "29.8 km, 3.5 h")
    assert (second.name, second.cost) == ("Day 1, team 2", "21.0 km")


CONES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("cones", CONES)
def test_colours_of_routes_are_told_apart_by_the_colour_blind(cones: str) -> None:
    """CIELAB distances of what Machado, Oliveira and Fernandes (2009) say is seen; 2.3 is just noticeable."""
    levels = np.array([rgb(code) for code in COLOURS]) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(np.array(CONES[cones]) @ linear.T, 0, 1) / to_xyz.sum(1)[:, None])
    lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], -1)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(len(lab), 1)]

    assert apart.min() > 20


def test_routes_beyond_the_colours_differ_by_their_dashes() -> None:
    styles = [(colour(number), dash(number)) for number in range(18)]

    assert len(set(styles)) == 18
    assert all(pattern == () for _, pattern in styles[: len(COLOURS)])


def test_labels_keep_off_markers_other_labels_and_lines_if_they_can() -> None:
    one, none = np.array([[50.0, 50.0]]), np.zeros((0, 2))
    along = np.array([[0.0, 50.0], [100.0, 50.0]])
    right = [56.0, 47.0]

    np.testing.assert_array_equal(label_places(one, ["P1"], none)[0], right)
    assert label_places(one, ["P1"], np.array([[60.0, 50.0]]))[0].tolist() == [50 - 6 - 12.4, 47]
    assert label_places(one, ["P1"], none, [along])[0].tolist() == [56, 55]
    everywhere = [along + np.array([0, up]) for up in range(-60, 60, 5)]
    np.testing.assert_array_equal(label_places(one, ["P1"], none, everywhere)[0], right)
    crowd = np.random.default_rng(1).uniform(0, 30, (40, 2))
    assert len(label_places(crowd, ["P1"] * 40, none, [along])) == 40
