"""GRIEFBayes is a fully Bayesian model of BoTorch: every sample of it the dense GP of that sample."""

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance as SampledVariance
from botorch.acquisition.bayesian_active_learning import qBayesianActiveLearningByDisagreement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.transforms.outcome import Log
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.transforms import is_ensemble, is_fully_bayesian
from cases import data
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Size, Tensor
from torch.autograd import gradcheck

from bo_scale import (
    AveragedEnsemble,
    GRIEFBayes,
    draw_posterior_functions,
    load_model,
    qNegIntegratedPosteriorVariance,
    save_model,
)
from bo_scale.decisions.thompson import draw_functions, thompson_batch
from bo_scale.errors import InvalidArgumentError, SamplingWarning
from bo_scale.gp.conditioning import Conditioned
from bo_scale.gp.weight_space.rotated_evidence import Rotated

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")

N, S = 24, 6
X, Y = data(N, 2)
Xt, Xn, Yn = data(5, 2, seed=3)[0], *data(3, 2, seed=4)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)


def bayes(train_X: Tensor = X, train_Y: Tensor = Y, *args: Any, **options: Any) -> GRIEFBayes:
    given = {"num_eigenfunctions": 18, "grid_points": 6, "num_samples": S, "bounds": BOUNDS.to(train_X)}
    return GRIEFBayes(train_X, train_Y, *args, **{**given, "outcome_transform": None, "subset_size": 20, **options})


def chains(train_Yvar: Tensor | None = None, **options: Any) -> GRIEFBayes:
    return bayes(X, Y, train_Yvar, **{"sampler": "langevin", "num_iterations": 1500, "burn": 500, **options})


def sampled(of: GRIEFBayes) -> GRIEFBayes:
    of.posterior(Xt)
    return of


@pytest.fixture
def model() -> GRIEFBayes:
    return sampled(bayes())


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sampler(n: int) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(Size([n]), seed=7)


def covariance(posterior: Any) -> Tensor:
    return posterior.distribution.covariance_matrix


def assert_same(a: Any, b: Any, **tolerance: float) -> None:
    close(a.mean, b.mean, **tolerance)
    close(covariance(a), covariance(b), **tolerance)


def samples(of: GRIEFBayes) -> Tensor:
    return of._samples.mixture.log_noise


