"""Variances that errors of left-out rows scale, against formulas, rows left out one by one and dense conditioning."""

from dataclasses import replace

import pytest
import torch
from cases import SmoothKernel, data, rand, randn
from torch import Tensor

from bo_scale.gp.conditioning import condition
from bo_scale.gp.function_space import scaled_by_errors as module
from bo_scale.gp.function_space.actions import BlockActions, Blocks, Projected
from bo_scale.gp.function_space.exact_evidence import leave_one_out
from bo_scale.gp.function_space.local_scale import LocalScale, local_scale
from bo_scale.gp.function_space.process import Function, FunctionSpacePosterior, Radial
from bo_scale.gp.function_space.scaled_by_errors import scaled_by_errors

Z = rand(5, 2, seed=9)
ONE = torch.ones(1, dtype=torch.float64)


class RadialKernel(SmoothKernel):
    """The kernel of the tests, which says its lengthscales."""

    def radial(self) -> Radial:
        return Radial(ONE[0], torch.tensor([0.5, 2.0]).double(), lambda squares, slope: (squares, None))


def exact(n: int = 30, kernel: SmoothKernel | None = None) -> tuple[FunctionSpacePosterior, Tensor, Tensor, Tensor]:
    """An exact GP of rows with noise variances, as CaGP makes it."""
    X, Y = data(n, 2)
    y, noise, kernel = Y[:, 0] - 0.3, 0.01 + 0.1 * rand(n, seed=3), kernel or RadialKernel()
    actions = BlockActions.of(X, torch.ones(n).double(), noise, Blocks.single(n))
    projected = Projected.of(kernel, X, y, actions)
    process = FunctionSpacePosterior(kernel, 0.3 * ONE[0], actions, projected.factor, projected.innovation)
    return process, X, y, noise


def scaled() -> FunctionSpacePosterior:
    """An exact GP with variances that differ by places."""
    process, X, _, _ = exact()
    local = LocalScale(X / 0.3, 0.02 + 60 * (X[:, 0] - 0.2).square(), torch.full((2,), 0.3).double(), 0.1 * ONE[0])
    assert local(Z).amax() > 1.5 * local(Z).amin()
    return replace(process, local=local)


def test_the_factor_is_the_weighted_mean_of_squares_and_one_far_away() -> None:
    X, squares, units = rand(7, 2), rand(7, seed=2), torch.tensor([0.2, 0.5]).double()
    local = LocalScale(X / units, squares, units, 3 * ONE[0])
    for z in Z:
        weights = torch.exp(-0.5 * ((z - X) / units).square().sum(-1))
        torch.testing.assert_close(local(z[None])[0], (3 + weights @ squares) / (3 + weights.sum()))
    assert local(Z + 100.0).eq(1.0).all()
    assert local(Z.expand(3, 5, 2)).shape == (3, 5)
    others = torch.arange(7) != 2
    without = LocalScale(X[others] / units, squares[others], units, 3 * ONE[0])
    torch.testing.assert_close(local.left_out(X)[2], without(X)[2])


def test_its_gradient_is_that_of_finite_differences() -> None:
    local = scaled().local
    assert local is not None
    assert torch.autograd.gradcheck(local, (Z.clone().requires_grad_(),))
    at_rows = (local.points[:3] * local.units).requires_grad_()
    assert torch.autograd.grad(local(at_rows).sum(), at_rows)[0].isfinite().all()


def test_squares_that_differ_by_places_are_found_and_others_are_not() -> None:
    X, one = rand(300, 2), torch.tensor([0.5]).double()
    chi = randn(300, seed=1).square()
    assert local_scale(X, one, chi) is None
    found = local_scale(X, one, torch.where(X[:, 0] < 0.5, 0.01, 4.0) * chi)
    assert found is not None
    left, right = (found(torch.tensor([[x, 0.5]]).double()).item() for x in (0.2, 0.8))
    assert left < 0.3
    assert 2 < right < 8


