"""20,000 past results to the next batch: which 50 of 5,000 candidates to measure.

Data: decoys of proteins, that is models of their structure, with nine properties of each and its distance (RMSD, in
ångström) from the native structure; P. S. Rana, UCI Machine Learning Repository, CC BY 4.0, a sample that ships with
bo_scale. Time: about 50 seconds on one core.

20,000 decoys are the past. 5,000 others could be measured next, and the best of them are sought: small RMSD. Two
models are compared on held-out rows, the better one proposes batches of 50, and the RMSD of these is then looked up.

    python examples/tutorial_past_results.py --out demo
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib as mpl
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import GRIEF, SoftKI, draw_posterior_functions
from bo_scale.datasets import load_protein

mpl.use("Agg")
import matplotlib.pyplot as plt

PAST, HELD_OUT, BATCH, BEST = 20_000, 2_000, 50, 0.01
REPEATS = 20


@dataclass(frozen=True)
class Size:
    """How much is done: the tutorial's size, and a short one for tests."""

    past: int = PAST
    held_out: int = HELD_OUT
    features: int = 512
    subset: int = 1_000
    epochs: int = 15
    batches: int = 10
    repeats: int = REPEATS


SHORT = Size(past=2_000, held_out=500, features=64, subset=200, epochs=3, batches=2, repeats=3)


@dataclass
class Score:
    """How well a model predicts held-out rows, in log(1 + RMSD).

    Attributes:
        model: Its name.
        rmse: Root mean squared error.
        coverage: Share of the values within the 95 % interval.
        width: Mean width of that interval.
        seconds: Of its fit, processor time.
    """

    model: str
    rmse: float
    coverage: float
    width: float
    seconds: float


@dataclass
class Search:
    """What one way of choosing found.

    Attributes:
        strategy: "mean" or "Thompson".
        first: How many of the best candidates the first batch has; for Thompson draws, in each repeat.
        found: How many there are after each batch.
        seconds: Of choosing a batch and taking its results in, processor time.
    """

    strategy: str
    first: list[int]
    found: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


