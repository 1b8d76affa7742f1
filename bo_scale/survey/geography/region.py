"""The area where sampling is allowed, and the metric coordinate system in which distances are taken."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import shapely
import torch
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.cell_counts import MANY_CELLS, require_cell_count, require_cell_size
from bo_scale.survey.geography.coordinates import (
    WGS84,
    from_metric,
    is_geographic,
    is_metric,
    metric_crs,
    project_shape,
    to_metric,
)
from bo_scale.survey.geography.grid import Grid
from bo_scale.survey.geography.raster import Raster

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

__all__ = [
    "WGS84",
    "Region",
    "buffered_hull",
    "from_metric",
    "is_geographic",
    "is_metric",
    "make_region",
    "metric_crs",
    "polygons",
    "project_shape",
    "to_metric",
]

CELLS = 10_000
"""Cells of a region by default."""
MOST_CELLS = 200_000_000
MOST_BOXES = 8192
LONE_SITE = 100.0
"""Metres around a site that is the only one."""
TILE = 128


@dataclass(frozen=True)
class Region:
    """The area where sampling is allowed, in a metric coordinate system.

    Attributes:
        shape: Metres; holes and forbidden parts are cut out.
        crs: Metric.
    """

    shape: shapely.MultiPolygon
    crs: CRS

    @property
    def area(self) -> float:
        """Square metres."""
        return float(self.shape.area)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, bottom, right, top, metres."""
        left, bottom, right, top = self.shape.bounds
        return left, bottom, right, top

    def contains(self, xy: Array) -> Mask:
        """Return which of n×2 points lie in the region; those on its boundary do."""
        shapely.prepare(self.shape)
        inside: Mask = shapely.intersects_xy(self.shape, xy[:, 0], xy[:, 1])
        return inside

    def points(self, count: int, seed: int) -> Array:
        """Quasi-random points of the region, `count × 2`: a scrambled Sobol sequence, less those that fall outside.

        The first points of a longer sequence are those of a shorter one.

        Raises:
            SurveyError: if the region is so thin that hardly a point falls into it.
        """
        boxes = _cover(self.shape)
        engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed)
        draw = 1 << min(max((4 * count).bit_length(), 12), 17)
        found: list[Array] = [np.zeros((0, 2))]
        for _ in range(1 + 200 * math.ceil(count / draw)):
            if sum(map(len, found)) >= count:
                return np.concatenate(found)[:count]
            xy = _into(boxes, engine.draw(draw, dtype=torch.float64).numpy())
            found.append(xy[self.contains(xy)])
        raise SurveyError(f"the area is too thin to place {count} points in it: widen it.")

    def cells(self, count: int | None = None, size: float | None = None) -> Raster:
        """Square cells whose centres lie in the region.

        Args:
            count: About how many; fewer where the parts of the region lie far apart.
            size: Or their width, metres.

        Raises:
            SurveyError: if no cell has its centre in the region, or there would be too many.
        """
        require_cell_count(count)
        if size is not None:
            if count is not None:
                raise SurveyError("cells, size: give either a number of cells (--cells) or their width (--size).")
            require_cell_size(size, self.area)
            raster = self._raster(size)
            if raster.count == 0:
                raise SurveyError(f"no cell of {size:g} m has its centre in the area: choose smaller cells.")
            return raster
        left, bottom, right, top = self.bounds
        finest = math.sqrt((right - left) * (top - bottom) / MANY_CELLS)
        width = max(math.sqrt(self.area / (count or CELLS)), finest)
        while (raster := self._raster(width)).count == 0:
            width /= 2.0
        return raster

    def _raster(self, size: float) -> Raster:
        grid = Grid.over(self.bounds, size, self.crs)
        if grid.rows * grid.columns > MOST_CELLS:
            raise SurveyError(
                f"cells of {size:g} m make a raster of {grid.rows} × {grid.columns}, which is too large: choose larger "
                "cells, or split the area."
            )
        return Raster(grid.left, grid.top, size, self.covers(grid.x(), grid.y()), self.crs)

    def covers(self, x: Array, y: Array) -> Mask:
        """Return which places of a lattice lie in the region, rows × columns, by tiles: most lie wholly in or out.

        Args:
            x: Of the columns, from west to east.
            y: Of the rows, from north to south.
        """
        rows, columns = len(y), len(x)
        inside = np.zeros((rows, columns), dtype=np.bool_)
        i, j = (part.ravel() for part in np.mgrid[0:rows:TILE, 0:columns:TILE])
        last_i, last_j = np.minimum(i + TILE, rows) - 1, np.minimum(j + TILE, columns) - 1
        tiles = shapely.box(x[j], y[last_i], x[last_j], y[i])
        shapely.prepare(self.shape)
        whole = shapely.covers(self.shape, tiles)
        for k in np.nonzero(shapely.intersects(self.shape, tiles))[0]:
            part = slice(i[k], last_i[k] + 1), slice(j[k], last_j[k] + 1)
            inside[part] = whole[k] or self.contains(_grid(x[part[1]], y[part[0]])).reshape(len(y[part[0]]), -1)
        return inside


