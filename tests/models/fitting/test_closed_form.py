"""The closed form of an exact GP's loss: GPyTorch's value and gradient, and the same fits."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan, LessThan
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior
from torch import Tensor

from bo_scale import CaGP
from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.models.errors import FitError
from bo_scale.models.fitting.closed_form import ClosedForm, Vector
from bo_scale.models.fitting.evidence import searched_limits
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.shell.kernels import default_scaled_kernel

KERNELS = {"rbf": RBFKernel, "12": MaternKernel, "32": MaternKernel, "52": MaternKernel}
NU = {"12": 0.5, "32": 1.5, "52": 2.5}


def rows(n: int = 25, d: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    X = torch.rand(n, d, dtype=torch.float64, generator=generator)
    return X, (X.sin().sum(-1, keepdim=True) - 1 + 0.1 * torch.randn(n, 1, dtype=torch.float64, generator=generator))


def log_normal(mean: float, deviation: float) -> LogNormalPrior:
    return LogNormalPrior(*torch.tensor([mean, deviation], dtype=torch.float64))


def kernel_of(name: str, separate: bool, scaled: bool, priors: bool) -> Kernel:
    given: dict[str, Any] = {"nu": NU[name]} if name in NU else {}
    if priors:
        given["lengthscale_prior"] = log_normal(0.3, 1.2)
        given["lengthscale_constraint"] = GreaterThan(0.02, transform=None, initial_value=0.7)
    base = KERNELS[name](ard_num_dims=3 if separate else None, **given)
    return ScaleKernel(base, log_normal(0.1, 0.8) if priors else None) if scaled else base


def exact_gp(kernel: Kernel, *, known: bool = False, mean: Any = None, priors: bool = False, n: int = 25) -> ExactGP:
    X, Y = rows(n)
    D = 0.01 + 0.1 * X[:, :1] if known else torch.ones_like(Y)
    noise: dict[str, Any] = {"noise_prior": log_normal(-4.0, 1.0)} if priors else {}
    modules = SingleTaskGP(
        X,
        Y,
        D if known else None,
        likelihood=None if known else GaussianLikelihood(**noise),
        covar_module=kernel,
        mean_module=ConstantMean() if mean is None else mean,
        outcome_transform=None,
    ).double()
    return ExactGP(modules, X, Y, D, known)


def closed_form(exact: ExactGP) -> ClosedForm:
    found = exact.closed_form(slice(None))
    assert found is not None
    return found


def by_gpytorch(exact: ExactGP) -> tuple[float, Vector]:
    """GPyTorch's loss, and its gradient in what `lbfgs` searches."""
    modules = exact.modules.train()
    mll = ExactMarginalLogLikelihood(modules.likelihood, modules)
    loss = -mll(modules(*modules.train_inputs), modules.train_targets)
    limits = {name: (c.lower_bound, None) for name, _, c in mll.named_parameters_and_constraints() if c is not None}
    logarithmic = searched_limits(mll, limits)[1]
    learned = {name: p for name, p in mll.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(loss, list(learned.values()))
    both = zip(learned.items(), slopes, strict=True)
    return loss.item(), np.concatenate(
        [(g * p.detach() if name in logarithmic else g).reshape(-1).numpy() for (name, p), g in both]
    )


@pytest.mark.parametrize("priors", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_value_and_gradient_are_those_of_gpytorch(
    name: str, separate: bool, scaled: bool, known: bool, priors: bool
) -> None:
    mean = ZeroMean() if separate is scaled else ConstantMean()
    exact = exact_gp(kernel_of(name, separate, scaled, priors), known=known, mean=mean, priors=priors)
    closed, generator = closed_form(exact), np.random.default_rng(0)
    for _ in range(3):
        x = closed.present + 0.5 * generator.standard_normal(len(closed.present))
        value, gradient = closed(x)
        closed.set(x)
        np.testing.assert_allclose(closed.present, x, rtol=1e-12, atol=1e-12)
        expected, slopes = by_gpytorch(exact)
        assert value == pytest.approx(expected, rel=1e-8)
        assert value == pytest.approx(-exact.value_at(exact.state()), rel=1e-8)
        # Distances of near points, from differences of squares, keep half of their digits: it shows with Matérn-1/2.
        np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-7 * abs(slopes).max())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5, float("inf")])
def test_gradient_is_that_of_finite_differences(smoothness: float, shared: bool) -> None:
    X, Y = rows()
    kernel = default_scaled_kernel(3, torch.Size(), 5 * X, smoothness, shared).double()
    model = CaGP(5 * X, Y, covar_module=kernel)
    exact = ExactGP.of(model)
    closed = closed_form(ExactGP(exact.modules, exact.X, exact.Y, 0.5 + exact.X[:, :1], exact.known))
    x, h = closed.present + 0.1, 1e-5
    differences = [(closed(x + h * e)[0] - closed(x - h * e)[0]) / (2 * h) for e in np.eye(len(x))]
    np.testing.assert_allclose(closed(x)[1], differences, rtol=1e-5, atol=1e-8)


