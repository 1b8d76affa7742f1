"""Streaming sensors with drift: predict the wind along a satellite's track, each reading before it is seen.

Data: wind speeds over the oceans along the track of Jason-3, six days of August 2016, NOAA, public domain; 18,973
readings that ship with bo_scale. Time: about 40 seconds on one core.

Neighbouring readings are nearly equal, so the next one would be no test. Each is predicted from what was known ten
minutes before the ten minutes in which it falls: by then the satellite has flown 3,400 km or more, and only earlier
passes say anything. The wind changes meanwhile: with `decay` old readings count less and less. How fast, and with how
much noise, is chosen on the first three days and judged on the others.

    python examples/tutorial_sensors.py --out demo
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import torch
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel
from torch import Tensor

from bo_scale import WISKI
from bo_scale.datasets import TrackData, load_wind

mpl.use("Agg")
import matplotlib.pyplot as plt

HOUR = 3600.0
READINGS_AN_HOUR = 130
BLOCK = HOUR / 6
BOX = torch.tensor([[0.0, -67.0], [360.0, 67.0]], dtype=torch.float64)
LENGTHSCALE = torch.tensor([[25.0, 12.0]], dtype=torch.float64)
GRID_SIZE = (24, 14)


@dataclass(frozen=True)
class Size:
    """How much is done: the tutorial's size, and a short one for tests."""

    hours: float = 200.0
    start: float = 12.0
    memories: tuple[float, ...] = (torch.inf, 24.0, 12.0, 6.0, 3.0)
    noises: tuple[float, ...] = (0.25, 0.5, 1.0)


SHORT = Size(hours=36.0, start=6.0, memories=(torch.inf, 6.0), noises=(0.5,))


@dataclass
class Run:
    """Predictions of a stream, made before the readings were seen.

    Attributes:
        memory: Hours after which a reading counts half; infinite without decay.
        noise: Noise variance, as a share of the variance of the first readings.
        hour: When each reading was taken.
        error: Prediction less reading, m/s.
        sd: Standard deviation of the prediction, noise included.
        milliseconds: Processor time a reading, of every block: predict ten minutes, take ten minutes in.
    """

    memory: float
    noise: float
    hour: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    sd: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Score:
    """Scores of a part of a run.

    Attributes:
        rmse: Root mean squared error, m/s.
        coverage: Share of the readings within the 95 % interval.
        width: Mean width of that interval, m/s.
        nll: Mean −log p of a reading.
    """

    rmse: float
    coverage: float
    width: float
    nll: float


# --8<-- [start:model]
def model_of(X: Tensor, Y: Tensor, memory: float, noise: float) -> WISKI:
    """A model of wind speed over longitude and latitude that keeps no readings, only their statistics.

    Ends of the map are not joined: 0° and 360° count as far apart.
    """
    kernel = MaternKernel(nu=2.5, ard_num_dims=2)
    kernel.lengthscale = LENGTHSCALE / (BOX[1] - BOX[0])
    model = WISKI(
        X,
        Y,
        bounds=BOX,
        grid_size=GRID_SIZE,
        covar_module=kernel,
        input_transform=Normalize(2, bounds=BOX),
        decay=0.5 ** (1 / (READINGS_AN_HOUR * memory)),
        keep_data=False,
    )
    model.likelihood.noise = noise
    return model.eval()


# --8<-- [end:model]


# --8<-- [start:stream]
def blocks(data: TrackData, begin: float, end: float) -> Iterator[Tensor]:
    """Row numbers of the readings of every ten minutes, from an hour to another; none over land."""
    number = (data.time - data.time[0]).div(BLOCK).long()
    for i in range(round(begin * HOUR / BLOCK), round(end * HOUR / BLOCK)):
        yield (number == i).nonzero().squeeze(-1)


def stream(data: TrackData, memory: float, noise: float, start: float, end: float) -> Run:
    """Predict ten minutes of readings, then take in those of the ten minutes before, over and over."""
    hours = (data.time - data.time[0]) / HOUR
    seen = hours < start - BLOCK / HOUR
    model, run = model_of(data.X[seen], data.Y[seen], memory, noise), Run(memory, noise)
    before = next(blocks(data, start - BLOCK / HOUR, start))
    for rows in blocks(data, start, end):
        began = time.process_time()
        if len(rows) > 0:
            with torch.no_grad():
                ahead = model.posterior(data.X[rows].unsqueeze(1), observation_noise=True)
            run.hour += hours[rows].tolist()
            run.error += (ahead.mean.squeeze(1) - data.Y[rows]).squeeze(-1).tolist()
            run.sd += ahead.variance.sqrt().reshape(-1).tolist()
        if len(before) > 0:
            model = model.condition_on_observations(data.X[before], data.Y[before])
        if len(rows) > 0:
            run.milliseconds.append(1000 * (time.process_time() - began) / len(rows))
        before = rows
    return run


# --8<-- [end:stream]


# --8<-- [start:choose]
def score(run: Run, begin: float, end: float) -> Score:
    """Scores of the readings between two hours."""
    hour, error, sd = (torch.tensor(v, dtype=torch.float64) for v in (run.hour, run.error, run.sd))
    within = (hour >= begin) & (hour < end)
    error, sd = error[within], sd[within]
    inside = (error.abs() <= 1.96 * sd).double().mean().item()
    nll = -torch.distributions.Normal(0.0, sd).log_prob(error).mean().item()
    return Score(error.square().mean().sqrt().item(), inside, 3.92 * sd.mean().item(), nll)


