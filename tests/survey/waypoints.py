"""Tours of two teams with their waypoints, for files that navigation devices read."""

import numpy as np
from pyproj import CRS

from bo_scale.survey.output.gpx import Waypoint
from bo_scale.survey.routes.route import Route

UTM = CRS.from_epsg(32633)
ANTIMERIDIAN = CRS("+proj=laea +lat_0=-18 +lon_0=180 +datum=WGS84")
DEPOTS = {"utm": (UTM, np.array([380_000.0, 5_800_000.0])), "antimeridian": (ANTIMERIDIAN, np.array([-900.0, 700.0]))}
HARM = "A & B <trk> \"'> ]]> é 日本"


def day(depot: np.ndarray, first: str = "P1") -> tuple[list[Route], list[Waypoint]]:
    """Two teams: one comes back, one does not."""
    sites = depot + np.array([[1000.0, 500], [3000, 2500], [-2000, 4000]])
    line = np.stack([depot, sites[1], depot + np.array([2500, 500]), sites[0], depot])
    one_way = np.stack([depot + np.array([7.0, 0]), sites[2]])
    routes = [Route(2, 1, ["P2", first], line, 1234.24, 6.06), Route(2, 2, ["P3"], one_way, 4.5, None)]
    names = zip([first, "P2", "P3"], sites)
    known = [Waypoint(name, xy, f"predicted {k}.5") for k, (name, xy) in enumerate(names)]
    return routes, [*known, Waypoint("Harbour", depot, kind="depot")]
