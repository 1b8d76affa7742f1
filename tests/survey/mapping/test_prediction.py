import numpy as np
from pyproj import CRS

from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.mapping.prediction import Prediction


def prediction() -> Prediction:
    raster = Raster(0.0, 20.0, 10.0, np.array([[True, False], [True, True]]), CRS.from_epsg(32737))
    return Prediction(raster, np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3]))


def test_values_are_in_the_order_of_the_cells_centres() -> None:
    found = prediction()
    assert len(found.mean) == len(found.sd) == found.raster.count
    image = found.raster.image(found.mean)
    assert np.isnan(image[0, 1])
    rows, columns = (
        ((20 - found.raster.centres[:, 1]) // 10).astype(int),
        (found.raster.centres[:, 0] // 10).astype(int),
    )
    assert image[rows, columns].tolist() == found.mean.tolist()


def test_without_a_threshold_nothing_exceeds_it_and_notes_are_its_own() -> None:
    found = prediction()
    assert found.exceedance is found.threshold is found.exceeding is None
    assert found.quantity == "value"
    assert found.notes == []
    assert found.notes is not prediction().notes


def test_predictions_are_compared_by_what_they_are() -> None:
    """Arrays of several numbers are neither equal nor not."""
    one, other = prediction(), prediction()
    assert one != other
    assert len({one, other}) == 2
