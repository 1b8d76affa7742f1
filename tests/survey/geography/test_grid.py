"""Cells of a grid, whole and by parts."""

import numpy as np
from pyproj import CRS

from bo_scale.survey.geography.grid import Grid


def test_parts_are_the_whole() -> None:
    grid = Grid.over((3.0, 10.0, 103.0, 71.0), 7.0, CRS.from_epsg(32631))
    assert (grid.rows, grid.columns) == (9, 15)
    assert (grid.left, grid.top) == (0.5, 72.0)
    parts = grid.parts(4)
    assert len(parts) == 3 * 4
    count = np.zeros((grid.rows, grid.columns), dtype=int)
    for rows, columns in parts:
        count[rows, columns] += 1
        assert np.array_equal(grid.x(columns), grid.x()[columns])
        assert np.array_equal(grid.y(rows), grid.y()[rows])
    assert (count == 1).all()
    assert grid.x()[0] == 4.0
    assert grid.y()[-1] == 72.0 - 8.5 * 7.0
