"""From a CSV to a plan: a survey of malaria incidence in Central Africa, a batch of six sites, and what the map gains.

Data: estimated incidence of *Plasmodium falciparum*, 2017, 12,000 pixels; it ships with the package. Licence: CC BY
3.0 (Malaria Atlas Project, University of Oxford). Time: within 2 minutes on two cores; `--short` within 10 seconds.

    python examples/tutorial_survey.py --out demo
"""

import argparse
import json
from pathlib import Path

# --8<-- [start:data]
import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from bo_scale.datasets import load_malaria
from bo_scale.survey import Survey


def write_inputs(out: Path, first: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write what a scientist has: measured sites, the area, and places that can be visited; return what nature knows.

    The first table is looked up when a site is "measured". The second is held out, to judge the map.
    """
    data = load_malaria()
    table = np.concatenate([data.X.numpy(), data.Y.numpy()], axis=1)
    places = pd.DataFrame(table, columns=["longitude", "latitude", "incidence"]).round(6)
    places = places[places.longitude.between(28, 36) & places.latitude.between(-14, -8)]  # around Lake Malawi
    places = places.sample(frac=1, random_state=0, ignore_index=True)
    places["name"] = [f"pixel {number}" for number in places.index]
    outline = shapely.concave_hull(shapely.multipoints(places[["longitude", "latitude"]]), 0.1)
    gpd.GeoSeries([outline], crs="EPSG:4326").to_file(out / "area.geojson")
    held_out, rest = places[:400], places[400:]
    rest[:first].to_csv(out / "sites.csv", index=False)
    rest[first:][["name", "longitude", "latitude"]].to_csv(out / "visitable.csv", index=False)
    return rest, held_out


# --8<-- [end:data]


# --8<-- [start:create]
def begin(out: Path) -> Survey:
    """Begin the survey from the files."""
    return Survey.create(
        out / "malaria.gpkg",
        out / "sites.csv",
        value="incidence",
        area=out / "area.geojson",
        candidates=out / "visitable.csv",
        threshold=0.3,  # cases per person and year
        overwrite=True,
    )


# --8<-- [end:create]


# --8<-- [start:measure]
def measure(path: Path, nature: pd.DataFrame) -> None:
    """Fill in the table of a plan, as a team would in the field."""
    plan = pd.read_csv(path)
    plan["incidence"] = plan.name.map(nature.set_index("name").incidence)
    plan.to_csv(path, index=False)


# --8<-- [end:measure]


# --8<-- [start:judge]
def judge(survey: Survey, held_out: pd.DataFrame) -> dict[str, float]:
    """Compare the map with places that were never measured."""
    found = survey.predict_at(held_out.longitude, held_out.latitude)
    truth = held_out.incidence.to_numpy()
    return {
        "sites": len(survey.sites),
        "rmse": float(np.sqrt(np.mean((found["mean"] - truth) ** 2))),
        "sd": float(np.sqrt(np.mean(found["sd"] ** 2))),
        "coverage": float(np.mean((found["lower"] <= truth) & (truth <= found["upper"]))),
    }


# --8<-- [end:judge]


def main() -> None:
    """Survey, plan, measure, update; print what the map gained and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the survey, maps and numbers")
    parser.add_argument("--sites", type=int, default=60, help="measured before the first plan")
    parser.add_argument("--rounds", type=int, default=3, help="plans, each of --batch sites")
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--short", action="store_true", help="one round and coarse maps, within 10 seconds")
    given = parser.parse_args()
    out, batch = given.out, given.batch
    rounds, cells = (1, 1000) if given.short else (given.rounds, 60_000)
    out.mkdir(parents=True, exist_ok=True)

    nature, held_out = write_inputs(out, given.sites)
    survey = begin(out)
    print(survey.status())
    # --8<-- [start:rounds]
    history = [judge(survey, held_out)]
    survey.map(out / "before.png", survey.predict(cells, progress=False))
    for number in range(rounds):
        plan = survey.plan(batch, seed=number, progress=False)
        plan.write(out / "next.csv")
        print(plan.table.to_string(index=False))
        print(f"Typical sd over the area: {plan.sd_before:.3g} now, {plan.sd_after:.3g} expected.")
        measure(out / "next.csv", nature)
        arrival = survey.update(out / "next.csv")
        print(f"Measured: {', '.join(arrival.matched)}.")
        history.append(judge(survey, held_out))
    # --8<-- [end:rounds]
    # --8<-- [start:map]
    prediction = survey.predict(cells, progress=False)
    for kind in ("html", "png"):
        survey.map(out / f"after.{kind}", prediction, "Malaria, cases per person and year")
    survey.export(out / "after.tif", prediction)
    # --8<-- [end:map]
    above = survey.exceeding()
    print(f"\n{'sites':>6}{'RMSE':>9}{'sd':>9}{'in 95 %':>9}")
    for each in history:
        print(f"{each['sites']:>6}{each['rmse']:>9.4f}{each['sd']:>9.4f}{each['coverage']:>9.3f}")
    print(above.summary)
    numbers = {"history": history, "share_above": [above.share.lower, above.share.mean, above.share.upper]}
    (out / "tutorial_survey.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"Maps: {out / 'before.png'}, {out / 'after.html'}, {out / 'after.png'}. Data: {load_malaria().source}.")


if __name__ == "__main__":
    main()
