import warnings
from pathlib import Path

import geopandas as gpd
import numpy as np
import pytest
import shapely
from pyproj import CRS, Transformer

from bo_scale.errors import SurveyError, SurveyWarning
from bo_scale.survey.geography.coasts import SMALLEST, coasts_of, read_outline
from bo_scale.survey.geography.coordinates import WGS84
from bo_scale.survey.geography.world import earth

DUTCH = CRS.from_epsg(32631)
FIJI = CRS("+proj=laea +lat_0=-18 +lon_0=180 +datum=WGS84")
HOLLAND = (500_000.0, 5_700_000.0, 800_000.0, 5_950_000.0)


def saved(folder: Path, shape: shapely.Geometry, crs: CRS | None = WGS84, name: str = "outline.gpkg") -> Path:
    gpd.GeoDataFrame(geometry=[shape], crs=crs).to_file(folder / name)
    return folder / name


def test_a_coast_is_where_it_is() -> None:
    """The beach of Scheveningen is at 4.27° E, 52.11° N, and the border west of Venlo at 6.1° E or so."""
    found = coasts_of(HOLLAND, DUTCH, HOLLAND)
    beach = shapely.Point(*Transformer.from_crs(4326, DUTCH, always_xy=True).transform(4.27, 52.11))
    venlo = shapely.Point(*Transformer.from_crs(4326, DUTCH, always_xy=True).transform(6.20, 51.40))
    assert min(shapely.LineString(line).distance(beach) for line in found.coasts) < 5000
    assert min(shapely.LineString(line).distance(venlo) for line in found.borders) < 8000
    assert found.note.startswith("Coasts and borders: Natural Earth, 1:50 million.")
    box = shapely.box(*HOLLAND).buffer(1e-3)
    assert all(shapely.covers(box, shapely.LineString(line)) for line in [*found.coasts, *found.borders])


def test_no_coarse_coast_is_drawn_through_a_village() -> None:
    left, bottom = 585_000.0, 5_773_000.0  # Scheveningen
    for size, drawn in ((5_000.0, False), (0.99 * SMALLEST, False), (1.01 * SMALLEST, True)):
        box = (left, bottom, left + size, bottom + size / 2)
        found = coasts_of(box, DUTCH, box)
        assert bool(found.coasts) == bool(found.note) == drawn


def test_a_map_far_from_any_coast_has_none_and_does_not_say_so() -> None:
    box = (-100_000.0, -100_000.0, 100_000.0, 100_000.0)
    found = coasts_of(box, CRS("+proj=laea +lat_0=-40 +lon_0=-120 +datum=WGS84"), box)
    assert (found.coasts, found.borders, found.note) == ([], [], "")


@pytest.mark.parametrize("code", [8857, 8858, 8859])
def test_the_world_is_within_its_edge_and_its_seam_is_not_drawn(code: int) -> None:
    crs = CRS.from_epsg(code)
    shape, box = earth(crs), earth(crs).bounds
    found = coasts_of(box, crs, box)
    assert "1:110 million" in found.note
    lines = shapely.MultiLineString(found.coasts)
    assert shapely.covers(shape.buffer(5.0), lines)
    along_edge = shapely.intersection(lines, shapely.boundary(shape).buffer(2_000.0)).length
    assert along_edge < 0.01 * lines.length
    # Chukotka goes on across 180°, with no line along it
    across = Transformer.from_crs(4326, crs, always_xy=True).transform(np.full(50, 180.0), np.linspace(66.5, 68.0, 50))
    if code != 8857:
        assert shapely.distance(lines, shapely.LineString(np.stack(across, -1)).centroid) > 20_000


def test_islands_on_both_sides_of_the_antimeridian() -> None:
    box = (-300_000.0, -250_000.0, 300_000.0, 250_000.0)
    x = np.concatenate(coasts_of(box, FIJI, box).coasts)[:, 0]
    assert x.min() < -200_000
    assert x.max() > 10_000


def test_an_outline_of_ones_own_replaces_them_at_any_size(tmp_path: Path) -> None:
    box = (585_000.0, 5_773_000.0, 590_000.0, 5_776_000.0)
    square = shapely.box(587_000, 5_774_000, 588_000, 5_775_000)
    lines = read_outline(saved(tmp_path, square, DUTCH), WGS84, box, DUTCH)
    found = coasts_of(box, DUTCH, box, lines)
    assert (found.borders, found.note) == ([], "")
    assert shapely.polygons(found.coasts[0]).symmetric_difference(square).area < 1.0
    assert coasts_of(HOLLAND, DUTCH, HOLLAND, lines).borders == []


def test_each_feature_of_an_outline_has_its_boundary(tmp_path: Path) -> None:
    squares = [shapely.box(587_000 + 500 * k, 5_774_000, 587_500 + 500 * k, 5_775_000) for k in range(2)]
    gpd.GeoDataFrame(geometry=squares, crs=DUTCH).to_file(tmp_path / "two.gpkg")
    box = (585_000.0, 5_773_000.0, 590_000.0, 5_776_000.0)
    assert len(read_outline(tmp_path / "two.gpkg", WGS84, box, DUTCH)) == 2


def test_an_outline_that_crosses_itself_is_drawn(tmp_path: Path) -> None:
    bow = shapely.Polygon([(4.0, 52.0), (5.0, 53.0), (5.0, 52.0), (4.0, 53.0)])
    with pytest.warns(SurveyWarning, match="1 of 1 polygons were repaired"):
        lines = read_outline(saved(tmp_path, bow, name="bow.geojson"), WGS84, HOLLAND, DUTCH)
    assert sum(map(len, coasts_of(HOLLAND, DUTCH, HOLLAND, lines).coasts)) >= 8


def test_an_outline_of_the_whole_world_suits_a_small_map_and_its_seams_are_left_out(tmp_path: Path) -> None:
    halves = shapely.MultiPolygon([shapely.box(177, -18.5, 180, -17.5), shapely.box(-180, -18.5, -178, -17.5)])
    world = shapely.union_all([halves, shapely.box(-180, -90, 180, -60), shapely.box(0, 0, 90, 80)])
    box = (-400_000.0, -300_000.0, 400_000.0, 300_000.0)
    lines = read_outline(saved(tmp_path, world), WGS84, box, FIJI)
    xy = np.concatenate(coasts_of(box, FIJI, box, lines).coasts)
    assert not ((np.abs(xy[:, 0]) < 1.0) & (np.abs(xy[:, 1]) < 50_000)).any()
    assert (xy[:, 0].min(), xy[:, 0].max()) == pytest.approx((-320_000, 213_000), rel=0.02)


def test_an_outline_far_away_is_pointed_out(tmp_path: Path) -> None:
    with pytest.warns(SurveyWarning, match=r"outline: no line of .*outline.gpkg lies on the map or near it"):
        read_outline(saved(tmp_path, shapely.box(100, 10, 101, 11)), WGS84, HOLLAND, DUTCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_outline(saved(tmp_path, shapely.box(4.3, 52.0, 4.5, 52.2)), WGS84, HOLLAND, DUTCH)


def test_an_outline_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match="there is no such file"):
        read_outline(tmp_path / "none.gpkg", WGS84, HOLLAND, DUTCH)
    with pytest.raises(SurveyError, match="no polygons"):
        read_outline(saved(tmp_path, shapely.LineString([(4, 52), (5, 53)])), WGS84, HOLLAND, DUTCH)
    (tmp_path / "text.geojson").write_text("not a map")
    with pytest.raises(SurveyError, match="cannot be read"):
        read_outline(tmp_path / "text.geojson", WGS84, HOLLAND, DUTCH)
