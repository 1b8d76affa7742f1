"""The time that a fit may take, with all of its stages."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bo_scale.errors import InvalidArgumentError

_end: ContextVar[float] = ContextVar("end", default=math.inf)
"""Time at which fits of this thread have to end, by the clock `time.monotonic`."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Let fits within the context end after so many seconds, each stage after its first step.

    Args:
        seconds: The time; None for no limit but one from outside.

    Raises:
        InvalidArgumentError: if it is not positive.
    """
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise InvalidArgumentError(f"timeout_sec={seconds!r}: must be a positive number, or None for no limit.")
    token = _end.set(min(_end.get(), math.inf if seconds is None else time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


@contextmanager
def no_time_limit() -> Iterator[None]:
    """Let fits within the context go on to their ends: short ones that must not be left out."""
    token = _end.set(math.inf)
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """Return the time left, at least 0; inf without a limit."""
    return max(0.0, _end.get() - time.monotonic())


def is_over() -> bool:
    """Return whether the time is over."""
    return seconds_left() <= 0
