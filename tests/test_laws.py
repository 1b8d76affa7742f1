"""Laws that hold for every feature map and every model, each against a dense computation."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition import qNegIntegratedPosteriorVariance as BoTorchNIPV
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import Model
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import InputTransform
from botorch.sampling import SobolQMCNormalSampler
from cases import (
    FEATURES,
    MODELS,
    REFITTED,
    WEIGHT_SPACE,
    CosineFeatures,
    data,
    grid_features,
    grief,
    projected,
    softki,
    softmax_features,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairwise
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale import (
    GRIEF,
    WISKI,
    CaGP,
    DecoupledGP,
    SoftKI,
    draw_posterior_functions,
    load_model,
    qNegIntegratedPosteriorVariance,
    save_model,
)
from bo_scale.errors import BoScaleError, InvalidDataError
from bo_scale.gp.conditioning import condition
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.evidence import log_density, log_evidence, log_evidence_of_kernel
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.projection import LinearProjection, in_double
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.gp.weight_space.forgetting import Forgetting
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.shell import weight_space
from bo_scale.models.shell.weight_space import few_rows

SUMS = ("projection", "square", "feature_sum", "target_sum", "weight_sum", "log_noise", "noise_sum")
NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
Build = Callable[[Tensor], FeatureMap]


def lengthscales(d: int) -> Tensor:
    return torch.linspace(0.3, 0.5, d, dtype=torch.float64)


def dense(features: FeatureMap, X: Tensor) -> Tensor:
    Phi = features(X)
    return Phi if isinstance(Phi, Tensor) else Phi.to_dense()


def prior_covariance(features: FeatureMap, X: Tensor, Z: Tensor) -> Tensor:
    R = features.prior_root().to_dense()
    return (dense(features, X) @ R) @ (dense(features, Z) @ R).mT


def exact(
    features: FeatureMap, X: Tensor, y: Tensor, D: Tensor, Xt: Tensor, noise: Tensor = NOISE, mu: Tensor = MU
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the dense GP with K = Φ S Φᵀ."""
    A = prior_covariance(features, X, X) + noise * torch.diag(D)
    G = torch.linalg.solve(A, prior_covariance(features, X, Xt))
    return mu + G.mT @ (y - mu), prior_covariance(features, Xt, Xt) - prior_covariance(features, Xt, X) @ G


def posterior(features: FeatureMap, X: Tensor, y: Tensor, D: Tensor | None = None) -> WeightSpacePosterior:
    stats = SufficientStatistics.from_data(features, X, y.unsqueeze(-1), D)
    return WeightSpacePosterior.from_statistics(features, stats, NOISE, MU)


def assert_same_process(a: PosteriorProcess, b: PosteriorProcess, X: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a.mean(X), b.mean(X), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.covariance(X), b.covariance(X), rtol=tolerance, atol=tolerance)


def assert_same_statistics(a: SufficientStatistics, b: SufficientStatistics) -> None:
    assert a.count == b.count
    b = b.recenter(a.center)
    torch.testing.assert_close(a.gram.to_dense(), b.gram.to_dense())
    for name in (*SUMS, "effective_count"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9, msg=name)


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize(("d", "build"), FEATURES)
@given(sizes=st.lists(st.integers(0, 9), min_size=2, max_size=4), m=st.integers(1, 3))
@settings(max_examples=5, deadline=None)
def test_statistics_are_a_commutative_monoid(d: int, build: Build, sizes: list[int], m: int) -> None:
    features = build(lengthscales(d))
    X, Y = data(sum(sizes), d, m)
    D = 0.5 + X[:, 0]
    whole = SufficientStatistics.from_data(features, X, Y, D)
    parts = [
        SufficientStatistics.from_data(features, x, y, v)
        for x, y, v in zip(X.split(sizes), Y.split(sizes), D.split(sizes))
    ]
    left = parts[0]
    for part in parts[1:]:
        left = left + part
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = right + part
    assert_same_statistics(whole, left)
    assert_same_statistics(whole, right)
    assert_same_statistics(whole, whole + SufficientStatistics.empty(features, m))
    assert_same_statistics(whole, SufficientStatistics.empty(features, m) + whole)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_removing_what_was_added_changes_nothing(d: int, build: Build) -> None:
    features, (X, Y) = build(lengthscales(d)), data(20, d, 2)
    a, b = (SufficientStatistics.from_data(features, X[s], Y[s]) for s in (slice(0, 13), slice(13, 20)))
    assert_same_statistics((a + b) - b, a)
    with pytest.raises(InvalidDataError, match="cannot remove"):
        _ = b - a


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_only_sums_of_the_same_features_are_added(d: int, build: Build) -> None:
    """Of other lengthscales, for instance, if φ depends on them. A map need not say what it depends on."""
    X, Y = data(20, d)
    one, same, other = build(lengthscales(d)), build(lengthscales(d) + 1e-9), build(1.3 * lengthscales(d))
    a, b, c = (SufficientStatistics.from_data(features, X, Y) for features in (one, same, other))
    assert (a + b).count == 40
    if not one.depends_on():
        assert isinstance(one, CosineFeatures | SumFeatures)
    elif torch.allclose(dense(one, X), dense(other, X)):
        assert (a + c).count == 40
    else:
        with pytest.raises(InvalidDataError, match="sums of different features"):
            _ = a + c
        with pytest.raises(InvalidDataError, match="sums of different features"):
            _ = c - a


def test_sums_of_other_points_grids_and_projections_are_not_added() -> None:
    X, Y = data(20, 2)
    for one, other in (
        (grid_features((8, 7)), grid_features((8, 7), "keys")),
        (grid_features((8, 7)), grid_features((7, 8))),
        (lambda scales: _softmax(1), lambda scales: _softmax(2)),
        (projected(7, 6), lambda scales: replace(projected(7, 6)(scales), projection=_projection())),
    ):
        a, b = (SufficientStatistics.from_data(build(lengthscales(2)), X, Y) for build in (one, other))
        with pytest.raises(InvalidDataError, match="sums of different features"):
            _ = a + b


def _softmax(seed: int) -> FeatureMap:
    return replace(softmax_features(lengthscales(2)), points=data(9, 2, seed=seed)[0])


def _projection() -> Any:
    return in_double(LinearProjection(2, 2, torch.eye(2).double()), frozen=True)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_affine_change_of_targets_equals_new_statistics(d: int, build: Build) -> None:
    features, (X, Y) = build(lengthscales(d)), data(20, d, 2)
    D, scale, offset = 0.1 + X[:, 0], torch.tensor([2.0, -0.5]).double(), torch.tensor([-1.0, 30.0]).double()
    changed = SufficientStatistics.from_data(features, X, Y, D).affine(scale, offset, noise_scale=4.0)
    assert_same_statistics(SufficientStatistics.from_data(features, X, scale * Y + offset, 4 * D), changed)


