"""Where to sample next: surveys of places, from a table of measurements to a plan and a map."""

try:
    import geopandas  # noqa: F401
    import gpxpy  # noqa: F401
    import matplotlib  # noqa: F401
    import ortools  # noqa: F401
    import rasterio  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error.name} is missing: surveys need pip install 'bo_scale[survey]'.") from error

from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.mapping.exceedance import Exceeding
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.plan.plan import Plan
from bo_scale.survey.plan.travel import Depot, Travel
from bo_scale.survey.routes.route import Route
from bo_scale.survey.survey import Survey

__all__ = ["Depot", "Exceeding", "Plan", "Prediction", "Raster", "Route", "Survey", "Travel"]
