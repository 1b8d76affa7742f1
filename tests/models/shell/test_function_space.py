"""Models in function space: the rows of the base process, and those that came later."""

from typing import Any

import pytest
import torch
from cases import cagp, data, decoupled, rand
from torch import Tensor

from bo_scale.gp.conditioning import Conditioned
from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.models.shell.storage import model_content, restore_model

X, Y = data(16, 2, 2)
Z = rand(4, 2, seed=5)
BUILDS = pytest.mark.parametrize("build", [cagp, decoupled])


def streamed(build: Any, **options: Any) -> Any:
    """A model of 12 rows that has observed 4 more."""
    model = build(X[:12], Y[:12], outcome_transform=None, **options).eval()
    model.posterior(Z)
    return model.condition_on_observations(X[12:], Y[12:])


def moments(model: Any) -> tuple[Tensor, Tensor]:
    posterior = model.posterior(Z)
    return posterior.mean, posterior.variance


@BUILDS
def test_later_rows_condition_the_base_and_are_not_joined_to_it(build: Any) -> None:
    model = streamed(build)
    assert (model.num_observations, model._joined) == (16, 12)
    for process in model.processes:
        assert isinstance(process, Conditioned)
        assert len(process.noise) == 4
    inferred = model._infer(model._hyperparameters())
    assert isinstance(inferred, FunctionSpaceInference)
    for one, other in zip(inferred.processes, model.processes, strict=True):
        torch.testing.assert_close(one.mean(Z), other.mean(Z))
        torch.testing.assert_close(one.covariance(Z), other.covariance(Z))


@BUILDS
def test_exchanged_rows_are_all_in_the_base(build: Any) -> None:
    model = streamed(build)
    model.set_train_data(X.flip(0), Y.flip(0).mT)
    assert model._joined == model.num_observations == 16
    for process in model.processes:
        assert not isinstance(process, Conditioned)


@pytest.mark.parametrize("known", [False, True])
@BUILDS
def test_observations_are_residuals_and_noise_of_one_output(build: Any, known: bool) -> None:
    Yvar = 0.1 + rand(16, 2)
    model = build(X, Y, outcome_transform=None, **({"train_Yvar": Yvar} if known else {}))
    with torch.no_grad():
        model.mean_module.constant.copy_(torch.tensor([0.5, -1.0]))
    for j, seen in enumerate(model._all_observations()):
        torch.testing.assert_close(seen.residual, Y[:, j] - [0.5, -1.0][j])
        torch.testing.assert_close(seen.noise, Yvar[:, j] if known else model.learned_noise[j].expand(16))
        torch.testing.assert_close(seen.kernel(X, Z), model.covar_module(X, Z).to_dense()[j])
    (parameter, *_) = model.covar_module.parameters()
    assert torch.autograd.grad(model._observations(1).kernel(X, Z).sum(), parameter)[0][1].any()
    assert not model._observations(1, frozen=True).kernel(X, Z).requires_grad


@BUILDS
def test_the_prior_is_the_kernel_itself(build: Any) -> None:
    model, batch = build(X, Y), rand(3, 1, 4, 2)
    for j in range(2):
        every = model.covar_module(batch.unsqueeze(-3)).to_dense()
        torch.testing.assert_close(model._prior_covariance(batch, j), every[..., j, :, :])


@BUILDS
def test_a_digest_is_of_the_inputs_of_the_base_alone(build: Any) -> None:
    model = streamed(build)
    start = build(X[:12], Y[:12], outcome_transform=None)
    assert torch.equal(model._joined_digest(), start._joined_digest())
    assert torch.equal(build(X[:12], -Y[:12])._joined_digest(), start._joined_digest())
    assert not torch.equal(build(X[1:13], Y[1:13])._joined_digest(), start._joined_digest())
    model.set_train_data(X.flip(0))
    assert not torch.equal(model._joined_digest(), start._joined_digest())


@BUILDS
def test_a_restored_model_knows_which_rows_are_in_its_base(build: Any) -> None:
    model = streamed(build)
    content = model_content(model)
    assert content["joined"] == 12
    again = restore_model(build(X[:2], Y[:2], outcome_transform=None), content)
    assert (again.num_observations, again._joined) == (16, 12)
    assert torch.equal(again.rows_digest, model.rows_digest)
    for one, other in zip(moments(again), moments(model), strict=True):
        assert torch.equal(one, other)
