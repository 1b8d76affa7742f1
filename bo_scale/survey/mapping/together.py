"""Places close together, which share most of their neighbours: factors of what they share are computed once.

Neighbours C that count wholly at all the places are eliminated first. Of K = [K_CC, K_CR; K_RC, K_RR] there is left the
Schur complement S = K_RR − K_RC K_CC⁻¹ K_CR, and each place solves with its own part of S + D, where D is what makes
its neighbours fade. Up to rounding it is what each place would have alone.
"""

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from torch import Tensor

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.survey.mapping.local import GONE, Array, Indices, share_of

MOST = 256
"""Neighbours of all places together, at most; where they are more, there is little to share."""
FEWEST = 128
"""Places that are predicted together, at least."""


def around_all(
    searched: list[tuple[cKDTree, Indices, int]], places: Float[np.ndarray, "m d"]
) -> tuple[Indices, Array, Array] | None:
    """Return rows of all neighbours of places, and shares and distances as `around` does, `m × u`; 0 where it is none.

    Args:
        searched: Trees of sites, which these are, and how many neighbours each gives.
        places: The places.

    Returns:
        None if the neighbours are more than `MOST`.
    """
    middle = places.mean(0)
    apart = 2 * float(np.sqrt(np.square(places - middle).sum(1).max()))
    found = []
    for tree, rows, count in searched:
        farthest = np.atleast_1d(tree.query(middle, min(count + 1, len(rows)))[0])[-1]
        near = np.asarray(tree.query_ball_point(middle, (1 + 1e-9) * (farthest + apart)), dtype=np.intp)
        if len(near) > MOST:
            return None
        found.append((np.asarray(tree.data)[near], rows[near], min(count, len(rows)), len(rows) > count))
    every = np.unique(np.concatenate([rows for _, rows, _, _ in found]))
    if len(every) > MOST:
        return None
    share, reach = np.zeros((len(places), len(every))), np.zeros((len(places), len(every)))
    for xy, rows, count, has_more in found:
        own, last = _shares(cdist(places, xy), count, has_more)
        at = np.searchsorted(every, rows)
        better = own > share[:, at]
        share[:, at] = np.where(better, own, share[:, at])
        reach[:, at] = np.where(better, last, reach[:, at])
    used = share.max(0) > GONE
    return every[used], share[:, used], reach[:, used]


def _shares(distance: Array, count: int, has_more: bool) -> tuple[Array, Array]:
    """Return shares of sites at distances from places, `m × n`, and the distances at which they are gone, `m × 1`."""
    ordered = np.partition(distance, count if has_more else count - 1, 1)
    last = ordered[:, count : count + 1] if has_more else 1e6 * ordered[:, count - 1 : count]
    return share_of(distance, distance.min(1, keepdims=True), last), last


def weights_of(
    K: Float[np.ndarray, "u u"], k: Float[np.ndarray, "m u"], share: Array, fade: Array
) -> Float[np.ndarray, "m u"]:
    """Return the weights (K + D)⁻¹ k of each place, 0 where a neighbour is gone.

    Args:
        K: Covariance of the measurements at the neighbours.
        k: Covariances of the places with these.
        share: Shares of the neighbours at the places.
        fade: Variances that make them fade, D of each place.

    Raises:
        NotPositiveDefiniteError: if a covariance has no Cholesky factor.
    """
    core = (share == 1).all(0)
    own = np.flatnonzero(~core)
    L = _factor(torch.from_numpy(K[np.ix_(core, core)]))
    W, q = (_solved(L, each) for each in (K[np.ix_(core, own)], k[:, core].T))
    S, left = K[np.ix_(own, own)] - W.T @ W, k[:, own] - q.T @ W
    found = np.zeros_like(k)
    of_own = np.zeros_like(left)
    counts = (share[:, own] > GONE).sum(1)
    active = int(counts.max(initial=0))
    if active:
        order = np.argsort(share[:, own] <= GONE, axis=1, kind="stable")[:, :active]
        A = torch.from_numpy(S[order[:, :, None], order[:, None]])
        A.diagonal(dim1=1, dim2=2).add_(torch.from_numpy(np.take_along_axis(fade[:, own], order, 1)))
        right = torch.from_numpy(np.take_along_axis(left, order, 1)).unsqueeze(-1)
        np.put_along_axis(of_own, order, torch.cholesky_solve(right, _factor(A)).squeeze(-1).numpy(), 1)
    found[:, own] = of_own
    found[:, core] = _solved(L.mT, q - W @ of_own.T, upper=True).T
    return found


def _factor(K: Float[Tensor, "*b u u"]) -> Float[Tensor, "*b u u"]:
    L, failed = torch.linalg.cholesky_ex(K)
    if failed.any():
        raise NotPositiveDefiniteError("the covariance of the nearest sites has no Cholesky factor")
    return L


def _solved(L: Float[Tensor, "u u"], right: Float[np.ndarray, "u m"], upper: bool = False) -> Float[np.ndarray, "u m"]:
    return torch.linalg.solve_triangular(L, torch.from_numpy(np.ascontiguousarray(right)), upper=upper).numpy()
