"""Shapes and types of arguments and results, checked at some calls of each function: the first and every so many.

A check takes up to a tenth of a millisecond, and searches call the same small functions ten thousand times: checks of
all calls take a third of the time of the tests. Some calls see most kinds of shapes.
"""

from collections.abc import Callable
from functools import wraps
from inspect import isclass
from typing import Any

import jaxtyping

FIRST, EVERY = 3, 101
"""The first calls of a function in a file of tests are checked, and then every so many: a prime, for calls in turns."""

checking = True
"""Whether calls are checked: not in tests of what users of wrong types are told."""
file = 0
"""Number of this file of tests."""
_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Have pytest's plugin of jaxtyping decorate by `checked_at_times`. Modules that are imported stay as they are."""
    jaxtyping.jaxtyped = _decorator  # type: ignore[assignment]  # it serves the plugin, which names the checker


def _decorator(*, typechecker: Any) -> Callable[[Any], Any]:
    return lambda decorated: _decorated(decorated, typechecker)


def _decorated(decorated: Any, typechecker: Any) -> Any:
    """Return a function of which some calls are checked, or the class, of which jaxtyping checks a dataclass's init.

    Functions within functions stay as they are: each is made anew at every call, and making its checks takes a
    millisecond.
    """
    if "<locals>" in decorated.__qualname__:
        return decorated
    if isclass(decorated):
        plain = decorated.__init__
        _jaxtyped(decorated, typechecker=typechecker)
        if decorated.__init__ is not plain:
            checked = decorated.__init__
            decorated.__init__ = checked_at_times(plain, lambda: checked)
        return decorated
    return checked_at_times(decorated, lambda: _jaxtyped(decorated, typechecker=typechecker))


def checked_at_times(plain: Callable[..., Any], checks: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that checks some of its calls.

    Args:
        plain: The function without checks.
        checks: Makes the function with checks, when it is first called.
    """
    checked: Callable[..., Any] | None = None
    count, counted = -1, file

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked, count, counted
        count = count + 1 if counted == file else 0
        counted = file
        if not checking or (count >= FIRST and count % EVERY):
            return plain(*args, **kwargs)
        if checked is None:
            checked = checks()
        return checked(*args, **kwargs)

    return call
