"""Gramacy's problem with both constraints seen as one label, feasible or not: by the classifier, and by other means."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model, ModelList
from botorch.optim import optimize_acqf
from botorch.sampling import ListSampler, SobolQMCNormalSampler
from botorch.test_functions.synthetic import ConstrainedGramacy
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import text
from benchmarks.ax_quality import GRAMACY_OPTIMUM
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale import WISKI, WISKIClassifier

TITLE = "A constraint known by labels alone"
PLOTS = {"labels.png": "Regret on Gramacy's problem if labels say only whether a point is feasible"}
ANYWHERE = True
SEEDS, INITIAL, TRIALS = 10, 20, 50
"""Runs; quasi-random points they start with, and all points."""
GRID, OBJECTIVE_GRID = 12, 8
CONCENTRATION = 1e-4
"""A label is sure: the same point always has the same."""
FITS = 3
"""Proposals between two fits; labels stream in between."""
SAMPLES, RESTARTS, RAW = 128, 4, 128
PROBLEM = ConstrainedGramacy(negate=True).double()
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

Constraints = list[Callable[[Tensor], Tensor]]


def feasible(X: Tensor) -> Tensor:
    """Labels `n`: 1 where both constraints are kept."""
    return PROBLEM.is_feasible(X).long()


class Labels:
    """The classifier, told of labels as they come and fitted anew after every third."""

    _classifier: WISKIClassifier

    def model(self, X: Tensor, labels: Tensor) -> tuple[Model, Constraints, dict[str, Any]]:
        """Of what is feasible, with the constraints on samples of it that come after one of the objective."""
        if (len(X) - INITIAL) % FITS == 0:
            self._classifier = WISKIClassifier(
                X, labels, num_classes=2, grid_size=GRID, concentration=CONCENTRATION
            ).fit()
        else:
            self._classifier = self._classifier.condition_on_observations(X[-1:], labels[-1:])
        return self._classifier, [self._classifier.feasibility(1, first=1)], {"fat": [None]}


class Numbers:
    """An exact GP of the labels as if they were numbers, at least one half."""

    def model(self, X: Tensor, labels: Tensor) -> tuple[Model, Constraints, dict[str, Any]]:
        """As above."""
        model = SingleTaskGP(X, labels.double().unsqueeze(-1))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model, [lambda samples: 0.5 - samples[..., 1]], {}


class Slacks:
    """Exact GPs of the constraints' own values, which know more."""

    def model(self, X: Tensor, labels: Tensor) -> tuple[Model, Constraints, dict[str, Any]]:
        """As above."""
        model = SingleTaskGP(X, PROBLEM.evaluate_slack(X))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model, [lambda samples: -samples[..., 1], lambda samples: -samples[..., 2]], {}


WAYS: dict[str, Callable[[], Any] | None] = {
    "classifier": Labels,
    "labels as numbers": Numbers,
    "values of the constraints": Slacks,
    "random": None,
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for each way and seed."""
    pairs = itertools.product(range(SEEDS), WAYS)
    return {f"{way} seed {seed}": partial(optimise, way, seed) for seed, way in pairs}


def optimise(way: str, seed: int) -> dict[str, Any]:
    """The regret after each point, and how many of the proposals were feasible."""
    make = WAYS[way]
    count = TRIALS if make is None else INITIAL
    X = draw_sobol_samples(BOUNDS, count, 1, seed=seed).squeeze(1)
    learner = None if make is None else make()
    for trial in range(len(X), TRIALS):
        X = torch.cat([X, propose(learner, X, trial)])
    labels, Y = feasible(X), PROBLEM(X)
    found = torch.where(labels == 1, -Y, 2.0).cummin(0).values - GRAMACY_OPTIMUM
    proposed = labels[INITIAL:].double().mean().item()
    return {"way": way, "seed": seed, "regret": found.tolist(), "feasible": proposed}


def propose(learner: Any, X: Tensor, trial: int) -> Tensor:
    """The next point `1 × 2` by expected improvement; the objective is a WISKI, its values are exact."""
    labels, Y = feasible(X), PROBLEM(X).unsqueeze(-1)
    objective = WISKI(X, Y, torch.full_like(Y, 1e-4), grid_size=OBJECTIVE_GRID, bounds=BOUNDS)
    model, constraints, options = learner.model(X, labels)
    size, count = torch.Size([SAMPLES]), model.num_outputs
    samplers = [SobolQMCNormalSampler(size, seed=2 * trial + number) for number in range(2)]
    acquisition = qLogExpectedImprovement(
        ModelList(objective, model),
        best_f=Y[labels == 1].max() if bool((labels == 1).any()) else Y.min(),
        sampler=ListSampler(*samplers),
        objective=LinearMCObjective(torch.tensor([1.0] + [0.0] * count, dtype=torch.float64)),
        constraints=constraints,
        **options,
    )
    with torch.random.fork_rng():
        torch.manual_seed(trial)
        point, _ = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=RESTARTS, raw_samples=RAW)
    return point


def table(result: Result) -> str:
    """Regret at the end and share of feasible proposals, of each way."""
    rows = []
    for way in WAYS:
        runs = [unit for unit in result["units"].values() if unit["way"] == way]
        if runs:
            ends = np.array([run["regret"][-1] for run in runs])
            share = np.mean([run["feasible"] for run in runs])
            cells = [f"{np.median(ends):.4f}", f"{ends.max():.4f}", f"{share:.2f}", str(len(runs))]
            rows.append([way, *cells])
    return (
        f"Each run has {TRIALS - INITIAL} proposals of expected improvement after {INITIAL} quasi-random points. All "
        f"ways model the objective in the same way. The optimum lies on the border of the feasible region, so a "
        f"confident step towards it fails about every second time.\n\n"
        + text.table(["Constraint by", "Regret, median", "worst", "Feasible proposals", "Seeds"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """Median regrets."""
    ends = {way: [unit["regret"][-1] for unit in result["units"].values() if unit["way"] == way] for way in WAYS}
    if not all(ends.values()):
        return []
    shown = {way: f"{np.median(found):.4f}" for way, found in ends.items()}
    what = f"Gramacy's problem with one label, feasible or not, for its constraints, {TRIALS} points: median regret"
    ours, *others = WAYS
    return [(what, f"`WISKIClassifier`: {shown[ours]}", "; ".join(f"{way}: {shown[way]}" for way in others))]


def plot(result: Result, folder: Path) -> None:
    """A line for each way."""
    from benchmarks import plots

    with plots.figure(folder / "labels.png") as (axis,):
        for way in WAYS:
            runs = [unit["regret"] for unit in result["units"].values() if unit["way"] == way]
            if runs:
                plots.band(axis, range(1, TRIALS + 1), runs, way)
        axis.set(xlabel="Points", ylabel="Regret", yscale="log")
