"""Student-t noise as a mixture, against closed forms and against the evidence that it bounds."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from bo_scale.gp.student_t import (
    DEGREES,
    best_degrees,
    bound_gain,
    bound_slope,
    expected_precision,
    log_density,
    scale_of,
    squares_of,
    weights_of_new_rows,
)

ERRORS = torch.tensor([0.0, 0.3, -1.0, 10.0, 300.0], dtype=torch.float64)


@pytest.mark.parametrize("degrees", DEGREES)
def test_density_without_variance_is_that_of_student(degrees: float) -> None:
    expected = stats.t.logpdf(ERRORS.numpy(), degrees, scale=0.5)
    found = log_density(ERRORS, torch.zeros(5, dtype=torch.float64), 0.25, degrees)
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-8, atol=1e-8)


def test_density_without_noise_is_gaussian() -> None:
    near = ERRORS[:4]  # far enough, heavy tails are denser however small their scale
    found = log_density(near, torch.full((4,), 2.0, dtype=torch.float64), 1e-12, 5.0)
    expected = stats.norm.logpdf(near.numpy(), 0, 2**0.5)
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("error", [0.0, 0.5, 3.0, 20.0])
def test_bound_is_below_the_evidence_of_one_row(error: float, degrees: float) -> None:
    y, k, noise = torch.tensor([error], dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64), 0.04
    w = weights_of_new_rows(y, k, noise, degrees)
    squares = degrees_to_squares(w, degrees)
    of_gp = torch.as_tensor(stats.norm.logpdf(error, 0, (k + noise / w).sqrt().numpy()))
    bound = of_gp + bound_gain(squares, degrees)
    evidence = log_density(y, k, noise, degrees)
    assert bound <= evidence + 1e-6
    assert bound > evidence - 1.5
    for factor in (0.5, 2.0):  # no other weight has a higher bound
        other = w * factor
        of_other = torch.as_tensor(stats.norm.logpdf(error, 0, (k + noise / other).sqrt().numpy()))
        assert of_other + bound_gain(degrees_to_squares(other, degrees), degrees) <= bound + 1e-6


def degrees_to_squares(w: Tensor, degrees: float) -> Tensor:
    return squares_of(1 / w, degrees)


def test_squares_come_back_from_variances() -> None:
    s = torch.tensor([0.0, 1.0, 25.0], dtype=torch.float64)
    torch.testing.assert_close(squares_of(1 / expected_precision(s, 5.0), 5.0), s)


def test_a_new_row_that_f_cannot_foretell_is_no_outlier() -> None:
    error = torch.tensor([3.0], dtype=torch.float64)
    unknown, known = (weights_of_new_rows(error, torch.tensor([v]).double(), 0.01, 3.0) for v in (4.0, 0.01))
    assert unknown > 0.9
    assert known < 0.01


@pytest.mark.parametrize("degrees", DEGREES)
def test_bound_of_a_known_function_is_its_likelihood(degrees: float) -> None:
    w = expected_precision(ERRORS.square(), degrees)
    of_noise = torch.as_tensor(stats.norm.logpdf(ERRORS.numpy(), 0, w.rsqrt().numpy()))
    expected = torch.as_tensor(stats.t.logpdf(ERRORS.numpy(), degrees))
    torch.testing.assert_close(of_noise + bound_gain(ERRORS.square(), degrees), expected)


@pytest.mark.parametrize("degrees", DEGREES)
def test_degrees_of_residuals_are_found(degrees: float) -> None:
    residuals = torch.as_tensor(stats.t.rvs(degrees, size=4000, random_state=0))
    assert best_degrees(residuals.square()) == degrees


@pytest.mark.parametrize("degrees", DEGREES)
def test_slope_of_the_bound_is_that_of_finite_differences(degrees: float) -> None:
    squares, h = torch.tensor([0.2, 1.0, 3.0, 50.0], dtype=torch.float64), 1e-5
    differences = (bound_gain(squares + h, degrees) - bound_gain(squares - h, degrees)) / (2 * h)
    torch.testing.assert_close(bound_slope(squares, degrees), differences, rtol=1e-5, atol=1e-9)


def test_degrees_follow_the_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(2000, generator=generator, dtype=torch.float64).square()
    assert best_degrees(gaussian) == 30.0
    heavy = gaussian.clone()
    heavy[:200] *= 1000
    assert best_degrees(heavy) == 3.0


@pytest.mark.parametrize("degrees", DEGREES)
def test_scale_of_values_is_that_of_the_highest_likelihood(degrees: float) -> None:
    values = torch.as_tensor(stats.t.rvs(degrees, scale=0.02, size=60, random_state=0))
    _, _, expected = stats.t.fit(values.numpy(), fdf=degrees, floc=0.0)
    assert scale_of(values, degrees).item() == pytest.approx(expected, rel=1e-3)


def test_an_outlier_hardly_changes_the_scale() -> None:
    values = torch.linspace(-1, 1, 41, dtype=torch.float64)
    values[3] = 1e6
    assert scale_of(values, 3.0) < 1.2 * scale_of(values[4:], 3.0)
    assert scale_of(torch.zeros(5, dtype=torch.float64), 3.0) == 0
