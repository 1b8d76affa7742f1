import numpy as np
import torch

from bo_scale.survey.choice.places import Places

XY = np.array([[0.0, 0.0], [100.0, 0.0], [200.0, 0.0], [300.0, 0.0]])
NONE = np.empty((0, 2))


def places(**given: object) -> Places:
    options = {"taken": [], "spacing": 0.0, "repeats": 1, "inside": None, "reach": 0.0, "to_model": torch.from_numpy}
    return Places(XY, **{**options, **given})  # type: ignore[arg-type]


def test_sites_at_a_candidate_use_it_up() -> None:
    some = places(there=np.array([[100.04, 0.0], [300.0, 0.0], [300.0, 0.04], [50.0, 0.0]]), repeats=2)
    assert some.used().tolist() == [0, 1, 0, 2]
    assert some.open(some.used(), NONE).tolist() == [True, True, True, False]
    assert places().used().tolist() == [0, 0, 0, 0]


def test_each_set_of_sites_has_its_distance() -> None:
    some = places(taken=[(XY[:1], 100.0), (XY[3:], 101.0)], spacing=50.0)
    assert some.far(XY, NONE).tolist() == [False, True, False, False]
    assert some.far(XY, np.array([[120.0, 0.0]])).tolist() == [False] * 4
