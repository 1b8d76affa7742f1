"""Trade two objectives in Ax: the accuracy of a small network and the time it takes to answer.

Data: simulated trainings; accuracy has noise of standard deviation 0.4 %, latency 2 %. Time: 1 to 2 minutes on two
cores.

Width and the share of pruned weights decide both. There is no best network but a Pareto front. The acquisition
function is Ax's own for several objectives, with one of our models for each. Networks below 80 % accuracy or above 10
ms are excluded.

    python examples/ax_two.py --out demo
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

ACCURACY_SD, LATENCY_SHARE = 0.4, 0.02
WIDTH, PRUNED = (32, 1024), (0.0, 0.9)
INTEREST = {"accuracy": 80.0, "latency": 10.0}


def network(width: Any, pruned: Any) -> tuple[Any, Any]:
    """Mean accuracy (%) and latency (ms)."""
    weights = width**2 * (1 - pruned)
    accuracy = 96 - 12 * (weights / 3000) ** -0.4 - 2.5 * pruned**4 * (1 + np.log(1024 / width))
    latency = 0.6 + 0.004 * width + 1.2e-5 * weights
    return accuracy, latency


def true_front() -> tuple[Any, Any]:
    """Mean accuracies and latencies of the networks that no other is better than in both."""
    width, pruned = np.meshgrid(np.geomspace(*WIDTH, 400), np.linspace(*PRUNED, 400))
    accuracy, latency = (values.ravel() for values in network(width, pruned))
    order = np.argsort(latency)
    accuracy, latency = accuracy[order], latency[order]
    better = accuracy > np.concatenate([[-np.inf], np.maximum.accumulate(accuracy)[:-1]])
    return accuracy[better], latency[better]


def search(trials: int, seed: int) -> tuple[Client, list[dict[str, float]]]:
    """Train and time networks, two at a time."""
    noise = random.Random(seed)
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[
            RangeParameterConfig(name="width", parameter_type="float", bounds=WIDTH, scaling="log"),
            RangeParameterConfig(name="pruned", parameter_type="float", bounds=PRUNED),
        ]
    )
    thresholds = [f"accuracy >= {INTEREST['accuracy']}", f"latency <= {INTEREST['latency']}"]
    client.configure_optimization(objective="accuracy, -latency", outcome_constraints=thresholds)
    client.set_generation_strategy(generation_strategy(seed=seed))
    seen: list[dict[str, float]] = []
    with tqdm(total=trials, desc="Networks", unit="trial") as bar:
        while len(seen) < trials:
            for index, point in client.get_next_trials(max_trials=min(2, trials - len(seen))).items():
                accuracy, latency = network(**point)
                accuracy += noise.gauss(0.0, ACCURACY_SD)
                latency *= 1 + noise.gauss(0.0, LATENCY_SHARE)
                client.complete_trial(index, {"accuracy": accuracy, "latency": latency})
                seen.append({**point, "accuracy": accuracy, "latency": latency})
                bar.update()
    return client, seen


def volume(accuracy: Any, latency: Any) -> float:
    """Of what networks dominate among those of interest, in % ms."""
    order = np.argsort(latency)
    accuracy, latency = np.asarray(accuracy)[order], np.asarray(latency)[order]
    reached = np.maximum.accumulate(accuracy).clip(INTEREST["accuracy"]) - INTEREST["accuracy"]
    until = np.append(latency[1:], np.inf).clip(max=INTEREST["latency"])
    return float((reached * (until - latency.clip(max=INTEREST["latency"]))).sum())


def volumes(seen: list[dict[str, float]]) -> list[float]:
    """Share of the true front's volume that networks dominate by their mean values, trial by trial."""
    truth = volume(*true_front())
    accuracy, latency = np.array([network(each["width"], each["pruned"]) for each in seen]).T
    return [volume(accuracy[:n], latency[:n]) / truth for n in range(1, len(seen) + 1)]


def plot(seen: list[dict[str, float]], front: list[dict[str, float]], path: Path) -> None:
    """What was measured beside the true front, the networks themselves, and the volume dominated."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), constrained_layout=True)
    accuracy, latency = true_front()
    order = np.arange(1, len(seen) + 1)
    for axis, names in ((axes[0], ("latency", "accuracy")), (axes[1], ("width", "pruned"))):
        points = [[each[name] for each in seen] for name in names]
        best = [[each[name] for each in front] for name in names]
        shown = axis.scatter(*points, c=order, s=24, cmap="viridis", label="networks tried")
        axis.scatter(*best, s=70, facecolors="none", edgecolors="red", linewidths=1.2, label="front by the model")
    axes[0].plot(latency, accuracy, color="black", linewidth=0.9, linestyle=":", label="true front", zorder=0)
    axes[0].set(xscale="log", xlabel="Latency (ms)", ylabel="Accuracy (%)", title="As measured")
    axes[0].set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes[0].set(xlim=(0.65, 15), ylim=(65, 96))
    axes[1].set(xscale="log", xlabel="Width (units)", ylabel="Share of weights pruned", title="The networks")
    axes[1].set_xticks([32, 64, 128, 256, 512, 1024], ["32", "64", "128", "256", "512", "1024"])
    axes[1].set_ylim(-0.05, 1.15)
    axes[1].minorticks_off()
    figure.colorbar(shown, ax=axes[1], label="Trial")
    axes[2].plot(order, volumes(seen), label="networks tried")
    axes[2].axhline(1.0, color="black", linewidth=0.8, linestyle=":", label="true front")
    axes[2].set(xlabel="Trials", ylabel="Dominated volume, share", ylim=(0, 1.05), title="Progress, by mean values")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right" if axis is not axes[1] else "upper left", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Search, print the front and what the models did, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    set_stderr_log_level(logging.ERROR)
    client, seen = search(arguments.trials, arguments.seed)
    front = [{**seen[trial], "trial": trial} for _, _, trial, _ in client.get_pareto_frontier()]
    front.sort(key=lambda each: each["latency"])
    plot(seen, front, arguments.out / "ax_two.png")
    streams = {name: vars(stream) for name, stream in streaming(client).items()}
    numbers = {"trials": seen, "front": front, "volume": volumes(seen), "streams": streams}
    (arguments.out / "ax_two.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"\n{'width':>6}{'pruned':>8}{'accuracy':>10}{'latency':>9}")
    for each in front:
        print(f"{each['width']:>6.0f}{each['pruned']:>8.2f}{each['accuracy']:>8.1f} %{each['latency']:>6.2f} ms")
    print(f"Share of the true front's volume: {volumes(seen)[-1]:.3f}")
    for name, stream in streaming(client).items():
        print(f"{name}: {stream}")
    print(f"Plot and numbers: {arguments.out / 'ax_two.png'}, {arguments.out / 'ax_two.json'}")


if __name__ == "__main__":
    main()