def _grid(x: Array, y: Array) -> Array:
    return np.stack([np.tile(x, len(y)), np.repeat(y, len(x))], -1)


def _cover(shape: shapely.MultiPolygon) -> Array:
    """Boxes of one size, n×4, that cover a shape at no more than twice its area, or as well as MOST_BOXES can."""
    boxes = np.asarray([shape.bounds], dtype=np.float64)
    shapely.prepare(shape)
    while len(boxes) < MOST_BOXES and float(_extent(boxes).prod(-1).sum()) > 2.0 * shape.area:
        middle = (boxes[:, :2] + boxes[:, 2:]) / 2.0
        xs, ys = (np.stack([boxes[:, k], middle[:, k], boxes[:, k + 2]], -1) for k in (0, 1))
        quarters = [np.stack([xs[:, a], ys[:, b], xs[:, a + 1], ys[:, b + 1]], -1) for a in (0, 1) for b in (0, 1)]
        boxes = np.stack(quarters, 1).reshape(-1, 4)
        boxes = boxes[shapely.intersects(shape, shapely.box(*boxes.T))]
    return boxes


def _extent(boxes: Array) -> Array:
    return boxes[:, 2:] - boxes[:, :2]


def _into(boxes: Array, unit: Array) -> Array:
    """Points of the unit square onto boxes of one size: the first coordinate says which, its rest where."""
    scaled = unit[:, 0] * len(boxes)
    which = np.minimum(scaled.astype(np.int64), len(boxes) - 1)
    within = np.stack([np.clip(scaled - which, 0.0, 1.0), unit[:, 1]], -1)
    return boxes[which, :2] + within * _extent(boxes)[which]


def buffered_hull(xy: Array) -> shapely.MultiPolygon:
    """The convex hull of sites, n×2 metres, with 5 % of its diagonal around it; 100 m around a site that is alone.

    Raises:
        SurveyError: without sites.
    """
    if len(xy) == 0:
        raise SurveyError("there are no sites to draw an area around: pass an area (--area).")
    diagonal = float(np.linalg.norm(xy.max(0) - xy.min(0)))
    margin = 0.05 * diagonal if diagonal > 1e-3 else LONE_SITE
    return polygons(shapely.multipoints(xy).convex_hull.buffer(margin))


def polygons(shape: BaseGeometry) -> shapely.MultiPolygon:
    """Return the valid parts of a shape that have an area: one multipolygon, empty if none has."""
    whole = shapely.make_valid(shapely.force_2d(shape), method="structure", keep_collapsed=False)
    parts = shapely.get_parts(whole, return_index=False)
    while np.any(shapely.get_type_id(parts) > 3):
        parts = shapely.get_parts(parts)
    return shapely.MultiPolygon([part for part in parts if part.geom_type == "Polygon" and part.area > 0.0])


def make_region(shape: BaseGeometry, forbidden: list[BaseGeometry], crs: CRS) -> Region:
    """A region: a shape less what is forbidden; overlapping parts become one.

    Args:
        shape: Metres.
        forbidden: Metres.
        crs: Metric, of all these.

    Raises:
        SurveyError: if nothing is left, or the system is not metric.
    """
    if is_geographic(crs):
        raise SurveyError(f"a region needs a metric coordinate system, but {crs.name} is in degrees.")
    allowed = shapely.union_all([polygons(shape)])
    if allowed.is_empty:
        raise SurveyError("the area is empty: it needs a polygon with an area above zero.")
    for cut in forbidden:
        allowed = shapely.difference(allowed, polygons(cut))
    left = polygons(allowed)
    if left.is_empty:
        raise SurveyError("the forbidden parts cover the whole area: nothing is left to sample.")
    return Region(left, crs)