def dense(of: GRIEFBayes, seen_X: Tensor, y: Tensor, D: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `S × q` and covariance at Z of every sample's GP on rows y, its noise σ²D, by n×n matrices."""
    features, constant = of._feature_map(0, frozen=True), of._constants()[0].detach()
    rotated = Rotated.of(of.inference.statistics_of(0), features.outputscale, constant)
    log_weights, log_noise, _ = of._seen().sampler._drawn(rotated, of.inference.hyperparameters, None)
    rho = torch.ones(S, len(rotated.rotation), dtype=torch.float64)
    rho[:, : len(rotated.gram)] = log_weights.exp()
    F, G = (features.outputscale.sqrt() * features(points) @ rotated.rotation for points in (seen_X, Z))
    K = (F * rho.unsqueeze(1)) @ F.mT + torch.diag_embed(log_noise.exp().unsqueeze(-1) * D)
    cross = (G * rho.unsqueeze(1)) @ F.mT
    gain = torch.linalg.solve(K, cross.mT).mT
    mean = constant + (gain @ (y - constant).unsqueeze(-1)).squeeze(-1)
    return mean, (G * rho.unsqueeze(1)) @ G.mT - gain @ cross.mT


def schur(of: GRIEFBayes, points: Tensor, y: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance at Z of every sample when it has also seen y at points, from its own joint posterior."""
    joint, q = of.posterior(torch.cat([points, Z])), len(points)
    mean, C = joint.mean.squeeze(-1), covariance(joint)
    A = C[..., :q, :q] + torch.diag_embed(samples(of).exp().unsqueeze(-1).expand(-1, q))
    gain = torch.linalg.solve(A, C[..., :q, q:]).mT
    mean = mean[..., q:] + (gain @ (y - mean[..., :q]).unsqueeze(-1)).squeeze(-1)
    return mean, C[..., q:, q:] - gain @ C[..., :q, q:]


# ---------------------------------------------------------------- every sample is a GP


@pytest.mark.parametrize("rows", [N, 7], ids=lambda n: f"n={n}")
def test_every_sample_is_its_dense_gp(rows: int) -> None:
    model = bayes(X[:rows], Y[:rows]).eval()
    mean, C = dense(model, X[:rows], Y[:rows, 0], torch.ones(rows).double(), Xt)
    posterior = model.posterior(Xt)
    close(posterior.mean.squeeze(-1), mean)
    close(covariance(posterior), C)


def test_known_noise_is_taken_as_it_is() -> None:
    D = torch.linspace(0.01, 0.3, N, dtype=torch.float64)
    model = bayes(X, Y, D.unsqueeze(-1)).eval()
    mean, C = dense(model, X, Y[:, 0], D, Xt)
    close(model.posterior(Xt).mean.squeeze(-1), mean)
    close(covariance(model.posterior(Xt)), C)
    assert (samples(model) == 0).all()
    noisy = model.posterior(Xt, observation_noise=True)
    close(noisy.variance - model.posterior(Xt).variance, D.mean().expand(S, 5, 1))


# ---------------------------------------------------------------- what BoTorch reads


def test_declares_a_fully_bayesian_ensemble(model: GRIEFBayes) -> None:
    assert model._is_fully_bayesian
    assert model._is_ensemble
    assert is_fully_bayesian(model)
    assert is_ensemble(model)
    assert model.batch_shape == Size([S])
    assert model.num_mcmc_samples == S
    assert model.num_outputs == 1
    assert model.num_observations == N


def saas() -> EnsembleMapSaasSingleTaskGP:
    """BoTorch's ensemble that needs no JAX."""
    return EnsembleMapSaasSingleTaskGP(X, Y, num_taus=S, outcome_transform=None).eval()


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("q", [1, 4])
def test_shapes_are_those_of_botorchs_own(model: GRIEFBayes, batch: tuple[int, ...], q: int) -> None:
    points = rand(*batch, q, 2)
    ours, theirs = model.posterior(points), saas().posterior(points)
    assert type(ours) is type(theirs) is GaussianMixturePosterior
    assert ours.mean.shape == theirs.mean.shape == (*batch, S, q, 1)
    for name in ("variance", "mixture_mean", "mixture_variance", "mixture_covariance_matrix"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape, name
    assert ours.rsample(Size([2])).shape == theirs.rsample(Size([2])).shape == (2, *batch, S, q, 1)
    assert ours.batch_range == theirs.batch_range
    assert ours.quantile(torch.tensor(0.3).double()).shape == (*batch, q, 1)


@pytest.mark.parametrize("batch", [(), (4,)], ids=str)
def test_fantasies_come_before_the_batch_and_the_samples(model: GRIEFBayes, batch: tuple[int, ...]) -> None:
    points = rand(*batch, 2, 2)
    ours = model.fantasize(points, sampler(3))
    assert ours.batch_shape == (3, *batch, S)
    assert ours.posterior(rand(*batch, 5, 2)).mean.shape == (3, *batch, S, 5, 1)
    assert ours.train_inputs[0].shape == (3, *batch, S, N + 2, 2)
    assert ours.train_targets.shape == (3, *batch, S, N + 2)


def test_batches_are_independent(model: GRIEFBayes) -> None:
    points = rand(2, 3, 4, 2)
    posterior = model.posterior(points)
    close(posterior.mean[1, 2], model.posterior(points[1, 2]).mean)
    close(covariance(posterior)[1, 2], covariance(model.posterior(points[1, 2])))


def test_the_mixture_has_the_moments_and_quantiles_of_its_parts(model: GRIEFBayes) -> None:
    posterior = model.posterior(Xt)
    close(posterior.mixture_mean, posterior.mean.mean(0))
    close(posterior.mixture_variance, posterior.variance.mean(0) + posterior.mean.var(0, correction=0))
    quantile = posterior.quantile(torch.tensor(0.2).double())
    below = torch.distributions.Normal(posterior.mean, posterior.variance.sqrt()).cdf(quantile).mean(0)
    close(below, torch.full_like(below, 0.2), atol=1e-4, rtol=0)
    close(model.posterior_mean(Xt), posterior.mixture_mean)


def test_draws_have_the_moments_of_every_sample(model: GRIEFBayes) -> None:
    posterior = model.posterior(Xt)
    drawn = posterior.rsample(Size([4000]))
    sd = posterior.variance.sqrt()
    assert ((drawn.mean(0) - posterior.mean) / sd).abs().max() < 5 / 4000**0.5
    close(drawn.std(0), sd, rtol=0.08, atol=0)


def test_observation_noise_is_every_samples_own_or_as_given(model: GRIEFBayes) -> None:
    without = model.posterior(Xt).variance
    added = model.posterior(Xt, observation_noise=True).variance - without
    close(added, samples(model).exp().reshape(S, 1, 1).expand(S, 5, 1))
    for noise in (rand(5, 1), rand(1, 1), rand(S, 5, 1), rand(S, 1, 1)):
        close(model.posterior(Xt, observation_noise=noise).variance - without, noise.expand(S, 5, 1))
    batch, noise = rand(2, 5, 2), rand(2, 1, 5, 1)
    added = model.posterior(batch, observation_noise=noise).variance - model.posterior(batch).variance
    close(added, noise.expand(2, S, 5, 1))
    close(model.mean_noise, samples(model).exp().mean().reshape(1))


def test_a_posterior_transform_is_applied_last(model: GRIEFBayes) -> None:
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]).double(), offset=1.0)
    plain, scaled = model.posterior(Xt), model.posterior(Xt, posterior_transform=transform)
    close(scaled.mean, 1 - 2 * plain.mean)
    close(scaled.variance, 4 * plain.variance)


