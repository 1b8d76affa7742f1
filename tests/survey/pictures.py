"""A made-up survey: a bay with an island in it, and a smooth field."""

from dataclasses import replace

import numpy as np
import shapely
from pyproj import CRS

from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.png import Picture
from bo_scale.survey.routes.route import Route

UTM = CRS.from_epsg(32633)
CORNER = np.array([380_000.0, 5_800_000.0])
OUTLINE = [(0, 0), (9, -1), (12, 4), (11, 10), (7.5, 9.5), (6, 5.5), (4.5, 9), (1, 11), (-1, 5)]
ISLAND = [(7.5, 2), (9.5, 2.2), (9.8, 4.5), (8, 4.2)]


def region(scale: float = 1000.0) -> shapely.Geometry:
    return shapely.MultiPolygon(
        [
            shapely.Polygon(CORNER + scale * np.array(OUTLINE), [CORNER + scale * np.array(ISLAND)]),
            shapely.Point(CORNER + scale * np.array([6.0, 9.8])).buffer(0.5 * scale),
        ]
    )


def field(xy: np.ndarray, scale: float = 1000.0) -> np.ndarray:
    x, y = ((xy - CORNER) / scale).T
    return 20 + 8 * np.sin(x / 2.3) * np.cos(y / 3.1) + 0.8 * y


def raster_of(shape: shapely.Geometry, size: float, crs: CRS = UTM) -> Raster:
    left, bottom, right, top = shapely.bounds(shape)
    columns, rows = int(np.ceil((right - left) / size)), int(np.ceil((top - bottom) / size))
    x, y = left + (np.arange(columns) + 0.5) * size, top - (np.arange(rows) + 0.5) * size
    shapely.prepare(shape)
    return Raster(left, top, size, shapely.intersects_xy(shape, *np.meshgrid(x, y)), crs)


def picture(size: float = 100.0, sites: int = 60, scale: float = 1000.0, **changes: object) -> Picture:
    generator = np.random.default_rng(7)
    shape = region(scale)
    raster = raster_of(shape, size)
    measured = raster.centres[generator.integers(raster.count, size=sites)]
    proposed = CORNER + scale * np.array([[1.0, 3], [3.0, 8.5], [6, 2.5], [9.3, 8.2], [10.8, 4.0], [4.5, 0.5]])
    centres = raster.centres
    mean = field(centres, scale)
    nearest = np.min([np.hypot(*((centres - place) / scale).T) for place in measured[:15]], axis=0, initial=4.0)
    sd = 0.6 + 2.4 * (1 - np.exp(-nearest))
    settings: dict[str, object] = {
        "prediction": Prediction(
            raster, mean, sd, 1 / (1 + np.exp(-1.7 * (mean - 24) / sd)), 24.0, "nitrate (mg/l)",
            ["Values above 24 mg/l exceed the limit."],
        ),
        "region": shape,
        "sites": measured,
        "values": field(measured, scale) + generator.normal(size=sites),
        "proposed": proposed,
        "labels": [f"P{number}" for number in range(12, 18)],
        "crs": raster.crs,
        "title": "Nitrate in the bay, after 3 days",
        "remarks": [f"{sites:,} measured sites; coordinates in {raster.crs.name}."],
    }  # fmt: skip
    return Picture(**(settings | changes))  # type: ignore[arg-type]


def routed(**changes: object) -> Picture:
    """With two routes from a depot beyond the region, one around the island; P15 is on none."""
    shown = picture(**changes)  # type: ignore[arg-type]
    depot = CORNER + 1000 * np.array([-2.5, 0.5])
    at = dict(zip(shown.labels, shown.proposed))
    island = CORNER + 1000 * np.array(ISLAND)
    first = np.stack([depot, at["P17"], island[1], at["P16"], island[2], island[3], at["P14"], depot])
    second = np.concatenate([np.linspace(depot, at["P13"], 50), [at["P12"], depot]])
    routes = [Route(1, 1, ["P17", "P16", "P14"], first, 29.8, 3.5), Route(1, 2, ["P13", "P12"], second, 21.04, None)]
    return replace(shown, routes=routes, depots=depot[None])


def rgb(code: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(code[1:]))
