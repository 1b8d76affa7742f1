"""Predictions from the nearest sites, for maps of many: as fine as the sites, where a grid of a model is coarser.

f(x) given the k nearest sites is close to f(x) given all of them, for near sites screen the others; hyperparameters are
those under which sites have the largest density given others (A. V. Vecchia, Estimation and model identification for
continuous spatial processes, JRSS B 50, 1988; A. Datta, S. Banerjee, A. O. Finley, A. E. Gelfand, Hierarchical
nearest-neighbor Gaussian process models for large geostatistical datasets, JASA 111, 2016). Along a ship's track the
nearest are all before and behind, and tell nothing of what is beside: some neighbours are therefore the nearest of some
sites drawn from all (M. L. Stein, Z. Chi, L. J. Welty, Approximating likelihoods for large spatial data sets, JRSS B
66, 2004), and some of the sites scored are given only those of a few drawn before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from torch import Tensor
from tqdm import tqdm

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.survey.mapping.matern import matern_of
from bo_scale.threads import scipy_on_one_thread

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
NEIGHBOURS = {1: 24, 16: 6, 256: 3}
"""Sites that a place is predicted from: so many nearest of all, of a 16th and of a 256th."""
COUNT = sum(NEIGHBOURS.values())
WHOLE, GONE = 0.7, 1e-9
"""Share of the way to the distance where a neighbour is gone, up to which it counts as a whole; and a share of none."""
FEWEST = 96
"""Sites that are searched, at least, or all."""
SCORED, SPARSE = 1500, 500
"""Sites that hyperparameters are fitted to, drawn at random: given the nearest of all, and of those drawn before."""
STEPS = 60
SPAN = (1e-3, 10.0)
"""Bounds of lengthscales, in diagonals of the sites' box."""
PAIRS = (0.5, 0.5), (0.5, 2.5), (1.5, 0.5), (1.5, 1.5)
"""ν of a summand that is short at the beginning of a fit, and of one that is long."""
EQUAL = (0.5, 0.5), (1.5, 1.5)
"""The same of fields with time, whose parts differ in how long they last."""
VARIANCES = (1e-3, 100.0)
"""Bounds of the process's variances, in variances of the values: large ones go with lengthscales beyond the area."""
NOISE = (1e-6, 1.0)
"""Bounds of the noise variance, in variances of the values."""
TURNS = 2
"""Times that a process and a trend are fitted by turns."""
SHARES = 100.0
"""Factor by which lengthscales in time may be shorter and longer than the time of all sites."""
REGRESSED = 20_000
"""Sites that coefficients are fitted to."""
CONSTANT = 100.0
"""Prior variance of the constant of a trend, in variances of the values."""
CHUNK = 500
"""Places that are predicted at once: their matrices fit into a cache."""
EXACTLY = "donot_use_mm_for_euclid_dist"
"""Mode of `torch.cdist`: by products, distances of near sites would lose their digits."""


@dataclass(frozen=True)
class _Given:
    """Sites that numbers are fitted to.

    Attributes:
        xy: `n × 2`, metres, and times behind them if there are some.
        z: Values, `n`.
        errors: Variances of measurements that are known; 0 where none are.
        middle: Mean of the quantity, about.
        unit: Its standard deviation, about.
        noisy: Whether measurements vary beyond known errors.
        time: Time from the first site to the last, and the lengthscale in time if it is given; None without times.
    """

    xy: Array
    z: Array
    errors: Array
    middle: float
    unit: float
    noisy: bool
    time: tuple[float, float | None] | None

    @property
    def side(self) -> float:
        """The diagonal of the sites' box in space, metres."""
        return float(np.linalg.norm(np.ptp(self.xy if self.time is None else self.xy[:, :-1], axis=0)))


