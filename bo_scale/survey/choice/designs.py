"""Well-known designs that need no model: a first survey, or something to compare a plan with."""

import warnings
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from bo_scale.survey.choice.objectives import DESIGNS
from bo_scale.survey.choice.places import Choice, Places

__all__ = ["DESIGNS", "Design", "design", "laid_out", "unhit"]

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Design = Literal["random", "stratified", "maximin", "coverage", "latin"]
LLOYD = 20
"""Steps of k-means."""
STARTS = 4
"""Times that k-means with sites that stay begins, of which the best is taken."""


def design(name: Design, candidates: Array, taken: Array, batch: int, seed: int) -> Indices:
    """Return sites of a design; fewer than the batch only if there are fewer candidates.

    The first ones are those of a smaller design for "random" and "maximin"; for the others each is far from those
    before it, so that a batch left unfinished is spread over the area.

    Args:
        name: One of `DESIGNS`.
        candidates: `M × 2`, metres.
        taken: Sites that are there already or under way, `t × 2`, metres. "maximin" and "coverage" keep away from them.
        batch: Number of sites.
        seed: Seed of everything random; "maximin" has nothing random.
    """
    batch, generator = min(batch, len(candidates)), np.random.default_rng(seed)
    if name == "random":
        return generator.permutation(len(candidates))[:batch]
    if name == "maximin":
        return _farthest(candidates, taken, batch)
    if name == "coverage":
        found = _covering(candidates, taken, batch, generator)
    else:
        found = (_stratified if name == "stratified" else _latin)(candidates, batch, generator)
    return found[_farthest(candidates[found], taken, batch)]


def laid_out(places: Places, batch: int, name: Design, seed: int) -> Iterator[Choice]:
    """Choose the batch of a design. Sites too near to others are replaced by a design of as many where there is room.

    Scores are distances to the nearest site that was there before, in metres.

    Args:
        places: The candidates.
        batch: Number of sites.
        name: One of `DESIGNS`.
        seed: Seed of everything random.
    """
    there = np.concatenate([np.empty((0, 2)), *(others for others, _ in places.taken)])
    chosen, used, space = np.empty((0, 2)), places.used(), places.in_space
    seed += int(used.sum())  # or, of places in an order, the neighbours of those before would be drawn
    while len(chosen) < batch:
        open_ = np.flatnonzero(places.open(used, chosen))
        if not len(open_):
            return
        taken, left = np.concatenate([there, chosen]), batch - len(chosen)
        if name == "latin":  # from west to east and from south to north
            found = design(name, places.candidates[open_], taken, left, seed + len(chosen))
        else:
            found = design(name, space(places.candidates[open_]), space(taken), left, seed + len(chosen))
        for index in open_[found]:
            xy = places.candidates[index : index + 1]
            if not places.far(xy, chosen).all():
                continue
            before = np.concatenate([there, chosen])
            score = places.apart(xy, before)
            chosen = np.concatenate([chosen, xy])
            used[index] += 1
            yield Choice(xy[0], int(index), score)


def unhit(places: Places, xy: Array) -> int:
    """Count strata without a site, of `m` from west to east and `m` from south to north; sites are `m × 2`.

    A Latin hypercube misses a stratum if no candidate lies in the cells that are left, or distances forbid all that do.
    """
    allowed = places.candidates[places.open(places.used(), np.empty((0, 2)))]
    at = cKDTree(allowed).query(xy)[1]
    return sum(len(xy) - len(np.unique(_strata(axis, len(xy))[at])) for axis in allowed.T)


def _farthest(candidates: Array, taken: Array, count: int) -> Indices:
    """Choose each site as far as can be from all before. The least distance is at least half the best there is.

    T. F. Gonzalez. Clustering to minimize the maximum intercluster distance. Theoretical Computer Science 38, 1985.
    Without any taken the first is the one nearest to the centre. O(M count).
    """
    if len(taken):
        distance = cKDTree(taken).query(candidates)[0]
    else:
        distance = -np.linalg.norm(candidates - candidates.mean(0), axis=1)
    found, free = np.empty(count, dtype=np.intp), np.ones(len(candidates), dtype=bool)
    for number in range(count):
        index = found[number] = int(np.where(free, distance, -np.inf).argmax())
        free[index] = False
        to_it = np.linalg.norm(candidates - candidates[index], axis=1)
        distance = to_it if number == 0 and not len(taken) else np.minimum(distance, to_it)
    return found


