"""Optimise a recipe in Ax: yeast, hours and flour for the bread that tasters like best.

Data: simulated scores between 0 and 10 with noise of standard deviation 0.5. Time: 1 to 2 minutes on two cores.

Four loaves are in the oven at a time. A score arrives when its loaf is done, in any order, and Ax then proposes the
next.

    python examples/ax_one.py --out demo
"""

import argparse
import json
import logging
import random
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.utils.common.logger import set_stderr_log_level
from tqdm import tqdm

from bo_scale.ax import generation_strategy, streaming

mpl.use("Agg")
import matplotlib.pyplot as plt

NOISE_SD, OVENS = 0.5, 4
FLOURS = ("white", "wholemeal")
YEAST, HOURS = (0.05, 3.0), (2, 30)


def score(yeast: Any, hours: Any, flour: str) -> Any:
    """What the tasters say on average: the dough must have risen, no more, and gains from time."""
    enough, wanted = (5.0, 0.85) if flour == "white" else (3.5, 1.0)
    risen = np.exp(-0.8 * np.log(yeast * hours / enough) ** 2)
    return 10 * wanted * risen * (1 - 0.6 * np.exp(-hours / 8)) * (1 - (hours / 60) ** 2)


def best_there_is() -> float:
    """The highest mean score of any recipe."""
    yeast = np.geomspace(*YEAST, 2001)
    hours = np.arange(HOURS[0], HOURS[1] + 1)[:, None]
    return max(score(yeast, hours, flour).max().item() for flour in FLOURS)


def bake(trials: int, seed: int) -> tuple[Client, list[dict[str, Any]]]:
    """Search with four loaves under way at any time; the loaves in the order in which they were told of."""
    noise = random.Random(seed)
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[
            RangeParameterConfig(name="yeast", parameter_type="float", bounds=YEAST, scaling="log"),
            RangeParameterConfig(name="hours", parameter_type="int", bounds=HOURS),
            ChoiceParameterConfig(name="flour", parameter_type="str", values=list(FLOURS)),
        ]
    )
    client.configure_optimization(objective="score")
    client.set_generation_strategy(generation_strategy(seed=seed))
    loaves: list[dict[str, Any]] = []
    rising: dict[int, tuple[float, Any]] = {}
    clock = 0.0
    for _ in tqdm(range(trials), desc="Bread", unit="loaf"):
        free = min(OVENS - len(rising), trials - len(rising) - len(loaves))
        for index, recipe in client.get_next_trials(max_trials=free).items() if free > 0 else ():
            rising[index] = (clock + recipe["hours"], recipe)
        done = min(rising, key=lambda index: rising[index][0])
        clock, recipe = rising.pop(done)
        value = score(**recipe)
        observed = value + noise.gauss(0.0, NOISE_SD)
        client.complete_trial(done, {"score": observed})
        loaves.append({"trial": done, **recipe, "score": observed, "mean": value})
    return client, loaves


def plot(loaves: list[dict[str, Any]], best: dict[str, Any], path: Path) -> None:
    """The loaves on the map of mean scores, flour by flour, and scores in order."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), constrained_layout=True)
    yeast = np.geomspace(*YEAST, 200)
    hours = np.linspace(*HOURS, 200)[:, None]
    for axis, flour in zip(axes, FLOURS):
        shown = axis.pcolormesh(
            yeast, hours[:, 0], score(yeast, hours, flour), vmin=0, vmax=10, cmap="viridis", rasterized=True
        )
        here = [loaf for loaf in loaves if loaf["flour"] == flour]
        where = [[loaf[name] for loaf in here] for name in ("yeast", "hours")]
        axis.scatter(*where, s=22, c="white", edgecolors="black", linewidths=0.6, label="loaves")
        if best["flour"] == flour:
            style = {"s": 190, "marker": "*", "c": "red", "edgecolors": "white", "clip_on": False, "zorder": 3}
            axis.scatter(best["yeast"], best["hours"], label="recipe called best", **style)
        axis.set(xscale="log", xlabel="Yeast (% of flour)", ylabel="Hours", title=f"Mean score, {flour} flour")
        axis.set_xticks([0.1, 0.3, 1.0, 3.0], ["0.1", "0.3", "1", "3"])
        axis.legend(loc="upper right", fontsize=8)
    figure.colorbar(shown, ax=axes[:2], label="Mean score")
    order = np.arange(1, len(loaves) + 1)
    axes[2].plot(order, [loaf["score"] for loaf in loaves], ".", color="grey", label="tasters' score")
    axes[2].plot(order, [loaf["mean"] for loaf in loaves], color="C0", linewidth=1, label="mean score of the recipe")
    axes[2].axhline(best_there_is(), color="black", linewidth=0.8, linestyle=":", label="best recipe there is")
    axes[2].set(xlabel="Loaves, as they came out of the oven", ylabel="Score", ylim=(-1, 10), title="Scores in order")
    axes[2].grid(alpha=0.3)
    axes[2].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Bake, print the best recipe and what the model did, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--trials", type=int, default=40, help="loaves")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    set_stderr_log_level(logging.ERROR)
    client, loaves = bake(arguments.trials, arguments.seed)
    recipe, _, trial, _ = client.get_best_parameterization()
    mean, sd = client.predict([recipe])[0]["score"]
    plot(loaves, recipe, arguments.out / "ax_one.png")
    stream = streaming(client)["score"]
    found = {"recipe": recipe, "trial": trial, "mean": score(**recipe), "best_there_is": best_there_is()}
    numbers = {"best": found, "loaves": loaves, "stream": vars(stream)}
    (arguments.out / "ax_one.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"\nBest recipe: {recipe['yeast']:.2f} % yeast, {recipe['hours']} hours, {recipe['flour']} flour.")
    print(
        f"Its score: {mean:.1f} ± {sd:.1f} by the model, truly {found['mean']:.1f}; the best is {best_there_is():.1f}."
    )
    print(stream)
    print(f"Plot and numbers: {arguments.out / 'ax_one.png'}, {arguments.out / 'ax_one.json'}")


if __name__ == "__main__":
    main()
