from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist

from bo_scale.errors import SurveyError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.geography.thinning import thinned
from bo_scale.survey.mapping import exceedance as module
from bo_scale.survey.mapping.exceedance import Interval, exceeding, shares_above
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import Box
from bo_scale.survey.mapping.model import coordinates, forecast, model_of
from bo_scale.survey.mapping.scales import Identity, Log, Logit
from bo_scale.survey.mapping.sites import Sites

BOX: Box = (0.0, 0.0, 1000.0, 800.0)
KINDS = {
    "exact": ("matern52", []),
    "known": ("matern32", []),
    "features": ("matern32", [[12, 10]]),
    "sparse": ("matern12", [[30, 24]]),
    "two": ("two-scale", [[20, 16], [10, 8]]),
}
LIMIT = 0.5


def grid(columns: int, rows: int) -> np.ndarray:
    x, y = (np.arange(columns) + 0.5) / columns * 1000, (np.arange(rows) + 0.5) / rows * 800
    return np.stack([np.tile(x, rows), np.repeat(y, columns)], -1)


CELLS = grid(16, 12)


@dataclass(frozen=True)
class Case:
    model: ScalableModel
    fit: Fit

    def dense(self, xy: np.ndarray, count: int) -> np.ndarray:
        """Functions at places, by the eigenvectors of their covariance."""
        with torch.no_grad():
            points, process = coordinates(self.model, self.fit, xy), self.model.processes[0]
            mean, K = process.mean(points).numpy(), process.covariance(points).numpy()
        values, vectors = np.linalg.eigh(K)
        z = np.random.default_rng(8).normal(size=(count, len(xy)))
        return np.asarray(self.fit.offset + self.fit.unit * (mean + z * np.sqrt(np.maximum(values, 0)) @ vectors.T))


def make(kind: str) -> Case:
    rng, (kernel, grids) = np.random.default_rng(3), KINDS[kind]
    xy = rng.random((15, 2)) * [700.0, 800.0]
    variance = np.linspace(0.01, 0.5, 15) if kind == "known" else None
    sites = Sites(xy, np.sin(xy[:, 0] / 150) + np.cos(xy[:, 1] / 200), variance)
    fit = Fit(kernel, 15, BOX, 0.1, 0.8, grids, {})
    return Case(model_of(sites, fit), fit)


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {kind: make(kind) for kind in KINDS}


@pytest.fixture(params=list(KINDS))
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def drawn(
    case: Case, weights: np.ndarray, draws: int = 2000, xy: np.ndarray = CELLS, seed: int = 0, chunk: int = 250
) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return shares_above(case.model, case.fit, xy, weights, np.full(len(xy), LIMIT), draws, generator, chunk)


def uneven(count: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(1).random(count) ** 4)


def test_shares_are_those_of_a_dense_normal(case: Case) -> None:
    for weights in (np.ones(len(CELLS)), uneven(len(CELLS))):
        found = drawn(case, weights)
        wanted = (case.dense(CELLS, 10_000) > LIMIT) @ weights / weights.sum()
        spread = wanted.std()
        assert found.mean() == pytest.approx(wanted.mean(), abs=5 * spread / 2000**0.5)
        assert found.std() == pytest.approx(spread, rel=0.08)
        at = [0.05, 0.25, 0.5, 0.75, 0.95]
        np.testing.assert_allclose(np.quantile(found, at), np.quantile(wanted, at), atol=0.15 * spread)


def test_the_mean_is_the_integral_of_the_probability(case: Case) -> None:
    weights = uneven(len(CELLS))
    mean, sd = forecast(case.model, case.fit, CELLS, progress=False)
    above = stats.norm.sf((LIMIT - mean) / sd)
    found = exceeding(case.model, case.fit, Identity(), CELLS, 4e6, (CELLS, weights), LIMIT)
    assert found.share.mean == pytest.approx(above.mean())
    assert found.area == found.share.times(4.0)
    assert found.weight is not None
    assert found.weight_share is not None
    assert found.weight.mean == pytest.approx(above @ weights)
    assert found.weight == found.weight_share.times(weights.sum())
    assert found.unknown == pytest.approx(((above > 0.025) & (above < 0.975)).mean())
    for interval, shares in (
        (found.share, drawn(case, np.ones(len(CELLS)))),
        (found.weight_share, drawn(case, weights)),
    ):
        ends = np.quantile(shares, [0.05, 0.95])
        np.testing.assert_allclose([interval.lower, interval.upper], ends, atol=0.2 * shares.std())


