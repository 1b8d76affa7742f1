"""Choose where to measure malaria incidence in Central Africa, by active sampling.

Data: Malaria Atlas Project, CC BY; a sample ships with the package. Time: about 2 minutes on two cores.

From 10 sites on, batches of 6 are chosen among thousands of candidates so that the integrated variance falls most.
They are then measured and conditioned on. A second model gets random sites. The protocol follows Stanton et al. 2021
(WISKI), appendix C.3, with batches of 6.

    python examples/malaria.py --out demo
"""

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import botorch
import matplotlib as mpl
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf_discrete
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor
from tqdm import tqdm

from bo_scale import WISKI, qNegIntegratedPosteriorVariance
from bo_scale.datasets import SpatialData, load_malaria

mpl.use("Agg")
import matplotlib.pyplot as plt

REFIT_GROWTH = 1.5
HELD_OUT = 2000


@dataclass
class Run:
    """What one way of choosing sites achieved.

    Attributes:
        strategy: "nipv" or "random".
        seed: Of the split, the first sites and the random choices.
        sites: Row numbers measured, in order.
        counts: Number of sites at each evaluation.
        rmse: Error on the held-out sites, cases per person and year.
        coverage: Share of held-out sites within the 95 % interval of the prediction.
        seconds: Of each batch: choosing, conditioning and any refit.
        refits: After which batches the hyperparameters were fitted again.
    """

    strategy: str
    seed: int
    sites: list[int]
    counts: list[int] = field(default_factory=list)
    rmse: list[float] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    refits: list[int] = field(default_factory=list)


def build_model(X: Tensor, Y: Tensor, bounds: Tensor, grid_size: int) -> WISKI:
    """The surrogate of the protocol; the interpolation error of a rough kernel is counted in."""
    kernel = MaternKernel(nu=1.5, ard_num_dims=2, lengthscale_prior=GammaPrior(3.0, 6.0))
    transform = Normalize(2, bounds=bounds)
    return WISKI(
        X, Y, bounds=bounds, grid_size=grid_size, covar_module=kernel, input_transform=transform, conservative=True
    )


def evaluate(run: Run, model: WISKI, X: Tensor, Y: Tensor) -> None:
    """Record error and coverage on held-out sites."""
    with torch.no_grad():
        posterior = model.posterior(X.unsqueeze(1))
        error = (posterior.mean.squeeze(1) - Y).abs()
        half_width = 1.96 * (posterior.variance.squeeze(1) + model.outcome_transform.stdvs**2 * model.mean_noise).sqrt()
    run.counts.append(model.num_observations)
    run.rmse.append(error.square().mean().sqrt().item())
    run.coverage.append((error <= half_width).double().mean().item())


