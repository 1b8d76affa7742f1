"""The decoupled GP against SVGP while they train: error and bound against the clock, in steps on batches of one size.

Both have an RBF kernel with a lengthscale an input and an outputscale. The clock starts before anything is chosen or
fitted, and stands still while a model is looked at.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from torch import Tensor

from benchmarks import rivals, text, uci
from benchmarks.child import in_child_or_error, peak_megabytes
from benchmarks.harness import Unit, require_data
from benchmarks.store import Result

TITLE = "Decoupled GP while it trains"
PLOTS = {"decoupled.png": "Error on the test rows, and the bound on the evidence, against seconds of training"}
DATA_SETS = ("kin40k", "protein", "keggundirected")
MARKS = (30.0, 60.0, 120.0)
"""Seconds of training at which a model is evaluated; the last is the budget."""
BATCH, SUBSET = 1024, 1000
"""Rows a step, and of the exact GP that hyperparameters start from."""
MEAN_POINTS, COVAR_POINTS, RATE = 4096, 256, 0.003
"""M_α and M_β of the decoupled GP by Adam alone, and γ₀ of its step size."""
SOLVED_POINTS = 2048, 512
"""M_α and M_β of the one whose variational parameters are solved for: as its class does, up to so many."""
SVGP_POINTS, SVGP_RATE = 1024, 0.01
BOUND_ROWS = 8192
"""Training rows that the bound's data term is estimated from, the same for all models."""
FAR = 2.0
"""The plot shows errors up to so many times the largest last one, and bounds so far below the lowest last one."""
RIVAL = f"SVGP, M = {SVGP_POINTS:,}"

Moments = tuple[Tensor, Tensor]
Look = Callable[[], dict[str, float]]
"""Scores and bound of a model as it is."""


class _Done(Exception):
    """The budget of a training is spent."""


class Clock:
    """Seconds of training, which stand still while a model is looked at.

    Args:
        marks: Seconds at which to look; the last ends the training.
    """

    def __init__(self, marks: Sequence[float]) -> None:
        self.found: list[dict[str, float]] = []
        self.steps = 0
        self._left, self._started, self._first = list(marks), time.perf_counter(), 0.0

    def due(self) -> bool:
        """Whether a mark has been passed."""
        return time.perf_counter() - self._started >= self._left[0]

    def before_step(self, look: Look) -> bool:
        """Call before every step: looks where a mark is passed; whether the budget is spent."""
        now = time.perf_counter() - self._started
        self._first = self._first or now
        if now >= self._left[0]:
            while self._left and now >= self._left[0]:
                mark = self._left.pop(0)
            per_step = (now - self._first) / max(1, self.steps)
            looked = {"mark": mark, "seconds": now, "steps": self.steps, "step_seconds": per_step}
            self.found.append({**looked, **look()})
            self._started = time.perf_counter() - now
        self.steps += 1
        return not self._left


def train_decoupled(
    X: Tensor, Y: Tensor, look: Callable[..., dict[str, float]], parameterization: str, solve: bool = False
) -> Clock:
    """A DecoupledGP, by its own fit, looked at between steps; before every look its optimum is solved for, or not."""
    from bo_scale.gp.function_space.variational import divergence, expected_log_likelihood
    from bo_scale.models.decoupled import DecoupledGP
    from bo_scale.models.fitting.growing_bases import GrowingFit

    clock, original = Clock(MARKS), GrowingFit.ascend
    mean_points, covar_points = SOLVED_POINTS if solve else (MEAN_POINTS, COVAR_POINTS)
    sizes = {"num_mean_inducing": mean_points, "num_covar_inducing": covar_points, "batch_size": BATCH}
    sizes |= {"start_size": mean_points} if solve else {}
    options: dict[str, Any] = {
        "subset_size": SUBSET,
        "lr": RATE,
        "num_steps": 10**9,
        "polish": solve,
        "progress": False,
    }
    options |= {"covar_module": rivals.scaled_rbf(X.shape[-1]), "outcome_transform": None}
    model = DecoupledGP(X, Y.unsqueeze(-1), parameterization=parameterization, **sizes, **options)

    def looked() -> dict[str, float]:
        with torch.no_grad():
            process, noise = model._base_process(0), model.likelihood.noise.double()

            def predict(Z: Tensor) -> Moments:
                return process.mean(Z), process.locate(Z).variance() + noise

            def bound_of(rows: Tensor) -> float:
                data = expected_log_likelihood(process, X[rows], Y[rows], noise.expand(len(rows)))
                return (data / len(rows) - divergence(process) / len(X)).item()

            return look(predict, bound_of)

    def ascend(fit: GrowingFit, loss: Any, grow: Callable[[Tensor], None], *rest: Any) -> None:
        def grow_unless_done(batch: Tensor) -> None:
            if solve and clock.steps > 0 and clock.due():  # at step 0 it is solved for already
                model._solve()
            if clock.before_step(looked):
                raise _Done
            grow(batch)

        original(fit, loss, grow_unless_done, *rest)

    with patch.object(GrowingFit, "ascend", ascend), suppress(_Done):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return clock


