"""Predictions from the nearest sites, for maps of many: as fine as the sites, where a grid of a model is coarser.

f(x) given the k nearest sites is close to f(x) given all of them, for near sites screen the others (A. Datta,
S. Banerjee, A. O. Finley, A. E. Gelfand, Hierarchical nearest-neighbor Gaussian process models for large geostatistical
datasets, JASA 111, 2016). Along a ship's track the nearest are all before and behind, and tell nothing of what is
beside: some neighbours are therefore the nearest of some sites drawn from all. In gaps there are `Knots`.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from torch import Tensor
from tqdm import tqdm

from bo_scale.survey.mapping.knots import Knots
from bo_scale.survey.mapping.local import (
    CHUNK,
    COUNT,
    GONE,
    JITTER,
    WITH_TIME,
    Array,
    Indices,
    Local,
    around,
    covariance_of,
    searched,
    sill_of,
    sought,
)
from bo_scale.survey.mapping.scored import Given, Process, Smoothness, process_of
from bo_scale.survey.mapping.temporal import ABRUPT
from bo_scale.survey.mapping.together import FEWEST, around_all, weights_of

TURNS = 2
"""Times that a process and a trend are fitted by turns."""
REGRESSED = 20_000
"""Sites that coefficients are fitted to."""
SHARING = 1024
"""Places that are predicted together where they share most of their neighbours."""
CONSTANT = 100.0
"""Prior variance of the constant of a trend, in variances of the values."""


@dataclass(frozen=True)
class Nearest:
    """A sum of two or three Matérn processes on the scale of the values; plain numbers, as JSON can hold them.

    Attributes:
        smoothness: ν of each, one of 0.5, 1.5, 2.5.
        lengthscales: Lengthscales of each, metres.
        variances: Variances of each.
        mean: Mean of the sum.
        noise: Variance of measurements, beyond errors that are known.
        coefficients: Coefficients of a trend, the first of them of a constant; None without a trend.
        spread: Their covariance.
        times: Lengthscales of each in time; None for a field without time.
        pace: Metres that count as much as a unit of time where neighbours are sought.
        lasting: Smoothness ν of all in time.
    """

    smoothness: Sequence[float]
    lengthscales: Sequence[float]
    variances: Sequence[float]
    mean: float
    noise: float
    coefficients: Sequence[float] | None = None
    spread: Sequence[Sequence[float]] | None = None
    times: Sequence[float] | None = None
    pace: float | None = None
    lasting: float = ABRUPT

    @classmethod
    def fitted(
        cls,
        xy: Array,
        z: Array,
        known: Array | None,
        smoothness: Sequence[Smoothness],
        units: tuple[float, float] | None = None,
        noisy: bool = True,
        near: "Nearest | None" = None,
        trend: tuple[Array, Array] | None = None,
        time: tuple[float, float | None] | None = None,
    ) -> "Nearest":
        """The smoothness, and the numbers, with the largest density of sites given others. Some 20 s.

        Args:
            xy: `n × 2`, metres, and times behind them if there are some; more than `COUNT`.
            z: `n`, not all the same.
            known: Variances of measurements, where they are known.
            smoothness: Pairs to choose from.
            units: Mean and standard deviation of the quantity, about; None for those of the values.
            noisy: Whether measurements vary beyond known errors.
            near: Numbers to start from, whose smoothness is kept.
            trend: Columns of a trend, `n × p`, and the prior variances of its coefficients; None without one.
            time: Time from the first site to the last, and the lengthscale in time if it is given; None without times.

        Raises:
            NotPositiveDefiniteError: if none can be fitted.
        """
        errors = np.zeros(len(z)) if known is None else known
        given = Given(xy, z, errors, *((float(z.mean()), float(z.std())) if units is None else units), noisy, time)
        if trend is not None:
            return cls._with_trend(given, smoothness, near, trend)
        if units is None:
            return cls._of(given, smoothness, near)
        found = cls._of(given if near is None else replace(given, middle=near.mean), smoothness, near)
        return replace(found, mean=_mean_of(given, found))

    @classmethod
    def _of(cls, given: Given, smoothness: Sequence[Smoothness], near: "Nearest | None") -> "Nearest":
        """Fit without a trend."""
        return cls._with_time(given, smoothness, near) if given.time is not None else cls._at(given, smoothness, near)

    @classmethod
    def _at(
        cls, given: Given, smoothness: Sequence[Smoothness], near: "Nearest | None", pace: float | None = None
    ) -> "Nearest":
        """Fit the process to sites given those around, which are sought at a pace."""
        start = None if near is None else Process(tuple(near.smoothness), near.theta.numpy(), near.lasting)
        found = process_of(given, smoothness, start, pace)
        count, numbers = len(found.nu), found.numbers.tolist()
        return cls(
            list(found.nu),
            numbers[:count],
            numbers[count : 2 * count],
            given.middle,
            numbers[2 * count],
            times=None if given.time is None else numbers[2 * count + 1 :],
            pace=pace,
            lasting=found.lasting,
        )

    @classmethod
    def _with_time(cls, given: Given, smoothness: Sequence[Smoothness], near: "Nearest | None") -> "Nearest":
        """Fit twice: neighbours of the second fit are sought at the pace at which the first one changes."""
        assert given.time is not None, "of a field with time"
        found, pace = near, given.side / given.time[0] if near is None or near.pace is None else near.pace
        for _ in range(TURNS):
            found = cls._at(given, smoothness, found, pace)
            assert found.times is not None, "of a field with time"
            part = int((np.array(found.variances) / np.array(found.times)).argmax())
            pace = found.lengthscales[part] / found.times[part]
        assert found is not None, "there is a turn"
        return found

    @property
    def theta(self) -> Float[Tensor, " q"]:
        """The numbers in a row, as covariances take them."""
        numbers = [*self.lengthscales, *self.variances, self.noise, *(self.times or ())]
        return torch.tensor(numbers, dtype=torch.float64)

    @property
    def timed(self) -> float | None:
        """The smoothness in time; None for a field without time."""
        return None if self.times is None else self.lasting

    @classmethod
    def _with_trend(
        cls,
        given: Given,
        smoothness: Sequence[Smoothness],
        near: "Nearest | None",
        trend: tuple[Array, Array],
    ) -> "Nearest":
        """Fit the process to what a trend leaves, and the trend given the process, by turns."""
        (columns, variances), z, unit = trend, given.z - given.middle, given.unit
        columns = np.concatenate([np.ones((len(z), 1)), columns], 1)
        prior = np.concatenate([[CONSTANT * unit**2], variances])
        precise = 1 / (given.errors + unit**2)
        gram = (columns * precise[:, None]).T @ columns + np.diag(1 / prior)
        beta, values = (
            np.linalg.solve(gram, (columns * precise[:, None]).T @ z),
            np.concatenate([columns, z[:, None]], 1),
        )
        found: Nearest | None = near
        for _ in range(TURNS):
            left = z - columns @ beta
            spread = min(unit, float(np.sqrt(np.mean(np.square(left))))) or unit
            found = cls._of(replace(given, z=left, middle=0.0, unit=spread), smoothness, found)
            beta, covariance = _regressed(given.xy, values, given.errors, found, prior)
        assert found is not None, "there is a turn"
        return replace(found, mean=given.middle, coefficients=beta.tolist(), spread=covariance.tolist())

    def knots(self, xy: Array, z: Array, known: Array | None, columns: Array | None = None) -> Knots | None:
        """Return what sites tell of the process in gaps; None without wide gaps, and for fields with time.

        Args:
            xy: Sites, `n × 2`, metres.
            z: Their values.
            known: Variances of measurements, where they are known.
            columns: Columns of the trend at the sites; None without one.
        """
        if self.times is not None:
            return None
        _, left, errors, h = self._known(xy, z, known, columns, None)
        values = left[:, None] if h is None else np.concatenate([left[:, None], h], 1)
        return Knots.inferred(xy, values, errors, self.theta, self.smoothness)

    def forecast(
        self,
        xy: Array,
        z: Array,
        known: Array | None,
        places: Array,
        progress: bool | None,
        trend: tuple[Array, Array] | None = None,
        knots: Knots | None = None,
    ) -> tuple[Array, Array]:
        """Means and standard deviations of the quantity itself at places. O(k³) a place.

        Args:
            xy: Sites, `n × 2`, metres.
            z: Their values.
            known: Variances of measurements, where they are known.
            places: `m × 2`, metres.
            progress: Whether to show a bar; None for only on a terminal.
            trend: Columns of the trend at the sites and at the places; None without one.
            knots: Knots in gaps, which places are given too; None for none.
        """
        known_at = self._known(xy, z, known, None if trend is None else trend[0], knots)
        trees = searched(sought(xy, self.pace), 1 if self.times is None else WITH_TIME)
        found = np.empty((2, len(places)))

        def predict(start: int) -> None:
            rows = slice(start, start + step)
            if step > CHUNK and (together := self._together(known_at, trees, places[rows], trend, rows, knots)):
                found[:, rows] = together
                return
            for first in range(start, min(start + step, len(places)), CHUNK):
                alone(slice(first, min(first + CHUNK, start + step)))

        def alone(rows: slice) -> None:
            near, share, reach = around(trees, sought(places[rows], self.pace))
            if knots is not None:
                more = knots.around(places[rows])
                near = np.concatenate([near, len(xy) + more[0]], 1)
                share, reach = (np.concatenate(two, 1) for two in zip((share, reach), more[1:], strict=True))
            there = None if trend is None else _with_one(trend[1][rows])
            last = 0 if knots is None else more[0].shape[1]
            with torch.no_grad():
                mean, variance = self._given(known_at, places[rows], near, (share, reach), there, knots, last)
            found[0, rows] = self.mean + mean.numpy()
            found[1, rows] = variance.clamp_min(0.0).sqrt().numpy()  # at sites rounding leaves some −1e-16

        step = SHARING if len(places) >= FEWEST else CHUNK
        starts = range(0, len(places), step)
        disable = None if progress is None else not progress
        for _ in tqdm(_each(predict, starts), "map", len(starts), disable=disable if len(starts) > 1 else True):
            pass
        return found[0], found[1]

    def _together(
        self,
        known: tuple[Array, Array, Array, Array | None],
        trees: list[tuple[cKDTree, Indices, int]],
        places: Array,
        trend: tuple[Array, Array] | None,
        rows: slice,
        knots: Knots | None,
    ) -> tuple[Array, Array] | None:
        """Return means and standard deviations at places that share their neighbours; None if these are too many."""
        (sites, values, errors, columns), theta, nu = known, self.theta, self.smoothness
        count = len(sites) - (0 if knots is None else len(knots.xy))
        if knots is not None:
            trees = [*trees, *((tree, count + own, asked) for tree, own, asked in knots.searched)]
        shared = around_all(trees, sought(places, self.pace))
        if shared is None:
            return None
        near, share, reach = shared
        sill = float(sill_of(theta, nu))
        noise = errors[near] + np.where(near < count, self.noise, JITTER * sill)
        K = self._covariance(sites[near], sites[near]) + np.diag(noise)
        k = self._covariance(places, sites[near])
        fade = np.zeros_like(share)
        fades = (share > GONE) & (share < 1)
        fade[fades] = sill - covariance_of(torch.from_numpy(reach[fades]), theta, nu).numpy()
        fade[fades] *= 1 / share[fades] - 1
        weights = weights_of(K, k, share, np.where(share > GONE, fade, sill / GONE))
        mean, variance = self.mean + weights @ values[near], sill - (weights * k).sum(1)
        if knots is not None:
            own = near >= count
            C = knots.covariance[np.ix_(near[own] - count, near[own] - count)]
            variance += ((weights[:, own] @ C) * weights[:, own]).sum(1)
        if columns is not None and trend is not None:
            there = _with_one(trend[1][rows])
            left = there - weights @ columns[near]
            mean += there @ np.array(self.coefficients)
            variance += ((left @ np.array(self.spread)) * left).sum(1)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def _covariance(self, a: Array, b: Array) -> Array:
        """Return the covariance of the process at places with that at others, whose last column may be the time."""
        lag = None
        if self.times is not None:
            lag = torch.from_numpy(np.abs(a[:, -1:] - b[:, -1:].T))
            a, b = a[:, :-1], b[:, :-1]
        return covariance_of(torch.from_numpy(cdist(a, b)), self.theta, self.smoothness, lag, self.lasting).numpy()

    def _known(
        self, xy: Array, z: Array, known: Array | None, columns: Array | None, knots: Knots | None
    ) -> tuple[Array, Array, Array, Array | None]:
        """Return places, values, variances and columns of sites, and behind them those of knots."""
        h = None if columns is None else _with_one(columns)
        left = z - self.mean if h is None else z - self.mean - h @ np.array(self.coefficients)
        errors = np.zeros(len(z)) if known is None else known
        if knots is None:
            return xy, left, errors, h
        left, errors = np.append(left, knots.means[:, 0]), np.append(errors, np.zeros(len(knots.xy)))
        return np.concatenate([xy, knots.xy]), left, errors, None if h is None else np.append(h, knots.means[:, 1:], 0)

    def _given(
        self,
        known: tuple[Array, Array, Array, Array | None],
        places: Array,
        near: Indices,
        fading: tuple[Array, Array],
        there: Array | None,
        knots: Knots | None,
        last: int,
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Return means, less the mean of all, and variances at places given their neighbours.

        Args:
            known: Places, values, variances and columns of sites and of knots.
            places: The places.
            near: Their neighbours, knots last.
            fading: Shares of these, and the distances at which they are gone.
            there: Columns at the places; None without a trend.
            knots: The knots; None without any.
            last: Number of neighbours that are knots.
        """
        (sites, values, errors, columns), theta, nu = known, self.theta, self.smoothness
        share, reach = (torch.from_numpy(np.ascontiguousarray(part)) for part in fading)
        fade = (sill_of(theta, nu) - covariance_of(reach, theta, nu)) * (1 / share - 1)
        local = Local.of(sites, values, errors, places, near, self.timed, last).faded(fade)
        if knots is None and columns is None:
            return local.given(theta, nu)
        weights, variance = local.weights(theta, nu)
        mean = (weights * local.values).sum(-1)
        if knots is not None:
            variance = variance + knots.variance(near[:, -last:] - len(sites) + len(knots.xy), weights[:, -last:])
        if columns is not None and there is not None:
            mean = mean + torch.from_numpy(there @ np.array(self.coefficients))
            variance = variance + self._of_trend(weights, columns[near], there)
        return mean, variance

    def _of_trend(self, weights: Float[Tensor, "m k"], sites: Array, places: Array) -> Float[Tensor, " m"]:
        """Return the variance that the trend adds: uᵀVu, where u = h − Hᵀw is what neighbours leave of h.

        N. Cressie, Statistics for Spatial Data, 1993, section 3.4.5, for coefficients known to be N(β, V).
        """
        left = torch.from_numpy(places) - torch.einsum("mk,mkp->mp", weights, torch.from_numpy(sites))
        return ((left @ torch.tensor(self.spread, dtype=torch.float64)) * left).sum(-1)


