"""Large grids: a satellite's field and a ship's tracks, the evidence against m and s, and ten million rows in a stream.

Every unit is a process of its own.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import rivals, text, uci
from benchmarks.child import in_child, in_child_or_error, peak_megabytes
from benchmarks.evidence import closure
from benchmarks.harness import Unit, median_seconds, require_data, smooth_data
from benchmarks.memory import resident
from benchmarks.store import Result
from bo_scale import WISKI
from bo_scale.models.wiski.grid_sizes import memory_needed

TITLE = "Large grids"
PLOTS = {
    "grid_satellite.png": "Land surface temperature by satellite, °C, as means over cells: training rows, all "
    "measurements, posterior mean, and sd of an observation",
    "grid_scaling.png": "Seconds per evaluation of the evidence with its gradient, against grid points m and against "
    "the rank s; seconds per batch of a stream",
}


@dataclass(frozen=True)
class Part:
    """A summand of the kernel, Matérn, and its grid.

    Attributes:
        nu: ν.
        start: Lengthscale that the fit starts from, in units of the range of the inputs.
        size: Points a dimension.
        share: Outputscale that the fit starts from, in squared units of the standardised targets.
    """

    nu: float
    start: float
    size: tuple[int, int] = (0, 0)
    share: float = 1.0


@dataclass(frozen=True)
class Scaled:
    """A Matérn kernel on a grid; no rank where its precision is sparse."""

    nu: float
    lengthscale: float
    size: tuple[int, ...]
    rank: int | None = None

    @property
    def name(self) -> str:
        """Of its unit."""
        return f"evidence Matérn-{2 * self.nu:.0f}/2 {shape(self.size)}" + (f" s={self.rank}" if self.rank else "")


FINE, COARSE = Part(0.5, 0.05, (150, 90), 0.3), Part(0.5, 0.2, (14, 11), 0.7)
SMOOTH, SMOOTHER = (Part(nu, 0.2, (14, 11), 0.7) for nu in (1.5, 2.5))
FIT = {"maxiter": 30, "ftol": 1e-7}
"""Options of L-BFGS: the evidence of 100,000 rows is flat in its last digits."""
RANK = 64
"""Of a smooth summand beside a rough one, whose precision is sparse."""
CHUNK = 10_000
"""Test points predicted at once."""
SVGP_SECONDS = 150.0
DATA = {"satellite_temp": ("gaps",), "shelikof_sst": ("stretches", "rows")}
"""What of each data set is held out."""
SHARE, STRETCH = 0.2, 100
"""Of the rows that is held out, in stretches of so many consecutive ones."""
CELLS = 100, 60
"""Of the picture."""

SCALED = (
    *(Scaled(2.5, 0.2, (m,) * 3, 1024) for m in (16, 24, 32, 47)),
    *(Scaled(2.5, 0.2, (47,) * 3, s) for s in (128, 256, 512, 2048)),
    Scaled(2.5, 0.2, (16,) * 3, 16**3),
    *(Scaled(2.5, 0.2, (m,) * 2, 1024) for m in (100, 300, 1000)),
    *(Scaled(2.5, 0.3, (m,) * 4, 1024) for m in (8, 12, 16)),
    *(Scaled(0.5, 0.2, size) for size in ((40, 40), (100, 100), (150, 90), (200, 120))),
)
TARGET = Scaled(2.5, 0.2, (47,) * 3, 1024)
ROWS, REPEATS, MAX_MEMORY, RIVAL_ROWS = 20_000, 3, 100.0, 2_000

STREAM, BATCH, MARKS = 10_000_000, 100_000, 1_000_000
"""Rows, at a time, and how many between looks at the memory."""
STREAM_GRID, STREAM_LENGTHSCALE, NOISE_SD, WAVES, TEST = 100, 0.1, 0.1, 1000, 10_000
SINGLES, SINGLE_GRIDS = 50, ((16,) * 3, (47,) * 3)

Predict = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Means and variances of observations at points `M × d`: `M` each."""
Fit = Callable[[Tensor, Tensor, Tensor], tuple[Predict, dict[str, Any]]]
"""From inputs `n × d`, values `n` and bounds to predictions, and what there is to say of the model."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each data set, what is held out, and model; one for each grid; the streams."""
    named: dict[str, Unit] = {
        f"{name} {how} {model}": partial(measure_field, data, name, how, model)
        for name, ways in DATA.items()
        for how in ways
        for model in MODELS
        if name == "satellite_temp" or model in BRIEF
    }
    named |= {scaled.name: partial(measure, evidence, scaled) for scaled in SCALED}
    named["evidence SingleTaskGP"] = partial(measure, rival_evidence)
    named["stream"] = partial(measure, stream)
    return named | {f"one by one {shape(size)}": partial(measure, one_by_one, size) for size in SINGLE_GRIDS}


