"""Principal axes of the inputs."""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import GRIEF, PrincipalAxes
from bo_scale.errors import InvalidDataError


def correlated(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    mixed = base @ torch.tensor([[1.0, 1.0, 0.5], [0.05, -0.05, 0.1]]).double()
    return 100 * mixed + 3


def test_each_axis_has_unit_variance_and_no_correlation() -> None:
    X = correlated(400)
    transform = PrincipalAxes(X)
    z = transform(X)
    covariance = z.mT.cov(correction=0)
    torch.testing.assert_close(covariance[1:, 1:], torch.eye(2).double(), rtol=1e-6, atol=1e-6)
    assert covariance[0, 0] < 1e-12  # a direction in which nothing varies
    torch.testing.assert_close(transform.untransform(z), X, rtol=1e-6, atol=1e-4)


def test_a_direction_in_which_nothing_varied_still_tells_points_apart() -> None:
    X = correlated(50)
    X[:, 2] = 5.0
    transform = PrincipalAxes(X)
    moved = X[:1].clone()
    moved[0, 2] = 8.0
    assert (transform(moved) - transform(X[:1])).norm() > 1


@pytest.mark.parametrize("X", [torch.zeros(0, 2), torch.zeros(3)])
def test_what_is_no_table_is_refused(X: torch.Tensor) -> None:
    with pytest.raises(InvalidDataError, match="n × d"):
        PrincipalAxes(X)


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of the plain inputs
def test_correlated_inputs_of_grief() -> None:
    """Few eigenfunctions of a grid over both inputs lie where the rows are; rotated, all do."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(300, 1, generator=generator, dtype=torch.float64)
    X = u + 0.01 * torch.randn(300, 6, generator=generator, dtype=torch.float64)
    Y = torch.sin(20 * u)
    errors = {}
    for name, transform in (("plain", None), ("rotated", PrincipalAxes(X[:250]))):
        model = GRIEF(X[:250], Y[:250], num_eigenfunctions=60, input_transform=transform)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        errors[name] = (model.posterior(X[250:]).mean - Y[250:]).square().mean().sqrt().item()
    assert errors["rotated"] < 0.5 * errors["plain"]


@pytest.mark.parametrize("n", [1, 5])
def test_rows_that_do_not_vary_leave_the_axes_as_they_are(n: int) -> None:
    X = torch.tensor([[3.0, 1e4]]).double().expand(n, 2)
    transform = PrincipalAxes(X)
    assert transform(X).abs().max() < 1e-9
    torch.testing.assert_close(transform(X[:1] + 1.0).norm().item(), 2**0.5)
