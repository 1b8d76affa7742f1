"""Barriers, and laws of the ways around them."""

import numpy as np
import pytest
import shapely
from scipy.sparse.csgraph import floyd_warshall

from bo_scale.survey.routes.distances import Ways

FAR = np.array([380_000.0, 5_800_000.0])
"""Where coordinates have few digits to spare."""


def box(left: float, bottom: float, right: float, top: float, origin: np.ndarray) -> shapely.Polygon:
    return shapely.box(*(origin + np.array([left, bottom])), *(origin + np.array([right, top])))


def matrix(ways: Ways) -> np.ndarray:
    return np.stack([ways.starting(i) for i in range(len(ways.points))])


def length(line: np.ndarray) -> float:
    return float(np.linalg.norm(np.diff(line, axis=0), axis=-1).sum())


def inside(line: np.ndarray, barriers: shapely.Geometry) -> float:
    """Metres of a line in the inside of barriers."""
    parts = shapely.intersection(
        shapely.linestrings(np.stack([line[:-1], line[1:]], 1)), shapely.buffer(barriers, -0.01)
    )
    return float(shapely.length(parts).sum())


def check(ways: Ways, barriers: shapely.Geometry) -> None:
    """Laws of shortest ways, and that they are ways."""
    lengths = matrix(ways)
    np.testing.assert_allclose(lengths, lengths.T, rtol=1e-12)
    np.testing.assert_array_equal(np.diag(lengths), 0.0)
    for i in range(len(lengths)):
        np.testing.assert_allclose(ways.ending(i), lengths[:, i], rtol=1e-12)
        with np.errstate(invalid="ignore"):
            assert (lengths <= lengths[:, i : i + 1] + lengths[i] + 1e-6).all()
        for j in np.nonzero(np.isfinite(lengths[i]))[0]:
            line = ways.path(i, int(j))
            np.testing.assert_array_equal(line[[0, -1]], ways.points[[i, j]])
            assert length(line) == pytest.approx(lengths[i, j], rel=1e-12, abs=1e-9)
            assert inside(line, barriers) == 0.0


def spikes(generator: np.random.Generator, centre: np.ndarray, count: int) -> shapely.Geometry:
    angles = np.sort(generator.uniform(0, 2 * np.pi, count))
    radii = generator.uniform(300.0, 1500.0, count)
    return shapely.Polygon(centre + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)).buffer(0.0)


def by_hand(points: np.ndarray, barriers: shapely.Geometry) -> np.ndarray:
    """All vertices, and every line whose part in the inside has no length."""
    nodes = np.concatenate([points, np.unique(shapely.get_coordinates(barriers), axis=0)])
    first, second = np.triu_indices(len(nodes), 1)
    lines = shapely.linestrings(np.stack([nodes[first], nodes[second]], 1))
    free = shapely.length(shapely.intersection(lines, shapely.buffer(barriers, -1e-3, join_style="mitre"))) == 0.0
    lengths = np.full((len(nodes), len(nodes)), np.inf)
    lengths[first[free], second[free]] = shapely.length(lines[free])
    return floyd_warshall(lengths, directed=False)[: len(points), : len(points)]
