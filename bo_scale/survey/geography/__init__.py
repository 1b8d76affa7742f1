"""Coordinate systems, areas, cells."""
