"""Threads of numerical libraries, of which a process may load several that get into each other's way."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import scipy.optimize  # noqa: F401  loads the library that SciPy's optimisers call
import torch
from threadpoolctl import ThreadpoolController

ROWS_A_THREAD = 250
"""A matrix of this many rows, or fewer, is work for one thread."""


class _Own(threading.local):
    """What a thread of Python has entered: OpenMP keeps a number of threads for each of them."""

    def __init__(self) -> None:
        self.limits: list[int] = []
        self.owed = 0  # its number of threads, if it left a context while it had to stay on one


_own, _lock = _Own(), threading.Lock()
_entered: list[bool] = []
"""Whether each context that is entered holds for all threads of Python."""
_before: list[int] = []
"""Torch's threads before the first of them."""


@contextmanager
def threads_at_most(limit: int, for_all: bool = False) -> Iterator[None]:
    """Keep torch on so many threads at most within the context. Contexts nest, and those of several callers overlap.

    Args:
        limit: The largest number of threads.
        for_all: Keep the whole process on one thread, not only the caller: MKL has one number for all.
    """
    with _lock:
        if not _entered:
            _before[:] = [_own.owed if torch.get_num_threads() == 1 and _own.owed else torch.get_num_threads()]
        _entered.append(for_all)
        _own.limits.append(limit)
        _limit()
    try:
        yield
    finally:
        with _lock:
            _entered.remove(for_all)
            _own.limits.remove(limit)
            _own.owed = _before[0] if any(_entered) else 0
            _limit()


def _limit() -> None:
    torch.set_num_threads(1 if any(_entered) else min(_before + _own.limits))


def one_thread() -> AbstractContextManager[None]:
    """Keep torch on one thread within the context, for the same bits anywhere."""
    return threads_at_most(1, for_all=True)


def threads_for(rows: int) -> AbstractContextManager[None]:
    """Keep torch within the context on as many threads as matrices of some rows are work for.

    Threads are woken for each of many short operations. On 16 virtual cores a search among kernels with 200 rows takes
    11 s with 16 threads, and .4 s with one.

    Args:
        rows: Number of rows. 0 means that a model has sums alone, which says nothing of its matrices: no limit.
    """
    return threads_at_most(max(1, rows // ROWS_A_THREAD)) if rows else nullcontext()


class Together:
    """A context of the whole process that several threads may be in: the first enters it, and the last leaves it.

    Settings of GPyTorch and BoTorch are global, and each of their contexts restores what it found. Of two that overlap
    in two threads the second would restore, for good, what the first had set.

    Args:
        make: Returns a new context.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._inside, self._lock = make, 0, threading.Lock()
        self._entered: AbstractContextManager[Any] = nullcontext()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._entered = self._make()
                self._entered.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._entered.__exit__(None, None, None)

    def _forget(self) -> None:
        """Leave it in a process that was forked while other threads, which this process has not, were in it."""
        if self._inside:
            self._entered.__exit__(None, None, None)
        self._lock, self._inside = threading.Lock(), 0


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
    return loaded.select(filepath=[each["filepath"] for each in loaded.info() if not _of_torch(each["filepath"])])


def _of_torch(file: str) -> bool:
    return Path(torch.__file__).resolve().parent in Path(file).resolve().parents
