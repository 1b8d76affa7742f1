"""A fully Bayesian GP at 10⁶ rows: a million noisy readings of a map, and the posterior of noise and weights.

Data: malaria incidence in Central Africa, 2017, at 12,000 places, a sample that ships with bo_scale; Malaria Atlas
Project, CC BY. A reading is the value at one of 10,000 of them, drawn at random, with noise of sd 0.1 added; the
other 2,000 places are held out. Time: about a minute on one core.

GRIEF fits one value to the noise and one to the size of the function; GRIEFBayes integrates over the noise and over
the prior variance of every eigenfunction. Both are fitted to 1,000 readings and to a million.

    python examples/tutorial_million_rows.py --out demo
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import GRIEF, GRIEFBayes
from bo_scale.datasets import SpatialData, load_malaria

mpl.use("Agg")
import matplotlib.pyplot as plt

NOISE_SD, HELD_OUT = 0.1, 2_000


@dataclass(frozen=True)
class Size:
    """How much is done: the tutorial's size, and a short one for tests."""

    rows: tuple[int, int] = (1_000, 1_000_000)
    eigenfunctions: int = 500
    subset: int = 1_000


SHORT = Size(rows=(500, 20_000), eigenfunctions=100, subset=200)


@dataclass
class Result:
    """What a model of some rows knows, and what it cost; cases per person and year, seconds of processor time.

    Attributes:
        model: "GRIEF" or "GRIEFBayes".
        rows: Number of readings.
        make: Seconds to make it.
        fit: Seconds to fit hyperparameters, the pass over the readings included.
        draw: Seconds to draw the samples of GRIEFBayes, part of its fit.
        predict: Seconds to predict all held-out places.
        noise_sd: Of a reading: every sample of GRIEFBayes, one value of GRIEF.
        rmse: Error of the mean at held-out places, beside the map.
        coverage: Share of new readings there within the 95 % interval.
        width: Mean width of that interval.
        map_coverage: Share of values of the map within the interval of the function.
        map_width: Mean width of that interval.
        whole_coverage: As `map_coverage`, with what the eigenfunctions cannot follow added to the interval.
        whole_width: As `map_width`, with that added.
    """

    model: str
    rows: int
    make: float
    fit: float
    draw: float
    predict: float
    noise_sd: list[float]
    rmse: float
    coverage: float
    width: float
    map_coverage: float
    map_width: float
    whole_coverage: float
    whole_width: float


# --8<-- [start:data]
def readings(data: SpatialData, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places and values of noisy readings, and the row numbers of the places held out."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(data), generator=generator)
    held_out, places = order[:HELD_OUT], order[HELD_OUT:]
    rows = places[torch.randint(len(places), (count,), generator=generator)]
    noise = NOISE_SD * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return data.X[rows], data.Y[rows] + noise, held_out


# --8<-- [end:data]


# --8<-- [start:model]
def fitted(kind: type[GRIEF], X: Tensor, Y: Tensor, bounds: Tensor, size: Size) -> tuple[GRIEF, list[float]]:
    """A fitted model, and the seconds of making it, of the fit and of drawing samples."""
    times = [time.process_time()]
    model = kind(
        X,
        Y,
        num_eigenfunctions=size.eigenfunctions,
        grid_points=60,
        covar_module=ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)),
        input_transform=Normalize(2, bounds=bounds),
        bounds=bounds,
        subset_size=size.subset,
    )
    times.append(time.process_time())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    times.append(time.process_time())
    if isinstance(model, GRIEFBayes):  # the fit has drawn samples already; again, for the time of it
        model.inference.sampler.draw(model.inference, None)
    times.append(time.process_time())
    return model.eval(), [end - begin for begin, end in pairwise(times)]


# --8<-- [end:model]


