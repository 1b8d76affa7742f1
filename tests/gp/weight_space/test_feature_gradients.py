"""Gradients by two passes over the rows, against autograd through everything at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import data, grief, projected_wiski, softki
from gpytorch.mlls import ExactMarginalLogLikelihood
from pairwise import pairwise
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale.gp.weight_space.features.eigenfunctions import EigenfunctionFeatures
from bo_scale.gp.weight_space.features.projection import ProjectedFeatures
from bo_scale.gp.weight_space.features.softmax import SoftmaxFeatures
from bo_scale.models.fitting.evidence import loss_of
from bo_scale.models.shell.weight_space import few_rows

Build = Callable[..., Any]

MODELS = [
    pytest.param(projected_wiski, id="WISKI-projected"),
    pytest.param(softki, id="SoftKI"),
    pytest.param(lambda X, Y, **kw: softki(X, Y, learn_temperature=True, **kw), id="SoftKI-temperature"),
    pytest.param(lambda X, Y, **kw: grief(X, Y, learn_kernel=True, **kw), id="GRIEF"),
    pytest.param(lambda X, Y, **kw: grief(X, Y, learn_kernel=True, weights="type2", **kw), id="GRIEF-weights"),
]
NOISES = ["learned", "shared", "unequal"]


def model_and_mll(build: Build, m: int, noise: str, n: int = 25) -> tuple[Any, ExactMarginalLogLikelihood]:
    """More rows than a quarter of the features: n × n matrices would need no second pass."""
    X, Y = data(n, 2, m)
    Yvar = {
        "learned": None,
        "shared": (0.02 + 0.1 * X[:, :1]).expand(n, m),
        "unequal": 0.02 + 0.1 * Y.abs(),
    }[noise]
    model = build(X, 3 + 5 * Y, train_Yvar=Yvar)
    assert few_rows(model) is None
    with torch.no_grad():
        for i, p in enumerate(model.likelihood.parameters()):
            p.add_(0.01 * (i + 1))
    return model, ExactMarginalLogLikelihood(model.likelihood, model).train()


def learned(model: Any) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def dense_loss(model: Any, mll: ExactMarginalLogLikelihood) -> Tensor:
    """−(log N(y; μ, ΦSΦᵀ + σ²D) + log priors)/n, with one graph through all of it."""
    (X, Y, D), noise, constants = model._transformed_rows(), model._noise_scale(), model._constants()
    evidence = []
    for j in range(Y.shape[-1]):
        K = model._feature_map(j).prior_covariance(X) + noise[j] * torch.diag(D[:, j])
        evidence.append(MultivariateNormal(constants[j].expand(len(X)), K).log_prob(Y[:, j]))
    return loss_of(model, mll, torch.stack(evidence))


@pytest.mark.parametrize(("build", "m", "noise"), pairwise(MODELS, [1, 2], NOISES))
def test_the_gradient_of_the_loss_is_autograd_through_everything_at_once(build: Build, m: int, noise: str) -> None:
    model, mll = model_and_mll(build, m, noise)
    named = learned(model)
    losses = model.compute_custom_loss(mll), dense_loss(model, mll)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(loss, list(named.values())) for loss in losses]
    for name, a, b in zip(named, *gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8, msg=name)
        assert a.abs().max() > 1e-6, name


@pytest.mark.parametrize("build", MODELS)
def test_the_gradient_of_the_loss_equals_finite_differences(build: Build) -> None:
    """Along one random direction in every parameter."""
    model, mll = model_and_mll(build, 2, "learned")
    named = learned(model)
    gradients = torch.autograd.grad(model.compute_custom_loss(mll), list(named.values()))
    for (name, p), gradient in zip(named.items(), gradients, strict=True):
        direction, kept, step, values = torch.randn_like(p), p.detach().clone(), 1e-5, []
        for sign in (1, -1):
            with torch.no_grad():
                p.copy_(kept + sign * step * direction)
            values.append(model.compute_custom_loss(mll).item())
        with torch.no_grad():
            p.copy_(kept)
        difference = (values[0] - values[1]) / (2 * step)
        assert (gradient * direction).sum().item() == pytest.approx(difference, rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize(("noise", "chunk"), [("learned", 3), ("unequal", 13)])
@pytest.mark.parametrize("build", MODELS)
def test_chunks_of_rows_make_the_same_gradient(
    build: Build, noise: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = []
    for small in (False, True):
        if small:
            for features in (SoftmaxFeatures, EigenfunctionFeatures, ProjectedFeatures):
                monkeypatch.setattr(features, "chunk_size", lambda self: chunk)
        model, mll = model_and_mll(build, 2, noise)
        gradients.append(torch.autograd.grad(model.compute_custom_loss(mll), list(learned(model).values())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "build", [softki, lambda X, Y, **kw: grief(X, Y, learn_kernel=True, **kw)], ids=["SoftKI", "GRIEF"]
)
def test_gradients_follow_the_parameters_and_the_rows(build: Build) -> None:
    """Statistics of earlier values, or of fewer rows, are not taken for those of now."""
    model, mll = model_and_mll(build, 1, "learned")
    model.compute_custom_loss(mll).backward()
    with torch.no_grad():
        for p in model._feature_parameters():
            p.mul_(1.1)
    X, Y = data(9, 2, seed=3)
    model = model.eval().condition_on_observations(X, Y).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    named = learned(model)
    gradients = [
        torch.autograd.grad(loss, list(named.values()))
        for loss in (model.compute_custom_loss(mll), dense_loss(model, mll))
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_a_gradient_in_the_features_needs_rows() -> None:
    model = softki(*data(25, 2), keep_data=False).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    named = learned(model)
    assert not any("interpolation" in name or "temperature" in name for name in named)
    gradients = torch.autograd.grad(model.compute_custom_loss(mll), list(named.values()))
    whole = softki(*data(25, 2)).train()
    reference = torch.autograd.grad(
        whole.compute_custom_loss(ExactMarginalLogLikelihood(whole.likelihood, whole)),
        [p for name, p in learned(whole).items() if name in named],
    )
    for a, b in zip(gradients, reference, strict=True):
        torch.testing.assert_close(a, b)