def test_gradients_are_finite_differences(model: GRIEFBayes) -> None:
    points = rand(2, 2, 2).requires_grad_()
    assert gradcheck(lambda Z: (model.posterior(Z).mean, covariance(model.posterior(Z))), (points,))


def test_standardised_targets_change_units_only() -> None:
    mean, sd = Y.mean(), Y.std()
    model, reference = bayes(X, 50 + 7 * Y, outcome_transform=Standardize(1)), bayes(X, (Y - mean) / sd)
    for found, standard in (
        (model.posterior(Xt), reference.posterior(Xt)),
        (model.posterior(Xt, observation_noise=True), reference.posterior(Xt, observation_noise=True)),
        (model.fantasize(Xn, sampler(2)).posterior(Xt), reference.fantasize(Xn, sampler(2)).posterior(Xt)),
    ):
        assert isinstance(found, GaussianMixturePosterior)
        close(found.mean, 50 + 7 * (mean + sd * standard.mean))
        close(found.variance, (7 * sd) ** 2 * standard.variance)
    close(model.posterior_mean(Xt), model.posterior(Xt).mixture_mean)


def test_other_outcome_transforms_are_undone_sample_by_sample() -> None:
    model, reference = bayes(X, Y.exp(), outcome_transform=Log()), bayes()
    found = model.posterior(Xt)
    inner = reference.posterior(Xt)
    close(found.mean, (inner.mean + 0.5 * inner.variance).exp())
    close(model.posterior_mean(Xt), found.mean.mean(0))


def test_an_input_transform_changes_units_only(model: GRIEFBayes) -> None:
    scaled = bayes(20 * X - 5, Y, bounds=20 * BOUNDS - 5, input_transform=Normalize(2, bounds=20 * BOUNDS - 5)).eval()
    assert_same(scaled.posterior(20 * Xt - 5), model.posterior(Xt))
    given, reference = scaled.condition_on_observations(20 * Xn - 5, Yn), model.condition_on_observations(Xn, Yn)
    assert_same(given.posterior(20 * Xt - 5), reference.posterior(Xt))


def test_single_precision_computes_in_double(model: GRIEFBayes) -> None:
    single = bayes(X.float(), Y.float()).eval()
    fantasies = single.fantasize(Xn.float(), sampler(2).to(torch.float32)).posterior(Xt.float())
    for posterior in (single.posterior(Xt.float()), fantasies):
        assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    assert (single.posterior(Xt.float()).mean - model.posterior(Xt).mean).abs().max() < 0.1
    assert single.double().posterior(Xt).mean.dtype == torch.float64


# ---------------------------------------------------------------- sampling


@pytest.mark.filterwarnings("ignore::bo_scale.errors.SamplingWarning")
def test_samples_are_a_function_of_the_seed_and_leave_the_global_one() -> None:
    state = torch.get_rng_state()
    for make in (bayes, partial(chains, num_iterations=600)):
        a, b, c = (make(seed=seed).eval() for seed in (1, 1, 2))
        assert torch.equal(a.posterior(Xt).mean, b.posterior(Xt).mean)
        assert not torch.equal(samples(a), samples(c))
    assert torch.equal(torch.get_rng_state(), state)


def test_new_hyperparameters_are_sampled_at(model: GRIEFBayes) -> None:
    before, kept = samples(model), model.posterior(Xt).mean
    assert samples(model) is before
    model.likelihood.noise = 0.5
    assert not torch.equal(samples(model), before)
    other = bayes().eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.posterior(Xt).mean, model.posterior(Xt).mean)
    assert not torch.equal(kept, model.posterior(Xt).mean)


def test_a_fit_is_that_of_the_eigenfunctions_and_is_sampled_anew() -> None:
    model = bayes()
    before = samples(model).clone()
    options = {"options": {"maxiter": 5}}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=options)
    assert not model.training
    assert not torch.equal(samples(model), before)
    assert model.posterior(Xt).mean.isfinite().all()


