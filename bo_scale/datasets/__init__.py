"""Real data for demonstrations: shipped samples, and loaders of the full sets."""

from bo_scale.datasets.malaria import SpatialData, load_malaria

__all__ = ["SpatialData", "load_malaria"]