@dataclass(frozen=True)
class Nearest:
    """A sum of two Matérn processes on the scale of the values; plain numbers, as JSON can hold them.

    Attributes:
        smoothness: ν of both, each one of 0.5, 1.5, 2.5.
        lengthscales: Lengthscales of both, metres.
        variances: Variances of both.
        mean: Mean of the sum.
        noise: Variance of measurements, beyond errors that are known.
        coefficients: Coefficients of a trend, the first of them of a constant; None without a trend.
        spread: Their covariance.
        times: Lengthscales of both in time, in which they fall exponentially; None for a field without time.
        pace: Metres that count as much as a unit of time where neighbours are sought.
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

    @classmethod
    def fitted(
        cls,
        xy: Array,
        z: Array,
        known: Array | None,
        smoothness: Sequence[tuple[float, float]],
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
        given = _Given(xy, z, errors, *((float(z.mean()), float(z.std())) if units is None else units), noisy, time)
        return cls._of(given, smoothness, near) if trend is None else cls._with_trend(given, smoothness, near, trend)

    @classmethod
    def _of(cls, given: "_Given", smoothness: Sequence[tuple[float, float]], near: "Nearest | None") -> "Nearest":
        """Fit without a trend."""
        fit = cls._scored if given.time is None else cls._with_time
        return fit(given, smoothness, near)

    @classmethod
    def _scored(
        cls,
        given: "_Given",
        smoothness: Sequence[tuple[float, float]],
        near: "Nearest | None",
        pace: float | None = None,
    ) -> "Nearest":
        """Fit the process to sites given those around, which are sought at a pace."""
        xy, z, errors, noisy, time = given.xy, given.z - given.middle, given.errors, given.noisy, given.time
        sought = _sought(xy, pace)
        rows, others = (np.concatenate(parts) for parts in zip(_close(sought), _sparse(sought), strict=True))
        side, spread = given.side, given.unit**2
        local = _Local.of(xy, z, errors, xy[rows], others, time is not None)
        target = torch.from_numpy(z[rows]), torch.from_numpy(errors[rows])
        start = np.log([0.02 * side, 0.2 * side, 0.3 * spread, 0.7 * spread, (0.1 if noisy else NOISE[0]) * spread])
        if near is not None:
            start = np.log([*near.lengthscales, *near.variances, near.noise, *(near.times or ())])
            smoothness = [(near.smoothness[0], near.smoothness[1])]
        length, variance = np.multiply(SPAN, side), np.multiply(VARIANCES, spread)
        noise = np.multiply(NOISE if noisy else NOISE[:1] * 2, spread)
        limits = np.log([length, length, variance, variance, noise])
        if time is not None:
            span, decay = time
            lasting = np.log([span / SHARES, span * SHARES] if decay is None else [decay, decay])
            limits = np.concatenate([limits, [lasting, lasting]])
            if len(start) == 5:
                start = np.concatenate([start, np.clip(np.log([0.3 * span, 10 * span]), *lasting)])
        best: tuple[float, tuple[float, float], Array] | None = None
        for nu in smoothness:
            with scipy_on_one_thread():
                found = minimize(
                    _loss, start, (nu, local, target), "L-BFGS-B", True, bounds=limits, options={"maxiter": STEPS}
                )
            if np.isfinite(found.fun) and (best is None or found.fun < best[0]):
                best = float(found.fun), nu, np.exp(found.x)
        if best is None:
            raise NotPositiveDefiniteError("the process of the nearest sites could not be fitted; look for outliers")
        numbers = best[2].tolist()
        times = None if time is None else numbers[5:]
        return cls(list(best[1]), numbers[:2], numbers[2:4], given.middle, numbers[4], times=times, pace=pace)

    @classmethod
    def _with_time(
        cls, given: "_Given", smoothness: Sequence[tuple[float, float]], near: "Nearest | None"
    ) -> "Nearest":
        """Fit twice: neighbours of the second fit are sought at the pace at which the first one changes."""
        assert given.time is not None, "of a field with time"
        found, pace = near, given.side / given.time[0] if near is None or near.pace is None else near.pace
        for _ in range(TURNS):
            found = cls._scored(given, smoothness, found, pace)
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

    @classmethod
    def _with_trend(
        cls,
        given: "_Given",
        smoothness: Sequence[tuple[float, float]],
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
            beta, covariance = _regressed(
                given.xy, values, given.errors, found.theta, found.smoothness, prior, found.pace
            )
        assert found is not None, "there is a turn"
        return replace(found, mean=given.middle, coefficients=beta.tolist(), spread=covariance.tolist())

    def forecast(
        self,
        xy: Array,
        z: Array,
        known: Array | None,
        places: Array,
        progress: bool | None,
        trend: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array]:
        """Means and standard deviations of the quantity itself at places. O(k³) a place.

        Args:
            xy: Sites, `n × 2`, metres.
            z: Their values.
            known: Variances of measurements, where they are known.
            places: `m × 2`, metres.
            progress: Whether to show a bar; None for only on a terminal.
            trend: Columns of the trend at the sites and at the places; None without one.
        """
        if trend is not None:
            here, there = (np.concatenate([np.ones((len(each), 1)), each], 1) for each in trend)
            trend = here, there
            z = z - trend[0] @ np.array(self.coefficients)
        searched, errors = _searched(_sought(xy, self.pace)), np.zeros(len(z)) if known is None else known
        found = np.empty((2, len(places)))
        starts = range(0, len(places), CHUNK)
        disable = None if progress is None else not progress
        with torch.no_grad():
            theta = self.theta
            for start in tqdm(starts, desc="map", disable=disable if len(starts) > 1 else True):
                rows = slice(start, start + CHUNK)
                around, share, reach = _around(searched, _sought(places[rows], self.pace))
                unlike = theta[2:4].sum() - _covariance(torch.from_numpy(reach), theta, self.smoothness)
                fading = unlike * torch.from_numpy(1 / share - 1)
                local = _Local.of(xy, z - self.mean, errors, places[rows], around, self.times is not None).faded(fading)
                if trend is None:
                    mean, variance = local.given(theta, self.smoothness)
                else:
                    mean, variance = self._of_trend(local, theta, trend[0][around], trend[1][rows])
                found[0, rows] = self.mean + mean.numpy()
                found[1, rows] = variance.clamp_min(0.0).sqrt().numpy()  # at sites rounding leaves some −1e-16
        return found[0], found[1]

    def _of_trend(
        self, local: "_Local", theta: Float[Tensor, " q"], sites: Array, places: Array
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Means and variances with those of the trend: hᵀβ and uᵀVu, where u = h − Hᵀw is what neighbours leave of h.

        N. Cressie, Statistics for Spatial Data, 1993, section 3.4.5, for coefficients known to be N(β, V).
        """
        weights, variance = local.weights(theta, self.smoothness)
        mean = (weights * local.values).sum(-1) + torch.from_numpy(places @ np.array(self.coefficients))
        left = torch.from_numpy(places) - torch.einsum("mk,mkp->mp", weights, torch.from_numpy(sites))
        return mean, variance + ((left @ torch.tensor(self.spread, dtype=torch.float64)) * left).sum(-1)


