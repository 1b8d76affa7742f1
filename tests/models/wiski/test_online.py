"""Online learning: streamed equals batch, gradients equal finite differences, nothing is kept but what is said."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Log, Normalize
from botorch.optim.utils import get_parameters_and_bounds
from cases import data, projected_wiski
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from bo_scale import WISKI, OnlineLearner
from bo_scale.errors import GridError, InvalidDataError
from bo_scale.gp.weight_space.features.projection import ProjectedFeatures
from bo_scale.models.shell.storage import model_content
from bo_scale.models.wiski.online import Prequential, new_log_density


def known(X: Tensor, Y: Tensor, **options: Any) -> WISKI:
    """With a noise that differs from row to row and between outputs."""
    return WISKI(X, Y, 0.05 + 0.1 * Y.abs(), grid_size=8, **options)


def plain(X: Tensor, Y: Tensor, **options: Any) -> WISKI:
    return WISKI(X, Y, **{"grid_size": 8, **options})


def noise_of(model: WISKI, Y: Tensor) -> Tensor | None:
    return 0.05 + 0.1 * Y.abs() if "Fixed" in type(model.likelihood).__name__ else None


def tell(learner: OnlineLearner, X: Tensor, Y: Tensor, q: int = 1) -> OnlineLearner:
    for x, y in zip(X.split(q), Y.split(q)):
        learner.step(x, y, noise_of(learner.model, y))
    return learner


BUILDS = [
    pytest.param(plain, 2, id="plain"),
    pytest.param(known, 2, id="known noise"),
    pytest.param(projected_wiski, 5, id="projected"),
    pytest.param(lambda X, Y: plain(X, Y, input_transform=Normalize(2)), 2, id="input transform"),
    pytest.param(lambda X, Y: plain(X, Y, decay=0.9), 2, id="decay"),
]
ADDING = pytest.param(lambda X, Y: plain(X, Y, conservative=True), 2, id="conservative")
SPARSE = pytest.param(lambda X, Y: plain(X, Y, covar_module=MaternKernel(0.5, ard_num_dims=2), rank=9), 2, id="sparse")


@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize(("build", "d"), BUILDS)
def test_at_fixed_hyperparameters_a_stream_is_a_batch(build: Any, d: int, q: int) -> None:
    (X, Y), Xt = data(20, d, 2), data(6, d, seed=1)[0]
    more = data(7, d, 2, seed=2)
    more = (0.1 + 0.8 * more[0], more[1])
    start = build(X, Y).eval()
    learner = tell(OnlineLearner(start, lr=0.0, projection_lr=0.0), *more, q=q)
    whole = start.condition_on_observations(*more, noise=noise_of(start, more[1])).eval()
    for a, b in ((learner.posterior(Xt), whole.posterior(Xt)), (learner.model.posterior(Xt), whole.posterior(Xt))):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(a.variance, b.variance, rtol=1e-8, atol=1e-8)
    assert learner.model.num_observations == 27
    assert start.num_observations == 20


@pytest.mark.parametrize(("build", "d"), [*BUILDS[:3], BUILDS[3], ADDING, SPARSE])
def test_predictions_are_scored_before_their_values_are_seen(build: Any, d: int) -> None:
    (X, Y), more = data(20, d, 2), data(6, d, 2, seed=2)
    learner = OnlineLearner(build(X, 5 + 3 * Y), lr=0.01)
    errors, losses, inside = [], [], []
    for x, y in zip(more[0].split(1), (5 + 3 * more[1]).split(1)):
        noise = noise_of(learner.model, y)
        posterior = learner.posterior(x, observation_noise=True if noise is None else noise)
        law = Normal(posterior.mean, posterior.variance.sqrt())
        errors.append((y - posterior.mean).square())
        losses.append(-law.log_prob(y))
        inside.append((law.cdf(y) - 0.5).abs() < 0.475)
        learner.step(x, y, noise)
    scores = learner.scores
    torch.testing.assert_close(scores.rmse, torch.cat(errors).mean(0).sqrt())
    torch.testing.assert_close(scores.nll, torch.cat(losses).mean(0))
    torch.testing.assert_close(scores.coverage, torch.cat(inside).double().mean(0))
    assert scores.count == 6
    assert Prequential.none(1).rmse.isnan().all()


# ---------------------------------------------------------------- the gradients of a step


@pytest.mark.parametrize("q", [1, 3])
def test_the_projections_objective_is_the_dense_conditional_density_and_its_gradient(q: int) -> None:
    """Eq. 18: old rows keep the features that they have, new ones go through the projection."""
    (X, Y), (Xn, Yn) = data(15, 5), data(q, 5, seed=3)
    model = projected_wiski(X, Y, outcome_transform=None).eval()
    features = model._feature_map(0)
    assert isinstance(features, ProjectedFeatures)
    base, old = features.base, features.projection(X).detach()
    noise, mu = model.inference.noise[0].detach(), model._constants()[0].detach()

    def conditional() -> Tensor:
        H = torch.cat([old, model._feature_map(0).projection(Xn)])
        K = base.prior_covariance(H) + noise * torch.eye(15 + q, dtype=torch.float64)
        y = torch.cat([Y, Yn])[:, 0]
        both = MultivariateNormal(mu.expand(15 + q), K).log_prob(y)
        return both - MultivariateNormal(mu.expand(15), K[:15, :15]).log_prob(Y[:, 0])

    processes = model.processes
    ours = new_log_density(model, processes, Xn, Yn, noise * torch.ones(q, 1).double())
    torch.testing.assert_close(ours, conditional(), rtol=1e-7, atol=1e-7)
    learned = list(model.projection.parameters())
    for a, b in zip(torch.autograd.grad(ours, learned), torch.autograd.grad(conditional(), learned), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        assert a.abs().max() > 1e-3
    for p in learned:
        gradient = torch.autograd.grad(new_log_density(model, processes, Xn, Yn, noise * torch.ones(q, 1).double()), p)[
            0
        ]
        direction, kept, values = torch.randn_like(p), p.detach().clone(), []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                p.copy_(kept + step * direction)
                values.append(new_log_density(model, processes, Xn, Yn, noise * torch.ones(q, 1).double()).item())
        with torch.no_grad():
            p.copy_(kept)
        assert (gradient * direction).sum().item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


def test_a_step_of_the_hyperparameters_is_adams_on_the_evidence_of_all_observations() -> None:
    (X, Y), (x, y) = data(20, 2), data(1, 2, seed=2)
    learner = OnlineLearner(plain(X, Y), lr=0.01)
    learner.step(x, y)
    reference = plain(X, Y).eval().condition_on_observations(x, y).train()
    mll = ExactMarginalLogLikelihood(reference.likelihood, reference)
    reference.compute_custom_loss(mll).backward()
    positive = dict(get_parameters_and_bounds(mll)[1])
    assert {name.split(".")[-1] for name in positive} == {"raw_noise", "raw_lengthscale"}
    for name, p in mll.named_parameters():
        step = -0.01 * p.grad.sign()  # Adam's first
        expected = p.detach() * step.exp() if name in positive else p.detach() + step
        found = learner._mll.get_parameter(name)
        torch.testing.assert_close(found.detach(), expected, rtol=1e-6, atol=1e-7, msg=name)


def test_old_observations_keep_their_old_features() -> None:
    X, Y = data(30, 5)
    learner = OnlineLearner(projected_wiski(X[:20], Y[:20]), lr=0.0, projection_lr=0.1)
    before = learner.model.statistics[0]
    learner.step(X[20:21], Y[20:21])
    model = learner.model
    y = model.outcome_transform(Y[20:21])[0].double()
    expected = before.observe(model._feature_map(0), X[20:21], y)
    torch.testing.assert_close(model.statistics[0].projection, expected.projection)
    torch.testing.assert_close(model.statistics[0].gram.to_dense(), expected.gram.to_dense())
    again = projected_wiski(X[:21], Y[:21])
    assert not torch.allclose(again.statistics[0].gram.to_dense(), expected.gram.to_dense(), atol=1e-3)
    moved = [not torch.equal(a, b) for a, b in zip(model.projection.parameters(), again.projection.parameters())]
    assert all(moved)


def test_learning_as_it_goes_predicts_better_than_not_learning() -> None:
    X, Y = data(70, 2)
    errors = []
    for rate in (0.0, 0.05):
        learner = tell(OnlineLearner(plain(X[:8], Y[:8]), lr=rate), X[8:], Y[8:])
        errors.append(learner.scores.nll.item())
    assert errors[1] < errors[0]  # by 0.04 in the least of 35 seeds


# ---------------------------------------------------------------- what is kept


def test_a_step_keeps_no_data_and_needs_no_more_memory() -> None:
    X, Y = data(60, 5)
    learner = OnlineLearner(projected_wiski(X[:20], Y[:20]))
    sizes = []
    for part in (slice(20, 25), slice(25, 60)):
        tell(learner, X[part], Y[part])
        content = model_content(learner.model)
        assert content["rows"] is None
        sizes.append(sum(v.numel() for state in content["statistics"] for v in state.values() if hasattr(v, "numel")))
    assert sizes[0] == sizes[1]
    assert learner.model.train_inputs[0].shape == (0, 5)


def test_the_model_given_and_the_models_taken_out_stay_as_they_are() -> None:
    (X, Y), Xt = data(30, 5), data(4, 5, seed=1)[0]
    given = projected_wiski(X[:20], Y[:20]).eval()
    learner = OnlineLearner(given, lr=0.1, projection_lr=0.1)
    before = given.posterior(Xt).mean.clone()
    tell(learner, X[20:25], Y[20:25])
    taken = learner.model
    then = taken.posterior(Xt).mean.clone()
    tell(learner, X[25:], Y[25:])
    torch.testing.assert_close(given.posterior(Xt).mean, before)
    torch.testing.assert_close(taken.posterior(Xt).mean, then)
    assert not torch.allclose(learner.posterior(Xt).mean, then)
    assert given.num_observations == 20


@pytest.mark.parametrize(("build", "d", "rates"), [(plain, 2, (0.0, 0.0)), (projected_wiski, 5, (0.01, 0.02))])
def test_a_learner_that_was_saved_goes_on_to_the_last_bit(tmp_path: Path, build: Any, d: int, rates: Any) -> None:
    (X, Y), Xt = data(40, d), data(4, d, seed=1)[0]
    learner = tell(OnlineLearner(build(X[:20], Y[:20]), *rates), X[20:30], Y[20:30])
    learner.save(tmp_path / "state")
    other = OnlineLearner(build(X[:20], Y[:20]), *rates).restore(tmp_path / "state")
    for each in (learner, other):
        tell(each, X[30:], Y[30:])
    assert torch.equal(learner.posterior(Xt).mean, other.posterior(Xt).mean)
    assert torch.equal(learner.posterior(Xt).variance, other.posterior(Xt).variance)
    assert torch.equal(learner.scores.nll, other.scores.nll)
    assert learner.scores.count == other.scores.count == 20


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    X, Y = data(20, 2)
    learner = OnlineLearner(plain(X, Y))
    learner.save(tmp_path / "state")
    with pytest.raises(InvalidDataError, match="projection_lr"):
        OnlineLearner(plain(X, Y), lr=0.0).restore(tmp_path / "state")
    torch.save({"a": 1}, tmp_path / "other")
    with pytest.raises(InvalidDataError, match="no OnlineLearner"):
        learner.restore(tmp_path / "other")


def test_what_cannot_be_learned_from_is_refused_and_changes_nothing() -> None:
    (X, Y), Xt = data(20, 2), data(4, 2, seed=1)[0]
    learner = OnlineLearner(plain(X, Y))
    before = learner.posterior(Xt).mean.clone()
    with pytest.raises(InvalidDataError, match="shapes"):
        learner.step(X[0], Y[0])
    with pytest.raises(InvalidDataError, match="NaN"):
        learner.step(X[:1], Y[:1] * math.nan)
    with pytest.raises(GridError, match="outside"):
        learner.step(X[:1] + 9, Y[:1])
    learner.step(X[:0], Y[:0])
    torch.testing.assert_close(learner.posterior(Xt).mean, before)
    assert learner.scores.count == 0
    fantasies = plain(X, Y).eval().condition_on_observations(X[None, :1], Y[None, :1])
    with pytest.raises(UnsupportedError, match="fantasies"):
        OnlineLearner(fantasies)
    with pytest.raises(UnsupportedError, match="Log"):
        OnlineLearner(plain(X, Y.exp(), outcome_transform=Log()))
    with pytest.raises(ValueError, match="negative"):
        OnlineLearner(plain(X, Y), lr=-1.0)
