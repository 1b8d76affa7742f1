"""Surveys of the whole globe and across the antimeridian, from a table to a map."""

from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely
from PIL import Image
from pyproj import Geod, Transformer
from samples import write

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.geography.coordinates import WGS84, from_metric
from bo_scale.survey.mapping import model
from bo_scale.survey.plan.travel import Depot, Travel

pytestmark = pytest.mark.usefixtures("small")
GEOD = Geod(ellps="WGS84")


def globe_table(n: int = 60, seed: int = 0) -> pd.DataFrame:
    v = np.random.default_rng(seed).normal(size=(n, 3))
    x, y, z = v.T / np.linalg.norm(v, axis=1)
    t = 10 + 5 * z + 2 * np.sin(3 * x) + y
    return pd.DataFrame({"lon": np.degrees(np.arctan2(y, x)), "lat": np.degrees(np.arcsin(z)), "t": t}).round(5)


def farthest(one: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    """Distances of all pairs along the ground, metres."""
    a, b = (frame[["lon", "lat"]].to_numpy() for frame in (one, other))
    i, j = (part.ravel() for part in np.mgrid[0 : len(a), 0 : len(b)])
    return np.asarray(GEOD.inv(*a[i].T, *b[j].T)[2]).reshape(len(a), len(b))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("globe")
    survey = Survey.create(folder / "g.gpkg", write(folder, "sites.csv", globe_table()), "t", threshold=12.0)
    survey.predict(cells=50)
    return folder


@pytest.fixture
def survey(begun: Path, tmp_path: Path) -> Survey:
    (tmp_path / "g.gpkg").write_bytes((begun / "g.gpkg").read_bytes())
    return Survey(tmp_path / "g.gpkg")


def test_it_says_that_it_is_global(survey: Survey) -> None:
    said = " ".join(survey.notes)
    assert "so the survey is global: distances are those along great circles" in said
    assert "Equal Earth, with 0° in the middle (EPSG:8857)" in said
    assert "No area was given, so it is the whole globe." in said
    assert survey.region.area == pytest.approx(5.10066e14, rel=1e-5)
    assert "5.101e+08 km²" in survey.status()
    assert survey.region.contains(survey.workspace.xy(survey.sites)).all()


@pytest.mark.parametrize("objective", ["variance", "uncertainty", "thompson", "maximin", "stratified", "random"])
def test_sites_keep_their_distance_along_great_circles(survey: Survey, objective: str) -> None:
    least = 2_000_000.0
    table = survey.plan(5, objective, spacing=least, clearance=600_000.0).table
    between = farthest(table, table)[np.triu_indices(5, 1)]
    assert between.min() > 0.993 * least
    assert farthest(table, globe_table()).min() > 0.993 * 600_000.0
    assert table.lon.abs().max() <= 180


def test_scores_of_a_design_are_distances_on_the_ground(survey: Survey) -> None:
    survey.plan(3, "maximin")
    planned = survey.planned
    places = pd.DataFrame(shapely.get_coordinates(planned.geometry.to_numpy()), columns=["lon", "lat"])
    nearest = [
        np.append(farthest(places[k : k + 1], globe_table())[0], farthest(places[k : k + 1], places[:k])[0]).min()
        for k in range(3)
    ]
    np.testing.assert_allclose(planned.score, nearest, rtol=0.007)


def test_a_survey_goes_on(survey: Survey, tmp_path: Path) -> None:
    table = survey.plan(4).table
    table["t"] = 11.0
    table.loc[0, "lon"] += 360.0 if table.lon[0] < 0 else 0.0  # as others write it
    again = table[["lon", "lat", "t"]]
    arrival = survey.update(write(tmp_path, "done.csv", again))
    assert arrival.matched == ["P1", "P2", "P3", "P4"]
    arrival = survey.update(
        write(tmp_path, "more.csv", pd.DataFrame({"lon": [180.0, -180.0, 3], "lat": [1, -1, 90], "t": 9.0}))
    )
    assert arrival.added == 3
    assert not arrival.rejected
    assert len(survey.plan(3, add=True).table) == 3


def test_maps_and_exports_are_of_the_whole_globe(survey: Survey, tmp_path: Path) -> None:
    survey.plan(3)
    found = survey.predict(cells=4000)
    assert np.isfinite(found.mean).all()
    assert found.exceeding is not None
    assert 0.05 < found.exceeding.share.mean < 0.6
    assert found.exceeding.area.mean == pytest.approx(found.exceeding.share.mean * 5.10066e8, rel=1e-4)
    for name in ("map.png", "map.html"):
        survey.map(tmp_path / name, found)
    for name in ("map.tif", "map.csv"):
        survey.export(tmp_path / name, found)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.crs.to_epsg() == 8857
        assert np.isfinite(file.read(1)).sum() == found.raster.count
    table = pd.read_csv(tmp_path / "map.csv")
    assert len(table) == found.raster.count
    assert np.isfinite(table.to_numpy()).all()
    x, y = Transformer.from_crs(4326, 8857, always_xy=True).transform(table.longitude, table.latitude)
    np.testing.assert_allclose(np.stack([x, y], -1), table[["x", "y"]], atol=100.0)
    assert Image.open(tmp_path / "map.png").size[0] > 600
    north = survey.predict_at([0.0, 90.0, 350.0], [90.0, 90.0, 90.0])
    assert np.ptp(north["mean"]) < 1e-3


def test_places_with_weights_and_candidates_are_those_of_the_globe(tmp_path: Path) -> None:
    places = globe_table(400, 5).assign(weight=1.0)[["lon", "lat", "weight"]]
    made = {"candidates": write(tmp_path, "places.csv", places), "weights": tmp_path / "places.csv"}
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "sites.csv", globe_table(30)), "t", **made)
    table = survey.plan(4).table
    assert farthest(table, places).min(1).max() < 2.0


