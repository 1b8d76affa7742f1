"""What Ax's client finds in 60 trials with its default surrogate and with ours: one objective, two, and constraints."""

import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.utils.common.logger import set_ax_logger_levels
from ax.utils.common.random import with_rng_seed
from botorch.test_functions import Hartmann
from botorch.test_functions.multi_objective import BraninCurrin
from botorch.test_functions.synthetic import ConstrainedGramacy
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from scipy.stats import t as student
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.ax import generation_strategy

TITLE = "What Ax finds"
PLOTS = {"ax_quality.png": "Regret of Ax's client against trials: mean over seeds"}
ANYWHERE = True
"""Regrets are not times: units may come from several machines."""
TRIALS, SEEDS, BLOCK = 60, range(20), 5
MARKS = (20, 40, 60)
DEFAULT = "default"
INITIAL_SOBOL = 4
"""Of Ax's default five first trials; the other is the centre."""
MODELS = (DEFAULT, "wiski", "softki", "grief", "cagp", "decoupled", "grief_bayes")
LAST = "grief_bayes"
"""The slowest comes last in every block of seeds."""
LIMIT = 5
"""Of the bound, in % of the range."""
HARTMANN, BRANIN_CURRIN, GRAMACY = Hartmann(dim=6), BraninCurrin(), ConstrainedGramacy()
GRAMACY_OPTIMUM = 0.599788
"""By SLSQP, from many points; BoTorch has it with four digits."""


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube and how a user would pose it.

    Attributes:
        dimension: d.
        outcomes: Their names.
        objective: For `configure_optimization`.
        constraints: For `configure_optimization`.
        observe: The outcomes at an input.
        regret: Of all outcomes so far, `n × m`.
        span: The range that regrets are given in % of.
    """

    dimension: int
    outcomes: tuple[str, ...]
    objective: str
    constraints: tuple[str, ...]
    observe: Callable[[Tensor], Tensor]
    regret: Callable[[Tensor], float]
    span: float


def hartmann_regret(Y: Tensor) -> float:
    """The best value less the minimum."""
    return float(Y.min()) - HARTMANN.optimal_value


def hypervolume_regret(Y: Tensor) -> float:
    """The largest hypervolume less that of the points seen."""
    return BRANIN_CURRIN.max_hv - float(DominatedPartitioning(-BRANIN_CURRIN.ref_point.to(Y), -Y).compute_hypervolume())


def feasible_regret(Y: Tensor) -> float:
    """The best feasible value less the optimum; 2, the worst of the square, as long as there is none."""
    feasible = Y[(Y[:, 1:] >= 0).all(-1), 0].tolist()
    return min([*feasible, 2.0]) - GRAMACY_OPTIMUM


PROBLEMS = {
    "Hartmann-6": Problem(
        dimension=6,
        outcomes=("y",),
        objective="-y",
        constraints=(),
        observe=lambda x: HARTMANN(x).reshape(1),
        regret=hartmann_regret,
        span=-HARTMANN.optimal_value,
    ),
    "Branin-Currin": Problem(
        dimension=2,
        outcomes=("branin", "currin"),
        objective="-branin, -currin",
        constraints=("branin <= 18", "currin <= 6"),
        observe=BRANIN_CURRIN,
        regret=hypervolume_regret,
        span=BRANIN_CURRIN.max_hv,
    ),
    "Gramacy": Problem(
        dimension=2,
        outcomes=("y", "c1", "c2"),
        objective="-y",
        constraints=("c1 >= 0", "c2 >= 0"),
        observe=lambda x: torch.cat([GRAMACY(x).reshape(1), GRAMACY.evaluate_slack(x.unsqueeze(0))[0]]),
        regret=feasible_regret,
        span=2.0,
    ),
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for every problem, model and seed: by blocks of seeds, so that a run may end with any of them."""
    runs: dict[str, Unit] = {}
    for start in range(0, len(SEEDS), BLOCK):
        for late in (False, True):
            for seed in SEEDS[start : start + BLOCK]:
                for name in PROBLEMS:
                    for model in (model for model in served(name) if (model == LAST) == late):
                        runs[f"{name} {model} seed {seed}"] = partial(optimise, name, model, seed)
    return runs


def served(name: str) -> list[str]:
    """Models for a problem: a grid is for few inputs."""
    return [model for model in MODELS if model != "wiski" or PROBLEMS[name].dimension <= 4]


def client_for(problem: Problem, model: str, seed: int) -> Client:
    """A client for a problem as a user would set it up."""
    client = Client()
    client.configure_experiment(
        [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0, 1)) for j in range(problem.dimension)]
    )
    client.configure_optimization(problem.objective, outcome_constraints=problem.constraints)
    if model == DEFAULT:
        client.configure_generation_strategy(initialization_random_seed=seed)
    else:
        client.set_generation_strategy(generation_strategy(model, seed=seed))
    return client


def optimise(name: str, model: str, seed: int) -> dict[str, Any]:
    """One run; seconds are those of generation. A model that fails leaves its error, and what it found before."""
    set_ax_logger_levels(logging.ERROR)
    problem = PROBLEMS[name]
    client = client_for(problem, model, seed)
    rows: list[Tensor] = []
    regret: list[float] = []
    seconds, failed = 0.0, {}
    with with_rng_seed(seed):
        try:
            for _ in range(TRIALS):
                start = time.perf_counter()
                ((index, parameters),) = client.get_next_trials(1).items()
                seconds += time.perf_counter() - start
                x = torch.tensor([parameters[f"x{j}"] for j in range(problem.dimension)], dtype=torch.float64)
                rows.append(problem.observe(x).double())
                client.complete_trial(index, dict(zip(problem.outcomes, rows[-1].tolist(), strict=True)))
                regret.append(problem.regret(torch.stack(rows)))
        except Exception as error:
            failed = {"error": f"{type(error).__name__} at n = {len(rows)}: {error}"[:300]}
    run = {"problem": name, "model": model, "seed": seed, "regret": regret, "seconds": seconds}
    return {**run, "generators": generators(client), **failed}


