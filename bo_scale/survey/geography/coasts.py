"""Coasts and borders around a map: those that ship, at a scale that suits its size, or the user's own outline."""

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS

from bo_scale.datasets.natural_earth import load_atlas
from bo_scale.errors import SurveyWarning
from bo_scale.survey.geography.coordinates import WGS84, project_shape
from bo_scale.survey.geography.curves import Box, on_map
from bo_scale.survey.geography.shapes import read_polygons

Array = npt.NDArray[np.float64]

SMALLEST = 100_000.0
"""Metres across a map from which the shipped coasts are drawn.

From those of 1:10 million, coasts of 1:50 million are 0.8 km away at the median and 2.9 km at the 95th percentile, and
those of 1:110 million 3.8 km and 16 km.
"""
LARGE = 5_000_000.0
"""Metres across a map from which coasts of 1:110 million are fine enough."""


@dataclass(frozen=True)
class Coasts:
    """Lines to draw under the sites of a map, metres.

    Attributes:
        coasts: Coasts, or the user's outline, `k × 2` each.
        borders: Borders between countries, `k × 2` each.
        note: A sentence on what they are; empty if there are none.
    """

    coasts: list[Array] = field(default_factory=list)
    borders: list[Array] = field(default_factory=list)
    note: str = ""


def coasts_of(bounds: Box, crs: CRS, box: Box, outline: list[Array] | None = None) -> Coasts:
    """Return the coasts and borders within a box.

    Maps that are less than `SMALLEST` across have none that ship: these would be visibly wrong.

    Args:
        bounds: Left, bottom, right and top of the map, metres. Its size decides on the scale.
        crs: Metric coordinate system of the map.
        box: Left, bottom, right and top of what is kept, metres.
        outline: The user's own lines, from `read_outline`; drawn instead of those that ship, at any size.
    """
    if outline is not None:
        return Coasts(_pieces(outline, crs, box))
    size = max(bounds[2] - bounds[0], bounds[3] - bounds[1])
    if size < SMALLEST:
        return Coasts()
    scale = "50m" if size < LARGE else "110m"
    atlas = load_atlas(scale)
    found = Coasts(_pieces(chain.from_iterable(atlas.land), crs, box), _pieces(atlas.borders, crs, box))
    if not found.coasts and not found.borders:
        return found
    note = f"Coasts and borders: {atlas.source}, 1:{scale.removesuffix('m')} million. They are approximate."
    return Coasts(found.coasts, found.borders, note)


def read_outline(path: str | os.PathLike[str], fallback_crs: CRS, box: Box, crs: CRS) -> list[Array]:
    """Read the boundaries of the polygons of a file, to be drawn on a map; degrees, `k × 2` each.

    Args:
        path: GeoJSON, GeoPackage or Shapefile.
        fallback_crs: Coordinate system of a file that says none.
        box: Left, bottom, right and top of the map and what is near it, metres.
        crs: Metric coordinate system of the map.

    Raises:
        SurveyError: for a file that is missing, or has no polygons.

    Warns:
        SurveyWarning: if no line of it lies in the box.
    """
    shapes, own = read_polygons(path, fallback_crs)
    degrees = (project_shape(shape, own, WGS84) for shape in shapes)
    lines = [line for shape in degrees for line in _without_seams(_rings(shape))]
    if not _pieces(lines, crs, box):
        warnings.warn(
            f"outline: no line of {path} lies on the map or near it. Check its CRS, or leave it out (--outline).",
            SurveyWarning,
            2,
        )
    return lines


def _pieces(lines: Iterable[Array], crs: CRS, box: Box) -> list[Array]:
    return list(chain.from_iterable(on_map(list(lines), crs, box)))


def _rings(shape: shapely.Geometry) -> list[Array]:
    return [shapely.get_coordinates(line) for line in shapely.get_parts(shapely.boundary(shapely.get_parts(shape)))]


def _without_seams(rings: Iterable[Array]) -> list[Array]:
    """Return rings in pieces, without the edges along which files cut polygons: the antimeridian and the poles."""
    found = []
    for ring in rings:
        at_edge = (np.abs(np.abs(ring[:, 0]) - 180.0) < 1e-6, np.abs(ring[:, 1]) > 90.0 - 1e-6)
        seam = np.logical_or.reduce([edge[:-1] & edge[1:] for edge in at_edge])
        ends = np.concatenate([[-1], np.flatnonzero(seam), [len(ring) - 1]])
        found += [ring[start + 1 : end + 1] for start, end in pairwise(ends) if end - start > 1]
    return found
