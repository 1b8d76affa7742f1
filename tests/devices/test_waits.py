"""How often the host waits for a GPU, and how many kernels it asks for, where that counts."""

from typing import Any

import pytest
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.sampling import SobolQMCNormalSampler
from cases import MODELS, cagp, data, decoupled, grief, points, projected_wiski, softki
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import OnlineLearner
from bo_scale.errors import InvalidDataError
from bo_scale.models.wiski.model import WISKI
from bo_scale.thompson import thompson_batch


def wiski(X: Any, Y: Any, **options: Any) -> WISKI:
    return WISKI(X, Y, **{"grid_size": 10, **options})


def on_gpu(build: Any, d: int, n: int = 20) -> Any:
    """A model that has predicted."""
    X, Y = (values.cuda() for values in data(n, d))
    model = build(X, Y).eval()
    model.posterior(X[:2]).variance  # noqa: B018
    return model


BUILDS = {
    "WISKI": (2, wiski),
    "projected": (5, projected_wiski),
    "SoftKI": (2, softki),
    "GRIEF": (2, grief),
    "CaGP": (2, cagp),
    "Decoupled": (2, decoupled),
}
"""Inputs and model."""
FAMILIES = pytest.mark.parametrize(("d", "build"), BUILDS.values(), ids=BUILDS)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_a_posterior_waits_once(log: Any, d: int, build: Any) -> None:
    model, X = on_gpu(build, d, 14), points(4, d, seed=3).cuda()
    with log.counting() as counted:
        model.posterior(X)
        model.posterior_mean(X)
    assert counted.waits <= 2, counted.report()


@FAMILIES
@pytest.mark.parametrize("q", [1, 4])
def test_expected_improvement_and_its_gradient_wait_once_beside_botorch(log: Any, d: int, build: Any, q: int) -> None:
    model, best_f = on_gpu(build, d), torch.tensor(1.0).cuda()
    acquisition = qLogExpectedImprovement(model, best_f, SobolQMCNormalSampler(torch.Size([16]), seed=0))
    X = points(3 * q, d, seed=4).reshape(3, q, d).cuda().requires_grad_()
    acquisition(X)
    with log.counting() as counted:
        torch.autograd.grad(acquisition(X).sum(), X)
    own = [event for event in counted.events if event.inside.startswith("/") or "bo_scale/" in event.inside]
    assert len([event for event in own if event.kind != "kernel"]) <= 1, counted.report()
    assert counted.waits <= 2, counted.report()  # BoTorch asks once whether a number is negative


@FAMILIES
def test_a_streamed_row_waits_once(log: Any, d: int, build: Any) -> None:
    model, X, Y = on_gpu(build, d), points(3, d, seed=5).cuda(), points(3, 1, seed=6).cuda()
    model = model.condition_on_observations(X[:1], Y[:1])
    model = model.condition_on_observations(X[1:2], Y[1:2])
    with log.counting() as counted:
        model.condition_on_observations(X[2:], Y[2:])
    assert counted.waits <= 1, counted.report()
    assert counted.kernels <= 60


@pytest.mark.parametrize(("build", "d", "waits", "kernels"), [(wiski, 2, 5, 250), (projected_wiski, 3, 7, 400)])
def test_a_step_of_a_learner(log: Any, build: Any, d: int, waits: int, kernels: int) -> None:
    X, Y = (values.cuda() for values in data(24, d))
    learner = OnlineLearner(build(X[:20], Y[:20]))
    for i in range(20, 23):
        learner.step(X[i : i + 1], Y[i : i + 1])
    with log.counting() as counted:
        learner.step(X[23:], Y[23:])
    assert counted.waits <= waits, counted.report()
    assert counted.kernels <= kernels


def test_a_thompson_batch_does_not_wait_for_each_of_its_points(log: Any) -> None:
    model, box = on_gpu(wiski, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64).cuda()
    waits = []
    for q in (4, 64):
        with log.counting() as counted:
            thompson_batch(model, box, q, num_restarts=1, raw_samples=64, max_steps=2, distance=1e-9)
        waits.append(counted.waits)
    most = 2 * (12 + 12) + 16  # two steps of at most twelve trials, each of which waits twice
    assert max(waits) <= most, waits


def test_a_loss_of_a_decoupled_gp_copies_no_rows(log: Any) -> None:
    model = on_gpu(decoupled, 2, 40)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    model.compute_custom_loss(mll)
    with log.counting() as counted:
        model.compute_custom_loss(mll)
    assert counted.copied("d2h") < 40, counted.report()


@pytest.mark.parametrize("build", [wiski, softki, grief, cagp], ids=["WISKI", "SoftKI", "GRIEF", "CaGP"])
def test_what_was_granted_and_does_not_hold_is_noticed(gpu: torch.device, build: Any) -> None:
    """Hyperparameters that have changed, NaN, points outside: as if each had been asked for on its own."""
    X, Y = data(20, 2)
    there, here = (build(X.to(device), Y.to(device)).eval() for device in (gpu, torch.device("cpu")))
    for model in (there, here):
        model.posterior(X[:2].to(model._device))
        model.mean_module.initialize(constant=0.7)
    Z = points(3, seed=8)
    torch.testing.assert_close(there.posterior(Z.to(gpu)).mean.cpu(), here.posterior(Z).mean, rtol=1e-7, atol=1e-7)
    bad = Z.clone()
    bad[1, 0] = float("nan")
    with pytest.raises(InvalidDataError, match=r"X: NaN or inf in rows \[1\]"):
        there.posterior(bad.to(gpu))
    with pytest.raises(InvalidDataError, match=r"Y: NaN or inf in rows \[1\]"):
        there.condition_on_observations(Z.to(gpu), bad[:, :1].to(gpu))
    twice = there.posterior(Z[[0, 0, 1]].to(gpu))
    expected = here.posterior(Z[[0, 0, 1]])
    torch.testing.assert_close(twice.variance.cpu(), expected.variance, rtol=1e-6, atol=1e-8)