def generators(client: Client) -> dict[str, int]:
    """Trials by what made them: Ax falls back to Sobol points where a model repeats itself."""
    trials = client._experiment.trials.values()
    return dict(Counter(str(trial.generator_run._generator_key) for trial in trials))


# ---------------------------------------------------------------------- report


def runs_of(result: Result, name: str, model: str) -> dict[int, dict[str, Any]]:
    """Runs by seed, without those that failed."""
    found = (unit for unit in result["units"].values() if unit["problem"] == name and unit["model"] == model)
    return {unit["seed"]: unit for unit in found if "error" not in unit}


def difference(result: Result, name: str, model: str) -> tuple[int, float, float] | None:
    """Seeds of both, the mean of last regrets less the default's and its upper 90 % bound, both in % of the range."""
    ours, theirs = runs_of(result, name, model), runs_of(result, name, DEFAULT)
    gaps = [ours[seed]["regret"][-1] - theirs[seed]["regret"][-1] for seed in sorted(ours.keys() & theirs.keys())]
    if model == DEFAULT or len(gaps) < 2:
        return None
    mean, error = statistics.mean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
    scale = 100 / PROBLEMS[name].span
    return len(gaps), scale * mean, scale * (mean + float(student.ppf(0.9, len(gaps) - 1)) * error)


def table(result: Result) -> str:
    """Regrets by problem and model; failures."""
    rows = [
        _row(result, name, model, runs)
        for name in PROBLEMS
        for model in MODELS
        if (runs := runs_of(result, name, model))
    ]
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    spans = ", ".join(f"{name} {problem.span:.4g}" for name, problem in PROBLEMS.items())
    header = ["problem", "model", "seeds", *(f"at {mark}" for mark in MARKS), "difference", "upper 90 %"]
    return (
        f"- The table shows the mean regret, in % of the range, after the given number of trials of "
        f"`client.get_next_trials(1)`. Values have no noise. Lower is better.\n"
        f"- 'default' is Ax's own choice. Ours are `generation_strategy(model)` with default options. For a given seed "
        f"all begin with the centre and the same Sobol points: by Ax's default five points in all.\n"
        f"- Hartmann-6 is minimised. Its range is from 0 to its minimum.\n"
        f"- Branin-Currin has two objectives, with the reference point (18, 6) as thresholds. Its regret is the "
        f"missing hypervolume, its range the largest hypervolume.\n"
        f"- Gramacy has two constraints. Its regret is that of the best feasible value, its range that of the "
        f"objective on the square. As long as no point is feasible, the worst value counts.\n"
        f"- Ranges: {spans}.\n"
        f"- The difference is the last regret minus the default's on the same seeds. The bound is the upper end of a "
        f"one-sided 90 % interval for its mean (Student's t), and should be below {LIMIT} %.\n"
        f"- Fallbacks, counted over all runs, are Sobol points that Ax took because the model repeated a point.\n\n"
        + text.table([*header, "fallbacks"], rows)
        + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "")
    )


def _row(result: Result, name: str, model: str, runs: dict[int, dict[str, Any]]) -> list[str]:
    found, scale = difference(result, name, model), 100 / PROBLEMS[name].span
    length = len(next(iter(runs.values()))["regret"])
    marks = [
        f"{scale * statistics.mean(run['regret'][mark - 1] for run in runs.values()):.2f}" if mark <= length else ""
        for mark in MARKS
    ]
    gap = ["–", "–"] if found is None else [f"{found[1]:+.2f}", f"{found[2]:+.2f}"]
    fallbacks = str(sum(fallen(run) for run in runs.values()))
    return [name, model, str(len(runs)), *marks, *gap, fallbacks]


def fallen(run: dict[str, Any]) -> int:
    """Sobol points of a run beyond the first trials."""
    return max(0, run["generators"].get("Sobol", 0) - INITIAL_SOBOL)


def headline(result: Result) -> list[text.Row]:
    """The best model on each problem, of those with the most seeds."""
    best = []
    for name in PROBLEMS:
        found = [(each[2], model, each[0]) for model in MODELS if (each := difference(result, name, model))]
        if found:
            most = max(each[2] for each in found)  # a few seeds say little
            bound, model, seeds = min(each for each in found if each[2] == most)
            best.append(f"{name}: {bound:+.2f} % of the range with `{model}` ({seeds} seeds)")
    if not best:
        return []
    what = f"what Ax finds in {TRIALS} trials: mean difference in regret to the default, upper 90 % bound"
    return [(what, f"{'; '.join(best)} (target: below {LIMIT} %)", "Ax's default surrogate")]


def plot(result: Result, folder: Path) -> None:
    """A panel for each problem, a line for each model."""
    from benchmarks import plots

    with plots.figure(folder / "ax_quality.png", panels=len(PROBLEMS)) as axes:
        for axis, (name, problem) in zip(axes, PROBLEMS.items(), strict=True):
            for number, model in enumerate(MODELS):
                runs = [run["regret"] for run in runs_of(result, name, model).values()]
                if runs:
                    means = [100 / problem.span * statistics.mean(values) for values in zip(*runs, strict=True)]
                    style = "k--" if model == DEFAULT else f"C{number}-"
                    axis.plot(range(1, len(means) + 1), means, style, linewidth=1.4, label=model)
            axis.set(yscale="log", title=name, xlabel="Trials", ylabel="Regret, % of the range")