def _covering(candidates: Array, taken: Array, count: int, generator: np.random.Generator) -> Indices:
    """Choose sites with which the mean squared distance of a candidate from the nearest site is small, by k-means.

    Sites that are there are centres that stay; see `_compact` for the paper. The best of some starts: the sites of
    "maximin", and others drawn by their squared distance from those before (D. Arthur, S. Vassilvitskii. k-means++: the
    advantages of careful seeding. SODA 2007). O(M count) a step of `LLOYD`, and O(count² M) at the end of each.
    """
    there = cKDTree(taken).query(candidates)[0] ** 2 if len(taken) else np.full(len(candidates), np.inf)
    starts = [
        _farthest(candidates, taken, count),
        *(_seeded(candidates, there, count, generator) for _ in range(STARTS)),
    ]
    found = [_centred(candidates, there, candidates[start]) for start in starts]
    return min([*found, starts[0]], key=lambda sites: _mean_square(candidates, there, candidates[sites]))


def _mean_square(candidates: Array, there: Array, sites: Array) -> float:
    """Return the mean squared distance from the nearest site, with squared distances from those that stay."""
    return float(np.minimum(np.square(cKDTree(sites).query(candidates)[0]), there).mean())


def _seeded(candidates: Array, there: Array, count: int, generator: np.random.Generator) -> Indices:
    """Draw sites by their squared distance from those before; of places that coincide, any."""
    found, nearest = np.empty(count, dtype=np.intp), there
    for number in range(count):
        share = np.where(np.isfinite(nearest), nearest, 1.0) + np.finfo(float).tiny
        found[number] = generator.choice(len(candidates), p=share / share.sum())
        nearest = np.minimum(nearest, np.square(candidates - candidates[found[number]]).sum(1))
    return found


def _centred(candidates: Array, there: Array, centres: Array) -> Indices:
    """Return the candidates at the centres of k-means, each another one, from first centres, `count × 2`."""
    for _ in range(LLOYD):
        distance, label = cKDTree(centres).query(candidates)
        mine = np.square(distance) < there
        members = np.bincount(label[mine], minlength=len(centres))[:, None]
        sums = np.stack([np.bincount(label[mine], axis, len(centres)) for axis in candidates[mine].T], -1)
        centres = np.where(members > 0, sums / np.maximum(members, 1), centres)
    return np.asarray(linear_sum_assignment(cdist(centres, candidates, "sqeuclidean"))[1], dtype=np.intp)


def _stratified(candidates: Array, count: int, generator: np.random.Generator) -> Indices:
    """Draw one site from each stratum."""
    label, shuffled = _compact(candidates, count, generator), generator.permutation(len(candidates))
    return shuffled[np.unique(label[shuffled], return_index=True)[1]]


def _compact(candidates: Array, count: int, generator: np.random.Generator) -> Indices:
    """Return the stratum of each candidate: that of a centre of k-means near it, of equal sizes. O(M³).

    D. J. J. Walvoort, D. J. Brus, J. J. de Gruijter. An R package for spatial coverage sampling and random sampling
    from compact geographical strata by k-means. Computers & Geosciences 36, 2010.
    """
    start = candidates[generator.permutation(len(candidates))[:count]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # candidates that coincide leave a cluster empty, and the next line fills it
        centres, _ = kmeans2(candidates, start, iter=LLOYD, minit="matrix")
    sizes = np.full(count, len(candidates) // count)
    sizes[: len(candidates) % count] += 1
    seats = np.repeat(np.arange(count), sizes)
    return seats[linear_sum_assignment(cdist(candidates, centres, "sqeuclidean")[:, seats])[1]]


def _latin(candidates: Array, count: int, generator: np.random.Generator) -> Indices:
    """Draw one site in each row and each column of count × count strata of the candidates, by assignment.

    Strata are of the candidates' own distribution, for areas of any shape (B. Minasny, A. B. McBratney, Computers &
    Geosciences 32, 2006). Where no candidate lies in the cells left to a column, it gets another one of its own, and
    a row goes without: `unhit` counts them.

    M. D. McKay, R. J. Beckman, W. J. Conover. A comparison of three methods for selecting values of input variables in
    the analysis of output from a computer code. Technometrics 21, 1979.
    """
    column, row = (_strata(axis, count) for axis in candidates.T)
    order = generator.permutation(len(candidates))
    member = np.full((count, count), -1)
    member[column[order], row[order]] = order  # the last of each cell stays: any one, by chance
    cost = np.where(member >= 0, generator.random((count, count)), count)
    found = member[np.arange(count), linear_sum_assignment(cost)[1]]
    for empty in np.flatnonzero(found < 0):
        found[empty] = order[column[order] == empty][0]
    return found


def _strata(values: Array, count: int) -> Indices:
    """Return the stratum of each value: equally many in each, in their order."""
    rank = np.empty(len(values), dtype=np.intp)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank * count // len(values)
