import numpy as np
import pytest
from pyproj import CRS

from bo_scale.survey.geography.coordinates import WGS84, from_metric, metric_crs, to_metric
from bo_scale.survey.geography.land import note_at_sea, note_on_area, offshore

ON_LAND = {
    "Amsterdam": (4.9, 52.4), "Suva": (178.4, -18.1), "Taveuni": (-179.95, -16.8), "Chukotka": (180.0, 67.5),
    "South Pole": (0.0, -89.99), "Wrangel": (-179.99, 71.2), "Lake Michigan": (-87.0, 44.0), "beach": (4.0, 52.1),
}  # fmt: skip
AT_SEA = {
    "North Sea": (3.0, 54.5), "Null Island": (0.0, 0.0), "Atlantic": (-30.0, 40.0), "Caspian": (50.0, 42.0),
    "antimeridian": (180.0, -45.0), "North Pole": (10.0, 89.9),
}  # fmt: skip
REMEDY = "Look again."


def grid(west: float, south: float, east: float, north: float, count: int = 8) -> np.ndarray:
    lon, lat = np.meshgrid(np.linspace(west, east, count), np.linspace(south, north, count))
    return np.stack([lon.ravel(), lat.ravel()], -1)


def test_cities_are_on_land_and_oceans_are_not() -> None:
    assert dict(zip(ON_LAND, offshore(np.array(list(ON_LAND.values())), WGS84))) == dict.fromkeys(ON_LAND, False)
    assert dict(zip(AT_SEA, offshore(np.array(list(AT_SEA.values())), WGS84))) == dict.fromkeys(AT_SEA, True)
    assert not offshore(np.zeros((0, 2)), WGS84).any()


@pytest.mark.parametrize("code", [32631, 8857])
def test_places_in_any_coordinates_are_found(code: int) -> None:
    crs = CRS.from_epsg(code)
    xy = to_metric(np.array([ON_LAND["Amsterdam"], AT_SEA["North Sea"]]), WGS84, crs)
    assert offshore(xy, crs).tolist() == [False, True]


def test_few_places_at_sea_are_named() -> None:
    land = grid(8.0, 49.0, 11.0, 51.0)
    sites = np.concatenate([land, [AT_SEA["North Sea"]]])
    rows = [f"row {number + 2}" for number in range(len(sites))]
    (note,) = note_at_sea("Sites", rows, sites, sites, WGS84, REMEDY)
    assert note == "Sites: row 66 lies more than 25 km from land, on a coarse map. Look again."
    assert note_at_sea("Sites", rows[:-1], land, land, WGS84, REMEDY) == []
    (note,) = note_at_sea("Planned", list("abcdefgh"), grid(2.0, 54.0, 4.0, 55.0, 8)[:8], land, WGS84, REMEDY)
    assert note.startswith("Planned: a, b, c, d, e, … (8 in all) lie more than 25 km")


def test_a_marine_survey_is_left_in_peace() -> None:
    sea = grid(2.0, 54.0, 4.0, 55.0)
    mixed = np.concatenate([sea[:10], grid(8.0, 49.0, 11.0, 51.0)])
    for sites in (sea, mixed, sea[:1]):
        assert note_at_sea("Sites", ["?"] * len(sites), sites, sites, WGS84, REMEDY) == []
        assert note_at_sea("Planned", ["P1"], sea[:1], sites, WGS84, REMEDY) == []


def test_an_area_with_much_sea_is_pointed_out_if_the_sites_are_on_land() -> None:
    cells, land, sea = grid(-3.0, 48.0, 0.0, 52.0, 30), grid(0.0, 47.0, 3.0, 48.5), grid(2.0, 54.0, 4.0, 55.0)
    crs, _ = metric_crs(*cells.T)
    both = [to_metric(xy, WGS84, crs) for xy in (cells, land)]
    np.testing.assert_allclose(from_metric(both[1], crs, WGS84), land, atol=1e-6)
    (note,) = note_on_area(*both, crs, 300_000.0)
    share = float(note.split()[1])
    assert 30 < share < 70
    assert "(--area)" in note
    assert note_on_area(*both, crs, 50_000.0) == []
    assert note_on_area(both[1], both[1], crs, 300_000.0) == []
    assert note_on_area(cells, sea, WGS84, 300_000.0) == []
