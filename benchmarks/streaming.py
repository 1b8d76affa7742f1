"""One observation: condition on q = 1 and predict one variance. WISKI with p = 900 against SingleTaskGP."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP

from benchmarks import text
from benchmarks.harness import Unit, interleaved, smooth_data
from benchmarks.store import Result
from bo_scale import WISKI

TITLE = "One observation"
PLOTS = {"streaming.png": "Seconds per observation against the number of observations"}
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
RIVAL_SIZES = (100, 500, 1500, 4500)
ROUNDS, RIVAL_ROUNDS = 200, 5


def units(data: Path | None) -> dict[str, Unit]:
    """One unit: all models in turns."""
    return {"condition and predict": measure}


def one_observation(model: Any) -> None:
    """What is timed."""
    child = model.condition_on_observations(
        torch.rand(1, 2, dtype=torch.float64), torch.randn(1, 1, dtype=torch.float64)
    )
    child.posterior(torch.rand(1, 2, dtype=torch.float64)).variance  # noqa: B018


def measure() -> dict[str, Any]:
    """Seconds an observation against n."""
    with torch.no_grad():
        ours = [WISKI(*smooth_data(n), grid_size=30).eval() for n in SIZES]
        rivals = [SingleTaskGP(*smooth_data(n)).eval() for n in RIVAL_SIZES]
        for model in [*ours, *rivals]:
            model.posterior(torch.rand(1, 2, dtype=torch.float64))
        mine = interleaved([partial(one_observation, m) for m in ours], ROUNDS, warmup=20)
        theirs = interleaved([partial(one_observation, m) for m in rivals], RIVAL_ROUNDS)
    return {
        "WISKI": {"n": list(SIZES), "p": 900, "seconds": mine},
        "SingleTaskGP": {"n": list(RIVAL_SIZES), "seconds": theirs},
    }


def table(result: Result) -> str:
    """Seconds for every n, and the ratio to WISKI at a million."""
    (unit,) = result["units"].values()
    ours, rival = unit["WISKI"], unit["SingleTaskGP"]
    taken = {name: dict(zip(unit[name]["n"], unit[name]["seconds"], strict=True)) for name in ("WISKI", "SingleTaskGP")}
    rows = [
        [f"{n:,}", *(text.seconds(taken[name][n]) if n in taken[name] else "" for name in taken)]
        for n in sorted({*ours["n"], *rival["n"]})
    ]
    return (
        f"Each time is that of conditioning on one observation and predicting one variance, in the same run. WISKI has "
        f"p = {ours['p']} grid points.\n\n"
        + text.table(["n", "WISKI", "SingleTaskGP"], rows)
        + f"\n\nWISKI's slowest n takes {max(ours['seconds']) / min(ours['seconds']):.2f} times its fastest. "
        f"SingleTaskGP at n = {rival['n'][-1]:,} takes {text.ratio(rival['seconds'][-1], ours['seconds'][-1])} "
        f"WISKI's time at n = {ours['n'][-1]:,}."
    )


def headline(result: Result) -> list[text.Row]:
    """The largest n of both."""
    (unit,) = result["units"].values()
    ours, rival = unit["WISKI"], unit["SingleTaskGP"]
    return [
        (
            f"one observation (condition, predict a variance), n = {ours['n'][-1]:,}",
            f"{text.seconds(ours['seconds'][-1])}; {text.seconds(ours['seconds'][0])} at n = {ours['n'][0]:,}",
            f"`SingleTaskGP` at n = {rival['n'][-1]:,}: {text.seconds(rival['seconds'][-1])}",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """Seconds against n."""
    from benchmarks import plots

    (unit,) = result["units"].values()
    lines = {name: (unit[name]["n"], unit[name]["seconds"]) for name in ("WISKI", "SingleTaskGP")}
    with plots.figure(folder / "streaming.png") as (axis,):
        plots.against_n(axis, lines, "Seconds an observation")
