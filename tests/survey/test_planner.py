from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist, pdist

from bo_scale.models.base import ScalableModel
from bo_scale.posterior import PosteriorProcess, WeightSpacePosterior
from bo_scale.precision import PrecisionPosterior
from bo_scale.survey import planner
from bo_scale.survey.model import Fit, Sites, coordinates, model_of
from bo_scale.survey.planner import (
    OBJECTIVES,
    ClosedOutlook,
    JointOutlook,
    Objective,
    Outlook,
    Places,
    choose,
    expected_misclassification,
    outlook,
    scores,
)

BOX = (0.0, 0.0, 1000.0, 800.0)
GRIDS = {"wiski": ("matern32", [[12, 10]]), "sparse": ("matern12", [[30, 24]]), "exact": ("matern52", [])}
THRESHOLD = 0.2


@dataclass(frozen=True)
class Case:
    """A posterior of a few sites, points to choose from and cells of unequal weights."""

    sites: Sites
    fit: Fit
    model: ScalableModel
    xy: np.ndarray
    cells: torch.Tensor
    weights: torch.Tensor

    @property
    def process(self) -> PosteriorProcess:
        return self.model._current_processes()[0]

    @property
    def noise(self) -> torch.Tensor:
        return self.model._measurement_noise(0)

    @property
    def points(self) -> torch.Tensor:
        return coordinates(self.model, self.xy)

    def outlook(self, xy: np.ndarray | None = None, pending: np.ndarray | None = None) -> Outlook:
        points = self.points if xy is None else coordinates(self.model, xy)
        under_way = None if pending is None else coordinates(self.model, pending)
        generator = torch.Generator().manual_seed(0)
        return outlook(self.process, points, self.cells, self.weights, self.noise, generator, under_way)

    def dense(self, xy: np.ndarray | None = None) -> "Dense":
        points = self.points if xy is None else coordinates(self.model, xy)
        whole = torch.cat([points, self.cells])
        omega = (self.weights / self.weights.sum()).numpy()
        K = self.process.covariance(whole).numpy()
        return Dense(self.process.mean(whole).numpy(), K, len(points), omega, float(self.noise))

    def places(self, **given: object) -> Places:
        kept = {"taken": [], "spacing": 0.0, "repeats": 1, "inside": None, "reach": 0.0}
        return Places(self.xy, to_model=lambda xy: coordinates(self.model, xy), **{**kept, **given})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Dense:
    """Points, then cells, as one normal vector."""

    mean: np.ndarray
    K: np.ndarray
    count: int
    weights: np.ndarray
    noise: float

    def after(self, index: int) -> "Dense":
        column = self.K[:, index]
        K = self.K - np.outer(column, column) / (self.K[index, index] + self.noise)
        return Dense(self.mean, K, self.count, self.weights, self.noise)

    def total(self) -> float:
        return float(self.weights @ self.K.diagonal()[self.count :])

    def value(self, objective: Objective, index: int) -> float:
        sd = self.K[index, index] ** 0.5
        if objective == "maximum":
            return float(sd**2)
        if objective == "straddle":
            return float(1.96 * sd - abs(self.mean[index] - THRESHOLD))
        if objective == "variance":
            return self.total() - self.after(index).total()
        cells = slice(self.count, None)
        m, s = self.mean[cells], self.K.diagonal()[cells] ** 0.5
        r = np.abs(self.K[index, cells]) / (self.K[index, index] + self.noise) ** 0.5
        u = (np.arange(2000) + 0.5) / 2000  # E min(p, 1 - p) over where the mean will be
        means = m[:, None] + r[:, None] * stats.norm.ppf(u)
        wrong = stats.norm.cdf(-np.abs(means - THRESHOLD) / np.sqrt(s**2 - r**2)[:, None]).mean(1)
        return float(self.weights @ (stats.norm.cdf(-np.abs(m - THRESHOLD) / s) - wrong))


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def make(name: str) -> Case:
    rng = np.random.default_rng(3)
    kernel, grids = GRIDS[name]
    xy = rng.random((15, 2)) * [700.0, 800.0]
    sites = Sites(xy, np.sin(xy[:, 0] / 150) + np.cos(xy[:, 1] / 200), None)
    fit = Fit(kernel, 15, BOX, 0.1, 0.8, grids, {})
    cells = rng.random((60, 2)) * [1000.0, 800.0]
    model = model_of(sites, fit)
    weights = torch.from_numpy(rng.random(60) * np.linspace(0.1, 3.0, 60))
    return Case(sites, fit, model, rng.random((20, 2)) * [1000.0, 800.0], coordinates(model, cells), weights)


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    with torch.no_grad():
        return {name: make(name) for name in GRIDS}


