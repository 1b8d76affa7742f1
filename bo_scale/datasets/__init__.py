"""Real data for demonstrations: samples shipped with the package, and loaders for the full sets."""

from bo_scale.datasets.malaria import SpatialData, load_malaria
from bo_scale.datasets.protein import ProteinData, load_protein
from bo_scale.datasets.wind import TrackData, load_wind

__all__ = ["ProteinData", "SpatialData", "TrackData", "load_malaria", "load_protein", "load_wind"]
