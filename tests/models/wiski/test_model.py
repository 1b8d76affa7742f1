"""What is WISKI's own: the grid, its kernels, its interpolation error, streaming."""

import warnings

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import Warp
from cases import data
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from bo_scale import WISKI
from bo_scale.errors import GridError, InterpolationWarning, UnsupportedKernelError
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.models.shell.kernels import ProductMaternKernel
from bo_scale.models.wiski.grid_sizes import default_grid_size


def exact_gp(model: WISKI, X: Tensor, Y: Tensor) -> SingleTaskGP:
    """The exact GP with the very kernel, mean and noise of a WISKI without outcome transform."""
    gp = SingleTaskGP(
        X, Y, covar_module=model.covar_module, mean_module=model.mean_module, likelihood=model.likelihood,
        outcome_transform=None,
    )  # fmt: skip
    return gp.eval()


@pytest.mark.parametrize(
    ("d", "kernel", "grid_size", "tolerance"),
    [
        (1, RBFKernel(), 40, 1e-5),
        (1, MaternKernel(0.5), 400, 2e-2),
        (1, MaternKernel(1.5), 200, 1e-3),
        (1, PeriodicKernel(), 60, 6e-4),
        (1, SpectralMixtureKernel(num_mixtures=2, ard_num_dims=1), 40, 1e-3),
        (1, RBFKernel() + MaternKernel(2.5), 60, 1e-3),
        (2, ScaleKernel(RBFKernel(ard_num_dims=2)), 24, 1e-3),
        (2, MaternKernel(2.5, ard_num_dims=2), 30, 3e-3),
        (2, ScaleKernel(MaternKernel(1.5) * PeriodicKernel()), 30, 3e-2),
        (3, RBFKernel(ard_num_dims=3), 14, 1e-3),
        (3, MaternKernel(2.5), 14, 1e-2),
        (4, RBFKernel(ard_num_dims=4), 7, 3e-2),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Kernel) else str(v),
)
def test_a_fine_grid_gives_the_exact_gp_with_the_models_own_kernel(
    d: int, kernel: Kernel, grid_size: int, tolerance: float
) -> None:
    X, Y = data(30, d)
    for part in kernel.modules():
        if getattr(part, "has_lengthscale", False):
            part.lengthscale = 0.6
    model = WISKI(X, Y, grid_size=grid_size, covar_module=kernel, outcome_transform=None).eval()
    model.likelihood.noise = 0.05
    Xt = data(20, d, seed=1)[0]
    ours, exact = model.posterior(Xt), exact_gp(model, X, Y).posterior(Xt)
    torch.testing.assert_close(ours.mean, exact.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(ours.variance, exact.variance, rtol=0.05, atol=tolerance)


def test_the_covar_module_of_a_matern_is_the_product_and_shares_parameters() -> None:
    X, Y = data(10, 2)
    given = MaternKernel(2.5, ard_num_dims=2, lengthscale_prior=GammaPrior(3.0, 6.0))
    model = WISKI(X, Y, covar_module=ScaleKernel(given), grid_size=8)
    kernel = model.covar_module.base_kernel
    assert type(kernel) is ProductMaternKernel
    assert type(given) is MaternKernel
    assert kernel.raw_lengthscale is given.raw_lengthscale
    assert kernel.lengthscale_prior is given.lengthscale_prior


def test_kernels_without_factors_are_refused_by_name() -> None:
    X, Y = data(10, 2)
    for kernel, name in [
        (LinearKernel(), "LinearKernel"),
        (ScaleKernel(RBFKernel() + RBFKernel()), "AdditiveKernel"),
        (RBFKernel() + LinearKernel(), "LinearKernel"),
        (ScaleKernel(SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2)), "SpectralMixtureKernel"),
        (ProductKernel(RBFKernel(), LinearKernel()), "LinearKernel"),
    ]:
        with pytest.raises(UnsupportedKernelError, match=name):
            WISKI(X, Y, covar_module=kernel)