def sample_sites(
    data: SpatialData, strategy: str, seed: int, batches: int, grid_size: int = 30, q: int = 6, start: int = 10
) -> tuple[Run, WISKI]:
    """Choose, measure and condition, batch after batch."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    test, first, pool = order[:HELD_OUT], order[HELD_OUT : HELD_OUT + start], order[HELD_OUT + start :]
    bounds = torch.stack([data.X.amin(0), data.X.amax(0)])
    run = Run(strategy, seed, first.tolist())
    model = build_model(data.X[first], data.Y[first], bounds, grid_size)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    fitted = start
    evaluate(run, model, data.X[test], data.Y[test])
    for batch in tqdm(range(batches), desc=f"{strategy}, seed {seed}", unit="batch"):
        began = time.perf_counter()
        if strategy == "nipv":
            acquisition = qNegIntegratedPosteriorVariance(model, mc_points=data.X)
            chosen_X, _ = optimize_acqf_discrete(acquisition, q=q, choices=data.X[pool], max_batch_size=4096)
            chosen = torch.stack([(data.X[pool] == x).all(-1).nonzero()[0, 0] for x in chosen_X])
        else:
            chosen = torch.randperm(len(pool), generator=generator)[:q]
        sites = pool[chosen]
        model = model.condition_on_observations(data.X[sites], data.Y[sites])
        if model.num_observations >= REFIT_GROWTH * fitted:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            fitted = model.num_observations
            run.refits.append(batch)
        run.seconds.append(time.perf_counter() - began)
        remaining = torch.ones(len(pool), dtype=torch.bool)
        remaining[chosen] = False
        pool = pool[remaining]
        run.sites += sites.tolist()
        evaluate(run, model, data.X[test], data.Y[test])
    return run, model


def area_under_curve(run: Run) -> float:
    """Mean RMSE over the number of sites, by the trapezoid rule."""
    n, rmse = torch.tensor(run.counts, dtype=torch.float64), torch.tensor(run.rmse, dtype=torch.float64)
    return float(torch.trapezoid(rmse, n) / (n[-1] - n[0]))


def land_mesh(data: SpatialData, cells: int = 150, reach: float = 0.3) -> tuple[Tensor, Tensor]:
    """A regular mesh over the region, and which of its points have a place of the data within reach (degrees)."""
    lower, upper = data.X.amin(0), data.X.amax(0)
    axes = [torch.linspace(lo, hi, cells, dtype=torch.float64) for lo, hi in zip(lower, upper, strict=True)]
    mesh = torch.cartesian_prod(*axes)
    near = torch.cat([torch.cdist(part, data.X).amin(-1) < reach for part in mesh.split(2000)])
    return mesh, near


def plot_maps(data: SpatialData, run: Run, model: WISKI, path: Path) -> None:
    """The region as it is, the posterior mean with the sites measured, and the posterior standard deviation."""
    mesh, land = land_mesh(data)
    places, sites = data.X.numpy(), data.X[run.sites].numpy()
    with torch.no_grad():
        posterior = model.posterior(mesh.unsqueeze(1))
        mean, sd = posterior.mean.reshape(-1), posterior.variance.sqrt().reshape(-1)
    incidence = {"vmin": data.Y.min().item(), "vmax": data.Y.max().item(), "cmap": "viridis"}
    figure, axes = plt.subplots(1, 3, figsize=(16, 5.2), sharex=True, sharey=True, constrained_layout=True)
    drawn = [axes[0].scatter(*places.T, c=data.Y[:, 0].numpy(), s=5, marker="s", linewidths=0, **incidence)]
    cells = round(len(mesh) ** 0.5)
    x, y = mesh.mT.reshape(2, cells, cells).numpy()
    for axis, values, style in ((axes[1], mean, incidence), (axes[2], sd, {"cmap": "magma"})):
        shown = torch.where(land, values, torch.nan).reshape(cells, cells).numpy()
        drawn.append(axis.pcolormesh(x, y, shown, shading="nearest", rasterized=True, **style))
    titles = (
        f"Cases per person and year at {len(data):,} places",
        f"Posterior mean from {len(run.sites)} sites",
        "Posterior standard deviation",
    )
    for axis, title, values in zip(axes, titles, drawn, strict=True):
        figure.colorbar(values, ax=axis, shrink=0.85)
        axis.set(title=title, xlabel="Longitude (°)", aspect="equal")
    axes[0].set_ylabel("Latitude (°)")
    axes[1].scatter(*sites.T, s=8, c="white", edgecolors="black", linewidths=0.5)
    axes[2].scatter(*sites.T, s=6, facecolors="none", edgecolors="cyan", linewidths=0.5)
    figure.text(0.995, 0.005, f"Data: {data.source}", ha="right", fontsize=7)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def plot_curves(runs: list[Run], path: Path) -> None:
    """Error against sites measured, and time a batch."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for run in runs:
        label = {"nipv": "integrated variance", "random": "random sites"}[run.strategy]
        axes[0].plot(run.counts, run.rmse, label=label)
        plain = [b for b in range(len(run.seconds)) if b not in run.refits]
        axes[1].plot([run.counts[b + 1] for b in plain], [run.seconds[b] for b in plain], ".", label=label)
    axes[0].set(xlabel="Sites measured", ylabel="RMSE on 2,000 held-out sites", ylim=(0, None))
    axes[1].set(xlabel="Sites measured", ylabel="Seconds a batch (without refits)", ylim=(0, None))
    for axis in axes:
        axis.legend()
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run both strategies, print a table, write plots and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for plots and numbers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--grid-size", type=int, default=30, help="points a dimension")
    parser.add_argument("--data", type=Path, default=None, help="npz of the full set instead of the shipped sample")
    arguments = parser.parse_args()
    data = load_malaria(arguments.data)
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {
        s: sample_sites(data, s, arguments.seed, arguments.batches, arguments.grid_size) for s in ("nipv", "random")
    }
    runs = [run for run, _ in results.values()]
    plot_maps(data, *results["nipv"], arguments.out / "maps.png")
    plot_curves(runs, arguments.out / "rmse.png")
    summary = {
        "runs": [{**asdict(run), "area_under_rmse_curve": area_under_curve(run)} for run in runs],
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "botorch": botorch.__version__},
    }
    (arguments.out / "malaria.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\n{'sites':>6}" + "".join(f"{run.strategy + ' RMSE':>14}" for run in runs) + f"{'nipv coverage':>16}")
    step = max(1, arguments.batches // 6)
    for i in range(0, arguments.batches + 1, step):
        print(
            f"{runs[0].counts[i]:>6}"
            + "".join(f"{run.rmse[i]:>14.4f}" for run in runs)
            + f"{runs[0].coverage[i]:>16.3f}"
        )
    print("mean  " + "".join(f"{area_under_curve(run):>14.4f}" for run in runs))
    print(f"Plots and numbers: {', '.join(str(arguments.out / f) for f in ('maps.png', 'rmse.png', 'malaria.json'))}")


if __name__ == "__main__":
    main()
