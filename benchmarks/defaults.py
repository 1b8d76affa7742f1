"""What a search with no options finds in 40 evaluations, beside Optuna, BoTorch and Ax."""

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Branin, Hartmann, Levy, Michalewicz, StyblinskiTang
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import t as student
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Choice, Integer, Optimizer, Real

TITLE = "Searches with no options"
ANYWHERE = True
"""Regrets are not times: units may come from several machines."""
EVALUATIONS, SEEDS = 40, range(20)
MARKS = (10, 20, 40)
RIVALS = ("Optuna", "BoTorch", "Ax")
MODELS = ("bo_scale", *RIVALS)
BOTORCH_FIRST, RESTARTS, RAW = 5, 10, 512
"""First quasi-random points of the loop by BoTorch, as many as Ax's default has, and its search for a maximum."""
LIMIT = 1.0
"""Of the bound, in % of the range."""
SAMPLE = 2**13
"""Random points from which a function's range is found."""
Point: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A function to minimise, and its parameters as every package takes them.

    Attributes:
        space: Real, Integer and Choice parameters by name.
        evaluate_all: The function, at each of some points.
        optimum: Its minimum.
    """

    space: dict[str, Real | Integer | Choice]
    evaluate_all: Callable[[list[Point]], list[float]]
    optimum: float

    def evaluate(self, point: Point) -> float:
        """The function at one point."""
        return self.evaluate_all([point])[0]

    @property
    def span(self) -> float:
        """The range of the function, from its minimum to the largest of a sample."""
        return _span(self)


@cache
def _span_of(name: str) -> float:
    problem = PROBLEMS[name]
    points = _decoded(problem, SobolEngine(_width(problem), scramble=True, seed=0).draw(SAMPLE, dtype=torch.float64))
    return max(problem.evaluate_all(points)) - problem.optimum


def _span(problem: Problem) -> float:
    return _span_of(next(name for name, each in PROBLEMS.items() if each is problem))


def _box(function: Any) -> Problem:
    lower, upper = function.bounds
    space: dict[str, Any] = {f"x{j}": Real(float(lower[j]), float(upper[j])) for j in range(function.dim)}
    return Problem(
        space, lambda points: _at(function, [list(point.values()) for point in points]), function.optimal_value
    )


def _at(function: Any, places: list[list[float]]) -> list[float]:
    x = torch.tensor(places, dtype=torch.float64)
    lower, upper = function.bounds.double()  # which rounding may miss
    return function(x.maximum(lower).minimum(upper)).tolist()


def _branin(points: list[Point]) -> list[float]:
    return _at(Branin(), [[point["x"], 7.5 + 2.5 * math.log10(point["rate"])] for point in points])


def _tuning(points: list[Point]) -> list[float]:
    return [_loss(point) for point in points]


def _loss(point: Point) -> float:
    """A smooth loss of five hyperparameters, with a best rate that depends on the width and the optimizer."""
    best = {"sgd": -1.5, "adam": -3.0, "rmsprop": -3.4}[point["optimizer"]] - 0.3 * math.log2(point["width"] / 64)
    floor = {"sgd": 0.10, "adam": 0.05, "rmsprop": 0.08}[point["optimizer"]]
    rate = 0.3 * (math.log10(point["rate"]) - best) ** 2
    size = 0.04 * (math.log2(point["width"]) - 7) ** 2 + 0.05 * (point["layers"] - 3) ** 2
    momentum = 0.5 * (point["momentum"] - (0.9 if point["optimizer"] == "sgd" else 0.6)) ** 2
    return floor + math.tanh(rate) + size + momentum


TUNING = {
    "rate": Real(1e-5, 1.0, log=True),
    "momentum": Real(0.0, 0.99),
    "layers": Integer(1, 6),
    "width": Integer(16, 1024, log=True),
    "optimizer": Choice(("sgd", "adam", "rmsprop")),
}
PROBLEMS = {
    "Hartmann-6": _box(Hartmann(6)),
    "Branin, logarithmic": Problem({"x": Real(-5.0, 10.0), "rate": Real(1e-3, 1e3, log=True)}, _branin, 0.397887),
    "Tuning": Problem(TUNING, _tuning, 0.05),
    "Levy-4": _box(Levy(4)),
    "Ackley-3": _box(Ackley(3, bounds=[(-20.0, 40.0)] * 3)),  # whose centre is not the minimum
    "Michalewicz-5": _box(Michalewicz(5)),
    "Styblinski-Tang-3": _box(StyblinskiTang(3)),
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for every seed, problem and package: by seeds, so that a run may end with any of them."""
    return {
        f"{name} {model} seed {seed}": partial(optimise, name, model, seed)
        for seed in SEEDS
        for name in PROBLEMS
        for model in MODELS
    }


