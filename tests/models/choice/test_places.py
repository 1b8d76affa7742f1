"""Places: predictions with all rows of a place left out, against dense matrices, and choices with replicates."""

from dataclasses import replace

import pytest
import torch
from chosen_rows import limits, rows
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from bo_scale import choose
from bo_scale.gp.student_t import log_density
from bo_scale.models.choice.choose import choose_plan
from bo_scale.models.choice.comparison import Comparison
from bo_scale.models.choice.places import left_out_places, places_of
from bo_scale.models.choice.plan import Plan
from bo_scale.models.fitting.exact import ExactGP


def replicates(places: int, each: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth function of two inputs at some places, measured several times at each."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(places, 2, generator=generator, dtype=torch.float64).repeat(each, 1)
    Y = (5 * X).sin().sum(-1, keepdim=True)
    return X, Y + noise * torch.randn(len(Y), 1, generator=generator, dtype=torch.float64)


def of_replicates() -> ExactGP:
    """An exact GP of 16 rows with different noise variances at six places, two of which have two rows."""
    X, Y = replicates(6, 3, noise=0.3)
    gp = ExactGP.of(Plan("exact", "matern32").build(X[:16], Y[:16]))
    gp.modules.likelihood.noise = 0.02
    return replace(gp, D=torch.rand(16, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5)


@torch.no_grad()
def by_dense_matrices(gp: ExactGP) -> tuple[Tensor, Tensor, float]:
    """Errors and variances of rows given those at other places, and their mean log density, place by place."""
    A = gp.modules.covar_module(gp.X).to_dense() + (0.02 * gp.D[:, 0]).diag()
    y, place = gp.Y[:, 0] - gp.modules.mean_module.constant, places_of(gp.X)[0]
    errors, variances, density = torch.empty_like(y), torch.empty_like(y), 0.0
    for p in range(6):
        own, others = (place == p).nonzero()[:, 0], (place != p).nonzero()[:, 0]
        gain = torch.linalg.solve(A[others][:, others], A[others][:, own])
        covariance = A[own][:, own] - A[own][:, others] @ gain
        errors[own], variances[own] = y[own] - gain.mT @ y[others], covariance.diagonal()
        density += MultivariateNormal(torch.zeros_like(errors[own]), covariance).log_prob(errors[own]).item()
    return errors, variances, density / len(y)


def test_rows_of_a_place_are_left_out_together() -> None:
    gp = of_replicates()
    left, (errors, variances, density) = left_out_places(gp), by_dense_matrices(gp)
    assert sorted(places_of(gp.X)[1].tolist()) == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(left.errors[:, 0], errors)
    torch.testing.assert_close(left.variances[:, 0], variances)
    torch.testing.assert_close(left.of_function, left.variances - 0.02 * gp.D)
    alone = Normal(0.0, left.variances.sqrt()).log_prob(left.errors).mean().item()
    assert alone + left.dependence == pytest.approx(density)


def test_student_t_noise_that_is_nearly_gaussian_has_the_density_of_gaussian_noise() -> None:
    gp = of_replicates()
    gp = replace(gp, D=torch.ones_like(gp.D))
    left = left_out_places(gp)
    alone = log_density(left.errors[:, 0], left.of_function[:, 0], 0.02, 200.0).mean().item()
    assert alone + left.dependence == pytest.approx(by_dense_matrices(gp)[2], abs=0.02)


def test_without_replicates_each_row_is_left_out() -> None:
    gp = ExactGP.of(Plan("exact", "matern32").build(*rows(20, 2)))
    left, (errors, variances) = left_out_places(gp), gp.left_out()
    assert left.errors is errors
    assert left.variances is variances
    assert left.dependence == 0.0
    torch.testing.assert_close(left.of_function + gp.noise_scale(), variances)


def test_a_table_given_twice_has_the_kernel_of_one() -> None:
    """A row is predicted by its twin with any kernel, and best by the roughest: the error was 25 times as large."""
    X, Y = replicates(40, 1, noise=0.0)
    unseen = replicates(300, 1, noise=0.0, seed=5)
    for data in ((X, Y), (X.repeat(2, 1), Y.repeat(2, 1))):
        model = choose(*data)
        assert model.choice.plan.kernel == "rbf"
        assert (model.posterior(unseen[0]).mean - unseen[1]).square().mean().sqrt() < 0.03


def test_replicates_have_the_kernel_of_their_means() -> None:
    X, Y = replicates(30, 8, noise=0.05)
    unseen, errors = replicates(300, 1, noise=0.0, seed=5), []
    means = Y.reshape(8, 30, 1).mean(0)
    for data in ((X, Y), (X[:30], means, torch.full_like(means, 0.05**2 / 8))):
        model = choose(*data)
        assert model.choice.plan.kernel != "matern12"
        errors.append((model.posterior(unseen[0]).mean - unseen[1]).square().mean().sqrt().item())
    assert errors[0] < 1.3 * errors[1] + 0.01


def test_further_rows_judge_kernels_at_other_places_only(monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, KERNEL_ROWS=20)
    X, Y = replicates(30, 4, noise=0.1)  # 20 of 30 places are compared
    comparison = Comparison((X, Y, None), ("rbf",), 0.0, streams=False)
    fit, best = comparison(torch.arange(len(X)))
    assert (best.places, len(best.further), best.judged) == (20, 10, 30)
    assert fit.others is not None
    assert torch.equal(fit.others[0], X[20:30])


def test_a_search_with_replicates_leaves_out_places_too() -> None:
    X, Y = replicates(25, 6, noise=0.05)
    assert choose_plan(X, Y, student_t=False, rougher=0.0, streams=True).plan.kernel != "matern12"
