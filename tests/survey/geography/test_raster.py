import numpy as np
from pyproj import CRS

from bo_scale.survey.geography.raster import Raster


def test_values_of_cells_are_in_their_places_from_north_to_south() -> None:
    raster = Raster(100.0, 50.0, 10.0, np.array([[False, True], [True, True]]), CRS.from_epsg(25832))
    assert raster.count == 3
    np.testing.assert_array_equal(raster.centres, [[115.0, 45.0], [105.0, 35.0], [115.0, 35.0]])
    np.testing.assert_array_equal(raster.image(np.array([1.0, 2.0, 3.0])), [[np.nan, 1.0], [2.0, 3.0]])
