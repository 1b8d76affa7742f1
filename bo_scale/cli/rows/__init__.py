"""`bo-scale fit` and `bo-scale predict`: models of the rows of Parquet files, on any number of cores."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command, later

SAMPLE = 5000
"""Rows of the sample, unless another number is asked for."""
MODELS = ("auto", "wiski", "grief", "softki")


def _add_sources(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source", nargs="+", help="Parquet or Arrow files, patterns such as 'rows/*.parquet', or a folder"
    )


def _add_workers(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="NUMBER", help="processes on this machine (default: this one)")
    where.add_argument("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster, such as tcp://10.0.0.1:8786")


def _fit(command: argparse.ArgumentParser) -> None:
    _add_sources(command)
    add = command.add_argument
    add("--target", required=True, metavar="COLUMN", help="column of the target; several with commas between them")
    add("--inputs", metavar="COLUMNS", help="columns of the inputs, with commas (default: all other numbers)")
    add("--noise", metavar="COLUMN", help="column of noise variances, one for each target (default: learned)")
    add("--model", choices=MODELS, default="auto", help="family (default: auto, the best at rows left out)")
    size = "grid points per input (wiski), eigenfunctions (grief), points (softki) (default: the model's)"
    add("--size", type=int, metavar="NUMBER", help=size)
    add("--sample", type=int, metavar="NUMBER", default=SAMPLE, help=f"rows of the first fit (default: {SAMPLE})")
    add("--seed", type=int, metavar="NUMBER", default=0, help="seed of the sample (default: 0)")
    add("--out", type=Path, required=True, metavar="MODEL.pt", help="file of the model to write")
    folder = "folder for the sums of each file, from which the same command goes on after a crash"
    add("--folder", type=Path, metavar="FOLDER", help=folder)
    _add_workers(command)


def _predict(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", type=Path, help="file that `bo-scale fit` has written")
    _add_sources(command)
    out = "folder for files of the same names, with columns of mean and sd behind the others"
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=out)
    new = "standard deviations of new measurements, with their noise (default: of the function)"
    command.add_argument("--prediction", action="store_true", help=new)
    _add_workers(command)


FIT = Command("fit", "make a model of the rows of Parquet files", _fit, later("bo_scale.cli.rows.fit"), writes=("out",))
PREDICT = Command(
    "predict", "predict the rows of Parquet files by such a model", _predict, later("bo_scale.cli.rows.predict")
)