@pytest.fixture(params=list(GRIDS))
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


@pytest.fixture
def wiski(cases: dict[str, Case]) -> Case:
    return cases["wiski"]


@pytest.fixture
def exact(cases: dict[str, Case]) -> Case:
    return cases["exact"]


def assert_agree(look: Outlook, dense: Dense) -> None:
    n = dense.count
    weights, mean, variance, cross = look.cells()
    close = {"rtol": 1e-6, "atol": 1e-9}
    np.testing.assert_allclose(look.means(), dense.mean[:n], **close)
    np.testing.assert_allclose(look.variances(), dense.K.diagonal()[:n], **close)
    np.testing.assert_allclose(look.joint(), dense.K[:n, :n], **close)
    np.testing.assert_allclose(look.total(), dense.total(), **close)
    np.testing.assert_allclose(look.reduction(), [dense.value("variance", i) for i in range(n)], **close)
    np.testing.assert_allclose(weights, dense.weights, **close)
    np.testing.assert_allclose(mean, dense.mean[n:], **close)
    np.testing.assert_allclose(variance, dense.K.diagonal()[n:], **close)
    np.testing.assert_allclose(cross, dense.K[:n, n:], **close)


# ---------------------------------------------------------------------- what measuring would change


def test_the_cases_are_the_kinds_of_posteriors_that_there_are(cases: dict[str, Case]) -> None:
    assert isinstance(cases["wiski"].process, WeightSpacePosterior)
    assert isinstance(cases["sparse"].process, PrecisionPosterior)
    assert isinstance(cases["wiski"].outlook(), ClosedOutlook)
    assert all(isinstance(cases[name].outlook(), JointOutlook) for name in ("sparse", "exact"))


def test_an_outlook_is_dense_algebra_however_much_is_measured(case: Case) -> None:
    look, dense = case.outlook(), case.dense()
    assert_agree(look, dense)
    for index in (3, 11, 3):  # the third is a repeat
        look, dense = look.after(index), dense.after(index)
        assert_agree(look, dense)


def test_the_total_falls_by_what_was_promised(case: Case) -> None:
    look = case.outlook()
    for index in (0, 7):
        promised = float(look.reduction()[index])
        assert look.total() - look.after(index).total() == pytest.approx(promised, rel=1e-8)
        look = look.after(index)


def test_both_outlooks_agree(wiski: Case) -> None:
    closed = wiski.outlook()
    weights = wiski.weights / wiski.weights.sum()
    joint: Outlook = JointOutlook.of(wiski.process, wiski.points, (wiski.cells, weights), wiski.noise)
    for index in (5, 9):
        for objective in ("variance", "maximum", "straddle", "misclassification"):
            ours, others = (scores(look, objective, THRESHOLD) for look in (closed, joint))
            np.testing.assert_allclose(ours, others, rtol=1e-8, atol=1e-10)
        closed, joint = closed.after(index), joint.after(index)