def test_places_are_taken_in_parts(cases: dict[str, Case]) -> None:
    whole = drawn(cases["two"], uneven(len(CELLS)), 50)
    np.testing.assert_allclose(drawn(cases["two"], uneven(len(CELLS)), 50, chunk=7), whole, atol=1e-12)


def test_what_is_drawn_follows_from_the_seed(case: Case) -> None:
    one, two, three = (
        exceeding(case.model, case.fit, Identity(), CELLS, 1.0, (CELLS, uneven(len(CELLS))), LIMIT, 100, seed)
        for seed in (1, 1, 2)
    )
    assert one == two
    assert one.share != three.share
    assert one.share.mean == three.share.mean


@pytest.mark.parametrize(("lengthscale", "ends"), [(1e4, (0.0, 1.0)), (1e-4, stats.binom.ppf([0.05, 0.95], 192, 0.3))])
def test_of_a_prior_without_data_it_is_exact(lengthscale: float, ends: tuple[float, float]) -> None:
    """All cells alike, or all independent of one another."""
    sites, fit = Sites(CELLS[:2], np.zeros(2), np.full(2, 1e12)), Fit("matern32", 2, BOX, 0.0, 1.0, [], {})
    model = model_of(sites, fit)
    model.covar_module.base_kernel.lengthscale = lengthscale
    limit = float(stats.norm.isf(0.3))
    found = exceeding(model, fit, Identity(), CELLS, 3e6, None, limit)
    assert found.share.mean == pytest.approx(0.3, rel=1e-6)
    assert found.weight is found.weight_share is None
    assert found.unknown == 1.0
    wanted = np.array(ends) / (192 if lengthscale < 1 else 1)
    np.testing.assert_allclose([found.share.lower, found.share.upper], wanted, atol=0.006)
    assert found.area.upper == pytest.approx(3 * found.share.upper)


