import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bo_scale.gp.function_space.kernel_products.profiles import matern12, matern32, matern52, rbf
from bo_scale.gp.function_space.process import Profile

CLOSED: dict[Profile, Callable[[Tensor], Tensor]] = {
    rbf: lambda r: (-0.5 * r * r).exp(),
    matern12: lambda r: (-r).exp(),
    matern32: lambda r: (1 + math.sqrt(3) * r) * (-math.sqrt(3) * r).exp(),
    matern52: lambda r: (1 + math.sqrt(5) * r + 5 / 3 * r * r) * (-math.sqrt(5) * r).exp(),
}
SLOPES_AT_ZERO = {rbf: -0.5, matern12: 0.0, matern32: -1.5, matern52: -5 / 6}
PROFILES = pytest.mark.parametrize("profile", CLOSED, ids=lambda profile: profile.__name__)


@PROFILES
def test_a_profile_is_its_closed_form_and_its_slope_the_derivative(profile: Profile) -> None:
    squares = torch.linspace(0.05, 9.0, 12, dtype=torch.float64).unsqueeze(0)
    value, slope = profile(squares.clone(), True)
    assert slope is not None
    h = 1e-5
    above, below = (profile(squares + step, False)[0] for step in (h, -h))
    torch.testing.assert_close(value, CLOSED[profile](squares.sqrt()), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(slope, (above - below) / (2 * h), rtol=1e-7, atol=1e-9)


@PROFILES
def test_at_no_distance_the_value_is_one_and_the_slope_finite(profile: Profile) -> None:
    value, slope = profile(torch.zeros(1, 2, dtype=torch.float64), True)
    assert slope is not None
    assert value.tolist() == [[1.0, 1.0]]
    assert slope[0].tolist() == pytest.approx([SLOPES_AT_ZERO[profile]] * 2)


@PROFILES
def test_a_slope_is_computed_on_request_alone_and_changes_no_value(profile: Profile) -> None:
    squares = torch.linspace(0.0, 9.0, 12).unsqueeze(0)
    value, none = profile(squares.clone(), False)
    with_slope, slope = profile(squares.clone(), True)
    assert none is None
    assert slope is not None
    assert value.dtype == slope.dtype == torch.float32
    torch.testing.assert_close(value, with_slope)
    torch.testing.assert_close(value, CLOSED[profile](squares.sqrt()))