# --8<-- [start:data]
def prepared(size: Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and targets of the past, and of the candidates.

    Inputs are ranks among the past: several properties have long tails. Targets are log(1 + RMSD), for 1 Å more or less
    matters among the best and not among the worst.
    """
    data = load_protein()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    X, Y = data.X[order], data.Y[order].log1p()
    past = X[: size.past].sort(0).values.mT.contiguous()
    ranks = torch.searchsorted(past, X.mT.contiguous()).mT / size.past
    return ranks[: size.past].to(Y), Y[: size.past], ranks[PAST:].to(Y), Y[PAST:]


# --8<-- [end:data]


# --8<-- [start:hold_out]
def fitted(model: GRIEF | SoftKI) -> GRIEF | SoftKI:
    """Fit hyperparameters; all of this package's models are fitted by this call."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def scored(model: GRIEF | SoftKI, X: Tensor, Y: Tensor, seconds: float) -> Score:
    """Error, coverage and width on held-out rows; each row is predicted for itself, hence `unsqueeze(1)`."""
    with torch.no_grad():
        posterior = model.posterior(X.unsqueeze(1), observation_noise=True)
    error = (posterior.mean.squeeze(1) - Y).abs()
    half = 1.96 * posterior.variance.squeeze(1).sqrt()
    rmse, coverage = error.square().mean().sqrt().item(), (error <= half).double().mean().item()
    return Score(type(model).__name__, rmse, coverage, 2 * half.mean().item(), seconds)


def compared(X: Tensor, Y: Tensor, size: Size) -> tuple[list[Score], GRIEF | SoftKI]:
    """Score both models on held-out rows; return the better one, conditioned on these rows too."""
    seen, scores, models = size.past - size.held_out, [], []
    for build in (
        lambda X, Y: GRIEF(X, Y, num_eigenfunctions=size.features, subset_size=size.subset),
        lambda X, Y: SoftKI(X, Y, num_interpolation_points=size.features, epochs=size.epochs, progress=False),
    ):
        began = time.process_time()
        models.append(fitted(build(X[:seen], Y[:seen])))
        scores.append(scored(models[-1], X[seen:], Y[seen:], time.process_time() - began))
    best = min(range(len(models)), key=lambda i: scores[i].rmse)
    return scores, models[best].condition_on_observations(X[seen:], Y[seen:])


# --8<-- [end:hold_out]


# --8<-- [start:batch]
def best_by_mean(model: GRIEF | SoftKI, pool: Tensor) -> Tensor:
    """Indices of the candidates with the smallest posterior means."""
    with torch.no_grad():
        return model.posterior_mean(pool).squeeze(-1).topk(BATCH, largest=False).indices


def best_by_draws(model: GRIEF | SoftKI, pool: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of a Thompson batch: each candidate is the best, of those left, in one function of the posterior."""
    with torch.no_grad():
        values = draw_posterior_functions(model, torch.Size([BATCH]), generator)(pool).reshape(BATCH, len(pool))
    chosen: list[int] = []
    for row in values:
        row[chosen] = torch.inf
        chosen.append(int(row.argmin()))
    return torch.tensor(chosen)


# --8<-- [end:batch]


# --8<-- [start:search]
def search(strategy: str, model: GRIEF | SoftKI, X: Tensor, Y: Tensor, size: Size) -> Search:
    """Choose a batch, look its results up, condition on them, and so on."""
    generator = torch.Generator().manual_seed(0)
    wanted = torch.zeros(len(Y), dtype=torch.bool)
    wanted[Y.squeeze(-1).topk(round(BEST * len(Y)), largest=False).indices] = True
    draws = [best_by_draws(model, X, generator) for _ in range(size.repeats if strategy == "Thompson" else 0)]
    first = [int(wanted[batch].sum()) for batch in draws or [best_by_mean(model, X)]]
    run, left = Search(strategy, first), torch.arange(len(Y))
    for _ in range(size.batches):
        began = time.process_time()
        pool = X[left]
        chosen = best_by_mean(model, pool) if strategy == "mean" else best_by_draws(model, pool, generator)
        rows = left[chosen]
        model = model.condition_on_observations(X[rows], Y[rows])
        left = left[~torch.isin(left, rows)]
        run.found.append(int(wanted.sum() - wanted[left].sum()))
        run.seconds.append(time.process_time() - began)
    return run


# --8<-- [end:search]


def plot(runs: list[Search], Y: Tensor, path: Path) -> None:
    """How many of the best were found against how many candidates were measured."""
    figure, axis = plt.subplots(figsize=(7.5, 4.2), constrained_layout=True)
    best, measured = round(BEST * len(Y)), BATCH * torch.arange(len(runs[0].found) + 1)
    for run, style in zip(runs, ("o-", "s--"), strict=True):
        name = {"mean": "smallest posterior mean", "Thompson": "Thompson draws"}[run.strategy]
        axis.plot(measured, [0, *run.found], style, markersize=5, label=name)
    axis.plot(measured, BEST * measured, color="grey", label="at random, expected")
    axis.axhline(best, color="black", linewidth=0.8, linestyle=":", label="all of them")
    axis.set(xlabel=f"Candidates measured, of {len(Y):,}", ylabel=f"Found, of the {best} best", ylim=(-1, best + 3))
    axis.grid(alpha=0.3)
    axis.legend(loc="center right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Compare the models, choose batches, print what was found, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--short", action="store_true", help="fewer rows and smaller models, in seconds")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    size, began = SHORT if arguments.short else Size(), time.process_time()
    X, Y, candidates, values = prepared(size)
    scores, model = compared(X, Y, size)
    runs = [search(strategy, model, candidates, values, size) for strategy in ("mean", "Thompson")]
    plot(runs, values, arguments.out / "tutorial_past_results.png")
    told = {
        "past": model.num_observations,
        "candidates": len(values),
        "sd": Y.std().item(),
        "scores": [asdict(score) for score in scores],
        "runs": [asdict(run) for run in runs],
        "seconds": time.process_time() - began,
    }
    (arguments.out / "tutorial_past_results.json").write_text(json.dumps(told) + "\n")
    print(f"{'model':<8}{'RMSE':>8}{'coverage':>10}{'width':>8}{'fit, s':>8}    (sd of the values: {told['sd']:.3f})")
    for score in scores:
        print(f"{score.model:<8}{score.rmse:>8.3f}{score.coverage:>10.3f}{score.width:>8.2f}{score.seconds:>8.1f}")
    print(f"\nOf the {round(BEST * len(values))} best candidates, in a first batch of {BATCH}:")
    print(f"at random {BEST * BATCH:.1f} are expected; by the mean {runs[0].first[0]};", end=" ")
    first = torch.tensor(runs[1].first, dtype=torch.float64)
    print(f"by Thompson draws {first.mean():.1f} ({first.min():.0f} to {first.max():.0f} in {len(first)} repeats)")
    for run in runs:
        print(f"{run.strategy:<9} after each batch: {run.found}; {max(run.seconds):.2f} s a batch at most")
    print(f"Plot and numbers: {arguments.out}/tutorial_past_results.png, .json; {told['seconds']:.0f} s")


if __name__ == "__main__":
    main()