def test_sizes_dimensions_and_memory_are_refused_with_the_remedy() -> None:
    X, Y = data(10, 5)
    with pytest.raises(UnsupportedError, match=r"5 input dimensions.*GRIEF"):
        WISKI(X, Y)
    X, Y = X[:, :2], Y
    with pytest.raises(GridError, match=r"grid_size=\(300, 300\).*max_memory"):
        WISKI(X, Y, grid_size=300, max_memory=0.5)
    with pytest.raises(GridError, match="3 numbers for 2 dimensions"):
        WISKI(X, Y, grid_size=[10, 10, 10])
    with pytest.raises(GridError, match="bounds"):
        WISKI(X, Y, bounds=torch.rand(2, 3))
    with pytest.raises(GridError, match=r"rows .*Normalize"):
        WISKI(3 * X, Y, covar_module=RBFKernel())
    with pytest.raises(UnsupportedError, match="requires_grad_"):
        WISKI(X, Y, input_transform=Warp(d=2, indices=[0, 1]))


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_default_grid_depends_on_d_and_the_scale_of_n_only(d: int) -> None:
    X, Y = data(20, d)
    assert WISKI(X, Y).grid.size == (default_grid_size(d, 20),) * d
    assert default_grid_size(d, 20) == default_grid_size(d, 200) < default_grid_size(d, 10_000)


def test_bounds_in_raw_units_pass_through_the_input_transform() -> None:
    X, Y = data(20, 2)
    bounds = torch.tensor([[-5.0, 100.0], [20.0, 300.0]], dtype=torch.float64)
    raw = bounds[0] + (bounds[1] - bounds[0]) * X
    inner = WISKI(raw, Y, bounds=bounds, grid_size=(9, 7), input_transform=Normalize(2, bounds=bounds))
    assert inner.grid.lower == pytest.approx((0.0, 0.0))
    assert inner.grid.upper == pytest.approx((1.0, 1.0))
    assert inner.grid.size == (9, 7)
    outer = WISKI(raw, Y, bounds=bounds, grid_size=(9, 7), covar_module=RBFKernel(ard_num_dims=2))
    outer.covar_module.lengthscale = (bounds[1] - bounds[0]) * inner.covar_module.lengthscale.detach()
    Xt = bounds[0] + (bounds[1] - bounds[0]) * data(5, 2, seed=1)[0]
    torch.testing.assert_close(outer.posterior(Xt).mean, inner.posterior(Xt).mean)


def test_a_state_brings_its_grid_and_basis_along() -> None:
    (X, Y), Xt = data(20, 2), data(5, 2, seed=1)[0]
    source, target = WISKI(X, Y, grid_size=(9, 7), basis="keys"), WISKI(X, Y, grid_size=12)
    target.load_state_dict(source.state_dict())
    assert target.grid == source.grid
    torch.testing.assert_close(target.posterior(Xt).mean, source.posterior(Xt).mean)
    torch.testing.assert_close(target.posterior(Xt).variance, source.posterior(Xt).variance)


def rough(conservative: bool = False) -> WISKI:
    X, Y = data(40, 1)
    kernel = MaternKernel(0.5)
    kernel.lengthscale = 0.2
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.01
    return WISKI(
        X, Y, grid_size=10, covar_module=kernel, likelihood=likelihood, conservative=conservative,
        outcome_transform=None,
    )  # fmt: skip


