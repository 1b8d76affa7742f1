import numpy as np
import pytest
from pictures import UTM
from pyproj import CRS

from bo_scale.survey.output.inverse_projection import degrees, inverse


@pytest.mark.parametrize(
    ("crs", "bounds"),
    [
        (UTM, (3.0e5, 5.5e6, 7.0e5, 6.1e6)),
        (CRS.from_epsg(32760), (1e5, 5e6, 9e5, 6e6)),
        (CRS("+proj=laea +lat_0=-18 +lon_0=180 +datum=WGS84"), (-9e5, -9e5, 9e5, 9e5)),
        (CRS("+proj=laea +lat_0=90 +lon_0=0 +datum=WGS84"), (-2e6, -2e6, 2e6, 2e6)),
        (CRS("+proj=laea +lat_0=5 +lon_0=20 +datum=WGS84"), (-4e6, -4e6, 4e6, 4e6)),
    ],
    ids=["zone", "wide-zone", "antimeridian", "pole", "continent"],
)
def test_polynomials_find_longitude_and_latitude(crs: CRS, bounds: tuple[float, float, float, float]) -> None:
    found = inverse(bounds, crs)
    xy = np.random.default_rng(1).uniform(bounds[:2], bounds[2:], (500, 2))
    terms = (xy - np.array(found.centre)) / found.half
    polynomials = [np.polynomial.chebyshev.chebval2d(terms[:, 0], terms[:, 1], c) for c in found.coefficients]
    longitude, latitude = np.radians(degrees(xy, crs)).T
    truth = [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)]

    np.testing.assert_allclose(polynomials, truth, atol=max(2 * found.error, 1e-9))
    assert found.error < 2e-6  # a dozen metres, over a continent
    assert found.decimals == 5 or crs.to_epsg() is None
