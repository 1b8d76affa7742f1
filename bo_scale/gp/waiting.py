"""Conditions on values of a GPU, all of which are read at once.

Wherever the host reads a value from a GPU it waits for all that was asked of it before. Most of what is read are
conditions that hold: numbers are finite, points lie inside the grid, a matrix has a factor, hyperparameters are
those of the inference. `reading_once` takes for granted that they hold, and reads at the end whether all did. If
one did not, everything is computed again, and every condition is read where it is asked for: errors, jitter and what is
outdated are then treated as on the CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

T = TypeVar("T")
_GRANTED: ContextVar[list[Tensor] | None] = ContextVar("conditions taken for granted", default=None)
LARGEST = 1e150
"""Largest magnitude of a value: squares of larger ones overflow."""
KEPT = 1 << 12
"""Largest number of entries of a condition that are kept until all are read together."""


def holds(condition: Bool[Tensor, "..."]) -> bool:
    """Return whether a condition holds in all its entries; within `reading_once` on a GPU it is taken for granted."""
    granted = _GRANTED.get()
    if granted is None or not condition.is_cuda:
        return bool(condition.all())
    granted.append(condition.reshape(-1) if condition.numel() <= KEPT else condition.all().reshape(1))
    return True


def in_range(values: Tensor) -> Bool[Tensor, "..."]:
    """Return which values are neither NaN nor inf, nor beyond `LARGEST`."""
    largest = min(LARGEST, torch.finfo(values.dtype).max) if values.is_floating_point() else LARGEST
    return values.abs() <= largest  # in float32 LARGEST itself is inf


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one device have the same shape and values."""
    if a.shape != b.shape or not a.is_cuda:
        return torch.equal(a, b)
    return holds(a == b)


@contextmanager
def reading_each() -> Iterator[None]:
    """Read every condition where it is asked for, for a result that is kept: it must not rest on what is granted."""
    token = _GRANTED.set(None)
    try:
        yield
    finally:
        _GRANTED.reset(token)


def reading_apart(device: torch.device, compute: Callable[[], T]) -> T:
    """Do `reading_once` for a result that is kept: it does not rest on what is granted outside."""
    with reading_each():
        return reading_once(device, compute)


def granting() -> bool:
    """Return whether conditions are taken for granted at present. Indices must then be made valid in any case."""
    return _GRANTED.get() is not None


def read_now() -> None:
    """Read what was taken for granted so far: called before something is changed."""
    granted = _GRANTED.get()
    if granted:
        conditions, granted[:] = [each for each in granted], []
        if not bool(torch.cat(conditions).all()):
            raise _NotGrantedError


class _NotGrantedError(Exception):
    """Raised where a condition does not hold: `reading_once` computes again."""


def reading_once(device: torch.device, compute: Callable[[], T]) -> T:
    """Return what a computation does, with one wait for all conditions that it asks for. It must change nothing.

    Args:
        device: Where it computes. On the CPU every condition is read where it is asked for.
        compute: The computation. It is repeated if a condition does not hold.
    """
    if device.type != "cuda" or granting():
        return compute()
    conditions: list[Tensor] = []
    token = _GRANTED.set(conditions)
    try:
        found = compute()
    except Exception:  # perhaps for what was taken for granted: the second time tells
        conditions = [torch.zeros(1, dtype=torch.bool)]
    finally:
        _GRANTED.reset(token)
    if conditions and not bool(torch.cat(conditions).all()):
        return compute()
    return found
