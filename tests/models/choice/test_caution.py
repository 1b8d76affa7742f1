"""Cautious noise, compared with its equation and with predictions of left-out rows by dense matrices."""

import pytest
import torch
from torch import Tensor

from bo_scale.models.choice.caution import FEWEST_ROWS, PRIOR_ROWS, cautious_noise
from bo_scale.models.choice.plan import Plan
from bo_scale.models.fitting.exact import ExactGP


def exact(n: int, noise: float) -> tuple[ExactGP, Tensor]:
    """An exact GP at its initial hyperparameters, and errors of its rows as predicted from the others, one by one."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    model = Plan("exact", "matern32").build(X, torch.sin(5 * X[:, :1]))
    gp = ExactGP.of(model)
    gp.modules.likelihood.noise = noise
    with torch.no_grad():
        A = gp.modules.covar_module(gp.X).to_dense() + noise * torch.eye(n)
        y, errors = gp.Y[:, 0] - gp.modules.mean_module.constant, torch.empty(n).double()
        for i in range(n):
            others = [j for j in range(n) if j != i]
            errors[i] = y[i] - A[i, others] @ torch.linalg.solve(A[others][:, others], y[others])
    return gp, errors


@pytest.mark.parametrize(("n", "counts"), [(12, FEWEST_ROWS), (70, 70)])
def test_it_is_the_mean_of_squares_with_prior_rows(n: int, counts: int) -> None:
    gp, errors = exact(n, noise=1e-3)
    expected = (counts * 1e-3 + PRIOR_ROWS * errors.square().mean()) / (counts + PRIOR_ROWS)
    torch.testing.assert_close(cautious_noise(gp, n), expected.unsqueeze(0))


def test_the_prior_fades_as_rows_are_added_and_never_lowers_the_noise() -> None:
    gp, errors = exact(30, noise=1e-3)
    few, many = cautious_noise(gp, 100), cautious_noise(gp, 10_000)
    assert 1e-3 < many < few < errors.square().mean()
    noisy, errors = exact(30, noise=4.0)
    assert errors.square().mean() < 4.0
    torch.testing.assert_close(cautious_noise(noisy, 30), torch.tensor([4.0]).double())
