"""Predictions from the nearest sites: against dense computations, and what is fitted."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist

from bo_scale.survey.mapping import local, nearest, scored
from bo_scale.survey.mapping import model as module
from bo_scale.survey.mapping.exceedance import exceeding
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.local import COUNT, NEIGHBOURS
from bo_scale.survey.mapping.model import fit_model, forecast, predict
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.scales import Identity
from bo_scale.survey.mapping.scored import PAIRS
from bo_scale.survey.mapping.sites import Sites

BOX = (0.0, 0.0, 4000.0, 2000.0)
RHO = {
    0.5: lambda r: np.exp(-r),
    1.5: lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    2.5: lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
}


def places(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 2)) * [4000.0, 2000.0]


def simple(nu: float, lengthscale: float, mean: float, variance: float, noise: float) -> Nearest:
    """Of two summands that are alike."""
    return Nearest([nu, nu], [lengthscale, lengthscale], [0.25 * variance, 0.75 * variance], mean, noise)


def covariance(given: Nearest, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r, parts = cdist(a, b), zip(given.smoothness, given.lengthscales, given.variances, strict=True)
    return np.asarray(sum(variance * RHO[nu](r / length) for nu, length, variance in parts))


def drawn(given: Nearest, xy: np.ndarray, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A function of the process at places, and its measurements."""
    rng = np.random.default_rng(seed)
    K = covariance(given, xy, xy) + 1e-9 * np.eye(len(xy))
    f = given.mean + np.linalg.cholesky(K) @ rng.standard_normal(len(xy))
    return f, f + given.noise**0.5 * rng.standard_normal(len(xy))


