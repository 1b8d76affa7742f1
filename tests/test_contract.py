import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.max_value_entropy_search import qLowerBoundMaxValueEntropy, qMaxValueEntropy
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import get_optimal_samples
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms.input import InputPerturbation, Normalize, Warp
from botorch.models.transforms.outcome import Log, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim import optimize_acqf
from botorch.optim.closures import get_loss_closure, get_loss_closure_with_grads
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import LinearKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, StudentTLikelihood
from gpytorch.means import LinearMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from gpytorch.models import GP
from torch import Size, Tensor
from torch.autograd import gradcheck
from torch.quasirandom import SobolEngine

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, SoftKI, draw_posterior_functions, load_model, save_model
from bo_scale.errors import BoScaleError, GridError, InterpolationWarning, InvalidDataError, UnsupportedKernelError

pytestmark = pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of grids for speed

N = 20


@dataclass(frozen=True)
class Family:
    """How to build one model, and on how many input dimensions."""

    factory: Callable[..., Any]
    d: int

    def __call__(self, X: Tensor, Y: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.factory(X, Y, *args, **kwargs)


def unscaled(model: Callable[..., Any], X: Tensor, Y: Tensor, *args: Any, **options: Any) -> Any:
    """A model with BoTorch's default kernel, whose lengthscales the checks below change."""
    if "covar_module" not in options:
        batch_shape = Size([]) if Y.shape[-1] == 1 else Size([Y.shape[-1]])
        kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], batch_shape=batch_shape)
        options["covar_module"] = kernel.to(X)
    return model(X, Y, *args, **options)


EXACT = [
    pytest.param(Family(partial(WISKI, grid_size=size), d), id=f"WISKI-{d}d") for d, size in ((1, 14), (2, 10), (3, 7))
] + [
    pytest.param(Family(partial(unscaled, partial(CaGP, num_actions=128)), 2), id="CaGP-2d"),
    pytest.param(Family(partial(unscaled, partial(DecoupledGP, num_steps=3)), 2), id="Decoupled-2d"),
]
"""Models that are exact, up to a grid, on so few rows."""
SIZES = {"num_mean_inducing": 9, "num_covar_inducing": 5}
POINTS = SobolEngine(2, scramble=True, seed=1).draw(8, dtype=torch.float64)


def on_square(X: Tensor, Y: Tensor, *args: Any, **options: Any) -> GRIEF:
    """A GRIEF whose grid does not depend on the rows."""
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    bounds = raw(bounds) if isinstance(options.get("input_transform"), Normalize) else bounds
    return GRIEF(X, Y, *args, **{"num_eigenfunctions": 10, "grid_points": 10, "bounds": bounds, **options})


FEW_FEATURES = [
    pytest.param(
        Family(partial(unscaled, partial(SoftKI, interpolation_points=POINTS, temperature=0.15, epochs=3)), 2),
        id="SoftKI-few",
    ),
    pytest.param(Family(partial(unscaled, on_square), 2), id="GRIEF-few"),
]
"""Fewer features than rows, in places that do not depend on the rows, so that no point is far from them."""
FEW_FUNCTIONALS = [
    pytest.param(Family(partial(unscaled, partial(CaGP, num_actions=5, epochs=5)), 2), id="CaGP-few"),
    pytest.param(Family(partial(unscaled, partial(DecoupledGP, **SIZES, num_steps=3)), 2), id="Decoupled-few"),
]
"""Fewer actions, or points of the bases, than rows: an approximation made for these rows, and another for others."""


def of(*families: list[Any]) -> pytest.MarkDecorator:
    """Run a test on these models alone."""
    return pytest.mark.parametrize("family", [family for group in families for family in group], indirect=True)


close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-7)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def truth(X: Tensor) -> Tensor:
    return (3 * X[..., :1]).sin() + (2 * X[..., 1:].sum(-1, keepdim=True)).cos()


def sampler(n: int, seed: int = 7) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(sample_shape=Size([n]), seed=seed)


def dense(posterior: Posterior) -> Tensor:
    return posterior.distribution.covariance_matrix


def assert_same(a: Posterior, b: Posterior, **tolerance: float) -> None:
    close(a.mean, b.mean, **tolerance)
    close(dense(a), dense(b), **tolerance)


def mll_of(model: Any) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model)


def fit(model: Any, maxiter: int = 4) -> Any:
    fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": maxiter}})
    return model


def loss_of(model: Any) -> float:
    return float(get_loss_closure(mll_of(model).train())().sum())


def same_state(model: Any, like: Any) -> Any:
    model.load_state_dict(like.state_dict())
    return model.eval()