def test_a_fit_on_a_coarse_grid_warns_with_the_size_of_the_error() -> None:
    model = rough()
    model.covar_module.raw_lengthscale.requires_grad_(False)
    model.likelihood.raw_noise.requires_grad_(False)
    with pytest.warns(InterpolationWarning, match=r"% of the noise variance with grid_size=\(10,\)"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    share = model.interpolation_error / model.likelihood.noise.detach()
    assert share > 0.01


def test_a_fit_on_a_fine_grid_says_nothing() -> None:
    X, Y = data(40, 2)
    model = WISKI(X, Y, grid_size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InterpolationWarning)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.grid.size == (20, 20)
    assert (model.interpolation_error < 0.01 * model.mean_noise).all()


def test_the_conservative_option_counts_the_error_in() -> None:
    plain, conservative = rough(), rough(conservative=True)
    X, Y = data(40, 1)
    Xt = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
    exact = exact_gp(plain, X, Y).posterior(Xt).variance
    low = (plain.posterior(Xt).variance / exact).min()
    assert low < 0.7
    assert (conservative.posterior(Xt).variance / exact).min() > low
    assert (conservative.posterior(Xt).variance >= plain.posterior(Xt).variance).all()
    noise, error = conservative.likelihood.noise.item(), conservative.interpolation_error.item()
    assert conservative.inference.noise.item() == pytest.approx(noise + error)


def test_the_spline_is_nearer_to_the_exact_gp_than_keys() -> None:
    """At two cells a lengthscale: the error in mean, in exact standard deviations."""
    (X, Y), Xt = data(40, 2), data(100, 2, seed=1)[0]
    errors = {}
    for basis in ("spline", "keys"):
        model = WISKI(X, Y, grid_size=12, covar_module=RBFKernel(), basis=basis, outcome_transform=None).eval()
        model.covar_module.lengthscale = 2 / 9
        model.likelihood.noise = 0.01
        exact = exact_gp(model, X, Y).posterior(Xt)
        errors[basis] = ((model.posterior(Xt).mean - exact.mean) / exact.variance.sqrt()).square().mean().sqrt()
    assert 2 * errors["spline"] < errors["keys"]


def test_many_streamed_observations_equal_one_batch() -> None:
    X, Y = data(300, 2)
    model, whole = WISKI(X[:20], Y[:20], grid_size=10), None
    model.posterior(X[:1])
    streamed = model
    for x, y in zip(X[20:].split(4), Y[20:].split(4), strict=True):
        streamed = streamed.condition_on_observations(x, y)  # type: ignore[assignment]
    whole = model.condition_on_observations(X[20:], Y[20:])
    Xt = data(20, 2, seed=1)[0]
    torch.testing.assert_close(streamed.posterior(Xt).mean, whole.posterior(Xt).mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(streamed.posterior(Xt).variance, whole.posterior(Xt).variance, rtol=1e-8, atol=1e-10)
    assert streamed.num_observations == whole.num_observations == 300
    assert torch.equal(streamed.train_inputs[0], X)
    assert isinstance(streamed.processes[0], WeightSpacePosterior)


def test_what_streaming_holds_does_not_grow_without_data() -> None:
    X, Y = data(40, 2)
    model = WISKI(X[:20], Y[:20], grid_size=8, keep_data=False)
    streamed = model.condition_on_observations(X[20:], Y[20:])
    assert streamed.train_inputs[0].shape == (0, 2)
    assert streamed.num_observations == 40
    kept = WISKI(X[:20], Y[:20], grid_size=8).condition_on_observations(X[20:], Y[20:])
    Xt = data(5, 2, seed=1)[0]
    torch.testing.assert_close(streamed.posterior(Xt).mean, kept.posterior(Xt).mean)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5, float("nan")])
def test_a_decay_is_above_0_and_at_most_1(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay={decay}"):
        WISKI(*data(5, 2), grid_size=8, decay=decay)


def test_with_decay_the_model_is_that_of_what_came_last() -> None:
    """A function that turned over: the sign of the mean, and how many observations count."""
    X, Y = data(400, 2)
    Y[200:] = -Y[200:]
    kept, forgetful = (WISKI(X, Y, grid_size=12, decay=decay, outcome_transform=None) for decay in (1.0, 0.97))
    errors = [(model.posterior(X[200:]).mean - Y[200:]).square().mean().sqrt() for model in (kept, forgetful)]
    assert errors[1] < 0.3 * errors[0]
    assert (kept.num_observations, forgetful.num_observations) == (400, 400)
    assert forgetful.statistics[0].effective_count.item() == pytest.approx(1 / 0.03, rel=1e-4)


def test_known_variances_are_averaged_as_their_observations_count() -> None:
    X, Y = data(6, 1)
    Yvar = torch.linspace(0.1, 0.6, 6).double().unsqueeze(-1)
    weights = torch.tensor([0.5**5, 0.5**4, 0.5**3, 0.5**2, 0.5, 1.0]).double()
    expected = (weights * Yvar[:, 0]).sum() / weights.sum()
    for kept in (True, False):
        model = WISKI(X, Y, Yvar, grid_size=12, decay=0.5, keep_data=kept, outcome_transform=None)
        assert model.mean_noise.item() == pytest.approx(expected.item())


def test_missing_variance_of_few_counts_what_is_not_forgotten() -> None:
    X, Y = data(60, 1)
    options = {"grid_size": 30, "missing_variance": "few"}
    assert WISKI(X, Y, **options).inference.extra_variance(X[:2], 0) is None
    assert WISKI(X, Y, decay=0.95, **options).inference.extra_variance(X[:2], 0) is not None
