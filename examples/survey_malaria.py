"""Survey malaria incidence in Central Africa: some first sites, then batches where the map is least certain.

Data: Malaria Atlas Project, CC BY; a sample ships with the package. Time: about a minute on two cores.

A CSV of 200 sites, the outline of the land without its great lakes (GeoJSON) and a CSV of places that can be visited
become a survey. Each round plans a batch, looks its values up in the data and adds them. A second survey gets as many
random sites. Both are judged on 2,000 places that neither can visit. Incidence is modelled untransformed: over three
splits, with 200 and 400 sites, a logarithm has 3 to 6 % more error (CRPS) and wider intervals, a logit is no better
than no transform, and neither can represent sites without any malaria.

    python examples/survey_malaria.py --out demo
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from scipy.spatial import cKDTree
from tqdm import tqdm

from bo_scale.datasets import load_malaria
from bo_scale.survey import Survey
from bo_scale.survey.mapping.prediction import Prediction

HELD_OUT = 2000
OUTLINE, LAKE, PIXEL = 0.05, 1.0, 1 / 24
"""How concave the outline of the land is, of 0 to 1; smallest hole left in it, square degrees; degrees."""
CELL = 6000.0
"""Width of the cells predicted, metres."""
THRESHOLD = 0.4
"""Cases per person and year."""
Array = npt.NDArray[np.float64]


@dataclass
class Run:
    """What one way of choosing sites achieved.

    Attributes:
        strategy: "planned" or "random".
        counts: Sites at each evaluation.
        rmse: On the held-out places, cases per person and year.
        coverage: Share of held-out places within the 95 % interval of the map.
        seconds: Of each plan, fits included.
    """

    strategy: str
    counts: list[int] = field(default_factory=list)
    rmse: list[float] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def outline(places: Array) -> shapely.Polygon:
    """Of the land, without the great lakes. Smaller gaps are between places of a sample, and no water."""
    hull = shapely.concave_hull(shapely.multipoints(places), OUTLINE, allow_holes=True)
    lakes = [ring for ring in hull.interiors if shapely.Polygon(ring).area > LAKE]
    return shapely.Polygon(hull.exterior, lakes).buffer(PIXEL / 2, join_style="mitre")


def begin(path: Path, sites: pd.DataFrame, visitable: pd.DataFrame, land: shapely.Polygon) -> Survey:
    """A survey from files, as a scientist has them."""
    folder = path.parent
    sites.to_csv(folder / "sites.csv", index=False)
    visitable[["longitude", "latitude"]].to_csv(folder / "visitable.csv", index=False)
    gpd.GeoSeries([land], crs="EPSG:4326").to_file(folder / "area.geojson")
    return Survey.create(
        path,
        folder / "sites.csv",
        value="incidence",
        area=folder / "area.geojson",
        candidates=folder / "visitable.csv",
        threshold=THRESHOLD,
        overwrite=True,
    )


def measure(table: Path, places: pd.DataFrame) -> None:
    """Fill the table of a plan in."""
    rows = pd.read_csv(table)
    distance, nearest = cKDTree(places[["longitude", "latitude"]]).query(rows[["longitude", "latitude"]])
    assert (distance < 1e-6).all(), "only places of the data are candidates"
    rows["incidence"] = places.incidence.to_numpy()[nearest]
    rows.to_csv(table, index=False)


def evaluate(run: Run, survey: Survey, held_out: pd.DataFrame, cell: float) -> Prediction:
    """The map of a survey, and its error and coverage where it was not measured."""
    prediction = survey.predict(size=cell, progress=False)
    places = gpd.GeoSeries.from_xy(held_out.longitude, held_out.latitude, crs="EPSG:4326").to_crs(survey.region.crs)
    near = cKDTree(prediction.raster.centres).query(shapely.get_coordinates(places.to_numpy()))[1]
    error = np.abs(prediction.mean[near] - held_out.incidence.to_numpy())
    run.counts.append(len(survey.sites))
    run.rmse.append(float(np.sqrt(np.mean(error**2))))
    run.coverage.append(float(np.mean(error <= 1.96 * prediction.sd[near])))
    return prediction


def main() -> None:
    """Survey, print a table, write maps and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for surveys, maps and numbers")
    parser.add_argument("--full", type=Path, default=None, help="npz of the full set instead of the shipped sample")
    parser.add_argument("--sites", type=int, default=200, help="measured before the first plan")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--cell", type=float, default=CELL, help="width of the cells predicted, metres")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = load_malaria(arguments.full)
    table = np.concatenate([data.X.numpy(), data.Y.numpy()], -1)
    places = pd.DataFrame(table, columns=["longitude", "latitude", "incidence"])
    places = places.sample(frac=1, random_state=arguments.seed, ignore_index=True)
    held_out, rest = places[:HELD_OUT], places[HELD_OUT:]
    first, visitable = rest[: arguments.sites], rest[arguments.sites :]
    land = outline(places[["longitude", "latitude"]].to_numpy()[:12_000])

    planned = begin(arguments.out / "survey_malaria.gpkg", first, visitable, land)
    print("\n".join(planned.notes))
    beside = begin(arguments.out / "survey_random.gpkg", first, visitable, land)
    runs = [Run("planned"), Run("random")]
    for run, survey in zip(runs, (planned, beside), strict=True):
        evaluate(run, survey, held_out, arguments.cell)
    next_sites, random_sites = arguments.out / "next.csv", arguments.out / "random.csv"
    for number in tqdm(range(arguments.rounds), desc="Rounds"):
        began = time.perf_counter()
        planned.plan(arguments.batch, seed=number, progress=False).write(next_sites)
        runs[0].seconds.append(time.perf_counter() - began)
        measure(next_sites, rest)
        planned.update(next_sites)
        visitable[number * arguments.batch : (number + 1) * arguments.batch].to_csv(random_sites, index=False)
        beside.update(random_sites)
        if (number + 1) % 2 == 0 or number + 1 == arguments.rounds:
            prediction = evaluate(runs[0], planned, held_out, arguments.cell)
            evaluate(runs[1], beside, held_out, arguments.cell)
    plan = planned.plan(arguments.batch, seed=arguments.rounds, progress=False)
    plan.write(next_sites)
    written = [arguments.out / f"survey_malaria.{kind}" for kind in ("html", "png", "tif")]
    for path in written[:2]:
        planned.map(path, prediction, f"Malaria, cases per person and year: {len(planned.sites)} sites")
    planned.export(written[2], prediction)
    numbers = {"runs": [asdict(run) for run in runs], "sd_before": plan.sd_before, "sd_after": plan.sd_after}
    (arguments.out / "survey_malaria.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"\n{'sites':>6}{'planned RMSE':>14}{'coverage':>10}{'random RMSE':>13}{'coverage':>10}")
    for row in zip(runs[0].counts, runs[0].rmse, runs[0].coverage, runs[1].rmse, runs[1].coverage, strict=True):
        print("{:>6}{:>14.4f}{:>10.3f}{:>13.4f}{:>10.3f}".format(*row))
    print(f"Seconds a plan: {', '.join(f'{seconds:.1f}' for seconds in runs[0].seconds)}.")
    print(f"Maps: {', '.join(map(str, written))}; the next sites: {next_sites}. Data: {data.source}.")


if __name__ == "__main__":
    main()