def optimise(name: str, model: str, seed: int) -> dict[str, Any]:
    """One run. Seconds are those of proposals."""
    problem, seconds, regret = PROBLEMS[name], 0.0, list[float]()
    proposals = {"bo_scale": _ours, "Optuna": _optuna, "BoTorch": _botorch, "Ax": _ax}[model](problem, seed)
    best, value = math.inf, None
    for _ in range(EVALUATIONS):
        started = time.perf_counter()
        point = next(proposals) if value is None else proposals.send(value)
        seconds += time.perf_counter() - started
        value = problem.evaluate(point)
        best = min(best, value)
        regret.append(best - problem.optimum)
    return {"problem": name, "model": model, "seed": seed, "regret": regret, "seconds": round(seconds, 2)}


# ---------------------------------------------------------------------- packages: generators that yield points


def _ours(problem: Problem, seed: int) -> Any:
    search = Optimizer(problem.space, objective="minimize", seed=seed)
    while True:
        (point,) = search.ask(1)
        search.tell([point], [(yield point)])


def _optuna(problem: Problem, seed: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed))
    while True:
        trial, point = study.ask(), {}
        for name, each in problem.space.items():
            if isinstance(each, Choice):
                point[name] = trial.suggest_categorical(name, list(each.values))
            elif isinstance(each, Integer):
                point[name] = trial.suggest_int(name, each.lower, each.upper, log=each.log)
            else:
                point[name] = trial.suggest_float(name, each.lower, each.upper, log=each.log)
        study.tell(trial, (yield point))


def _ax(problem: Problem, seed: int) -> Any:
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.utils.common.logger import set_ax_logger_levels

    set_ax_logger_levels(logging.ERROR)
    torch.manual_seed(seed)
    parameters: list[Any] = []
    for name, each in problem.space.items():
        if isinstance(each, Choice):
            parameters.append(ChoiceParameterConfig(name=name, values=list(each.values), parameter_type="str"))
        else:
            kind: Any = "int" if isinstance(each, Integer) else "float"
            scale: Any = "log" if each.log else "linear"
            bounds = (each.lower, each.upper)
            parameters.append(RangeParameterConfig(name=name, bounds=bounds, parameter_type=kind, scaling=scale))
    client = Client(random_seed=seed)
    client.configure_experiment(parameters)
    client.configure_optimization("-y")
    client.configure_generation_strategy(initialization_random_seed=seed)
    while True:
        ((index, point),) = client.get_next_trials(1).items()
        client.complete_trial(index, {"y": (yield point)})


