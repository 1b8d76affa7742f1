"""Barriers: the corners that shortest ways bend at, and the lines of sight past them."""

import numpy as np
import shapely
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.region import polygons

CORNERS = 500
"""Corners beyond which outlines are simplified."""

MOST_CORNERS = 2000

TOUCH = 1e-3
"""Metres that a way may lie inside a barrier, as numbers are rounded: it may touch, and 2 mm are no wall."""

PORTION = 2000
"""Lines that are looked along at once: few enough that the garbage collector does not go through all there is."""


class Barriers:
    """Polygons that ways go around; along their boundaries, and through where two touch in a point, a way may go.

    Outlines with more than `CORNERS` convex corners are simplified, such that no gap between them closes and none
    opens: bridges and walls stay. (An outline grown to contain the true one would close gaps narrower than it grows.)

    Args:
        shape: Metres.

    Raises:
        SurveyError: if they have too many corners even so.

    Attributes:
        deviation: Metres that an outline taken may lie from the true one, to either side; 0 where it is the true one.
        corners: Convex corners.
        between: Lengths of the shortest ways from corner to corner; infinite where there is none.
        before: The last corner before the second on that way; negative where there is none.
    """

    def __init__(self, shape: BaseGeometry) -> None:
        true = polygons(shapely.union_all([polygons(shape)]))
        outline, self.deviation = _simplified(true)
        self._true = _shrunk(true)
        self._taken = _shrunk(outline) if self.deviation else self._true
        self._outline, self._walls = shapely.boundary(outline), shapely.boundary(self._taken)
        shapely.prepare([self._true, self._taken, self._walls])
        self.corners, self._behind, self._ahead = _convex(outline)
        self.between, self.before = self._network()

    def inside(self, xy: Float[np.ndarray, "n 2"]) -> Bool[np.ndarray, " n"]:
        """Return which places lie in the true barriers; those on the boundary do not."""
        return np.asarray(shapely.intersects_xy(self._true, xy[:, 0], xy[:, 1]))

    def outside(self, xy: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """The places, and instead of those in the simplified outline alone what is nearest on it."""
        moved = xy.copy()
        if self.deviation:
            lost = np.asarray(shapely.intersects_xy(self._taken, xy[:, 0], xy[:, 1])) & ~self.inside(xy)
            moved[lost] = shapely.get_coordinates(shapely.shortest_line(self._outline, shapely.points(xy[lost])))[::2]
        return moved

    def blocked(self, starts: Float[np.ndarray, "k 2"], ends: Float[np.ndarray, "k 2"]) -> Bool[np.ndarray, " k"]:
        """Return whether the straight line from each start to its end crosses a barrier; neither may lie in one."""
        found = np.empty(len(starts), dtype=np.bool_)
        for first in range(0, len(starts), PORTION):
            part = slice(first, first + PORTION)
            lines = shapely.linestrings(np.stack([starts[part], ends[part]], 1))
            found[part] = shapely.intersects(self._walls, lines)
        return found

    def sights(self, xy: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n c"]:
        """Distances from places to the corners where a way from there may bend; infinite for all others."""
        found = np.full((len(xy), len(self.corners)), np.inf)
        step = max(1, 1_000_000 // max(1, len(self.corners)))
        for first in range(0, len(xy), step):
            place, corner = np.nonzero(self._grazed(xy[first : first + step]))
            starts, ends = xy[first + place], self.corners[corner]
            free = ~self.blocked(starts, ends)
            found[first + place[free], corner[free]] = np.linalg.norm(ends[free] - starts[free], axis=-1)
        return found

    def _grazed(self, xy: Float[np.ndarray, "n 2"]) -> Bool[np.ndarray, "n c"]:
        """Return whether the line from a place to a corner has the barrier on one side: else no way bends there."""
        x, y = (self.corners[:, k] - xy[:, k, None] for k in (0, 1))
        slack = 1e-6 + 1e-9 * np.hypot(x, y)
        sides = [x * edge[:, 1] - y * edge[:, 0] for edge in (self._behind, self._ahead)]
        left, right = ((sign * sides[0] >= -slack) & (sign * sides[1] >= -slack) for sign in (1.0, -1.0))
        return np.asarray(left | right)

    def _network(self) -> tuple[Float[np.ndarray, "c c"], Int[np.ndarray, "c c"]]:
        count = len(self.corners)
        if count == 0:
            return np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int32)
        first, second = np.nonzero(np.triu((grazed := self._grazed(self.corners)) & grazed.T, 1))
        starts, ends = self.corners[first], self.corners[second]
        free = ~self.blocked(starts, ends)
        lengths = np.linalg.norm(ends[free] - starts[free], axis=-1)
        graph = coo_matrix((lengths, (first[free], second[free])), shape=(count, count)).tocsr()
        between, before = dijkstra(graph, directed=False, return_predecessors=True)
        return between, before


def _shrunk(shape: BaseGeometry) -> BaseGeometry:
    return shapely.buffer(shape, -TOUCH, join_style="mitre")


def _simplified(shape: shapely.MultiPolygon) -> tuple[shapely.MultiPolygon, float]:
    """Outlines with few enough corners, and how far they may lie from the true ones.

    A step takes what the one before has left: the deviation is at most the sum of the tolerances.
    """
    found = polygons(shapely.simplify(shape, TOUCH / 10.0, preserve_topology=True))
    if found.is_empty:
        return found, 0.0
    left, bottom, right, top = found.bounds
    tolerance, deviation = 1e-5 * float(np.hypot(right - left, top - bottom)), 0.0
    while (count := len(_convex(found)[0])) > CORNERS and tolerance < 0.02 * np.hypot(right - left, top - bottom):
        found = polygons(shapely.simplify(found, tolerance, preserve_topology=True))
        deviation += tolerance
        tolerance *= 2.0
    if count > MOST_CORNERS:
        raise SurveyError(
            f"barriers: they have {count:,} corners, even after simplification by {deviation:,.0f} m, and at most "
            f"{MOST_CORNERS:,} are possible. Leave out the smallest barriers, or join some."
        )
    return found, deviation


def _convex(
    shape: shapely.MultiPolygon,
) -> tuple[Float[np.ndarray, "c 2"], Float[np.ndarray, "c 2"], Float[np.ndarray, "c 2"]]:
    """Convex corners, and from each the directions to the vertices before and after it."""
    found = [np.zeros((3, 0, 2))]
    for ring in shapely.get_parts(shapely.boundary(shapely.get_parts(shapely.normalize(shape)))):
        at = shapely.get_coordinates(ring)[:-1]
        back, on = np.roll(at, 1, 0) - at, np.roll(at, -1, 0) - at
        turn = on[:, 0] * back[:, 1] - on[:, 1] * back[:, 0]
        edges = [edge / np.linalg.norm(edge, axis=-1, keepdims=True) for edge in (back, on)]
        found.append(np.stack([at, *edges])[:, turn < 0.0])  # what a ring bounds lies to its right, also around a hole
    corners, behind, ahead = np.concatenate(found, 1)
    return corners, behind, ahead
