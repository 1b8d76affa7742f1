import numpy as np
import pytest
import torch
from posteriors import SCORED, THRESHOLD, Case, scores
from scipy.spatial.distance import cdist, pdist

from bo_scale.survey.choice.design_state import design_state
from bo_scale.survey.choice.greedy import choose
from bo_scale.survey.choice.objectives import OBJECTIVES
from bo_scale.survey.choice.places import Places
from bo_scale.survey.mapping.model import coordinates


@pytest.mark.parametrize("objective", SCORED)
def test_the_choice_is_that_of_exhaustive_greedy_search(case: Case, objective: str) -> None:
    dense, wanted = case.dense(), []
    for _ in range(4):
        values = [-np.inf if i in wanted else dense.value(objective, i) for i in range(20)]
        wanted.append(int(np.argmax(values)))
        dense = dense.after(wanted[-1])
    found = list(choose(case.state(), case.places(), 4, OBJECTIVES[objective], THRESHOLD, 0))
    assert [one.candidate for one in found] == wanted
    np.testing.assert_array_equal([one.xy for one in found], case.xy[wanted])
    dense = case.dense()
    for one in found:
        assert one.score == pytest.approx(dense.value(objective, one.candidate), rel=2e-3, abs=1e-6)
        dense = dense.after(one.candidate)


def test_weights_shift_the_plan(case: Case) -> None:
    corner = torch.as_tensor(coordinates(case.model, case.fit, np.array([[1000.0, 800.0]])))
    near = (case.cells - corner).norm(dim=-1)
    chosen = []
    for sign in (-1, 1):
        weights = torch.exp(sign * 20 * near)
        generator = torch.Generator().manual_seed(0)
        state = design_state(case.process, case.points, case.cells, weights, case.noise, generator)
        chosen.append(
            np.mean([one.xy for one in choose(state, case.places(), 3, OBJECTIVES["variance"], None, 0)], axis=0)
        )
    assert np.linalg.norm(chosen[0] - [1000, 800]) + 200 < np.linalg.norm(chosen[1] - [1000, 800])


def test_thompson_sites_are_maxima_of_draws(exact: Case) -> None:
    means = exact.state().means().numpy()
    few = exact.xy[np.abs(means - np.median(means)).argsort()[:5]]  # each may be the best
    state, places = exact.state(few), Places(few, [], 0.0, 9, None, 0.0, exact.places().to_model)
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(state.means().numpy(), state.joint().numpy(), 100_000)
    wanted = np.bincount(draws.argmax(1), minlength=5) / 100_000
    chosen = [
        one.candidate for seed in range(100) for one in choose(state, places, 9, OBJECTIVES["thompson"], None, seed)
    ]
    shares = np.bincount(chosen, minlength=5) / 900
    assert wanted.max() < 0.9
    np.testing.assert_allclose(shares, wanted, atol=4 * 0.5 / 30)


def test_thompson_sites_are_distinct_and_keep_the_distance(exact: Case) -> None:
    found = list(choose(exact.state(), exact.places(spacing=150.0), 8, OBJECTIVES["thompson"], None, 2))
    assert len({one.candidate for one in found}) == len(found) > 2
    assert pdist(np.stack([one.xy for one in found])).min() >= 150.0
    continuous = exact.places(inside=lambda xy: np.ones(len(xy), dtype=bool), reach=50.0)
    assert all(one.candidate >= 0 for one in choose(exact.state(), continuous, 3, OBJECTIVES["thompson"], None, 0))


def test_the_spacing_is_kept_from_sites_there_and_chosen(case: Case) -> None:
    taken = case.sites.xy
    found = list(
        choose(case.state(), case.places(taken=[(taken, 120.0)], spacing=120.0), 20, OBJECTIVES["variance"], None, 0)
    )
    xy = np.stack([one.xy for one in found])
    assert 1 < len(found) < 20
    assert pdist(xy).min() >= 120.0
    assert cdist(xy, taken).min() >= 120.0
    far = (cdist(case.xy, taken).min(1) >= 120.0) & (cdist(case.xy, xy).min(1) >= 120.0)
    assert not far.any()  # it ended because no place was left


def test_a_distance_of_just_the_spacing_is_enough(exact: Case) -> None:
    state = exact.state(np.array([[500.0, 400.0]]))
    for spacing, count in ((100.0, 1), (np.nextafter(100.0, 200.0), 0)):
        taken = np.array([[500.0, 300.0]])
        places = Places(np.array([[500.0, 400.0]]), [(taken, spacing)], spacing, 1, None, 0.0, exact.places().to_model)
        assert len(list(choose(state, places, 3, OBJECTIVES["variance"], None, 0))) == count