def train_svgp(X: Tensor, Y: Tensor, look: Callable[..., dict[str, float]]) -> Clock:
    """GPyTorch's SVGP in float32, from k-means inducing points and default hyperparameters."""
    clock, X, Y = Clock(MARKS), X.float(), Y.float()
    model = rivals.SVGP(rivals.kmeans(X, SVGP_POINTS)).train()
    step, mll = rivals.svgp_step(model, len(X), SVGP_RATE), VariationalELBO(model.likelihood, model, num_data=len(X))

    def predict(Z: Tensor) -> Moments:
        distribution = model.likelihood(model(Z.float()))
        return distribution.mean.double(), distribution.variance.double()

    def bound_of(rows: Tensor) -> float:
        parts = [mll(model(X[part]), Y[part]).double() * len(part) for part in rows.split(BATCH)]
        return (torch.stack(parts).sum() / len(rows)).item()

    def looked() -> dict[str, float]:
        with torch.no_grad():
            model.eval()
            found = look(predict, bound_of)
            model.train()
        return found

    generator = torch.Generator().manual_seed(0)
    with rivals.gpytorch_defaults():
        while True:
            for rows in torch.randperm(len(X), generator=generator).split(BATCH):
                if clock.before_step(looked):
                    return clock
                step(X[rows], Y[rows])


