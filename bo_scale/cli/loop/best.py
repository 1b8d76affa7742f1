"""`bo-scale loop best`: the best point, or the best trade-offs."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from bo_scale.cli.loop.journal import reading, what_is_missing
from bo_scale.cli.loop.records import best_observed, named_points
from bo_scale.cli.loop.shown import cell, in_words, print_json, table
from bo_scale.cli.loop.words import outcome_names, read_fixed
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop import Optimizer

Estimates = Mapping[str, tuple[float, float]]
"""Posterior mean and standard deviation by outcome."""


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with reading(given.path) as optimizer:
        fixed = read_fixed(given.fixed, optimizer.space)
        if optimizer.num_observations == 0:
            raise InvalidDataError("best: nothing has been told yet. Tell some observations first.")
        if optimizer.outcomes.several and fixed:
            raise InvalidArgumentError("--fixed: with several objectives no single point is best. Leave it out.")
        missing = what_is_missing(optimizer)
        if missing is not None:
            _show_observed(optimizer, missing, given)
        else:
            (_show_trade_offs if optimizer.outcomes.several else _show_best)(optimizer, fixed, given.json)


def _show_best(optimizer: Optimizer, fixed: Mapping[Any, Any], as_json: bool) -> None:
    best = optimizer.best(fixed=fixed)
    (point,) = _named(optimizer, best.x)
    estimates: Estimates = best.outcomes or {outcome_names(optimizer.outcomes)[0]: (best.mean, best.sd)}
    (seen,) = [None] if best.observed_x is None else _named(optimizer, best.observed_x)
    name = next(iter(estimates))
    if as_json:
        observed = None if seen is None else {"point": seen, "outcomes": {name: best.observed_y}}
        return print_json(
            {**_record(point, estimates), "feasible": best.feasible, "suspect": best.suspect, "observed": observed}
        )
    print(f"Best by posterior mean: {_shown(estimates)} at {in_words(point)}.")
    if not best.feasible:
        print("  No point satisfies the constraints by posterior mean; this one violates them least.")
    values = "none with these values" if seen is None else f"{name} = {cell(best.observed_y)} at {in_words(seen)}"
    print(f"Best observed: {values}.")
    if best.suspect:
        print("  One of the two values is far from what the others predict: see `bo-scale loop suspects`.")
    return None


def _show_trade_offs(optimizer: Optimizer, fixed: Mapping[Any, Any], as_json: bool) -> None:
    front = optimizer.pareto()
    points = [point for each in front for point in _named(optimizer, each.x)]
    if as_json:
        return print_json([_record(point, each.outcomes) for point, each in zip(points, front, strict=True)])
    if not front:
        return print("No point satisfies the constraints by posterior mean.")
    columns: dict[str, list[Any]] = {name: [point[name] for point in points] for name in points[0]}
    for name in front[0].outcomes:
        columns[f"{name} (mean ± sd)"] = ["{:.6g} ± {:.6g}".format(*each.outcomes[name]) for each in front]
    print(table(columns))
    return print(f"Best trade-offs by posterior mean: {len(front)}.")


def _show_observed(optimizer: Optimizer, missing: str, given: argparse.Namespace) -> None:
    """Show what can be shown without a model."""
    if given.fixed:
        raise InvalidArgumentError(f"--fixed: it needs the model. {missing}")
    print(f"Note: only the best observed is known here. {missing}", file=sys.stderr)
    best = best_observed(optimizer)
    if not best:
        raise InvalidDataError("best: nothing has been told at the target of the fidelity yet.")
    if given.json:
        found = [{"point": each.point, "outcomes": each.outcomes} for each, _ in best.values()]
        return print_json({"point": None, "outcomes": None, "observed": found if len(found) > 1 else found[0]})
    for each, feasible in best.values():
        broken = "" if feasible else "; it violates a constraint, as all do"
        print(f"Best observed: {in_words(each.outcomes)} at {in_words(each.point)}{broken}.")
    return None


def _named(optimizer: Optimizer, point: Any) -> list[dict[str, Any]]:
    return named_points(optimizer, [point] if isinstance(point, Mapping) else point.unsqueeze(0))


def _record(point: Mapping[str, Any], estimates: Estimates) -> dict[str, Any]:
    return {"point": point, "outcomes": {name: {"mean": mean, "sd": sd} for name, (mean, sd) in estimates.items()}}


def _shown(estimates: Estimates) -> str:
    return ", ".join(f"{name} = {cell(mean)} ± {cell(sd)}" for name, (mean, sd) in estimates.items())