@pytest.mark.filterwarnings("ignore:GRIEFBayes. chains")
def test_chains_and_exact_draws_predict_alike() -> None:
    exact, langevin = bayes(num_samples=200).eval(), chains(num_samples=200, num_iterations=3500).eval()
    a, b = exact.posterior(Xt), langevin.posterior(Xt)
    sd = a.mixture_variance.sqrt()
    assert (a.mixture_mean - b.mixture_mean).abs().lt(0.3 * sd).all()  # at most 0.18 over 50 seeds
    close(a.mixture_variance.sqrt(), b.mixture_variance.sqrt(), rtol=0.3, atol=0)
    assert abs(samples(exact).mean() - samples(langevin).mean()) < 0.45 * samples(exact).std()
    found = langevin.diagnostics
    assert found is not None
    assert found.sampler == "langevin"
    assert found.iterations == 3500
    assert 0.45 < found.acceptance < 0.7
    assert max(found.r_hat_noise, found.r_hat_mean) < 1.08  # 1.021 ± 0.009 over 50 seeds
    assert found.effective_size > 50
    assert exact.diagnostics is not None
    assert exact.diagnostics.sampler == "exact"


def test_chains_that_are_too_short_are_warned_of() -> None:
    with pytest.warns(SamplingWarning, match="chains have not mixed"):
        chains(num_iterations=60, burn=10, num_samples=32).posterior(Xt)


def test_chains_of_a_few_kept_states_are_warned_of() -> None:
    with pytest.warns(SamplingWarning):
        chains(num_iterations=1150, burn=1000).posterior(Xt)


def test_fewer_samples_than_chains() -> None:
    with pytest.warns(SamplingWarning):
        assert chains(num_iterations=60, burn=30, num_samples=2).posterior(Xt).mean.shape == (2, 5, 1)


def test_chains_with_known_noise_are_not_warned_of_it() -> None:
    model = chains(torch.full_like(Y, 0.01), num_samples=32, num_iterations=6000)
    assert model.posterior(Xt).mean.shape == (32, 5, 1)
    assert (samples(model) == 0).all()


def test_predictions_cover_what_they_should() -> None:
    big_X, big_Y = data(60, 2, seed=11)
    Z, truth = data(300, 2, seed=12)
    model = bayes(big_X, big_Y, num_eigenfunctions=30, num_samples=16)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    posterior = model.posterior(Z.unsqueeze(-2), observation_noise=True)
    low, high = (posterior.quantile(torch.tensor(level).double()).reshape(-1, 1) for level in (0.025, 0.975))
    assert ((low < truth) & (truth < high)).double().mean() > 0.85  # 0.958 ± 0.024 over 50 seeds
    assert (high - low).mean() < 0.7  # 0.49 ± 0.045; that of the prior is about 4
    assert (posterior.mixture_mean.reshape(-1, 1) - truth).square().mean().sqrt() < 0.2


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_rows(rows: int) -> None:
    model = bayes(X[:rows], Y[:rows]).eval()
    posterior = model.posterior(Xt)
    assert posterior.mean.isfinite().all()
    assert (posterior.variance > 0).all()
    assert model.condition_on_observations(Xn, Yn).posterior(Xt).mean.shape == (S, 5, 1)


def test_constant_targets() -> None:
    model = bayes(X, torch.zeros_like(Y)).eval()
    assert model.posterior(Xt).variance.isfinite().all()
    assert model.fantasize(Xn, sampler(2)).posterior(Xt).mean.isfinite().all()
    assert model.condition_on_observations(Xn, Yn).posterior(Xt).mean.isfinite().all()


# ---------------------------------------------------------------- refusals


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"sampler": "nuts"}, "sampler"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_chains": 0}, "num_chains"),
        ({"max_new_observations": 0}, "max_new_observations"),
        ({"burn": 0}, "burn"),
        ({"burn": 100, "num_iterations": 100}, "num_iterations"),
        ({"num_eigenfunctions": 0}, "num_eigenfunctions"),
    ],
)
def test_options_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        bayes(**options)


def test_several_outputs_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="ModelListGP"):
        bayes(*data(N, 2, 2))


# ---------------------------------------------------------------- conditioning, streaming


def test_streaming_is_dense_conditioning_at_fixed_samples(model: GRIEFBayes) -> None:
    mean, C = dense(model, torch.cat([X, Xn]), torch.cat([Y, Yn])[:, 0], torch.ones(N + 3).double(), Xt)
    before = samples(model)
    at_once = model.condition_on_observations(Xn, Yn)
    one_by_one: Any = model
    for i in range(3):
        one_by_one = one_by_one.condition_on_observations(Xn[i : i + 1], Yn[i : i + 1])
    for child in (at_once, one_by_one):
        assert torch.equal(samples(child), before)
        assert child.num_observations == N + 3
        assert child.batch_shape == (S,)
        close(child.posterior(Xt).mean.squeeze(-1), mean)
        close(covariance(child.posterior(Xt)), C)
    assert model.num_observations == N


def test_streaming_costs_no_more_with_more_data(model: GRIEFBayes) -> None:
    """A batch joins one level of conditioning, of the rows that came since the samples."""
    for i in range(5):
        model = model.condition_on_observations(Xn + 0.01 * i, Yn)
    process = model.processes[0]
    assert isinstance(process, Conditioned)
    assert not isinstance(process.base, Conditioned)
    assert process.factor.shape == (S, 15, 15)