def test_thresholds_are_on_the_users_scale(cases: dict[str, Case]) -> None:
    case = cases["exact"]
    plain = exceeding(case.model, case.fit, Identity(), CELLS, 1e6, None, LIMIT)
    for scale in (Log(), Logit(2.0, 9.0)):
        threshold = float(scale.backward(np.array([LIMIT]))[0])
        found = exceeding(case.model, case.fit, scale, CELLS, 1e6, None, threshold)
        assert found.threshold == threshold
        assert found.share.mean == pytest.approx(plain.share.mean)
        assert (found.share.lower, found.share.upper) == pytest.approx((plain.share.lower, plain.share.upper))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Functions of the prior, seen at 20 sites with noise: nine in ten, where independent cells would give a half."""
    rng, cells, fit = np.random.default_rng(0), grid(15, 12), Fit("matern32", 20, BOX, 0.0, 1.0, [], {})
    inside, narrow = 0, 0
    for _ in range(220):
        xy = rng.random((20, 2)) * [1000.0, 800.0]
        whole = np.concatenate([xy, cells])
        r = np.sqrt(3) * cdist(whole, whole) / 200  # a fifth of the longer side
        f = np.linalg.cholesky((1 + r) * np.exp(-r) + 1e-10 * np.eye(200)) @ rng.normal(size=200)
        sites = Sites(xy, f[:20] + 0.3 * rng.normal(size=20), np.full(20, 0.09))
        found = exceeding(model_of(sites, fit), fit, Identity(), cells, 1.0, None, LIMIT, 200).share
        truth = (f[20:] > LIMIT).mean()
        inside += found.lower <= truth <= found.upper
        narrow += abs(truth - found.mean) < 1.645 * (found.mean * (1 - found.mean) / 180) ** 0.5
    assert 0.79 < inside / 220 < 0.985  # 0.89 ± 0.025 over 50 seeds
    assert narrow / 220 < 0.72  # 0.60 ± 0.031


@pytest.mark.parametrize("lengthscale", [0.2, 20.0])
def test_a_posterior_that_is_known_all_but_exactly_has_functions(lengthscale: float) -> None:
    """Values that are all the same: variances near the floor, and covariances that rounding makes indefinite."""
    sites, fit = Sites(grid(18, 15), np.zeros(270), np.zeros(270)), Fit("matern52", 270, BOX, 0.0, 1.0, [], {})
    model = model_of(sites, fit)
    model.covar_module.base_kernel.lengthscale = lengthscale
    found = exceeding(model, fit, Identity(), grid(36, 30), 1e6, None, 0.5)
    assert found.share.mean == pytest.approx(0.0, abs=1e-6)
    assert (found.share.lower, found.share.upper, found.unknown) == (0.0, 0.0, 0.0)


# ---------------------------------------------------------------------- weights


def test_many_places_are_stood_for_by_some() -> None:
    rng = np.random.default_rng(4)
    xy, weights = rng.random((20_000, 2)) * [3e4, 1e4] + 5e6, rng.pareto(1.5, 20_000)
    field = np.sin(xy[:, 0] / 4000) + np.cos(xy[:, 1] / 3000)
    kept, counted = thinned(xy, weights, 500, torch.Generator().manual_seed(0))
    assert len(kept) <= 500
    assert counted.sum() == pytest.approx(weights.sum())
    quantum = weights.sum() / 500
    own = {tuple(place): weight for place, weight in zip(xy, weights, strict=True)}
    for place, weight in zip(kept, counted, strict=True):
        assert abs(weight - own[tuple(place)]) < quantum * (1 + 1e-9)
    errors = []
    for seed in range(20):
        kept, counted = thinned(xy, weights, 500, torch.Generator().manual_seed(seed))
        at = np.sin(kept[:, 0] / 4000) + np.cos(kept[:, 1] / 3000)
        errors.append(((at > 0.3) @ counted - (field > 0.3) @ weights) / weights.sum())
    assert np.std(errors) < 0.008  # independent draws: 0.022
    assert abs(np.mean(errors)) < 0.005
    same = thinned(xy[:500], weights[:500], 500, torch.Generator())
    np.testing.assert_array_equal(same[0], xy[:500])
    assert same[1] is not None


def test_of_many_places_the_share_is_about_that_of_all(cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch) -> None:
    case, many = cases["features"], grid(60, 50)
    weights = uneven(len(many))
    whole = exceeding(case.model, case.fit, Identity(), CELLS, 1.0, (many, weights), LIMIT)
    monkeypatch.setattr(module, "CELLS", 400)
    some = exceeding(case.model, case.fit, Identity(), CELLS, 1.0, (many, weights), LIMIT)
    assert some.weight is not None
    assert whole.weight is not None
    for name in ("mean", "lower", "upper"):
        assert getattr(some.weight, name) == pytest.approx(getattr(whole.weight, name), rel=0.05)


def test_places_that_coincide_or_weigh_nothing_are_no_trouble(cases: dict[str, Case]) -> None:
    case = cases["exact"]
    twice, weights = np.repeat(CELLS, 2, axis=0), np.tile([0.0, 3.0], len(CELLS))
    found = exceeding(case.model, case.fit, Identity(), CELLS, 1.0, (twice, weights), LIMIT)
    assert found.weight_share is not None
    assert found.weight_share.mean == pytest.approx(found.share.mean)
    assert found.weight_share.lower == pytest.approx(found.share.lower, abs=0.02)


# ---------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"threshold": -1.0}, "must be positive"),
        ({"draws": 1}, "draws: give 2 to 10,000"),
        ({"draws": 20_000}, "draws: give 2 to 10,000"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_what_cannot_be_is_refused(cases: dict[str, Case], given: dict[str, float], word: str) -> None:
    case = cases["exact"]
    with pytest.raises(SurveyError, match=word):
        exceeding(case.model, case.fit, Log(), CELLS, 1.0, None, **{"threshold": 2.0, **given})  # type: ignore[arg-type]


def test_it_is_said_in_sentences(cases: dict[str, Case]) -> None:
    case = cases["exact"]
    found = exceeding(case.model, case.fit, Identity(), CELLS, 1.0, None, 0.5)
    share = Interval(0.344, 0.28, 0.4149)
    found = replace(found, area=Interval(12_345.6, 10_111.0, 14_999.0), share=share, unknown=0.23)
    assert found.summary == (
        "Above 0.5, with 90 % intervals: 34 % (28 to 41 %) of the area, 12,300 (10,100 to 15,000) km². "
        "In 23 % of the area, the 95 % interval includes the threshold."
    )
    whole = replace(found, weight=Interval(1.5, 0.25, 2.0), weight_share=Interval(0.0123, 0.0, 0.05)).summary
    assert "km²; 1.2 % (0.0 to 5.0 %) of the weights, 1.5 (0.25 to 2)." in whole
