"""Principal axes and logarithmic scales of the inputs."""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import skew

from bo_scale import GRIEF, LogScales, PrincipalAxes
from bo_scale.errors import InvalidDataError
from bo_scale.models.inputs import _skewness


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


# ---------------------------------------------------------------------- logarithmic scales


def skewed(n: int = 400) -> torch.Tensor:
    """Inputs over decades, skewed to the left, even, normal, of two values, and constant."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(n, 6, generator=generator, dtype=torch.float64)
    normal = torch.randn(n, generator=generator, dtype=torch.float64)
    two = (u[:, 4] < 0.05).double()
    return torch.stack([10 ** (4 * u[:, 0]), u[:, 1].log(), u[:, 2], normal, two, u[:, 5] * 0], -1)


def test_skewed_inputs_alone_are_on_logarithmic_scales() -> None:
    X = skewed()
    transform = LogScales(X)
    assert transform.inputs == [0, 1]
    z = transform(X)
    assert torch.equal(z[:, 2:], X[:, 2:])
    torch.testing.assert_close(z.amin(0), X.amin(0))
    torch.testing.assert_close(z.amax(0), X.amax(0))
    correlation = torch.stack([z[:, 0], X[:, 0].log()]).corrcoef()[0, 1]
    assert correlation > 0.98
    assert transform.mirrored.tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize("decades", [2, 4, 6])
def test_values_spread_evenly_over_decades_are_spread_evenly(decades: int) -> None:
    u = torch.rand(500, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for X in (10 ** (decades * u), -(10 ** (-decades * u))):
        transform = LogScales(X)
        assert 10**-0.5 < transform.steepness.item() / 10**decades < 10**0.5
        z = (transform(X) - X.amin(0)) / (X.amax(0) - X.amin(0))
        assert (z.sort(0).values - u.sort(0).values).abs().max() < 0.12


def test_the_skewness_is_that_of_scipy() -> None:
    X = skewed()
    torch.testing.assert_close(_skewness(X)[:5], torch.from_numpy(skew(X[:, :5].numpy())))
    assert _skewness(X)[5] == 0


def test_scales_are_inverted_and_smooth_also_beyond_the_rows() -> None:
    X = skewed()
    transform = LogScales(X)
    lower, upper = X.amin(0), X.amax(0)
    lines = lower + (upper - lower + 1) * torch.linspace(-0.5, 1.5, 201, dtype=torch.float64).unsqueeze(-1)
    z = transform(lines)
    torch.testing.assert_close(transform.untransform(z), lines)
    assert (z.diff(dim=0) > 0).all()
    for end in (lower, upper):
        points = (end + torch.tensor([[-1e-9], [1e-9]]).double() * (upper - lower + 1)).requires_grad_()
        (slopes,) = torch.autograd.grad(transform(points).sum(), points)
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-2, atol=0)


def test_scales_do_not_depend_on_units() -> None:
    X = skewed()
    unit, offset = torch.tensor([1e-3, 1e4, 1, 7, 2, 3]).double(), torch.tensor([5.0, -1e5, 0, 1, 1, 1]).double()
    z = LogScales(X)(X)
    torch.testing.assert_close(LogScales(unit * X + offset)(unit * X + offset), unit * z + offset)
    torch.testing.assert_close(LogScales(-X)(-X), -z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows_have_scales_too(n: int, dtype: torch.dtype) -> None:
    X = skewed(n).to(dtype)
    transform = LogScales(X)
    assert transform(X).dtype == dtype
    torch.testing.assert_close(transform.untransform(transform(2 * X)), 2 * X, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("X", [torch.zeros(0, 2), torch.zeros(3)])
def test_what_is_no_table_has_no_scales(X: torch.Tensor) -> None:
    with pytest.raises(InvalidDataError, match="n × d"):
        LogScales(X)
    with pytest.raises(InvalidDataError, match="X: 6 columns, but the scales are of 2 inputs"):
        LogScales(torch.rand(5, 2))(skewed())
