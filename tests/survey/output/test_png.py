from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import shapely
from pictures import CORNER, picture, raster_of, rgb, routed
from PIL import Image

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import WGS84, from_metric
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.layers import layers
from bo_scale.survey.output.png import COAST, Picture, write_csv, write_geotiff, write_png
from bo_scale.survey.output.route_style import colour
from bo_scale.survey.routes.route import Route

ACCENT = (227, 32, 43)


def colours(path: Path) -> set[tuple[int, ...]]:
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    found = np.unique(pixels @ [65536, 256, 1])
    return {(code >> 16, code >> 8 & 255, code & 255) for code in found.tolist()}


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
    assert shown.notes[-1] == "Only 4,001 of 12,001 measured sites are drawn."
    assert len(picture().sites[picture().drawn]) == 60


@pytest.mark.parametrize("write", [write_csv, write_geotiff])
def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    assert callable(write)
    path = tmp_path / "grid"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(SurveyError, match=r"disk full.*What was there is unchanged"):
        write(picture(size=500.0).prediction, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_coasts_are_drawn_under_the_sites(tmp_path: Path) -> None:
    shown = picture(scale=20_000.0, size=4_000.0)
    line = from_metric(np.stack([shown.proposed[0], shown.proposed[4]]), shown.crs, WGS84)
    write_png(replace(shown, outline=[]), tmp_path / "plain.png")
    write_png(replace(shown, outline=[line]), tmp_path / "coast.png")
    plain, found = (
        np.asarray(Image.open(tmp_path / f"{n}.png").convert("RGB")).astype(int) for n in ("plain", "coast")
    )

    dark = [(np.abs(image - np.array(rgb(COAST))).max(-1) < 12).sum() for image in (plain, found)]
    assert dark[1] > dark[0] + 200
    red = [(image == ACCENT).all(-1).sum() for image in (plain, found)]
    assert red[0] == red[1] > 0


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
    assert hatched.notes[-1] == "Hatched areas are barriers that routes go around."
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
