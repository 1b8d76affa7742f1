"""Places with the sites that they are predicted from, and the covariances among these."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from torch import Tensor

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.survey.mapping.matern import matern_of

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Drawn = list[tuple[cKDTree, Indices]]
"""Trees of all sites and of some, and which these are."""
NEIGHBOURS = {1: 24, 16: 6, 256: 3}
"""Sites that a place is predicted from: so many nearest of all, of a 16th and of a 256th."""
COUNT = sum(NEIGHBOURS.values())
WITH_TIME = 4
"""Times as many where time is a third dimension: there the nearest leave more to tell."""
WHOLE, GONE = 0.7, 1e-9
"""Share of the way to the distance where a neighbour is gone, up to which it counts as a whole; and a share of none."""
FEWEST = 96
"""Sites that are searched, at least, or all."""
CHUNK = 25
"""Places that are predicted at once: their matrices fit into a cache."""
PARTS = (1, 4, 16, 64, 256)
"""Sites are drawn: all, a quarter, a 16th..."""
DIRECTIONS = 8
SEARCHED = 5
"""Sites that are searched for one in each direction, a direction."""
JITTER = 1e-9
"""Variance that values of the process itself have, in its variances: two may be at one place."""
EXACTLY = "donot_use_mm_for_euclid_dist"
"""Mode of `torch.cdist`: by products, distances of near sites would lose their digits."""


@dataclass(frozen=True)
class Local:
    """Places with their neighbours.

    Attributes:
        within: Distances of the neighbours from each other, metres.
        to: Distances from the place, metres.
        values: Values at the neighbours, less the mean.
        errors: Variances that are known, of the values.
        lags: Times of the neighbours apart from each other, and from the place; None without times.
        lasting: Smoothness ν in time.
        last: How many neighbours, the last ones, are values of the process itself, which have no noise.
    """

    within: Float[Tensor, "m k k"]
    to: Float[Tensor, "m k"]
    values: Float[Tensor, "m k"]
    errors: Float[Tensor, "m k"]
    lags: tuple[Float[Tensor, "m k k"], Float[Tensor, "m k"]] | None = None
    lasting: float = 0.5
    last: int = 0

    def covariance(self, theta: Float[Tensor, " q"], nu: Sequence[float]) -> Float[Tensor, "m k k"]:
        """Return the covariance of the measurements at the neighbours."""
        lag, noise = None if self.lags is None else self.lags[0], theta[2 * len(nu)].expand(self.to.shape[-1])
        if self.last:
            noise = torch.cat([noise[: -self.last], JITTER * sill_of(theta, nu).expand(self.last)])
        return covariance_of(self.within, theta, nu, lag, self.lasting) + torch.diag_embed(noise + self.errors)

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
        return covariance_of(self.to, theta, nu, None if self.lags is None else self.lags[1], self.lasting)

    def faded(self, variance: Float[Tensor, "m k"]) -> "Local":
        """Return the places with so much more variance of the measurements at the neighbours."""
        return replace(self, errors=self.errors + variance)

    @classmethod
    def of(
        cls,
        xy: Array,
        z: Array,
        errors: Array,
        places: Array,
        around: npt.NDArray[np.intp],
        lasting: float | None = None,
        last: int = 0,
    ) -> "Local":
        """Gather what is known of places and their neighbours, by rows; the last column is time if it has a ν."""
        sites, place = torch.from_numpy(xy[around]), torch.from_numpy(places).unsqueeze(1)
        values, known = torch.from_numpy(z[around]), torch.from_numpy(errors[around])
        lags = None
        if lasting is not None:
            when, now = sites[..., -1], place[..., -1]
            lags = (when.unsqueeze(-1) - when.unsqueeze(-2)).abs(), (when - now).abs()
            sites, place = sites[..., :-1].contiguous(), place[..., :-1]
        within = torch.cdist(sites, sites, compute_mode=EXACTLY)
        return cls(within, (sites - place).norm(dim=-1), values, known, lags, lasting or 0.5, last)

    def given(self, theta: Float[Tensor, " q"], nu: Sequence[float]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Means and variances of the process at the places: kᵀK⁻¹z and k(x, x) − kᵀK⁻¹k, by K = LLᵀ.

        C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, (2.25) and (2.26).
        """
        k, L = self.reaching(theta, nu), self.factor(theta, nu)
        both = torch.linalg.solve_triangular(L, torch.stack([k, self.values], -1), upper=False)
        return (both[..., 0] * both[..., 1]).sum(-1), sill_of(theta, nu) - both[..., 0].square().sum(-1)

    def weights(
        self, theta: Float[Tensor, " q"], nu: Sequence[float]
    ) -> tuple[Float[Tensor, "m k"], Float[Tensor, " m"]]:
        """Weights of the neighbours, K⁻¹k, and variances of the process at the places."""
        k = self.reaching(theta, nu)
        weights = torch.cholesky_solve(k.unsqueeze(-1), self.factor(theta, nu)).squeeze(-1)
        return weights, sill_of(theta, nu) - (weights * k).sum(-1)


