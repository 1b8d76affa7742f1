"""Decoupled GPs made from sums over rows that they do not keep."""

from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling.normal import SobolQMCNormalSampler
from decoupled_models import fitted, kinds, small
from torch import Tensor

from bo_scale import StudentTNoise, load_model, save_model
from bo_scale.errors import InvalidDataError
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.decoupled_sums import DecoupledStatistics
from bo_scale.models.errors import UnsupportedError

AT = torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def rows(seed: int, count: int = 80, m: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(count, 2, dtype=torch.float64, generator=generator)
    noise = 0.1 * torch.randn(count, 2, dtype=torch.float64, generator=generator)
    Y = torch.stack([(5 * X).sin().sum(-1), (3 * X).cos().prod(-1)], -1) + noise
    return X, 4 + Y[:, :m]


def made(kind: str = "direct", m: int = 1, noise: Tensor | None = None, **options: Any) -> DecoupledGP:
    X, Y = rows(0, 60, m)
    given = {"parameterization": kind, "input_transform": Normalize(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))}
    model = small(X, Y, noise, **{**given, **options}).eval()
    with torch.no_grad():
        model.covar_module.base_kernel.lengthscale = 0.3
        if noise is None:
            model.likelihood.noise = 0.02
    _ = model.inference
    return model


ALL = tuple(torch.cat(parts) for parts in zip(*(rows(k) for k in (1, 2, 3)), strict=True))


def summed(model: DecoupledGP, m: int = 1) -> DecoupledGP:
    a, b, c = (model.statistics_of(*rows(k, m=m), rows=30) for k in (1, 2, 3))
    return model.with_statistics(a + b + c)


def assert_same(one: Any, other: Any, tolerance: float = 1e-8) -> None:
    a, b = (each.posterior(AT) for each in (one, other))
    torch.testing.assert_close(a.mean, b.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.variance, b.variance, rtol=tolerance, atol=tolerance)


@kinds
@pytest.mark.parametrize("m", [1, 2])
def test_sums_make_the_model_of_all_rows(kind: str, m: int) -> None:
    """Compare the mean with the optimum in closed form, by dense matrices."""
    model = made(kind, m)
    found = summed(model, m)
    assert (found.num_observations, model.num_observations, len(found._kept_rows.X)) == (240, 60, 0)
    X, Y = (torch.cat(parts) for parts in zip(*(rows(k, m=m) for k in (1, 2, 3)), strict=True))
    Z, points = model.outcome_transform(Y)[0], model._held.bases.of_mean
    for j in range(m):
        kernel, noise, mu = model._kernel(j, frozen=True), model._noise_scale()[j], model._constants()[j]
        K, C = kernel(points, points), kernel(points, X)
        weights = torch.linalg.solve(noise * K + C @ C.mT, C @ (Z[:, j] - mu))
        mean = mu + kernel(AT, points) @ weights
        there = model.outcome_transform.untransform(mean.unsqueeze(-1).expand(-1, m))[0][:, j]
        torch.testing.assert_close(found.posterior(AT).mean[:, j], there, rtol=1e-6, atol=1e-6)
    assert bool((found.posterior(AT).variance < model.posterior(AT).variance).all())


@kinds
def test_sums_are_those_of_one_pass_whatever_the_parts(kind: str) -> None:
    model = made(kind)
    assert_same(summed(model), model.with_statistics(model.statistics_of(*ALL)), 1e-10)
    blank = model.with_statistics(model.statistics_of(ALL[0][:0], ALL[1][:0]))
    prior = blank.posterior(AT).variance / blank.outcome_transform.stdvs.square()
    torch.testing.assert_close(prior, model.covar_module.outputscale.double().expand_as(prior), rtol=1e-6, atol=1e-6)


@kinds
def test_later_rows_condition_the_model_and_join_the_sums_when_there_are_many(kind: str) -> None:
    model = made(kind, max_unit_observations=10)
    found = summed(model)
    X, Y = rows(9, 16)
    few = found.condition_on_observations(X[:4], Y[:4])
    assert (few.num_observations, len(few._kept_rows.X)) == (244, 4)
    assert bool((few.posterior(X[:4]).variance < found.posterior(X[:4]).variance).all())
    many = few.condition_on_observations(X[4:], Y[4:])
    assert (many.num_observations, len(many._kept_rows.X)) == (256, 0)
    together = [model.statistics_of(*pair) for pair in (ALL, (X, Y))]
    assert_same(many, model.with_statistics(together[0] + together[1]))
    assert (found.num_observations, few.num_observations) == (240, 244)
    assert_same(few.condition_on_observations(X[4:], Y[4:]), many, 1e-12)
    fantasised = found.fantasize(AT[:2], SobolQMCNormalSampler(torch.Size([3]), seed=0))
    assert bool((fantasised.posterior(AT[:2]).variance < found.posterior(AT[:2]).variance).all())