def test_streamed_variances_scale_every_samples_noise(model: GRIEFBayes) -> None:
    ratio = torch.tensor([[1.0], [3.0], [0.5]], dtype=torch.float64)
    child = model.condition_on_observations(Xn, Yn, noise=ratio * model._noise_scale().item())
    D = torch.cat([torch.ones(N).double(), ratio[:, 0]])
    mean, C = dense(model, torch.cat([X, Xn]), torch.cat([Y, Yn])[:, 0], D, Xt)
    close(child.posterior(Xt).mean.squeeze(-1), mean)
    close(covariance(child.posterior(Xt)), C)


def test_streamed_known_variances() -> None:
    D, new = rand(N, 1) + 0.05, rand(3, 1) + 0.05
    model = sampled(bayes(X, Y, D))
    mean, C = dense(model, torch.cat([X, Xn]), torch.cat([Y, Yn])[:, 0], torch.cat([D, new])[:, 0], Xt)
    child = model.condition_on_observations(Xn, Yn, noise=new)
    close(child.posterior(Xt).mean.squeeze(-1), mean)
    close(covariance(child.posterior(Xt)), C)
    with pytest.raises(UnsupportedError, match="noise"):
        model.condition_on_observations(Xn, Yn)


def test_many_new_observations_are_sampled_anew() -> None:
    model = bayes(max_new_observations=4).eval()
    before = samples(model)
    within = model.condition_on_observations(Xn, Yn)
    assert torch.equal(samples(within), before)
    beyond = within.condition_on_observations(Xn + 0.02, Yn)
    assert not torch.equal(samples(beyond), before)
    refitted = bayes(torch.cat([X, Xn, Xn + 0.02]), torch.cat([Y, Yn, Yn])).eval()
    assert_same(beyond.posterior(Xt), refitted.posterior(Xt), rtol=1e-4, atol=1e-6)
    assert torch.equal(samples(beyond.condition_on_observations(Xn[:1], Yn[:1])), samples(beyond))


def test_observations_before_any_posterior_are_sampled_with() -> None:
    child = bayes().condition_on_observations(Xn, Yn)
    assert_same(child.posterior(Xt), bayes(torch.cat([X, Xn]), torch.cat([Y, Yn])).posterior(Xt), rtol=1e-4, atol=1e-6)