def _regressed(
    xy: Array,
    values: Array,
    errors: Array,
    theta: Float[Tensor, " q"],
    nu: Sequence[float],
    prior: Array,
    pace: float | None = None,
) -> tuple[Array, Array]:
    """Return coefficients and their covariance, by generalized least squares on sites given some of those before them.

    Sites come in a random order, each given its nearest of the first half of those before it: their joint density is
    Vecchia's. Sites beyond `REGRESSED` are left out.

    Args:
        xy: Sites.
        values: Columns of the trend, then the values, `n × (p + 1)`.
        errors: Known variances.
        theta: Numbers of the process.
        nu: Its smoothness.
        prior: Prior variances of the coefficients.
        pace: Pace at which neighbours are sought, if the last column of sites is time.
    """
    order = np.random.default_rng(2).permutation(len(xy))[:REGRESSED]
    gram, end = np.diag(1 / prior), min(2 * COUNT, len(order))
    target = np.zeros(len(prior))
    every = np.arange(end)[None]
    first = _Local.of(xy[order[:end]], np.zeros(end), errors[order[:end]], xy[order[:1]], every, pace is not None)
    L = first.factor(theta, nu)[0]
    parts = [torch.linalg.solve_triangular(L, torch.from_numpy(values[order[:end]]), upper=False).numpy()]
    while parts:
        for rows in parts:
            gram, target = gram + rows[:, :-1].T @ rows[:, :-1], target + rows[:, :-1].T @ rows[:, -1]
        before, rows = order[:end], order[end : 2 * end]
        end, parts = end + len(rows), []
        if len(rows):
            tree = cKDTree(_sought(xy[before], pace))
            parts = [_given_before(xy, values, errors, theta, nu, some, before, tree, pace) for some in _chunks(rows)]
    factor = cho_factor(gram, lower=True)
    return cho_solve(factor, target), cho_solve(factor, np.eye(len(target)))


