"""Coasts and borders of the world, 1:50 million and 1:110 million (Natural Earth, public domain)."""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bo_scale.datasets.arrays import shipped

_FILE = "natural_earth.npz"

Array = npt.NDArray[np.float64]
SCALES = ("50m", "110m")
"""1:50 million and 1:110 million."""


@dataclass(frozen=True)
class Atlas:
    """Land and borders at one scale. They are not cut at the antimeridian: longitudes jump from 180 to −180 there.

    Attributes:
        land: Polygons, each a list of closed rings `k × 2`, degrees of longitude and latitude: its outline, then its
            holes. The outline of Antarctica goes around the pole. Lakes are land, but for the Caspian Sea.
        borders: Lines `k × 2` between countries, degrees.
        source: Source to credit.
    """

    land: list[list[Array]]
    borders: list[Array]
    source: str = "Natural Earth"


@lru_cache(maxsize=len(SCALES))
def load_atlas(scale: str) -> Atlas:
    """Load coasts and borders; later calls return the same object, so do not change it.

    Args:
        scale: "50m" or "110m".
    """
    with shipped(_FILE) as npz:
        found = {name: npz[f"{name}_{scale}"] for name in ("quantum", "land", "rings", "parts", "borders", "lines")}
    size, corner = found["quantum"]
    land, borders = (corner + size * found[name].cumsum(0, dtype=np.int64) for name in ("land", "borders"))
    rings = np.split(land, found["rings"].cumsum()[:-1])
    ends = found["parts"].cumsum()
    polygons = [rings[end - count : end] for end, count in zip(ends, found["parts"])]
    return Atlas(polygons, np.split(borders, found["lines"].cumsum()[:-1]))


def packed(topology: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one scale of the shipped file, from `countries-….json` of the npm package `world-atlas`.

    Borders are the arcs that two countries share. Coordinates are steps of a fixed size from one vertex to the next,
    as in the source.

    Args:
        topology: TopoJSON with the collections `countries` and `land`.
    """
    arcs = [np.asarray(arc, dtype=np.int64).cumsum(0) for arc in topology["arcs"]]
    polygons = [part for shape in topology["objects"]["land"]["geometries"] for part in _parts(shape)]
    rings = [_ring(ring, arcs) for part in polygons for ring in part]
    owners = defaultdict(set)
    for number, country in enumerate(topology["objects"]["countries"]["geometries"]):
        for part in _parts(country):
            for arc in np.concatenate(part):
                owners[int(max(arc, ~arc))].add(number)
    borders = [arcs[arc] for arc, countries in sorted(owners.items()) if len(countries) > 1]
    transform = topology["transform"]
    return {
        "quantum": np.array([transform["scale"], transform["translate"]], dtype=np.float64),
        "land": _steps(rings),
        "rings": np.array([len(ring) for ring in rings], dtype=np.int32),
        "parts": np.array([len(part) for part in polygons], dtype=np.int32),
        "borders": _steps(borders),
        "lines": np.array([len(line) for line in borders], dtype=np.int32),
    }


def _parts(shape: dict[str, Any]) -> list[list[list[int]]]:
    """Return the polygons of a shape, as rings of numbers of arcs."""
    return shape["arcs"] if shape["type"] == "MultiPolygon" else [shape["arcs"]]


def _ring(numbers: list[int], arcs: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Join arcs to a closed ring; those with negative numbers are reversed."""
    joined = [arcs[number] if number >= 0 else arcs[~number][::-1] for number in numbers]
    return np.concatenate([joined[0][:1], *(arc[1:] for arc in joined)])


def _steps(lines: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int32]:
    return np.diff(np.concatenate(lines), axis=0, prepend=0).astype(np.int32)
