"""Values that stand apart, by a test whose distances are Student's."""

import math
from statistics import NormalDist

import pytest
import torch
from scipy.stats import norm, t

from bo_scale.loop.insight.outliers import LEVEL, default_threshold, gaussian, standing_apart
from bo_scale.models.left_out import DensePrecision


@pytest.mark.parametrize("degrees", [5, 17, 200])
@pytest.mark.parametrize("value", [0.5, 3.0, 8.0])
def test_distances_are_as_improbable_as_those_of_a_gaussian(value: float, degrees: int) -> None:
    assert gaussian(value, degrees) == pytest.approx(norm.isf(t.sf(value, degrees)), rel=0.02)


def test_the_default_threshold_is_rarely_exceeded() -> None:
    assert default_threshold(20) == pytest.approx(4.33, abs=0.01)
    assert default_threshold(1000) == pytest.approx(5.12, abs=0.01)
    assert 2 * 20 * (1 - NormalDist().cdf(default_threshold(20))) == pytest.approx(LEVEL, rel=1e-3)


def test_the_distance_of_the_farthest_is_that_of_least_squares_without_it() -> None:
    """For independent values: (y − mean of the others) / (their standard deviation, times √(1 + 1/(n − 1)))."""
    y = torch.randn(12, generator=torch.Generator().manual_seed(0)).double()
    y[4] = 9.0
    others = torch.cat([y[:4], y[5:]])
    found = standing_apart(DensePrecision(3 * torch.eye(12).double()), y, 3.0, 1)
    assert found.rows == [4]
    assert found.predicted == pytest.approx([others.mean().item()])
    assert found.sds == pytest.approx([others.std().item() * math.sqrt(1 + 1 / 11)])


def test_neither_the_unit_nor_the_origin_matters() -> None:
    g = torch.Generator().manual_seed(1)
    A = torch.randn(20, 20, generator=g).double()
    precision = DensePrecision(A @ A.mT + torch.eye(20).double())
    y = torch.randn(20, generator=g).double()
    y[[3, 5]] = 1e3
    found = standing_apart(precision, y, 4.0, 4)
    moved = standing_apart(precision, 1e5 * y - 1e9, 4.0, 4)
    assert found.rows == moved.rows
    assert [1e5 * each - 1e9 for each in found.predicted] == pytest.approx(moved.predicted, rel=1e-6)