def test_a_changed_hyperparameter_is_sampled_at_with_all_rows(model: GRIEFBayes) -> None:
    child = model.condition_on_observations(Xn, Yn)
    child.likelihood.noise = 0.3
    reference = bayes(torch.cat([X, Xn]), torch.cat([Y, Yn])).eval()
    reference.load_state_dict(child.state_dict())
    assert_same(child.posterior(Xt), reference.posterior(Xt), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::bo_scale.errors.SamplingWarning")
def test_without_rows_the_statistics_are_enough(model: GRIEFBayes) -> None:
    for make in (bayes, partial(chains, num_samples=S)):
        without = make(keep_data=False).eval()
        assert without.train_inputs[0].shape == (0, 2)
        assert without.condition_on_observations(Xn, Yn).posterior(Xt).mean.shape == (S, 5, 1)
    assert_same(bayes(keep_data=False).posterior(Xt), model.posterior(Xt))
    child, reference = (of.condition_on_observations(Xn, Yn) for of in (sampled(bayes(keep_data=False)), model))
    assert child.num_observations == reference.num_observations
    assert_same(child.posterior(Xt), reference.posterior(Xt))


def test_one_output_of_one_is_the_model(model: GRIEFBayes) -> None:
    assert_same(model.subset_output([0]).posterior(Xt), model.posterior(Xt))
    child = model.condition_on_observations(Xn, Yn)
    assert_same(child.subset_output([0]).posterior(Xt), child.posterior(Xt))


# ---------------------------------------------------------------- fantasies


@pytest.mark.parametrize("streamed", [False, True])
def test_fantasies_are_dense_conditioning_of_every_sample(model: GRIEFBayes, streamed: bool) -> None:
    if streamed:
        model = model.condition_on_observations(Xn, Yn)
    points = rand(2, 3, 2, seed=8)
    values = sampler(4)(model.posterior(points, observation_noise=True))
    found = model.fantasize(points, sampler(4)).posterior(Xt)
    assert found.mean.shape == (4, 2, S, 5, 1)
    for f, b in ((0, 0), (3, 1)):
        mean, C = schur(model, points[b], values[f, b, ..., 0], Xt)
        close(found.mean[f, b, ..., 0], mean)
        close(covariance(found)[f, b], C)


def test_nested_fantasies_are_conditioning_on_both(model: GRIEFBayes) -> None:
    first, second = rand(2, 1, 2, seed=8), rand(2, 2, 2, seed=9)
    child = model.fantasize(first, sampler(3))
    values = sampler(3)(model.posterior(first, observation_noise=True))
    later = sampler(4)(child.posterior(second, observation_noise=True))
    found = child.fantasize(second, sampler(4))
    assert found.batch_shape == (4, 3, 2, S)
    posterior = found.posterior(Xt)
    for f, g, b in ((0, 0, 0), (3, 2, 1)):
        y = torch.cat([values[g, b, ..., 0], later[f, g, b, ..., 0]], -1)
        mean, C = schur(model, torch.cat([first[b], second[b]]), y, Xt)
        close(posterior.mean[f, g, b, ..., 0], mean)
        close(covariance(posterior)[f, g, b], C)


def test_fantasies_at_no_points_are_the_model(model: GRIEFBayes) -> None:
    found = model.fantasize(torch.empty(0, 2).double(), sampler(3)).posterior(Xt)
    close(found.mean, model.posterior(Xt).mean.expand(3, S, 5, 1))


def test_fantasies_of_known_noise() -> None:
    model = bayes(X, Y, torch.full_like(Y, 0.04)).eval()
    points = rand(2, 3, 2, seed=8)
    values = sampler(4)(model.posterior(points, observation_noise=True))
    found = model.fantasize(points, sampler(4)).posterior(Xt)
    joint = model.posterior(torch.cat([points[1], Xt]))
    mean, C = joint.mean[..., 0], covariance(joint)
    gain = torch.linalg.solve(C[:, :3, :3] + 0.04 * torch.eye(3), C[:, :3, 3:]).mT
    close(found.mean[2, 1, ..., 0], mean[:, 3:] + (gain @ (values[2, 1, ..., 0] - mean[:, :3]).unsqueeze(-1))[..., 0])


def test_fantasies_carry_gradients(model: GRIEFBayes) -> None:
    def value(points: Tensor) -> tuple[Tensor, Tensor]:
        found = model.fantasize(points, sampler(2)).posterior(Xt)
        return found.mean, found.variance

    assert gradcheck(value, (rand(2, 2, 2).requires_grad_(),))


def test_batched_observations_with_a_dimension_of_samples(model: GRIEFBayes) -> None:
    points, values = rand(2, 3, 2, seed=8), rand(4, 2, 1, 3, 1)
    found = model.condition_on_observations(points, values).posterior(Xt)
    for f, b in ((0, 0), (3, 1)):
        mean, C = schur(model, points[b], values[f, b, :, :, 0], Xt)
        close(found.mean[f, b, ..., 0], mean)
        close(covariance(found).expand(4, 2, S, 5, 5)[f, b], C)


@pytest.mark.parametrize("b", [2, S])
def test_batched_observations(model: GRIEFBayes, b: int) -> None:
    """As `condition_on_observations` documents: X of b × q × d, Y of b × q × 1."""
    points, values = rand(b, 3, 2, seed=8), rand(b, 3, 1)
    found = model.condition_on_observations(points, values).posterior(Xt)
    close(found.mean[1], model.condition_on_observations(points[1], values[1]).posterior(Xt).mean)


@pytest.mark.parametrize("b", [2, S])
def test_batched_observations_with_variances(model: GRIEFBayes, b: int) -> None:
    """As many batches as samples are batches still."""
    points, values, noise = rand(b, 3, 2, seed=8), rand(b, 1, 3, 1), rand(b, 3, 1) + 0.1
    found = model.condition_on_observations(points, values, noise=noise).posterior(Xt)
    alone = model.condition_on_observations(points[1], values[1, 0], noise=noise[1]).posterior(Xt)
    close(found.mean[1], alone.mean)


def test_batched_observations_with_variances_of_every_sample(model: GRIEFBayes) -> None:
    points, values, noise = rand(2, 3, 2, seed=8), rand(2, 1, 3, 1), rand(2, 1, 3, 1) + 0.1
    found = model.condition_on_observations(points, values, noise=noise).posterior(Xt)
    alone = model.condition_on_observations(points[1], values[1, 0], noise=noise[1, 0]).posterior(Xt)
    close(found.mean[1], alone.mean)


# ---------------------------------------------------------------- copies and files


def test_a_state_has_neither_samples_nor_data_and_loads_into_other_rows(model: GRIEFBayes) -> None:
    state = model.state_dict()
    assert all(value.numel() <= 2 * 6 for value in state.values())
    other = bayes(X[:9], Y[:9]).eval()
    other.load_state_dict(state)
    assert other.num_observations == 9
    assert_same(other.posterior(Xt), bayes(X[:9], Y[:9]).posterior(Xt))


def test_train_and_eval_leave_the_posterior(model: GRIEFBayes) -> None:
    child = model.condition_on_observations(Xn, Yn)
    before = child.posterior(Xt).mean
    assert torch.equal(child.train().eval().posterior(Xt).mean, before)
    child.train().posterior(Xt)
    assert not child.training


def test_copies_are_equal_and_apart(model: GRIEFBayes) -> None:
    child = model.condition_on_observations(Xn, Yn)
    fantasies = model.fantasize(Xn, sampler(2))
    for of in (model, child, fantasies):
        for copied in (copy.deepcopy(of), pickle.loads(pickle.dumps(of))):
            assert torch.equal(copied.posterior(Xt).mean, of.posterior(Xt).mean)
            copied.eval().requires_grad_(False)
    copied = copy.deepcopy(model)
    copied.likelihood.noise = 0.7
    assert not torch.equal(samples(copied), samples(model))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_saved_model_continues_to_the_last_bit(tmp_path: Path, streamed: bool) -> None:
    model = sampled(bayes(outcome_transform=Standardize(1)))
    if streamed:
        model = model.condition_on_observations(Xn, Yn)
    save_model(model, tmp_path / "model.pt")
    loaded = load_model(bayes(X[:4], Y[:4], outcome_transform=Standardize(1)), tmp_path / "model.pt")
    new = Xt, Yn[:1].expand(5, 1)
    later = loaded.condition_on_observations(*new), model.condition_on_observations(*new)
    for a, b in ((loaded, model), later):
        assert torch.equal(a.posterior(Xn).mean, b.posterior(Xn).mean)
        assert torch.equal(covariance(a.posterior(Xn)), covariance(b.posterior(Xn)))
    a, b = (of.fantasize(Xt, sampler(2)).posterior(Xn).mean for of in (loaded, model))
    assert torch.equal(a, b)


def test_a_loaded_model_samples_anew_when_the_saved_one_would(tmp_path: Path) -> None:
    model = sampled(bayes(max_new_observations=4))
    model = model.condition_on_observations(Xn, Yn)
    save_model(model, tmp_path / "model.pt")
    loaded = load_model(bayes(max_new_observations=4), tmp_path / "model.pt")
    a, b = (of.condition_on_observations(Xn + 0.02, Yn).posterior(Xt).mean for of in (loaded, model))
    assert torch.equal(a, b)


# ---------------------------------------------------------------- acquisition


ACQUISITIONS = {
    "EI": lambda model: ExpectedImprovement(model, best_f=0.3),
    "LogEI": lambda model: LogExpectedImprovement(model, best_f=0.3),
    "UCB": lambda model: UpperConfidenceBound(model, beta=2.0),
    "qLogEI": lambda model: qLogExpectedImprovement(model, best_f=0.3, sampler=sampler(8)),
    "qLogNEI": lambda model: qLogNoisyExpectedImprovement(
        model, X_baseline=X[:8], sampler=sampler(8), prune_baseline=False
    ),
    "qLogNEI, pruned": lambda model: qLogNoisyExpectedImprovement(
        model, X_baseline=X[:8], sampler=sampler(8), prune_baseline=True
    ),
    "qUCB": lambda model: qUpperConfidenceBound(model, beta=2.0, sampler=sampler(8)),
    "BALD": lambda model: qBayesianActiveLearningByDisagreement(model, sampler=sampler(8)),
    "Thompson": PathwiseThompsonSampling,
    "qNIPV": lambda model: qNegIntegratedPosteriorVariance(model, rand(20, 2, seed=5)),
    "qKG": lambda model: qKnowledgeGradient(AveragedEnsemble(model), num_fantasies=2, sampler=sampler(2)),
}


def test_a_thompson_batch_has_functions_of_random_members() -> None:
    model = bayes().eval()
    points = rand(1, 7, 2, seed=4)
    torch.manual_seed(3)
    drawn = draw_functions(model, 40)(points)
    torch.manual_seed(3)
    every = draw_matheron_paths(model, Size([40]))(points)
    same = (drawn.unsqueeze(1) == every).all(-1)
    assert drawn.shape == (40, 7)
    assert (same.sum(-1) == 1).all()
    assert len(same.int().argmax(-1).unique()) > 1
    batch = thompson_batch(model, torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), 5, raw_samples=64, max_steps=5)
    assert batch.shape == (5, 2)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisitions_and_their_gradients(name: str, streamed: bool) -> None:
    model = bayes(outcome_transform=Standardize(1)).eval()
    if streamed:
        model.posterior(Xt)
        model = model.condition_on_observations(Xn, Yn)
    acquisition = ACQUISITIONS[name](model)
    q = {"EI": 1, "LogEI": 1, "UCB": 1, "qKG": 3}.get(name, 2)
    points = rand(3, q, 2, seed=6)
    values = acquisition(points)
    assert values.shape == (3,)
    assert values.isfinite().all()
    close(acquisition(points[1:2]), values[1:2])
    gradient = torch.autograd.grad(acquisition(points.requires_grad_()).sum(), points)[0]
    step = 1e-8 * rand(3, q, 2, seed=10)  # short: the noisy ones bend sharply in places
    points = points.detach()
    difference = acquisition(points + step) - acquisition(points - step)
    close((2 * step * gradient).sum((-2, -1)), difference, rtol=1e-4, atol=1e-11)