def _chunks(rows: Indices) -> list[Indices]:
    return np.array_split(rows, max(1, -(-len(rows) // CHUNK)))


def _given_before(
    xy: Array,
    values: Array,
    errors: Array,
    theta: Float[Tensor, " q"],
    nu: Sequence[float],
    rows: Indices,
    before: Indices,
    tree: cKDTree,
    pace: float | None,
) -> Array:
    """Return what sites before leave of columns and values, in standard deviations."""
    around = before[tree.query(_sought(xy[rows], pace), COUNT)[1]]
    local = _Local.of(xy, np.zeros(len(xy)), errors, xy[rows], around, pace is not None)
    weights, variance = local.weights(theta, nu)
    sd = np.sqrt(variance.clamp_min(0.0).numpy() + float(theta[4]) + errors[rows])
    return np.asarray((values[rows] - np.einsum("mk,mkp->mp", weights.numpy(), values[around])) / sd[:, None])


def _sought(xy: Array, pace: float | None) -> Array:
    """Return places as neighbours are sought: times, the last column, in metres at a pace."""
    return xy if pace is None else np.concatenate([xy[:, :-1], pace * xy[:, -1:]], 1)


def _searched(xy: Array) -> list[tuple[cKDTree, Indices, int]]:
    """Trees of all sites and of some, which these are, and how many neighbours each gives.

    What is drawn of sites that were there before stays the same where others are added behind them.
    """
    key = np.random.default_rng(0).random(len(xy))
    drawn = [(np.flatnonzero(key < max(1 / part, FEWEST / len(xy))), count) for part, count in NEIGHBOURS.items()]
    return [(cKDTree(xy[rows]), rows, count) for rows, count in drawn]


def _around(searched: list[tuple[cKDTree, Indices, int]], places: Array) -> tuple[Indices, Array, Array]:
    """Rows of the neighbours of places, their shares, and the distances at which these are gone; `m × k` each.

    A neighbour's share falls from 1 to 0 on its way from the distance of the nearest one to that of the first site that
    is no neighbour, so that maps have no edges where neighbours change. Of a row that is there twice, only the larger
    share is above `GONE`.
    """
    parts = []
    for tree, rows, count in searched:
        distance, near = tree.query(places, min(count + 1, len(rows)))
        distance, near = distance.reshape(len(places), -1), rows[near.reshape(len(places), -1)]
        last = distance[:, -1:] if len(rows) > count else 1e6 * distance[:, -1:]
        first = distance[:, :1]
        ratio = (distance[:, :count] - first) / np.maximum(last - first, np.finfo(np.float64).tiny)
        share = np.square(np.clip((1 - ratio) / (1 - WHOLE), 0.0, 1.0))
        parts.append((near[:, :count], share, np.broadcast_to(last, share.shape)))
    near, share, reach = (np.concatenate(each, 1) for each in zip(*parts, strict=True))
    same, earlier = near[:, :, None] == near[:, None], np.tri(near.shape[1], k=-1, dtype=bool)
    better = same & ((share[:, None] > share[:, :, None]) | ((share[:, None] == share[:, :, None]) & earlier))
    return near, np.where(better.any(-1), GONE, np.maximum(share, GONE)), reach


def _close(xy: Array) -> tuple[Indices, Indices]:
    """Sites drawn, and the nearest of all to each of them."""
    rows = np.sort(np.random.default_rng(0).permutation(len(xy))[:SCORED])
    around = cKDTree(xy).query(xy[rows], COUNT + 1)[1]
    return rows, np.stack([row[row != own][:COUNT] for own, row in zip(rows, around, strict=True)])


def _sparse(xy: Array) -> tuple[Indices, Indices]:
    """Sites drawn, and the nearest to each of them of those drawn before it; without the first, which have too few."""
    rows = np.random.default_rng(1).permutation(len(xy))[:SPARSE]
    before = np.where(np.tri(len(rows), k=-1, dtype=bool), cdist(xy[rows], xy[rows]), np.inf)
    return rows[COUNT:], rows[np.argsort(before[COUNT:], axis=1, kind="stable")[:, :COUNT]]


@dataclass(frozen=True)
class _Local:
    """Places with their neighbours.

    Attributes:
        within: Distances of the neighbours from each other, metres.
        to: Distances from the place, metres.
        values: Values at the neighbours, less the mean.
        errors: Variances that are known, of the values.
        lags: Times of the neighbours apart from each other, and from the place; None without times.
    """

    within: Float[Tensor, "m k k"]
    to: Float[Tensor, "m k"]
    values: Float[Tensor, "m k"]
    errors: Float[Tensor, "m k"]
    lags: tuple[Float[Tensor, "m k k"], Float[Tensor, "m k"]] | None = None

    def covariance(self, theta: Float[Tensor, " q"], nu: Sequence[float]) -> Float[Tensor, "m k k"]:
        """Return the covariance of the measurements at the neighbours."""
        lag = None if self.lags is None else self.lags[0]
        return _covariance(self.within, theta, nu, lag) + torch.diag_embed(theta[4] + self.errors)

    def factor(self, theta: Float[Tensor, " q"], nu: Sequence[float]) -> Float[Tensor, "m k k"]:
        """Return the Cholesky factor of that covariance.

        Raises:
            NotPositiveDefiniteError: if one has none.
        """
        L, failed = torch.linalg.cholesky_ex(self.covariance(theta, nu))
        if failed.any():
            raise NotPositiveDefiniteError("the covariance of the nearest sites has no Cholesky factor")
        return L

    def reaching(self, theta: Float[Tensor, " q"], nu: Sequence[float]) -> Float[Tensor, "m k"]:
        """Return the covariance of the neighbours with the place."""
        return _covariance(self.to, theta, nu, None if self.lags is None else self.lags[1])

    def faded(self, variance: Float[Tensor, "m k"]) -> "_Local":
        """Return the places with so much more variance of the measurements at the neighbours."""
        return replace(self, errors=self.errors + variance)

    @classmethod
    def of(
        cls, xy: Array, z: Array, errors: Array, places: Array, around: npt.NDArray[np.intp], timed: bool = False
    ) -> "_Local":
        sites, place = torch.from_numpy(xy[around]), torch.from_numpy(places).unsqueeze(1)
        values, known = torch.from_numpy(z[around]), torch.from_numpy(errors[around])
        lags = None
        if timed:
            when, now = sites[..., -1], place[..., -1]
            lags = (when.unsqueeze(-1) - when.unsqueeze(-2)).abs(), (when - now).abs()
            sites, place = sites[..., :-1].contiguous(), place[..., :-1]
        within = torch.cdist(sites, sites, compute_mode=EXACTLY)
        return cls(within, (sites - place).norm(dim=-1), values, known, lags)

    def given(self, theta: Float[Tensor, " q"], nu: Sequence[float]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Means and variances of the process at the places: kᵀK⁻¹z and k(x, x) − kᵀK⁻¹k, by K = LLᵀ.

        C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, (2.25) and (2.26).
        """
        k, L = self.reaching(theta, nu), self.factor(theta, nu)
        both = torch.linalg.solve_triangular(L, torch.stack([k, self.values], -1), upper=False)
        return (both[..., 0] * both[..., 1]).sum(-1), theta[2:4].sum() - both[..., 0].square().sum(-1)

    def weights(
        self, theta: Float[Tensor, " q"], nu: Sequence[float]
    ) -> tuple[Float[Tensor, "m k"], Float[Tensor, " m"]]:
        """Weights of the neighbours, K⁻¹k, and variances of the process at the places."""
        k = self.reaching(theta, nu)
        weights = torch.cholesky_solve(k.unsqueeze(-1), self.factor(theta, nu)).squeeze(-1)
        return weights, theta[2:4].sum() - (weights * k).sum(-1)


def _loss(log: Array, nu: tuple[float, float], local: _Local, target: tuple[Tensor, Tensor]) -> tuple[float, Any]:
    """−log density of values given those around, a site, with its gradient; infinite where a matrix has no factor."""
    theta = torch.from_numpy(log).requires_grad_()
    try:
        mean, variance = local.given(theta.exp(), nu)
    except NotPositiveDefiniteError:
        return float("inf"), np.zeros(len(log))
    variance = variance.clamp_min(0.0) + theta[4].exp() + target[1]  # only rounding makes the first negative
    loss = 0.5 * ((target[0] - mean).square() / variance + variance.log()).mean()
    loss.backward()
    assert theta.grad is not None
    return loss.item(), theta.grad.numpy()


def _covariance(r: Tensor, theta: Float[Tensor, " q"], nu: Sequence[float], lag: Tensor | None = None) -> Tensor:
    """Return the covariance of the sum, at distances in metres and lags in time."""
    one, two = theta[2] * matern_of(nu[0], r / theta[0]), theta[3] * matern_of(nu[1], r / theta[1])
    if lag is None:
        return one + two
    return one * (-lag / theta[5]).exp() + two * (-lag / theta[6]).exp()
