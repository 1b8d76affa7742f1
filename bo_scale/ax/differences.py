"""Warn of trials that Ax and the loop know with different values."""

import math
import warnings
from typing import Any

from ax.core.experiment import Experiment

from bo_scale.ax.internals import experiment_of
from bo_scale.errors import TransferWarning
from bo_scale.loop.optimizer import Optimizer

VALUE = "objective"
"""The metric of a loop's single value without a name."""
Data = dict[str, tuple[float, float]]
"""The mean and standard error of each outcome of a trial."""


def warn_of_differences(optimizer: Optimizer) -> None:
    """Warn of trials that were told to the loop with other data than Ax has: nothing says which are newer."""
    experiment, ledger, told = experiment_of(optimizer.client), optimizer.history.ledger, optimizer.history.told
    entries, ours, theirs = list(ledger.entries()), _data_of(optimizer), _data_in(experiment)
    rows = {index: entries[place].observation for place, index in ledger.trials.items()}
    differ = [index for index, row in sorted(rows.items()) if row >= 0 and not _agree(ours[row], theirs.get(index, {}))]
    if differ:
        index, known = differ[0], rows[differ[0]]
        here, there = _shown(ours[known]), {name: theirs.get(index, {}).get(name) for name in ours[known]}
        warnings.warn(
            f"trials {differ}: Ax and the loop have different data, and nothing says which are newer. Of trial {index} "
            f"Ax has {there}. Take what Ax has by `optimizer.revise({told.ids[known]!r}, ...)`, or `forget` if it is "
            f"NaN; take what the loop has by `client.attach_data({index}, {here})`.",
            TransferWarning,
            stacklevel=2,
        )


def warn_of_forgotten(optimizer: Optimizer) -> None:
    """Warn of trials that the loop has forgotten and whose data Ax still has."""
    theirs, trials = _data_in(experiment_of(optimizer.client)), optimizer.history.ledger.trials
    entries = list(optimizer.history.ledger.entries())
    forgotten = sorted(index for place, index in trials.items() if entries[place].status == "forgotten")
    kept = [index for index in forgotten if any(math.isfinite(mean) for mean, _ in theirs.get(index, {}).values())]
    if kept:
        data = dict.fromkeys(theirs[kept[0]], math.nan)
        warnings.warn(
            f"trials {kept}: the loop has forgotten them, and Ax still uses their data. Take them out of Ax's models "
            f"by `client.attach_data({kept[0]}, {data})`, NaN from `math`.",
            TransferWarning,
            stacklevel=2,
        )


def _data_of(optimizer: Optimizer) -> list[Data]:
    """Return the data of each observation of the loop."""
    told, names = optimizer.history.told, optimizer.outcomes.names or (VALUE,)
    _, Y, Yvar = told.first(told.count)
    means = optimizer.outcomes.inner(Y)
    sems = means.new_full(means.shape, math.nan) if Yvar is None else Yvar.sqrt()
    pairs = zip(means.tolist(), sems.tolist(), strict=True)
    return [dict(zip(names, zip(*pair, strict=True), strict=True)) for pair in pairs]


def _data_in(experiment: Experiment) -> dict[int, Data]:
    """Return the last data of each trial."""
    frame, data = experiment.lookup_data().full_df, dict[int, Data]()
    for index, name, *pair in zip(*(frame[column] for column in ("trial_index", "metric_name", "mean", "sem"))):
        data.setdefault(int(index), {})[name] = float(pair[0]), float(pair[1])
    return data


def _agree(ours: Data, theirs: Data) -> bool:
    """Compare data up to the ten decimals that Ax's storage keeps; NaN is NaN."""
    pairs = [(ours[name], theirs.get(name, (math.nan, math.nan))) for name in ours]
    return all(
        math.isclose(a, b, rel_tol=1e-8, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))
        for one, other in pairs
        for a, b in zip(one, other, strict=True)
    )


def _shown(data: Data) -> dict[str, Any]:
    """Return data as Ax takes them: without standard errors that are not known."""
    return {name: mean if math.isnan(sem) else (mean, sem) for name, (mean, sem) in data.items()}
