"""Gaps between sites are found once."""

import numpy as np
import pytest

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.gaps import Gaps
from bo_scale.survey.mapping.sites import Sites


def gaps() -> Gaps:
    x, y = np.meshgrid(np.arange(5) * 10.0, np.arange(4) * 10.0)
    xy = np.stack([x.ravel(), y.ravel()], -1)
    return Gaps(Fit("two-scale", 20, (0.0, 0.0, 100.0, 100.0), 0.0, 1.0, [], {}), Sites(xy, np.zeros(20), None))


def test_weights_rise_smoothly_with_the_distance() -> None:
    found = gaps()
    assert found.least == 20.0
    assert found.weights(np.array([[40.0, 0.0], [60.0, 0.0], [70.0, 0.0], [80.0, 0.0]])).tolist() == [0, 0, 0.5, 1]
    assert found.knots is None


def test_one_place_has_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gaps()
    found = Gaps(found.fit, Sites(np.zeros((3, 2)), np.zeros(3), None))
    assert found.weights(np.ones((2, 2))).tolist() == [0, 0]
