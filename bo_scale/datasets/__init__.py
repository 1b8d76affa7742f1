"""Real data for demonstrations: samples shipped with the package, and loaders for the full sets."""

from bo_scale.datasets.malaria import SpatialData, load_malaria

__all__ = ["SpatialData", "load_malaria"]
