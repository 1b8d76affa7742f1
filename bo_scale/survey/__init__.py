"""Surveys of places: from a table of measurements to a map and a plan of where to sample next.

Names are imported when they are first used: objectives need none of the packages of `bo_scale[survey]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bo_scale.errors import MissingDependencyError

if TYPE_CHECKING:
    from bo_scale.survey.choice.objectives import Objective, register_objective
    from bo_scale.survey.geography.raster import Raster
    from bo_scale.survey.mapping.exceedance import Exceeding
    from bo_scale.survey.mapping.prediction import Prediction
    from bo_scale.survey.places import PredictedTable
    from bo_scale.survey.plan.plan import Plan
    from bo_scale.survey.plan.removal import Removal
    from bo_scale.survey.plan.travel import Depot, Travel
    from bo_scale.survey.report.report import Report
    from bo_scale.survey.routes.route import Route
    from bo_scale.survey.survey import Survey
    from bo_scale.survey.tiles.costs import TileCosts
    from bo_scale.survey.tiles.tiles import Tiles

__all__ = [
    "Depot",
    "Exceeding",
    "Objective",
    "Plan",
    "PredictedTable",
    "Prediction",
    "Raster",
    "Removal",
    "Report",
    "Route",
    "Survey",
    "TileCosts",
    "Tiles",
    "Travel",
    "register_objective",
]
HOMES = {
    "Depot": "plan.travel",
    "Exceeding": "mapping.exceedance",
    "Objective": "choice.objectives",
    "Plan": "plan.plan",
    "PredictedTable": "places",
    "Prediction": "mapping.prediction",
    "Raster": "geography.raster",
    "Removal": "plan.removal",
    "Report": "report.report",
    "Route": "routes.route",
    "Survey": "survey",
    "TileCosts": "tiles.costs",
    "Tiles": "tiles.tiles",
    "Travel": "plan.travel",
    "register_objective": "choice.objectives",
}
"""The module of each name."""
NEEDED = ("geopandas", "gpxpy", "matplotlib", "ortools", "pyogrio", "pyproj", "rasterio", "shapely")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name from its module.

        Raises:
            AttributeError: if there is no such name.
            MissingDependencyError: if a package that surveys need is not installed.
        """
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
        except ImportError as error:
            if error.name is not None and error.name.partition(".")[0] in NEEDED:
                raise MissingDependencyError(
                    f"{error.name} is not installed, and surveys need it: pip install 'bo_scale[survey]'."
                ) from error
            raise
