"""`bo-scale predict`: means and standard deviations for the rows of Parquet files."""

import argparse

from bo_scale.cli.executors import executor_of
from bo_scale.distributed import FileModel, predict_many


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    found = FileModel.load(given.model)
    with executor_of(given) as (executor, _):
        written = predict_many(
            found.model,
            given.source,
            given.out,
            columns=found.columns,
            executor=executor,
            observation_noise=given.prediction,
        )
    for path in written:
        print(f"Written: {path}")
