"""Survey a bay by ship: thousands of readings along its track, some of them poor, and where to stop next.

Data: a simulated bay whose bottom water has less oxygen where the tide does not mix it. Time: about a minute on two
cores.

The ship steams north and south. The faster it goes, the worse its towed sensor reads; the crew knows by how much, in
the column `error`. Two surveys get the same readings, one with that column and one without, and are judged by the
truth over the whole bay. Eight stations are then planned that tell where oxygen is below a threshold.

    python examples/survey_ship.py --out demo
"""

import argparse
import json
from pathlib import Path

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely

from bo_scale.survey import Survey
from bo_scale.survey.mapping.prediction import Prediction

CRS = "EPSG:32631"
ORIGIN = np.array([480_000.0, 5_900_000.0])
"""Of the bay's corner in the south-west, metres."""
SIDE = np.array([60_000.0, 40_000.0])
THRESHOLD = 7.0
"""Milligrams a litre."""
SLOW, FAST, STRETCHES = 3.0, 12.0, 60
"""Knots; parts of the track with a speed of their own."""
SPACING = 2000.0
"""Between stations, and from the track, metres."""
PLACES = {"bay": "RMSE, bay", "slow": "by slow track", "fast": "by fast track"}
Array = npt.NDArray[np.float64]


def bay() -> shapely.Polygon:
    """Open to the west, with a headland in the south and an island: metres."""
    turn = np.linspace(0, 2 * np.pi, 240, endpoint=False)
    radius = 0.46 + 0.03 * np.sin(3 * turn + 1) + 0.02 * np.sin(7 * turn)
    water = shapely.Polygon(0.5 + radius[:, None] * np.stack([np.cos(turn), np.sin(turn)], -1))
    headland = shapely.Polygon([(0.52, 0.0), (0.57, 0.33), (0.62, 0.33), (0.66, 0.0)]).buffer(0.02)
    island = shapely.affinity.scale(shapely.Point(0.36, 0.68).buffer(0.07), 1.0, 0.7)
    return shapely.transform(water - headland - island, lambda xy: ORIGIN + SIDE * xy)


def oxygen(xy: Array) -> Array:
    """Of the bottom water, mg/l: three less beyond a winding front, less inshore, and eddies."""
    x, y = ((xy - ORIGIN) / 1000).T
    front = 29 + 5 * np.sin(y / 6) + 0.2 * y
    eddies = 0.4 * np.sin(x / 4.1 + 1) * np.cos(y / 3.7) + 0.2 * np.sin((x + 2 * y) / 5)
    return np.asarray(8.6 - 2.8 / (1 + np.exp(-(x - front) / 0.8)) - 0.01 * x + eddies)


def track(count: int, rng: np.random.Generator, water: shapely.Polygon) -> pd.DataFrame:
    """Readings along transects 6 km apart, in a hurry every now and then; sd grows as the square of the speed."""
    along = np.linspace(0, SIDE[1], 4000)
    legs = []
    for number, x in enumerate(np.arange(3000.0, SIDE[0], 6000.0)):
        y = along if number % 2 == 0 else along[::-1]
        legs.append(np.stack([x + 400 * np.sin(y / 7000 + number), y], -1) + ORIGIN)
    path = np.concatenate(legs)
    path = path[shapely.contains_xy(water, path)]
    path = path[np.linspace(0, len(path) - 1, min(count, len(path))).astype(int)]
    stretch = np.arange(len(path)) * STRETCHES // len(path)
    speed = rng.choice([SLOW, FAST], STRETCHES)[stretch] + rng.uniform(-1, 1, len(path))
    error = (speed / FAST) ** 2
    reading = oxygen(path) + error * rng.standard_normal(len(path))
    columns = [*path.round(1).T, reading.round(3), speed.round(1), error.round(3)]
    return pd.DataFrame(dict(zip(("easting", "northing", "oxygen", "knots", "error"), columns, strict=True)))


def judged(prediction: Prediction, readings: pd.DataFrame) -> dict[str, float]:
    """Error, and coverage of the 95 % interval, over the bay and within 400 m of slow and of fast readings."""
    at = prediction.raster.centres
    truth = oxygen(at)
    within = np.abs(prediction.mean - truth) <= 1.96 * prediction.sd
    slow = readings.knots < (SLOW + FAST) / 2
    beside = {
        name: shapely.contains_xy(shapely.multipoints(readings[rows][["easting", "northing"]]).buffer(400), at)
        for name, rows in (("slow", slow), ("fast", ~slow))
    }
    found = {}
    for name, rows in {"bay": slice(None), **beside}.items():
        found[f"rmse_{name}"] = float(np.sqrt(np.mean((prediction.mean - truth)[rows] ** 2)))
        found[f"coverage_{name}"] = float(within[rows].mean())
    return found


def main() -> None:
    """Survey with and without the column of errors, print what it bought, plan stations, write maps and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for surveys, maps and numbers")
    parser.add_argument("--readings", type=int, default=4000)
    parser.add_argument("--stations", type=int, default=8)
    parser.add_argument("--cells", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    water = bay()
    readings = track(arguments.readings, np.random.default_rng(arguments.seed), water)
    readings.to_csv(arguments.out / "track.csv", index=False)
    gpd.GeoSeries([water], crs=CRS).to_file(arguments.out / "bay.gpkg")

    results, surveys = {}, {}
    for name, column in (("without", None), ("with", "error")):
        survey = surveys[name] = Survey.create(
            arguments.out / f"survey_ship_{name}.gpkg",
            arguments.out / "track.csv",
            value="oxygen",
            crs=CRS,
            error=column,
            area=arguments.out / "bay.gpkg",
            threshold=THRESHOLD,
            kernel="matern52",  # water mixes: a smooth field
            overwrite=True,
        )
        results[name] = judged(survey.predict(cells=arguments.cells), readings)
    survey = surveys["with"]
    plan = survey.plan(arguments.stations, "misclassification", spacing=SPACING, seed=arguments.seed)
    plan.write(arguments.out / "stations.csv")
    prediction = survey.predict(cells=arguments.cells)
    written = [arguments.out / f"survey_ship.{kind}" for kind in ("html", "png", "tif")]
    for path in written[:2]:
        survey.map(path, prediction, f"Oxygen near the bottom (mg/l), {len(survey.sites):,} readings of a towed sensor")
    survey.export(written[2], prediction)
    (arguments.out / "survey_ship.json").write_text(json.dumps(results, indent=1) + "\n")

    print("\n".join([*survey.notes, *plan.notes]))
    print(plan.table.to_string(index=False))
    print(f"\n{'error column':>12}" + "".join(f"{place:>14}{'coverage':>10}" for place in PLACES.values()))
    for name, found in results.items():
        numbers = (f"{found[f'rmse_{key}']:>14.3f}{found[f'coverage_{key}']:>10.3f}" for key in PLACES)
        print(f"{name:>12}" + "".join(numbers))
    print(f"Maps: {', '.join(map(str, written))}; the stations: {arguments.out / 'stations.csv'}.")


if __name__ == "__main__":
    main()
