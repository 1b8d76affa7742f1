"""`bo-scale loop status`: say what there is."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from bo_scale.cli.loop.journal import reading
from bo_scale.cli.loop.records import best_observed, moment
from bo_scale.cli.loop.shown import cell, in_words, print_json
from bo_scale.cli.loop.words import outcome_names
from bo_scale.loop import Optimizer
from bo_scale.loop.history.journal import JOURNAL
from bo_scale.loop.problem.parameters import Parameter, bare
from bo_scale.loop.settings import FACTORY
from bo_scale.loop.tables import labels


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with reading(given.path) as optimizer:
        if given.json:
            print_json(_described(given.path, optimizer))
        else:
            print("\n".join(_lines(given.path, optimizer)))


def _described(path: Path, optimizer: Optimizer) -> dict[str, Any]:
    space, outcomes = optimizer.space, optimizer.outcomes
    return {
        "path": str(path),
        "bytes": _size(path),
        "space": {name: each.describe() for name, each in zip(labels(space), space.parameters)},
        "parameter_constraints": [str(each) for each in space.constraints],
        "objectives": _objectives(optimizer),
        "constraints": [str(each) for each in outcomes.constraints],
        "settings": optimizer.history.settings,
        "asks": optimizer.history.asks,
        "observations": optimizer.num_observations,
        **_counts(optimizer),
        **dict(zip(("first", "last"), _times(optimizer))),
        "best_observed": {
            name: {"id": each.id, "point": each.point, "outcomes": each.outcomes, "feasible": feasible}
            for name, (each, feasible) in best_observed(optimizer).items()
        },
    }


def _lines(path: Path, optimizer: Optimizer) -> list[str]:
    space, outcomes = optimizer.space, optimizer.outcomes
    width = max(map(len, labels(space)))
    first, last = _times(optimizer)
    counts = {name.replace("_", " "): count for name, count in _counts(optimizer).items() if count}
    return [
        f"Journal: {path}, {_size(path) / 1000:,.1f} kB. Asks: {optimizer.history.asks:,}.",
        "Space:",
        *(f"  {name:<{width}}  {_taken(each)}" for name, each in zip(labels(space), space.parameters)),
        *(f"  with {each}" for each in space.constraints),
        f"Objectives: {', '.join(f'{way} {name}' for name, way in _objectives(optimizer).items())}.",
        *(f"  with {each}" for each in outcomes.constraints),
        f"Settings: {_settings(optimizer)}.",
        f"Observations: {optimizer.num_observations:,}{f', from {cell(first)} to {cell(last)} UTC' if first else ''}.",
        f"Other points: {', '.join(f'{count:,} {name}' for name, count in counts.items()) or 'none'}.",
        *_best(optimizer),
    ]


def _size(path: Path) -> int:
    return (path / JOURNAL).stat().st_size


def _objectives(optimizer: Optimizer) -> dict[str, str]:
    outcomes = optimizer.outcomes
    ways = ["maximize" if sign > 0 else "minimize" for sign in outcomes.signs[: outcomes.objectives]]
    return dict(zip(outcome_names(outcomes), ways))


def _counts(optimizer: Optimizer) -> dict[str, int]:
    """Return the numbers of points that are no observations, by what became of them."""
    statuses = Counter(each.status for each in optimizer.history.ledger.entries())
    return {
        **{name: statuses[name] for name in ("pending", "failed", "abandoned", "forgotten")},
        "set_aside": len(optimizer.history.aside),
    }


def _times(optimizer: Optimizer) -> tuple[Any, Any]:
    known = sorted(each for each in map(moment, optimizer.history.told.times) if each)
    return (known[0], known[-1]) if known else (None, None)


def _taken(parameter: Parameter) -> str:
    return f"{parameter}{', on a logarithmic scale' if getattr(bare(parameter), 'log', False) else ''}"


def _settings(optimizer: Optimizer) -> str:
    named = dict(zip(optimizer.space.labels, labels(optimizer.space)))
    fidelity = {named[name]: value for name, value in optimizer.settings.fidelity.items()}
    shown = optimizer.history.settings | {"fidelity": in_words(fidelity) if fidelity else None}
    said = {name: value for name, value in shown.items() if value not in (None, {}) and value is not False}
    return ", ".join(f"{name} {'a Python function' if value == FACTORY else value}" for name, value in said.items())


def _best(optimizer: Optimizer) -> list[str]:
    return [
        f"Best observed: {in_words(each.outcomes)} at {in_words(each.point)} (id {each.id})"
        f"{'' if feasible else '; it violates a constraint, as all do'}."
        for each, feasible in best_observed(optimizer).values()
    ]
