"""Knots in gaps between sites, where a field is inferred from all around before places there are predicted.

The nearest sites of a place in a gap lie on one side of it. So there are knots in gaps, the denser the closer sites
are. In Vecchia's approximation sites come first, then knots, those deep inside gaps before others, each given sites in
all directions and the knots before it, then places, given the nearest sites and knots (M. Katzfuss, J. Guinness,
W. Gong, D. Zilber, Vecchia approximations of Gaussian-process predictions, JABES 25, 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from torch import Tensor

from bo_scale.gp.linalg.dense import cholesky
from bo_scale.survey.mapping.local import (
    JITTER,
    Array,
    Drawn,
    Indices,
    around,
    covariance_of,
    drawn_from,
    in_directions,
    sill_of,
    spacing_of,
)

MOST = 1500
"""Knots at most: gaps too small for them are left out."""
FINEST = 400
"""Knots along the longer side of the sites' box at most."""
BEFORE, NEAREST = 16, 32
"""Knots that a later one is given, and a place."""
CLOSE = 24
"""Nearest sites that a knot is given."""
DEEP = 200
"""Knots that are given more sites: the first, whose errors all later ones inherit."""
MANY, FEW = (48, 48, 40, 20, 8), (8, 8, 8, 4, 4)
"""Sites that a knot is given in each direction, of all and of those drawn: the first knots, and later ones."""


@dataclass(frozen=True)
class Knots:
    """Places in gaps with what sites tell of the process there.

    Attributes:
        xy: `k × 2`, metres; deep ones first.
        means: Means of the process, and what columns of a trend at the sites have in them, `k × (1 + p)`.
        covariance: Covariance of the process given the sites, `k × k`.
    """

    xy: Array
    means: Array
    covariance: Array

    @classmethod
    def inferred(
        cls, sites: Array, values: Array, errors: Array, theta: Float[Tensor, " q"], nu: Sequence[float]
    ) -> "Knots | None":
        """Infer a process from sites. O(k s³) for k knots and s sites around each.

        Args:
            sites: `n × 2`, metres.
            values: Values less the mean, and columns of a trend, `n × (1 + p)`.
            errors: Known variances of the values.
            theta: Numbers of the process, as covariances take them.
            nu: Smoothness of every summand.

        Returns:
            The knots; None if no gap is wide enough for one.

        Raises:
            NotPositiveDefiniteError: if the covariance of sites has no Cholesky factor at the largest jitter.
        """
        xy = _in_gaps(sites)
        count, width = len(xy), values.shape[1]
        if not count:
            return None
        noise, sill, drawn = float(theta[2 * len(nu)]), float(sill_of(theta, nu)), drawn_from(sites)
        means, covariance = np.zeros((count, width)), np.zeros((count, count))
        for i, knot in enumerate(xy):
            near = _all_around(sites, drawn, knot, MANY if i < DEEP else FEW)
            before = np.argsort(np.square(xy[:i] - knot).sum(1), kind="stable")[:BEFORE]
            every = np.concatenate([sites[near], xy[before], knot[None]])
            K = covariance_of(torch.from_numpy(cdist(every, every)), theta, nu)
            k, K = K[:-1, -1], K[:-1, :-1]
            own_noise = np.append(noise + errors[near], np.full(len(before), JITTER * sill))
            L = cholesky(K + torch.from_numpy(np.diag(own_noise)), "covariance of sites around a knot")
            weights = torch.cholesky_solve(k.unsqueeze(-1), L).squeeze(-1).numpy()
            own = weights[len(near) :]
            means[i] = weights[: len(near)] @ values[near] + own @ means[before]
            covariance[i, :i] = covariance[:i, i] = own @ covariance[before, :i]
            alone = max(sill - weights @ k.numpy(), 0.0)  # only rounding makes it negative
            covariance[i, i] = alone + own @ covariance[np.ix_(before, before)] @ own
        return cls(xy, means, covariance)

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.xy)

    @property
    def searched(self) -> list[tuple[cKDTree, Indices, int]]:
        """A tree of the knots, which these are, and how many neighbours it gives."""
        return [(self._tree, np.arange(len(self.xy)), min(NEAREST, len(self.xy)))]

    def around(self, places: Array) -> tuple[Indices, Array, Array]:
        """Return the nearest knots of places, their shares, and the distances at which these are gone."""
        return around(self.searched, places)

    def variance(self, near: Indices, weights: Float[Tensor, "m k"]) -> Float[Tensor, " m"]:
        """Return the variance that places have from that of knots: wᵀCw."""
        C = torch.from_numpy(self.covariance[near[:, :, None], near[:, None]])
        return torch.einsum("mj,mjk,mk->m", weights, C, weights)


def _in_gaps(sites: Array) -> Array:
    """Return places of lattices in gaps, wide ones first: of a width h where the nearest site is h to 2 h away.

    The finest lattice has the width of two typical spacings of sites, or more where knots would be too many.
    """
    low, high = sites.min(0), sites.max(0)
    side, tree = float((high - low).max()), cKDTree(sites)
    finest = max(2 * spacing_of(sites), side / FINEST)
    while finest < side:
        found, h = [], finest
        while h < side:
            axes = [np.arange(np.floor(a / h), np.ceil(b / h) + 1) * h for a, b in zip(low, high, strict=True)]
            lattice = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
            lattice = lattice[((lattice >= low) & (lattice <= high)).all(1)]
            away = tree.query(lattice)[0] if len(lattice) else np.zeros(0)
            found.append(lattice[(away >= h) & (away < 2 * h)])
            h *= 2
        if sum(map(len, found)) <= MOST:
            return np.concatenate(found[::-1])
        finest *= 2**0.5
    return np.empty((0, 2))


def _all_around(sites: Array, drawn: Drawn, place: Array, counts: Sequence[int]) -> Indices:
    """Return the nearest sites of a place, and the nearest in each direction, of all and of some."""
    tree, rows = drawn[0]
    parts = [np.atleast_1d(rows[tree.query(place, min(CLOSE, len(rows)))[1]])]
    parts += [in_directions(sites, some, place, count) for some, count in zip(drawn, counts)]
    return np.unique(np.concatenate(parts))