# --8<-- [start:predict]
def moments(model: GRIEF, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the function at each place: those of the mixture over samples, if there are any."""
    with torch.no_grad():
        posterior = model.posterior(X.unsqueeze(1))
    mean, variance = posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)
    if isinstance(model, GRIEFBayes):
        mean, variance = posterior.mixture_mean.squeeze(-1), posterior.mixture_variance.squeeze(-1)
    return mean, variance


def noise_variances(model: GRIEF) -> Tensor:
    """The noise variance of a reading in raw units: one value, or one of every sample."""
    sampled = model.inference.sampled_noise if isinstance(model, GRIEFBayes) else model.learned_noise
    return sampled * model.outcome_transform.stdvs.square().squeeze()


# --8<-- [end:predict]


# --8<-- [start:judge]
def within(mean: Tensor, variance: Tensor, Y: Tensor) -> tuple[float, float]:
    """Coverage and mean width of 95 % intervals."""
    half = 1.96 * variance.sqrt()
    return ((mean - Y).abs() <= half).double().mean().item(), 2 * half.mean().item()


def judged(kind: type[GRIEF], count: int, data: SpatialData, size: Size) -> tuple[Result, GRIEF]:
    """Fit a model to some readings and judge it at the places held out."""
    X, Y, held_out = readings(data, count)
    bounds = torch.stack([data.X.amin(0), data.X.amax(0)])
    model, seconds = fitted(kind, X, Y, bounds, size)
    began = time.process_time()
    mean, variance = moments(model, data.X[held_out])
    predict = time.process_time() - began
    truth, noise = data.Y[held_out], noise_variances(model)
    new = truth + NOISE_SD * torch.randn(truth.shape, generator=torch.Generator().manual_seed(1), dtype=truth.dtype)
    unresolved = (noise.mean() - NOISE_SD**2).clamp_min(0.0)  # learned noise beyond the instrument's
    return Result(
        kind.__name__,
        count,
        *seconds,
        predict,
        noise.sqrt().tolist(),
        (mean - truth).square().mean().sqrt().item(),
        *within(mean, variance + noise.mean(), new),
        *within(mean, variance, truth),
        *within(mean, variance + unresolved, truth),
    ), model


# --8<-- [end:judge]


def weights_of(model: GRIEFBayes) -> Tensor:
    """Samples `S × p` of the prior variances ρ of the eigenfunctions, rotated to be orthogonal over the data."""
    return model.inference.drawn.log_weights.exp()


def plot(data: SpatialData, results: list[Result], model: GRIEFBayes, path: Path) -> None:
    """The posterior mean, the posterior of the noise for few and many rows, and that of the prior variances."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), constrained_layout=True)
    shown = axes[0].scatter(*data.X.mT.numpy(), c=moments(model, data.X)[0].squeeze(-1).numpy(), s=6, marker="s", lw=0)
    figure.colorbar(shown, ax=axes[0], shrink=0.9)
    axes[0].set(aspect="equal", title=f"Posterior mean from {results[-1].rows:,} readings")
    for result in results:
        if result.model == "GRIEFBayes":
            draws, label = torch.tensor(result.noise_sd), f"{result.rows:,} readings"
            axes[1].plot(draws.sort().values, torch.linspace(0, 1, len(draws)), "o-", markersize=3, label=label)
    axes[1].axvline(NOISE_SD, color="black", linewidth=0.8, linestyle=":", label="the instrument's")
    axes[1].set(xlabel="sd of the noise", title="Posterior of the noise, cumulative")
    rho = weights_of(model).quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64), dim=0)
    order = rho[1].argsort(descending=True)
    axes[2].fill_between(range(len(order)), rho[0][order], rho[2][order], alpha=0.3, lw=0, label="90 % of the samples")
    axes[2].plot(rho[1][order], label="median")
    axes[2].axhline(1.0, color="black", linewidth=0.8, linestyle=":", label="GRIEF: all 1")
    axes[2].set(yscale="log", xlabel="Eigenfunction, sorted", title="Posterior of prior variances ρ")
    for axis in axes[1:]:
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def print_table(results: list[Result]) -> None:
    """What every stage cost, and what the models know."""
    print(f"{'':<11}{'readings':>10}{'make, s':>9}{'fit, s':>8}{'draw, s':>9}{'predict, s':>12}")
    for r in results:
        print(f"{r.model:<11}{r.rows:>10,}{r.make:>9.1f}{r.fit:>8.1f}{r.draw:>9.2f}{r.predict:>12.2f}")
    print(f"\n{'':<11}{'':>10}{'sd of the noise (90 %)':>27}{'RMSE':>8}   coverage and width for", end=" ")
    print("readings, the map, the map with what is not resolved")
    for r in results:
        noise = torch.tensor(r.noise_sd, dtype=torch.float64)
        print(f"{r.model:<11}{r.rows:>10,}{noise.mean():>9.4f}", end=" ")
        print(f"({noise.quantile(0.05):.4f}, {noise.quantile(0.95):.4f}){r.rmse:>8.3f}", end="")
        print(f"{r.coverage:>9.3f} {r.width:.3f}{r.map_coverage:>9.3f} {r.map_width:.3f}", end="")
        print(f"{r.whole_coverage:>9.3f} {r.whole_width:.3f}")


def main() -> None:
    """Fit both models to few and to many readings, print what they know, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--short", action="store_true", help="fewer rows and eigenfunctions, in seconds")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data, size, began = load_malaria(), SHORT if arguments.short else Size(), time.process_time()
    results = []
    for count in size.rows:
        for kind in (GRIEF, GRIEFBayes):
            result, model = judged(kind, count, data, size)
            results.append(result)
    plot(data, results, model, arguments.out / "tutorial_million_rows.png")
    told = {"results": [asdict(result) for result in results], "seconds": time.process_time() - began}
    (arguments.out / "tutorial_million_rows.json").write_text(json.dumps(told) + "\n")
    print_table(results)
    print(f"\n{model.fit_report}\n")
    print(f"Plot and numbers: {arguments.out}/tutorial_million_rows.png, .json; {told['seconds']:.0f} s")


if __name__ == "__main__":
    main()
