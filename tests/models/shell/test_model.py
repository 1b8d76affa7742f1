"""What the shell adds to BoTorch's contract, which `test_contract` has for every family."""

from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.sampling import SobolQMCNormalSampler
from cases import cagp, data, decoupled, grief, rand, softki
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Size, Tensor

from bo_scale import WISKI
from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import FitError, UnsupportedError
from bo_scale.models.fitting.strategies import EvidenceFit

X, Y = data(12, 2, 2)
Z = rand(4, 2, seed=5)


def wiski(X: Tensor = X, Y: Tensor = Y, *args: Any, **options: Any) -> WISKI:
    return WISKI(X, Y, *args, **{"grid_size": 7, "outcome_transform": None, **options})


BUILDS = pytest.mark.parametrize("build", [wiski, softki, grief, cagp, decoupled])


def assert_same(a: Any, b: Any) -> None:
    p, q = a.posterior(Z), b.posterior(Z)
    torch.testing.assert_close(p.mean, q.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(p.variance, q.variance, rtol=1e-7, atol=1e-9)


# ---------------------------------------------------------------- inference


@BUILDS
def test_an_inference_is_kept_until_a_hyperparameter_changes_however_it_does(build: Any) -> None:
    model = build(X, Y).eval()
    found = model.inference
    assert model.inference is found
    model.posterior(Z)
    assert model.inference is found
    model.likelihood.noise_covar.raw_noise.data += 0.1  # no version counter tells of it
    changed = model.inference
    assert changed is not found
    assert not torch.equal(changed.theta, found.theta)
    model.likelihood.noise_covar.raw_noise.data -= 0.1
    assert model.inference is not changed


@BUILDS
def test_fantasies_keep_the_hyperparameters_they_were_made_at(build: Any) -> None:
    model = build(X, Y).eval()
    fantasies = model.fantasize(X[:1], SobolQMCNormalSampler(Size([2])))
    before = fantasies.posterior(Z).mean
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
    assert torch.equal(fantasies.posterior(Z).mean, before)


# ---------------------------------------------------------------- rows and noise


@BUILDS
def test_rows_in_the_models_own_units_are_observations(build: Any) -> None:
    model = build(X, Y, outcome_transform=None).eval()
    model.posterior(Z)
    D = 0.5 + rand(3, 2)
    new = data(3, 2, 2, seed=7)
    told = model.condition_on_observations(*new, noise=D * model.learned_noise)
    found = model.with_rows(*new, D)
    assert_same(found, told)
    torch.testing.assert_close(found.rows.D[12:], D)
    assert model.num_observations == 12


@pytest.mark.parametrize("known", [False, True])
@BUILDS
def test_a_future_measurement_has_the_noise_of_the_present_ones(build: Any, known: bool) -> None:
    Yvar = 0.1 + rand(12, 2)
    model = build(X, Y, **({"train_Yvar": Yvar} if known else {}), outcome_transform=None).eval()
    expected = Yvar.mean(0) if known else model.learned_noise
    torch.testing.assert_close(model.mean_noise, expected)
    for j in range(2):
        torch.testing.assert_close(model.measurement_noise(j), expected[j])
        assert not model.measurement_noise(j).requires_grad


def test_noise_with_an_error_of_the_approximation_is_that_of_the_inference() -> None:
    model = wiski(conservative=True).eval()
    for j in range(2):
        torch.testing.assert_close(model.measurement_noise(j), model.inference.noise[j])
        assert model.measurement_noise(j) > model.mean_noise[j]


def test_of_no_observations_no_noise_is_known() -> None:
    model = wiski(Y=Y[:, :1], train_Yvar=torch.full((12, 1), 0.1).double()).eval()
    empty = model.remove_observations(list(range(12)))
    assert empty.posterior(Z).mean.shape == (4, 1)
    with pytest.raises(UnsupportedError, match="observation_noise: no variances are known before the first"):
        empty.posterior(Z, observation_noise=True)


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("indices", [[-1], [1, 0], [0]], ids=str)
@BUILDS
def test_outputs_may_be_counted_from_the_end(build: Any, indices: list[int]) -> None:
    model = build(X, Y).eval()
    whole, subset = model.posterior(Z), model.subset_output(indices)
    assert subset._known_inference() is not None  # nothing is inferred anew
    torch.testing.assert_close(subset.posterior(Z).mean, whole.mean[:, indices])
    torch.testing.assert_close(model.posterior(Z, output_indices=indices).variance, whole.variance[:, indices])
    assert subset.num_outputs == len(indices)


# ---------------------------------------------------------------- values that do not fit


def test_values_of_fantasies_that_are_not_finite_are_named_by_their_rows() -> None:
    """Also without a dimension of outputs."""
    model = wiski(Y=Y[:, :1]).eval()
    targets = torch.tensor([1.0, 2.0, torch.nan, 3.0], dtype=torch.float64)
    for values in (targets, targets.unsqueeze(-1), targets.unsqueeze(0)):
        with pytest.raises(InvalidDataError, match=r"targets: NaN or inf in rows \[2\]"):
            model.get_fantasy_model(X[:4], values)
    noise = torch.full((4,), 0.1).double()
    noise[1] = torch.inf
    with pytest.raises(InvalidDataError, match=r"noise: NaN or inf in rows \[1\]"):
        model.get_fantasy_model(X[:4], torch.ones(4).double(), noise)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_fantasy_model_of_transformed_targets_is_one_of_raw_values(outputs: int) -> None:
    bounds = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    options = {"input_transform": Normalize(2, bounds=bounds), "bounds": bounds, "grid_size": 7}
    model = WISKI(X, Y[:, :outputs], **options).eval()
    new, values = data(3, 2, outputs, seed=7)
    targets, noise = model.outcome_transform(values)[0], 0.1 + rand(3, outputs)
    told = model.condition_on_observations(new, values, noise=noise)
    assert_same(model.get_fantasy_model(new, targets, noise), told)
    batch = model.get_fantasy_model(new, targets.expand(5, 1, 3, outputs), noise)
    assert batch.batch_shape == Size([5, 1])
    torch.testing.assert_close(batch.posterior(Z).mean[4, 0], told.posterior(Z).mean, rtol=1e-7, atol=1e-9)


# ---------------------------------------------------------------- fitting


class Stops:
    """A strategy that fails."""

    def fit(self, *args: Any) -> Any:
        """Fail."""
        raise FitError("stopped")


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of a grid for speed
def test_a_model_is_fitted_by_its_strategy_and_forgets_the_recorder() -> None:
    model = wiski()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    model._fitting = EvidenceFit()
    assert model.custom_fit(mll, optimizer_kwargs={"options": {"maxiter": 2}}) is mll
    report = model.fit_report
    assert report is not None
    model._fitting = Stops()
    with pytest.raises(FitError, match="stopped"):
        model.custom_fit(mll)
    assert model._recorder is None
    assert model.fit_report is report  # of the last fit that there was
    fantasies = model.eval().fantasize(X[:1], SobolQMCNormalSampler(Size([2])))
    with pytest.raises(UnsupportedError, match="fantasies cannot be fitted; fit the model it was made from"):
        fantasies.custom_fit(mll)


@BUILDS
def test_the_loss_is_less_the_evidence_and_log_priors_of_an_observation(build: Any) -> None:
    model = build(X, Y[:, :1])
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    priors = sum(prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in model.named_priors())
    expected = -(model._log_evidence().sum() + priors) / 12
    torch.testing.assert_close(model.compute_custom_loss(mll), expected)
