"""Plan three days around the great lakes of Africa: two teams measure malaria incidence, and the first day ends early.

Data: Malaria Atlas Project, CC BY; a sample ships with the package. Time: 10 seconds on two cores.

A CSV of sites, the area and its lakes (GeoJSON) become a survey. Three days are planned for two teams, each from a
town of its own, by car, straight but around the lakes. On the first day the second team visits half of its sites. Its
values are looked up in the data and added, and the remaining two days are planned again.

    python examples/survey_tour.py --out demo
"""

import argparse
import json
from pathlib import Path

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from scipy.spatial import cKDTree
from survey_malaria import outline

from bo_scale.datasets import load_malaria
from bo_scale.survey import Depot, Plan, Survey, Travel

WEST, SOUTH, EAST, NORTH = 27.0, -9.0, 36.0, 2.0
HELD_OUT = 400
TOWNS = (Depot(30.06, -1.95, "Kigali"), Depot(32.90, -2.60, "Mwanza"))
DAY, SPEED, STAY = 10.0, 60.0, 30.0
"""Hours, kilometres an hour, minutes at a site."""
Array = npt.NDArray[np.float64]


def begin(path: Path, sites: pd.DataFrame, land: shapely.Polygon) -> Survey:
    """A survey from files, as a scientist has them."""
    folder, whole = path.parent, shapely.Polygon(land.exterior) & shapely.box(WEST, SOUTH, EAST, NORTH)
    sites.to_csv(folder / "tour_sites.csv", index=False)
    for name, shape in (("area", whole), ("lakes", whole - land)):
        gpd.GeoSeries([shape], crs="EPSG:4326").to_file(folder / f"tour_{name}.geojson")
    return Survey.create(
        path,
        folder / "tour_sites.csv",
        value="incidence",
        area=folder / "tour_area.geojson",
        forbidden=[folder / "tour_lakes.geojson"],
        overwrite=True,
    )


def measured(plan: Plan, places: pd.DataFrame) -> pd.DataFrame:
    """What the teams bring home of the first day: the second gets half of its sites done."""
    table = plan.table[plan.table.day == 1]
    half = (table.team == 2).sum() // 2
    done = table[(table.team == 1) | (table.stop <= half)].copy()
    nearest = cKDTree(places[["longitude", "latitude"]]).query(done[["longitude", "latitude"]])[1]
    done["incidence"] = places.incidence.to_numpy()[nearest]
    return done


def error(survey: Survey, held_out: pd.DataFrame) -> float:
    """RMSE where it was not measured, cases per person and year."""
    found = survey.predict_at(held_out.longitude, held_out.latitude)["mean"]
    return float(np.sqrt(np.mean((found.to_numpy() - held_out.incidence.to_numpy()) ** 2)))


def told(survey: Survey, plan: Plan, held_out: pd.DataFrame) -> dict[str, object]:
    """A plan in numbers, printed too."""
    for route in plan.routes:
        print(f"  {route.name}: {' – '.join(route.sites)}, {route.cost}")
    names = ("day", "team", "sites", "kilometres", "hours")
    routes = [{name: getattr(route, name) for name in names} for route in plan.routes]
    return {
        "routes": routes,
        "left_out": plan.left_out,
        "sites": len(survey.sites),
        "rmse": error(survey, held_out),
        "sd_before": plan.sd_before,
        "sd_after": plan.sd_after,
    }


def main() -> None:
    """Plan, measure a day, plan again; write maps, routes and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the survey, maps and routes")
    parser.add_argument("--sites", type=int, default=60, help="measured before the first plan")
    parser.add_argument("--days", type=int, default=3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = load_malaria()
    table = np.concatenate([data.X.numpy(), data.Y.numpy()], -1)
    every = pd.DataFrame(table, columns=["longitude", "latitude", "incidence"])
    inside = every.longitude.between(WEST, EAST) & every.latitude.between(SOUTH, NORTH)
    places = every[inside].sample(frac=1, random_state=0, ignore_index=True)
    held_out, rest = places[:HELD_OUT], places[HELD_OUT:]

    land = outline(data.X.numpy())
    survey = begin(arguments.out / "survey_tour.gpkg", rest[: arguments.sites], land)
    travel = Travel(TOWNS, hours=DAY, speed=SPEED, stay=STAY, around_forbidden=True)
    plans, written = [], []
    for number, days in enumerate((arguments.days, arguments.days - 1), start=1):
        plan = survey.plan(days=days, travel=travel, progress=False)
        print(f"Plan {number}, of {days} days, with {len(survey.sites)} sites measured:")
        plans.append(told(survey, plan, held_out))
        plan.write(arguments.out / f"survey_tour_{number}.csv")
        survey.gpx(arguments.out / f"survey_tour_{number}.gpx")
        for kind in ("html", "png"):
            written.append(arguments.out / f"survey_tour_{number}.{kind}")
            survey.map(written[-1], title=f"Malaria, cases per person and year: plan {number}, {days} days, two teams")
        if number == 1:
            done = measured(plan, rest)
            done.to_csv(arguments.out / "survey_tour_done.csv", index=False)
            matched = survey.update(arguments.out / "survey_tour_done.csv").matched
            print(f"Measured on the first day: {', '.join(matched)}.")
    (arguments.out / "survey_tour.json").write_text(json.dumps({"plans": plans}, indent=1) + "\n")
    print(f"Maps: {', '.join(map(str, written))}. Data: {data.source}.")


if __name__ == "__main__":
    main()
