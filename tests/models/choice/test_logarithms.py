"""Logarithms of targets: when they are likelier, and the models of them that `choose` returns."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement, qUpperConfidenceBound
from botorch.optim import optimize_acqf
from botorch.posteriors import PosteriorList
from torch import Tensor

from bo_scale import LogNormalPosterior, choose, load_model, save_model
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.models.choice.kernels import KernelFits
from bo_scale.models.choice.logarithms import are_likelier, gain_of_logarithms, logarithms, may_be_logarithms
from bo_scale.models.choice.plan import Plan

SMOOTH = Plan("exact", "matern52")


def amounts(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return inputs, and positive targets whose noise grows with them."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    f = 4 * X[:, 0] + X[:, 1] - 2
    return X, torch.exp(f + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)).unsqueeze(-1)


def test_the_gain_is_that_of_a_log_normal_density() -> None:
    X, Y = amounts(40)
    of_targets, of_logs = KernelFits((X, Y, None))(SMOOTH), KernelFits((X, Y.log(), None))(SMOOTH)
    scale, units = Y.std(), Y.log().std()
    means, deviations = Y.log() - units * of_logs.errors, units * of_logs.deviations
    log_normal = torch.distributions.LogNormal(means - scale.log(), deviations).log_prob(Y / scale).mean()
    gain = gain_of_logarithms((X, Y, None), of_targets, SMOOTH)
    assert gain == pytest.approx(log_normal.item() - of_targets.density, abs=1e-6)
    assert gain > 0.5
    in_other_units = gain_of_logarithms((X, 1e3 * Y, None), of_targets, SMOOTH)
    assert in_other_units == pytest.approx(gain, abs=1e-3)


def test_targets_of_both_signs_have_no_logarithms_and_zeros_have_some() -> None:
    X, Y = amounts(20)
    fit = KernelFits((X, Y, None))(SMOOTH)
    assert gain_of_logarithms((X, Y - Y.mean(), None), fit, SMOOTH) == -math.inf
    assert gain_of_logarithms((X, torch.zeros_like(Y), None), fit, SMOOTH) == -math.inf
    assert gain_of_logarithms((X, -Y, None), fit, SMOOTH) == pytest.approx(
        gain_of_logarithms((X, Y, None), fit, SMOOTH)
    )
    assert logarithms(torch.tensor([0.0, 2.0])).exp().tolist() == pytest.approx([1.0, 3.0])
    assert logarithms(torch.tensor([-4.0, -2.0])).exp().tolist() == pytest.approx([4.0, 2.0])


def test_only_positive_skewed_targets_are_compared_unasked() -> None:
    _, Y = amounts(100)
    assert may_be_logarithms(Y)
    assert not may_be_logarithms(-Y)
    assert not may_be_logarithms(Y - Y.min())
    assert not may_be_logarithms(Y.log() - Y.log().min() + 1)
    assert not may_be_logarithms(torch.ones(9, 1))


@pytest.mark.parametrize(("gain", "rows", "likelier"), [(0.21, 100, True), (0.19, 100, False), (0.4, 12, False)])
def test_logarithms_need_a_gain_for_each_row_and_in_all(gain: float, rows: int, likelier: bool) -> None:
    assert are_likelier(gain, rows) == likelier


def test_the_report_tells_of_logarithms_that_are_not_modelled() -> None:
    X, Y = amounts(60)
    model = choose(X, Y)
    assert not model.choice.plan.log_targets
    assert "log_targets=True" in str(model.choice)
    assert model.posterior(X[:2]).distribution is not None  # a Gaussian one
    plain = choose(X, Y.log())
    assert math.isnan(plain.choice.log_gain)
    assert "logarithms" not in str(plain.choice)


def test_logarithms_that_are_likelier_predict_new_rows_better() -> None:
    X, Y = amounts(560, seed=1)
    model, plain = (choose(X[:60], Y[:60], log_targets=asked) for asked in (None, False))
    assert model.choice.plan.log_targets
    assert model.choice.log_gain > 0.5
    posterior, gaussian = (each.posterior(X[60:].unsqueeze(1), observation_noise=True) for each in (model, plain))
    assert isinstance(posterior, LogNormalPosterior)
    density = torch.stack([posterior.density(y)[i, 0, 0] for i, y in enumerate(Y[60:, 0])])
    normal = torch.distributions.Normal(gaussian.mean, gaussian.variance.sqrt()).log_prob(Y[60:, None])
    assert density.log().mean() > normal.mean() + 0.5
    lower, upper = posterior.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))[..., 0]
    held = ((Y[60:] > lower) & (Y[60:] < upper)).double().mean()
    assert held > 0.9
    assert (upper - lower).mean() < 3.9 * gaussian.variance.sqrt().mean()
    samples = posterior.rsample(torch.Size([4000]))
    assert (samples.mean(0) / posterior.mean - 1).abs().mean() < 0.02


def test_it_is_the_model_of_the_logarithms() -> None:
    X, Y = amounts(40)
    model, logs = choose(X, Y, log_targets=True), choose(X, Y.log())
    assert model.choice.plan.log_targets
    found, expected = model.posterior(X), logs.posterior(X)
    assert torch.allclose(found.logarithms.mean, expected.mean)
    assert torch.allclose(found.mean, (expected.mean + expected.variance / 2).exp())
    again, there = (
        each.condition_on_observations(X[:3] + 0.01, targets) for each, targets in ((model, Y[:3]), (logs, Y[:3].log()))
    )
    assert torch.allclose(again.posterior(X).logarithms.mean, there.posterior(X).mean)


def test_targets_that_are_negative_stay_as_they_are() -> None:
    X, Y = amounts(40)
    assert not choose(X, Y - 2 * Y.mean(), log_targets=None).choice.plan.log_targets
    both = choose(X, torch.cat([Y, Y.log()], -1), log_targets=None)
    assert [each.choice.plan.log_targets for each in both.models] == [True, False]
    assert isinstance(both.posterior(X[:3]), PosteriorList)


def test_bad_wishes_are_refused() -> None:
    X, Y = amounts(20)
    with pytest.raises(InvalidDataError, match="20 of 20 targets are not positive"):
        choose(X, -Y, log_targets=True)
    with pytest.raises(InvalidArgumentError, match="log_targets: noise of known variance"):
        choose(X, Y, torch.ones_like(Y), log_targets=True)
    with pytest.raises(InvalidArgumentError, match="log_targets='yes'"):
        choose(X, Y, log_targets="yes")  # type: ignore[arg-type]
    model = choose(X, Y, log_targets=True)
    with pytest.raises(InvalidDataError, match="2 of 2 targets are not positive"):
        model.condition_on_observations(X[:2], torch.zeros(2, 1, dtype=torch.float64))


def test_it_goes_into_acquisition_functions() -> None:
    X, Y = amounts(40)
    model: Any = choose(X, Y, log_targets=True)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for acquisition in (qLogExpectedImprovement(model, Y.max()), qUpperConfidenceBound(model, 2.0)):
        point, _ = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16)
        assert point.shape == (2, 2)
        assert point[:, 0].max() > 0.8  # where it is highest


def test_it_is_saved(tmp_path: Path) -> None:
    X, Y = amounts(40)
    model: Any = choose(X, Y, log_targets=True)
    save_model(model, tmp_path / "model.pt")
    again = load_model(Plan(**model.choice.plan.describe()).build(X[:2], Y[:2]), tmp_path / "model.pt")
    assert torch.equal(again.posterior(X).mean, model.posterior(X).mean)
    with pytest.raises(InvalidDataError, match="not positive"):
        Plan(**model.choice.plan.describe()).build(X[:2], -Y[:2])


def test_densities_of_values_that_are_not_positive_are_zero() -> None:
    X, Y = amounts(30)
    posterior = choose(X, Y, log_targets=True).posterior(X[:3])
    densities = posterior.density(torch.tensor([-1.0, 0.0, 5.0], dtype=torch.float64))
    assert densities.shape == (3, 3, 1)
    assert (densities[:2] == 0).all()
    normal = posterior.logarithms
    expected = torch.distributions.LogNormal(normal.mean, normal.variance.sqrt()).log_prob(torch.tensor(5.0)).exp()
    assert torch.allclose(densities[2], expected)
