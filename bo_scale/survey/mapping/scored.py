"""The process under which sites have the largest density given others: hyperparameters for many sites.

A. V. Vecchia, Estimation and model identification for continuous spatial processes, JRSS B 50, 1988. Some sites are
given only those of a few drawn before them, since nearest sites alone tell little of long ranges (M. L. Stein, Z. Chi,
L. J. Welty, Approximating likelihoods for large spatial data sets, JRSS B 66, 2004).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.survey.mapping.local import COUNT, Array, Indices, Local, drawn_from, in_directions, sought, spacing_of
from bo_scale.survey.mapping.matern import matern_and_slope
from bo_scale.survey.mapping.temporal import ABRUPT, SMOOTH
from bo_scale.threads import scipy_on_one_thread

SCORED, SPARSE, HOLLOW = 1000, 400, 1000
"""Sites that hyperparameters are fitted to: given the nearest, those drawn before, and those around a hole."""
HOLES = (1.5, 0.05)
"""Radii of holes, between a factor of the typical spacing and a share of the diagonal of the sites' box."""
FINER = 6
"""Factor by which sites around a hole may be denser than it is wide."""
SCREENED = 3
"""One of so many of these tells which smoothness is best."""
STEPS = 60
SPAN = (1e-3, 10.0)
"""Bounds of lengthscales, in diagonals of the sites' box."""
PAIRS = (0.5, 0.5), (0.5, 2.5), (1.5, 0.5), (1.5, 1.5)
"""ν of a summand that is short at the beginning of a fit, and of one that is long."""
TWO, THREE = (0.02, 0.2), (0.005, 0.03, 0.2)
"""Lengthscales where fits of two and of three summands begin, in diagonals of the sites' box."""
OTHERS = (0.5, 1.5), (1.5, 1.5)
"""ν of the second and of the third of three summands, to choose from."""
EQUAL = (0.5, 0.5), (1.5, 1.5)
"""Pairs for fields with time, whose parts differ in how long they last."""
VARIANCES = (1e-3, 100.0)
"""Bounds of the process's variances, in variances of the values: large ones go with lengthscales beyond the area."""
NOISE = (1e-6, 1.0)
"""Bounds of the noise variance, in variances of the values."""
SHARES = 100.0
"""Factor by which lengthscales in time may be shorter and longer than the time of all sites."""

Smoothness = tuple[float, ...]


@dataclass(frozen=True)
class Given:
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
class Process:
    """A sum of Matérn processes.

    Attributes:
        nu: Smoothness of every summand.
        numbers: As covariances take them: lengthscales, variances, the noise variance, lengthscales in time.
        lasting: Smoothness of all in time.
    """

    nu: Smoothness
    numbers: Array
    lasting: float = ABRUPT


def process_of(
    given: Given, smoothness: Sequence[Smoothness], near: Process | None = None, pace: float | None = None
) -> Process:
    """Return the process under which sites have the largest density given others.

    A third summand joins the best two if it can be fitted and the density gains more than its two parameters cost
    (H. Akaike, A new look at the statistical model identification, IEEE Transactions on Automatic Control 19, 1974).

    Args:
        given: The sites.
        smoothness: Pairs to choose from; of one there is no third summand.
        near: A process to start from, whose smoothness is kept.
        pace: Metres that count as much as a unit of time where neighbours are sought.

    Raises:
        NotPositiveDefiniteError: if none can be fitted.
    """
    scored = _Scored.of(given, pace)
    if near is not None:
        return scored.best([near], given)[1]
    learns_time = given.time is not None and given.time[1] is None
    start, all_lasting = start_of(given, TWO), (ABRUPT, SMOOTH) if learns_time else (ABRUPT,)
    starts = [Process(nu, start, lasting) for nu in smoothness for lasting in all_lasting]
    if len(starts) == 1:
        return scored.best(starts, given)[1]
    few = scored.some(slice(None, None, SCREENED))
    loss, two = scored.best([few.best(starts, given)[1]], given)
    if len(smoothness) == 1 or given.time is not None:
        return two
    try:
        three = [few.best([Process((two.nu[0], *others), start_of(given, THREE))], given)[1] for others in OTHERS]
        less, best = scored.best(three, given)
    except NotPositiveDefiniteError:
        return two
    return best if len(scored.values) * (loss - less) > len(best.numbers) - len(two.numbers) else two


def start_of(given: Given, lengths: Sequence[float]) -> Array:
    """Return numbers where a fit begins."""
    spread, count = given.unit**2, len(lengths)
    variances = [0.3 * spread, 0.7 * spread] if count == 2 else [spread / count] * count
    noise = (0.1 if given.noisy else NOISE[0]) * spread
    times: list[float] = []
    if given.time is not None:
        span, decay = given.time
        times = [0.3 * span, 10 * span] if decay is None else [decay, decay]
    return np.array([*(given.side * np.array(lengths)), *variances, noise, *times])


