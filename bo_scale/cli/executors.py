"""Executors that command lines ask for: none, several processes of this machine, or a cluster."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bo_scale.errors import InvalidArgumentError, MissingDependencyError

SECONDS = 10.0
"""Time after which a scheduler that does not answer is given up."""


@contextmanager
def executor_of(given: argparse.Namespace) -> Iterator[tuple[Any, int]]:
    """Yield the executor that `--workers` or `--dask` asks for, and the number of its processes.

    Raises:
        InvalidArgumentError: if no scheduler answers.
    """
    if given.dask is None:
        yield given.workers, given.workers or 1
        return
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise MissingDependencyError("--dask needs pip install 'bo_scale[dask]'") from error
    try:
        client = distributed.Client(given.dask, timeout=SECONDS)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"--dask {given.dask}: no scheduler answers ({error}).") from error
    with client:
        yield client.get_executor(), max(1, sum(client.nthreads().values()))