def test_without_spacing_a_measured_place_may_be_chosen(exact: Case) -> None:
    found = list(choose(exact.state(), exact.places(taken=[(exact.xy, 0.0)]), 20, OBJECTIVES["variance"], None, 0))
    assert sorted(one.candidate for one in found) == list(range(20))


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_repeats_are_honoured(case: Case, repeats: int) -> None:
    few = case.xy[:2]
    places = Places(few, [], 0.0, repeats, None, 0.0, case.places().to_model)
    found = [one.candidate for one in choose(case.state(few), places, 9, OBJECTIVES["uncertainty"], None, 0)]
    assert sorted(found) == sorted([0, 1] * repeats)


def test_a_place_is_repeated_where_that_is_best(exact: Case) -> None:
    """Two far places and a noise that is large: the same place again beats one that is known already."""
    xy = np.array([[980.0, 780.0], [*exact.sites.xy[0]]])
    places = Places(xy, [], 0.0, 2, None, 0.0, exact.places().to_model)
    found = [one.candidate for one in choose(exact.state(xy), places, 2, OBJECTIVES["uncertainty"], None, 0)]
    dense = exact.dense(xy).after(0)
    assert found == [0, int(dense.K.diagonal()[:2].argmax())]


def inside(xy: np.ndarray) -> np.ndarray:
    """A disc, not all of the box."""
    return np.linalg.norm(xy - [600.0, 400.0], axis=-1) <= 330.0


@pytest.mark.parametrize("objective", SCORED)
def test_refined_sites_are_better_near_and_inside(wiski: Case, objective: str) -> None:
    xy = wiski.xy[inside(wiski.xy)]
    state, reach = wiski.state(xy), 60.0
    places = Places(xy, [], 0.0, 1, inside, reach, wiski.places().to_model)
    found = list(choose(state, places, 5, OBJECTIVES[objective], THRESHOLD, 0))
    current, used, better = state, [], 0
    for one in found:
        coarse = scores(current, objective).numpy().copy()
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
        assert one.score == pytest.approx(float(scores(here, objective)), rel=1e-9)
        current = here.after(0).at(state.points)
    assert better >= 3
    chosen = np.stack([one.xy for one in found])
    dense = wiski.dense(chosen)
    for index in range(5):
        dense = dense.after(index)
    assert current.total() == pytest.approx(dense.total(), rel=1e-6)


def test_refined_sites_keep_the_distance(wiski: Case) -> None:
    """The corner is least known, and a site is under way there of which the model knows nothing."""
    corner, start = np.array([[950.0, 760.0]]), np.array([[880.0, 690.0]])

    def refined(spacing: float, objective: str) -> float:
        to_model = wiski.places().to_model
        places = Places(start, [(corner, spacing)], spacing, 1, lambda xy: (xy <= [1000, 800]).all(-1), 120.0, to_model)
        (found,) = choose(wiski.state(start), places, 1, OBJECTIVES[objective], None, 1)
        assert found.candidate == -1
        return float(np.linalg.norm(found.xy - corner))

    assert refined(90.0, "uncertainty") >= 90.0
    xy = wiski.xy[inside(wiski.xy)]
    places = Places(xy, [(wiski.sites.xy, 90.0)], 90.0, 1, inside, 80.0, wiski.places().to_model)
    chosen = np.stack([one.xy for one in choose(wiski.state(xy), places, 6, OBJECTIVES["variance"], None, 1)])
    assert (pdist(chosen) >= 90.0).all()
    assert (cdist(chosen, wiski.sites.xy) >= 90.0).all()
    assert cdist(chosen, wiski.sites.xy).min() >= 90.0


def test_a_seed_decides_what_is_random(wiski: Case) -> None:
    places = wiski.places(inside=lambda xy: np.ones(len(xy), dtype=bool), reach=60.0)

    def sites(objective: str, seed: int) -> np.ndarray:
        return np.stack([one.xy for one in choose(wiski.state(), places, 4, OBJECTIVES[objective], THRESHOLD, seed)])

    for objective in OBJECTIVES:
        np.testing.assert_array_equal(sites(objective, 1), sites(objective, 1))
    assert not np.array_equal(sites("variance", 1), sites("variance", 2))
    assert not all(np.array_equal(sites("thompson", 1), sites("thompson", seed)) for seed in (2, 3, 4))
