"""Seconds a trial of Ax's client with its default surrogate and with ours, split into what they go to."""

import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.data import Data
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.surrogate import Surrogate
from ax.utils.common.logger import set_ax_logger_levels
from ax.utils.common.random import with_rng_seed
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.ax import generation_strategy, streaming
from bo_scale.models.refit import GROWTH

TITLE = "A trial of Ax"
PLOTS = {"ax_overhead.png": "Seconds per trial of Ax's client against the number of observations"}
SIZES = (100, 500, 1000, 3000)
DIMENSIONS = {3: "wiski", 10: "softki"}
"""The model measured in so many."""
DEFAULT = "default"
KINDS = ("streaming", "refits")
REFITS = 1 + 1e-9
"""The growth with which a model is fitted at every trial."""
REPEATS, BUDGET, LIMIT = 5, 180.0, 600.0
"""Timed trials; no further one once they have taken so many seconds; none at all if the untimed one took so many."""
HEADLINE, TARGET_SECONDS, TARGET_RATIO = 1000, 0.25, 10
NOISE_SD = 0.1
PARTS = {
    "fit": ((Surrogate, "fit"),),
    "acquisition": ((Acquisition, "__init__"), (Acquisition, "optimize")),
}
"""Methods of Ax whose time counts for a part; what is left of a trial is Ax's bookkeeping."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for every n and model; those of the same inputs and n, which are compared, one after the other."""
    names = [(n, d, model) for n in SIZES for d, ours in DIMENSIONS.items() for model in models(ours)]
    return {f"d={d} n={n} {model}": partial(measure, model, d, n) for n, d, model in names}


def models(ours: str) -> list[str]:
    """Names of units: the rival, ours streaming, and ours fitted at every trial."""
    return [DEFAULT, *(f"{ours} {kind}" for kind in KINDS)]


def smooth(X: Tensor, generator: torch.Generator) -> Tensor:
    """Noisy values of a smooth function of unit scale, of inputs `n × d`; its minimum is within the cube.

    In a corner candidates would repeat, and Ax would search again for others.
    """
    d = X.shape[-1]
    centers = torch.linspace(0.3, 0.7, d, dtype=X.dtype)
    f = -torch.cos(4 * (X - centers)).sum(-1) * (2 / d) ** 0.5
    return f + NOISE_SD * torch.randn(len(X), generator=generator, dtype=X.dtype)


def client_with(X: Tensor, y: Tensor) -> Client:
    """A client whose first trials, one for each row, are complete.

    Trials are attached and completed through the client, values through its experiment and all at once: one by one,
    each would copy those before.
    """
    client = Client()
    client.configure_experiment(
        [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0, 1)) for j in range(X.shape[-1])]
    )
    client.configure_optimization("-loss")
    indices = [client.attach_trial({f"x{j}": v for j, v in enumerate(row)}) for row in X.tolist()]
    arms = [client._experiment.trials[index].arm.name for index in indices]
    metric = {"metric_name": "loss", "metric_signature": "loss", "sem": float("nan"), "step": float("nan")}
    frame = pd.DataFrame({"trial_index": indices, "arm_name": arms, "mean": y.tolist()}).assign(**metric)
    client._experiment.attach_data(Data(df=frame))
    for index in indices:
        client.complete_trial(index)
    return client


