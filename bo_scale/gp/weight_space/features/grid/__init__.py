"""Local cubic interpolation on Cartesian grids."""
