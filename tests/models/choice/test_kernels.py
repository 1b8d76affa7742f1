"""Exact GPs that are compared: where their fits start, which are made, and how they are scored."""

import math

import pytest
import torch
from chosen_rows import brownian, rows
from torch import Tensor

from bo_scale.models.choice.kernels import (
    LENGTHSCALE,
    Fit,
    KernelFits,
    _shared,
    failed_fit,
    not_clearly_worse,
    scored,
    while_preferred,
)
from bo_scale.models.choice.plan import KERNELS, Plan
from bo_scale.models.choice.report import Score
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.refit import with_hyperparameters


def evidence(plan: Plan, X: Tensor, Y: Tensor) -> float:
    """Log evidence, for each row, of a fit from the plan's own start."""
    exact = ExactGP.of(plan.build(X, Y, likelihood=None))
    exact.fit_from_best_start({})
    return exact.value_at(exact.state())


def test_no_fit_is_made_twice_and_one_that_fails_is_kept() -> None:
    X, Y = rows(40, 2)
    fits, plan = KernelFits((X, Y, None)), Plan("exact", "rbf")
    assert fits(plan) is fits(plan)
    failing = KernelFits((X, Y * math.nan, None))
    assert "failed" in failing(plan).score.failure
    assert list(failing.made) == [plan]


@pytest.mark.parametrize("d", [2, 5])
def test_a_fit_from_another_is_as_good_as_one_from_several_starts(d: int) -> None:
    X, Y = rows(80, d)
    fits = KernelFits((100 * X, Y, None))
    plans = [Plan("exact", name, shared_lengthscale=shared) for shared in (False, True) for name in KERNELS]
    for plan in plans:
        assert fits(plan).score.evidence > evidence(plan, 100 * X, Y) - 1 / 80, plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shared_lengthscale_starts_from_separate_ones(dtype: torch.dtype) -> None:
    ranges = torch.tensor([1.0, 100.0, 0.01], dtype=dtype)
    X = torch.tensor([[0.0, 0, 0], [1, 1, 1], [0.5, 0.2, 0.1]], dtype=dtype) * ranges
    alike = {LENGTHSCALE: (0.3 * ranges).reshape(1, 3), "noise": ranges}
    found = _shared(alike, X)
    torch.testing.assert_close(found[LENGTHSCALE], torch.tensor([[0.3]], dtype=dtype))
    assert found["noise"] is ranges
    ignored = {LENGTHSCALE: (torch.tensor([0.3, 1e6, 1e6], dtype=dtype) * ranges).reshape(1, 3)}
    torch.testing.assert_close(_shared(ignored, X)[LENGTHSCALE], torch.tensor([[0.3 * 3**0.5]], dtype=dtype))
    for constant in (X * torch.tensor([1.0, 0, 1], dtype=dtype), X[:1]):  # one input is constant, or all are
        assert _shared(alike, constant)[LENGTHSCALE].isfinite().all()


def some(name: str, density: float, shared: bool = True) -> Fit:
    score = Score(Plan("exact", name, shared_lengthscale=shared), 10, density, 1.0, evidence=0.0)
    return Fit(score, torch.ones(10))


@pytest.mark.parametrize(
    ("densities", "tried"),
    [
        ((1.0, 2.0, 0.0, 0.0), ["matern52", "matern32", "rbf"]),  # both ways from the best of separate lengthscales
        ((1.0, 2.0, 3.0, 4.0), ["matern52", "matern32", "matern12"]),  # what is rougher is better: nothing smoother
        ((3.0, 2.0, 0.0, 9.0), ["matern52", "matern32", "rbf"]),
        ((9.0, -1.0, 9.0, 9.0), ["matern52"]),  # does not surpass separate lengthscales
    ],
)
def test_a_shared_lengthscale_is_tried_with_other_kernels_while_it_is_preferred(
    densities: tuple[float, ...], tried: list[str]
) -> None:
    table = {name: some(name, density) for name, density in zip(KERNELS, densities, strict=True)}
    made = []

    def fit(plan: Plan) -> Fit:
        made.append(plan.kernel)
        return table[plan.kernel]

    plans = [Plan("exact", name, shared_lengthscale=True) for name in KERNELS]
    found = while_preferred(fit, plans, some("matern52", 0.5, shared=False), 0.0)
    assert made == tried
    assert [each.score.plan.kernel for each in found] == tried


def test_cautious_noise_changes_scores_but_not_the_errors_compared_with_other_noise() -> None:
    X, Y = brownian(60)
    plan = Plan("exact", "matern52")
    bold, cautious = (KernelFits((X, Y, None), cautious=each)(plan) for each in (False, True))
    torch.testing.assert_close(cautious.errors, bold.errors)
    assert cautious.score.evidence == bold.score.evidence
    assert cautious.score.width > bold.score.width


def test_a_kernel_that_predicts_clearly_worse_is_not_chosen() -> None:
    fits = [
        Fit(Score(Plan("exact", name), rmse=rmse), torch.empty(120), torch.full((80,), rmse), places=120)
        for name, rmse in zip(KERNELS, (1.0, 1.09, 1.11, math.nan), strict=True)
    ]
    kept = not_clearly_worse(fits)
    assert [fit.score.plan.kernel for fit in kept] == ["rbf", "matern52"]
    assert not_clearly_worse([]) == []


def test_kernels_are_judged_by_further_rows_too() -> None:
    X, Y = rows(90, 2)
    data, others = (X[:40], 3 * Y[:40] + 7, None), (X[40:], 3 * Y[40:] + 7, None)
    plan = Plan("exact", "matern52", shared_lengthscale=True)
    alone, judged = (KernelFits(data, each)(plan) for each in (None, others))
    assert (alone.judged, judged.judged) == (40, 90)
    torch.testing.assert_close(judged.errors, alone.errors)  # those of rows that Student-t noise has too
    model = plan.build(*data)
    with_hyperparameters(model, judged.score.hyperparameters)
    posterior = model.eval().posterior(others[0], observation_noise=True)
    further = (others[1] - posterior.mean) / data[1].std()
    torch.testing.assert_close(judged.further, further, rtol=1e-3, atol=1e-3)
    assert judged.rmse == pytest.approx(torch.cat([alone.errors, further]).square().mean().sqrt().item(), rel=1e-3)
    assert judged.score.log_density == alone.score.log_density
    assert math.isnan(failed_fit(plan, ValueError()).rmse)


def test_predictions_that_are_not_finite_lose() -> None:
    score = scored(Plan("exact"), 3, torch.tensor([0.1, torch.nan]), torch.ones(2), 0.1)
    assert score.failure == "failed: predictions are not finite"
    assert score.log_density == -math.inf
