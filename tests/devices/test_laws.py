"""The laws and BoTorch's contract on a GPU, in both precisions: what `test_laws` and `test_contract` ask of the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP
from botorch.sampling import SobolQMCNormalSampler
from cases import FEATURES, MODELS, REFITTED, data, rand
from matching import TOLERANCE, assert_all_on, assert_matches, in_turns
from torch import Tensor

from bo_scale.errors import BoScaleError
from bo_scale.gp.weight_space.evidence import log_evidence
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.statistics import SufficientStatistics

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")  # of float32
NAMES = {"WISKI-2d", "WISKI-sum-2d", "WISKI-precision-sum", "WISKI-projected", "SoftKI-2d", "GRIEF-2d", "CaGP-few", "Decoupled-few"}  # fmt: skip # noqa: E501
REFITS = {case.id for case in REFITTED}
NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)


def alike(a: Any, b: Any, dtype: torch.dtype) -> None:
    """Both posteriors say the same."""
    for found, expected in ((a.mean, b.mean), (a.variance, b.variance)):
        torch.testing.assert_close(
            found.reshape(expected.shape), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize(("d", "build", "dtype"), in_turns(FEATURES))
def test_statistics_and_the_evidence(
    d: int, build: Callable[[Tensor], FeatureMap], dtype: torch.dtype, gpu: torch.device
) -> None:
    """Statistics add up and are taken away; evidence, gradient and posterior are those of the CPU, however made."""
    X, Y = (values.to(dtype) for values in data(20, d))
    Z, D = rand(3, d, seed=2), 0.5 + rand(20, seed=3)

    def said(device: Any) -> dict[str, Tensor]:
        lengthscales = torch.linspace(0.3, 0.5, d, dtype=torch.float64).requires_grad_()
        x, y, z, D_, noise, mu = (values.to(device) for values in (X, Y, Z, D, NOISE, MU))
        features = build(lengthscales).to(torch.device(device))
        whole = SufficientStatistics.from_data(features, x, y, D_)
        parts = [SufficientStatistics.from_data(features, x[s], y[s], D_[s]) for s in (slice(12), slice(12, 20))]
        for added in (parts[0] + parts[1], parts[0].observe(features, x[12:], y[12:], D_[12:])):
            torch.testing.assert_close(added.recenter(whole.center).projection, whole.projection)
        torch.testing.assert_close((whole - parts[1]).recenter(parts[0].center).projection, parts[0].projection)
        noise.requires_grad_()
        evidence = log_evidence(features.prior_root(), whole, noise, mu)
        slopes = torch.autograd.grad(evidence, [lengthscales, noise])
        with torch.no_grad():
            process = WeightSpacePosterior.from_statistics(features, whole, noise, mu)
            prior = WeightSpacePosterior.prior(features, mu)
            updated = prior.update(prior.locate(x.double()), y[:, 0].double(), noise * D_)
            torch.testing.assert_close(updated.mean(z), process.mean(z), rtol=1e-6, atol=1e-6)
        return {
            "evidence": evidence.detach(),
            "gradient": torch.stack([slopes[0].to(device).sum(), slopes[1]]),
            "mean": process.mean(z),
            "covariance": process.covariance(z).detach(),
        }

    expected = said("cpu")
    for name, value in said(gpu).items():
        assert_matches(value, expected[name], gpu, name)


@pytest.mark.parametrize(("d", "build", "dtype"), in_turns(MODELS))
def test_models(
    d: int, build: Callable[..., Any], dtype: torch.dtype, gpu: torch.device, request: pytest.FixtureRequest
) -> None:
    """Conditioning at once, in steps and by refitting; batches and loops; nothing and NaN."""
    X, Y = (values.to(gpu, dtype) for values in data(16, d))
    Z = data(4, d, seed=1)[0].to(gpu, dtype)
    model = build(X[:13], Y[:13], outcome_transform=None).eval()
    before = model.posterior(Z)
    at_once = model.condition_on_observations(X[13:], Y[13:])
    in_steps = model
    for i in range(13, 16):
        in_steps = in_steps.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    alike(in_steps.posterior(Z), at_once.posterior(Z), dtype)
    fantasies = model.condition_on_observations(X[13:].expand(2, 3, d), Y[13:]).posterior(Z)
    for i in range(2):
        torch.testing.assert_close(
            fantasies.mean[i], at_once.posterior(Z).mean, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
    if any(f"-{name}-" in request.node.name for name in REFITS):
        alike(at_once.posterior(Z), build(X, Y, outcome_transform=None).posterior(Z), dtype)
    torch.testing.assert_close(model.posterior_mean(Z), before.mean)
    alike(model.posterior(Z.unsqueeze(-2)), before, dtype)
    alike(model.condition_on_observations(X[:0], Y[:0]).posterior(Z), before, dtype)
    assert model.posterior(Z[:0]).mean.shape == (0, 1)
    assert torch.equal(model.posterior(Z).mean, before.mean)
    assert at_once.posterior(Z).rsample(torch.Size([2])).dtype == dtype
    bad = X.index_fill(0, torch.tensor([3], device=gpu), float("nan"))
    with pytest.raises(BoScaleError, match=r"X.*3"):
        model.condition_on_observations(bad, Y)
    assert_all_on(at_once, gpu)


@pytest.mark.parametrize(("d", "build", "dtype"), in_turns([case for case in MODELS if case.id in NAMES], 1))
def test_the_contract(d: int, build: Callable[..., Any], dtype: torch.dtype, gpu: torch.device) -> None:
    """Selections, noise, transforms, fantasies, lists and copies of a model of two outputs."""

    def said(device: Any) -> dict[str, Tensor]:
        X, Y = (values.to(device, dtype) for values in data(14, d, 2))
        Z, Yn = (values.to(device, dtype) for values in data(3, d, 2, seed=1))
        model, weights = build(X, Y).eval(), X.new_tensor([0.3, 0.7])
        one = model.subset_output([1])
        listed = ModelListGP(model.subset_output([0]), one)
        copied = copy.deepcopy(model)
        loaded = build(X, 0.5 * Y)
        loaded.load_state_dict(model.state_dict())
        fantasies = model.fantasize(Z, SobolQMCNormalSampler(torch.Size([2]), seed=0))
        given = one.get_fantasy_model(Z[:1], Yn[:1, 0])
        for each in (one, copied, loaded, fantasies, given):
            assert each.posterior(Z).mean.dtype == dtype
            assert_all_on(each, device)
        found = {
            "reordered": model.posterior(Z, output_indices=[1, 0]),
            "noisy": model.posterior(Z, observation_noise=True),
            "noise given": model.posterior(Z, observation_noise=X.new_full((3, 2), 0.2)),
            "transformed": model.posterior(Z, posterior_transform=ScalarizedPosteriorTransform(weights)),
            "subset": one.posterior(Z),
            "list": listed.condition_on_observations([Z, Z], Yn).posterior(Z),
            "copy": copied.posterior(Z),
            "loaded": loaded.posterior(Z),
            "fantasies": fantasies.posterior(Z),
            "given": given.posterior(Z),
        }
        moments = {f"{name} mean": each.mean.detach() for name, each in found.items()}
        return {**moments, **{f"{name} variance": each.variance.detach() for name, each in found.items()}}

    expected = said("cpu")
    for name, value in said(gpu).items():
        assert_matches(value, expected[name], gpu, name)