@contextmanager
def clock() -> Iterator[Counter[str]]:
    """Seconds spent within the methods of PARTS."""
    spent: Counter[str] = Counter()

    def timed(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def inner(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - start

        return inner

    with ExitStack() as stack:
        for part, methods in PARTS.items():
            for owner, name in methods:
                stack.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        yield spent


def configure(client: Client, model: str, seed: int = 0) -> None:
    """The strategy of a unit's model."""
    if model == DEFAULT:
        client.configure_generation_strategy(initialization_random_seed=seed)
        return
    name, kind = model.split()
    growth = GROWTH if kind == "streaming" else REFITS
    client.set_generation_strategy(generation_strategy(name, seed=seed, refit_growth=growth))


def measure(model: str, d: int, n: int) -> dict[str, Any]:
    """The first trial of a model, which fits, and the next ones, which count. A model that fails leaves its error."""
    set_ax_logger_levels(logging.ERROR)
    found: dict[str, Any] = {"model": model, "d": d, "n": n, "seed": 0}
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    client = client_with(X, smooth(X, generator))
    configure(client, model)
    try:
        with with_rng_seed(0):
            found |= {"first": first_fit(client, generator)}
            if found["first"]["total"] > LIMIT:
                return found | {"error": f"the first trial alone took {found['first']['total']:.0f} s"}
            found |= {"trials": timed_trials(client, generator)}
    except Exception as error:
        return found | {"error": f"{type(error).__name__}: {error}"[:300]}
    streams = streaming(client).values()
    counts = [{"refitted": s.refitted, "streamed": s.streamed, "accumulated": s.accumulated} for s in streams]
    return found | ({"stream": counts[0]} if counts else {})


def first_fit(client: Client, generator: torch.Generator) -> dict[str, float]:
    """The first trial by a model: Ax begins with the centre, whatever is there already."""
    taken = trial(client, generator)
    return taken if taken["fit"] > 0 else first_fit(client, generator)


def timed_trials(client: Client, generator: torch.Generator) -> list[dict[str, float]]:
    """As many as there is time for, at least one."""
    taken = [trial(client, generator)]
    while len(taken) < REPEATS and sum(each["total"] for each in taken) < BUDGET:
        taken.append(trial(client, generator))
    return taken


def trial(client: Client, generator: torch.Generator) -> dict[str, float]:
    """Seconds of one trial and of its parts; the function itself is not counted."""
    with clock() as spent:
        start = time.perf_counter()
        ((index, parameters),) = client.get_next_trials(1).items()
        total = time.perf_counter() - start
        y = float(smooth(torch.tensor([list(parameters.values())], dtype=torch.float64), generator))
        start = time.perf_counter()
        client.complete_trial(index, {"loss": y})
        total += time.perf_counter() - start
    return {"total": total, **{part: spent[part] for part in PARTS}, "bookkeeping": total - sum(spent.values())}


# ---------------------------------------------------------------------- report


def medians(unit: dict[str, Any] | None) -> dict[str, float] | None:
    """Of a unit's trials, total and parts; None where it failed or is not there."""
    if not unit or "trials" not in unit:
        return None
    return {part: statistics.median(each[part] for each in unit["trials"]) for part in unit["trials"][0]}


def included(streamed: dict[str, float] | None, refitted: dict[str, float] | None, n: int) -> float | None:
    """Seconds a trial from n to growth · n: a trial each, and one fit of hyperparameters."""
    if streamed is None or refitted is None:
        return None
    return streamed["total"] + refitted["fit"] / ((GROWTH - 1) * n)


def compared(result: Result, d: int, n: int) -> dict[str, dict[str, float] | None]:
    """Medians of all models by name; "all included" is another part of the one that streams."""
    ours = DIMENSIONS[d]
    found = {model: medians(result["units"].get(f"d={d} n={n} {model}")) for model in models(ours)}
    stream, refits = (found[f"{ours} {kind}"] for kind in KINDS)
    whole = included(stream, refits, n)
    if stream and whole is not None:
        stream["included"] = whole
    return found


def table(result: Result) -> str:
    """Seconds of a trial and its parts, by inputs, n and model; errors."""
    rows = []
    for d, ours in DIMENSIONS.items():
        for n in SIZES:
            found = compared(result, d, n)
            rows += [_row(d, n, model, found) for model in models(ours) if found[model]]
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    header = ["d", "n", "model", "a trial", "bookkeeping", "fit", "acquisition", "default / it"]
    header += ["all included", "default / all"]
    return (
        f"- The time of a trial is that of `client.get_next_trials(1)` and `client.complete_trial(…)`. Before it, the "
        f"centre and n random trials with noisy values of a smooth function were completed, and one more trial, which "
        f"is not timed and fits first. Times are medians of up to {REPEATS} trials, or of fewer once they have taken "
        f"{BUDGET:g} s.\n"
        f"- 'default' is Ax's own choice for the experiment. It is fitted at every trial, from the previous "
        f"hyperparameters.\n"
        f"- Ours are `generation_strategy(…)` with default options. With 'streaming', the timed trials condition the "
        f"existing model. With 'refits', each trial makes two fits and takes the better one.\n"
        f"- 'fit' is the time in `Surrogate.fit`, 'acquisition' that in `Acquisition`'s constructor and `optimize`, "
        f"and 'bookkeeping' the rest. 'default / it' is the default's time divided by this model's.\n"
        f"- 'all included' also counts fits: one fit, taken from the row with refits, is shared among the "
        f"{GROWTH - 1:g} n trials that stream between two fits.\n\n"
        + text.table(header, rows)
        + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "")
    )


def _row(d: int, n: int, model: str, found: dict[str, dict[str, float] | None]) -> list[str]:
    it, rival = found[model] or {}, found[DEFAULT] or {}

    def ratio(key: str) -> str:
        return text.ratio(rival["total"], it[key]) if key in it and rival and model != DEFAULT else ""

    parts = [text.seconds(it[part]) for part in ("total", "bookkeeping", "fit", "acquisition")]
    whole = text.seconds(it["included"]) if "included" in it else ""
    return [str(d), f"{n:,}", model, *parts, ratio("total"), whole, ratio("included")]


def headline(result: Result) -> list[text.Row]:
    """At the n of the target, all included."""
    rows = []
    for d, ours in DIMENSIONS.items():
        found = compared(result, d, HEADLINE)
        it, rival = found[f"{ours} {KINDS[0]}"], found[DEFAULT]
        if it and rival and "included" in it:
            less = text.ratio(rival["total"], it["total"])
            shown = (
                f"`generation_strategy({ours!r})`: {text.seconds(it['total'])}, {less} less;"
                f" refits included {text.seconds(it['included'])} (target: {TARGET_SECONDS:g} s, {TARGET_RATIO}×)"
            )
            rows.append(
                (f"a trial of Ax at n = {HEADLINE:,}, d = {d}", shown, f"default {text.seconds(rival['total'])}")
            )
    return rows


def plot(result: Result, folder: Path) -> None:
    """A trial against n."""
    from benchmarks import plots

    with plots.figure(folder / "ax_overhead.png", panels=len(DIMENSIONS)) as axes:
        for axis, (d, ours) in zip(axes, DIMENSIONS.items(), strict=True):
            lines = {}
            for model in models(ours):
                done = [(n, it["total"]) for n in SIZES if (it := compared(result, d, n)[model])]
                if done:
                    lines[model] = tuple(zip(*done, strict=True))
            plots.against_n(axis, lines, "Seconds a trial")
            axis.set(title=f"{d} parameters")
