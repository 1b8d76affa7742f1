"""The start of hyperparameters from an exact GP on some rows."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from cases import data
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import WISKI, CaGP
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.kernels import default_scaled_kernel


def wiski(X: Tensor, Y: Tensor, **options: Any) -> WISKI:
    return WISKI(X, Y, grid_size=8, **options)


def hyperparameters(model: Any) -> Tensor:
    values = {k: v.double() for k, v in model.state_dict().items() if "raw_" in k and "_constraint" not in k}
    return torch.cat([values[k].reshape(-1) for k in sorted(values)])


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize("m", [1, 2])
def test_with_all_rows_it_is_the_fit_of_botorch(m: int, known: bool) -> None:
    X, Y = data(25, 2, m)
    Yvar = 0.005 + 0.02 * X[:, :1].expand(25, m) if known else None
    bounds = torch.tensor([[0.0, 0.0], [2.0, 2.0]]).double()
    transform: Any = lambda: Normalize(2, bounds=bounds)  # noqa: E731
    model = wiski(2 * X, Y, train_Yvar=Yvar, input_transform=transform(), bounds=bounds)
    rows = X.clone(), Y.clone()
    start_from_subset(model, 1000, seed=3, optimizer_kwargs={"options": {"ftol": 1e-13, "gtol": 1e-9}})
    exact = SingleTaskGP(2 * X, Y, Yvar, input_transform=transform())
    precise = {"gtol": 1e-9, **({"ftol": 1e-13} if m == 1 else {"factr": 1e3})}  # BoTorch has two optimisers
    fit_gpytorch_mll(ExactMarginalLogLikelihood(exact.likelihood, exact), optimizer_kwargs={"options": precise})
    torch.testing.assert_close(hyperparameters(model), hyperparameters(exact), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.rows.X, 2 * rows[0])
    assert model.num_observations == 25


def test_the_rows_are_chosen_by_the_seed_and_nothing_else_is_random() -> None:
    X, Y = data(60, 2)
    found = []
    for seed, disturbance in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(disturbance)
        before = torch.random.get_rng_state()
        model = wiski(X, Y)
        start_from_subset(model, 12, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        found.append(hyperparameters(model))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], rtol=1e-3)


@pytest.mark.parametrize("m", [1, 2])
def test_float32_stays_float32_and_agrees(m: int) -> None:
    X, Y = data(40, 2, m)
    model = wiski(X, Y)
    with pytest.warns(InputDataWarning):
        single = wiski(X.float(), Y.float())
    for x in (model, single):
        start_from_subset(x, 20, seed=0)
    assert all(p.dtype == torch.float32 for p in single.parameters())
    torch.testing.assert_close(hyperparameters(single), hyperparameters(model), rtol=1e-2, atol=1e-2)


def test_what_requires_no_gradient_stays() -> None:
    X, Y = data(20, 2)
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=2))
    kernel.outputscale = 1.5
    kernel.raw_outputscale.requires_grad_(False)
    model = wiski(X, Y, covar_module=kernel, mean_module=ZeroMean())
    before = model.covar_module.base_kernel.lengthscale.detach().clone()
    start_from_subset(model, 20, seed=0)
    assert model.covar_module.outputscale.item() == pytest.approx(1.5)
    assert not torch.allclose(model.covar_module.base_kernel.lengthscale, before)


def test_the_optimizers_options_are_passed_on() -> None:
    X, Y = data(20, 2)
    models = [wiski(X, Y), wiski(X, Y)]
    before = hyperparameters(models[0])
    start_from_subset(models[0], 20, 0, {"options": {"maxiter": 1}})
    start_from_subset(models[1], 20, 0)
    assert not torch.equal(hyperparameters(models[0]), before)
    assert not torch.allclose(hyperparameters(models[0]), hyperparameters(models[1]), rtol=1e-3)


def test_a_model_without_rows_is_refused() -> None:
    X, Y = data(20, 2)
    with pytest.raises(UnsupportedError, match="keep_data=True"):
        start_from_subset(wiski(X, Y, keep_data=False), 10, 0)


@pytest.mark.parametrize("n", [30, 300])
def test_lengthscales_at_which_all_rows_look_independent_are_left(n: int) -> None:
    """Standardised inputs of d = 32: at BoTorch's start k(x, x') is 1e-10 for all pairs, and the evidence is flat."""
    torch.manual_seed(0)
    X = torch.randn(n, 32, dtype=torch.float64)
    kernel = default_scaled_kernel(32, torch.Size())  # as for inputs in the unit cube
    Y = torch.sin(X[:, :1]) + 0.5 * X[:, 1:2] + 0.1 * torch.randn(n, 1, dtype=torch.float64)
    model = CaGP(X, Y, num_actions=n, covar_module=kernel)
    start = model.covar_module.base_kernel.lengthscale.detach().clone()
    start_from_subset(model, n, seed=0)
    scales = model.covar_module.base_kernel.lengthscale.detach()
    assert scales.median() > 3 * start.max()
    if n == 300:
        assert model.likelihood.noise.item() < 0.1
        relevant = scales.squeeze().argsort()[:2].sort().values
        assert relevant.tolist() == [0, 1]


def test_a_constraint_on_lengthscales_holds_for_every_start() -> None:
    X, Y = data(20, 2)
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=2, lengthscale_constraint=Interval(0.01, 0.05)))
    model = wiski(1.0 * X, Y, covar_module=kernel)
    start_from_subset(model, 20, seed=0)
    scales = model.covar_module.base_kernel.lengthscale
    assert bool((scales >= 0.01).all() and (scales <= 0.05).all())


def test_noise_of_single_rows_counts() -> None:
    """Rows that came with a hundred times the learned noise hardly move the fit."""
    X, Y = data(30, 2)
    model = CaGP(X, Y, num_actions=100).eval()
    model.likelihood.noise = 0.05
    model.likelihood.raw_noise.requires_grad_(False)  # which the targets would be evidence of
    bad = model.with_rows(data(30, 2, seed=5)[0], 30 * torch.ones(30, 1).double(), torch.full((30, 1), 1e8).double())
    for each in (model, bad):
        start_from_subset(each, 100, seed=0)
    torch.testing.assert_close(hyperparameters(bad), hyperparameters(model), rtol=0.05, atol=0.01)
