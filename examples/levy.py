"""Optimise a noisy function of three parameters by ask and tell: Levy with noise of standard deviation 10.

Data: simulated, as in Stanton et al. 2021 (WISKI), appendix C.2, in batches of 3. Time: about a minute on two cores.

The noise is far larger than the differences near the optimum, so it takes many observations. The last ask costs what
the first one costs.

    python examples/levy.py --out demo
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib as mpl
import torch
from botorch.test_functions import Levy
from torch import Tensor
from tqdm import tqdm

from bo_scale.loop import Optimizer

mpl.use("Agg")
import matplotlib.pyplot as plt

NOISE_SD = 10.0


def optimise(batches: int, q: int, seed: int, path: Path | None) -> dict[str, list[float]]:
    """Run the loop; after every batch the noise-free value at the point called best, and the seconds it took."""
    function = Levy(dim=3)
    generator = torch.Generator().manual_seed(seed)

    def evaluate(X: Tensor) -> Tensor:
        noise = torch.randn(len(X), generator=generator, dtype=torch.float64)
        return function(X, noise=False) + NOISE_SD * noise

    space = {f"x{i}": bounds for i, bounds in enumerate(function.bounds.mT.tolist())}
    history: dict[str, list[float]] = {"n": [], "value": [], "mean": [], "sd": [], "seconds": []}
    with Optimizer(space, objective="minimize", acquisition="qUCB", seed=seed, path=path) as optimizer:
        for _ in tqdm(range(batches), desc="Levy", unit="batch"):
            began = time.perf_counter()
            points = optimizer.ask(q)
            asked = time.perf_counter()
            values = evaluate(torch.tensor([list(point.values()) for point in points], dtype=torch.float64))
            evaluated = time.perf_counter()
            optimizer.tell(points, values)
            history["seconds"].append(time.perf_counter() - evaluated + asked - began)
            best = optimizer.best()
            x = torch.tensor([list(best.x.values())], dtype=torch.float64)
            history["n"].append(optimizer.num_observations)
            history["value"].append(function(x, noise=False).item())
            history["mean"].append(best.mean)
            history["sd"].append(best.sd)
        where = ", ".join(f"{name} = {value:.2f}" for name, value in best.x.items())
        print(f"\nBest point: {where}; optimum at 1, 1, 1 with value 0.")
        print(f"Its value: {best.mean:.2f} ± {best.sd:.2f} by the model, truly {history['value'][-1]:.2f}.")
        print(f"Best single observation: {best.observed_y:.2f} (noise sd {NOISE_SD:g}).")
    return history


def plot(history: dict[str, list[float]], path: Path) -> None:
    """What was found and how long it took, against observations."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    n, mean, sd = (torch.tensor(history[name]) for name in ("n", "mean", "sd"))
    axes[0].fill_between(n, mean - 2 * sd, mean + 2 * sd, alpha=0.2, label="model's estimate, ± 2 sd")
    axes[0].plot(n, history["value"], label="true value at the point called best")
    axes[0].axhline(0, color="black", linewidth=0.8, linestyle=":", label="optimum")
    axes[0].set(xlabel="Observations", ylabel="Levy function", ylim=(-15, 40))
    axes[0].legend()
    axes[1].plot(n, history["seconds"], ".", markersize=4)
    axes[1].set(xlabel="Observations", ylabel="Seconds a batch (fits stand out)", ylim=(0, None))
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Optimise, print what was found, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--q", type=int, default=3, help="points a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", type=Path, default=None, help="folder to keep the run in: it can be resumed")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    history = optimise(arguments.batches, arguments.q, arguments.seed, arguments.journal)
    plot(history, arguments.out / "levy.png")
    (arguments.out / "levy.json").write_text(json.dumps(history) + "\n")
    seconds = torch.tensor(history["seconds"])
    third = max(1, len(seconds) // 3)
    print(
        f"Seconds a batch: median {seconds.median():.2f}; mean with the fits {seconds.mean():.2f}, "
        f"first third {seconds[:third].mean():.2f}, last third {seconds[-third:].mean():.2f}."
    )
    print(f"Plot and numbers: {arguments.out / 'levy.png'}, {arguments.out / 'levy.json'}")


if __name__ == "__main__":
    main()