MODELS = {
    "solved": partial(train_decoupled, parameterization="direct", solve=True),
    "direct": partial(train_decoupled, parameterization="direct"),
    "hybrid": partial(train_decoupled, parameterization="hybrid"),
    RIVAL: train_svgp,
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for each data set and model, of fold 0."""
    return {f"{name} {model}": partial(measure, data, name, model) for name in DATA_SETS for model in MODELS}


def measure(data: Path | None, name: str, model: str) -> dict[str, Any]:
    """One training in a process of its own. A model that fails leaves its error."""
    path = require_data(data, f"{name}.npz")
    described = {"data": name, "model": model, "fold": 0, "seed": 0}
    return in_child_or_error(described, train, path, model)


def train(path: Path, model: str) -> dict[str, Any]:
    """Train on the training rows, and look at the test rows and the bound at every mark."""
    X, Y, test = uci.load(path, 0)
    (X, _), (Y, unit) = uci.standardised(X, ~test), uci.standardised(Y, ~test)
    known = int((~test).sum())
    rows = torch.randperm(known, generator=torch.Generator().manual_seed(1))[:BOUND_ROWS]

    def look(predict: Callable[[Tensor], Moments], bound_of: Callable[[Tensor], float]) -> dict[str, float]:
        parts = [predict(part) for part in X[test].split(rivals.CHUNK)]
        mean, variance = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        return {**uci.scores(Y[test], mean, variance, unit.item()), "bound": bound_of(rows)}

    clock = MODELS[model](X[~test], Y[~test], look)
    return {"n": known, "d": X.shape[-1], "marks": clock.found, "megabytes": peak_megabytes()}


# ---------------------------------------------------------------------- report

_SHOWN = {
    "rmse": ("RMSE", "{:.4f}", min),
    "nll": ("NLL", "{:.3f}", min),
    "bound": ("bound", "{:.3f}", max),
}


def _runs(result: Result, name: str) -> dict[str, dict[str, Any]]:
    """Runs of a data set by model, without those that failed."""
    found = {unit["model"]: unit for unit in result["units"].values() if unit["data"] == name}
    return {model: found[model] for model in MODELS if model in found and found[model].get("marks")}


def table(result: Result) -> str:
    """Scores of every data set, mark and model; failures."""
    rows = []
    for name in DATA_SETS:
        runs = _runs(result, name)
        for mark in sorted({look["mark"] for run in runs.values() for look in run["marks"]}):
            looks = {model: _at(run, mark) for model, run in runs.items()}
            looks = {model: look for model, look in looks.items() if look}
            best = {key: pick(look[key] for look in looks.values()) for key, (_, _, pick) in _SHOWN.items()}
            for model, look in looks.items():
                cells = {key: form.format(look[key]) for key, (_, form, _) in _SHOWN.items()}
                bold = [f"**{cell}**" if look[key] == best[key] else cell for key, cell in cells.items()]
                steps = [f"{look['steps']:,}", text.seconds(look["step_seconds"])]
                size = f"{runs[model]['n']:,}, {runs[model]['d']}"
                rows.append([name, size, f"{mark:g} s", model, *bold, f"{look['coverage_95']:.1%}", *steps])
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    header = ["data", "n, d", "after", "model", *(title for title, _, _ in _SHOWN.values())]
    header += ["in 95 %", "steps", "a step"]
    return (
        f"- 'direct' and 'hybrid' are two ways to train DecoupledGP by Adam, with M_α = {MEAN_POINTS:,} points for the "
        f"mean and M_β = {COVAR_POINTS} for the covariance. The bases grow during training.\n"
        f"- 'solved' is 'direct' with M_α = {SOLVED_POINTS[0]:,} and M_β = {SOLVED_POINTS[1]}, which also solves for "
        f"its variational parameters in closed form at the start and at every mark.\n"
        f"- The rival is GPyTorch's SVGP ({SVGP_POINTS:,} points, float32). All have RBF kernels with one lengthscale "
        f"per input, and batches of {BATCH:,} rows.\n"
        f"- DecoupledGP starts from an exact GP on {SUBSET:,} rows and solves for the weights of its first points. "
        f"SVGP starts from k-means points and GPyTorch's default hyperparameters. Both starts count as time; "
        f"evaluating the models does not.\n"
        f"- Inputs and values are standardised by the training rows of fold 0. NLL and coverage are those of "
        f"observations. The bound on the log evidence is per observation, with its data term from {BOUND_ROWS:,} "
        f"training rows. Bold is the best at that time.\n\n"
        + text.table(header, rows)
        + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "")
    )


def _at(run: dict[str, Any], mark: float) -> dict[str, float] | None:
    return next((look for look in run["marks"] if look["mark"] == mark), None)


def headline(result: Result) -> list[text.Row]:
    """Error and bound at the last mark that a model of ours and SVGP have in common."""
    rows = []
    for name in DATA_SETS:
        runs = _runs(result, name)
        ours = {model: run for model, run in runs.items() if model != RIVAL}
        if not ours or RIVAL not in runs:
            continue
        marks = [{look["mark"] for look in run["marks"]} for run in runs.values()]
        common = set.intersection(*marks)
        if not common:
            continue
        shown = {}
        for model, run in runs.items():
            look = _at(run, max(common))
            assert look is not None, "a common mark"
            shown[model] = f"{model} {look['rmse']:.3f}, {look['bound']:.3f}"
        what = f"{name} after {max(common):g} s of training: test RMSE, bound per observation"
        rows.append((what, "decoupled " + "; ".join(shown[model] for model in ours), shown[RIVAL]))
    return rows


def plot(result: Result, folder: Path) -> None:
    """A column for each data set: error above, bound below."""
    from benchmarks import plots

    names = [name for name in DATA_SETS if _runs(result, name)]
    panels = max(1, len(names))
    with plots.figure(folder / "decoupled.png", panels=panels, rows=2) as axes:
        for column, name in enumerate(names):
            for axis, key, label in ((axes[column], "rmse", "RMSE"), (axes[panels + column], "bound", "Bound")):
                shown = []
                for index, model in enumerate(MODELS):
                    looks = _runs(result, name).get(model, {"marks": []})["marks"]
                    if looks:
                        x, y = zip(*((look["seconds"], look[key]) for look in looks), strict=True)
                        axis.plot(x, y, "o-", color=f"C{index}", markersize=4, label=model)
                        shown.append(y)
                axis.set(title=name, xlabel="Seconds of training", ylabel=label, xlim=(0, None))
                _limit(axis, key, shown)


def _limit(axis: Any, key: str, lines: Sequence[Sequence[float]]) -> None:
    """Show what is not far from where the lines end: early values may be."""
    ends, values = [line[-1] for line in lines], [value for line in lines for value in line]
    low, high = (min(values), FAR * max(ends)) if key == "rmse" else (min(ends) - FAR, max(values))
    kept = [value for value in values if low <= value <= high]
    margin = 0.05 * (max(kept) - min(kept)) + 1e-3
    axis.set_ylim(min(kept) - margin, max(kept) + margin)
