"""An ensemble as a single model, against the moments of its mixture and a knowledge gradient by hand."""

from functools import partial
from typing import Any

import pytest
import torch
from botorch.acquisition import PosteriorMean, qKnowledgeGradient
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.transforms.outcome import Log
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.transforms import is_ensemble
from cases import data, rand
from torch import Size, Tensor

from bo_scale import AveragedEnsemble, GRIEFBayes
from bo_scale.models.errors import UnsupportedError

S = 6
X, Y = data(24, 2)
Xt = data(5, 2, seed=3)[0]
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)


def bayes(Y: Tensor = Y, **options: Any) -> GRIEFBayes:
    given = {"num_eigenfunctions": 18, "grid_points": 6, "num_samples": S, "bounds": BOUNDS, "outcome_transform": None}
    return GRIEFBayes(X, Y, **{**given, **options}).eval()


@pytest.fixture(scope="module")
def model() -> GRIEFBayes:
    return bayes()


def sampler(n: int) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(Size([n]), seed=7)


def covariance(posterior: Any) -> Tensor:
    return posterior.distribution.covariance_matrix


def test_knowledge_gradient_is_the_mean_over_samples(model: GRIEFBayes) -> None:
    x, later = rand(1, 1, 2, seed=6), rand(1, 3, 2, seed=7)
    draws, noise = sampler(3), model._samples.mixture.log_noise
    found = qKnowledgeGradient(AveragedEnsemble(model), num_fantasies=3, sampler=draws)(torch.cat([x, later], 1))
    total = 0.0
    for f in range(3):
        joint = model.posterior(torch.cat([x[0], later[0, f : f + 1]]))
        mean, C, z = joint.mean[..., 0], covariance(joint), draws.base_samples[f].flatten()[0]
        total += (mean[:, 1] + C[:, 0, 1] / (C[:, 0, 0] + noise.exp()).sqrt() * z).mean() / 3
    close(found, total.reshape(1))


def test_the_averaged_ensemble_has_the_moments_of_the_mixture(model: GRIEFBayes) -> None:
    averaged = AveragedEnsemble(model)
    found, mixture = averaged.posterior(rand(2, 3, 2)), model.posterior(rand(2, 3, 2))
    assert averaged.batch_shape == Size([])
    assert averaged.num_outputs == 1
    assert not is_ensemble(averaged)
    assert found.mean.shape == (2, 3, 1)
    close(found.mean, mixture.mixture_mean)
    close(found.variance, mixture.mixture_variance)
    draws = torch.cat([part for part in mixture.rsample(Size([4000])).unbind(2)])[..., 0].transpose(0, 1)
    for b in range(2):
        close(
            covariance(found)[b], torch.cov(draws[b].mT), rtol=0.15, atol=0.05 * mixture.mixture_variance.max().item()
        )
    close(PosteriorMean(averaged)(rand(2, 1, 2)), model.posterior_mean(rand(2, 1, 2)).reshape(2))


def test_the_averaged_ensemble_takes_posterior_transforms(model: GRIEFBayes) -> None:
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]).double())
    found = AveragedEnsemble(model).posterior(Xt, posterior_transform=transform)
    close(found.mean, -2 * model.posterior(Xt).mixture_mean)
    close(found.variance, 4 * model.posterior(Xt).mixture_variance)


@pytest.mark.parametrize("noisy", [False, True])
def test_moments_are_the_mean_over_samples_and_what_they_differ_by(model: GRIEFBayes, noisy: bool) -> None:
    found, every = AveragedEnsemble(model).posterior(Xt, observation_noise=noisy), model.posterior(Xt, None, noisy)
    means, C = every.mean.squeeze(-1), covariance(every)
    apart = means - means.mean(0)
    close(found.mean.squeeze(-1), means.mean(0))
    close(covariance(found), C.mean(0) + apart.mT @ apart / S)


def test_fantasies_are_those_of_the_ensemble(model: GRIEFBayes) -> None:
    found, expected = (each.fantasize(Xt[:2], sampler(3)) for each in (AveragedEnsemble(model), model))
    assert found.batch_shape == Size([3, S])
    close(found.posterior(Xt).mean, expected.posterior(Xt).mean)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_an_outcome_transform_that_is_not_linear_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="outcome transform must be linear"):
        AveragedEnsemble(bayes(Y.exp(), outcome_transform=Log())).posterior(Xt)