def test_what_does_not_learn_stays() -> None:
    exact = exact_gp(kernel_of("52", True, True, True), priors=True)
    exact.modules.likelihood.noise_covar.raw_noise.requires_grad_(False)
    before, closed = exact.modules.likelihood.noise.item(), closed_form(exact)
    assert closed(closed.present)[1] == pytest.approx(by_gpytorch(exact)[1], rel=1e-8)
    closed.minimise({"maxiter": 20})
    assert exact.modules.likelihood.noise.item() == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 40])
def test_a_fit_is_that_of_automatic_differentiation(n: int, dtype: torch.dtype) -> None:
    X, Y = rows(n)
    fits = [ExactGP.of(CaGP(X.to(dtype), Y.to(dtype))) for _ in range(2)]
    assert fits[0].closed_form(slice(None)) is not None
    fits[0].fit(slice(None), {"options": {"ftol": 1e-12}})
    fits[1].fit(slice(None), {"options": {"ftol": 1e-12}, "method": "L-BFGS-B"})
    states = [fit.state() for fit in fits]
    values = [fit.value_at(state) for fit, state in zip(fits, states, strict=True)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], rtol=1e-2, atol=1e-2), name


def other_prior() -> Kernel:
    return ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)))


def other_value() -> Kernel:
    kernel = RBFKernel()
    kernel.register_prior("squared", LogNormalPrior(0.0, 1.0), lambda m: m.lengthscale.square())
    return kernel


@pytest.mark.parametrize(
    "kernel",
    [
        ScaleKernel(PeriodicKernel()),
        RBFKernel() + RBFKernel(),
        ScaleKernel(ScaleKernel(RBFKernel())),
        RBFKernel(active_dims=(0, 1)),
        RBFKernel(lengthscale_constraint=LessThan(5.0)),
        other_prior(),
        other_value(),
    ],
    ids=["periodic", "sum", "scaled twice", "few inputs", "bounded above", "gamma prior", "prior of the square"],
)
def test_other_kernels_and_priors_have_none(kernel: Kernel) -> None:
    assert exact_gp(kernel).closed_form(slice(None)) is None


def test_other_means_and_several_outputs_have_none() -> None:
    assert exact_gp(RBFKernel(), mean=LinearMean(3)).closed_form(slice(None)) is None
    X, Y = rows()
    assert ExactGP.of(CaGP(X, torch.cat([Y, -Y], -1))).closed_form(slice(None)) is None


def test_a_gpu_has_none(gpu: torch.device) -> None:
    exact = exact_gp(RBFKernel())
    rows = (values.to(gpu) for values in (exact.X, exact.Y, exact.D))
    moved = ExactGP(exact.modules.to(gpu), *rows, exact.known)
    assert moved.closed_form(slice(None)) is None


@pytest.mark.parametrize("nowhere", [math.nan, math.inf, NotPositiveDefiniteError("no factor")])
def test_a_step_to_where_there_is_no_value_is_shortened(nowhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    met = list[float]()

    def partly(self: ClosedForm, x: Vector) -> tuple[float, Vector]:
        if x[0] > 0.1:
            met.append(x[0])
            if isinstance(nowhere, Exception):
                raise nowhere
            return nowhere, np.full_like(x, nowhere)
        return -x[0] - 0.1 * math.log1p(-8 * x[0]), np.array([-1 + 0.8 / (1 - 8 * x[0])])

    monkeypatch.setattr(ClosedForm, "__call__", partly)
    monkeypatch.setattr(ClosedForm, "present", property(lambda self: np.array([-3.0])))
    monkeypatch.setattr(ClosedForm, "set", lambda self, x: None)
    closed = closed_form(exact_gp(kernel_of("52", True, True, True), priors=True))
    found = replace(closed, bounds=None).minimise({})
    assert met
    assert found.fval == pytest.approx(-0.025 - 0.1 * math.log(0.8), abs=1e-4)


def test_a_start_without_a_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(self: ClosedForm, x: Vector) -> tuple[float, Vector]:
        raise NotPositiveDefiniteError("no factor")

    monkeypatch.setattr(ClosedForm, "__call__", nowhere)
    exact = exact_gp(kernel_of("52", True, True, True), priors=True)
    with pytest.raises(FitError, match="no factor"):
        exact.fit(slice(None), {})
