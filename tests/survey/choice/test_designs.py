from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import cdist, pdist

from bo_scale.survey.choice.designs import DESIGNS, _compact, _strata, design, laid_out, unhit
from bo_scale.survey.choice.places import Choice, Places
from bo_scale.survey.mapping.model import coordinates

NONE = np.empty((0, 2))
CANDIDATES = np.random.default_rng(0).random((300, 2)) * [3000.0, 2000.0] + [400_000.0, 5_600_000.0]
RING = CANDIDATES[np.abs(np.linalg.norm(CANDIDATES - CANDIDATES.mean(0), axis=1) - 800) < 200]


@pytest.mark.parametrize("name", list(DESIGNS))
@pytest.mark.parametrize("batch", [1, 7, 60])
def test_sites_differ_and_follow_from_the_seed(name: str, batch: int) -> None:
    found = design(name, CANDIDATES, NONE, batch, 3)  # type: ignore[arg-type]
    assert len(set(found.tolist())) == len(found) == batch
    assert (found >= 0).all()
    assert (found < 300).all()
    np.testing.assert_array_equal(found, design(name, CANDIDATES, NONE, batch, 3))  # type: ignore[arg-type]
    other = design(name, CANDIDATES, NONE, batch, 4)  # type: ignore[arg-type]
    assert np.array_equal(found, other) == (name == "maximin" or (name, batch) == ("coverage", 1))


@pytest.mark.parametrize("name", list(DESIGNS))
def test_all_candidates_are_taken_where_there_are_no_more(name: str) -> None:
    for candidates in (CANDIDATES[:5], np.repeat(CANDIDATES[:2], 3, axis=0)):  # the same place thrice
        found = design(name, candidates, CANDIDATES[7:9], 9, 0)  # type: ignore[arg-type]
        assert sorted(found) == list(range(len(candidates)))


def test_random_sites_are_anywhere_alike() -> None:
    count = np.bincount(np.concatenate([design("random", CANDIDATES, NONE, 30, k) for k in range(1000)]), minlength=300)
    assert count.mean() == 100
    assert 7 < count.std() < 12  # of a binomial: 9.5


@pytest.mark.parametrize("taken", [NONE, CANDIDATES[[4, 77]] + 3.0])
def test_maximin_takes_the_farthest_of_all_each_time(taken: np.ndarray) -> None:
    found = design("maximin", CANDIDATES, taken, 25, 0)
    start = 0 if len(taken) else 1
    if start:
        assert found[0] == np.linalg.norm(CANDIDATES - CANDIDATES.mean(0), axis=1).argmin()
    for number in range(start, 25):
        there = np.concatenate([taken, CANDIDATES[found[:number]]])
        assert found[number] == cdist(CANDIDATES, there).min(1).argmax()
    np.testing.assert_array_equal(found[:9], design("maximin", CANDIDATES, taken, 9, 5))  # a prefix is a design


def test_maximin_is_at_least_half_as_good_as_any_other() -> None:
    """Of all sets of four on a small grid, by brute force."""
    grid = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0)), -1).reshape(-1, 2)
    subsets = np.stack(np.meshgrid(*[np.arange(12)] * 4), -1).reshape(-1, 4)
    subsets = subsets[(np.diff(subsets, axis=1) > 0).all(1)]
    best = max(pdist(grid[list(subset)]).min() for subset in subsets)
    assert pdist(grid[design("maximin", grid, NONE, 4, 0)]).min() >= best / 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("taken", [NONE, CANDIDATES[:40]])
def test_coverage_brings_every_place_near_a_site(taken: np.ndarray, seed: int) -> None:
    """Nearer, in the mean square, than two other designs do; sites that are there count."""

    def distance(found: np.ndarray) -> float:
        there = np.concatenate([taken, CANDIDATES[found]])
        return float(np.square(cdist(CANDIDATES, there).min(1)).mean())

    ours = distance(design("coverage", CANDIDATES, taken, 12, seed))
    for name in ("random", "maximin"):
        assert ours < distance(design(name, CANDIDATES, taken, 12, seed))  # type: ignore[arg-type]


def test_coverage_finds_the_middles_of_clusters_without_a_site() -> None:
    middles = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    places = np.concatenate([middle + np.random.default_rng(1).normal(size=(41, 2)) for middle in middles])
    places[[0, 41, 82]] = middles
    assert set(design("coverage", places, middles[:1] + 0.5, 2, 0)) <= set(range(41, 123))
    found = design("coverage", places, middles[:1] + 0.5, 2, 0)
    assert cdist(places[found], middles[1:]).min(0).max() < 1.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch", [2, 9, 17])