def test_averaged_acquisitions_are_means_over_samples(model: GRIEFBayes) -> None:
    posterior = model.posterior(rand(3, 1, 2))
    ucb = (posterior.mean + 2.0**0.5 * posterior.variance.sqrt()).mean(1).reshape(3)
    close(UpperConfidenceBound(model, beta=2.0)(rand(3, 1, 2)), ucb)


@pytest.mark.parametrize("pending", [False, True])
def test_integrated_variance_is_the_mean_of_the_closed_form(model: GRIEFBayes, pending: bool) -> None:
    Z, points = rand(20, 2, seed=5), rand(3, 2, 2, seed=6)
    waiting = rand(1, 2, seed=9) if pending else None
    found = qNegIntegratedPosteriorVariance(model, Z, X_pending=waiting)(points)
    measured = points if waiting is None else torch.cat([points, waiting.expand(3, 1, 2)], -2)
    for b in range(3):
        C = schur(model, measured[b], torch.zeros(measured.shape[1]).double(), Z)[1]
        close(found[b], -C.diagonal(dim1=-2, dim2=-1).mean())


def test_integrated_variance_is_botorchs(model: GRIEFBayes) -> None:
    Z, points = rand(20, 2, seed=5), rand(3, 2, 2, seed=6)
    close(qNegIntegratedPosteriorVariance(model, Z)(points), SampledVariance(model, Z)(points))


