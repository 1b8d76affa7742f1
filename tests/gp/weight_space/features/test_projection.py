"""Projections: the batch norm in closed form, the directions they start from, and features of what they give."""

from typing import Any

import pytest
import torch
from cases import data
from torch import Tensor
from torch.autograd import gradcheck

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Grid
from bo_scale.gp.weight_space.features.projection import LinearProjection, ProjectedFeatures, in_double
from bo_scale.gp.weight_space.features.sums import SumFeatures


def inputs(n: int = 60, d: int = 4) -> Tensor:
    """Correlated columns of unequal spread."""
    X = data(n, d)[0]
    X[:, 1] += X[:, 0]
    return X * torch.logspace(-2, 3, d, dtype=torch.float64)


def norm_of(X: Tensor, projection: LinearProjection) -> torch.nn.Sequential:
    """The paper's layers, with torch's batch norm over all rows at once."""
    k, d = projection.weight.shape
    linear, norm = torch.nn.Linear(d, k).double(), torch.nn.BatchNorm1d(k, eps=1e-16).double().train()
    with torch.no_grad():
        linear.weight.copy_(projection.weight / projection.scale)
        norm.weight.copy_(projection.gain)
        norm.bias.copy_(projection.bias)
    return torch.nn.Sequential(linear, norm, torch.nn.Tanh())


def test_a_linear_projection_is_linear_batch_norm_and_tanh_over_all_rows() -> None:
    X = inputs()
    projection = LinearProjection(4, 2, torch.randn(2, 4)).for_data(X, X[:, :1])
    with torch.no_grad():
        projection.gain.copy_(torch.tensor([0.7, 1.9]))
        projection.bias.copy_(torch.tensor([0.3, -0.4]))
        projection.weight.mul_(3.0).add_(0.2)  # still normalised: the moments are of the inputs
    layers = norm_of(X, projection)
    torch.testing.assert_close(projection(X), layers(X), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(projection(X[:7]), layers(X)[:7], rtol=1e-9, atol=1e-9)
    values = X.square().sin()[:, :2]
    ours = torch.autograd.grad((projection(X) * values).sum(), list(projection.parameters()))
    theirs = torch.autograd.grad((layers(X) * values).sum(), list(layers.parameters()))
    torch.testing.assert_close(ours[0], theirs[0] / projection.scale, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(ours[1], theirs[2], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(ours[2], theirs[3], rtol=1e-6, atol=1e-8)


def test_gradients_of_projected_features_are_finite_differences() -> None:
    X, Y = data(8, 3)
    projection = LinearProjection(3, 2).for_data(X, Y)
    base = GridFeatures(Grid((-1.0, -1.0), (1.0, 1.0), (7, 6)), lambda U, V: [])
    values = torch.randn(8, 42, dtype=torch.float64)

    def total(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(dict(projection.named_parameters()), parameters, strict=True))
        phi = ProjectedFeatures(base, lambda z: torch.func.functional_call(projection, named, (z,)))
        return (phi(x).to_dense() * values).sum()

    learned = [p.detach().clone().requires_grad_() for p in projection.parameters()]
    assert gradcheck(total, (X.requires_grad_(), *learned))


def test_constant_columns_and_equal_rows_are_no_trouble() -> None:
    X, Y = data(20, 3)
    X[:, 1] = 5.0
    found = LinearProjection(3, 2).for_data(X, Y)
    assert found(X).isfinite().all()
    same = LinearProjection(3, 2).for_data(X[:1].expand(5, 3), Y[:5])
    assert same(X).isfinite().all()
    for n in (0, 1):
        assert LinearProjection(3, 2).for_data(X[:n], Y[:n])(X).isfinite().all()


def test_adopting_leaves_the_projection_given_and_keeps_directions_that_it_has() -> None:
    X, Y = data(30, 3)
    given = LinearProjection(3, 2)
    before = {name: value.clone() for name, value in given.state_dict().items()}
    found = given.for_data(X, Y)
    assert all(torch.equal(before[name], value) for name, value in given.state_dict().items())
    again = found.for_data(X[:10], -Y[:10])
    torch.testing.assert_close(again.weight, found.weight)
    torch.testing.assert_close(again.mean, X[:10].mean(0))
    fixed = LinearProjection(3, 2).requires_grad_(False).float().for_data(X, Y)
    assert not fixed.weight.requires_grad
    assert fixed.weight.dtype == fixed.correlation.dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    X, Y = data(5, 3)
    with pytest.raises(InvalidDataError, match="takes 4 inputs"):
        LinearProjection(4, 2).for_data(X, Y)
    with pytest.raises(InvalidDataError, match="at least 1"):
        LinearProjection(0, 2)
    with pytest.raises(InvalidDataError, match="k × d"):
        LinearProjection(3, 2, torch.ones(3, 2))


def test_modules_are_called_in_double_frozen_or_not() -> None:
    module, X = torch.nn.Linear(3, 2), data(4, 3)[0]
    frozen, live = in_double(module, frozen=True), in_double(module, frozen=False)
    kept = frozen(X)
    assert kept.dtype == torch.float64
    assert not kept.requires_grad
    torch.testing.assert_close(live(X), kept)
    live(X).sum().backward()
    assert module.weight.grad is not None
    with torch.no_grad():
        module.weight.add_(1.0)
    torch.testing.assert_close(frozen(X), kept)


@pytest.mark.parametrize("method", ["prior_variance", "kernel_variance", "missing_variance", "prior_covariance"])
def test_everything_is_asked_of_the_features_below(method: str) -> None:
    X, Y = data(6, 3)
    h = in_double(LinearProjection(3, 2).for_data(X, Y), frozen=True)

    def factors(U: list[Tensor], V: list[Tensor]) -> list[Tensor]:
        return [torch.exp(-0.5 * (u.unsqueeze(-1) - v).square()) for u, v in zip(U, V)]

    grids = [GridFeatures(Grid((-1.0, -1.0), (1.0, 1.0), size), factors) for size in ((6, 5), (7, 7))]
    base: Any = SumFeatures(tuple(grids))
    phi = ProjectedFeatures(base, h)
    torch.testing.assert_close(getattr(phi, method)(X), getattr(base, method)(h(X)))
    root = grids[0].prior_root()
    torch.testing.assert_close(ProjectedFeatures(grids[0], h).whitened(root)(X), grids[0].whitened(root)(h(X)))
    assert phi.num_features == base.num_features
    assert phi.chunk_size() == base.chunk_size()
