"""Every model on a GPU: it says there what it says on the CPU, and may be moved at any time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import MODELS, data
from gpytorch.mlls import ExactMarginalLogLikelihood
from matching import assert_all_on, assert_matches
from torch import Tensor

from bo_scale import GRIEFBayes

Build = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")  # of float32


def built(build: Build, d: int, dtype: torch.dtype, device: Any = "cpu") -> Any:
    """A model of few rows."""
    X, Y = data(14, d)
    return build(X.to(device, dtype), Y.to(device, dtype)).eval()


def said(model: Any) -> dict[str, Tensor]:
    """What a model says before and after it was told more, with gradients of its loss and of a mean."""
    like = model.train_inputs[0]
    X, Xn, Yn = (values.to(like) for values in (data(3, like.shape[-1], seed=11)[0], *data(2, like.shape[-1], seed=12)))
    loss = model.compute_custom_loss(ExactMarginalLogLikelihood(model.likelihood, model))
    learned = [p for p in model.parameters() if p.requires_grad]
    found = {"loss": loss.detach(), "gradient": torch.cat([g.flatten() for g in torch.autograd.grad(loss, learned)])}
    more = model.eval().condition_on_observations(Xn, Yn)
    fantasies = model.condition_on_observations(Xn.expand(2, 2, -1), Yn.expand(2, 2, 1))
    for name, each in {"": model, "streamed ": more, "fantasies ": fantasies}.items():
        posterior = each.posterior(X, observation_noise=True)
        found |= {f"{name}mean": posterior.mean, f"{name}covariance": posterior.distribution.covariance_matrix}
    x = X[:1].clone().requires_grad_()
    found["slope"] = torch.autograd.grad(model.posterior(x).variance.sum(), x)[0]
    return {name: value.detach() for name, value in found.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("d", "build"), MODELS)
def test_a_model_says_the_same_on_every_device(d: int, build: Build, dtype: torch.dtype, gpu: torch.device) -> None:
    expected, model = said(built(build, d, dtype)), built(build, d, dtype, gpu)
    for name, value in said(model).items():
        assert_matches(value, expected[name], gpu, name)
    assert_all_on(model, gpu)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_whatever_a_model_holds_moves_with_it(d: int, build: Build, gpu: torch.device) -> None:
    """After it was evaluated, streamed to, given fantasies, or conditioned in batches; there and back."""
    X, Xn, Yn = data(5, d, seed=11)[0], *data(4, d, seed=12)
    model = built(build, d, torch.float64)
    start = model.posterior(X).mean
    streamed = model.condition_on_observations(Xn[:1], Yn[:1])
    every = {"streamed": streamed, "fantasies": model.condition_on_observations(Xn[:2].expand(3, 2, d), Yn[:2])}
    for name, each in {**every, "given": model}.items():
        expected = start if each is model else each.posterior(X).mean
        for device in (gpu, torch.device("cpu"), gpu):
            each = each.to(device)
            assert_matches(each.posterior(X.to(device)).mean, expected, device, name)
            assert_all_on(each, device)
    more = each.condition_on_observations(Xn[2:].to(gpu), Yn[2:].to(gpu))
    assert more.posterior(X.to(gpu)).variance.device == gpu


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_samples_of_hyperparameters_move_too(dtype: torch.dtype, gpu: torch.device) -> None:
    """Given fantasies, streamed to, or as it is; and samples may be drawn there, though others than on the CPU."""
    X, Y, Xn, Yn = (values.to(dtype) for values in (*data(20, 2), *data(2, 2, seed=12)))
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=dtype)
    options: dict[str, Any] = {"num_eigenfunctions": 12, "grid_points": 6, "num_samples": 4, "subset_size": 20}
    model, Z = GRIEFBayes(X, Y, bounds=bounds, **options).eval(), data(3, 2, seed=11)[0].to(dtype)
    model.posterior(Z)
    every = [
        model.condition_on_observations(Xn.expand(3, 2, 2), Yn),
        model.condition_on_observations(Xn, Yn),
        model,
    ]
    for each in every:
        expected = each.posterior(Z)
        found = each.to(gpu).posterior(Z.to(gpu))
        assert_matches(found.mean.detach(), expected.mean.detach(), gpu)
        assert_matches(found.variance.detach(), expected.variance.detach(), gpu)
        assert_all_on(each, gpu)
    there = GRIEFBayes(X.to(gpu), Y.to(gpu), bounds=bounds.to(gpu), **options).eval()
    assert there.posterior(Z.to(gpu)).variance.isfinite().all()
