"""Find the cheapest concrete that is strong enough, with constraints in Ax.

Data: simulated mixes of cement and slag at 175 kg of water per cubic metre. Time: about a minute on two cores.

The strength after 28 days must reach 40 MPa. It is measured with noise, and known only for mixes that were made: an
outcome constraint. Cement and slag together may weigh at most 300 kg: a parameter constraint, which every proposal
satisfies.

    python examples/ax_constrained.py --out demo
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
from ax.api.configs import RangeParameterConfig
from ax.utils.common.logger import set_stderr_log_level
from tqdm import tqdm

from bo_scale.ax import generation_strategy, streaming

mpl.use("Agg")
import matplotlib.pyplot as plt

BOX = {"cement": (100.0, 300.0), "slag": (0.0, 200.0)}
WATER, BINDER, STRENGTH = 175.0, 300.0, 40.0
NOISE_SD = {"price": 0.3, "strength": 1.0}
UNITS = {"price": "€ / m³", "strength": "MPa"}


def concrete(cement: Any, slag: Any) -> dict[str, Any]:
    """Mean price (€ / m³) and strength (MPa). Slag costs half as much as cement, and binds less the more of it."""
    binder = cement + slag * (0.85 - 0.6 * slag / (cement + slag))
    return {"price": 40 + 0.12 * cement + 0.06 * slag, "strength": 150 * 8.0 ** -(WATER / binder)}


def feasible(cement: Any, slag: Any) -> Any:
    """Whether mean values are within both constraints."""
    return (concrete(cement, slag)["strength"] >= STRENGTH) & (cement + slag <= BINDER + 1e-6)


def cheapest() -> tuple[float, dict[str, float]]:
    """The lowest mean price of any feasible concrete, and its recipe, on a fine mesh."""
    mesh = np.meshgrid(*[np.linspace(*bounds, 801) for bounds in BOX.values()], indexing="ij")
    price = np.where(feasible(*mesh), concrete(*mesh)["price"], np.inf)
    place = np.unravel_index(price.argmin(), price.shape)
    return float(price.min()), {name: float(each[place]) for name, each in zip(BOX, mesh, strict=True)}


def mix(trials: int, seed: int) -> tuple[Client, list[dict[str, float]]]:
    """Mix and measure, two at a time."""
    noise = random.Random(seed)
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[RangeParameterConfig(name=name, parameter_type="float", bounds=BOX[name]) for name in BOX],
        parameter_constraints=[f"cement + slag <= {BINDER}"],
    )
    client.configure_optimization(objective="-price", outcome_constraints=[f"strength >= {STRENGTH}"])
    client.set_generation_strategy(generation_strategy(seed=seed))
    seen: list[dict[str, float]] = []
    with tqdm(total=trials, desc="Concrete", unit="mix") as bar:
        while len(seen) < trials:
            for index, recipe in client.get_next_trials(max_trials=min(2, trials - len(seen))).items():
                means = concrete(**recipe)
                outcomes = {name: float(mean) + noise.gauss(0.0, NOISE_SD[name]) for name, mean in means.items()}
                client.complete_trial(index, outcomes)
                seen.append({**recipe, **outcomes})
                bar.update()
    return client, seen


def recipe_of(each: dict[str, float]) -> dict[str, float]:
    """What went into a mix, of all that is known of it."""
    return {name: each[name] for name in BOX}


def plot(seen: list[dict[str, float]], best: dict[str, float], path: Path) -> None:
    """The mixes on the map of prices, their strengths, and prices in order."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), constrained_layout=True)
    price, optimum = cheapest()
    order = np.arange(1, len(seen) + 1)
    within = np.array([bool(feasible(**recipe_of(each))) for each in seen])
    mesh = np.meshgrid(*[np.linspace(*bounds, 200) for bounds in BOX.values()])
    means = concrete(*mesh)
    shown = axes[0].pcolormesh(*mesh, means["price"], cmap="viridis", rasterized=True)
    figure.colorbar(shown, ax=axes[0], label="Mean price (€ / m³)")
    axes[0].contour(*mesh, means["strength"], levels=[STRENGTH], colors="white", linewidths=1.5)
    axes[0].plot([], [], color="white", linewidth=1.5, label=f"strength = {STRENGTH:g} MPa")
    axes[0].plot(BOX["cement"], [BINDER - each for each in BOX["cement"]], "--", color="white", linewidth=1.5)
    axes[0].plot([], [], "--", color="white", label=f"cement + slag = {BINDER:g} kg")
    made = np.array([list(recipe_of(each).values()) for each in seen])
    prices = concrete(*made.T)["price"]
    strengths = np.array([each["strength"] for each in seen])
    for which, label, style in (
        (within, "feasible", {"c": "C1", "s": 30, "edgecolors": "black", "linewidths": 0.5}),
        (
            ~within,
            "not strong enough",
            {"c": "lightgrey", "s": 34, "marker": "X", "edgecolors": "black", "linewidths": 0.5},
        ),
    ):
        axes[0].scatter(*made[which].T, label=label, **style)
        axes[1].scatter(order[which], strengths[which], label=label, **style)
        axes[2].scatter(order[which], prices[which], label=label, **style)
    star = {"s": 190, "marker": "*", "c": "red", "edgecolors": "white", "zorder": 4, "clip_on": False}
    axes[0].scatter(best["cement"], best["slag"], label="called best", **star)
    axes[0].scatter(
        optimum["cement"], optimum["slag"], s=110, marker="+", c="black", label="cheapest there is", zorder=5
    )
    axes[0].set(xlabel="Cement (kg / m³)", ylabel="Slag (kg / m³)", title="The mixes")
    axes[0].legend(loc="upper right", fontsize=8, facecolor="grey", framealpha=0.9, labelcolor="white")
    axes[1].axhline(STRENGTH, color="black", linewidth=0.8, linestyle=":", label="constraint")
    axes[1].set(xlabel="Mixes", ylabel="Measured strength (MPa)", title="Strength", ylim=(0, None))
    lowest = np.minimum.accumulate(np.where(within, prices, np.inf))
    axes[2].step(
        order, np.where(np.isfinite(lowest), lowest, np.nan), where="post", color="C1", label="cheapest feasible"
    )
    axes[2].axhline(price, color="black", linewidth=0.8, linestyle=":", label="cheapest there is")
    axes[2].set(xlabel="Mixes", ylabel="Mean price (€ / m³)", title="Price", ylim=(prices.min() - 9, None))
    for axis in axes[1:]:
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Mix, print the best recipe and what the models did, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    set_stderr_log_level(logging.ERROR)
    client, seen = mix(arguments.trials, arguments.seed)
    recipe, _, trial, _ = client.get_best_parameterization()
    predicted, means = client.predict([recipe])[0], concrete(**recipe)
    plot(seen, recipe, arguments.out / "ax_constrained.png")
    price, _ = cheapest()
    streams = {name: vars(stream) for name, stream in streaming(client).items()}
    best = {"recipe": recipe, "trial": trial, "means": {name: float(mean) for name, mean in means.items()}}
    numbers = {"best": best, "cheapest": price, "trials": seen, "streams": streams}
    (arguments.out / "ax_constrained.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print("\nBest mix: " + ", ".join(f"{value:.0f} kg of {name}" for name, value in recipe.items()) + ".")
    for name, (mean, _) in predicted.items():
        print(f"{name}: {mean:.1f} {UNITS[name]} by the model, truly {means[name]:.1f}")
    print(f"The cheapest there is within the constraints costs {price:.1f} {UNITS['price']}.")
    for name, stream in streaming(client).items():
        print(f"{name}: {stream}")
    print(f"Plot and numbers: {arguments.out / 'ax_constrained.png'}, {arguments.out / 'ax_constrained.json'}")


if __name__ == "__main__":
    main()