def dense(
    given: Nearest, xy: np.ndarray, z: np.ndarray, errors: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The posterior of all sites."""
    K = covariance(given, xy, xy) + np.diag(errors + given.noise)
    k = covariance(given, xy, at)
    solved = np.linalg.solve(K, k)
    return given.mean + solved.T @ (z - given.mean), np.sqrt(sum(given.variances) - (k * solved).sum(0))


@pytest.fixture(autouse=True)
def _scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "SCORED", 150)
    monkeypatch.setattr(scored, "SPARSE", 100)
    monkeypatch.setattr(scored, "HOLLOW", 150)
    monkeypatch.setattr(scored, "STEPS", 60)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("nu", [*PAIRS, (2.5, 2.5)])
def test_of_so_many_sites_as_neighbours_it_is_the_posterior(nu: tuple[float, float], known: bool) -> None:
    given = Nearest(nu, [200.0, 700.0], [0.5, 1.5], 3.0, 0.1)
    count = NEIGHBOURS[1]
    xy, at = places(count), places(9, 5)
    _, z = drawn(given, xy)
    errors = np.random.default_rng(2).random(count) if known else np.zeros(count)
    mean, sd = given.forecast(xy, z, errors if known else None, at, progress=False)
    expected = dense(given, xy, z, errors, at)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-7)
    np.testing.assert_allclose(sd, expected[1], rtol=1e-7)
    one = given.forecast(xy[:1], z[:1], None, at, progress=False)
    np.testing.assert_allclose(one, dense(given, xy[:1], z[:1], np.zeros(1), at), rtol=1e-7)


def test_of_many_sites_it_is_close_to_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    given = simple(0.5, 1000.0, 3.0, 2.0, 0.02)
    xy, at = places(800), places(200, 5)
    _, z = drawn(given, xy)
    mean, sd = dense(given, xy, z, np.zeros(800), at)
    found = given.forecast(xy, z, None, at, progress=False)
    assert np.abs(found[0] - mean).max() < 0.25 * sd.mean()
    assert np.abs(found[0] - mean).mean() < 0.035 * sd.mean()
    np.testing.assert_allclose(found[1], sd, rtol=0.02)
    monkeypatch.setattr(nearest, "CHUNK", 7)
    np.testing.assert_allclose(given.forecast(xy, z, None, at, progress=False), found, rtol=1e-12)


@pytest.mark.parametrize("nu", [*PAIRS, (1.5, 0.5, 1.5), (2.5, 1.5, 1.5)])
def test_its_density_has_the_gradient_of_finite_differences(nu: tuple[float, ...]) -> None:
    xy = places(60)
    _, z = drawn(simple(1.5, 700.0, 0.0, 2.0, 0.1), xy)
    around, errors = np.argsort(cdist(xy, xy), axis=1)[:, 1 : COUNT + 1], np.full(60, 0.01)
    given = scored._Scored.among(xy, z, errors, np.arange(60), around, timed=False)
    lengths, variances = [300.0, 900.0, 2000.0][: len(nu)], [1.0, 0.5, 0.7][: len(nu)]
    at = np.log([*lengths, *variances, 0.2])
    value, gradient = scored.loss(at, nu, given)
    numeric = approx_fprime(at, lambda log: scored.loss(log, nu, given)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-6)
    means, sds = [], []
    for own, others in enumerate(around):
        process = Nearest(nu, lengths, variances, 0.0, 0.2)
        mean, sd = dense(process, xy[others], z[others], np.full(COUNT, 0.01), xy[own : own + 1])
        means.append(mean[0])
        sds.append(sd[0] ** 2 + 0.21)
    assert value == pytest.approx(0.5 * np.mean((z - means) ** 2 / sds + np.log(sds)))


@pytest.mark.parametrize("lasting", [0.5, 1.5])
def test_the_gradient_in_time_is_that_of_finite_differences(lasting: float) -> None:
    rng = np.random.default_rng(0)
    xyt = np.concatenate([places(60), 10 * rng.random((60, 1))], 1)
    around = np.argsort(cdist(xyt, xyt), axis=1)[:, 1 : COUNT + 1]
    given = scored._Scored.among(xyt, rng.standard_normal(60), np.zeros(60), np.arange(60), around, timed=True)
    at = np.log([300.0, 900.0, 1.0, 0.5, 0.2, 3.0, 9.0])
    numeric = approx_fprime(at, lambda log: scored.loss(log, (0.5, 1.5), given, lasting)[0], 1e-6)
    np.testing.assert_allclose(scored.loss(at, (0.5, 1.5), given, lasting)[1], numeric, rtol=1e-4, atol=1e-6)


def test_what_is_fitted_is_as_good_as_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "SCORED", 300)
    truth = simple(1.5, 300.0, 5.0, 4.0, 0.2)
    xy = places(1100)
    f, z = drawn(truth, xy)
    seen, left = slice(0, 700), slice(700, None)
    found = Nearest.fitted(xy[seen], z[seen], None, PAIRS)
    assert found.noise == pytest.approx(0.2, rel=0.5)
    errors = []
    for each in (found, truth):
        mean, sd = each.forecast(xy[seen], z[seen], None, xy[left], progress=False)
        errors.append(np.sqrt(np.mean((mean - f[left]) ** 2)))
        assert 0.9 < np.mean(np.abs(mean - z[left]) < 1.96 * np.sqrt(sd**2 + each.noise)) < 0.99
    assert errors[0] < 1.1 * errors[1]
    assert Nearest(**json.loads(json.dumps(asdict(found)))) == found


def test_a_third_summand_joins_only_where_the_density_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "STEPS", 30)
    truth = Nearest([1.5, 0.5, 1.5], [40.0, 300.0, 6000.0], [1.0, 1.0, 30.0], 5.0, 0.01)
    xy = places(1200)
    _, z = drawn(truth, xy)
    given = scored.Given(xy, z, np.zeros(1200), float(z.mean()), float(z.std()), True, None)
    found, all_of_them = scored.process_of(given, PAIRS), scored._Scored.of(given, None)
    losses = [all_of_them.best([scored.Process(nu, scored.start_of(given, scored.TWO))], given)[0] for nu in PAIRS]
    own = scored.loss(np.log(found.numbers), found.nu, all_of_them)[0]
    assert own < min(losses) + 0.01
    monkeypatch.setattr(scored._Scored, "best", _dearer(scored._Scored.best))
    assert len(scored.process_of(given, PAIRS).nu) == 2


def _dearer(best: Any) -> Any:
    """Fits of three summands that gain next to nothing."""

    def found(self: Any, starts: Any, given: Any) -> Any:
        process = best(self, starts, given)[1]
        return (1e-6 if len(process.nu) == 2 else 0.0), process

    return found


def tracks(n: int) -> np.ndarray:
    """Five, 400 metres apart."""
    x, y = np.meshgrid(np.linspace(0, 4000, n // 5), np.linspace(200, 1800, 5))
    return np.stack([x.ravel(), y.ravel()], -1)


def test_intervals_between_tracks_are_right() -> None:
    """Where the nearest are all on one track, far from each other's next."""
    truth = simple(2.5, 600.0, 0.0, 1.0, 1e-4)
    xy, at = tracks(1500), places(400)
    f, z = drawn(truth, np.concatenate([xy, at]))
    found = Nearest.fitted(xy, z[:1500], None, PAIRS)
    mean, sd = found.forecast(xy, z[:1500], None, at, progress=False)
    inside = np.abs(mean - f[1500:]) < 1.96 * sd
    assert inside.mean() > 0.8  # 0.947 ± 0.032 over 50 seeds: errors between two tracks go together
    expected = dense(truth, xy, z[:1500], np.zeros(1500), at)
    assert np.square(mean - f[1500:]).mean() < 2.6 * np.square(expected[0] - f[1500:]).mean()


def test_neighbours_count_once_and_stay_where_sites_are_added() -> None:
    xy, at = places(3000), places(50, 7)
    found, share, reach = local.around(local.searched(xy), at)
    assert found.shape == share.shape == reach.shape == (50, COUNT)
    for row, counted in zip(found, share > local.GONE):
        assert len(set(row[counted])) == counted.sum() >= 8
    distance = np.sort(cdist(at, xy), axis=1)
    np.testing.assert_array_equal(found[:, :24], np.argsort(cdist(at, xy), axis=1)[:, :24])
    np.testing.assert_allclose(reach[:, 0], distance[:, 24])
    assert (share[:, 0] == 1).all()
    far = np.concatenate([xy, places(5, 8) + 1e6])
    for before, after in zip((found, share, reach), local.around(local.searched(far), at), strict=True):
        np.testing.assert_array_equal(before, after)
    few, all_of_them, _ = local.around(local.searched(xy[:20]), at)
    assert [sorted(row[counted]) for row, counted in zip(few, all_of_them > local.GONE)] == [list(range(20))] * 50


def test_maps_have_no_edges_where_neighbours_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tracks of many sites. Where neighbours count as a whole until they are gone, there are edges."""
    given, xy = simple(1.5, 500.0, 0.0, 1.0, 0.01), tracks(1500)
    _, z = drawn(given, xy)
    line = np.stack([np.linspace(300, 3700, 30_000), np.linspace(900, 1100, 30_000)], -1)

    def largest_step() -> float:
        mean, sd = given.forecast(xy, z, None, line, progress=False)
        return float((np.abs(np.diff(mean)) / sd[1:]).max())

    ours = largest_step()
    assert ours < 0.03
    monkeypatch.setattr(local, "WHOLE", 1 - 1e-9)
    assert largest_step() > 10 * ours


def test_known_errors_are_not_noise() -> None:
    truth, rng = simple(1.5, 600.0, 0.0, 1.0, 1e-4), np.random.default_rng(3)
    xy = places(600)
    f, _ = drawn(truth, xy)
    known = rng.uniform(0.05, 0.5, 600)
    z = f + np.sqrt(known) * rng.standard_normal(600)
    assert Nearest.fitted(xy, z, known, [(1.5, 1.5)]).noise < 0.1
    found = Nearest.fitted(xy, z, None, [(1.5, 1.5)])
    between = sum(v for v, length in zip(found.variances, found.lengthscales) if length < 30)  # shorter than sites tell
    assert found.noise + between > 0.15


def test_the_mean_of_what_stands_for_counts_is_that_of_least_squares() -> None:
    """Not the level of all counts, which is above the mean of a field of logits."""
    truth = simple(1.5, 500.0, -4.0, 2.0, 1e-4)
    xy, level = places(60), -2.5
    errors = np.random.default_rng(3).uniform(0.5, 5.0, 60)
    z = drawn(truth, xy)[1] + np.sqrt(errors) * np.random.default_rng(4).standard_normal(60)
    found = Nearest.fitted(xy, z, errors, PAIRS[:1], (level, 1.0), False)
    K = covariance(found, xy, xy) + np.diag(errors + found.noise)
    one = np.linalg.solve(K, np.ones(60))
    expected = level + one @ (z - level) / (one.sum() + 1 / nearest.CONSTANT)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-6)
    assert found.mean < level


def test_sites_at_one_place_and_values_without_noise() -> None:
    truth = simple(2.5, 900.0, 0.0, 1.0, 0.0)
    xy = np.tile(places(100), (3, 1))
    f, _ = drawn(truth, xy[:100])
    found = Nearest.fitted(xy, np.tile(f, 3), None, PAIRS)
    mean, sd = found.forecast(xy, np.tile(f, 3), None, xy[:100], progress=False)
    np.testing.assert_allclose(mean, f, atol=0.02)
    assert np.isfinite(sd).all()


def test_none_that_can_be_fitted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "loss", lambda log, *_: (float("inf"), np.zeros(len(log))))
    with pytest.raises(scored.NotPositiveDefiniteError, match="nearest sites"):
        Nearest.fitted(places(50), places(50)[:, 0], None, PAIRS)


# ---------------------------------------------------------------------- in the model of a survey


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", 60)
    monkeypatch.setattr(module, "FINE_POINTS", 300)
    monkeypatch.setattr(module, "COARSE_POINTS", 80)


@pytest.mark.usefixtures("_small")
def test_maps_of_many_sites_are_made_from_the_nearest() -> None:
    truth = simple(0.5, 500.0, 5.0, 4.0, 0.05)
    xy = places(1000)
    f, z = drawn(truth, xy)
    sites, at = Sites(xy[:700], z[:700], None), xy[700:]
    fit, model = fit_model(sites, BOX)
    assert fit.nearest is not None
    again = Fit.of(json.loads(json.dumps(fit.__dict__)))
    mean, sd = predict(model, again, sites, at, progress=False)
    assert np.mean(mean == Nearest(**fit.nearest).forecast(xy[:700], z[:700], None, at, False)[0]) > 0.8  # not in gaps
    coarse, _ = forecast(model, fit, at, progress=False)
    assert np.square(mean - f[700:]).mean() < 0.9 * np.square(coarse - f[700:]).mean()
    assert np.mean(np.abs(mean - f[700:]) < 1.96 * sd) > 0.8  # errors of neighbours go together
    np.testing.assert_array_equal(predict(model, replace(fit, nearest=None), sites, at, False)[0], coarse)


@pytest.mark.usefixtures("_small")
def test_the_smoothness_is_that_of_the_kernel_asked_for_and_few_sites_have_none() -> None:
    xy = places(200)
    z = drawn(simple(0.5, 200.0, 0.0, 1.0, 1e-4), xy)[1]
    fit, _ = fit_model(Sites(xy, z, None), BOX, "matern32")
    assert fit.nearest is not None
    assert fit.nearest["smoothness"] == [1.5, 1.5]
    assert fit_model(Sites(xy[:50], z[:50], None), BOX, "matern32")[0].nearest is None
    assert fit_model(Sites(xy, np.ones(200), None), BOX, "matern32")[0].nearest is None
    assert fit_model(Sites(np.ones((200, 2)), z, None), BOX, "matern32")[0].nearest is None


@pytest.mark.usefixtures("_small")
def test_how_much_is_above_is_that_of_the_map() -> None:
    truth = simple(0.5, 800.0, 0.0, 1.0, 0.05)
    xy, cells = places(900), places(500, 7)
    f, z = drawn(truth, np.concatenate([xy, cells]))
    sites = Sites(xy, z[:900], None)
    fit, model = fit_model(sites, BOX)
    found = exceeding(model, fit, Identity(), cells, 1.0, None, 0.5, sites=sites).share
    mean, sd = predict(model, fit, sites, cells, progress=False)
    assert found.mean == pytest.approx(Identity().exceedance(mean, sd, 0.5).mean())
    assert found.lower < found.mean < found.upper
    assert found.lower - 0.02 < (f[900:] > 0.5).mean() < found.upper + 0.02
    own = exceeding(model, fit, Identity(), cells, 1.0, None, 0.5).share
    assert own.mean != found.mean
