import numpy as np
import pytest
from pyproj import CRS, Transformer

from bo_scale.survey.geography.orientation import is_even, north_of
from bo_scale.survey.geography.world import earth


def box(*edges: float) -> tuple[float, float, float, float]:
    left, bottom, right, top = map(float, edges)
    return left, bottom, right, top


NORWAY = CRS.from_epsg(32633)
EUROPE = CRS("+proj=laea +lat_0=50 +lon_0=10 +datum=WGS84")


def test_north_is_up_on_the_meridian_of_a_zone_and_turned_beside_it() -> None:
    assert north_of(NORWAY, box(490_000, 7_000_000, 510_000, 7_010_000)) == pytest.approx(0.0, abs=0.01)
    found = north_of(NORWAY, box(640_000, 7_000_000, 660_000, 7_010_000))
    lon, lat = Transformer.from_crs(NORWAY, 4326, always_xy=True).transform(650_000, 7_005_000)
    convergence = np.degrees(np.arctan(np.tan(np.radians(lon - 15)) * np.sin(np.radians(lat))))
    assert found == pytest.approx(-convergence, abs=0.01)


def test_there_is_no_one_north_at_a_pole_over_a_continent_or_on_a_map_of_the_world() -> None:
    polar = CRS("+proj=laea +lat_0=90 +lon_0=0 +datum=WGS84")
    assert north_of(polar, box(-1e5, -1e5, 1e5, 1e5)) is None
    assert north_of(polar, box(900_000, -1000, 902_000, 1000)) == pytest.approx(-90.0, abs=0.2)  # left is the pole
    assert abs(north_of(polar, box(-1000, 900_000, 1000, 902_000)) or 0) == pytest.approx(180.0, abs=0.2)
    assert north_of(EUROPE, box(-2e6, -1.5e6, 2e6, 1.5e6)) is None
    world = CRS.from_epsg(8857)
    assert north_of(world, earth(world).bounds) is None


def test_one_scale_holds_on_maps_of_a_country_but_not_of_half_a_globe() -> None:
    assert is_even(NORWAY, box(200_000, 7_000_000, 800_000, 7_800_000))
    assert is_even(EUROPE, box(-1.5e6, -1.5e6, 1.5e6, 1.5e6))
    assert not is_even(EUROPE, box(-5e6, -5e6, 5e6, 5e6))
    world = CRS.from_epsg(8857)
    assert not is_even(world, earth(world).bounds)