def _limits(given: Given, count: int) -> Array:
    """Return the bounds of the numbers' logarithms, for so many summands."""
    spread = given.unit**2
    length, variance = np.multiply(SPAN, given.side), np.multiply(VARIANCES, spread)
    noise = np.multiply(NOISE if given.noisy else NOISE[:1] * 2, spread)
    limits = [*[length] * count, *[variance] * count, noise]
    if given.time is not None:
        span, decay = given.time
        limits += [np.array([span / SHARES, span * SHARES] if decay is None else [decay, decay])] * count
    return np.log(limits)


@dataclass(frozen=True)
class _Scored:
    """Sites with those that they are given.

    Attributes:
        between: Distances of neighbours from each other, a pair once, and after them from the site, `m × (p + k)`.
        lags: The same in time; None without times.
        near: Values at the neighbours, less the mean, `m × k`.
        near_errors: Known variances of these.
        values: Values of the sites, less the mean.
        errors: Known variances of these.
    """

    between: Array
    lags: Array | None
    near: Array
    near_errors: Array
    values: Array
    errors: Array

    @classmethod
    def of(cls, given: Given, pace: float | None) -> "_Scored":
        """Draw sites, and seek their neighbours at a pace."""
        xy, z, errors = given.xy, given.z - given.middle, given.errors
        places = sought(xy, pace)
        kinds = [_close(places), _sparse(places)]
        if given.time is None and xy.shape[1] == 2:
            kinds.append(_hollow(xy))
        rows, others = (np.concatenate(parts) for parts in zip(*kinds, strict=True))
        return cls.among(xy, z, errors, rows, others, given.time is not None)

    @classmethod
    def among(cls, xy: Array, z: Array, errors: Array, rows: Indices, others: Indices, timed: bool) -> "_Scored":
        """Gather what is known of sites and their neighbours, by rows."""
        local = Local.of(xy, z, errors, xy[rows], others, ABRUPT if timed else None)
        i, j = np.tril_indices(others.shape[1], -1)
        lags = None
        if local.lags is not None:
            lags = np.concatenate([local.lags[0].numpy()[:, i, j], local.lags[1].numpy()], 1)
        between = np.concatenate([local.within.numpy()[:, i, j], local.to.numpy()], 1)
        return cls(between, lags, local.values.numpy(), local.errors.numpy(), z[rows], errors[rows])

    def some(self, rows: slice) -> "_Scored":
        """Return some of the sites."""
        lags = None if self.lags is None else self.lags[rows]
        whole = (self.near, self.near_errors, self.values, self.errors)
        return _Scored(self.between[rows], lags, *(part[rows] for part in whole))

    def covariances(self, theta: Array, nu: Smoothness, lasting: float) -> tuple[list[Array], list[Array], list[Array]]:
        """Return the covariances by the summands, and their derivatives by log lengthscales, and by those in time."""
        parts, slopes, slopes_in_time, count = [], [], [], len(nu)
        for j, each in enumerate(nu):
            part, slope = matern_and_slope(each, self.between / theta[j])
            if self.lags is not None:
                held, falling = matern_and_slope(lasting, self.lags / theta[2 * count + 1 + j])
                slopes_in_time.append(theta[count + j] * part * falling)
                part, slope = part * held, slope * held
            parts.append(theta[count + j] * part)
            slopes.append(theta[count + j] * slope)
        return parts, slopes, slopes_in_time

    def best(self, starts: Sequence[Process], given: Given) -> tuple[float, Process]:
        """Return the least loss of fits from several starts, and its process.

        Raises:
            NotPositiveDefiniteError: if none can be fitted.
        """
        fits = []
        for start in starts:
            with scipy_on_one_thread():
                found = minimize(
                    loss,
                    np.log(start.numbers),
                    (start.nu, self, start.lasting),
                    "L-BFGS-B",
                    True,
                    bounds=_limits(given, len(start.nu)),
                    options={"maxiter": STEPS},
                )
            if np.isfinite(found.fun):
                fits.append((float(found.fun), replace(start, numbers=np.exp(found.x))))
        if not fits:
            raise NotPositiveDefiniteError("the process of the nearest sites could not be fitted; look for outliers")
        return min(fits, key=lambda fit: fit[0])