def test_tours_around_the_globe_are_refused(survey: Survey) -> None:
    with pytest.raises(SurveyError, match=r"travel: tours need a map that is true to scale.*--depot"):
        survey.plan(3, travel=Travel([Depot(0.0, 0.0)], hours=8.0, speed=50.0))


def test_many_sites_are_modelled_around_the_globe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "EXACT", 100)
    monkeypatch.setattr(model, "GLOBE_POINTS", 200)
    given = write(tmp_path, "sites.csv", globe_table(400))
    survey = Survey.create(tmp_path / "s.gpkg", given, "t", threshold=12.0, kernel="matern32")
    plan = survey.plan(4, spacing=1_000_000.0)
    assert plan.sd_after < plan.sd_before
    assert farthest(plan.table, plan.table)[np.triu_indices(4, 1)].min() > 0.993e6
    found = survey.predict(cells=500)
    assert found.exceeding is not None
    assert found.exceeding.share.lower < found.exceeding.share.mean < found.exceeding.share.upper
    truth = globe_table(300, 8)
    assert np.abs(survey.predict_at(truth.lon, truth.lat)["mean"] - truth.t).mean() < 0.2


@pytest.fixture
def ocean(tmp_path: Path) -> Path:
    """The Pacific, in two parts."""
    parts = [shapely.box(110, -60, 180, 60), shapely.box(-180, -60, -80, 60)]
    gpd.GeoDataFrame(geometry=[shapely.MultiPolygon(parts)], crs=4326).to_file(tmp_path / "ocean.geojson")
    return tmp_path / "ocean.geojson"


def test_an_ocean_is_drawn_in_one_piece(ocean: Path, tmp_path: Path) -> None:
    table = globe_table(300)
    given = write(tmp_path, "sites.csv", table)
    survey = Survey.create(tmp_path / "s.gpkg", given, "t", area=ocean)
    assert "The area reaches" in " ".join(survey.notes)
    assert "EPSG:8859" in " ".join(survey.notes)
    assert len(survey.region.shape.geoms) == 1
    exact = 2 * abs(GEOD.geometry_area_perimeter(shapely.segmentize(shapely.box(0, 0, 170, 60), 0.05))[0])
    assert survey.region.area == pytest.approx(exact, rel=1e-4)
    inside = table[(np.abs(table.lat) <= 60) & ((table.lon >= 110) | (table.lon <= -80))]
    assert len(survey.sites) == len(inside)


