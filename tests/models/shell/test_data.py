"""Rows, targets and noise as BoTorch reads and exchanges them."""

import warnings
from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.sampling import SobolQMCNormalSampler
from cases import WEIGHT_SPACE, cagp, data, decoupled, rand
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ZeroMean
from torch import Size, Tensor

from bo_scale import WISKI
from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError

X, Y = data(12, 2, 2)
BOUNDS = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
BUILDS = pytest.mark.parametrize("build", [lambda X, Y, **kw: WISKI(X, Y, grid_size=7, **kw), cagp, decoupled])


def wiski(X: Tensor = X, Y: Tensor = Y, **options: Any) -> WISKI:
    return WISKI(X, Y, **{"grid_size": 7, "outcome_transform": None, **options})


@BUILDS
def test_a_model_has_tensors_of_its_own_and_one_noise_for_each_output(build: Any) -> None:
    given = X.clone(), Y.clone()
    model = build(*given, outcome_transform=None)
    more = model.eval().condition_on_observations(X[:1], Y[:1])
    assert torch.equal(given[0], X)
    assert torch.equal(model.train_targets, Y.mT)
    assert torch.equal(more.train_targets[:, :12], Y.mT)
    assert model.learned_noise.shape == (2,)
    assert not model.knows_noise
    assert not model.learned_noise.requires_grad
    assert (model.rows.D == 1).all()


def test_one_noise_and_one_constant_may_serve_every_output() -> None:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.3
    model = wiski(likelihood=likelihood, mean_module=ZeroMean())
    torch.testing.assert_close(model.learned_noise, torch.full((2,), 0.3).double())
    assert torch.equal(model._constants(), torch.zeros(2).double())
    model.posterior(X[:1])
    learned = wiski()
    learned.mean_module.constant.data = torch.tensor([1.0, -2.0]).double()
    assert learned._constants().tolist() == [1.0, -2.0]


def test_known_variances_are_transformed_like_the_targets_and_have_botorchs_smallest() -> None:
    Yvar = 0.1 + rand(12, 2)
    model = WISKI(X, Y, Yvar, grid_size=7)
    torch.testing.assert_close(model.rows.D, Yvar / Y.var(0))
    assert model.learned_noise is None
    assert torch.equal(model._noise_scale(), torch.ones(2).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny = wiski(train_Yvar=torch.zeros_like(Y))
        smallest = FixedNoiseGaussianLikelihood(torch.zeros(1).double()).noise
    assert torch.equal(tiny.rows.D, smallest.expand(12, 2))


@pytest.mark.parametrize("m", [1, 2])
def test_a_likelihood_of_fixed_noise_tells_the_variances(m: int) -> None:
    noise = 0.1 + rand(m, 12)
    likelihood = FixedNoiseGaussianLikelihood(noise.squeeze(0), batch_shape=Size([m] if m > 1 else []))
    model = wiski(Y=Y[:, :m], likelihood=likelihood)
    assert model.knows_noise
    assert torch.equal(model.rows.D, noise.mT)


def test_inputs_and_targets_of_fantasies_follow_the_rows() -> None:
    model = wiski(input_transform=Normalize(2, bounds=BOUNDS), bounds=BOUNDS).eval()
    fantasies = model.fantasize(X[:3].unsqueeze(0), SobolQMCNormalSampler(Size([4])))
    assert fantasies.batch_shape == Size([4, 1])
    assert fantasies.num_observations == 12
    assert fantasies.train_targets.shape == (4, 1, 2, 15)
    assert torch.equal(fantasies.train_targets[2, 0, :, :12], Y.mT)
    (inputs,) = fantasies.train_inputs
    torch.testing.assert_close(inputs[3, 0, 1], (torch.cat([X, X[:3]]) + 1) / 2)
    (raw,) = fantasies.train().train_inputs
    torch.testing.assert_close(raw[3, 0, 1], torch.cat([X, X[:3]]))


@pytest.mark.parametrize("known", [False, True])
def test_targets_taken_out_are_put_back_as_they_were(known: bool) -> None:
    """As BoTorch's leave-one-out does."""
    Yvar = 0.1 + rand(12, 2)
    model = wiski(**({"train_Yvar": Yvar} if known else {})).eval()
    before = model.posterior(X[:3]).mean
    targets, noise = model._extract_targets_and_noise()
    assert torch.equal(targets, Y)
    assert noise is None if not known else torch.equal(noise, Yvar)
    model._restore_targets_and_noise(-targets, noise, strict=True)
    assert not torch.allclose(model.posterior(X[:3]).mean, before)
    model._restore_targets_and_noise(targets, noise, strict=True)
    torch.testing.assert_close(model.posterior(X[:3]).mean, before)


@pytest.mark.parametrize("known", [False, True])
def test_a_model_told_nothing_more_of_its_data_keeps_them(known: bool) -> None:
    model = wiski(**({"train_Yvar": 0.1 + rand(12, 2)} if known else {}))
    model.set_train_data()
    assert torch.equal(model.train_inputs[0], X.expand(2, 12, 2))
    model.set_train_data(model.train_inputs)
    model.set_train_data(targets=2 * Y.mT)
    assert torch.equal(model.train_targets, 2 * Y.mT)
    assert torch.equal(model.rows.X, X)
    with pytest.raises(InvalidDataError, match=r"shapes \(5, 2\), \(12, 2\) are new.*pass strict=False"):
        model.set_train_data(X[:5])
    with pytest.raises(InvalidDataError, match="5 inputs and 12 targets"):
        model.set_train_data(X[:5], strict=False)
    assert torch.equal(model.train_targets, 2 * Y.mT)


def test_data_are_not_exchanged_under_fantasies() -> None:
    fantasies = wiski().eval().fantasize(X[:1], SobolQMCNormalSampler(Size([2])))
    with pytest.raises(UnsupportedError, match=r"set_train_data needs .* no fantasies"):
        fantasies.set_train_data(X)


@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE[1:2])
def test_single_precision_is_kept_outside_and_left_inside(d: int, build: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(*(values.float() for values in data(12, d)), outcome_transform=None)
    assert {values.dtype for values in model._transformed_rows()} == {torch.float64}
    assert model._noise_scale().dtype == model._constants().dtype == torch.float64
    assert model.train_inputs[0].dtype == model.train_targets.dtype == torch.float32
