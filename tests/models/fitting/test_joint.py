"""Hyperparameters and weights under Student-t noise: where the search ends, and that its two ways agree."""

import math
from typing import Any

import pytest
import torch
from botorch.optim.core import OptimizationResult, OptimizationStatus
from torch import Tensor

from bo_scale import CaGP
from bo_scale.gp.student_t import DEGREES, bound_gain, expected_precision
from bo_scale.models.choice.plan import Plan
from bo_scale.models.errors import FitError
from bo_scale.models.fitting import joint
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.fitting.joint import fit_jointly
from bo_scale.models.shell.student_t import StudentTNoise

RESULT = OptimizationResult(0, 0.0, OptimizationStatus.SUCCESS)
CLOSELY: dict[str, Any] = {"options": {"ftol": 1e-14, "gtol": 1e-9}}


def rows(n: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of a smooth function, of which some are outliers."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    Y = torch.sin(4 * X[:, :1]) + X[:, 1:] + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    Y[::12] += 4.0
    return X, Y


def exact_gp(kernel: str = "matern52", n: int = 60) -> ExactGP:
    return ExactGP.of(Plan("exact", kernel, student_t=True).build(*rows(n)))


def squares_of(exact: ExactGP) -> Tensor:
    return exact.left_out()[0].square() / exact.noise_scale()


def with_weights(exact: ExactGP, squares: Tensor, degrees: float) -> ExactGP:
    return ExactGP(exact.modules, exact.X, exact.Y, 1 / expected_precision(squares, degrees), exact.known)


@pytest.mark.parametrize("kernel", ["rbf", "matern12"])
@pytest.mark.parametrize("degrees", [3.0, 30.0])
def test_it_ends_where_updates_in_turn_stay(kernel: str, degrees: float) -> None:
    exact = exact_gp(kernel)
    squares, bound = fit_jointly(exact, squares_of(exact), [degrees], 1000, CLOSELY)
    end = with_weights(exact, squares, degrees)
    torch.testing.assert_close(end.squared_residuals(), squares, rtol=2e-3, atol=1e-5)
    before = exact.state()
    assert bound == pytest.approx(end.value_at(before) + bound_gain(squares[:, 0], degrees).mean().item(), abs=1e-9)
    end.fit(slice(None), CLOSELY)
    assert end.value_at(end.state()) == pytest.approx(end.value_at(before), abs=1e-6)


@pytest.mark.parametrize("degrees", DEGREES)
def test_weights_alone_are_the_fixed_point_of_their_updates(degrees: float) -> None:
    exact = exact_gp()
    for parameter in exact.modules.parameters():
        parameter.requires_grad_(False)
    start = squares_of(exact)
    before, (squares, _) = exact.state(), fit_jointly(exact, start, [degrees], 1000, CLOSELY)
    for _ in range(400):
        start = with_weights(exact, start, degrees).squared_residuals()
    torch.testing.assert_close(squares, start, rtol=1e-3, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in exact.state().items())


def test_automatic_differentiation_ends_there_too() -> None:
    found = []
    for given in (CLOSELY, {**CLOSELY, "timeout_sec": 1000.0}):
        exact = exact_gp()
        found.append((*fit_jointly(exact, squares_of(exact), [3.0], 300, given), exact.state()))
    (squares, bound, state), (by_torch, as_good, as_fitted) = found
    assert bound == pytest.approx(as_good, abs=1e-7)
    torch.testing.assert_close(squares, by_torch, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(state, as_fitted, rtol=1e-2, atol=1e-3)


def test_each_output_has_its_own() -> None:
    X, Y = rows()
    other = Y.flip(0)
    both = ExactGP.of(CaGP(X, torch.cat([Y, other], -1), likelihood=StudentTNoise(torch.Size([2]))))
    squares, bound = fit_jointly(both, squares_of(both), [3.0, 10.0], 300, CLOSELY)
    bounds = 0.0
    for column, degrees, found in zip((Y, other), (3.0, 10.0), squares.unbind(-1), strict=True):
        exact = ExactGP.of(CaGP(X, column, likelihood="student_t"))
        alone, of_one = fit_jointly(exact, squares_of(exact), [degrees], 300, CLOSELY)
        bounds += of_one
        torch.testing.assert_close(found, alone[:, 0], rtol=2e-2, atol=1e-3)
    assert bound == pytest.approx(bounds, abs=1e-6)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("n", [6, 7, 9, 11])
def test_rounding_makes_no_square_negative(n: int, degrees: float, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = exact_gp(n=n)
    monkeypatch.setattr(joint, "minimum", lambda _, x, *given: (x, RESULT))
    squares, _ = fit_jointly(exact, torch.zeros_like(exact.Y), [degrees], 1, {})
    assert (squares >= 0).all()
    assert (squares < 1e-12).all()


@pytest.mark.parametrize("n", [1, 2])
def test_few_rows(n: int) -> None:
    exact = exact_gp(n=n)
    squares, bound = fit_jointly(exact, exact.squared_residuals(), [3.0], 60, {})
    assert squares.isfinite().all()
    assert (squares >= 0).all()
    assert math.isfinite(bound)


def test_a_failure_leaves_hyperparameters(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = exact_gp()
    before = exact.state()
    monkeypatch.setattr(joint, "bound_gain", lambda squares, _: squares * math.nan)
    with pytest.raises(FitError):
        fit_jointly(exact, squares_of(exact), [3.0], 60, {})
    assert all(torch.equal(value, before[name]) for name, value in exact.state().items())