def loss(log: Array, nu: Smoothness, scored: _Scored, lasting: float = ABRUPT) -> tuple[float, Array]:
    """Return −log density of values given those around, a site, with its gradient; infinite without a factor.

    Value y has mean m = kᵀK⁻¹z and variance V = s − kᵀK⁻¹k + σ² given the neighbours. With w = K⁻¹k and α = K⁻¹z the
    derivatives are ∂m/∂K = −wαᵀ, ∂V/∂K = wwᵀ, ∂m/∂k = α and ∂V/∂k = −2w (C. E. Rasmussen, C. K. I. Williams, Gaussian
    Processes for Machine Learning, 2006, (2.25), (2.26) and (A.14)).

    Args:
        log: Logarithms of the numbers of the process.
        nu: Its smoothness.
        scored: The sites.
        lasting: Its smoothness in time.
    """
    count, k, theta = len(nu), scored.near.shape[1], np.exp(log)
    noise, sill = theta[2 * count], theta[count : 2 * count].sum()
    parts, slopes, slopes_in_time = scored.covariances(theta, nu, lasting)
    row, column = np.tril_indices(k, -1)
    every = np.sum(parts, axis=0)
    K, reach = np.empty((len(every), k, k)), every[:, len(row) :]
    K[:, row, column] = K[:, column, row] = every[:, : len(row)]
    K[:, np.arange(k), np.arange(k)] = sill + noise + scored.near_errors
    L, failed = torch.linalg.cholesky_ex(torch.from_numpy(K))
    if failed.any():
        return float("inf"), np.zeros(len(log))
    both = torch.cholesky_solve(torch.from_numpy(np.stack([reach, scored.near], -1)), L).numpy()
    w, alpha = both[..., 0], both[..., 1]
    left, own = scored.values - (w * scored.near).sum(-1), sill - (w * reach).sum(-1)
    V = np.maximum(own, 0.0) + noise + scored.errors  # only rounding makes the first negative
    by_mean, by_variance = -left / V, 0.5 * (1 - np.square(left) / V) / V
    by_own = by_variance * (own > 0)
    ahead = by_own[:, None] * w - by_mean[:, None] * alpha  # the derivative by K is w times this
    by_pairs = w[:, row] * ahead[:, column] + w[:, column] * ahead[:, row]
    by = np.concatenate([by_pairs, by_mean[:, None] * alpha - 2 * by_own[:, None] * w], 1)
    by_sill = (w * ahead).sum() + by_own.sum()
    gradient = [np.vdot(by, slope) for slope in slopes]
    gradient += [np.vdot(by, part) + variance * by_sill for part, variance in zip(parts, theta[count : 2 * count])]
    gradient.append(noise * ((w * ahead).sum() + by_variance.sum()))
    gradient += [np.vdot(by, slope) for slope in slopes_in_time]
    return float(0.5 * (np.square(left) / V + np.log(V)).mean()), np.array(gradient) / len(V)


def _close(xy: Array) -> tuple[Indices, Indices]:
    """Return sites drawn, and the nearest of all to each of them."""
    rows = np.sort(np.random.default_rng(0).permutation(len(xy))[:SCORED])
    around = cKDTree(xy).query(xy[rows], COUNT + 1)[1]
    return rows, np.stack([row[row != own][:COUNT] for own, row in zip(rows, around, strict=True)])


def _sparse(xy: Array) -> tuple[Indices, Indices]:
    """Return sites drawn, and the nearest to each of them of those drawn before it; the first have too few."""
    rows = np.random.default_rng(1).permutation(len(xy))[:SPARSE]
    before = np.where(np.tri(len(rows), k=-1, dtype=bool), cdist(xy[rows], xy[rows]), np.inf)
    return rows[COUNT:], rows[np.argsort(before[COUNT:], axis=1, kind="stable")[:, :COUNT]]


def _hollow(xy: Array) -> tuple[Indices, Indices]:
    """Return sites drawn, and some of the sites in all directions outside a hole around each of them."""
    rng, spacing = np.random.default_rng(2), spacing_of(xy)
    low, high = HOLES[0] * spacing, max(HOLES[1] * float(np.linalg.norm(np.ptp(xy, axis=0))), 2 * HOLES[0] * spacing)
    rows = rng.permutation(len(xy))[:HOLLOW]
    radii = low * (high / low) ** rng.random(len(rows)) if low > 0 else np.zeros(len(rows))
    drawn, around = drawn_from(xy), []
    apart = [spacing * (len(xy) / len(some)) ** 0.5 for _, some in drawn]
    for row, radius in zip(rows, radii, strict=True):
        first = next((k for k, each in enumerate(apart) if each >= radius / FINER), len(apart) - 1)
        near = [in_directions(xy, some, xy[row], 2, radius) for some in drawn[first:]]
        found = list(dict.fromkeys(j for part in near for j in part.tolist() if j != row))[:COUNT]
        around.append(found)
    whole = [k for k, found in enumerate(around) if len(found) == COUNT]
    return rows[whole], np.array([around[k] for k in whole], dtype=np.intp).reshape(-1, COUNT)
