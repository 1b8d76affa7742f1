"""Threads of numerical libraries, of which a process may load several that get into each other's way."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import scipy.optimize  # noqa: F401  loads the library that SciPy's optimisers call
from threadpoolctl import ThreadpoolController


@contextmanager
def scipy_on_one_thread() -> Iterator[None]:
    """Keep the OpenBLAS of NumPy and SciPy on one thread within the context; torch keeps its threads.

    SciPy's L-BFGS-B calls OpenBLAS for vectors of a few entries. Its threads then spin for a while, and take the cores
    from torch, which evaluates the objective: on two cores an evaluation takes 2 to 3 times as long.
    """
    with _openblas().limit(limits=1):
        yield


@cache
def _openblas() -> Any:
    """Return the controller of all copies of OpenBLAS but torch's own."""
    loaded = ThreadpoolController().select(internal_api="openblas")
    others = [each["filepath"] for each in loaded.info() if "/torch/" not in each["filepath"].replace("\\", "/")]
    return loaded.select(filepath=others)