def chosen(data: TrackData, memories: tuple[float, ...], size: Size, half: float) -> tuple[Run, dict[str, float]]:
    """Stream the first half with each memory and noise, the whole with the best ones; return this run and all NLLs."""
    tried = {(m, s): score(stream(data, m, s, size.start, half), 0.0, half).nll for m in memories for s in size.noises}
    memory, noise = min(tried, key=lambda pair: tried[pair])
    end = min(size.hours, (data.time[-1] - data.time[0]).item() / HOUR)
    return stream(data, memory, noise, size.start, end), {f"{m:g} h, {s:g}": nll for (m, s), nll in tried.items()}


# --8<-- [end:choose]


def baselines(data: TrackData, run: Run, half: float) -> dict[str, float]:
    """RMSE on the second half of the mean of the first, and of the last reading known in time."""
    hours = (data.time - data.time[0]) / HOUR
    second = (hours >= half) & (hours < max(run.hour) + 1e-9)
    known = (BLOCK / HOUR) * (hours[second] * HOUR / BLOCK).floor() - BLOCK / HOUR
    last = torch.searchsorted(hours, known) - 1
    predictions = {"mean of the first half": data.Y[hours < half].mean(), "last reading known": data.Y[last]}
    return {k: (value - data.Y[second]).square().mean().sqrt().item() for k, value in predictions.items()}


def name(run: Run) -> str:
    """What a run is called in the plot and the table."""
    return "without decay" if run.memory == torch.inf else f"half weight after {run.memory:g} h"


def plot(runs: list[Run], half: float, path: Path) -> None:
    """RMSE and coverage over time, and what a reading costs."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 3.9), constrained_layout=True)
    for run in runs:
        begin, end = min(run.hour), max(run.hour)
        edges = torch.linspace(begin, end, max(3, round((end - begin) / 8))).tolist()
        parts = [score(run, *pair) for pair in pairwise(edges)]
        middle = [(a + b) / 48 for a, b in pairwise(edges)]
        axes[0].plot(middle, [part.rmse for part in parts], "o-", markersize=4, label=name(run))
        axes[1].plot(middle, [part.coverage for part in parts], "o-", markersize=4, label=name(run))
        smooth = torch.tensor(run.milliseconds).unfold(0, min(24, len(run.milliseconds)), 12).median(-1).values
        axes[2].plot(torch.linspace(begin, end, len(smooth)) / 24, smooth, label=name(run))
    axes[1].axhline(0.95, color="black", linewidth=0.8, linestyle=":")
    for axis, title in zip(axes, ("RMSE, m/s", "Coverage of the 95 % interval", "Milliseconds a reading"), strict=True):
        axis.axvline(half / 24, color="grey", linewidth=0.8, linestyle="--")
        axis.set(xlabel="Day", title=title)
        axis.grid(alpha=0.3)
    axes[0].set_ylim(0, None)
    axes[1].set_ylim(0.7, 1)
    axes[2].set_ylim(0, None)
    axes[0].legend(loc="lower left")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    """Choose on the first half, judge on the second, print, write a plot and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the plot and numbers")
    parser.add_argument("--short", action="store_true", help="a day and a half, in seconds")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data, size, began = load_wind(), SHORT if arguments.short else Size(), time.process_time()
    half = min(size.hours, (data.time[-1] - data.time[0]).item() / HOUR) / 2
    without, tried = chosen(data, size.memories[:1], size, half)
    with_decay, others = chosen(data, size.memories[1:], size, half)
    runs = [without, with_decay]
    plot(runs, half, arguments.out / "tutorial_sensors.png")
    scores = [score(run, half, torch.inf) for run in runs]
    flat = [[part.median().item() for part in torch.tensor(run.milliseconds).tensor_split(3)] for run in runs]
    told = {
        "chosen": [{"memory": run.memory if run.memory < torch.inf else None, "noise": run.noise} for run in runs],
        "nll_of_first_half": tried | others,
        "second_half": [asdict(each) for each in scores],
        "baselines_rmse": baselines(data, without, half),
        "milliseconds_by_third": flat,
        "seconds": time.process_time() - began,
    }
    (arguments.out / "tutorial_sensors.json").write_text(json.dumps(told) + "\n")
    print("NLL of the first half by memory and noise:", {k: round(v, 3) for k, v in told["nll_of_first_half"].items()})
    print(f"\n{'second half':<26}{'RMSE, m/s':>10}{'coverage':>10}{'width':>8}{'NLL':>8}   ms a reading, by thirds")
    for run, each, times in zip(runs, scores, flat, strict=True):
        numbers = f"{each.rmse:>10.2f}{each.coverage:>10.3f}{each.width:>8.2f}{each.nll:>8.3f}"
        print(f"{name(run):<26}{numbers}   {', '.join(f'{t:.2f}' for t in times)}")
    for what, rmse in told["baselines_rmse"].items():
        print(f"{what:<26}{rmse:>10.2f}")
    print(f"Plot and numbers: {arguments.out}/tutorial_sensors.png, .json; {told['seconds']:.0f} s")


if __name__ == "__main__":
    main()