def sought(xy: Array, pace: float | None) -> Array:
    """Return places as neighbours are sought: times, the last column, in metres at a pace."""
    return xy if pace is None else np.concatenate([xy[:, :-1], pace * xy[:, -1:]], 1)


def searched(xy: Array, times: int = 1) -> list[tuple[cKDTree, Indices, int]]:
    """Trees of all sites and of some, which these are, and how many neighbours each gives: times as many as usual.

    What is drawn of sites that were there before stays the same where others are added behind them.
    """
    key = np.random.default_rng(0).random(len(xy))
    drawn = [(np.flatnonzero(key < max(1 / part, FEWEST / len(xy))), times * n) for part, n in NEIGHBOURS.items()]
    return [(cKDTree(xy[rows]), rows, count) for rows, count in drawn]


def around(searched: list[tuple[cKDTree, Indices, int]], places: Array) -> tuple[Indices, Array, Array]:
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
        share = share_of(distance[:, :count], distance[:, :1], last)
        parts.append((near[:, :count], share, np.broadcast_to(last, share.shape)))
    near, share, reach = (np.concatenate(each, 1) for each in zip(*parts, strict=True))
    same, earlier = near[:, :, None] == near[:, None], np.tri(near.shape[1], k=-1, dtype=bool)
    better = same & ((share[:, None] > share[:, :, None]) | ((share[:, None] == share[:, :, None]) & earlier))
    return near, np.where(better.any(-1), GONE, np.maximum(share, GONE)), reach


def share_of(distance: Array, first: Array, last: Array) -> Array:
    """Return the shares of neighbours at distances from places, of which the nearest is first and none counts at last.

    Args:
        distance: Distances, `m × k`.
        first: Those of the nearest, `m × 1`.
        last: Those at which neighbours are gone, `m × 1`.
    """
    ratio = (distance - first) / np.maximum(last - first, np.finfo(np.float64).tiny)
    return np.square(np.clip((1 - ratio) / (1 - WHOLE), 0.0, 1.0))


def spacing_of(xy: Array) -> float:
    """Return the distance of a typical site from its nearest one at another place."""
    places = np.unique(xy, axis=0)
    if len(places) < 2:
        return 0.0
    return float(np.median(cKDTree(places).query(places, 2)[0][:, 1]))


def drawn_from(xy: Array) -> Drawn:
    """Return trees of all sites and of some, and which these are."""
    key = np.random.default_rng(0).random(len(xy))
    rows = [np.flatnonzero(key < 1 / part) for part in PARTS]
    return [(cKDTree(xy[some]), some) for some in rows if len(some)]


def in_directions(xy: Array, some: tuple[cKDTree, Indices], place: Array, count: int, beyond: float = 0.0) -> Indices:
    """Return so many of the nearest of some sites in each eighth of the circle around a place.

    Args:
        xy: All sites, `n × 2`, metres.
        some: Tree of some of them, and which these are.
        place: The place.
        count: Sites in each direction, or fewer where the nearest are in others.
        beyond: Distance up to which sites are left out, metres.
    """
    tree, rows = some
    inside = int(tree.query_ball_point(place, beyond, return_length=True)) if beyond > 0 else 0
    asked = min(len(rows), inside + DIRECTIONS * SEARCHED * count)
    near = rows[np.atleast_1d(tree.query(place, asked)[1])[inside:]]
    east, north = (xy[near] - place).T
    eighth = np.floor((np.arctan2(north, east) / np.pi + 1) * DIRECTIONS / 2).astype(int) % DIRECTIONS
    return np.concatenate([near[eighth == direction][:count] for direction in range(DIRECTIONS)])


def covariance_of(
    r: Tensor, theta: Float[Tensor, " q"], nu: Sequence[float], lag: Tensor | None = None, lasting: float = 0.5
) -> Tensor:
    """Return the covariance of the sum, at distances in metres and lags in time.

    Args:
        r: Distances.
        theta: Lengthscales, variances, the noise variance, and lengthscales in time if there are times.
        nu: Smoothness of every summand.
        lag: Lags in time; None without times.
        lasting: Smoothness in time.
    """
    count = len(nu)
    parts = [theta[count + j] * matern_of(nu[j], r / theta[j]) for j in range(count)]
    if lag is not None:
        parts = [part * matern_of(lasting, lag / theta[2 * count + 1 + j]) for j, part in enumerate(parts)]
    return sum(parts[1:], parts[0])


def sill_of(theta: Float[Tensor, " q"], nu: Sequence[float]) -> Float[Tensor, ""]:
    """Return the variance of the sum."""
    return theta[len(nu) : 2 * len(nu)].sum()