# ---------------------------------------------------------------- weight space equals the dense GP


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_evidence_and_its_gradient_equal_the_dense_gp(d: int, build: Build, weighted: bool) -> None:
    X, Y = data(25, d)
    D = 0.3 + X[:, 0] if weighted else torch.ones(25, dtype=torch.float64)
    parameters = [lengthscales(d).requires_grad_(), NOISE.clone().requires_grad_(), MU.clone().requires_grad_()]
    features = build(parameters[0])
    stats = SufficientStatistics.from_data(features, X, Y, D)
    ours = log_evidence(features.prior_root(), stats, parameters[1], parameters[2])
    K = prior_covariance(features, X, X) + parameters[1] * torch.diag(D)
    reference = MultivariateNormal(parameters[2].expand(25), K).log_prob(Y[:, 0])
    torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(ours, parameters), torch.autograd.grad(reference, parameters)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 25])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_posterior_equals_the_dense_gp(d: int, build: Build, n: int) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(n, d), data(6, d, seed=1)
    D = 0.3 + X[:, 0]
    mean, covariance = exact(features, X, Y[:, 0], D, Xt)
    ours = posterior(features, X, Y[:, 0], D)
    torch.testing.assert_close(ours.mean(Xt), mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(ours.covariance(Xt), covariance, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(ours.variance(Xt), covariance.diagonal(), rtol=1e-8, atol=1e-9)
    assert (ours.variance(Xt) >= 0).all()


@pytest.mark.parametrize("n", [1, 7, 25])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_evidence_from_the_kernel_matrix_equals_that_from_statistics(d: int, build: Build, n: int) -> None:
    X, Y = data(n, d)
    D = 0.3 + X[:, 0]
    parameters = [lengthscales(d).requires_grad_(), NOISE.clone().requires_grad_(), MU.clone().requires_grad_()]
    features = build(parameters[0])
    stats = SufficientStatistics.from_data(features, X, Y, D)
    values = [
        log_density(features.prior_covariance(X), Y[:, 0], D, parameters[1], parameters[2]),
        log_evidence(features.prior_root(), stats, parameters[1], parameters[2]),
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-7, atol=1e-7)
    gradients = [torch.autograd.grad(value, parameters) for value in values]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_the_prior_covariance_of_points_is_that_of_their_features(d: int, build: Build) -> None:
    features, X = build(lengthscales(d)), data(12, d)[0]
    torch.testing.assert_close(features.prior_covariance(X), prior_covariance(features, X, X), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n", [1, 7, 25])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_the_prior_updated_is_the_posterior_from_statistics(d: int, build: Build, n: int) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(n, d), data(6, d, seed=1)
    D = 0.3 + X[:, 0]
    prior = WeightSpacePosterior.prior(features, MU)
    torch.testing.assert_close(prior.mean(Xt), MU.expand(6))
    torch.testing.assert_close(prior.covariance(Xt), prior_covariance(features, Xt, Xt))
    updated = prior.update(prior.locate(X), Y[:, 0], NOISE * D)
    assert_same_process(updated, posterior(features, X, Y[:, 0], D), Xt, 1e-8)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_a_large_offset_of_the_targets_costs_no_digits(d: int, build: Build, offset: float) -> None:
    features, (X, Y) = build(lengthscales(d)), data(25, d)
    stats = SufficientStatistics.from_data(features, X[:20], Y[:20] + offset)
    stats = stats + SufficientStatistics.from_data(features, X[20:], Y[20:] + offset)
    evidence = log_evidence(features.prior_root(), stats, NOISE, MU + offset)
    plain = SufficientStatistics.from_data(features, X, Y)
    reference = log_evidence(features.prior_root(), plain, NOISE, MU)
    torch.testing.assert_close(evidence, reference, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_noise_of_1e_6_with_duplicates_keeps_five_digits(d: int, build: Build) -> None:
    features, (X, Y) = build(lengthscales(d)), data(15, d)
    X, Y, noise = torch.cat([X, X[:5]]), torch.cat([Y, Y[:5]]), torch.tensor(1e-6, dtype=torch.float64)
    stats = SufficientStatistics.from_data(features, X, Y)
    evidence = log_evidence(features.prior_root(), stats, noise, MU)
    K = prior_covariance(features, X, X) + noise * torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(evidence, MultivariateNormal(MU.expand(20), K).log_prob(Y[:, 0]), rtol=1e-5, atol=1e-3)
    ours = WeightSpacePosterior.from_statistics(features, stats, noise, MU)
    mean, covariance = exact(features, X, Y[:, 0], torch.ones(20).double(), X[:4], noise)
    torch.testing.assert_close(ours.covariance(X[:4]), covariance, rtol=1e-4, atol=1e-10)
    torch.testing.assert_close(ours.mean(X[:4]), mean, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- conditioning


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_conditioning_equals_refitting_whichever_way(d: int, build: Build) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(20, d), data(6, d, seed=1)
    y, D = Y[:, 0], 0.5 + X[:, 0]
    whole, base = posterior(features, X, y, D), posterior(features, X[:15], y[:15], D[:15])
    new = X[15:], y[15:], NOISE * D[15:]
    assert_same_process(base.update(base.locate(new[0]), *new[1:]), whole, Xt)
    assert_same_process(condition(base, *new), whole, Xt)
    assert_same_process(base, posterior(features, X[:15], y[:15], D[:15]), Xt)
    one_by_one: PosteriorProcess = base
    streamed = base
    for i in range(15, 20):
        rows = slice(i, i + 1)
        one_by_one = condition(one_by_one, X[rows], y[rows], NOISE * D[rows])
        streamed = streamed.update(streamed.locate(X[rows]), y[rows], NOISE * D[rows])
    assert_same_process(one_by_one, whole, Xt)
    assert_same_process(streamed, whole, Xt)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_a_batch_of_fantasies_equals_a_loop(d: int, build: Build) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(12, d), data(5, d, seed=1)
    base = posterior(features, X, Y[:, 0])
    Xq, yq = data(6, d, seed=2)[0].reshape(3, 2, d), torch.randn(4, 3, 2, dtype=torch.float64)
    batch = condition(base, Xq, yq, NOISE.expand(3, 2))
    assert batch.batch_shape == torch.Size([4, 3])
    X2, y2 = data(12, d, seed=3)[0].reshape(4, 3, 1, d), torch.randn(2, 4, 3, 1, dtype=torch.float64)
    nested = condition(batch, X2, y2, NOISE.expand(4, 3, 1))
    for i in range(4):
        for j in range(3):
            single = condition(base, Xq[j], yq[i, j], NOISE.expand(2))
            torch.testing.assert_close(batch.mean(Xt)[i, j], single.mean(Xt))
            torch.testing.assert_close(batch.covariance(Xt)[j], single.covariance(Xt))
            twice = condition(single, X2[i, j], y2[1, i, j], NOISE.expand(1))
            torch.testing.assert_close(nested.mean(Xt)[1, i, j], twice.mean(Xt))
            torch.testing.assert_close(nested.covariance(Xt)[i, j], twice.covariance(Xt))


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_no_points_change_nothing(d: int, build: Build) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(12, d), data(5, d, seed=1)
    base = posterior(features, X, Y[:, 0])
    empty = X[:0], Y[:0, 0], NOISE.expand(0)
    assert_same_process(condition(base, *empty), base, Xt)
    assert_same_process(base.update(base.locate(empty[0]), *empty[1:]), base, Xt)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_samples_have_the_moments_of_the_posterior(d: int, build: Build) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(6, d), data(3, d, seed=1)
    base = posterior(features, X, Y[:, 0])
    conditioned = condition(base, X[:2] * 0.9, Y[:2, 0], NOISE.expand(2))
    for process in (base, conditioned):
        generator = torch.Generator().manual_seed(0)
        weights = process.sample_weights(torch.Size([20_000]), generator)
        values = MU + weights @ dense(features, Xt).mT
        sd = process.variance(Xt).max().sqrt()
        drawn = process.sample(Xt, 20_000, generator)
        for sample in (values, drawn):
            torch.testing.assert_close(sample.mean(0), process.mean(Xt), rtol=0, atol=0.03 * sd.item())
            torch.testing.assert_close(torch.cov(sample.mT), process.covariance(Xt), rtol=0, atol=0.05 * sd.item() ** 2)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_posterior_and_fantasy_gradients_equal_finite_differences(d: int, build: Build) -> None:
    features, (X, Y) = build(lengthscales(d)), data(10, d)
    base = posterior(features, X, Y[:, 0])
    Xt = (0.1 + 0.8 * data(2, d, seed=1)[0]).requires_grad_()
    Xq = (0.1 + 0.8 * data(2, d, seed=2)[0]).requires_grad_()
    yq = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(base.mean, (Xt,), atol=1e-6)
    assert torch.autograd.gradcheck(base.covariance, (Xt,), atol=1e-6)

    def after(x: Tensor, y: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        conditioned = condition(base, x, y, NOISE.expand(2))
        return conditioned.mean(xt), conditioned.variance(xt)

    assert torch.autograd.gradcheck(after, (Xq, yq, Xt), atol=1e-6)


# ---------------------------------------------------------------- models


def build_model(build: Callable[..., Any], d: int, n: int = 14, **options: Any) -> Any:
    X, Y = data(n, d)
    return build(X, Y, **options).eval()


@pytest.mark.parametrize(("d", "build"), REFITTED)
def test_model_conditioning_equals_refitting_and_leaves_the_original(d: int, build: Callable[..., Model]) -> None:
    X, Y = data(20, d)
    transforms = {"input_transform": Normalize(d, bounds=torch.tensor([[0.0], [1.0]]).double().expand(2, d))}
    whole, model = build(X, Y, outcome_transform=None, **transforms), build(X[:15], Y[:15], outcome_transform=None)
    Xt = data(5, d, seed=1)[0]
    before = model.posterior(Xt)
    streamed = model.condition_on_observations(X[15:], Y[15:])
    one_by_one = model
    for i in range(15, 20):
        one_by_one = one_by_one.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    fantasised = model.condition_on_observations(X[15:].unsqueeze(0), Y[15:].unsqueeze(0))
    for other in (streamed, one_by_one, fantasised):
        a, b = other.posterior(Xt), whole.posterior(Xt)
        torch.testing.assert_close(a.mean.squeeze(0) if a.mean.ndim > 2 else a.mean, b.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(a.variance.reshape(b.variance.shape), b.variance, rtol=1e-8, atol=1e-8)
    assert torch.equal(model.posterior(Xt).mean, before.mean)
    assert torch.equal(model.posterior(Xt).variance, before.variance)


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_few_rows_give_the_evidence_and_posterior_of_their_statistics(
    d: int, build: Callable[..., Any], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By n × n matrices, which leave out no eigenpair of the prior: they agree to what a root may lose."""
    X, Y = data(6, d, 2)
    losses, gradients, posteriors = [], [], []
    for few in (1, 10**9):  # rows for which n × n matrices are taken: all, none
        monkeypatch.setattr(weight_space, "FEW", few)
        variances = 0.01 + 0.05 * Y.abs() if known else None
        model = build(X, Y, train_Yvar=variances, **({"grid_size": 20} if d == 1 else {}))
        assert (few_rows(model) is None) == (few > 1)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        loss = model.compute_custom_loss(mll)
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))
        p = model.eval().posterior(data(5, d, seed=1)[0])
        posteriors.append((p.mean, p.variance))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(*posteriors, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


RESTANDARDISED = pairwise(
    REFITTED,
    [pytest.param(True, id="rows"), pytest.param(False, id="statistics alone")],
    [1, 2],
    [pytest.param(False, id="learned"), pytest.param(True, id="known")],
    allowed=lambda case, kept, m, known: case in WEIGHT_SPACE or kept.id == "rows",
)


@pytest.mark.parametrize(("d", "build", "kept", "m", "known"), RESTANDARDISED)
def test_restandardised_is_the_model_built_of_the_raw_data(
    d: int, build: Callable[..., Any], kept: bool, m: int, known: bool
) -> None:
    """At the same hyperparameters, whose units are standardised ones."""
    X, Y = data(30, d, m)
    unit = torch.tensor([3.0, 200.0][:m]).double()
    Y = unit * (Y + torch.tensor([10.0, -5.0][:m]).double() + 2 * X[:, :1])
    Yvar = unit.square() * (0.01 + 0.1 * X[:, :1]) if known else None
    whole = build(X, Y, train_Yvar=Yvar)
    options = {} if kept else {"keep_data": False}
    part = build(X[:12], Y[:12], train_Yvar=None if Yvar is None else Yvar[:12], **options).eval()
    noise = None if Yvar is None else part.outcome_transform(Y=Y[12:], Yvar=Yvar[12:])[1]
    part = part.condition_on_observations(X[12:], Y[12:], noise=noise)
    before, Xt = part.posterior(X[:3]).mean, data(5, d, seed=1)[0]
    again = part.restandardised(Y.mean(0, keepdim=True), Y.std(0, keepdim=True))
    losses = [x.compute_custom_loss(ExactMarginalLogLikelihood(x.likelihood, x)) for x in (again, whole)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-8, atol=1e-8)
    p, q = again.eval().posterior(Xt, observation_noise=True), whole.eval().posterior(Xt, observation_noise=True)
    torch.testing.assert_close(p.mean, q.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(p.variance, q.variance, rtol=1e-8, atol=1e-8)
    assert again.num_observations == 30
    assert again.train_targets.shape[-1] == (30 if kept else 0)
    if kept:
        torch.testing.assert_close(again.train_targets, whole.train_targets)
    assert torch.equal(part.posterior(X[:3]).mean, before)


def test_only_a_whole_standardize_can_be_redone() -> None:
    (X, Y), one = data(10, 2), torch.ones(1, 1).double()
    for model in (
        WISKI(X, Y, grid_size=8, outcome_transform=None),
        WISKI(X, Y.exp(), grid_size=8, outcome_transform=Log()),
    ):
        with pytest.raises(UnsupportedError, match="restandardised: needs"):
            model.restandardised(one, one)
    fantasies = WISKI(X, Y, grid_size=8).eval().fantasize(X[:1], SobolQMCNormalSampler(torch.Size([2])))
    with pytest.raises(UnsupportedError, match="no fantasies"):
        fantasies.restandardised(one, one)


UNITS = [pytest.param(False, id="of the cube"), pytest.param(True, id="scaled")]
OUTCOMES = ["plain", "standardised", "log"]


@pytest.mark.parametrize(("d", "build", "outcome", "m", "scaled"), pairwise(MODELS, OUTCOMES, [1, 2], UNITS))
def test_the_posterior_mean_alone_is_that_of_the_posterior(
    d: int, build: Callable[..., Any], outcome: str, m: int, scaled: bool
) -> None:
    X, Y = data(12, d, m)
    options: dict[str, Any] = {
        "outcome_transform": {"plain": lambda: None, "standardised": lambda: Standardize(m), "log": Log}[outcome]()
    }
    if scaled:
        bounds = torch.tensor([[-3.0], [5.0]]).double().expand(2, d)
        options["input_transform"] = Normalize(d, bounds=bounds)
        if isinstance(build(X[:1], Y[:1]), WISKI | GRIEF):
            options["bounds"] = bounds
        X = -3 + 8 * X
    model = build(X, Y.exp(), **options)
    fantasies = model.fantasize(X[:2].unsqueeze(0) * 0.9, SobolQMCNormalSampler(torch.Size([3])))
    for x in (model, fantasies):
        for Xt in (X[:4], X.unflatten(0, (3, 1, 4))):
            torch.testing.assert_close(x.posterior_mean(Xt), x.posterior(Xt).mean, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_no_points_have_an_empty_posterior(d: int, build: Callable[..., Any]) -> None:
    model = build_model(build, d)
    none = torch.empty(0, d, dtype=torch.float64)
    assert model.posterior(none).mean.shape == model.posterior_mean(none).shape == (0, 1)


@pytest.mark.parametrize(
    ("d", "build", "known", "m"),
    pairwise(MODELS, [pytest.param(False, id="learned"), pytest.param(True, id="known")], [1, 2]),
)
def test_a_model_from_a_file_goes_on_to_the_last_bit(
    tmp_path: Path, d: int, build: Callable[..., Any], known: bool, m: int
) -> None:
    X, Y = data(16, d, m)
    Yvar = 0.01 + 0.1 * Y.square() if known else None

    def noise(start: int, end: int) -> Tensor | None:
        return None if Yvar is None else Yvar[start:end]

    saved = build(X[:8], Y[:8], train_Yvar=noise(0, 8)).eval()
    saved.posterior(X[:1])
    saved = saved.condition_on_observations(X[8:12], Y[8:12], noise=noise(8, 12))
    save_model(saved, tmp_path / "model.pt")
    loaded = load_model(build(X[:1], Y[:1], train_Yvar=noise(0, 1)), tmp_path / "model.pt")
    for _ in range(3):
        a, b = saved.posterior(X[3:9], observation_noise=True), loaded.posterior(X[3:9], observation_noise=True)
        assert torch.equal(a.mean, b.mean)
        assert torch.equal(a.variance, b.variance)
        losses = [x.compute_custom_loss(ExactMarginalLogLikelihood(x.likelihood, x)).detach() for x in (saved, loaded)]
        assert torch.equal(*losses)
        saved, loaded = (x.condition_on_observations(X[12:14], Y[12:14], noise=noise(12, 14)) for x in (saved, loaded))


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("d", "build"), MODELS)
def test_a_batch_of_points_equals_a_loop(d: int, build: Callable[..., Model], m: int) -> None:
    X, Y = data(12, d, m)
    model = build(X, Y)
    for batch, q in (((), 1), ((3,), 1), ((1,), 4), ((2, 1), 2), ((2, 3), 3)):
        Xt = torch.rand(*batch, q, d, dtype=torch.float64)
        whole = model.posterior(Xt)
        assert whole.mean.shape == (*batch, q, m)
        each = [model.posterior(x) for x in Xt.reshape(-1, q, d)]
        torch.testing.assert_close(whole.mean, torch.stack([p.mean for p in each]).reshape(whole.mean.shape))
        variances = torch.stack([p.variance for p in each]).reshape(whole.mean.shape)
        torch.testing.assert_close(whole.variance, variances)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_model_fantasy_gradients_equal_finite_differences(d: int, build: Callable[..., Model]) -> None:
    model = build_model(build, d)
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=1)
    Xt = data(4, d, seed=1)[0]

    def after(X: Tensor) -> tuple[Tensor, Tensor]:
        fantasies = model.fantasize(X, sampler).posterior(Xt)
        return fantasies.mean, fantasies.variance

    X = (0.1 + 0.8 * torch.rand(2, 1, d, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(after, (X,), atol=1e-6)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_nipv_equals_botorch_in_value_and_finite_differences_in_gradient(d: int, build: Callable[..., Model]) -> None:
    model = build_model(build, d)
    Z, P = data(30, d, seed=1)[0], data(2, d, seed=2)[0]
    X = (0.1 + 0.8 * torch.rand(3, 2, d, dtype=torch.float64)).requires_grad_()
    for pending in (None, P):
        ours = qNegIntegratedPosteriorVariance(model, Z, X_pending=pending)
        reference = BoTorchNIPV(model, Z, X_pending=pending)
        torch.testing.assert_close(ours(X), reference(X), rtol=1e-8, atol=1e-10)
        assert torch.autograd.gradcheck(ours, (X,), atol=1e-6)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_nipv_of_a_fantasised_model_equals_pending_points(d: int, build: Callable[..., Model]) -> None:
    model = build_model(build, d)
    Z, P = data(30, d, seed=1)[0], data(2, d, seed=2)[0]
    fantasies = model.fantasize(P, SobolQMCNormalSampler(torch.Size([2]), seed=1))
    X = torch.rand(3, 1, 2, d, dtype=torch.float64)
    with_pending = qNegIntegratedPosteriorVariance(model, Z, X_pending=P)(X[:, 0])
    after = qNegIntegratedPosteriorVariance(fantasies, Z)
    torch.testing.assert_close(torch.stack([after(x) for x in X]).squeeze(-1), with_pending, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("d", "build"), MODELS)
def test_dtype_is_kept_and_float32_agrees(d: int, build: Callable[..., Model], dtype: torch.dtype) -> None:
    X, Y = data(14, d)
    with pytest.warns(InputDataWarning) if dtype == torch.float32 else nullcontext():
        model = build(X.to(dtype), Y.to(dtype))
    Xt = data(4, d, seed=1)[0]
    p = model.posterior(Xt.to(dtype))
    assert p.mean.dtype == p.variance.dtype == p.rsample(torch.Size([2])).dtype == dtype
    reference = build(X, Y).posterior(Xt)
    torch.testing.assert_close(p.mean.double(), reference.mean, rtol=1e-4, atol=1e-4)
    child = model.condition_on_observations(X[:1].to(dtype), Y[:1].to(dtype))
    assert child.posterior(Xt.to(dtype)).mean.dtype == dtype
    assert child.train_inputs[0].dtype == child.train_targets.dtype == dtype


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_hard_data_give_finite_posteriors(d: int, build: Callable[..., Model]) -> None:
    X, Y = data(12, d)
    Xt = data(4, d, seed=1)[0]
    cases = {
        "one observation": (X[:1], Y[:1]),
        "constant targets": (X, torch.ones_like(Y)),
        "duplicated points": (X[:1].expand(12, d), Y),
        "constant input column": (X.clone().index_fill_(1, torch.tensor([0]), 0.5), Y),
    }
    for name, (x, y) in cases.items():
        model = build(x, y)
        p = model.condition_on_observations(x[:1], y[:1]).posterior(Xt)
        assert torch.isfinite(p.mean).all(), name
        assert (p.variance > 0).all(), name
        assert torch.isfinite(p.rsample(torch.Size([3]))).all(), name


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_empty_conditioning_changes_nothing(d: int, build: Callable[..., Model]) -> None:
    model = build_model(build, d)
    Xt = data(4, d, seed=1)[0]
    before = model.posterior(Xt)
    same = model.condition_on_observations(Xt[:0], Xt[:0, :1]).posterior(Xt)
    torch.testing.assert_close(same.mean, before.mean)
    torch.testing.assert_close(same.variance, before.variance)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(("d", "build"), MODELS)
def test_nan_and_inf_are_refused_with_the_rows(d: int, build: Callable[..., Model], bad: float) -> None:
    X, Y = data(12, d)
    spoiled_X, spoiled_Y = X.clone(), Y.clone()
    spoiled_X[3, 0] = spoiled_Y[5] = bad
    with pytest.raises((BoScaleError, InputDataError), match=r"train_X.*3"):
        build(spoiled_X, Y)
    with pytest.raises((BoScaleError, InputDataError), match=r"train_Y.*5"):
        build(X, spoiled_Y)
    model = build(X, Y)
    with pytest.raises(BoScaleError, match=r"X.*3"):
        model.condition_on_observations(spoiled_X, Y)
    with pytest.raises(BoScaleError, match=r"Y.*5"):
        model.condition_on_observations(X, spoiled_Y)


# ---------------------------------------------------------------- the variance that features lack

MISSING = [
    pytest.param(1, lambda X, Y, **kw: WISKI(X, Y, grid_size=6, missing_variance=True, **kw), id="WISKI-1d"),
    pytest.param(2, lambda X, Y, **kw: WISKI(X, Y, grid_size=6, missing_variance=True, **kw), id="WISKI-2d"),
    pytest.param(3, lambda X, Y, **kw: softki(X, Y, missing_variance=True, **kw), id="SoftKI"),
    pytest.param(3, lambda X, Y, **kw: grief(X, Y, missing_variance=True, **kw), id="GRIEF"),
    pytest.param(2, lambda X, Y, **kw: WISKI(X, Y, grid_size=6, conservative=True, **kw), id="conservative"),
]


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_prior_variance_and_what_is_missing_are_the_variance_of_the_kernel(d: int, build: Build) -> None:
    features, X = build(lengthscales(d)), data(30, d)[0]
    prior = prior_covariance(features, X, X).diagonal()
    torch.testing.assert_close(features.prior_variance(X), prior, rtol=1e-8, atol=1e-8)
    missing = features.missing_variance(X)
    assert (missing >= 0).all()
    torch.testing.assert_close(missing, (features.kernel_variance(X) - prior).clamp_min(0.0), rtol=1e-8, atol=1e-8)
    batch = X.unflatten(0, (5, 3, 2))
    torch.testing.assert_close(features.missing_variance(batch), missing.unflatten(0, (5, 3, 2)), rtol=1e-8, atol=1e-8)


def parts(model: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance of the posterior process and the variance added, in transformed units."""
    return model.processes[0].covariance(X), model.inference.extra_variance(X, 0)


@pytest.mark.parametrize("q", [4, 300], ids=["dense", "root"])
@pytest.mark.parametrize(("d", "build"), MISSING)
def test_a_repeated_point_in_a_batch_has_one_value(d: int, build: Callable[..., Any], q: int) -> None:
    model = build_model(build, d, outcome_transform=None)
    X = data(q, d, seed=3)[0]
    covariance, missing = parts(model, X)
    assert (missing > 1e-9).any()
    apart = model.posterior(X).distribution.covariance_matrix
    torch.testing.assert_close(apart, covariance + torch.diag(missing), rtol=1e-7, atol=1e-9)
    twice = torch.cat([X, X[:2]])
    joint = model.posterior(twice).distribution.covariance_matrix
    rows = torch.cat([torch.arange(q), torch.arange(2)])
    torch.testing.assert_close(joint, apart[rows][:, rows], rtol=1e-7, atol=1e-9)
    noisy = model.posterior(twice, observation_noise=True).distribution.covariance_matrix
    added = model.mean_noise.item() * torch.eye(q + 2).double()
    torch.testing.assert_close(noisy, joint + added, rtol=1e-7, atol=1e-9)
    pairs = torch.stack([X[:2], torch.cat([X[:1], X[:1]])])
    whole = model.posterior(pairs).distribution.covariance_matrix
    torch.testing.assert_close(whole[0], apart[:2, :2], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(whole[1], apart[:1, :1].expand(2, 2), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("d", "build"), MISSING)
def test_no_observation_real_or_fantasised_takes_the_missing_variance_away(d: int, build: Callable[..., Any]) -> None:
    model = build_model(build, d, outcome_transform=None)
    x, Z = data(1, d, seed=3)[0], data(5, d, seed=4)[0]
    fantasies = model.fantasize(x, SobolQMCNormalSampler(torch.Size([2])))
    observed = model.condition_on_observations(x, torch.zeros(1, 1).double())
    everywhere = torch.cat([x, Z])
    missing = model.inference.extra_variance(everywhere, 0)
    for conditioned in (fantasies, observed):
        process = conditioned.processes[0].variance(everywhere)
        found = conditioned.posterior(everywhere).variance.squeeze(-1)
        torch.testing.assert_close(found, (process + missing).expand_as(found), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        fantasies.posterior(everywhere).variance[0], observed.posterior(everywhere).variance, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("option", ["missing_variance", "conservative"])
def test_nipv_over_the_box_counts_the_missing_variance(d: int, option: str) -> None:
    model = build_model(lambda X, Y, **kw: WISKI(X, Y, grid_size=14 // d, **{option: True}, **kw), d)
    side = (torch.arange(300).double() + 0.5) / 300
    Z = torch.cartesian_prod(*[side] * d).reshape(-1, d)
    X = data(4, d, seed=3)[0].unflatten(0, (2, 2))
    exact, sampled = qNegIntegratedPosteriorVariance(model)(X), qNegIntegratedPosteriorVariance(model, Z)(X)
    torch.testing.assert_close(exact, sampled, rtol=1e-3, atol=1e-8)
    plain = build_model(lambda X, Y, **kw: WISKI(X, Y, grid_size=14 // d, **kw), d)
    if option == "missing_variance":
        assert (exact < qNegIntegratedPosteriorVariance(plain)(X)).all()


def test_conservative_and_missing_variance_are_not_added_twice() -> None:
    with pytest.raises(ValueError, match="choose one"):
        WISKI(*data(5, 2), grid_size=6, conservative=True, missing_variance=True)


@pytest.mark.parametrize("n", [1, 7, 25])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_the_posterior_by_qr_is_that_from_statistics(
    d: int, build: Build, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, (X, Y), (Xt, _) = build(lengthscales(d)), data(n, d), data(6, d, seed=1)
    monkeypatch.setattr(type(features), "chunk_size", lambda _: 4)
    noise = NOISE * (0.3 + X[:, 0])
    by_rows = WeightSpacePosterior.from_rows(features, X, Y[:, 0], noise, MU)
    assert_same_process(by_rows, posterior(features, X, Y[:, 0], 0.3 + X[:, 0]), Xt, 1e-8)
    single = WeightSpacePosterior.from_rows(features, X, Y[:, 0], noise, MU, torch.float32)
    assert_same_process(single, by_rows, Xt, 1e-3)


@pytest.mark.parametrize("n", [0, 1, 25])
@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_evidence_from_the_prior_itself_equals_that_from_its_root(d: int, build: Build, n: int) -> None:
    X, Y = data(n, d)
    D = 0.3 + X[:, 0]
    values, parameters = [], [lengthscales(d).requires_grad_(), NOISE.clone().requires_grad_(), MU.clone()]
    features = build(parameters[0])
    stats = SufficientStatistics.from_data(build(lengthscales(d)), X, Y, D)
    R = features.prior_root().to_dense()
    values = [
        log_evidence_of_kernel(R @ R.mT, stats, parameters[1], parameters[2]),
        log_evidence(features.prior_root(), stats, parameters[1], parameters[2]),
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-8, atol=1e-8)
    gradients = [torch.autograd.grad(value, parameters[:2], allow_unused=True) for value in values]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("d", "build"), MISSING[:-1])
def test_fantasies_move_the_mean_by_as_much_as_they_take_from_the_variance(d: int, build: Callable[..., Any]) -> None:
    """The law of total variance, Var[m'] = k − k', for a model that adds what its features lack."""
    model = build_model(build, d, outcome_transform=None)
    x, Z = data(1, d, seed=3)[0], data(3, d, seed=4)[0]
    fantasies = model.fantasize(x, SobolQMCNormalSampler(torch.Size([2048]), seed=0))
    moved = fantasies.posterior(Z).mean.var(0).squeeze(-1)
    before, after = (each.processes[0].variance(Z) for each in (model, fantasies))
    torch.testing.assert_close(moved, before - after, rtol=0.1, atol=1e-6)


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_posterior_functions_of_several_outputs_have_the_moments_of_each(d: int, build: Callable[..., Any]) -> None:
    model = build(*data(14, d, 2)).eval()
    lengthscales = next(p for name, p in model.named_parameters() if name.endswith("raw_lengthscale"))
    with torch.no_grad():
        lengthscales[1] *= 2.0
    X = data(5, d, seed=3)[0]
    functions = draw_posterior_functions(model, torch.Size([2000]), torch.Generator().manual_seed(0))
    values, posterior = functions(X), model.posterior(X)
    assert values.shape == (2000, 2, 5)
    process_sd = torch.stack([p.variance(X.double()).sqrt() for p in model.processes])
    sd = process_sd * model.outcome_transform.stdvs.mT
    assert ((values.mean(0) - posterior.mean.mT).abs() < 5 * sd / 2000**0.5 + 1e-9).all()
    rtol = 0.5 if isinstance(model, CaGP | DecoupledGP) else 0.1  # all draws share their Fourier features
    torch.testing.assert_close(values.std(0), sd, rtol=rtol, atol=1e-9)
    torch.testing.assert_close(functions(X.unsqueeze(0)), values)


def test_missing_variance_of_few_ends_when_there_are_more_observations_than_features() -> None:
    """Said by the model's data alone, so that a model streamed over the limit, or restored, is as one built there."""
    X, Y = data(21, 3)
    model = softki(X[:20], Y[:20], missing_variance="few", outcome_transform=None).eval()
    fantasies = model.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([2])))
    more = model.condition_on_observations(X[20:], Y[20:])
    assert model.inference.extra_variance(X[:3], 0) is not None
    assert fantasies.inference.extra_variance(X[:3], 0) is not None
    assert more.inference.extra_variance(X[:3], 0) is None
    always = softki(X, Y, missing_variance=True, outcome_transform=None).eval()
    assert always.inference.extra_variance(X[:3], 0) is not None


# ---------------------------------------------------------------- change over time


def ages(n: int, decay: float) -> Tensor:
    """The weights of n observations in order of arrival."""
    return torch.tensor([decay ** (n - 1 - i) for i in range(n)], dtype=torch.float64)


def tempered(K: Tensor, y: Tensor, D: Tensor, weights: Tensor, noise: Tensor = NOISE, mu: Tensor = MU) -> Tensor:
    """Log ∫ Π N(y_i | f_i, σ²D_i)^ω_i N(f; μ, K) df: noise D/ω, and what its normaliser has too much."""
    density = MultivariateNormal(mu.expand(len(y)), K + noise * torch.diag(D / weights)).log_prob(y)
    over = (D / weights).log() - weights * D.log() + (1 - weights) * (2 * torch.pi * noise).log()
    return density + 0.5 * over.sum()


def test_the_tempered_evidence_is_the_integral_it_stands_for() -> None:
    """Of one observation of one value, by quadrature."""
    k, y, D, weight = (torch.tensor([v], dtype=torch.float64) for v in (0.7, 1.1, 0.4, 0.3))
    f = torch.linspace(-12.0, 12.0, 20_001, dtype=torch.float64)
    log_normal = torch.distributions.Normal
    likelihood = weight * log_normal(f, (NOISE * D).sqrt()).log_prob(y)
    integral = torch.trapezoid((likelihood + log_normal(MU, k.sqrt()).log_prob(f)).exp(), f).log()
    torch.testing.assert_close(tempered(torch.diag(k), y, D, weight), integral, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_discounted_statistics_are_those_of_observations_that_count_less(d: int, build: Build) -> None:
    features, (X, Y) = build(lengthscales(d)), data(20, d, 2)
    D, weights = 0.5 + X[:, 0], torch.tensor([0.7] * 13 + [1.0] * 7, dtype=torch.float64)
    of = SufficientStatistics.from_data
    whole = of(features, X, Y, D, weights)
    discounted = of(features, X[:13], Y[:13], D[:13]).discounted(0.7)
    assert (discounted.count, discounted.effective_count.item()) == (13, pytest.approx(0.7 * 13))
    assert_same_statistics(whole, discounted.observe(features, X[13:], Y[13:], D[13:]))
    assert_same_statistics(whole, discounted + of(features, X[13:], Y[13:], D[13:]))
    assert_same_statistics(whole - of(features, X[13:], Y[13:], D[13:]), discounted)
    scale, offset = torch.tensor([2.0, -0.5]).double(), torch.tensor([-1.0, 30.0]).double()
    changed = of(features, X, scale * Y + offset, 4 * D, weights)
    assert_same_statistics(changed, whole.affine(scale, offset, noise_scale=4.0))
    assert_same_statistics(changed, of(features, X, Y, D, weights).recenter(offset).affine(scale, offset, 4.0))
    assert_same_statistics(of(features, X, Y[:, 1:], D, weights), whole.outputs([1]).to(torch.device("cpu")))
    empty = SufficientStatistics.empty(features, 2)
    assert_same_statistics(whole, empty.restored(whole.state()))
    old = {name: value for name, value in of(features, X, Y, D).state().items() if name != "effective_count"}
    assert_same_statistics(of(features, X, Y, D), empty.restored(old))


def test_weights_and_factors_are_above_0_and_at_most_1() -> None:
    features, (X, Y) = FEATURES[0].values[1](lengthscales(1)), data(3, 1)
    for bad in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(InvalidDataError, match="weights"):
            SufficientStatistics.from_data(features, X, Y, weights=torch.tensor([1.0, bad, 1.0]))
        with pytest.raises(InvalidDataError, match="factor"):
            SufficientStatistics.from_data(features, X, Y).discounted(bad)


@pytest.mark.parametrize(("d", "build"), FEATURES)
def test_evidence_and_posterior_of_weighted_observations_equal_the_dense_tempered_gp(d: int, build: Build) -> None:
    (X, Y), (Xt, _) = data(20, d), data(5, d, seed=1)
    y, D, weights = Y[:, 0], 0.3 + X[:, 0], ages(20, 0.8)
    parameters = [lengthscales(d).requires_grad_(), NOISE.clone().requires_grad_(), MU.clone().requires_grad_()]
    features = build(parameters[0])
    noise, mu = parameters[1:]
    K, R = prior_covariance(features, X, X), features.prior_root().to_dense()
    stats = SufficientStatistics.from_data(build(lengthscales(d)), X, Y, D, weights)
    reference = tempered(K, y, D, weights, noise, mu)
    expected = torch.autograd.grad(reference, parameters, retain_graph=True)
    with_gradient = SufficientStatistics.from_data(features, X, Y, D, weights)
    for ours in (
        log_evidence(features.prior_root(), with_gradient, noise, mu),
        log_evidence_of_kernel(R @ R.mT, with_gradient, noise, mu),
        log_density(features.prior_covariance(X), y, D, noise, mu, weights),
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-7)
        for a, b in zip(torch.autograd.grad(ours, parameters, retain_graph=True), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    mean, covariance = exact(build(lengthscales(d)), X, y, D / weights, Xt)
    found = WeightSpacePosterior.from_statistics(build(lengthscales(d)), stats, NOISE, MU)
    torch.testing.assert_close(found.mean(Xt), mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.covariance(Xt), covariance, rtol=1e-8, atol=1e-8)


def assert_same_model(a: Any, b: Any, X: Tensor, tolerance: float = 1e-8) -> None:
    """Loss, its gradient, and predictions with noise."""
    losses = [x.compute_custom_loss(ExactMarginalLogLikelihood(x.likelihood, x)) for x in (a, b)]
    torch.testing.assert_close(losses[0], losses[1], rtol=tolerance, atol=tolerance)
    gradients = [
        torch.autograd.grad(loss, [p for p in x.parameters() if p.requires_grad]) for loss, x in zip(losses, (a, b))
    ]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=100 * tolerance, atol=100 * tolerance)
    p, q = (x.eval().posterior(X, observation_noise=True) for x in (a, b))
    torch.testing.assert_close(p.mean, q.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(p.variance, q.variance, rtol=tolerance, atol=tolerance)
    assert a.num_observations == b.num_observations


def told(Y: Tensor, known: bool) -> dict[str, Any]:
    """Variances that differ from row to row and, for several outputs, between them."""
    return {"train_Yvar": 0.01 + 0.1 * Y.square()} if known else {}


def tell(model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None, sizes: list[int]) -> Any:
    """Stream observations in calls of some sizes."""
    variances = [None] * len(sizes) if Yvar is None else list(Yvar.split(sizes))
    for x, y, v in zip(X.split(sizes), Y.split(sizes), variances, strict=True):
        noise = v if v is None or not hasattr(model, "outcome_transform") else model.outcome_transform(y, v)[1]
        model = model.condition_on_observations(x, y, noise=noise)
    return model


@pytest.mark.parametrize(
    ("m", "known", "few"), [(1, False, 1), (2, True, 10**9)], ids=["few rows", "known, two outputs, statistics"]
)
@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_streaming_with_decay_is_the_model_built_anew_from_all_rows(
    d: int, build: Callable[..., Any], m: int, known: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mechanism is every weight-space model's; WISKI offers it."""
    monkeypatch.setattr(weight_space, "FEW", few)
    X, Y = data(16, d, m)
    Yvar = told(Y, known).get("train_Yvar")

    def built(n: int) -> Any:
        model = build(X[:n], Y[:n], outcome_transform=None, **({} if Yvar is None else {"train_Yvar": Yvar[:n]}))
        model.forgetting = Forgetting(0.8)
        model._forget_inference()
        return model

    whole, start = built(16), built(6)
    start.posterior(X[:1])
    assert_same_model(tell(start, X[6:], Y[6:], Yvar if Yvar is None else Yvar[6:], [1, 0, 4, 5]), whole, X[:5])
    torch.testing.assert_close(whole.statistics[0].effective_count.item(), (1 - 0.8**16) / 0.2)
    K = whole._feature_map(0).prior_covariance(whole._transformed_rows()[0])
    D, noise, mu = whole._rows.D[:, 0], whole.inference.noise[0], whole._constants()[0]
    reference = tempered(K, Y[:, 0], D, ages(16, 0.8), noise, mu)
    torch.testing.assert_close(whole._log_evidence()[0], reference, rtol=1e-6, atol=1e-6)


WISKIS = [case for case in WEIGHT_SPACE if str(case.id).startswith("WISKI")]


@pytest.mark.parametrize(("known", "kept"), [(False, True), (True, False)], ids=["rows", "known, statistics alone"])
@pytest.mark.parametrize(("d", "build"), WISKIS[::2])
def test_decay_survives_other_units_files_and_subsets(
    d: int, build: Callable[..., Any], known: bool, kept: bool, tmp_path: Path
) -> None:
    X, Y = data(30, d, 2)
    Y, Xt = 3 * Y + 10, data(5, d, seed=1)[0]
    Yvar = told(Y, known).get("train_Yvar")
    options = {"decay": 0.9, "keep_data": kept}
    first = [None if Yvar is None else Yvar[:12], None if Yvar is None else Yvar[12:]]
    streamed = tell(build(X[:12], Y[:12], train_Yvar=first[0], **options).eval(), X[12:], Y[12:], first[1], [18])
    again = streamed.restandardised(Y.mean(0, keepdim=True), Y.std(0, keepdim=True))
    whole = build(X, Y, train_Yvar=Yvar, **options)
    assert_same_model(again, whole, Xt)
    save_model(streamed, tmp_path / "model.pt")
    loaded = load_model(
        build(X[:1], Y[:1], train_Yvar=None if Yvar is None else Yvar[:1], **options), tmp_path / "model.pt"
    )
    assert_same_model(streamed, loaded, Xt, 0.0)
    last = [tell(x, X[:2], Y[:2], None if Yvar is None else Yvar[:2], [2]) for x in (streamed, loaded)]
    assert_same_model(*last, Xt, 0.0)
    variances = [None, None] if Yvar is None else [v[:, 1:] for v in Yvar.split([12, 18])]
    second = build(X[:12], Y[:12, 1:], train_Yvar=variances[0], **options).eval()
    assert_same_model(streamed.subset_output([1]), tell(second, X[12:], Y[12:, 1:], variances[1], [18]), Xt)


def test_fantasies_make_nothing_older() -> None:
    X, Y = data(20, 2)
    model = WISKI(X, Y, grid_size=10, decay=0.5).eval()
    x, Xt = data(2, 2, seed=3)[0], data(5, 2, seed=1)[0]
    fantasies = model.condition_on_observations(x.unsqueeze(0), Y[:2].unsqueeze(0))
    process = model.processes[0]
    z = model.outcome_transform(Y[:2])[0].squeeze(-1)
    expected = condition(process, x, z, model.mean_noise.expand(2))
    torch.testing.assert_close(fantasies.processes[0].variance(Xt).squeeze(0), expected.variance(Xt))


@pytest.mark.parametrize("few", [1, 10**9], ids=["few rows", "statistics"])
def test_weights_that_underflow_do_no_harm(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_space, "FEW", few)
    X, Y = data(60, 1)
    Xt, options = data(5, 1, seed=1)[0], {"grid_size": 100, "outcome_transform": None}
    whole = WISKI(X, Y, decay=1e-12, **options)
    assert_same_model(tell(WISKI(X[:3], Y[:3], decay=1e-12, **options), X[3:], Y[3:], None, [7, 50]), whole, Xt)
    alone = WISKI(X[-1:], Y[-1:], **options).posterior(Xt)
    torch.testing.assert_close(whole.posterior(Xt).mean, alone.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.posterior(Xt).variance, alone.variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("m", "known", "kept"), [(1, False, True), (2, True, False)], ids=["rows", "known, two outputs, statistics alone"]
)
@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_what_is_removed_was_never_told(d: int, build: Callable[..., Any], m: int, known: bool, kept: bool) -> None:
    (X, Y), Xt = data(18, d, m), data(5, d, seed=1)[0]
    Yvar, gone = told(Y, known).get("train_Yvar"), [0, 7, 17, 11]
    stay = [i for i in range(18) if i not in gone]
    options = {"outcome_transform": None, **({} if kept else {"keep_data": False})}
    without = build(X[stay], Y[stay], train_Yvar=None if Yvar is None else Yvar[stay], **options)
    whole = build(X[:9], Y[:9], train_Yvar=None if Yvar is None else Yvar[:9], **options).eval()
    whole = tell(whole, X[9:], Y[9:], None if Yvar is None else Yvar[9:], [9])
    before = whole.posterior(Xt)
    if kept:
        less = whole.remove_observations([0, 7, -1, 11])
        assert torch.equal(less.train_inputs[0], without.train_inputs[0])
        assert torch.equal(less.train_targets, without.train_targets)
    else:
        less = whole.remove_observations(X=X[gone], Y=Y[gone], noise=None if Yvar is None else Yvar[gone])
    assert_same_model(less, without, Xt)
    again = [tell(x, X[gone], Y[gone], None if Yvar is None else Yvar[gone], [4]) for x in (less, without)]
    assert_same_model(*again, Xt)
    assert torch.equal(whole.posterior(Xt).mean, before.mean)
    assert torch.equal(whole.posterior(Xt).variance, before.variance)
    assert whole.num_observations == 18


@pytest.mark.parametrize(("known", "kept"), [(False, False), (True, True)], ids=["statistics alone", "known, rows"])
@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_removing_everything_leaves_the_prior_and_what_comes_next_is_the_first(
    d: int, build: Callable[..., Any], known: bool, kept: bool
) -> None:
    X, Y = data(12, d)
    Xt, Yvar = data(5, d, seed=1)[0], told(Y, known).get("train_Yvar")
    options = {"outcome_transform": None, **({} if kept else {"keep_data": False})}
    model = build(X, Y, train_Yvar=Yvar, **options).eval()
    every = {"rows": list(range(12))} if kept else {"X": X, "Y": Y, "noise": Yvar}
    empty = model.remove_observations(**every)
    assert empty.num_observations == 0
    process, prior = empty.processes[0], empty._feature_map(0).prior_covariance(Xt)
    torch.testing.assert_close(process.mean(Xt), empty._constants()[0].expand(5))
    torch.testing.assert_close(process.covariance(Xt), prior, rtol=1e-8, atol=1e-8)
    noise = None if Yvar is None else Yvar[:4]
    first = empty.condition_on_observations(X[:4], Y[:4], noise=noise)
    assert_same_model(first, build(X[:4], Y[:4], train_Yvar=noise, **options), Xt)


@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_removal_sees_the_rows_under_the_present_features_and_units(d: int, build: Callable[..., Any]) -> None:
    X, Y = data(18, d)
    Y, Xt = 5 * Y + 20, data(5, d, seed=1)[0]
    model = build(X[:12], Y[:12]).eval()
    model.posterior(Xt)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05
    model = tell(model, X[12:], Y[12:], None, [6]).restandardised(Y.mean(0, keepdim=True), Y.std(0, keepdim=True))
    keep = [i for i in range(18) if i not in (2, 13)]
    expected = model.condition_on_observations(X[:0], Y[:0])
    expected._take_rows(expected._rows.without(torch.tensor([2, 13])))
    expected._forget_inference()
    less = model.remove_observations(torch.tensor([13, 2]))
    assert torch.equal(less.train_inputs[0], X[keep])
    assert_same_model(less, expected, Xt)


@pytest.mark.parametrize(("d", "build"), WISKIS)
def test_with_decay_the_ages_of_what_stays_are_counted_anew(d: int, build: Callable[..., Any]) -> None:
    (X, Y), Xt = data(18, d), data(5, d, seed=1)[0]
    whole = tell(build(X[:9], Y[:9], decay=0.8, outcome_transform=None), X[9:], Y[9:], None, [9])
    stay = [i for i in range(18) if i not in (0, 5, 16)]
    assert_same_model(
        whole.remove_observations([0, 5, 16]), build(X[stay], Y[stay], decay=0.8, outcome_transform=None), Xt
    )


def test_a_wrong_removal_is_refused_with_the_remedy() -> None:
    X, Y = data(10, 2)
    kept, alone = (softki(X, Y, keep_data=keep) for keep in (True, False))
    mask = torch.ones(10, dtype=torch.bool)
    for rows in ([10], [-11], [3, 3], [3, -7], [True], torch.tensor([0.5]), torch.tensor(3), mask):
        with pytest.raises(InvalidDataError, match="rows:"):
            kept.remove_observations(rows)
    for arguments in ({}, {"X": X, "Y": Y}, {"rows": [1], "Y": Y[:1]}, {"rows": [1], "noise": Y[:1]}):
        with pytest.raises(InvalidDataError, match="rows: this model keeps its data"):
            kept.remove_observations(**arguments)
    for arguments in ({}, {"rows": [1]}, {"X": X[:1]}, {"rows": [1], "X": X[:1], "Y": Y[:1]}):
        with pytest.raises(InvalidDataError, match="X, Y: this model keeps no rows"):
            alone.remove_observations(**arguments)
    for x, y in ((X[:2], Y[:1]), (X[:1, :1], Y[:1]), (X[:1], Y[:1].expand(1, 2)), (X[:1].unsqueeze(0), Y[:1])):
        with pytest.raises(InvalidDataError, match="X, Y: shapes"):
            alone.remove_observations(X=x, Y=y)
    with pytest.raises(InvalidDataError, match="cannot remove 11 observations from 10"):
        alone.remove_observations(X=torch.cat([X, X[:1]]), Y=torch.cat([Y, Y[:1]]))
    with pytest.raises(InvalidDataError, match="X: NaN"):
        alone.remove_observations(X=X[:1] * float("nan"), Y=Y[:1])
    with pytest.raises(UnsupportedError, match="fantasies"):
        kept.eval().fantasize(X[:1], SobolQMCNormalSampler(torch.Size([2]))).remove_observations([0])
    fixed = softki(X, Y, keep_data=False, train_Yvar=0.1 * torch.ones_like(Y))
    with pytest.raises(UnsupportedError, match="noise: this model was given train_Yvar"):
        fixed.remove_observations(X=X[:1], Y=Y[:1])
    aging = WISKI(X, Y, grid_size=8, decay=0.9, keep_data=False)
    with pytest.raises(UnsupportedError, match="keep_data=True"):
        aging.remove_observations(X=X[:1], Y=Y[:1])
    two = softki(X, torch.cat([Y, -Y], -1), keep_data=False, train_Yvar=torch.full((10, 2), 0.1).double())
    with pytest.raises(InvalidDataError, match="noise: differs between outputs"):
        two.remove_observations(X=X[:1], Y=torch.ones(1, 2).double(), noise=torch.tensor([[0.1, 0.2]]).double())
    assert torch.equal(kept.remove_observations([]).train_inputs[0], X)


# ---------------------------------------------------------------- transforms that add columns


class WithProduct(InputTransform):
    """The inputs and their product."""

    def __init__(self) -> None:
        super().__init__()
        self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True

    def transform(self, X: Tensor) -> Tensor:
        return torch.cat([X, X.prod(-1, keepdim=True)], -1)


@pytest.mark.parametrize(
    "build",
    [
        lambda X, Y, **kw: WISKI(X, Y, grid_size=12, bounds=torch.tensor([[0.0], [1.0]]).expand(2, X.shape[-1]), **kw),
        lambda X, Y, **kw: GRIEF(X, Y, num_eigenfunctions=20, **kw),
        lambda X, Y, **kw: SoftKI(X, Y, num_interpolation_points=6, **kw),
        lambda X, Y, **kw: CaGP(X, Y, **kw),
        lambda X, Y, **kw: CaGP(X, Y, num_actions=5, **kw),
        lambda X, Y, **kw: DecoupledGP(X, Y, num_mean_inducing=8, num_covar_inducing=5, **kw),
    ],
    ids=["WISKI", "GRIEF", "SoftKI", "CaGP", "CaGP-few", "Decoupled"],
)
def test_a_transform_that_adds_columns_gives_the_model_of_all_of_them(build: Any) -> None:
    (X, Y), (Z, W) = data(20, 2), data(5, 2, seed=1)
    lift = WithProduct()
    model, plain = build(X, Y, input_transform=WithProduct()).eval(), build(lift(X), Y).eval()
    more, also = model.condition_on_observations(Z, W), plain.condition_on_observations(lift(Z), W)
    for one, other in ((model, plain), (more, also)):
        torch.testing.assert_close(one.posterior(Z).mean, other.posterior(lift(Z)).mean)
        torch.testing.assert_close(one.posterior(Z).variance, other.posterior(lift(Z)).variance)
    assert model.fantasize(Z, SobolQMCNormalSampler(torch.Size([3]))).posterior(X).mean.shape == (3, 20, 1)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 3}})
    assert model.posterior(Z).variance.min() > 0


# ---------------------------------------------------------------- derivatives of predictions


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_predictions_can_be_differentiated_twice_and_by_torch_func(d: int, build: Any) -> None:
    """Second derivatives are those of the gradient by finite differences, never silently zero."""
    model, x = build(*data(15, d)).eval(), data(3, d, seed=5)[0][2]

    def said(z: Tensor) -> Tensor:
        posterior = model.posterior(z.reshape(1, d))
        return posterior.mean.sum() + posterior.variance.sum()

    def gradient(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_(True)
        return torch.autograd.grad(said(z), z)[0]

    first = gradient(x)  # the inference is made here: torch.func would trace it
    torch.testing.assert_close(torch.func.jacrev(said)(x), first)
    step = 1e-5 * torch.eye(d, dtype=torch.float64)
    differences = torch.stack([(gradient(x + e) - gradient(x - e)) / 2e-5 for e in step])
    hessian = torch.autograd.functional.hessian(said, x)
    torch.testing.assert_close(hessian, differences, rtol=1e-3, atol=1e-3 * float(differences.abs().max()))


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize(("d", "build"), [case for case in WEIGHT_SPACE if "conservative" not in str(case.id)])
def test_a_training_loop_of_gpytorch_has_the_loss_of_the_fit(d: int, build: Any, m: int) -> None:
    """SoftKI's points and temperature among the parameters: the exact kernel would give them no gradient."""
    model = build(*data(12, d, m)).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    ours = model.compute_custom_loss(mll)
    theirs = -mll(model(*model.train_inputs), model.train_targets).sum()
    learned = [p for p in model.parameters() if p.requires_grad]
    torch.testing.assert_close(theirs.double(), ours, rtol=1e-6, atol=1e-6)
    pairs = zip(torch.autograd.grad(ours, learned), torch.autograd.grad(theirs, learned), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
