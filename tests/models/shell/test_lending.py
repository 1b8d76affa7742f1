"""A model that was conditioned borrows modules until somebody looks: nobody can tell."""

import copy
import gc
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from cases import MODELS, data
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import GRIEF
from bo_scale.models.shell.lending import borrows

KINDS = ("WISKI-2d", "WISKI-projected", "SoftKI-2d", "GRIEF-2d", "CaGP-1d", "Decoupled-2d")
ALL = pytest.mark.parametrize(("d", "build"), [each for each in MODELS if each.id in KINDS])


def told(build: Any, d: int, **options: Any) -> tuple[Any, Any, Tensor]:
    """A model, one conditioned from it, and points."""
    (X, Y), (x, y), (Z, _) = data(20, d), data(1, d, seed=3), data(4, d, seed=5)
    model = build(X, Y, **options).eval()
    model.posterior(Z)
    return model, model.condition_on_observations(x, y), Z


def moments(model: Any, Z: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        found = model.posterior(Z)
        return found.mean, found.variance


def assert_same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], **tolerance: float) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@ALL
def test_a_look_changes_nothing(d: int, build: Any) -> None:
    _, child, Z = told(build, d)
    before = moments(child, Z)
    hyperparameters = {name: p.detach().clone() for name, p in child.named_parameters()}
    assert not borrows(child)
    assert_same(moments(child, Z), before)
    again = {name: p.detach() for name, p in child.named_parameters()}
    assert hyperparameters.keys() == again.keys()
    assert all(torch.equal(hyperparameters[name], again[name]) for name in again)


@ALL
def test_changes_of_the_lender_are_its_own(d: int, build: Any) -> None:
    model, child, Z = told(build, d)
    before = moments(child, Z)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * p.abs().clamp_min(0.1))
    assert_same(moments(child, Z), before)
    values = [p.detach().clone() for p in child.parameters()]
    assert not any(
        torch.equal(a, b) for a, b in zip(values, model.parameters(), strict=True) if b.numel() > 0 and b.requires_grad
    )
    assert_same(moments(child, Z), before, rtol=1e-6, atol=1e-9)


@ALL
def test_changes_of_the_borrower_are_its_own(d: int, build: Any) -> None:
    model, child, Z = told(build, d)
    before = moments(model, Z)
    with torch.no_grad():
        child.covar_module.initialize(**{})
        for p in child.parameters():
            p.add_(0.3 * p.abs().clamp_min(0.1))
    assert_same(moments(model, Z), before)


@pytest.mark.parametrize("change", ["double", "load", "module", "train"])
def test_a_lender_that_changes_lets_borrowers_copy_first(change: str) -> None:
    d, build = MODELS[0].values if hasattr(MODELS[0], "values") else MODELS[0]
    box = torch.stack([torch.zeros(d, dtype=torch.float64), 2 * torch.ones(d, dtype=torch.float64)])
    model, child, Z = told(build, d, input_transform=Normalize(d, bounds=box))
    before = moments(child, Z)
    other = build(*data(20, d, seed=9), input_transform=Normalize(d, bounds=box))
    if change == "double":
        model.float()
    elif change == "load":
        model.load_state_dict(other.state_dict(), keep_transforms=False)
    elif change == "module":
        model.covar_module = other.covar_module
    else:
        model.train()
    assert_same(moments(child, Z), before)
    assert next(iter(child.parameters())).dtype == torch.float64
    assert not child.likelihood.training
    assert_same(moments(child, Z), before)


def test_a_buffer_that_is_set_is_set_on_the_borrower_alone() -> None:
    model, child, Z = told(lambda X, Y: GRIEF(X, Y, num_eigenfunctions=20), 2)
    nodes = model.nodes.clone()
    child.nodes = nodes + 0.1
    assert torch.equal(model.nodes, nodes)
    assert torch.equal(child.state_dict()["nodes"], nodes + 0.1)
    assert (moments(child, Z)[0] - moments(model, Z)[0]).abs().max() > 1e-6


@ALL
def test_a_fit_of_the_lender_is_its_own(d: int, build: Any) -> None:
    model, child, Z = told(build, d)
    before = moments(child, Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 2}}
        )
    assert_same(moments(child, Z), before)
    _ = child.covar_module
    assert_same(moments(child, Z), before, rtol=1e-6, atol=1e-9)


@ALL
def test_a_borrower_outlives_its_lender(d: int, build: Any) -> None:
    model, child, Z = told(build, d)
    before, gone = moments(child, Z), weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(list(child.parameters())) > 0
    assert_same(moments(child, Z), before)


@ALL
def test_copies_and_pickles_of_a_borrower_are_whole(d: int, build: Any) -> None:
    model, _, Z = told(build, d)
    x, y = data(1, d, seed=3)
    for copied in (copy.deepcopy, lambda child: pickle.loads(pickle.dumps(child))):
        child = model.condition_on_observations(x, y)
        before, other = moments(child, Z), copied(model.condition_on_observations(x, y))
        assert_same(moments(other, Z), before)
        assert other.state_dict().keys() == model.state_dict().keys()
        assert_same(
            moments(other.condition_on_observations(x, y), Z), moments(child.condition_on_observations(x, y), Z)
        )


@ALL
def test_a_chain_of_borrowers_is_a_chain_of_owners(d: int, build: Any) -> None:
    model, _, Z = told(build, d)
    looked, unlooked = model, model
    for seed in range(3):
        x, y = data(1, d, seed=30 + seed)
        unlooked = unlooked.condition_on_observations(x, y)
        looked = looked.condition_on_observations(x, y)
        _ = looked.covar_module, looked.likelihood.noise
    assert_same(moments(unlooked, Z), moments(looked, Z))
    assert unlooked.num_observations == looked.num_observations == 23