def test_rows_at_one_place_and_single_gross_errors_do_no_harm() -> None:
    one = torch.tensor([0.5]).double()
    assert local_scale(torch.zeros(250, 2).double(), one, 0.01 * torch.ones(250).double()) is None
    X, squares = rand(250, 2), randn(250, seed=1).square()
    squares[7] = 1e12
    found = local_scale(X, one, squares)
    assert found is None or found(X).amax() < 5


def test_left_out_squares_are_those_of_the_exact_gp() -> None:
    process, X, y, noise = exact()
    errors, variances = leave_one_out(process.kernel, X, y, noise)
    rows = torch.tensor([3, 17, 29])
    squares = module._left_out_squares(process, rows)
    torch.testing.assert_close(squares, (errors.square() / variances)[rows])


def test_a_posterior_is_scaled_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "local_scale", lambda X, lengthscales, squares: scaled().local)
    process = exact()[0]
    assert scaled_by_errors(process).local is None  # few rows
    monkeypatch.setattr(module, "FEWEST", 30)
    assert scaled_by_errors(process).local is not None
    assert scaled_by_errors(exact(kernel=SmoothKernel())[0]).local is None  # no lengthscales
    X, noise = rand(40, 2), torch.ones(40).double()
    pairs = BlockActions.of(X, torch.ones(40).double(), noise, Blocks.of(torch.arange(40) % 30))
    assert scaled_by_errors(replace(process, basis=pairs)).local is None


def test_deviations_are_scaled_and_the_mean_is_not() -> None:
    process = scaled()
    plain = replace(process, local=None)
    assert process.local is not None
    root = process.local(Z).sqrt()
    torch.testing.assert_close(process.mean(Z), plain.mean(Z))
    expected = root.unsqueeze(-1) * plain.covariance(Z) * root
    torch.testing.assert_close(process.covariance(Z), expected)
    torch.testing.assert_close(process.variance(Z), expected.diagonal())
    joined = process.locate(Z[:2]).join(process.locate(Z[2:]))
    torch.testing.assert_close(joined.covariance(joined), expected)


def test_conditioning_is_that_of_the_scaled_gaussian() -> None:
    process, new = scaled(), rand(3, 2, seed=5)
    y, noise = randn(3), torch.tensor([0.1, 0.2, 0.3]).double()
    once = condition(process, new[:2], y[:2], noise[:2]).extended(new[2:], y[2:], noise[2:])
    gain = torch.linalg.solve(process.covariance(new) + noise.diag(), process.covariance(new, Z)).mT
    torch.testing.assert_close(once.mean(Z), process.mean(Z) + gain @ (y - process.mean(new)))
    torch.testing.assert_close(once.covariance(Z), process.covariance(Z) - gain @ process.covariance(new, Z))
    restored = type(once).restored(process, once.state())
    assert torch.equal(restored.mean(Z), once.mean(Z))
    assert torch.equal(restored.variance(Z), once.variance(Z))


def test_drawn_functions_have_its_moments() -> None:
    process, count = scaled(), 20000
    at = torch.cat([exact()[1], Z])
    L = torch.linalg.cholesky(process.kernel(at, at) + 1e-9 * torch.eye(len(at)).double())
    values = randn(count, len(at)) @ L.mT

    def prior(shape: torch.Size) -> Function:
        return lambda X: values[:, torch.cdist(X, at).argmin(-1)]

    drawn = process.draw(prior, torch.Size([count]), torch.Generator().manual_seed(0))(Z)
    torch.testing.assert_close(drawn.mean(0), process.mean(Z), rtol=0, atol=0.05 * process.variance(Z).max() ** 0.5)
    deviation = process.variance(Z).sqrt()
    correlation = (drawn.mT.cov() - process.covariance(Z)) / (deviation * deviation.unsqueeze(-1))
    assert correlation.abs().amax() < 0.05