@pytest.mark.parametrize(("lon", "lat", "wide"), [(178.0, -18.0, 3.0), (-178.0, 66.0, 9.0)], ids=["Fiji", "Chukotka"])
@pytest.mark.parametrize("running_on", [False, True])
def test_a_region_across_the_antimeridian(
    lon: float, lat: float, wide: float, running_on: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(lon - wide, lon + wide, 40), rng.uniform(lat - 2, lat + 2, 40)
    table = pd.DataFrame({"lon": (x % 360).round(5), "lat": y.round(5), "t": np.sin(x) + y})
    west, east = (lon - wide) % 360, (lon + wide) % 360 - 360
    parts = [shapely.box(west, lat - 2, 180, lat + 2), shapely.box(-180, lat - 2, east, lat + 2)]
    shapes = [shapely.box(west, lat - 2, east + 360, lat + 2)] if running_on else parts
    gpd.GeoDataFrame(geometry=shapes, crs=4326).to_file(tmp_path / "area.geojson")
    given = write(tmp_path, "sites.csv", table)
    survey = Survey.create(tmp_path / "s.gpkg", given, "t", area=tmp_path / "area.geojson")
    assert "global" not in " ".join(survey.notes)
    assert "lon goes beyond 180" in " ".join(survey.notes)
    assert len(survey.sites) == 40
    exact = sum(abs(GEOD.geometry_area_perimeter(shapely.segmentize(part, 0.01))[0]) for part in parts)
    assert survey.region.area == pytest.approx(exact, rel=2e-3)
    planned = survey.plan(3).table
    assert (np.abs((planned.lon - lon + 180) % 360 - 180) <= wide + 0.01).all()
    survey.map(tmp_path / "map.png", survey.predict(cells=300))
    mean = survey.predict_at([179.99999, -179.99999], [lat, lat])["mean"]
    assert mean[0] == pytest.approx(mean[1], abs=1e-3)


@pytest.mark.parametrize(("crs", "off"), [(8857, "off by 33 %"), (3035, "off by 11 %"), (6933, "off by 7")])
def test_a_system_that_is_not_true_to_scale_is_named(crs: int, off: str, tmp_path: Path) -> None:
    table = globe_table(40)
    table["lon"], table["lat"] = 20 + table.lon / 30, 60 + table.lat / 20
    if crs == 3035:
        table["lon"], table["lat"] = table.lon - 62, table.lat - 42  # a little outside its area of use
    table["x"], table["y"] = Transformer.from_crs(4326, crs, always_xy=True).transform(table.lon, table.lat)
    given = write(tmp_path, "sites.csv", table)
    survey = Survey.create(tmp_path / "s.gpkg", given, "t", x="x", y="y", crs=f"EPSG:{crs}")
    note = next(note for note in survey.notes if "it is not used" in note)
    assert off in note
    assert "the CRS of the table" in note
    xy = survey.workspace.xy(survey.sites)
    line = np.linalg.norm(xy[0] - xy[1])
    assert line == pytest.approx(farthest(table[:1], table[1:2])[0, 0], rel=0.01)
    back = from_metric(xy, survey.workspace.metric, WGS84)
    np.testing.assert_allclose(back, table[["lon", "lat"]], atol=1e-5)


def test_a_map_of_the_world_that_is_given_is_not_used_for_distances(tmp_path: Path) -> None:
    table = globe_table(40)
    for crs, axis in ((6933, "global"), (8857, "global")):
        table["x"], table["y"] = Transformer.from_crs(4326, crs, always_xy=True).transform(table.lon, table.lat)
        given = write(tmp_path, "sites.csv", table)
        path = tmp_path / f"{crs}.gpkg"
        survey = Survey.create(path, given, "t", x="x", y="y", crs=f"EPSG:{crs}")
        assert axis in " ".join(survey.notes)
        plan = survey.plan(3, spacing=3_000_000.0).table
        lon, lat = Transformer.from_crs(crs, 4326, always_xy=True).transform(plan.x, plan.y)
        places = pd.DataFrame({"lon": lon, "lat": lat})
        assert farthest(places, places)[np.triu_indices(3, 1)].min() > 2.97e6
