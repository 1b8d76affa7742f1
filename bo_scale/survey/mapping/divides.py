"""Divides, which correlation goes around: places in more dimensions, where straight lines are as long as the ways.

Between two places let d be the straight distance and g the length of the shortest way around all divides. A place s
gets further coordinates r(s), in metres, such that

    e² = d² + |r(s) − r(t)|²

is close to g²: longer than d where a divide parts two places, and hardly where they see each other. Kernels that fall
with e are positive definite, since e is a straight distance in space; those that fall with g need not be. r is by least
squares over pairs of nodes and landmarks, of (e − g)/g, from a start by classical scaling of g² − d².

References:
    A. Løland, G. Høst. Spatial covariance modelling in a complex coastal domain by multidimensional scaling.
    Environmetrics 14, 2003: kernels of ways around land, by scaling the ways.
    J. W. Sammon. A nonlinear mapping for data structure analysis. IEEE Transactions on Computers C-18, 1969.
    V. de Silva, J. B. Tenenbaum. Sparse multidimensional scaling using landmark points. Stanford, 2004.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import shapely
from scipy.optimize import minimize

from bo_scale.survey.mapping.kernels import Box
from bo_scale.survey.routes.barriers import Barriers
from bo_scale.survey.routes.distances import Around

Array = npt.NDArray[np.float64]
NODES = 1600
"""Nodes of a grid over the map, from which coordinates of places are interpolated."""
LANDMARKS = 100
FURTHER = 2
"""Further coordinates."""
STEPS = 60
"""Steps of least squares."""
SHORT = 0.02
"""Length, in diagonals of the map, below which errors count as for that length."""
FLAT = 1e-12
"""Square of a distance that is none, in those of the diagonal."""
APART = 2.0
"""Distance that is added at a right angle between places that no way joins, in diagonals of the map."""
SEEN = 4
"""Nodes a dimension around a place from which it is interpolated where a divide is near."""


class Divided:
    """Places of a map with divides in more dimensions.

    Args:
        shape: Divides, metres: polygons.
        box: Bounds of the map, metres.

    Raises:
        SurveyError: if the divides have too many corners.

    Attributes:
        width: Number of the further coordinates.
    """

    def __init__(self, shape: shapely.MultiPolygon, box: Box) -> None:
        west, south, east, north = box
        self._corner, extent = np.array([west, south]), np.maximum([east - west, north - south], 1e-9)
        self._step = float(np.sqrt(extent.prod() / NODES)) or float(extent.max()) / NODES
        self._counts = np.maximum(2, np.ceil(extent / self._step).astype(int) + 1)
        steps = [np.arange(count) * self._step for count in self._counts]
        nodes = self._corner + np.stack(np.meshgrid(*steps, indexing="ij"), -1).reshape(-1, 2)
        self._barriers = Barriers(shape)
        ways = Around(nodes, shape)
        self._free = ~ways.inside
        self._nodes, self._coordinates = nodes, np.zeros((len(nodes), 0))
        if self._free.any():
            self._coordinates = self._scaled(ways, float(np.hypot(*extent)))
        near = shapely.distance(shape, shapely.points(nodes)) < 2 * SEEN * self._step
        self._near = near.reshape(self._counts)
        self.width = self._coordinates.shape[1]

    def _scaled(self, ways: Around, diagonal: float) -> Array:
        """Return the further coordinates of nodes.

        The start is a share of ½ Λ^(−1/2) Vᵀ (mean of δ² of landmarks − δ²), with δ² = g² − d² and the eigenpairs of
        centred −½ δ² of landmarks: as δ may be no distance in space, the whole of it parts places that see each other.
        """
        rows = _landmarks(self._nodes, np.flatnonzero(self._free))
        straight = np.linalg.norm(self._nodes[rows, None] - self._nodes[None], axis=-1) / diagonal
        around = np.stack([ways.starting(int(row)) for row in rows]) / diagonal
        around = np.where(np.isfinite(around), np.maximum(around, straight), np.hypot(straight, APART))
        squares = np.where(self._free, np.square(around) - np.square(straight), 0.0)
        if squares.max() < FLAT:
            return np.zeros((len(self._nodes), 0))
        own = squares[:, rows]
        centred = -0.5 * (own - own.mean(0) - own.mean(1)[:, None] + own.mean())
        values, vectors = np.linalg.eigh((centred + centred.T) / 2)
        values, vectors = np.maximum(values[-FURTHER:], FLAT), vectors[:, -FURTHER:]
        start = 0.5 * (own.mean(0)[:, None] - squares).T @ vectors / np.sqrt(values)
        weights = np.where(self._free & (straight > 0), 1 / np.square(np.maximum(around, SHORT)), 0.0)

        def stress(flat: Array) -> tuple[float, Array]:
            r = flat.reshape(start.shape)
            apart = r[rows][:, None] - r[None]
            e = np.sqrt(np.square(straight) + np.square(apart).sum(-1) + FLAT)
            by_pair = (2 * weights * (e - around) / e)[..., None] * apart
            gradient = -by_pair.sum(0)
            np.add.at(gradient, rows, by_pair.sum(1))
            return float((weights * np.square(e - around)).sum()), gradient.ravel()

        start = min((start, start / 2), key=lambda one: stress(one.ravel())[0])
        found = minimize(stress, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
        return np.asarray(found.x).reshape(start.shape) * diagonal

    def coordinates(self, xy: Array) -> Array:
        """Return the further coordinates of places, `n × width`, metres.

        They are bilinear between nodes. Near a divide, only nodes that are seen from the place count, by the inverse of
        their squared distances; a place in a divide has those of the nearest nodes outside.
        """
        at = (xy - self._corner) / self._step
        low = np.clip(np.floor(at).astype(int), 0, self._counts - 2)
        part = np.clip(at - low, 0.0, 1.0)
        found = np.zeros((len(xy), self.width))
        for i in (0, 1):
            for j in (0, 1):
                weight = np.abs(1 - i - part[:, 0]) * np.abs(1 - j - part[:, 1])
                found += weight[:, None] * self._coordinates[self._row(low[:, 0] + i, low[:, 1] + j)]
        near = self._near[low[:, 0], low[:, 1]] & (self.width > 0)
        if near.any():
            found[near] = self._seen(xy[near], low[near])
        return found

    def _row(self, i: npt.NDArray[np.intp], j: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the rows of nodes."""
        return np.clip(i, 0, self._counts[0] - 1) * self._counts[1] + np.clip(j, 0, self._counts[1] - 1)

    def _seen(self, xy: Array, low: npt.NDArray[np.intp]) -> Array:
        """Return the coordinates of `m` places near divides, `m × width`, from the nodes that are seen from them.

        A place that sees none has those of the nearest node.
        """
        offsets = np.arange(SEEN) - SEEN // 2 + 1
        rows = self._row(*(low[:, k, None] + offset.ravel() for k, offset in enumerate(np.meshgrid(offsets, offsets))))
        inside = self._barriers.inside(xy)
        places = self._barriers.outside(xy)
        starts, ends = np.repeat(places, rows.shape[1], 0), self._nodes[rows.ravel()]
        sees = self._free[rows]
        asked = (sees & ~inside[:, None]).ravel()
        blocked = np.zeros(len(starts), dtype=bool)
        blocked[asked] = self._barriers.blocked(starts[asked], ends[asked])
        sees &= ~blocked.reshape(rows.shape)
        reach = (SEEN // 2 * self._step) ** 2  # weights below are above zero also at a node and at the farthest one
        squares = np.square(self._nodes[rows] - xy[:, None]).sum(-1)
        weights = sees * np.square(np.maximum(1 - squares / (2 * reach), 1e-6)) / (squares + 1e-12 * reach)
        lost = ~sees.any(1)
        found = (weights[..., None] * self._coordinates[rows]).sum(1) / np.maximum(weights.sum(1), 1e-300)[:, None]
        if lost.any():
            free = np.flatnonzero(self._free)
            nearest = np.square(self._nodes[free][None] - xy[lost][:, None]).sum(-1).argmin(1)
            found[lost] = self._coordinates[free[nearest]]
        return np.asarray(found)


def _landmarks(nodes: Array, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return nodes that are spread evenly: each is the farthest from those before it."""
    chosen = [int(rows[0])]
    distance = np.full(len(rows), np.inf)
    for _ in range(min(LANDMARKS, len(rows)) - 1):
        distance = np.minimum(distance, np.square(nodes[rows] - nodes[chosen[-1]]).sum(-1))
        chosen.append(int(rows[distance.argmax()]))
    return np.array(chosen)


@lru_cache(maxsize=8)
def divided(text: str, box: Box) -> Divided:
    """Return the places of a map with divides.

    Args:
        text: Divides as well-known text, metres.
        box: Bounds of the map, metres.
    """
    shape = shapely.from_wkt(text)
    return Divided(shapely.MultiPolygon([part for part in shapely.get_parts(shape) if not part.is_empty]), box)