def measure(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """In a process of its own."""
    return in_child(function, *arguments)


def shape(size: Sequence[int]) -> str:
    """150×90."""
    return "×".join(map(str, size))


# ---------------------------------------------------------------------- fields


def measure_field(data: Path | None, name: str, how: str, model: str) -> dict[str, Any]:
    """A model of a data set. One that fails leaves its error."""
    path = require_data(data, f"{name}.npz")
    described = {"data": name, "held": how, "model": model, "seed": 0}
    return in_child_or_error(described, evaluate, path, how, model)


def evaluate(path: Path, how: str, model: str) -> dict[str, Any]:
    """Fit what is not held out and predict what is; with the field itself where it is to be shown."""
    arrays = np.load(path)
    X, Y = (torch.as_tensor(arrays[key].astype(np.float64)) for key in ("X", "y"))
    test = held_out(how, arrays)
    bounds = torch.stack([X.amin(0), X.amax(0)])
    before, clock = resident(), time.perf_counter()
    predict, described = MODELS[model](X[~test], Y[~test], bounds)
    fitted = time.perf_counter()
    mean, variance = predict(X[test])
    found = {
        "n": int((~test).sum()),
        "test": int(test.sum()),
        **scores(Y[test], mean, variance),
        **described,
        "fit_seconds": fitted - clock,
        "predict_seconds": time.perf_counter() - fitted,
        "megabytes": peak_megabytes(),
        "megabytes_before": before,
    }
    if model != MAIN or how != "gaps":
        return found
    mean, variance = predict(X)
    shown = {"seen": (X[~test], Y[~test]), "measured": (X, Y), "mean": (X, mean), "sd": (X, variance.sqrt())}
    return found | {"field": {key: averaged(*pair, bounds) for key, pair in shown.items()}, "bounds": bounds.tolist()}


def held_out(how: str, arrays: Any) -> Tensor:
    """Which rows are for the test: those in its own gaps, or a share of stretches of consecutive rows, or of rows."""
    if how == "gaps":
        return torch.as_tensor(arrays["test_mask"][:, 0])
    stretch = torch.arange(len(arrays["y"])) // (STRETCH if how == "stretches" else 1)
    count = int(stretch[-1]) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return torch.isin(stretch, order[: round(SHARE * count)])


def scores(Y: Tensor, mean: Tensor, variance: Tensor) -> dict[str, float]:
    """Of Gaussian predictions of observations, in their units; width is that of the 95 % interval, in the mean."""
    found = uci.scores(Y, mean, variance, unit=1.0)
    kept = {key: found[key] for key in ("rmse", "crps", "nll", "coverage_95")}
    return kept | {"mae": (Y - mean).abs().mean().item(), "width": 2 * 1.959964 * variance.sqrt().mean().item()}


def averaged(X: Tensor, values: Tensor, bounds: Tensor) -> list[float | None]:
    """Means over CELLS, row by row from the south; None where there is no point."""
    count = torch.tensor(CELLS)
    cell = ((X - bounds[0]) / (bounds[1] - bounds[0]) * count).long().minimum(count - 1)
    place, every = cell[:, 1] * CELLS[0] + cell[:, 0], math.prod(CELLS)
    means = torch.bincount(place, values, every) / torch.bincount(place, minlength=every)
    return [None if math.isnan(value) else float(f"{value:.3g}") for value in means.tolist()]


def kernel_of(parts: Sequence[Part]) -> Kernel:
    """The sum of Matérn kernels with a lengthscale an input, before the fit; together of variance one."""
    summands = []
    for part in parts:
        summands.append(ScaleKernel(MaternKernel(part.nu, ard_num_dims=2)))
        summands[-1].base_kernel.lengthscale, summands[-1].outputscale = part.start, part.share
    return summands[0] if len(parts) == 1 else AdditiveKernel(*summands)


def fit_wiski(
    X: Tensor, Y: Tensor, bounds: Tensor, parts: Sequence[Part], rank: int | None = None, **options: Any
) -> tuple[Predict, dict[str, Any]]:
    """WISKI with a grid for every part."""
    start = time.perf_counter()
    sizes = [part.size for part in parts]
    options |= {"grid_size": sizes[0] if len(parts) == 1 else sizes, "covar_module": kernel_of(parts), "rank": rank}
    model: Any = WISKI(X, Y.unsqueeze(-1), bounds=bounds, input_transform=Normalize(2, bounds=bounds), **options)
    constructed = time.perf_counter() - start
    mll, kernel = ExactMarginalLogLikelihood(model.likelihood, model), model.covar_module
    with patch.object(WISKI, "compute_custom_loss", autospec=True, side_effect=WISKI.compute_custom_loss) as loss:
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": FIT})
    described = {
        "m": [math.prod(size) for size in sizes],
        "grids": [shape(size) for size in sizes],
        "s": kept_rank(model),
        "evaluations": loss.call_count,
        "construct_seconds": constructed,
        "share": model.interpolation_share,
        "rank_loss": model.rank_loss.item(),
        "noise": model.likelihood.noise.item(),
        "kernel": [c.transform(p).flatten().tolist() for _, p, c in kernel.named_parameters_and_constraints()],
    }

    @torch.no_grad()
    def predict(Z: Tensor) -> tuple[Tensor, Tensor]:
        posteriors: list[Any] = [model.posterior(part.unsqueeze(1), observation_noise=True) for part in Z.split(CHUNK)]
        mean, variance = (torch.cat([getattr(p, what) for p in posteriors]) for what in ("mean", "variance"))
        return mean.flatten(), variance.flatten()

    return predict, described


def kept_rank(model: WISKI) -> int:
    """Columns of the dense matrix in the evidence: those beside a sparse precision, or all eigenpairs kept."""
    return sum(rank for rank in model.ranks if rank is not None)


def fit_svgp(X: Tensor, Y: Tensor, bounds: Tensor, parts: Sequence[Part]) -> tuple[Predict, dict[str, Any]]:
    """GPyTorch's SVGP in float32 with the same kernel, but radial, for a time; it starts from the same values."""
    offset, unit = Y.mean(), Y.std()
    end = time.perf_counter() + SVGP_SECONDS
    U, V = ((X - bounds[0]) / (bounds[1] - bounds[0])).float(), ((Y - offset) / unit).float()
    model = rivals.SVGP(rivals.kmeans(U, rivals.SVGP_POINTS), lambda d: kernel_of(parts)).train()
    step, steps, generator = rivals.svgp_step(model, len(U)), 0, torch.Generator().manual_seed(0)
    with rivals.gpytorch_defaults():
        while time.perf_counter() < end:
            rows = torch.randint(len(U), (rivals.SVGP_BATCH,), generator=generator)
            step(U[rows], V[rows])
            steps += 1
    model.eval()

    @torch.no_grad()
    def predict(Z: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        with rivals.gpytorch_defaults():
            for part in ((Z - bounds[0]) / (bounds[1] - bounds[0])).float().split(rivals.CHUNK):
                distribution = model.likelihood(model(part))
                found.append(torch.stack([distribution.mean, distribution.variance]).double())
        mean, variance = torch.cat(found, -1)
        return offset + unit * mean, unit.square() * variance

    return predict, {"m": [rivals.SVGP_POINTS], "grids": [], "s": rivals.SVGP_POINTS, "evaluations": steps}


MAIN, RIVAL = "fine and coarse", "SVGP"
MODELS: dict[str, Fit] = {
    MAIN: partial(fit_wiski, parts=(FINE, COARSE), basis="keys"),
    "spline": partial(fit_wiski, parts=(FINE, COARSE), basis="spline"),
    "conservative": partial(fit_wiski, parts=(FINE, COARSE), basis="keys", conservative=True),
    "coarse Matérn-3/2": partial(fit_wiski, parts=(FINE, SMOOTH), basis="keys", rank=RANK),
    "coarse Matérn-5/2": partial(fit_wiski, parts=(FINE, SMOOTHER), basis="keys", rank=RANK),
    "less fine": partial(fit_wiski, parts=(Part(0.5, 0.05, (110, 70), 0.3), COARSE), basis="keys"),
    "fine": partial(fit_wiski, parts=(Part(0.5, 0.1, (150, 90)),), basis="keys"),
    "Matérn-3/2": partial(fit_wiski, parts=(Part(1.5, 0.1, (100, 60)),), rank=1024, basis="keys"),
    RIVAL: partial(fit_svgp, parts=(FINE, COARSE)),
}
BRIEF = (MAIN, "fine", "Matérn-3/2", RIVAL)
"""Models of the second data set."""


# ---------------------------------------------------------------------- evidence


def grid_model(scaled: Scaled) -> WISKI:
    """A WISKI of smooth data that keeps the statistics alone."""
    d = len(scaled.size)
    kernel = ScaleKernel(MaternKernel(scaled.nu, ard_num_dims=d))
    kernel.base_kernel.lengthscale = scaled.lengthscale
    options: dict[str, Any] = {"keep_data": False, "max_memory": MAX_MEMORY, "rank": scaled.rank}
    return WISKI(*smooth_data(ROWS, d), grid_size=scaled.size, covar_module=kernel, **options)


def evidence(scaled: Scaled) -> dict[str, Any]:
    """Seconds an evaluation with its gradient, and of the first prediction; memory; what the rank loses."""
    before = resident()
    model: Any = grid_model(scaled)
    seconds = median_seconds(closure(model), REPEATS)
    after, X = peak_megabytes(), smooth_data(1, len(scaled.size))[0]
    start = time.perf_counter()
    with torch.no_grad():
        _ = model.posterior(X).variance
    return {
        "nu": scaled.nu,
        "lengthscale": scaled.lengthscale,
        "size": list(scaled.size),
        "rank": scaled.rank,
        "s": kept_rank(model),
        "seconds": seconds,
        "posterior_seconds": time.perf_counter() - start,
        "megabytes": after,
        "megabytes_before": before,
        "megabytes_expected": 1000 * memory_needed([scaled.size], model._rank),
        "rank_loss": model.rank_loss.item(),
    }


def rival_evidence() -> dict[str, Any]:
    """The same of BoTorch's exact GP."""
    before = resident()
    seconds = median_seconds(closure(SingleTaskGP(*smooth_data(RIVAL_ROWS, 3))), REPEATS)
    return {"n": RIVAL_ROWS, "seconds": seconds, "megabytes": peak_megabytes(), "megabytes_before": before}


# ---------------------------------------------------------------------- streams


def drawn_function() -> Callable[[Tensor], Tensor]:
    """A draw of an RBF prior in two dimensions, by random Fourier features: from `n × 2` to `n × 1`."""
    g = torch.Generator().manual_seed(1)
    frequencies = torch.randn(2, WAVES, generator=g, dtype=torch.float64) / STREAM_LENGTHSCALE
    phases = 2 * math.pi * torch.rand(WAVES, generator=g, dtype=torch.float64)
    weights = torch.randn(WAVES, 1, generator=g, dtype=torch.float64) * (2 / WAVES) ** 0.5
    return lambda X: (X @ frequencies + phases).cos() @ weights


def stream() -> dict[str, Any]:
    """Rows in batches into a model that keeps none: seconds a batch and memory, then one posterior."""
    g, function = torch.Generator().manual_seed(0), drawn_function()

    def rows(count: int) -> tuple[Tensor, Tensor]:
        X = torch.rand(count, 2, generator=g, dtype=torch.float64)
        return X, function(X) + NOISE_SD * torch.randn(count, 1, generator=g, dtype=torch.float64)

    kernel, likelihood = RBFKernel(ard_num_dims=2).double(), GaussianLikelihood().double()
    kernel.lengthscale, likelihood.noise = STREAM_LENGTHSCALE, NOISE_SD**2
    parts = {"covar_module": kernel, "likelihood": likelihood, "mean_module": ZeroMean(), "outcome_transform": None}
    model: Any = WISKI(*rows(BATCH), grid_size=STREAM_GRID, keep_data=False, **parts)
    seconds: list[float] = []
    marks: dict[str, list[float]] = {"n": [], "seconds": [], "megabytes": []}
    while model.num_observations < STREAM:
        X, Y = rows(BATCH)
        start = time.perf_counter()
        model = model.condition_on_observations(X, Y)
        seconds.append(time.perf_counter() - start)
        if model.num_observations % MARKS == 0:
            looked = {"n": model.num_observations, "seconds": statistics.median(seconds), "megabytes": resident()}
            for key, value in looked.items():
                marks[key].append(value)
            seconds = []
    found = {"size": [STREAM_GRID] * 2, "s": kept_rank(model), **marks, "megabytes_peak": peak_megabytes()}
    return found | {"posterior": against_truth(model, function)}


def against_truth(model: Any, function: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Error and coverage of the function itself, and the seconds that the first posterior takes."""
    test = torch.rand(TEST, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    start = time.perf_counter()
    with torch.no_grad():
        posterior = model.posterior(test.unsqueeze(1))
        mean, sd = posterior.mean.flatten(), posterior.variance.sqrt().flatten()
    seconds, error = time.perf_counter() - start, (function(test).flatten() - mean).abs()
    return {
        "seconds": seconds,
        "rmse": error.square().mean().sqrt().item(),
        "sd": sd.square().mean().sqrt().item(),
        "coverage": (error <= 1.959964 * sd).double().mean().item(),
    }


def one_by_one(size: tuple[int, ...]) -> dict[str, Any]:
    """Seconds to condition on one more observation, and then to predict a variance."""
    model: Any = grid_model(Scaled(2.5, 0.2, size, TARGET.rank))
    X, Y = smooth_data(SINGLES + 1, len(size), seed=1)
    taken: list[tuple[float, float]] = []
    with torch.no_grad():
        _ = model.posterior(X[:1]).variance
        before = resident()
        for x, y in zip(X[:-1].split(1), Y[:-1].split(1), strict=True):
            start = time.perf_counter()
            model = model.condition_on_observations(x, y)
            conditioned = time.perf_counter()
            _ = model.posterior(X[-1:]).variance
            taken.append((conditioned - start, time.perf_counter() - conditioned))
    condition, predict = map(statistics.median, zip(*taken, strict=True))
    found = {"size": list(size), "s": kept_rank(model), "condition_seconds": condition, "predict_seconds": predict}
    found |= {"megabytes_before": before, "megabytes_peak": peak_megabytes()}
    gc.collect()  # models are in cycles of references: those replaced are there until then
    return found | {"megabytes": resident()}


# ---------------------------------------------------------------------- report

_SCORES = {"rmse": "{:.3f}", "mae": "{:.3f}", "crps": "{:.3f}", "coverage_95": "{:.1%}", "width": "{:.2f}"}


def _fields(result: Result, data: str) -> list[dict[str, Any]]:
    """Units of a data set, in the order of MODELS, without those that failed."""
    names = (f"{data} {how} {model}" for how in DATA[data] for model in MODELS)
    return [unit for name in names if (unit := result["units"].get(name)) and "error" not in unit]


def table(result: Result) -> str:
    """Fields, evidence, streams; what failed."""
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    parts = [_field_table(result), _evidence_table(result), _stream_table(result), _single_table(result)]
    return "\n\n".join([*filter(None, parts), *(["Failed:\n\n" + "\n".join(failed)] if failed else [])])


def _field_table(result: Result) -> str:
    rows = []
    for unit in (unit for data in DATA for unit in _fields(result, data)):
        cells = [form.format(unit[key]) for key, form in _SCORES.items()]
        grids = " + ".join(unit["grids"]) or f"{unit['m'][0]:,} points"
        seconds = [text.seconds(unit[key]) for key in ("fit_seconds", "predict_seconds")]
        named = [f"{unit['data']}, {unit['held']}", unit["model"], grids, str(unit["s"])]
        rows.append([*named, *cells, str(unit["evaluations"]), *seconds, _beyond(unit)])
    header = ["data, held out", "model", "grids", "s", "RMSE", "MAE", "CRPS", "in 95 %", "width"]
    sizes = "; ".join(f"{data}: {u['n']:,} and {u['test']:,}" for data in DATA for u in _fields(result, data)[:1])
    return (
        f"There are two fields, with these rows for training and for the test: {sizes}.\n\n"
        f"- satellite_temp is the land surface temperature of Heaton et al. 2019 in °C. Its test rows lie under "
        f"clouds.\n"
        f"- shelikof_sst is the sea surface temperature along the tracks of a ship. Its test rows are stretches of "
        f"{STRETCH} consecutive rows, or random rows.\n"
        f"- 'fine and coarse' is a sum of two Matérn-1/2 kernels with the basis 'keys': one on a fine grid, by its "
        f"sparse precision, and one on a coarse grid, with s eigenpairs. Their lengthscales start at {FINE.start} and "
        f"{COARSE.start} of the range. Other models differ in what their names say; 'fine' leaves out the coarse "
        f"grid.\n"
        f"- 'Matérn-3/2' is one grid with s eigenpairs.\n"
        f"- SVGP has {rivals.SVGP_POINTS:,} inducing points, the same kernels in radial form, and {SVGP_SECONDS:g} s "
        f"of training.\n"
        f"- Scores are those of observations, in their units. Width is the mean width of the 95 % interval.\n"
        f"- 'evaluations' counts evaluations of the loss with its gradient; for SVGP these are steps on batches of "
        f"{rivals.SVGP_BATCH:,} rows. The fit includes the pass over the rows. Memory is the process's peak beyond "
        f"libraries and data.\n\n" + text.table([*header, "evaluations", "fit", "predict", "MB"], rows)
        if rows
        else ""
    )


def _evidence(result: Result) -> list[dict[str, Any]]:
    """Units of evidence in the order of SCALED."""
    return [result["units"][scaled.name] for scaled in SCALED if scaled.name in result["units"]]


def _beyond(unit: dict[str, Any]) -> str:
    return f"{unit['megabytes'] - unit['megabytes_before']:,.0f}"


def _evidence_table(result: Result) -> str:
    rows = []
    for unit in _evidence(result):
        kernel = f"Matérn-{2 * unit['nu']:.0f}/2, ℓ = {unit['lengthscale']:g}"
        taken = [text.seconds(unit[key]) for key in ("seconds", "posterior_seconds")]
        lost = "–" if unit["rank"] is None else _percent(unit["rank_loss"])
        rank = "sparse" if unit["rank"] is None else str(unit["s"])
        size, guess = f"{shape(unit['size'])} = {math.prod(unit['size']):,}", f"{unit['megabytes_expected']:,.0f}"
        rows.append([kernel, size, rank, *taken, lost, _beyond(unit), guess])
    rival = result["units"].get("evidence SingleTaskGP")
    if rival is not None:
        seconds = text.seconds(rival["seconds"])
        rows.append(["SingleTaskGP", f"n = {rival['n']:,}", "", seconds, "", "", _beyond(rival), ""])
    header = ["kernel", "grid points m", "s", "evidence and gradient", "posterior", "lost", "MB", "MB expected"]
    return (
        f"The time of one evaluation of the loss with its gradient depends on the number of grid points m and the rank "
        f"s (median of {REPEATS}). It does not depend on n, which is {ROWS:,} here; the rows are not kept. 'posterior' "
        f"is the first posterior after it. 'lost' is the share of the interpolated prior's variance that the rank "
        f"leaves out. 'MB' is the process's peak beyond libraries up to the last evaluation. 'MB expected' is the "
        f"estimate that is compared with `max_memory`.\n\n" + text.table(header, rows)
        if rows
        else ""
    )


def _percent(share: float) -> str:
    return f"{text.digits(100 * share)} %" if share >= 1e-5 else "< 0.001 %"


def _stream_table(result: Result) -> str:
    unit = result["units"].get("stream")
    if unit is None:
        return ""
    rows = [
        [f"{n:,}", text.seconds(taken), f"{memory:,.0f}"]
        for n, taken, memory in zip(unit["n"], unit["seconds"], unit["megabytes"], strict=True)
    ]
    found = unit["posterior"]
    return (
        f"A WISKI that keeps no rows receives a stream in batches of {BATCH:,} ({shape(unit['size'])} grid, RBF with "
        f"ℓ = {STREAM_LENGTHSCALE:g}, s = {unit['s']}). The data are a draw of its prior, with noise of sd "
        f"{NOISE_SD:g}. The table shows, every {MARKS:,} rows, the median seconds per batch and the resident memory, "
        f"including libraries. Memory was {unit['megabytes_peak']:,.0f} MB at most. One posterior at {TEST:,} points "
        f"afterwards took {text.seconds(found['seconds'])}. Its RMSE for the function is {found['rmse']:.2g}, its root "
        f"mean square sd {found['sd']:.2g}, and its 95 % intervals cover {found['coverage']:.1%} of the function.\n\n"
        + text.table(["rows", "a batch", "MB"], rows)
    )


def _single_table(result: Result) -> str:
    rows = []
    for unit in (u for name, u in result["units"].items() if name.startswith("one by one")):
        taken = [text.seconds(unit[key]) for key in ("condition_seconds", "predict_seconds")]
        memory = [f"{unit[key]:,.0f}" for key in ("megabytes_before", "megabytes_peak", "megabytes")]
        rows.append([f"{shape(unit['size'])} = {math.prod(unit['size']):,}", str(unit["s"]), *taken, *memory])
    header = ["grid points m", "s", "condition", "predict a variance", "MB before", "at most", "after"]
    return (
        f"{SINGLES} observations arrive one at a time, with a Matérn-5/2 kernel of ℓ = 0.2. Times are medians. Memory "
        f"is resident memory; 'after' is after the garbage collector has run.\n\n" + text.table(header, rows)
        if rows
        else ""
    )


def headline(result: Result) -> list[text.Row]:
    """The satellite's field, the largest grid, the stream."""
    done = {unit["model"]: unit for unit in _fields(result, "satellite_temp")}
    rows: list[text.Row] = []
    if MAIN in done and RIVAL in done:
        what = f"satellite temperature, {done[MAIN]['n']:,} rows: RMSE, CRPS, coverage of the 95 % interval, time"
        rows.append((what, _summary(done[MAIN]), f"SVGP {_summary(done[RIVAL])}"))
    target, rival, unit = (result["units"].get(name) for name in (TARGET.name, "evidence SingleTaskGP", "stream"))
    if target and rival:
        m = math.prod(TARGET.size)
        what = f"evidence and gradient on a grid of {shape(TARGET.size)} = {m:,} points, any n"
        ours = f"{text.seconds(target['seconds'])}, {_percent(target['rank_loss'])} of the prior variance lost"
        exact = f"`SingleTaskGP` at n = {rival['n']:,}: {text.seconds(rival['seconds'])}"
        rows.append((what, ours, f"{exact}; a kernel matrix over the grid alone: {8e-9 * m**2:,.0f} GB"))
    if unit:
        first, last = (f"{text.seconds(unit['seconds'][i])} and {unit['megabytes'][i]:,.0f} MB" for i in (0, -1))
        what = f"a batch of {BATCH:,} in a stream of which no row is kept: time, memory"
        ours = f"{first} at {unit['n'][0]:,} rows, {last} at {unit['n'][-1]:,}"
        rows.append((what, ours, f"an exact GP's matrix alone: {8e-12 * unit['n'][-1] ** 2:,.0f} TB"))
    return rows


def _summary(unit: dict[str, Any]) -> str:
    scored = f"{unit['rmse']:.2f} °C, {unit['crps']:.2f}, {unit['coverage_95']:.0%}"
    return f"{scored}, {text.seconds(unit['fit_seconds'] + unit['predict_seconds'])}"


def plot(result: Result, folder: Path) -> None:
    """The field, and what grids cost."""
    from benchmarks import plots

    field = next((unit for unit in _fields(result, "satellite_temp") if "field" in unit), None)
    with plots.figure(folder / "grid_satellite.png", panels=2, rows=2) as axes:
        if field is not None:
            _show_field(axes, field)
    with plots.figure(folder / "grid_scaling.png", panels=3) as (sizes, ranks, streamed):
        _show_evidence(sizes, ranks, _evidence(result))
        unit = result["units"].get("stream", {"n": [], "seconds": []})
        streamed.plot([1e-6 * n for n in unit["n"]], unit["seconds"], "o-", markersize=4, label=f"a batch of {BATCH:,}")
        streamed.set(xlabel="Million rows", ylabel="Seconds", ylim=(0, None))


def _show_field(axes: Sequence[Any], unit: dict[str, Any]) -> None:
    (left, lower), (right, upper) = unit["bounds"]
    images = {key: np.array(values, dtype=float).reshape(CELLS[::-1]) for key, values in unit["field"].items()}
    low, high = np.nanquantile(images["measured"], [0.005, 0.995])
    titles = {"seen": "Seen by the model", "measured": "Measured", "mean": "Posterior mean", "sd": "Sd"}
    extent = (left, right, lower, upper)
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        style = {"cmap": "magma"} if key == "sd" else {"cmap": "inferno", "vmin": low, "vmax": high}
        drawn = axis.imshow(images[key], origin="lower", extent=extent, aspect=1.24, zorder=3, **style)
        axis.set(title=title, xlabel="Longitude", ylabel="Latitude")
        axis.figure.colorbar(drawn, ax=axis, label="°C", shrink=0.8)


def _show_evidence(sizes: Any, ranks: Any, every: Sequence[dict[str, Any]]) -> None:
    def line(axis: Any, label: str, units: Sequence[dict[str, Any]], x: Callable[[dict[str, Any]], float]) -> None:
        points = sorted((x(unit), unit["seconds"]) for unit in units)
        if points:
            axis.plot(*zip(*points, strict=True), "o-", markersize=4, label=label)

    for d in (2, 3, 4):
        same = [u for u in every if len(u["size"]) == d and u["rank"] == TARGET.rank]
        line(sizes, f"d = {d}, s = {TARGET.rank}", same, lambda u: math.prod(u["size"]))
    sparse = [u for u in every if u["rank"] is None]
    line(sizes, "d = 2, sparse (Matérn-1/2)", sparse, lambda u: math.prod(u["size"]))
    largest = [u for u in every if tuple(u["size"]) == TARGET.size]
    line(ranks, f"m = {math.prod(TARGET.size):,}", largest, lambda u: u["s"])
    for axis, label in ((sizes, "Grid points m"), (ranks, "Rank s")):
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="Seconds, evidence and gradient")
    ranks.set_xticks([u["s"] for u in largest], [str(u["s"]) for u in largest])
    ranks.minorticks_off()
    ranks.set_ylim(0.1, 10)
