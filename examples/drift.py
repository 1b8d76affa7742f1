"""Follow an optimum that moves: a noisy function of two parameters whose maximum goes round in a circle.

Data: simulated. Time: about a minute on two cores.

Each step has two observations: one chosen by an upper confidence bound, one at random to watch the rest. A model that
counts all observations alike averages over every place where the maximum has been. With `decay`, old observations
count less and uncertainty grows again where nothing new is seen, so the search follows the maximum.

    python examples/drift.py --out demo
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib as mpl
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from tqdm import tqdm

from bo_scale import WISKI

mpl.use("Agg")
import matplotlib.pyplot as plt

NOISE_SD, WIDTH, RADIUS, PERIOD = 0.1, 0.2, 0.3, 250
START, REFIT_EVERY, GRID_SIZE = 40, 25, 16
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


@dataclass
class Run:
    """What one model achieved.

    Attributes:
        decay: Of its observations' weights.
        x: Points chosen, those at random not counted.
        value: Noise-free value there, at the time; the maximum is 1 at any time.
        error: RMSE of the posterior mean over the square, against the function as it is at the time.
        effective_count: How many observations count.
        seconds: Of all steps.
    """

    decay: float
    x: list[list[float]] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    effective_count: list[float] = field(default_factory=list)
    seconds: float = 0.0


def optimum(t: Tensor) -> Tensor:
    """Where the maximum is at times t."""
    angle = 2 * torch.pi * t / PERIOD
    return 0.5 + RADIUS * torch.stack([angle.cos(), angle.sin()], -1)


def function(X: Tensor, t: Tensor) -> Tensor:
    """The function at a time: a peak of height 1."""
    return torch.exp(-0.5 * ((X - optimum(t)) / WIDTH).square().sum(-1, keepdim=True))


def follow(decay: float, steps: int, seed: int) -> Run:
    """Observe, condition and choose, step after step, while the function moves."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    run, began = Run(decay), time.perf_counter()

    def observe(X: Tensor, t: Tensor) -> Tensor:
        return function(X, t) + NOISE_SD * torch.randn(len(X), 1, generator=generator, dtype=torch.float64)

    mesh = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, 25, dtype=torch.float64)] * 2)
    X = torch.rand(START, 2, generator=generator, dtype=torch.float64)
    model = WISKI(X, observe(X, torch.arange(-START, 0) / 2), grid_size=GRID_SIZE, decay=decay)
    for t in tqdm(torch.arange(steps), desc=f"decay {decay:g}", unit="step"):
        if t % REFIT_EVERY == 0:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qUpperConfidenceBound(model, beta=2.0)
        x, _ = optimize_acqf(acquisition, BOX, q=1, num_restarts=2, raw_samples=64, options={"maxiter": 30})
        both = torch.cat([x, torch.rand(1, 2, generator=generator, dtype=torch.float64)])
        model = model.condition_on_observations(both, observe(both, t))
        run.x.append(x[0].tolist())
        run.value.append(function(x, t).item())
        run.error.append((model.posterior_mean(mesh) - function(mesh, t)).square().mean().sqrt().item())
        run.effective_count.append(model.statistics[0].effective_count.item())
    run.seconds = time.perf_counter() - began
    return run


def running_mean(values: list[float], window: int = 10) -> Tensor:
    """Means of the last values, fewer at the start."""
    total = torch.tensor([0.0, *values], dtype=torch.float64).cumsum(0)
    end = torch.arange(1, len(values) + 1)
    begin = (end - window).clamp_min(0)
    return (total[end] - total[begin]) / (end - begin)


def plot(runs: list[Run], path: Path) -> None:
    """Where each model looked, what it found there, and how well it knew the function as it was."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.4), constrained_layout=True)
    steps = torch.arange(len(runs[0].x))
    way = optimum(steps).numpy()
    axes[0].plot(*way.T, color="black", linewidth=0.8, linestyle=":", label="way of the maximum")
    for run, marker, name in zip(runs, ("x", "o"), ("C0", "C1"), strict=True):
        points = torch.tensor(run.x).numpy()
        shown = axes[0].scatter(*points.T, c=steps.numpy(), s=22, marker=marker, linewidths=1, cmap="viridis")
        axes[0].scatter([], [], color="grey", marker=marker, s=22, label=f"chosen, decay = {run.decay:g}")
        axes[1].plot(steps, running_mean(run.value), color=name, label=f"decay = {run.decay:g}")
        axes[2].plot(steps, run.error, color=name, label=f"decay = {run.decay:g}")
    figure.colorbar(shown, ax=axes[0], label="Step")
    axes[0].set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="Where they looked, and when")
    axes[1].axhline(1.0, color="black", linewidth=0.8, linestyle=":", label="maximum")
    axes[1].set(xlabel="Step", ylim=(0, 1.05), title="True value at the chosen point, mean of 10 steps")
    axes[2].set(xlabel="Step", ylim=(0, None), title="RMSE of the posterior mean over the square")
    axes[0].legend(loc="lower left", fontsize=8)
    for axis in axes[1:]:
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Follow the maximum with and without decay, print what was found, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--decay", type=float, default=0.95, help="what an observation leaves of earlier ones' weights")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = [follow(decay, arguments.steps, arguments.seed) for decay in (1.0, arguments.decay)]
    plot(runs, arguments.out / "drift.png")
    (arguments.out / "drift.json").write_text(json.dumps({"runs": [asdict(run) for run in runs]}) + "\n")
    print(f"\n{'decay':>6}{'mean true value':>18}{'mean RMSE':>12}{'that count':>13}{'seconds':>10}")
    for run in runs:
        value, error = (torch.tensor(v).mean() for v in (run.value, run.error))
        print(f"{run.decay:>6g}{value:>18.3f}{error:>12.3f}{run.effective_count[-1]:>13.1f}{run.seconds:>10.1f}")
    print(f"Plot and numbers: {arguments.out / 'drift.png'}, {arguments.out / 'drift.json'}")


if __name__ == "__main__":
    main()