def test_after_a_measurement_is_the_posterior_with_it(case: Case) -> None:
    place = case.xy[4:5]
    more = Sites(np.concatenate([case.sites.xy, place]), np.append(case.sites.z, -3.0), None)
    anew = model_of(more, case.fit)._current_processes()[0]
    look = case.outlook().after(4)
    np.testing.assert_allclose(look.variances(), anew.variance(case.points), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(look.joint(), anew.covariance(case.points), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(look.cells()[2], anew.variance(case.cells), rtol=1e-4, atol=1e-7)


def test_pending_places_count_as_measured(case: Case) -> None:
    pending = np.array([[820.0, 400.0], [900.0, 100.0]])
    look = case.outlook(pending=pending)
    dense = case.dense(np.concatenate([case.xy, pending])).after(20).after(21)
    kept = [*range(20), *range(22, len(dense.mean))]
    assert_agree(look, Dense(dense.mean[kept], dense.K[np.ix_(kept, kept)], 20, dense.weights, dense.noise))
    assert look.total() < case.outlook().total()


def test_the_closed_integral_is_over_all_cells(wiski: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "JOINT_CELLS", 10)
    look, dense = wiski.outlook(), wiski.dense()
    assert look.total() == pytest.approx(dense.total())
    np.testing.assert_allclose(look.reduction(), [dense.value("variance", i) for i in range(20)], rtol=1e-6)
    assert look.cells()[3].shape == (20, 10)


def test_cells_are_drawn_by_their_weights(exact: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "JOINT_CELLS", 40)
    weights = torch.ones(60, dtype=torch.float64)
    weights[7], weights[8:20] = 60.0, 0.0  # one place has 56 % of the weight, twelve have none
    counts = torch.zeros(60, dtype=torch.float64)
    for seed in range(80):
        generator = torch.Generator().manual_seed(seed)
        look = outlook(exact.process, exact.points[:1], exact.cells, weights, exact.noise, generator)
        share, mean, *_ = look.cells()
        which = (mean[:, None] - exact.process.mean(exact.cells)).abs().argmin(1)
        counts += torch.bincount(which, weights=40 * share, minlength=60)
    expected = 40 * 80 * weights / weights.sum()
    assert counts.sum() == pytest.approx(40 * 80)
    assert counts[8:20].sum() == 0
    assert counts[7] == pytest.approx(float(expected[7]), rel=0.02)
    others = torch.cat([counts[:7], counts[20:]])
    assert (others - expected[0]).abs().max() < 5 * expected[0] ** 0.5


def test_equal_cells_are_drawn_once(exact: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "JOINT_CELLS", 40)
    generator = torch.Generator().manual_seed(1)
    look = outlook(exact.process, exact.points, exact.cells, torch.full((60,), 0.3).double(), exact.noise, generator)
    assert len(np.unique(look.cells()[1].numpy().round(10))) == 40


# ---------------------------------------------------------------------- what is sought


def test_expected_misclassification_is_that_of_simulated_measurements(exact: Case) -> None:
    look = exact.outlook()
    found = scores(look, "misclassification", THRESHOLD)
    weights, mean, variance, cross = (part.numpy() for part in look.cells())
    u = np.random.default_rng(0).normal(size=20_000)
    for index in (2, 13):
        gain = cross[index] / float(look.variances()[index] + look.noise)  # E[f | y] = m + gain (y − m(x))
        s = np.sqrt(variance - gain * cross[index])
        y = float(look.variances()[index] + look.noise) ** 0.5 * u
        p = stats.norm.cdf((mean + gain * y[:, None] - THRESHOLD) / s)
        now = stats.norm.cdf((mean - THRESHOLD) / np.sqrt(variance))
        fall = np.minimum(now, 1 - now) @ weights - np.minimum(p, 1 - p) @ weights
        assert fall.mean() == pytest.approx(float(found[index]), abs=5 * fall.std() / 20_000**0.5)
    assert (found >= 0).all()


def test_expected_misclassification_at_its_limits() -> None:
    mean = torch.tensor([0.0, 0.5, 1.0, 3.0, -2.0], dtype=torch.float64)
    variance = torch.tensor([1.0, 0.3, 2.0, 0.5, 4.0], dtype=torch.float64)
    now = stats.norm.cdf(-(mean - 1).abs() / variance.sqrt())
    for nothing in (0.0, 1e-14):
        found = expected_misclassification(mean, variance, nothing * variance[None], 1.0)[0]
        np.testing.assert_allclose(found, now, rtol=1e-5)
    everything = expected_misclassification(mean, variance, variance[None], 1.0)
    np.testing.assert_allclose(everything, np.zeros((1, 5)), atol=1e-7)
    beyond = expected_misclassification(mean, variance, variance[None] * (1 + 1e-9), 1.0)
    np.testing.assert_array_equal(beyond[0] < 1e-7, np.ones(5, dtype=bool))
    shares = torch.linspace(0, 1, 30, dtype=torch.float64)[:, None] * variance
    falling = expected_misclassification(mean, variance, shares, 1.0)
    assert (falling.diff(dim=0) < 1e-15).all()
    assert (falling[-4] < 0.9 * falling[0]).all()
    certain = expected_misclassification(mean[3:4], torch.zeros(1).double(), torch.zeros(1, 1).double(), 1.0)
    assert float(certain) == 0.0


@pytest.mark.parametrize("objective", ["variance", "maximum", "straddle", "misclassification"])
def test_the_choice_is_that_of_exhaustive_greedy_search(case: Case, objective: Objective) -> None:
    dense, wanted = case.dense(), []
    for _ in range(4):
        values = [-np.inf if i in wanted else dense.value(objective, i) for i in range(20)]
        wanted.append(int(np.argmax(values)))
        dense = dense.after(wanted[-1])
    found = list(choose(case.outlook(), case.places(), 4, objective, THRESHOLD, 0))
    assert [one.candidate for one in found] == wanted
    np.testing.assert_array_equal([one.xy for one in found], case.xy[wanted])
    dense = case.dense()
    for one in found:
        assert one.score == pytest.approx(dense.value(objective, one.candidate), rel=2e-3, abs=1e-6)
        dense = dense.after(one.candidate)


def test_weights_shift_the_plan(case: Case) -> None:
    corner = torch.as_tensor(coordinates(case.model, np.array([[1000.0, 800.0]])))
    near = (case.cells - corner).norm(dim=-1)
    chosen = []
    for sign in (-1, 1):
        weights = torch.exp(sign * 20 * near)
        generator = torch.Generator().manual_seed(0)
        look = outlook(case.process, case.points, case.cells, weights, case.noise, generator)
        chosen.append(np.mean([one.xy for one in choose(look, case.places(), 3, "variance", None, 0)], axis=0))
    assert np.linalg.norm(chosen[0] - [1000, 800]) + 200 < np.linalg.norm(chosen[1] - [1000, 800])


def test_draws_have_the_mean_and_covariance_of_the_posterior(case: Case) -> None:
    look = case.outlook()
    draws = planner.function_draws(look, 40_000, torch.Generator().manual_seed(0)).numpy()
    sd = look.variances().sqrt().numpy()
    np.testing.assert_allclose(draws.mean(0), look.means(), atol=5 * sd.max() / 200)
    np.testing.assert_allclose(np.cov(draws.T), look.joint(), atol=6 * sd.max() ** 2 / 200)


def test_thompson_sites_are_maxima_of_draws(exact: Case) -> None:
    few = exact.xy[:5]
    look, places = exact.outlook(few), Places(few, [], 0.0, 9, None, 0.0, exact.places().to_model)
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(look.means().numpy(), look.joint().numpy(), 100_000)
    wanted = np.bincount(draws.argmax(1), minlength=5) / 100_000
    chosen = [one.candidate for seed in range(100) for one in choose(look, places, 9, "thompson", None, seed)]
    shares = np.bincount(chosen, minlength=5) / 900
    assert wanted.max() < 0.9
    np.testing.assert_allclose(shares, wanted, atol=4 * 0.5 / 30)


def test_thompson_sites_are_distinct_and_keep_the_distance(exact: Case) -> None:
    found = list(choose(exact.outlook(), exact.places(spacing=150.0), 8, "thompson", None, 2))
    assert len({one.candidate for one in found}) == len(found) > 2
    assert pdist(np.stack([one.xy for one in found])).min() >= 150.0
    continuous = exact.places(inside=lambda xy: np.ones(len(xy), dtype=bool), reach=50.0)
    assert all(one.candidate >= 0 for one in choose(exact.outlook(), continuous, 3, "thompson", None, 0))


# ---------------------------------------------------------------------- where it may be


def test_the_spacing_is_kept_from_sites_there_and_chosen(case: Case) -> None:
    taken = case.sites.xy
    found = list(choose(case.outlook(), case.places(taken=[(taken, 120.0)], spacing=120.0), 20, "variance", None, 0))
    xy = np.stack([one.xy for one in found])
    assert 1 < len(found) < 20
    assert pdist(xy).min() >= 120.0
    assert cdist(xy, taken).min() >= 120.0
    far = (cdist(case.xy, taken).min(1) >= 120.0) & (cdist(case.xy, xy).min(1) >= 120.0)
    assert not far.any()  # it ended because no place was left


def test_a_distance_of_just_the_spacing_is_enough(exact: Case) -> None:
    look = exact.outlook(np.array([[500.0, 400.0]]))
    for spacing, count in ((100.0, 1), (np.nextafter(100.0, 200.0), 0)):
        taken = np.array([[500.0, 300.0]])
        places = Places(np.array([[500.0, 400.0]]), [(taken, spacing)], spacing, 1, None, 0.0, exact.places().to_model)
        assert len(list(choose(look, places, 3, "variance", None, 0))) == count


def test_without_spacing_a_measured_place_may_be_chosen(exact: Case) -> None:
    found = list(choose(exact.outlook(), exact.places(taken=[(exact.xy, 0.0)]), 20, "variance", None, 0))
    assert sorted(one.candidate for one in found) == list(range(20))


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_repeats_are_honoured(case: Case, repeats: int) -> None:
    few = case.xy[:2]
    places = Places(few, [], 0.0, repeats, None, 0.0, case.places().to_model)
    found = [one.candidate for one in choose(case.outlook(few), places, 9, "maximum", None, 0)]
    assert sorted(found) == sorted([0, 1] * repeats)


def test_a_place_is_repeated_where_that_is_best(exact: Case) -> None:
    """Two far places and a noise that is large: the same place again beats one that is known already."""
    xy = np.array([[980.0, 780.0], [*exact.sites.xy[0]]])
    places = Places(xy, [], 0.0, 2, None, 0.0, exact.places().to_model)
    found = [one.candidate for one in choose(exact.outlook(xy), places, 2, "maximum", None, 0)]
    dense = exact.dense(xy).after(0)
    assert found == [0, int(dense.K.diagonal()[:2].argmax())]


def inside(xy: np.ndarray) -> np.ndarray:
    """A disc, not all of the box."""
    return np.linalg.norm(xy - [600.0, 400.0], axis=-1) <= 330.0


@pytest.mark.parametrize("objective", ["variance", "maximum", "straddle", "misclassification"])
def test_refined_sites_are_better_near_and_inside(wiski: Case, objective: Objective) -> None:
    xy = wiski.xy[inside(wiski.xy)]
    look, reach = wiski.outlook(xy), 60.0
    places = Places(xy, [], 0.0, 1, inside, reach, wiski.places().to_model)
    found = list(choose(look, places, 5, objective, THRESHOLD, 0))
    current, used, better = look, [], 0
    for one in found:
        coarse = scores(current, objective, THRESHOLD).numpy().copy()
        coarse[used] = -np.inf
        best = int(coarse.argmax())
        used.append(best)
        assert inside(one.xy[None]).all()
        assert one.score >= coarse[best]
        assert np.linalg.norm(one.xy - xy[best]) <= reach * 1.75
        assert (one.candidate == best) == bool((one.xy == xy[best]).all())
        assert one.candidate in (best, -1)
        better += one.score > coarse[best]
        here = current.at(wiski.places().to_model(one.xy[None]))  # type: ignore[attr-defined]
        assert one.score == pytest.approx(float(scores(here, objective, THRESHOLD)), rel=1e-9)
        current = here.after(0).at(look.points)
    assert better >= 3
    chosen = np.stack([one.xy for one in found])
    dense = wiski.dense(chosen)
    for index in range(5):
        dense = dense.after(index)
    assert current.total() == pytest.approx(dense.total(), rel=1e-6)


def test_refined_sites_keep_the_distance(wiski: Case) -> None:
    """The corner is least known, and a site is under way there of which the model knows nothing."""
    corner, start = np.array([[950.0, 760.0]]), np.array([[880.0, 690.0]])

    def refined(spacing: float, objective: Objective) -> float:
        to_model = wiski.places().to_model
        places = Places(start, [(corner, spacing)], spacing, 1, lambda xy: (xy <= [1000, 800]).all(-1), 120.0, to_model)
        (found,) = choose(wiski.outlook(start), places, 1, objective, None, 1)
        assert found.candidate == -1
        return float(np.linalg.norm(found.xy - corner))

    assert refined(90.0, "maximum") >= 90.0
    xy = wiski.xy[inside(wiski.xy)]
    places = Places(xy, [(wiski.sites.xy, 90.0)], 90.0, 1, inside, 80.0, wiski.places().to_model)
    chosen = np.stack([one.xy for one in choose(wiski.outlook(xy), places, 6, "variance", None, 1)])
    assert len(chosen) > 2
    assert pdist(chosen).min() >= 90.0
    assert cdist(chosen, wiski.sites.xy).min() >= 90.0


def test_a_seed_decides_what_is_random(wiski: Case) -> None:
    places = wiski.places(inside=lambda xy: np.ones(len(xy), dtype=bool), reach=60.0)

    def sites(objective: Objective, seed: int) -> np.ndarray:
        return np.stack([one.xy for one in choose(wiski.outlook(), places, 4, objective, THRESHOLD, seed)])

    for objective in OBJECTIVES:
        np.testing.assert_array_equal(sites(objective, 1), sites(objective, 1))  # type: ignore[arg-type]
    assert not np.array_equal(sites("variance", 1), sites("variance", 2))
    assert not all(np.array_equal(sites("thompson", 1), sites("thompson", seed)) for seed in (2, 3, 4))