def _botorch(problem: Problem, seed: int) -> Any:
    """The loop of BoTorch's introduction, on the unit cube with one-hot columns; points are rounded to valid ones."""
    torch.manual_seed(seed)
    width = _width(problem)
    box = torch.stack([torch.zeros(width), torch.ones(width)]).double()
    X = _valid(problem, SobolEngine(width, scramble=True, seed=seed).draw(BOTORCH_FIRST, dtype=torch.float64))
    Y = torch.empty(0, 1, dtype=torch.float64)
    for row in X:
        Y = torch.cat([Y, torch.tensor([[-(yield _decoded(problem, row.unsqueeze(0))[0])]]).double()])
    while True:
        model = SingleTaskGP(X, Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogExpectedImprovement(model, Y.max())
        best, _ = optimize_acqf(acquisition, box, q=1, num_restarts=RESTARTS, raw_samples=RAW)
        best = _valid(problem, best.detach())
        X = torch.cat([X, best])
        Y = torch.cat([Y, torch.tensor([[-(yield _decoded(problem, best)[0])]]).double()])


def _columns(problem: Problem) -> Iterator[tuple[str, Real | Integer | Choice, slice]]:
    """The columns of the unit cube of each parameter: one, or one for each value of a choice."""
    start = 0
    for name, each in problem.space.items():
        size = len(each.values) if isinstance(each, Choice) else 1
        yield name, each, slice(start, start + size)
        start += size


def _width(problem: Problem) -> int:
    return max(columns.stop for _, _, columns in _columns(problem))


def _decoded(problem: Problem, unit: Tensor) -> list[Point]:
    """Points of the unit cube in raw units."""
    found: list[Point] = [{} for _ in unit]
    for (name, each, columns), (row, point) in itertools.product(
        _columns(problem), zip(unit.tolist(), found, strict=True)
    ):
        part = row[columns]
        if isinstance(each, Choice):
            point[name] = each.values[part.index(max(part))]
            continue
        ends = [math.log(each.lower), math.log(each.upper)] if each.log else [each.lower, each.upper]
        value = ends[0] + (ends[1] - ends[0]) * part[0]
        value = min(max(math.exp(value) if each.log else value, each.lower), each.upper)
        point[name] = round(value) if isinstance(each, Integer) else value
    return found


def _valid(problem: Problem, unit: Tensor) -> Tensor:
    """Rows of the unit cube moved to places of whole numbers and single choices."""
    rows = unit.clone()
    for row, point in zip(rows, _decoded(problem, unit), strict=True):
        for name, each, columns in _columns(problem):
            if isinstance(each, Choice):
                row[columns] = torch.tensor([float(value == point[name]) for value in each.values])
            elif isinstance(each, Integer):
                ends = (math.log(each.lower), math.log(each.upper)) if each.log else (each.lower, each.upper)
                value = math.log(point[name]) if each.log else point[name]
                row[columns] = (value - ends[0]) / (ends[1] - ends[0])
    return rows


# ---------------------------------------------------------------------- report


def runs_of(result: Result, name: str, model: str) -> dict[int, dict[str, Any]]:
    """Runs by seed."""
    found = (unit for unit in result["units"].values() if (unit["problem"], unit["model"]) == (name, model))
    return {unit["seed"]: unit for unit in found}


def difference(result: Result, name: str, rival: str) -> tuple[int, float, float] | None:
    """Seeds of both, the mean of our last regrets less the rival's and its upper 90 % bound, both in % of the range."""
    ours, theirs = runs_of(result, name, "bo_scale"), runs_of(result, name, rival)
    gaps = [ours[seed]["regret"][-1] - theirs[seed]["regret"][-1] for seed in sorted(ours.keys() & theirs.keys())]
    if len(gaps) < 2:
        return None
    mean, error, scale = statistics.mean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5, 100 / PROBLEMS[name].span
    return len(gaps), scale * mean, scale * (mean + float(student.ppf(0.9, len(gaps) - 1)) * error)


def table(result: Result) -> str:
    """Regrets by problem and package."""
    rows = []
    for name, problem in PROBLEMS.items():
        for model in MODELS:
            runs = list(runs_of(result, name, model).values())
            if not runs:
                continue
            marks = [statistics.mean(run["regret"][mark - 1] for run in runs) * 100 / problem.span for mark in MARKS]
            median = statistics.median(run["regret"][-1] for run in runs) * 100 / problem.span
            seconds = statistics.mean(run["seconds"] for run in runs) / EVALUATIONS
            found = difference(result, name, model) if model in RIVALS else None
            gap = ["–", "–"] if found is None else [f"{found[1]:+.2f}", f"{found[2]:+.2f}"]
            shown = [f"{value:.3g}" for value in (*marks, median)]
            rows.append([name, model, str(len(runs)), *shown, *gap, text.seconds(seconds)])
    header = ["problem", "package", "seeds", *(f"at {mark}" for mark in MARKS), "median", "ours less", "upper 90 %"]
    return (
        f"- The table shows the mean regret, in % of the range of the function, after so many of {EVALUATIONS} "
        f"evaluations, one at a time, and the median of the last. Values have no noise. Lower is better.\n"
        "- Ours is `Optimizer(space, objective='minimize')` with no other argument. Optuna has its GPSampler, Ax its "
        f"default strategy. BoTorch has the loop of its introduction: `SingleTaskGP`, qLogEI, {BOTORCH_FIRST} first "
        "points, logarithms of logarithmic parameters and a column for each value of a choice.\n"
        "- 'Ours less' is our last regret minus the other's on the same seeds. The bound is the upper end of a "
        f"one-sided 90 % interval for its mean (Student's t), and should be below {LIMIT:g} %.\n"
        "- Seconds are for a proposal.\n\n" + text.table([*header, "seconds"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """The largest bound against each rival."""
    worst = {
        rival: max(((found[2], name) for name in PROBLEMS if (found := difference(result, name, rival))), default=None)
        for rival in RIVALS
    }
    said = [f"{rival} {each[0]:+.1f} % ({each[1]})" for rival, each in worst.items() if each]
    if not said:
        return []
    what = f"{len(PROBLEMS)} searches of {EVALUATIONS} evaluations with no options: largest upper 90 % bound"
    return [(what, "; ".join(said), "Optuna, BoTorch, Ax")]
