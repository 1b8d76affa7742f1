"""Read the words of a command line: points, values and ids."""

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bo_scale.cli.loop.commands import UNKNOWN
from bo_scale.cli.numbers import number
from bo_scale.errors import InvalidArgumentError, SpaceError
from bo_scale.loop import Choice, Fixed, Space
from bo_scale.loop.history.observations import Id
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.parameters import Parameter, When, bare
from bo_scale.loop.tables import VALUE, labels
from bo_scale.spelling import suggestion

SLACK = 1e-6
"""Share of the range by which a value may lie outside, as in `Optimizer.tell`."""


def outcome_names(outcomes: Outcomes) -> list[str]:
    """Return the names of the outcomes; "value" for one without."""
    return list(outcomes.names or (VALUE,))


def read_point(
    option: str, words: Sequence[str], space: Space, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of all parameters by their names.

    Args:
        option: The option, for messages.
        words: `NAME=VALUE` for every parameter; fixed ones may be missing, conditional ones where they are not.
        space: The space.
        before: A point with the values of those that are missing; None for no such point.

    Raises:
        InvalidArgumentError: for names that are missing, unknown or there twice, and values that cannot be read.
        SpaceError: for values that a parameter does not take.
    """
    given = {name: value for name, value in (before or {}).items() if value is not None}
    given |= _values(option, words, space)
    fixed = {name: each.value for name, each in zip(labels(space), space.parameters) if isinstance(each, Fixed)}
    conditional = [name for name, each in zip(labels(space), space.parameters) if isinstance(each, When)]
    missing = [name for name in labels(space) if name not in (*given, *fixed, *conditional)]
    if not missing:
        whole = {name: given.get(name, fixed.get(name)) for name in labels(space)}
        missing = [str(name) for name in space.lacking(as_told(whole, space))]
    if missing:
        raise InvalidArgumentError(f"{option}: {', '.join(missing)} missing. Give {_form(missing)} too.")
    return whole


def read_fixed(words: Sequence[str], space: Space) -> dict[str | int, Any]:
    """Return held values as `Optimizer.ask` takes them: by name, or by column in a space without names."""
    given = _values("--fixed", words, space)
    return {own: given[name] for own, name in zip(space.labels, labels(space)) if name in given}


def as_told(point: Mapping[str, Any], space: Space) -> list[Any]:
    """Return a point by names as the only one of a list that `Optimizer.tell` takes."""
    return [dict(point)] if space.names is not None else [list(point.values())]


def read_values(option: str, words: Sequence[str], outcomes: Outcomes) -> dict[str, float]:
    """Return values of outcomes by their names.

    Args:
        option: The option, for messages.
        words: `NAME=VALUE` for each outcome; of a single outcome a number will do.
        outcomes: The outcomes.

    Raises:
        InvalidArgumentError: for names that are unknown or there twice, and values that are no finite numbers.
    """
    names = outcome_names(outcomes)
    if len(names) == 1 and len(words) == 1 and "=" not in words[0]:
        return {names[0]: read_number(option, words[0])}
    pairs = _pairs(option, words, names, "outcome")
    return {name: read_number(option, text) for name, text in pairs.items()}


def read_variances(words: Sequence[str], outcomes: Outcomes) -> dict[str, float]:
    """Return noise variances by the names of outcomes; NaN for the word "unknown"."""
    names = outcome_names(outcomes)
    single = len(names) == 1 and len(words) == 1 and "=" not in words[0]
    pairs = {names[0]: words[0]} if single else _pairs("--variance", words, names, "outcome")
    return {name: math.nan if text == UNKNOWN else read_number("--variance", text) for name, text in pairs.items()}


def row_of(variances: Mapping[str, float] | None, outcomes: Outcomes) -> list[list[float]] | None:
    """Return the variances of one point as a row in the order of the outcomes, NaN for those missing."""
    return None if variances is None else [[variances.get(name, math.nan) for name in outcome_names(outcomes)]]


def require_every(option: str, values: Mapping[str, float], outcomes: Outcomes) -> list[list[float]]:
    """Return the values of one point as a row in the order of the outcomes.

    Raises:
        InvalidArgumentError: naming those that are missing.
    """
    missing = [name for name in outcome_names(outcomes) if name not in values]
    if missing:
        raise InvalidArgumentError(
            f"{option}: {', '.join(missing)} missing. All outcomes of a point are told together: add {_form(missing)}."
        )
    return [[values[name] for name in outcome_names(outcomes)]]


def read_number(option: str, text: str) -> float:
    """Return a finite number, with a decimal point or a decimal comma.

    Raises:
        InvalidArgumentError: if the text is none, or may be read in two ways.
    """
    try:
        read = number(text)
    except ArgumentTypeError as error:
        raise InvalidArgumentError(f"{option}: {error}.") from None
    if not math.isfinite(read):
        raise InvalidArgumentError(f"{option}: {text.strip()} is no finite number. Write it like 1.25 or 3e-4.")
    return read


def read_id(text: str, known: Iterable[Id] = ()) -> Id:
    """Return an id: a whole number if it looks like one, unless the text is a known id and the number is not."""
    text, there = text.strip(), set(known)
    if not text.removeprefix("-").isdecimal():
        return text
    return text if text in there and int(text) not in there else int(text)


def _values(option: str, words: Sequence[str], space: Space) -> dict[str, Any]:
    parameters = dict(zip(labels(space), space.parameters))
    pairs = _pairs(option, words, list(parameters), "parameter")
    return {name: _value(option, name, text, parameters[name]) for name, text in pairs.items()}


def _pairs(option: str, words: Sequence[str], names: Sequence[str], what: str) -> dict[str, str]:
    """Return texts by names, from words NAME=VALUE."""
    found: dict[str, str] = {}
    for word in words:
        if "=" not in word:
            raise InvalidArgumentError(f"{option}: {word.strip()!r} has no name. Write it like {_form(names)}.")
        begun = [name for name in names if word.startswith(f"{name}=")]
        name = max(begun, key=len) if begun else word.split("=", 1)[0]  # names may have a = too
        if name not in names:
            meant = suggestion([name], names) or f" Choose from {', '.join(names)}."
            raise InvalidArgumentError(f"{option}: {name!r} is no {what}.{meant}")
        if name in found:
            raise InvalidArgumentError(f"{option}: {name!r} is there twice. Give it once.")
        found[name] = word[len(name) + 1 :]
    return found


def _value(option: str, name: str, text: str, parameter: Parameter) -> Any:
    """Return the value of a parameter."""
    takes, parameter = str(parameter), bare(parameter)
    if isinstance(parameter, Choice | Fixed):
        values = parameter.values if isinstance(parameter, Choice) else (parameter.value,)
        found = [each for each in values if _means(text, each)]
        if not found:
            meant = suggestion([text], values)
            raise SpaceError(f"{option}: {name}={text} is outside the space: {name!r} takes {takes}.{meant}")
        return found[0]
    read = read_number(f"{option} {name}", text)
    if float(parameter.encode([read])[1]) > SLACK:
        raise SpaceError(f"{option}: {name}={text} is outside the space: {name!r} takes {takes}.")
    return read


def _means(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text == value
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    try:
        return math.isclose(number(text), value, rel_tol=1e-9)
    except ArgumentTypeError:
        return False


def _form(names: Sequence[str]) -> str:
    return " ".join(f"{name}=…" for name in names)