def schur(model: Any, X: Tensor, Y: Tensor, noise: Tensor, Xt: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance at Xt when a model of one output has also seen Y at X, from its own joint posterior."""
    joint, n = model.posterior(torch.cat([X, Xt])), len(X)
    mean, C = joint.mean.squeeze(-1), dense(joint)
    gain = torch.linalg.solve(C[:n, :n] + noise.reshape(-1).expand(n).diag(), C[:n, n:])
    return mean[n:] + gain.mT @ (Y.squeeze(-1) - mean[:n]), C[n:, n:] - C[n:, :n] @ gain


@pytest.fixture(params=EXACT + FEW_FEATURES + FEW_FUNCTIONALS)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture
def X(family: Family) -> Tensor:
    return rand(N, family.d)


@pytest.fixture
def Y(X: Tensor) -> Tensor:
    return truth(X) + 0.3 * randn(N, 1, seed=1)


@pytest.fixture
def Y2(X: Tensor, Y: Tensor) -> Tensor:
    return torch.cat([Y, (2 * X).sum(-1, keepdim=True).sin() + 0.4 * randn(N, 1, seed=2)], -1)


@pytest.fixture
def Xt(family: Family) -> Tensor:
    return rand(6, family.d, seed=3)


@pytest.fixture
def Xn(family: Family) -> Tensor:
    return rand(4, family.d, seed=4)


@pytest.fixture
def Yn(Xn: Tensor) -> Tensor:
    return truth(Xn) + 0.5


@pytest.fixture
def plain(family: Family, X: Tensor, Y: Tensor) -> Any:
    return family(X, Y, outcome_transform=None).eval()


@pytest.fixture
def raw_bounds(family: Family) -> Tensor:
    return torch.stack([torch.full((family.d,), -5.0), torch.full((family.d,), 20.0)]).double()


def raw(X: Tensor) -> Tensor:
    return 25 * X - 5


# ---------------------------------------------------------------- attributes


def test_declares_what_botorch_reads(plain, X, Y) -> None:
    assert all(isinstance(plain, base) for base in (Model, GPyTorchModel, FantasizeMixin, GP))
    assert plain.num_outputs == 1
    assert plain.batch_shape == Size([])
    assert plain.num_observations == N
    assert isinstance(plain.likelihood, GaussianLikelihood)
    assert plain.covar_module.lengthscale.shape[-1] == X.shape[-1]
    assert isinstance(plain.train_inputs, tuple)
    close(plain.train_inputs[0], X)
    close(plain.train_targets, Y.squeeze(-1))


def test_targets_are_standardised_unless_told_otherwise(family, X, Y) -> None:
    assert isinstance(family(X, Y).outcome_transform, Standardize)
    close(family(X, 5 + 3 * Y).train_targets, ((Y - Y.mean()) / Y.std()).squeeze(-1))
    assert not hasattr(family(X, Y, outcome_transform=None), "outcome_transform")


def test_several_outputs_keep_their_targets_last_but_one(family, X, Y2) -> None:
    model = family(X, Y2, outcome_transform=None)
    assert model.num_outputs == 2
    assert model.batch_shape == Size([])
    close(model.train_targets, Y2.mT)


# ---------------------------------------------------------------- posterior


@pytest.mark.parametrize("batch", [(5,), (1,), (3, 5), (3, 1), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("m", [1, 2])
def test_posterior_shapes(family, X, Y2, batch, m) -> None:
    model = family(X, Y2[:, :m])
    posterior = model.posterior(rand(*batch, family.d))
    assert isinstance(posterior, GPyTorchPosterior)
    assert posterior.mean.shape == posterior.variance.shape == (*batch, m)
    assert posterior.rsample(Size([2])).shape == sampler(2)(posterior).shape == (2, *batch, m)
    assert posterior._extended_shape() == (*batch, m)
    C = dense(posterior)
    assert torch.linalg.eigvalsh(C).min() > -1e-8
    close(C, C.mT)


def test_t_batches_are_independent(family, plain) -> None:
    X = rand(4, 3, family.d)
    posterior = plain.posterior(X)
    for i in range(4):
        close(posterior.mean[i], plain.posterior(X[i]).mean)
        close(dense(posterior)[i], dense(plain.posterior(X[i])))


def test_marginals_of_the_joint_are_the_marginals_in_any_order(plain, Xt) -> None:
    joint, marginal = plain.posterior(Xt), plain.posterior(Xt.unsqueeze(-2))
    close(joint.mean, marginal.mean.squeeze(-2))
    close(joint.variance, marginal.variance.squeeze(-2))
    order = [3, 0, 5, 1, 2, 4]
    close(dense(plain.posterior(Xt[order])), dense(joint)[order][:, order])


def test_posterior_changes_nothing(plain, Xt) -> None:
    state = copy.deepcopy(plain.state_dict())
    first, second = plain.posterior(Xt), plain.posterior(Xt)
    assert torch.equal(first.mean, second.mean)
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())


def test_posterior_follows_a_changed_hyperparameter(family, plain, X, Y, Xt) -> None:
    before = plain.posterior(Xt).mean
    with torch.no_grad():
        plain.covar_module.raw_lengthscale.add_(0.5)
    assert (plain.posterior(Xt).mean - before).abs().max() > 1e-6
    assert_same(plain.posterior(Xt), same_state(family(X, Y, outcome_transform=None), plain).posterior(Xt))


@pytest.mark.parametrize("indices", [[1, 0], [1], [0], [-1]], ids=str)
def test_output_indices_select_and_reorder(family, X, Y2, Xt, indices) -> None:
    model = family(X, Y2)
    whole, some = model.posterior(Xt), model.posterior(Xt, output_indices=indices)
    close(some.mean, whole.mean[:, indices])
    close(some.variance, whole.variance[:, indices])


def test_tensor_observation_noise_is_added_as_it_is(family, plain, Xt) -> None:
    batched = rand(3, 2, family.d)
    for inputs, noise in ((Xt, rand(6, 1)), (Xt, rand(1, 1)), (batched, rand(3, 2, 1)), (batched, rand(1, 1))):
        added = plain.posterior(inputs, observation_noise=noise).variance - plain.posterior(inputs).variance
        close(added, noise.expand_as(added))


def test_tensor_observation_noise_follows_output_indices_and_is_in_transformed_units(family, X, Y2, Xt) -> None:
    model, noise = family(X, Y2), rand(6, 2)
    noisy = model.posterior(Xt, output_indices=[1, 0], observation_noise=noise)
    added = noisy.variance - model.posterior(Xt, output_indices=[1, 0]).variance
    close(added, (noise * Y2.var(0))[:, [1, 0]])


def test_observation_noise_true_adds_the_learned_noise(family, X, Y2, Xt) -> None:
    model = family(X, Y2, outcome_transform=None)
    model.likelihood.noise = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    added = model.posterior(Xt, observation_noise=True).variance - model.posterior(Xt).variance
    close(added, torch.tensor([0.1, 0.3], dtype=torch.float64).expand(6, 2))


def test_posterior_transform_is_applied_last(family, X, Y2, Xt) -> None:
    model = family(X, Y2)
    transform = ScalarizedPosteriorTransform(weights=torch.tensor([2.0, -1.0]).double(), offset=1.0)
    whole, scalar = model.posterior(Xt), model.posterior(Xt, posterior_transform=transform)
    close(scalar.mean, 1 + 2 * whole.mean[:, :1] - whole.mean[:, 1:])
    close(scalar.variance, 4 * whole.variance[:, :1] + whole.variance[:, 1:])


def test_posterior_gradients_are_finite_differences(family, plain) -> None:
    X = (0.8 * rand(2, 2, family.d) + 0.1).requires_grad_()
    assert gradcheck(lambda X: (plain.posterior(X).mean, dense(plain.posterior(X))), (X,))
    assert gradcheck(lambda X: plain.posterior(X).variance, (X,))


def test_the_posterior_carries_no_graph_to_the_hyperparameters(family, X, Y2, Xt) -> None:
    posterior = family(X, Y2).posterior(Xt, observation_noise=True)
    assert not posterior.mean.requires_grad
    assert not posterior.variance.requires_grad


def test_backward_twice(plain, Xt) -> None:
    for _ in range(2):
        posterior = plain.posterior(Xt.clone().requires_grad_())
        (posterior.mean.sum() + posterior.variance.sum()).backward()


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("noisy", [False, True], ids=["f", "y"])
def test_many_more_points_than_rank_are_sampled_with_their_moments(m, noisy) -> None:
    X = rand(N, 1)
    model = WISKI(X, torch.cat([truth(X), -truth(X)], -1)[:, :m], grid_size=10, outcome_transform=None)
    posterior = model.posterior(torch.linspace(0, 1, 150).double().unsqueeze(-1), observation_noise=noisy)
    torch.manual_seed(0)
    samples = posterior.rsample(Size([4000]))
    assert samples.shape == (4000, 150, m)
    sd = posterior.variance.max().sqrt().item()
    close(samples.mean(0), posterior.mean, atol=0.1 * sd, rtol=0)
    close(samples.var(0), posterior.variance, atol=0.15 * sd**2, rtol=0)


# ---------------------------------------------------------------- modes and inputs


def test_train_inputs_are_raw_in_train_mode_and_transformed_in_eval_mode(family, X, Y, raw_bounds) -> None:
    model = family(raw(X), Y, input_transform=Normalize(family.d, bounds=raw_bounds))
    for _ in range(2):
        model.train()
        close(model.train_inputs[0], raw(X))
        model.eval()
        close(model.train_inputs[0], X)
        close(model._original_train_inputs, raw(X))


def test_train_and_eval_leave_the_posterior(plain, Xt) -> None:
    before = plain.posterior(Xt)
    assert plain.train().training
    assert_same(plain.eval().posterior(Xt), before)


def test_posterior_leaves_train_mode(plain, Xt) -> None:
    plain.train().posterior(Xt)
    assert not plain.training


def test_forward_is_the_prior_in_train_mode_and_the_posterior_in_eval_mode(plain, Xt) -> None:
    prior = plain.train()(Xt)
    close(prior.mean, plain.mean_module(Xt))
    close(prior.covariance_matrix, plain._prior_covariance(Xt, 0))
    close(plain.eval()(Xt).covariance_matrix, dense(plain.posterior(Xt)))


# ---------------------------------------------------------------- transforms


def test_an_affine_input_transform_changes_units_only(family, plain, X, Y, Xt, Xn, Yn, raw_bounds) -> None:
    model = family(raw(X), Y, outcome_transform=None, input_transform=Normalize(family.d, bounds=raw_bounds))
    assert_same(model.posterior(raw(Xt)), plain.posterior(Xt))
    given, reference = model.condition_on_observations(raw(Xn), Yn), plain.condition_on_observations(Xn, Yn)
    assert_same(given.posterior(raw(Xt)), reference.posterior(Xt))
    close(given._original_train_inputs, raw(torch.cat([X, Xn])))
    fantasy, reference = model.fantasize(raw(Xn), sampler(3)), plain.fantasize(Xn, sampler(3))
    assert_same(fantasy.posterior(raw(Xt)), reference.posterior(Xt))


def test_input_bounds_are_learned_once(family, X, Y, Xn, Yn) -> None:
    model = family(raw(X), Y, input_transform=Normalize(family.d))
    child = model.condition_on_observations(raw(X[:1]) * 0.99, Yn[:1]).train().eval()
    close(child.input_transform.bounds, model.input_transform.bounds)


def test_standardize_changes_units_only_and_is_learned_once(family, X, Y, Xt, Xn, Yn) -> None:
    mean, sd = Y.mean(), Y.std()
    model = family(X, 50 + 7 * Y)
    reference = family(X, (Y - mean) / sd, outcome_transform=None)

    def assert_scaled(found: Posterior, standard: Posterior) -> None:
        close(found.mean, 50 + 7 * (mean + sd * standard.mean))
        close(dense(found), (7 * sd) ** 2 * dense(standard))

    assert_scaled(model.posterior(Xt), reference.posterior(Xt))
    assert_scaled(model.posterior(Xt, observation_noise=True), reference.posterior(Xt, observation_noise=True))
    child = model.condition_on_observations(Xn, 50 + 7 * Yn)
    expected = reference.condition_on_observations(Xn, (Yn - mean) / sd)
    assert_scaled(child.posterior(Xt), expected.posterior(Xt))
    assert_scaled(child.train().eval().posterior(Xt), expected.posterior(Xt))
    fantasies = (m.fantasize(Xn, sampler(3)).posterior(Xt) for m in (model, reference))
    assert_scaled(*fantasies)


def test_log_outcomes_give_positive_samples_of_the_same_process(family, plain, X, Y, Xt, Xn, Yn) -> None:
    model = family(X, Y.exp(), outcome_transform=Log())
    posterior = model.posterior(Xt)
    assert isinstance(posterior, TransformedPosterior)
    assert (posterior.rsample(Size([4])) > 0).all()
    assert_same(posterior._posterior, plain.posterior(Xt))
    child = model.condition_on_observations(Xn, Yn.exp())
    assert_same(child.posterior(Xt)._posterior, plain.condition_on_observations(Xn, Yn).posterior(Xt))


def test_input_perturbations_are_evaluated_not_trained_on(family, plain, X, Y, Xt, Xn, Yn) -> None:
    shifts = torch.tensor([[0.0] * family.d, [0.01] * family.d, [-0.01] * family.d]).double()
    model = family(X, Y, outcome_transform=None, input_transform=InputPerturbation(shifts)).eval()
    perturbed = (Xt.unsqueeze(-2) + shifts).reshape(-1, family.d)
    assert_same(model.posterior(Xt), plain.posterior(perturbed))
    assert model.train_inputs[0].shape == X.shape
    assert model.fantasize(Xn[:2], sampler(3)).posterior(Xt).mean.shape == (3, 18, 1)
    child = model.condition_on_observations(Xn, Yn)
    assert_same(child.posterior(Xt), plain.condition_on_observations(Xn, Yn).posterior(perturbed))


# ---------------------------------------------------------------- fitting


@pytest.mark.parametrize("m", [1, 2])
def test_fit_lowers_the_loss_and_ends_in_eval_mode(family, X, Y2, m) -> None:
    model = family(X, Y2[:, :m])
    before = loss_of(model)
    fit(model)
    assert not model.training
    assert not model.likelihood.training
    assert loss_of(model) < before


@pytest.mark.parametrize("noise", ["learned", "known"])
@pytest.mark.parametrize("m", [1, 2])
def test_mll_gradients_are_finite_differences(family, X, Y2, m, noise) -> None:
    known = {"train_Yvar": 0.01 + 0.1 * rand(N, m)} if noise == "known" else {}
    model = family(X, Y2[:, :m], **known)
    mll = mll_of(model).train()
    parameters = {name: p for name, p in mll.named_parameters() if p.requires_grad}
    closure = get_loss_closure_with_grads(mll, parameters)
    gradients = [g.clone() for g in closure()[1]]
    for p, gradient in zip(parameters.values(), gradients, strict=True):
        direction, at = randn(*p.shape), []
        for step in (1e-5, -1e-5):
            p.data.add_(step * direction)
            at.append(float(closure()[0]))
            p.data.sub_(step * direction)
        assert (at[0] - at[1]) / 2e-5 == pytest.approx((gradient * direction).sum().item(), rel=1e-4, abs=1e-6)


def test_the_loss_of_two_outputs_is_the_sum_of_their_losses(family, X, Y2) -> None:
    model = family(X, Y2)
    assert loss_of(model) == pytest.approx(sum(loss_of(family(X, Y2[:, [j]])) for j in range(2)))


def test_a_model_with_fantasies_is_not_fitted(plain, Xn) -> None:
    with pytest.raises(UnsupportedError, match="fantasies"):
        loss_of(plain.fantasize(Xn, sampler(2)))


def test_a_model_list_is_fitted_and_conditioned(family, X, Y, Y2, Xt, Xn, Yn) -> None:
    models = family(X, Y), family(X, Y2[:, 1:], outcome_transform=None)
    before = [loss_of(model) for model in models]
    both = ModelListGP(*models)
    mll = SumMarginalLogLikelihood(both.likelihood, both)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 3}})
    assert all(loss_of(model) < loss for model, loss in zip(models, before))
    child = both.condition_on_observations([Xn, Xn], torch.cat([Yn, -Yn], -1))
    for j, (model, values) in enumerate(zip(models, (Yn, -Yn))):
        close(child.posterior(Xt).mean[:, [j]], model.condition_on_observations(Xn, values).posterior(Xt).mean)
    assert both.fantasize(Xn, sampler(3)).posterior(Xt).mean.shape == (3, 6, 2)


def test_a_model_list_with_input_transforms_is_conditioned_in_raw_units(family, plain, X, Y, Xt, Xn, Yn, raw_bounds):
    model = family(raw(X), Y, outcome_transform=None, input_transform=Normalize(family.d, bounds=raw_bounds))
    child = ModelListGP(model).condition_on_observations([raw(Xn)], Yn)
    assert_same(child.models[0].posterior(raw(Xt)), plain.condition_on_observations(Xn, Yn).posterior(Xt))


# ---------------------------------------------------------------- several outputs


@of(EXACT, FEW_FEATURES[1:])
def test_outputs_have_their_own_hyperparameters_and_are_independent(family, X, Y2, Xt, Xn) -> None:
    model = fit(family(X, Y2))
    lengthscales = model.covar_module.lengthscale
    assert (lengthscales[0] - lengthscales[1]).abs().max() > 1e-3
    child = model.condition_on_observations(Xn, torch.cat([truth(Xn), -truth(Xn)], -1))
    for j in range(2):
        alone = family(X, Y2[:, [j]])
        alone.covar_module.lengthscale = lengthscales[j].detach()
        alone.mean_module.constant = model.mean_module.constant[j].detach()
        alone.likelihood.noise = model.likelihood.noise[j].detach()
        close(model.posterior(Xt).mean[:, [j]], alone.posterior(Xt).mean)
        close(model.posterior(Xt).variance[:, [j]], alone.posterior(Xt).variance)
        alone = alone.condition_on_observations(Xn, (1 - 2 * j) * truth(Xn))
        close(child.posterior(Xt).mean[:, [j]], alone.posterior(Xt).mean)


@pytest.mark.parametrize(
    ("indices", "known_noise"), [([1], True), ([0], False), ([1, 0], True), ([-1], False)], ids=str
)
def test_subset_output_is_the_same_model_of_fewer_outputs(family, X, Y2, Xt, Xn, indices, known_noise) -> None:
    Yvar, noise = 0.01 + 0.1 * rand(N, 2), rand(4, 2, seed=5)
    model = family(X, Y2, **({"train_Yvar": Yvar} if known_noise else {}))
    model.covar_module.raw_lengthscale.data.mul_(1 + rand(2, 1, family.d))
    before = model.posterior(Xt)
    subset = model.subset_output(indices)
    assert subset.num_outputs == len(indices)
    close(subset.posterior(Xt, observation_noise=True).mean, before.mean[:, indices])
    noisy = model.posterior(Xt, observation_noise=True)
    close(subset.posterior(Xt, observation_noise=True).variance, noisy.variance[:, indices])
    given = {"noise": noise} if known_noise else {}
    child = model.condition_on_observations(Xn, truth(Xn).expand(4, 2), **given)
    given = {"noise": noise[:, indices]} if known_noise else {}
    of_subset = subset.condition_on_observations(Xn, truth(Xn).expand(4, len(indices)), **given)
    close(of_subset.posterior(Xt).mean, child.posterior(Xt).mean[:, indices])
    close(of_subset.posterior(Xt).variance, child.posterior(Xt).variance[:, indices])
    assert model.num_outputs == 2
    assert_same(model.posterior(Xt), before)
    assert loss_of(subset) == pytest.approx(sum(loss_of(model.subset_output([j])) for j in indices))


def test_subset_output_of_fantasies(family, X, Y2, Xt, Xn) -> None:
    fantasies = family(X, Y2).fantasize(Xn, sampler(3))
    close(fantasies.subset_output([1]).posterior(Xt).mean, fantasies.posterior(Xt).mean[..., 1:])


# ---------------------------------------------------------------- known noise


def test_equal_known_noise_is_learned_noise_of_that_value(family, X, Y, Xt) -> None:
    learned = family(X, Y, outcome_transform=None)
    learned.likelihood.noise = 0.05
    known = family(X, Y, torch.full_like(Y, 0.05), outcome_transform=None)
    assert_same(known.posterior(Xt), learned.posterior(Xt))
    assert_same(known.posterior(Xt, observation_noise=True), learned.posterior(Xt, observation_noise=True))


def test_known_noise_predicts_with_its_mean_in_raw_units(family, X, Y, Xt) -> None:
    Yvar = 0.01 + 0.2 * rand(N, 1)
    model = family(X, Y, train_Yvar=Yvar)
    added = model.posterior(Xt, observation_noise=True).variance - model.posterior(Xt).variance
    close(added, Yvar.mean().expand(6, 1))


@of(EXACT, FEW_FEATURES[:1])
def test_known_noise_streams_like_a_refit(family, X, Y2, Xt) -> None:
    Yvar = 0.01 + 0.2 * rand(N, 2)
    whole = family(X, Y2, Yvar, outcome_transform=None)
    model = family(X[:12], Y2[:12], Yvar[:12], outcome_transform=None)
    model.posterior(Xt)
    for rows in (slice(12, 13), slice(13, N)):
        model = model.condition_on_observations(X[rows], Y2[rows], noise=Yvar[rows])
    assert_same(model.posterior(Xt), whole.posterior(Xt))
    assert_same(model.posterior(Xt, observation_noise=True), whole.posterior(Xt, observation_noise=True))
    close(model.likelihood.noise, Yvar.mT)
    assert loss_of(model) == pytest.approx(loss_of(whole))


def test_known_noise_is_needed_for_new_observations_too(family, X, Y, Xn, Yn) -> None:
    model = family(X, Y, train_Yvar=torch.full_like(Y, 0.05))
    with pytest.raises(UnsupportedError, match=r"noise: .*train_Yvar"):
        model.condition_on_observations(Xn, Yn)


def test_known_noise_fantasises_with_its_mean(family, X, Y, Xt, Xn) -> None:
    Yvar = 0.01 + 0.2 * rand(N, 1)
    model = family(X, Y, Yvar, outcome_transform=None)
    fantasies, child = model.fantasize(Xn, sampler(3)), schur(model, Xn, truth(Xn), Yvar.mean(), Xt)
    close(dense(fantasies.posterior(Xt))[0], child[1])


def test_a_fixed_noise_likelihood_is_known_noise(family, X, Y, Xt) -> None:
    Yvar = 0.01 + 0.2 * rand(N, 1)
    model = family(X, Y, outcome_transform=None, likelihood=FixedNoiseGaussianLikelihood(Yvar.squeeze(-1)))
    assert_same(model.posterior(Xt), family(X, Y, Yvar, outcome_transform=None).posterior(Xt))


# ---------------------------------------------------------------- state


@of(EXACT, FEW_FEATURES, FEW_FUNCTIONALS[1:])
def test_state_dict_has_one_size_whatever_the_data(family, X, Y) -> None:
    few = family(X[:7], Y[:7], train_Yvar=torch.full_like(Y[:7], 0.1)).state_dict()
    many = family(X, Y, train_Yvar=torch.full_like(Y, 0.1)).state_dict()
    assert {name: value.shape for name, value in few.items()} == {name: value.shape for name, value in many.items()}


def test_state_dict_loads_into_a_model_of_fewer_rows_which_keeps_its_rows(family, X, Y, Xt) -> None:
    full = fit(family(X, 5 + 3 * Y))
    part = same_state(family(X[:9], 5 + 3 * Y[:9]), full)
    values = 5 + 3 * Y
    mean, sd = values.mean(), values.std()
    reference = family(X[:9], (values[:9] - mean) / sd, outcome_transform=None)
    state = {name: value for name, value in full.state_dict().items() if "outcome" not in name}
    reference.load_state_dict(state)
    close(part.posterior(Xt).mean, mean + sd * reference.eval().posterior(Xt).mean)
    close(part.posterior(Xt).variance, sd**2 * reference.posterior(Xt).variance)
    close(part.train_inputs[0], X[:9])


def test_state_dict_round_trip(family, X, Y2, Xt) -> None:
    model = fit(family(X, Y2))
    twin = same_state(family(X, Y2), model)
    assert_same(twin.posterior(Xt), model.posterior(Xt))


def through_pickle(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def through_torch(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch])
def test_copies_are_equal_and_independent(family, X, Y, Xt, Xn, Yn, copied) -> None:
    model = family(X, Y)
    before = model.posterior(Xt)
    model.posterior(Xt.clone().requires_grad_()).mean.sum().backward()
    twin = copied(model)
    assert_same(twin.posterior(Xt), before)
    expected = model.condition_on_observations(Xn, Yn).posterior(Xt)
    assert_same(twin.condition_on_observations(Xn, Yn).posterior(Xt), expected)
    fit(twin, maxiter=2)
    assert_same(model.posterior(Xt), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch])
def test_copies_of_fantasies_are_equal(plain, Xt, Xn, copied) -> None:
    fantasies = plain.fantasize(Xn, sampler(3))
    with torch.no_grad():
        assert_same(copied(fantasies).posterior(Xt), fantasies.posterior(Xt))


def test_float_and_double_after_a_posterior(family, X, Y, Xt, Xn, Yn) -> None:
    model = family(X, Y)
    before = model.posterior(Xt)
    model.float()
    assert model.posterior(Xt.float()).mean.dtype == torch.float32
    assert model.train_inputs[0].dtype == model.train_targets.dtype == torch.float32
    close(model.posterior(Xt.float()).mean.double(), before.mean, rtol=1e-3, atol=1e-3)
    child = model.condition_on_observations(Xn.float(), Yn.float())
    assert child.posterior(Xt.float()).variance.dtype == torch.float32
    close(model.double().posterior(Xt).mean, before.mean, rtol=1e-3, atol=1e-3)
    assert model.posterior(Xt).mean.dtype == torch.float64


# ---------------------------------------------------------------- conditioning


def test_conditioning_equals_gaussian_conditioning_of_the_posterior(plain, Xt, Xn, Yn) -> None:
    learned = plain.likelihood.noise.detach()
    for noise in (None, torch.full_like(Yn, 1e-4), 0.3 * rand(4, 1)):
        mean, covariance = schur(plain, Xn, Yn, learned if noise is None else noise, Xt)
        child = plain.condition_on_observations(Xn, Yn, noise=noise).posterior(Xt)
        close(child.mean.squeeze(-1), mean)
        close(dense(child), covariance)


@of(EXACT, FEW_FEATURES[:1])
@pytest.mark.parametrize("queried", [True, False])
def test_conditioning_equals_refitting_at_the_same_hyperparameters(family, plain, X, Y, Xt, Xn, Yn, queried) -> None:
    if queried:
        plain.posterior(Xt)
    refitted = same_state(family(torch.cat([X, Xn]), torch.cat([Y, Yn]), outcome_transform=None), plain)
    child = plain.condition_on_observations(Xn, Yn)
    assert_same(child.posterior(Xt), refitted.posterior(Xt))
    assert loss_of(child) == pytest.approx(loss_of(refitted))
    many = torch.cat([X] * 4)
    grown = plain.condition_on_observations(many, truth(many))
    refitted = family(torch.cat([X, many]), torch.cat([Y, truth(many)]), outcome_transform=None)
    assert_same(grown.posterior(Xt), same_state(refitted, plain).posterior(Xt))


def test_conditioning_one_by_one_and_in_any_order_is_conditioning_at_once(plain, Xt, Xn, Yn) -> None:
    at_once, step = plain.condition_on_observations(Xn, Yn), plain
    for i in (2, 0, 3, 1):
        step = step.condition_on_observations(Xn[i : i + 1], Yn[i : i + 1])
        step.posterior(Xt[:1])
    assert_same(step.posterior(Xt), at_once.posterior(Xt))


def test_conditioning_returns_the_same_type_with_more_rows(plain, X, Y, Xn, Yn) -> None:
    child = plain.condition_on_observations(Xn, Yn)
    assert type(child) is type(plain)
    assert child.batch_shape == Size([])
    assert child.num_observations == N + 4
    close(child.train_inputs[0], torch.cat([X, Xn]))
    close(child.train_targets, torch.cat([Y, Yn]).squeeze(-1))


def test_conditioning_on_nothing_changes_nothing(family, plain, Xt) -> None:
    plain.posterior(Xt)
    empty = torch.empty(0, family.d, dtype=torch.float64)
    child = plain.condition_on_observations(empty, torch.empty(0, 1, dtype=torch.float64))
    assert_same(child.posterior(Xt), plain.posterior(Xt))


def test_branches_of_one_model_do_not_see_each_other(plain, X, Xt, Xn, Yn) -> None:
    left = plain.condition_on_observations(Xn, Yn)
    before = left.posterior(Xt)
    right = plain.condition_on_observations(Xn, -Yn)
    left.condition_on_observations(Xn, 3 * Yn)
    assert_same(left.posterior(Xt), before)
    close(right.train_targets[N:], -Yn.squeeze(-1))
    close(left.train_targets[N:], Yn.squeeze(-1))
    assert len(plain.train_inputs[0]) == N


def conditioned(model: Any, X: Tensor, Y: Tensor) -> Any:
    return model.condition_on_observations(X, Y)


def fantasised(model: Any, X: Tensor, Y: Tensor) -> Any:
    return model.fantasize(X, sampler(2))


@pytest.mark.parametrize("derive", [conditioned, fantasised])
def test_conditioning_leaves_the_original_alone(plain, Xt, Xn, Yn, derive) -> None:
    before = plain.posterior(Xt)
    state, targets = copy.deepcopy(plain.state_dict()), plain.train_targets.clone()
    derive(plain, Xn, Yn).posterior(Xt)
    assert torch.equal(plain.posterior(Xt).mean, before.mean)
    assert torch.equal(plain.posterior(Xt).variance, before.variance)
    assert torch.equal(plain.train_targets, targets)
    assert plain.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("derive", [conditioned, fantasised])
def test_float_of_a_child_leaves_the_original_alone(plain, Xt, Xn, Yn, derive) -> None:
    before = plain.posterior(Xt)
    child = derive(plain, Xn, Yn).float()
    assert child.posterior(Xt.float()).mean.dtype == torch.float32
    assert {p.dtype for p in plain.parameters()} == {torch.float64}
    assert torch.equal(plain.posterior(Xt).mean, before.mean)


@pytest.mark.parametrize("derive", [conditioned, fantasised])
def test_modes_of_a_child_leave_the_original_alone(plain, Xt, Xn, Yn, derive) -> None:
    child = derive(plain, Xn, Yn)
    with torch.no_grad():
        before = child.posterior(Xt)
        child.train()
        assert not plain.covar_module.training
        assert_same(child.eval().posterior(Xt), before)


@pytest.mark.parametrize("derive", [conditioned, fantasised])
def test_a_child_keeps_its_posterior_when_the_original_changes_in_place(plain, Xt, Xn, Yn, derive) -> None:
    plain.posterior(Xt)
    child = derive(plain, Xn, Yn)
    mean, covariance = (v.detach().clone() for v in (child.posterior(Xt).mean, dense(child.posterior(Xt))))
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(0.5)
    close(child.posterior(Xt).mean, mean)
    close(dense(child.posterior(Xt)), covariance)


def test_fitting_a_child_leaves_the_original_alone_and_the_reverse(family, X, Y, Xt, Xn, Yn) -> None:
    model = family(X, Y)
    child = model.condition_on_observations(Xn, Yn)
    before, of_child = model.posterior(Xt), child.posterior(Xt)
    fit(child, maxiter=3)
    assert_same(model.posterior(Xt), before)
    assert (child.posterior(Xt).mean - of_child.mean).abs().max() > 1e-6
    of_child = child.posterior(Xt)
    fit(model, maxiter=3)
    assert_same(child.posterior(Xt), of_child)


def test_priors_and_constraints_of_a_child_are_its_own(family, X, Y, Xn, Yn) -> None:
    model = family(X, Y)
    child = model.condition_on_observations(Xn, Yn)
    theirs = {id(part) for part in model.modules()}
    priors = [(owner, prior) for _, owner, prior, _, _ in child.named_priors()]
    assert priors
    assert theirs.isdisjoint(id(part) for pair in priors for part in pair)
    assert theirs.isdisjoint(id(constraint) for _, constraint in child.named_constraints())
    assert theirs.isdisjoint(id(part) for part in child.modules())


def test_a_conditioned_model_does_not_keep_the_original_alive(family, X, Y, Xn, Yn) -> None:
    model = family(X, Y)
    model.posterior(Xn)
    child, original = model.condition_on_observations(Xn, Yn), weakref.ref(model)
    del model
    gc.collect()
    assert original() is None
    assert child.num_observations == N + 4


def test_a_graph_over_train_inputs_survives_conditioning(plain, Xn, Yn) -> None:
    child = plain.condition_on_observations(Xn, Yn)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = (child.train_inputs[0] * weight).sum()
    child.condition_on_observations(Xn, Yn)
    loss.backward()


# ---------------------------------------------------------------- fantasies


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("m", [1, 2])
def test_fantasies_have_the_batch_shape_of_samples_and_inputs(family, X, Y2, Xt, batch, m) -> None:
    model = family(X, Y2[:, :m])
    fantasies = model.fantasize(rand(*batch, 2, family.d, seed=8), sampler(4))
    assert type(fantasies) is type(model)
    assert fantasies.batch_shape == (4, *batch)
    assert fantasies.num_outputs == m
    assert fantasies.posterior(Xt).mean.shape == fantasies.posterior(Xt).variance.shape == (4, *batch, 6, m)
    outputs = () if m == 1 else (m,)
    assert fantasies.train_inputs[0].shape == (4, *batch, *outputs, N + 2, family.d)
    assert fantasies.train_targets.shape == (4, *batch, *outputs, N + 2)
    assert model.batch_shape == Size([])
    variances = fantasies.posterior(Xt).variance
    close(variances[0], variances[1])


def test_each_fantasy_is_conditioning_on_its_values(family, X, Y, Xt) -> None:
    model = family(X, Y)
    Xf, Yf = rand(3, 2, family.d), randn(4, 3, 2, 1)
    fantasies = model.condition_on_observations(Xf, Yf)
    assert fantasies.batch_shape == (4, 3)
    for i, j in ((0, 0), (3, 2), (1, 2)):
        posterior, alone = fantasies.posterior(Xt), model.condition_on_observations(Xf[j], Yf[i, j]).posterior(Xt)
        close(posterior.mean[i, j], alone.mean)
        close(dense(posterior)[i, j], dense(alone))
    for batch in ((3,), (4, 1), (4, 3), (2, 1, 1)):
        shape = (*torch.broadcast_shapes(batch, (4, 3)), 6, 1)
        assert fantasies.posterior(Xt.expand(*batch, *Xt.shape)).mean.shape == shape


def test_values_alone_may_have_a_batch(family, plain, Xt, Xn) -> None:
    fantasies = plain.condition_on_observations(Xn, randn(5, 4, 1))
    assert fantasies.batch_shape == (5,)
    mean = plain.condition_on_observations(Xn, randn(5, 4, 1)[2]).posterior(Xt).mean
    close(fantasies.posterior(Xt).mean[2], mean)


def test_nested_fantasies_are_conditioning_on_both(family, plain, Xt) -> None:
    Xf, Xg = rand(3, 1, family.d, seed=5), rand(4, 3, 2, family.d, seed=6)
    Yf, Yg = randn(4, 3, 1, 1), randn(2, 4, 3, 2, 1)
    nested = plain.condition_on_observations(Xf, Yf).condition_on_observations(Xg, Yg)
    assert nested.batch_shape == (2, 4, 3)
    assert nested.train_inputs[0].shape == (2, 4, 3, N + 3, family.d)
    both = torch.cat([Xf[2], Xg[1, 2]]), torch.cat([Yf[1, 2], Yg[0, 1, 2]])
    alone = plain.condition_on_observations(*both).posterior(Xt)
    close(nested.posterior(Xt).mean[0, 1, 2], alone.mean)
    close(dense(nested.posterior(Xt))[0, 1, 2], dense(alone))
    assert nested.posterior(rand(2, 4, 3, 2, family.d)).variance.shape == (2, 4, 3, 2, 1)
    again = plain.fantasize(Xf, sampler(4)).fantasize(Xg, sampler(2))
    assert again.batch_shape == (2, 4, 3)


@pytest.mark.parametrize("known_noise", [False, True], ids=["learned", "known"])
def test_fantasies_at_no_points_change_nothing(family, X, Y, Xt, known_noise) -> None:
    model = family(X, Y, **({"train_Yvar": torch.full_like(Y, 0.1)} if known_noise else {}))
    fantasies = model.fantasize(torch.empty(3, 0, family.d, dtype=torch.float64), sampler(4))
    posterior = fantasies.posterior(Xt)
    assert posterior.mean.shape == (4, 3, 6, 1)
    close(posterior.mean[1, 2], model.posterior(Xt).mean)
    close(posterior.variance[1, 2], model.posterior(Xt).variance)


def test_fantasies_with_given_noise(family, plain, Xt, Xn) -> None:
    noise = torch.full((1, 1), 0.25, dtype=torch.float64)
    fantasies = plain.fantasize(Xn, sampler(3), observation_noise=noise)
    close(dense(fantasies.posterior(Xt))[0], schur(plain, Xn, truth(Xn), noise, Xt)[1])
    assert plain.fantasize(rand(3, 2, family.d), sampler(4), observation_noise=noise).batch_shape == (4, 3)


def test_fantasies_average_to_the_posterior(plain, Xt, Xn) -> None:
    prior, after = plain.posterior(Xt), plain.fantasize(Xn[:2], sampler(1024)).posterior(Xt)
    sd = prior.variance.max().sqrt().item()
    close(after.mean.mean(0), prior.mean, atol=0.02 * sd, rtol=0)
    close(after.mean.var(0) + after.variance.mean(0), prior.variance, atol=0.05 * sd**2, rtol=0)


def test_gradients_through_fantasies_are_finite_differences(family, plain, Xt) -> None:
    X, base = (0.8 * rand(2, 2, family.d) + 0.1).requires_grad_(), sampler(3)

    def after(X: Tensor) -> tuple[Tensor, Tensor]:
        posterior = plain.fantasize(X, base, propagate_grads=True).posterior(Xt)
        return posterior.mean, posterior.variance

    assert gradcheck(after, (X,), eps=1e-6, atol=1e-5)


def test_backward_twice_through_the_posterior_of_fantasies(plain, Xt, Xn) -> None:
    fantasies = plain.fantasize(Xn, sampler(2))
    for _ in range(2):
        posterior = fantasies.posterior(Xt.clone().requires_grad_())
        (posterior.mean.sum() + posterior.variance.sum()).backward()


def test_fantasies_carry_no_graph_to_the_hyperparameters(plain, Xt, Xn) -> None:
    with torch.enable_grad():
        posterior = plain.fantasize(Xn, sampler(2)).posterior(Xt)
    assert not posterior.mean.requires_grad
    assert not posterior.variance.requires_grad


def test_gradients_through_conditioned_values_are_finite_differences(plain, Xt, Xn, Yn) -> None:
    def mean(Y: Tensor) -> Tensor:
        return plain.condition_on_observations(Xn, Y).posterior(Xt).mean

    assert gradcheck(mean, (Yn.clone().requires_grad_(),))


@pytest.mark.parametrize("m", [1, 2])
def test_get_fantasy_model_takes_transformed_targets(family, X, Y2, Xt, Xn, m) -> None:
    model, values = family(X, Y2[:, :m]), truth(Xn).expand(4, m)
    standard, _ = model.outcome_transform(values)
    expected = model.condition_on_observations(Xn, values)
    found = model.get_fantasy_model(Xn, standard.squeeze(0))
    assert_same(found.posterior(Xt), expected.posterior(Xt))
    assert found.batch_shape == Size([])
    noise = rand(4, m)
    found = model.get_fantasy_model(Xn, standard.squeeze(0), noise=noise)
    assert_same(found.posterior(Xt), model.condition_on_observations(Xn, values, noise=noise).posterior(Xt))


def test_get_fantasy_model_takes_targets_without_an_output_dimension(plain, Xt, Xn, Yn) -> None:
    expected = plain.condition_on_observations(Xn, Yn).posterior(Xt)
    assert_same(plain.get_fantasy_model(Xn, Yn.squeeze(-1)).posterior(Xt), expected)
    batch = plain.get_fantasy_model(Xn.expand(3, -1, -1), Yn.squeeze(-1).expand(3, -1))
    assert batch.batch_shape == (3,)
    close(batch.posterior(Xt).mean[1], expected.mean)


# ---------------------------------------------------------------- acquisition functions

Acquisition = Callable[[Any, Tensor, Tensor], tuple[AcquisitionFunction, int]]


def candidates(d: int) -> Tensor:
    return rand(32, d, seed=11)


def joint_entropy_search(model: Any, X: Tensor, Y: Tensor) -> AcquisitionFunction:
    optima = get_optimal_samples(model, box(X.shape[-1]), num_optima=2, raw_samples=8, num_restarts=2)
    return qJointEntropySearch(model, *optima)


ACQUISITIONS: dict[str, tuple[Callable[[Any, Tensor, Tensor], AcquisitionFunction], int]] = {
    "UCB": (lambda m, X, Y: UpperConfidenceBound(m, beta=2.0), 1),
    "EI": (lambda m, X, Y: ExpectedImprovement(m, best_f=Y.mean()), 1),
    "LogEI": (lambda m, X, Y: LogExpectedImprovement(m, best_f=Y.max()), 1),
    "qUCB": (lambda m, X, Y: qUpperConfidenceBound(m, beta=2.0, sampler=sampler(16)), 2),
    "qLogEI-pending": (
        lambda m, X, Y: qLogExpectedImprovement(m, best_f=Y.max(), sampler=sampler(16), X_pending=X[:2] * 0.9),
        2,
    ),
    "qLogNEI": (lambda m, X, Y: qLogNoisyExpectedImprovement(m, X, sampler=sampler(16), prune_baseline=True), 2),
    "qKG": (lambda m, X, Y: qKnowledgeGradient(m, num_fantasies=2), 1),
    "qMES": (
        lambda m, X, Y: qMaxValueEntropy(m, candidates(X.shape[-1]), num_mv_samples=2, num_y_samples=4),
        1,
    ),
    "GIBBON": (lambda m, X, Y: qLowerBoundMaxValueEntropy(m, candidates(X.shape[-1]), num_mv_samples=2), 1),
    "JES": (joint_entropy_search, 1),
    "Thompson": (lambda m, X, Y: PathwiseThompsonSampling(m), 2),
}


def box(d: int) -> Tensor:
    return torch.stack([torch.zeros(d), torch.ones(d)]).double()


def assert_optimises(acquisition: AcquisitionFunction, d: int, q: int) -> None:
    """optimize_acqf stays in the box, and finds more than random points have in the median."""
    X, value = optimize_acqf(
        acquisition, box(d), q=q, num_restarts=2, raw_samples=16, options={"maxiter": 3, "seed": 1}
    )
    assert X.shape[-1] == d
    assert ((X >= 0) & (X <= 1)).all()
    width = getattr(acquisition, "get_augmented_q_batch_size", int)(q)
    width = q if isinstance(acquisition, qMultiStepLookahead) else width
    with torch.no_grad():
        some = torch.stack([acquisition(rand(1, width, d, seed=s)).squeeze() for s in range(3)])
    assert torch.isfinite(value)
    assert value >= some.median() - 1e-3 * some.median().abs()


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize(
    "family", [case for case in EXACT + FEW_FEATURES + FEW_FUNCTIONALS if case.values[0].d == 2], indirect=True
)
def test_acquisition_functions_are_optimised(family, plain, X, Y, name) -> None:
    torch.manual_seed(0)
    make, q = ACQUISITIONS[name]
    assert_optimises(make(plain, X, Y), family.d, q)


def test_multi_step_lookahead_is_optimised(family, plain) -> None:
    torch.manual_seed(0)
    acquisition = qMultiStepLookahead(plain, batch_sizes=[1], num_fantasies=[2])
    assert_optimises(acquisition, family.d, acquisition.get_augmented_q_batch_size(1))


@pytest.mark.parametrize("name", ["qUCB", "qLogEI-pending", "qLogNEI", "GIBBON"])
def test_acquisition_functions_give_equal_t_batches_equal_values(family, plain, X, Y, name) -> None:
    torch.manual_seed(0)
    make, q = ACQUISITIONS[name]
    values = make(plain, X, Y)(rand(1, q, family.d, seed=9).expand(3, -1, -1))
    close(values, values[:1].expand(3))


def test_cached_roots_do_not_change_noisy_expected_improvement(family, plain, X) -> None:
    points, improvements = rand(4, 2, family.d, seed=9), {}
    for cache_root in (True, False):
        acquisition = qLogNoisyExpectedImprovement(
            plain, X[:6], sampler=sampler(4096), prune_baseline=False, cache_root=cache_root
        )
        assert acquisition._cache_root == cache_root
        improvements[cache_root] = acquisition(points).exp().detach()
    close(improvements[True], improvements[False], rtol=0.05, atol=1e-3)


def test_thompson_samples_of_two_outputs_are_scalarised(family, X, Y2) -> None:
    transform = ScalarizedPosteriorTransform(weights=torch.tensor([0.5, 0.5]).double())
    assert PathwiseThompsonSampling(family(X, Y2), posterior_transform=transform)(rand(3, 2, family.d)).shape == (3,)


# ---------------------------------------------------------------- paths


def assert_moments(values: Tensor, posterior: Posterior) -> None:
    C = dense(posterior)
    sd = C.diagonal(dim1=-2, dim2=-1).max().sqrt().item()
    close(values.mean(0), posterior.mean.squeeze(-1), atol=0.1 * sd, rtol=0)
    close(torch.cov(values.mT), C, atol=0.15 * sd**2, rtol=0)


@torch.no_grad()
def test_matheron_paths_are_functions_with_the_posteriors_moments(family, X, Y, Xt, raw_bounds) -> None:
    model = family(raw(X), 50 + 7 * Y, input_transform=Normalize(family.d, bounds=raw_bounds))
    torch.manual_seed(0)
    paths = draw_matheron_paths(model, sample_shape=Size([3000]))
    values = paths(raw(Xt))
    assert values.shape == (3000, 6)
    assert torch.equal(paths(raw(Xt)), values)
    assert_moments(values, model.posterior(raw(Xt)))


@torch.no_grad()
def test_paths_of_fantasies_have_each_fantasys_moments(plain, Xt, Xn) -> None:
    fantasies = plain.fantasize(Xn, sampler(2))
    paths = draw_posterior_functions(fantasies, Size([3000]), torch.Generator().manual_seed(0))
    values = paths(Xt)
    assert values.shape == (3000, 2, 6)
    for i in range(2):
        close(values[:, i].mean(0), fantasies.posterior(Xt).mean[i].squeeze(-1), atol=0.05, rtol=0)
        close(torch.cov(values[:, i].mT), dense(fantasies.posterior(Xt))[i], atol=0.1, rtol=0)


def test_paths_stay_when_the_model_changes_in_place(plain, Xt) -> None:
    paths = draw_posterior_functions(plain, Size([3]))
    before = paths(Xt).detach().clone()
    with torch.no_grad():
        for p in plain.parameters():
            p.add_(0.5)
    close(paths(Xt), before)


def test_paths_are_their_generators(plain, Xt) -> None:
    first, second = (draw_posterior_functions(plain, Size([3]), torch.Generator().manual_seed(5))(Xt) for _ in range(2))
    assert torch.equal(first, second)


# ---------------------------------------------------------------- construction and data


def dataset(X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> SupervisedDataset:
    names = [f"x{i}" for i in range(X.shape[-1])]
    outcomes = [f"y{j}" for j in range(Y.shape[-1])]
    return SupervisedDataset(X, Y, Yvar=Yvar, feature_names=names, outcome_names=outcomes)


def test_construct_inputs_passes_data_and_options_on(family, X, Y, Xt) -> None:
    model_class = type(family(X, Y))
    options = model_class.construct_inputs(dataset(X, Y), outcome_transform=None, mean_module=ZeroMean())
    model = family(options.pop("train_X"), options.pop("train_Y"), **options)
    assert isinstance(model.mean_module, ZeroMean)
    assert not hasattr(model, "outcome_transform")
    assert_same(model.posterior(Xt), family(X, Y, outcome_transform=None, mean_module=ZeroMean()).posterior(Xt))


def test_construct_inputs_passes_known_noise_on(family, X, Y) -> None:
    model = family(X, Y)
    options = type(model).construct_inputs(dataset(X, Y, torch.full_like(Y, 0.1)))
    close(options["train_Yvar"], torch.full_like(Y, 0.1))


def test_construct_inputs_of_wiski() -> None:
    X = rand(N, 2)
    model = WISKI(**WISKI.construct_inputs(dataset(X, truth(X)), grid_size=(8, 10), basis="keys", keep_data=False))
    assert model.grid.size == (8, 10)
    assert len(model.train_inputs[0]) == 0


def test_set_train_data_exchanges_rows(family, plain, X, Y, Xt) -> None:
    plain.posterior(Xt)
    plain.set_train_data(X.flip(0), 2 * Y.squeeze(-1))
    reference = same_state(family(X.flip(0), 2 * Y, outcome_transform=None), plain)
    assert_same(plain.posterior(Xt), reference.posterior(Xt))
    plain.set_train_data((X[:5],), Y[:5].squeeze(-1), strict=False)
    assert plain.num_observations == 5
    plain.set_train_data(targets=-Y[:5].squeeze(-1))
    reference = same_state(family(X[:5], -Y[:5], outcome_transform=None), plain)
    assert_same(plain.posterior(Xt), reference.posterior(Xt))


def test_set_train_data_refuses_other_shapes_if_strict(plain, X, Y) -> None:
    with pytest.raises(InvalidDataError, match="strict=False"):
        plain.set_train_data(X[:5], Y[:5].squeeze(-1))


@pytest.mark.parametrize("rows", [(5, 7), (7, 5)], ids=str)
def test_set_train_data_refuses_inputs_and_targets_of_unequal_number(plain, X, Y, rows) -> None:
    with pytest.raises((BoScaleError, UnsupportedError)):
        plain.set_train_data(X[: rows[0]], Y[: rows[1]].squeeze(-1), strict=False)


def test_set_train_data_does_not_invent_known_variances(family, X, Y) -> None:
    model = family(X, Y, train_Yvar=torch.full_like(Y, 0.01))
    with pytest.raises((BoScaleError, UnsupportedError), match=r"noise|train_Yvar|varianc"):
        model.set_train_data(X[:5], Y[:5].squeeze(-1), strict=False)


# ---------------------------------------------------------------- without data


def without_data(X: Tensor, Y: Tensor, **kwargs: Any) -> WISKI:
    return WISKI(X, Y, grid_size=10, keep_data=False, **kwargs)


@pytest.fixture
def planar() -> tuple[Tensor, Tensor]:
    X = rand(N, 2)
    return X, truth(X) + 0.1 * randn(N, 1, seed=1)


def test_a_model_without_data_predicts_and_streams_like_one_with(planar) -> None:
    X, Y = planar
    bare, model = without_data(X, Y), WISKI(X, Y, grid_size=10)
    Xt, new = rand(6, 2, seed=3), rand(30, 2, seed=4)
    for _ in range(2):
        assert_same(bare.posterior(Xt), model.posterior(Xt))
        assert loss_of(bare) == pytest.approx(loss_of(model))
        bare, model = (m.condition_on_observations(new, truth(new)) for m in (bare, model))
    fit(bare), fit(model)
    assert_same(bare.posterior(Xt), model.posterior(Xt), rtol=1e-4, atol=1e-5)
    assert bare.num_observations == N + 60


@pytest.mark.parametrize("known_noise", [False, True], ids=["learned", "known"])
def test_a_model_without_data_has_no_rows_and_stays_as_small(planar, known_noise) -> None:
    X, Y = planar
    Yvar = torch.full_like(Y, 0.1) if known_noise else None
    model = without_data(X, Y, train_Yvar=Yvar, input_transform=Normalize(2))
    for mode in (True, False):
        model.train(mode)
        assert model.train_inputs[0].shape == (0, 2)
        assert model.train_targets.shape == (0,)
    model.posterior(X)
    sizes = []
    for i in range(N):
        given = {"noise": Yvar[i : i + 1]} if known_noise else {}
        model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1], **given)
        sizes.append(len(pickle.dumps(model)))
    many = {"noise": Yvar} if known_noise else {}
    model = model.condition_on_observations(X, Y, **many)
    model.posterior(X)
    assert model.num_observations == 3 * N
    assert max(*sizes, len(pickle.dumps(model))) <= sizes[0] + 500


@pytest.mark.parametrize("count", [1, 90], ids=["one", "more than half the rank"])
def test_a_model_without_data_keeps_the_mean_of_known_variances(planar, count) -> None:
    X, Y = planar
    model = without_data(X, Y, train_Yvar=torch.full_like(Y, 0.1), outcome_transform=None)
    model.posterior(X)
    new = rand(count, 2, seed=4)
    child = model.condition_on_observations(new, truth(new), noise=torch.full((count, 1), 0.7).double())
    assert child.mean_noise.item() == pytest.approx((0.1 * N + 0.7 * count) / (N + count))
    assert model.mean_noise.item() == pytest.approx(0.1)


@pytest.mark.parametrize("indices", [[1], [0, 2], [2, 0]], ids=str)
def test_subset_output_without_data_keeps_each_outputs_noise(planar, indices) -> None:
    X, Y = planar
    noise = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    model = without_data(X, Y.expand(N, 3), train_Yvar=noise.expand(N, 3), outcome_transform=None)
    subset = model.subset_output(indices)
    close(subset.mean_noise, noise[indices])
    close(subset.posterior(X).mean, model.posterior(X).mean[:, indices])


def test_a_model_without_data_loads_hyperparameters_but_no_other_transforms(planar) -> None:
    X, Y = planar
    model, fitted = without_data(X, Y), fit(without_data(X, Y))
    model.load_state_dict(fitted.state_dict())
    assert_same(model.eval().posterior(X), fitted.posterior(X))
    with pytest.raises(UnsupportedError, match=r"keeps no data.*outcome_transform"):
        model.load_state_dict(without_data(X, 3 * Y).state_dict())
    with pytest.raises(UnsupportedError, match="keeps no data"):
        model.load_state_dict(WISKI(X, Y, grid_size=9).state_dict())
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]]).double()
    transformed = without_data(X, Y, input_transform=Normalize(2, bounds=bounds))
    with pytest.raises(UnsupportedError, match=r"keeps no data.*input_transform"):
        transformed.load_state_dict(without_data(X, Y, input_transform=Normalize(2, bounds=2 * bounds)).state_dict())


def test_a_model_without_data_cannot_exchange_it(planar) -> None:
    with pytest.raises(UnsupportedError, match="keeps its data"):
        without_data(*planar).set_train_data(*planar)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch])
def test_copies_without_data_are_equal(planar, copied) -> None:
    model = without_data(*planar, train_Yvar=torch.full_like(planar[1], 0.1))
    close(copied(model).posterior(planar[0]).mean, model.posterior(planar[0]).mean)
    assert copied(model).float().posterior(planar[0].float(), observation_noise=True).mean.dtype == torch.float32


# ---------------------------------------------------------------- storage


@pytest.mark.parametrize("keep_data", [True, False])
@pytest.mark.parametrize("known_noise", [False, True], ids=["learned", "known"])
def test_a_saved_model_is_restored_with_data_and_statistics(tmp_path, planar, keep_data, known_noise) -> None:
    X, Y = planar
    Y2 = torch.cat([Y, 4 * Y.cos()], -1)
    Yvar = 0.01 + rand(N, 2) if known_noise else None

    def build(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> WISKI:
        bounds = 3 * box(2)
        options = {"keep_data": keep_data, "input_transform": Normalize(2, bounds=bounds)}
        return WISKI(3 * X, Y, Yvar, grid_size=9, **options)

    model = fit(build(X, Y2, Yvar))
    given = {"noise": Yvar[:2]} if known_noise else {}
    model = model.condition_on_observations(3 * X[:2], Y2[:2] + 1, **given)
    save_model(model, tmp_path / "model.pt")
    torch.load(tmp_path / "model.pt", weights_only=True)
    empty = build(X[:5] / 2, 9 * Y2[:5], None if Yvar is None else Yvar[:5])
    restored = load_model(empty, tmp_path / "model.pt")
    assert not restored.training
    assert restored.num_observations == N + 2
    close(restored.train_inputs[0], model.train_inputs[0])
    close(restored.train_targets, model.train_targets)
    for noisy in (False, True):
        assert_same(restored.posterior(X, observation_noise=noisy), model.posterior(X, observation_noise=noisy))
    onwards = [m.condition_on_observations(3 * X[2:4], Y2[2:4] - 1, **given) for m in (restored, model)]
    assert_same(onwards[0].posterior(X), onwards[1].posterior(X))


def test_a_failure_while_saving_leaves_the_old_file_and_nothing_else(tmp_path, planar, monkeypatch) -> None:
    model = WISKI(*planar, grid_size=8)
    path = tmp_path / "model.pt"
    save_model(model, path)
    before = path.read_bytes()

    def half(content: Any, file: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_model(model.condition_on_observations(*planar), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_model_replaces_the_old_file(tmp_path, planar) -> None:
    model, path = WISKI(*planar, grid_size=8), tmp_path / "model.pt"
    save_model(model, path)
    save_model(model.condition_on_observations(*planar), path)
    assert load_model(WISKI(*planar, grid_size=8), path).num_observations == 2 * N


def test_fantasies_are_not_saved(tmp_path, planar) -> None:
    model = WISKI(*planar, grid_size=8)
    path = tmp_path / "model.pt"
    one = model.condition_on_observations(planar[0][:1].clone().requires_grad_(), planar[1][:1])
    for fantasies in (model.fantasize(planar[0][:2], sampler(2)), one):
        with pytest.raises(InvalidDataError, match="fantasies"):
            save_model(fantasies, path)
    assert not path.exists()


def test_a_file_of_something_else_is_refused(tmp_path, planar) -> None:
    path = tmp_path / "model.pt"
    torch.save({"format": 1, "class": "Other"}, path)
    with pytest.raises(InvalidDataError, match="Other"):
        load_model(WISKI(*planar, grid_size=8), path)


# ---------------------------------------------------------------- refusals


def refused(error: type[Exception], match: str, X: Tensor, Y: Tensor, **options: Any) -> None:
    with pytest.raises(error, match=match):
        WISKI(X, Y, **{"grid_size": 8, **options})


def test_a_kernel_without_factors_is_refused_by_name(planar) -> None:
    refused(UnsupportedKernelError, "LinearKernel", *planar, covar_module=LinearKernel())
    refused(UnsupportedKernelError, "RQKernel", *planar, covar_module=ScaleKernel(RQKernel()))
    refused(UnsupportedKernelError, "AdditiveKernel", *planar, covar_module=ScaleKernel(RBFKernel() + RBFKernel()))
    refused(UnsupportedKernelError, "LinearKernel", *planar, covar_module=RBFKernel() + LinearKernel())


def test_a_mean_a_likelihood_and_a_learned_transform_are_refused_by_name(planar) -> None:
    warp = Warp(d=2, indices=[0, 1])
    refused(UnsupportedError, "LinearMean", *planar, mean_module=LinearMean(2))
    refused(UnsupportedError, "StudentTLikelihood", *planar, likelihood=StudentTLikelihood())
    refused(UnsupportedError, r"Warp .*requires_grad_\(False\)", *planar, input_transform=warp)
    Yvar = torch.full_like(planar[1], 0.1)
    refused(UnsupportedError, "GaussianLikelihood", *planar, train_Yvar=Yvar, likelihood=GaussianLikelihood())
    learned = FixedNoiseGaussianLikelihood(Yvar.squeeze(-1), learn_additional_noise=True)
    refused(UnsupportedError, "learned noise", *planar, train_Yvar=Yvar, likelihood=learned)


def test_a_frozen_warp_is_accepted(planar) -> None:
    warp = Warp(d=2, indices=[0, 1]).double().requires_grad_(False)
    assert WISKI(*planar, grid_size=8, input_transform=warp).posterior(planar[0]).mean.shape == (N, 1)


def test_more_than_four_dimensions_and_batches_are_refused() -> None:
    refused(UnsupportedError, "5 input dimensions", rand(N, 5), rand(N, 1))
    refused(UnsupportedError, "batched training data", rand(2, N, 2), rand(2, N, 1))


def test_a_grid_too_large_names_grid_size_and_max_memory(planar) -> None:
    refused(GridError, r"grid_size=\(3000, 3000\).*max_memory=4", *planar, grid_size=3000)
    refused(GridError, r"grid_size=\(20, 20\).*max_memory=0.001", *planar, grid_size=20, max_memory=0.001)


def test_options_that_do_not_fit_are_refused_by_name(planar) -> None:
    refused(GridError, "grid_size: 3 numbers for 2", *planar, grid_size=(8, 8, 8))
    refused(GridError, "grid_size", *planar, grid_size=3)
    refused(GridError, r"bounds: shape \(2, 3\)", *planar, bounds=box(3))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_inf_are_refused_with_their_rows(family, plain, X, Y, Xn, Yn, value) -> None:
    def spoilt(values: Tensor, row: int) -> Tensor:
        return values.index_fill(0, torch.tensor([row]), value)

    with pytest.raises(InvalidDataError, match=r"train_X: NaN or inf in rows \[3\]"):
        family(spoilt(X, 3), Y)
    with pytest.raises(InvalidDataError, match=r"train_Y: NaN or inf in rows \[5\]"):
        family(X, spoilt(Y, 5))
    with pytest.raises(InvalidDataError, match=r"train_Yvar: NaN or inf in rows \[7\]"):
        family(X, Y, train_Yvar=spoilt(torch.ones_like(Y), 7))
    with pytest.raises(InvalidDataError, match=r"X: NaN or inf in rows \[1\]"):
        plain.condition_on_observations(spoilt(Xn, 1), Yn)
    with pytest.raises(InvalidDataError, match=r"Y: NaN or inf in rows \[2\]"):
        plain.condition_on_observations(Xn, spoilt(Yn, 2))
    with pytest.raises(InvalidDataError, match=r"targets: NaN or inf"):
        plain.set_train_data(X, spoilt(Y, 2).squeeze(-1))


def test_points_outside_the_grid_are_refused_with_their_rows(planar) -> None:
    X, Y = planar
    outside = X.clone()
    outside[4] = 3.0
    refused(GridError, r"1 of 20 points .*rows \[4\].*bounds", outside, Y, outcome_transform=None)
    model = WISKI(X, Y, grid_size=8)
    for use in (model.posterior, lambda X: model.condition_on_observations(X, Y)):
        with pytest.raises(GridError, match=r"rows \[4\]"):
            use(outside)


def test_a_refused_observation_leaves_the_model_usable(planar) -> None:
    model = WISKI(*planar, grid_size=8)
    before = model.posterior(planar[0])
    with pytest.raises(GridError):
        model.condition_on_observations(planar[0] + 5, planar[1])
    assert_same(model.posterior(planar[0]), before)
    assert len(model.train_inputs[0]) == model.num_observations == N


def test_points_in_the_margin_of_one_cell_are_served(planar) -> None:
    model = WISKI(*planar, grid_size=8)
    assert torch.isfinite(model.posterior(torch.tensor([[-0.1, 1.1]]).double()).mean).all()


def test_conditioning_names_values_that_do_not_fit(plain, Xn, Yn) -> None:
    with pytest.raises(InvalidDataError, match=r"expected … × 4 × 1, one column an output"):
        plain.condition_on_observations(Xn, Yn.expand(4, 2))
    with pytest.raises(InvalidDataError, match=r"4 rows and Y 3"):
        plain.condition_on_observations(Xn, Yn[:3])


def test_a_grid_too_coarse_for_the_kernel_is_warned_of_after_a_fit() -> None:
    X = rand(40, 1)
    model = WISKI(X, (40 * X).sin(), grid_size=10)
    model.covar_module.lengthscale = 0.03
    model.likelihood.noise = 1e-3
    mll = mll_of(model)
    get_loss_closure(mll.train())()
    mll.eval()  # an evaluation is no fit
    with pytest.warns(InterpolationWarning, match="grid_size"):
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 1}})
    assert "grid_size" in model.fit_report.warnings[0]
    assert "interpolation error" in str(model.fit_report)