@kinds
def test_a_model_of_sums_is_saved_and_its_outputs_are_chosen(kind: str, tmp_path: Path) -> None:
    found = summed(made(kind, 2), 2)
    found = found.condition_on_observations(*rows(9, 3, 2))
    save_model(found, tmp_path / "m.pt")
    loaded = load_model(made(kind, 2), tmp_path / "m.pt")
    assert loaded.num_observations == 243
    assert torch.equal(loaded.posterior(AT).mean, found.posterior(AT).mean)
    both = [each.condition_on_observations(*rows(8, 520, 2)) for each in (loaded, found)]
    assert_same(*both, 1e-12)
    one = found.subset_output([1])
    torch.testing.assert_close(one.posterior(AT).mean, found.posterior(AT).mean[:, [1]], rtol=1e-10, atol=1e-10)
    later = one.condition_on_observations(rows(8, 520)[0], rows(8, 520, 2)[1][:, [1]])
    torch.testing.assert_close(later.posterior(AT).mean, both[0].posterior(AT).mean[:, [1]], rtol=1e-8, atol=1e-8)
    expected = found.posterior(AT).mean
    torch.testing.assert_close(found.float().posterior(AT.float()).mean.double(), expected, rtol=1e-3, atol=1e-3)


def test_known_noise_is_averaged_over_all_rows() -> None:
    X, Y = ALL
    model = made(noise=torch.full((60, 1), 0.01, dtype=torch.float64), outcome_transform=None)
    noise = 0.01 + 0.02 * torch.rand(len(X), 1, dtype=torch.float64)
    found = model.with_statistics(model.statistics_of(X, Y, noise))
    torch.testing.assert_close(found.mean_noise, noise.mean(0))
    spread = found.posterior(AT, observation_noise=True).variance - found.posterior(AT).variance
    torch.testing.assert_close(spread, noise.mean().expand_as(spread))
    with pytest.raises(UnsupportedError, match="train_Yvar"):
        model.statistics_of(X, Y)


def test_sums_are_sent_around(tmp_path: Path) -> None:
    model = made()
    model.statistics_of(*ALL).save(tmp_path / "a.pt")
    read = DecoupledStatistics.load(tmp_path / "a.pt", model)
    assert_same(model.with_statistics(read), model.with_statistics(model.statistics_of(*ALL)), 1e-12)
    other = made(outcome_transform=Standardize(1))
    with torch.no_grad():
        other.covar_module.base_kernel.lengthscale = 0.4
    other.eval()
    for wrong in (lambda: other.with_statistics(read), lambda: DecoupledStatistics.load(tmp_path / "a.pt", other)):
        with pytest.raises(InvalidDataError, match="other bases, other hyperparameters"):
            wrong()
    with pytest.raises(InvalidDataError, match="other bases"):
        read + other.statistics_of(*ALL)
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:-500])
    with pytest.raises(InvalidDataError, match=r"a\.pt: is damaged"):
        DecoupledStatistics.load(tmp_path / "a.pt", model)
    torch.save({"a": 1}, tmp_path / "b.pt")
    with pytest.raises(InvalidDataError, match="holds no statistics"):
        DecoupledStatistics.load(tmp_path / "b.pt", model)


def test_what_needs_the_rows_is_refused() -> None:
    found = summed(made())
    unit = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="a fit: needs rows, of which only sums are kept"):
        fitted(found)
    with pytest.raises(UnsupportedError, match="restandardised: needs rows"):
        found.restandardised(unit, unit)
    with pytest.raises(UnsupportedError, match="only sums are kept of the first rows"):
        found.eval().forward(AT)
    with torch.no_grad():
        found.covar_module.base_kernel.lengthscale = 0.5
    with pytest.raises(UnsupportedError, match="have changed, and of the first rows only sums are kept"):
        found.posterior(AT)
    fantasised: Any = made().fantasize(AT[:1], SobolQMCNormalSampler(torch.Size([2]), seed=0))
    for model, message in (
        (made(polish=False), "Use polish=True"),
        (made(likelihood=StudentTNoise()), "StudentTNoise weighs each row"),
        (fantasised, "it holds fantasies"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            model.statistics_of(*ALL)
    X, Y = ALL
    with pytest.raises(InvalidDataError, match="expected n × 2 and n × 1"):
        made().statistics_of(X[:, :1], Y)
    with pytest.raises(InvalidDataError, match="NaN"):
        made().statistics_of(X * torch.nan, Y)


@kinds
def test_a_model_on_a_gpu_takes_sums_of_the_cpu(kind: str, gpu: torch.device) -> None:
    here, there = made(kind, max_unit_observations=5), made(kind, max_unit_observations=5).to(gpu)
    statistics = here.statistics_of(*ALL)
    found = there.with_statistics(statistics)
    later = [each.to(gpu) for each in rows(9, 8)]
    torch.testing.assert_close(there.statistics_of(*ALL).sums[0].mean_gram.cpu(), statistics.sums[0].mean_gram)
    for a, b in (
        (found, here.with_statistics(statistics)),
        (
            found.condition_on_observations(*later),
            here.with_statistics(statistics).condition_on_observations(*rows(9, 8)),
        ),
        (found.cpu(), here.with_statistics(statistics)),
    ):
        at = AT.to(next(a.parameters()).device)
        torch.testing.assert_close(a.posterior(at).mean.cpu(), b.posterior(AT).mean, rtol=1e-8, atol=1e-8)