def test_a_latin_hypercube_hits_every_row_and_column_once(seed: int, batch: int) -> None:
    found = design("latin", CANDIDATES, NONE, batch, seed)
    for axis in CANDIDATES.T:
        rank = axis.argsort().argsort()
        assert sorted(rank[found] * batch // 300) == list(range(batch))


def test_a_latin_hypercube_has_the_marginals_of_an_area_of_any_shape() -> None:
    places = Places(RING, [], 0.0, 1, None, 0.0, lambda _: torch.empty(0))
    found = design("latin", RING, NONE, 8, 0)
    assert unhit(places, RING[found]) == 0
    diagonal = np.stack([np.arange(30.0), np.arange(30.0)], -1)
    found = design("latin", diagonal, NONE, 6, 0)
    np.testing.assert_array_equal(np.sort(found) // 5, np.arange(6))


def test_strata_without_candidates_are_counted() -> None:
    """On a line from south to north and one from west to east a cross of strata is all there is."""
    line = np.linspace(0.1, 1.0, 10)
    cross = np.concatenate([np.stack([line, 0 * line], -1), np.stack([0 * line, line], -1)])
    places = Places(cross, [], 0.0, 1, None, 0.0, lambda _: torch.empty(0))
    found = design("latin", cross, NONE, 4, 0)
    column, row = (_strata(axis, 4)[found] for axis in cross.T)
    assert sorted(column) == [0, 1, 2, 3]
    assert unhit(places, cross[found]) == 4 - len(set(row))
    assert unhit(places, cross[:4]) == 4 - len(set(_strata(cross[:, 0], 4)[:4])) + 4 - len(
        set(_strata(cross[:, 1], 4)[:4])
    )


@pytest.mark.parametrize("count", [3, 20, 150, 200])
def test_strata_are_compact_and_of_equal_size_with_a_site_in_each(count: int) -> None:
    label = _compact(CANDIDATES, count, np.random.default_rng(1))
    sizes = np.bincount(label, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    assert sorted(label[design("stratified", CANDIDATES, NONE, count, 1)]) == list(range(count))
    if count == 20:
        centres = np.stack([CANDIDATES[label == k].mean(0) for k in range(count)])
        within = np.square(CANDIDATES - centres[label]).sum()
        start = CANDIDATES[design("maximin", CANDIDATES, NONE, count, 0)]
        centres, nearest = kmeans2(CANDIDATES, start, iter=50, minit="matrix")
        assert within < 1.25 * np.square(CANDIDATES - centres[nearest]).sum()  # which is free of sizes


def test_stratified_sites_are_all_as_likely_and_cover_the_area() -> None:
    few, count, covered = CANDIDATES[:100], np.zeros(100), {"stratified": 0.0, "random": 0.0}
    for seed in range(60):
        for name in covered:
            found = design(name, few, NONE, 10, seed)  # type: ignore[arg-type]
            covered[name] += cdist(CANDIDATES, few[found]).min(1).mean() / 60
            count[found] += name == "stratified"
    assert covered["stratified"] < 0.92 * covered["random"]
    assert count.mean() == 6
    assert count.std() < 3.2  # of a binomial: 2.3


@pytest.mark.parametrize("name", ["stratified", "latin"])
def test_sites_are_ordered_so_that_the_first_are_far_apart(name: str) -> None:
    taken = CANDIDATES[:3]
    found = design(name, CANDIDATES, taken, 20, 1)  # type: ignore[arg-type]
    for number in range(1, 20):
        there = np.concatenate([taken, CANDIDATES[found[:number]]])
        assert cdist(CANDIDATES[found[number:]], there).min(1).argmax() == 0


# ---------------------------------------------------------------------- as plans


def lay(name: Any, batch: int, **given: Any) -> list[Choice]:
    kept: dict[str, Any] = {
        "taken": [],
        "spacing": 0.0,
        "repeats": 1,
        "inside": None,
        "reach": 0.0,
        "to_model": coordinates,
        **given,
    }
    with torch.no_grad():
        return list(laid_out(Places(CANDIDATES, **kept), batch, name, 2))


@pytest.mark.parametrize("name", list(DESIGNS))
def test_distances_are_kept_and_the_design_goes_on(name: str) -> None:
    taken = [(CANDIDATES[:8], 300.0), (CANDIDATES[20:22], 200.0)]
    found = lay(name, 15, taken=taken, spacing=200.0)
    xy = np.stack([one.xy for one in found])
    assert len(found) == 15
    assert pdist(xy).min() >= 200
    for others, least in taken:
        assert cdist(xy, others).min() >= least
    for number, one in enumerate(found):
        np.testing.assert_array_equal(one.xy, CANDIDATES[one.candidate])
        there = np.concatenate([CANDIDATES[:8], CANDIDATES[20:22], xy[:number]])
        assert one.score == pytest.approx(cdist(one.xy[None], there).min())
    full = lay(name, 300, spacing=700.0)
    kept = np.stack([one.xy for one in full])
    assert 3 < len(full) < 20
    assert (cdist(CANDIDATES, kept).min(1) < 700).all()  # no room is left


@pytest.mark.parametrize("name", list(DESIGNS))
def test_where_nothing_is_in_the_way_a_plan_is_the_design(name: str) -> None:
    found = lay(name, 12, taken=[(CANDIDATES[:8], 0.0)])
    wanted = design(name, CANDIDATES, CANDIDATES[:8], 12, 2)  # type: ignore[arg-type]
    assert [one.candidate for one in found] == wanted.tolist()


def test_candidates_may_be_taken_again() -> None:
    found = [one.candidate for one in lay("maximin", 610, repeats=2)]
    assert len(found) == 600
    assert len(set(found[:300])) == len(set(found[300:])) == 300
    assert lay("maximin", 1)[0].score == np.inf