def test_integrated_variance_of_known_noise_is_botorchs() -> None:
    model = bayes(X, Y, torch.full_like(Y, 0.04)).eval()
    Z, points = rand(20, 2, seed=5), rand(3, 2, 2, seed=6)
    close(qNegIntegratedPosteriorVariance(model, Z)(points), SampledVariance(model, Z)(points))


def test_drawn_functions_have_the_moments_of_every_sample() -> None:
    model = sampled(bayes(outcome_transform=Standardize(1)))
    streamed = model.condition_on_observations(Xn, Yn)
    for of in (model, streamed):
        drawn = draw_posterior_functions(of, Size([4000]), torch.Generator().manual_seed(0))(Xt)
        assert drawn.shape == (4000, S, 5)
        posterior = of.posterior(Xt)
        sd = posterior.variance.squeeze(-1).sqrt()
        assert ((drawn.mean(0) - posterior.mean.squeeze(-1)) / sd).abs().max() < 5 / 4000**0.5
        close(drawn.std(0), sd, rtol=0.08, atol=0)


def test_drawn_functions_of_fantasies(model: GRIEFBayes) -> None:
    fantasies = model.fantasize(rand(2, 1, 2), sampler(3))
    drawn = draw_posterior_functions(fantasies, Size([2000]))(Xt)
    posterior = fantasies.posterior(Xt)
    assert drawn.shape == (2000, 3, 2, S, 5)
    sd = posterior.variance.squeeze(-1).sqrt()
    assert ((drawn.mean(0) - posterior.mean.squeeze(-1)) / sd).abs().max() < 5.5 / 2000**0.5


def test_thompson_sampling_takes_one_sample_a_draw(model: GRIEFBayes) -> None:
    acquisition, points = PathwiseThompsonSampling(model), rand(4, 1, 2)
    values = acquisition(points)
    every = acquisition.samples(points.unsqueeze(-2))
    assert every.shape == (4, 1, S, 1, 1)
    chosen = acquisition.ensemble_indices.flatten()[0]
    close(values, every[:, 0, chosen, 0, 0])


def test_a_list_of_models_is_a_fully_bayesian_model_of_several_outputs(model: GRIEFBayes) -> None:
    other = bayes(X, -2 * Y).eval()
    models = ModelListGP(model, other)
    assert is_fully_bayesian(models)
    posterior = models.posterior(rand(3, 4, 2))
    assert isinstance(posterior, GaussianMixturePosterior)
    assert posterior.mean.shape == (3, S, 4, 2)
    assert posterior.mixture_mean.shape == (3, 4, 2)
    close(posterior.mean[..., 1:], other.posterior(rand(3, 4, 2)).mean)
    close(posterior.variance[..., :1], model.posterior(rand(3, 4, 2)).variance)
    assert models.fantasize(Xn, sampler(2)).posterior(Xt).mean.shape == (2, S, 5, 2)
    transform = ScalarizedPosteriorTransform(torch.tensor([1.0, 2.0]).double())
    assert UpperConfidenceBound(models, beta=2.0, posterior_transform=transform)(rand(3, 1, 2)).shape == (3,)
