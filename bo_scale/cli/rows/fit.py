"""`bo-scale fit`: a model of all rows of Parquet files."""

import argparse

from bo_scale.cli.executors import executor_of
from bo_scale.distributed import Columns, FileModel, fit_many, numeric_columns
from bo_scale.errors import InvalidArgumentError


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    columns = _columns(given)
    print(f"Inputs: {', '.join(columns.groups[0])}. Target: {', '.join(columns.groups[1])}.")
    with executor_of(given) as (executor, _):
        found = fit_many(
            given.source,
            columns=columns,
            model=given.model,
            size=given.size,
            sample=given.sample,
            seed=given.seed,
            executor=executor,
            folder=given.folder,
        )
    found.save(given.out)
    _tell(found)
    print(f"Written: {given.out}")


def _columns(given: argparse.Namespace) -> Columns:
    targets, noise = _listed(given.target), _listed(given.noise)
    if noise and len(noise) != len(targets):
        raise InvalidArgumentError(f"--noise: {len(noise)} columns for {len(targets)} targets. Name one for each.")
    inputs = _listed(given.inputs)
    if not inputs:
        inputs = [name for name in numeric_columns(given.source) if name not in (*targets, *noise)]
    if not inputs:
        raise InvalidArgumentError("--inputs: the files have no other columns of numbers.")
    if set(inputs) & {*targets, *noise}:
        raise InvalidArgumentError("--inputs: the target and the noise are none. Leave them out.")
    return Columns(inputs, targets, noise)


def _listed(names: str | None) -> list[str]:
    return [each.strip() for each in (names or "").split(",") if each.strip()]


def _tell(found: FileModel) -> None:
    for name, score in found.scores.items():
        print(f"Log density at rows left out: {name} {score:.3f} nats.")
    sample, sums = found.seconds
    print(f"Model: {found.kind} of {found.model.num_observations:,} rows. Fit {sample:.1f} s, sums {sums:.1f} s.")
    for name, low, up in zip(found.columns.groups[0], *found.bounds.tolist(), strict=True):
        print(f"Range of {name}: {low:g} to {up:g}.")
    for name, sd in zip(found.columns.groups[1], found.noise_sds()):
        print(f"Noise of {name}: sd {sd:.3g}.")