def _each(do: Callable[[int], None], starts: range) -> Iterator[None]:
    """Do something for each start, on as many threads as torch has, each of which computes on its own."""
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        yield from map(do, starts)
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(do, starts)


def _with_one(columns: Array) -> Array:
    """Return columns with one of the constant before them."""
    return np.concatenate([np.ones((len(columns), 1)), columns], 1)


def _mean_of(given: Given, found: Nearest) -> float:
    """Return the mean of a process by generalized least squares on stand-ins.

    By Jensen's inequality a field of logits has a lower mean than the logit of a mean share below one half.
    """
    values = np.stack([np.ones(len(given.z)), given.z - given.middle], 1)
    prior = np.array([CONSTANT * given.unit**2])
    beta, _ = _regressed(given.xy, values, given.errors, found, prior)
    return given.middle + float(beta[0])


def _regressed(
    xy: Array,
    values: Array,
    errors: Array,
    found: Nearest,
    prior: Array,
) -> tuple[Array, Array]:
    """Return coefficients and their covariance, by generalized least squares on sites given some of those before them.

    Sites come in a random order, each given its nearest of the first half of those before it: their joint density is
    Vecchia's. Sites beyond `REGRESSED` are left out.

    Args:
        xy: Sites.
        values: Columns of the trend, then the values, `n × (p + 1)`.
        errors: Known variances.
        found: The process; with times these are the last column of sites.
        prior: Prior variances of the coefficients.
    """
    order = np.random.default_rng(2).permutation(len(xy))[:REGRESSED]
    gram, end = np.diag(1 / prior), min(2 * COUNT, len(order))
    target = np.zeros(len(prior))
    every = np.arange(end)[None]
    first = Local.of(xy[order[:end]], np.zeros(end), errors[order[:end]], xy[order[:1]], every, found.timed)
    L = first.factor(found.theta, found.smoothness)[0]
    parts = [torch.linalg.solve_triangular(L, torch.from_numpy(values[order[:end]]), upper=False).numpy()]
    while parts:
        for rows in parts:
            gram, target = gram + rows[:, :-1].T @ rows[:, :-1], target + rows[:, :-1].T @ rows[:, -1]
        before, rows = order[:end], order[end : 2 * end]
        end, parts = end + len(rows), []
        if len(rows):
            tree = cKDTree(sought(xy[before], found.pace))
            parts = [_given_before(xy, values, errors, found, some, before, tree) for some in _chunks(rows)]
    factor = cho_factor(gram, lower=True)
    return cho_solve(factor, target), cho_solve(factor, np.eye(len(target)))


def _chunks(rows: Indices) -> list[Indices]:
    return np.array_split(rows, max(1, -(-len(rows) // CHUNK)))


def _given_before(
    xy: Array,
    values: Array,
    errors: Array,
    found: Nearest,
    rows: Indices,
    before: Indices,
    tree: cKDTree,
) -> Array:
    """Return what sites before leave of columns and values, in standard deviations."""
    around = before[tree.query(sought(xy[rows], found.pace), COUNT)[1]]
    local = Local.of(xy, np.zeros(len(xy)), errors, xy[rows], around, found.timed)
    weights, variance = local.weights(found.theta, found.smoothness)
    sd = np.sqrt(variance.clamp_min(0.0).numpy() + found.noise + errors[rows])
    return np.asarray((values[rows] - np.einsum("mk,mkp->mp", weights.numpy(), values[around])) / sd[:, None])
