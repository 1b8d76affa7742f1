"""Kinds of parameters: what values they take, and where these lie in the unit cube."""

import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.decisions.candidates import Lattice
from bo_scale.errors import InvalidDataError, SpaceError

logger = logging.getLogger("bo_scale.loop")
NEAR = 1e-6
"""Numbers this near, relative to their size, are the same value of a choice: what float32 leaves of one."""
LARGEST_BOUND, LARGEST_INTEGER = 1e150, 2**53
"""Largest bounds. Squares of distances overflow beyond, and a float holds not all whole numbers."""

Value = bool | int | float | str
Column = Sequence[Any] | Tensor
"""Values of one parameter, a point each."""


class Parameter(ABC):
    """One parameter: its values, and the inputs of the model that stand for it."""

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return 1

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers."""
        return True

    @property
    def lattice(self) -> Lattice | None:
        """The places of a single input that takes no others; None for a continuous or one-hot parameter."""
        return None

    @property
    def span(self) -> tuple[float, float] | None:
        """The values at 0 and 1, if values are linear in a single input; else None."""
        return None

    @abstractmethod
    def encode(self, column: Column) -> tuple[Float[Tensor, "n i"], Float[Tensor, " n"]]:
        """Return the inputs of values, and by which share of the range each is outside; inf for an unknown value."""

    @abstractmethod
    def decode(self, unit: Float[Tensor, "n i"]) -> list[Any]:
        """Return the values nearest to inputs."""

    @abstractmethod
    def settled(self, column: Column) -> list[Any]:
        """Return values of the right type, rounded where necessary."""

    def pack(self, value: Any) -> float:
        """Return a settled value as a number from which it can be recovered exactly."""
        return float(value)

    def unpack(self, number: float) -> Any:
        """Return the value of a packed number."""
        return number

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the parameter as a journal keeps it."""

    @override
    @abstractmethod
    def __str__(self) -> str:
        """Return its values in words, for messages."""


@dataclass(frozen=True)
class Real(Parameter):
    """A parameter with values in an interval of numbers.

    Attributes:
        lower: Smallest value.
        upper: Largest value.
        log: Whether the scale is logarithmic. `lower` must then be above zero.
        digits: Number of decimals of the bounds and of the values that are proposed. Told values may have more. None
            for no limit.

    Raises:
        SpaceError: if the bounds are not finite, not in order, or not above zero on a logarithmic scale, or have fewer
            than two values of so few decimals between them.
    """

    lower: float | int
    upper: float | int
    log: bool = False
    digits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        _require_order(self.lower, self.upper, self.log)
        if self.digits is not None:
            self._round(self.digits)

    def _round(self, digits: int) -> None:
        """Move the bounds inward, to numbers of so few decimals."""
        low, high = (each * 10.0**digits for each in (self.lower, self.upper))
        first, last = max(math.ceil(low - 1e-9), 1 if self.log else -math.inf), math.floor(high + 1e-9)
        if first >= last:
            raise SpaceError(
                f"bounds ({self.lower}, {self.upper}): fewer than two numbers between them have {digits} digits"
            )
        object.__setattr__(self, "lower", round(first / 10.0**digits, digits))
        object.__setattr__(self, "upper", round(last / 10.0**digits, digits))

    @property
    @override
    def lattice(self) -> Lattice | None:
        if self.digits is None:
            return None
        first, last = (round(each * 10.0**self.digits) for each in (self.lower, self.upper))
        return Lattice(last - first + 1, first if self.log else None)

    @property
    @override
    def span(self) -> tuple[float, float] | None:
        return None if self.log else (self.lower, self.upper)

    @override
    def encode(self, column: Column) -> tuple[Float[Tensor, "n i"], Float[Tensor, " n"]]:
        raw = numbers(column)
        if self.log:
            low, high = math.log(self.lower), math.log(self.upper)
            unit = (raw.clamp_min(torch.finfo(raw.dtype).tiny).log() - low) / (high - low)
        else:
            unit = (raw - self.lower) / (self.upper - self.lower)
        return unit.unsqueeze(-1), torch.maximum(-unit, unit - 1).clamp_min(0.0)

    @override
    def decode(self, unit: Float[Tensor, "n i"]) -> list[Any]:
        if self.log:
            low, high = math.log(self.lower), math.log(self.upper)
            raw = (low + (high - low) * unit[:, 0]).exp()
        else:
            raw = self.lower + (self.upper - self.lower) * unit[:, 0]
        values = raw.clamp(self.lower, self.upper).tolist()
        return values if self.digits is None else [round(value, self.digits) for value in values]

    @override
    def settled(self, column: Column) -> list[Any]:
        return numbers(column).tolist()

    @override
    def describe(self) -> dict[str, Any]:
        digits = {} if self.digits is None else {"digits": self.digits}
        return {"kind": "real", "lower": self.lower, "upper": self.upper, "log": self.log, **digits}

    @override
    def __str__(self) -> str:
        return f"numbers from {self.lower} to {self.upper}"


@dataclass(frozen=True)
class Integer(Parameter):
    """A parameter with values in an interval of whole numbers.

    Attributes:
        lower: Smallest value.
        upper: Largest value.
        log: Whether the scale is logarithmic. `lower` must then be above zero.

    Raises:
        SpaceError: if the bounds are not whole, not in order, or not above zero on a logarithmic scale.
    """

    lower: int
    upper: int
    log: bool = False

    def __post_init__(self) -> None:
        _require_order(self.lower, self.upper, self.log, LARGEST_INTEGER)
        if self.lower != int(self.lower) or self.upper != int(self.upper):
            raise SpaceError(f"bounds ({self.lower}, {self.upper}): those of an Integer must be whole numbers")
        object.__setattr__(self, "lower", int(self.lower))
        object.__setattr__(self, "upper", int(self.upper))

    @property
    @override
    def lattice(self) -> Lattice:
        return Lattice(self.upper - self.lower + 1, self.lower if self.log else None)

    @property
    @override
    def span(self) -> tuple[float, float] | None:
        return None if self.log else (float(self.lower), float(self.upper))

    @override
    def encode(self, column: Column) -> tuple[Float[Tensor, "n i"], Float[Tensor, " n"]]:
        raw = numbers(column)
        steps = (raw - self.lower).round()
        index = steps.clamp(0, self.upper - self.lower).long()
        outside = (steps - index).abs() / (self.upper - self.lower)
        return self.lattice.position(index).unsqueeze(-1), torch.maximum(outside, (raw - self.lower - steps).abs())

    @override
    def decode(self, unit: Float[Tensor, "n i"]) -> list[Any]:
        return [self.lower + index for index in self.lattice.index(unit[:, 0]).tolist()]

    @override
    def settled(self, column: Column) -> list[Any]:
        return [int(value) for value in numbers(column).round().tolist()]

    @override
    def unpack(self, number: float) -> Any:
        return int(number)

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "integer", "lower": self.lower, "upper": self.upper, "log": self.log}

    @override
    def __str__(self) -> str:
        return f"integers from {self.lower} to {self.upper}"


@dataclass(frozen=True)
class Choice(Parameter):
    """A parameter that takes one of several given values.

    Ordered values are evenly spaced on one input of the model. Of more than two unordered values, each has an input of
    its own; two values share one input.

    Attributes:
        values: At least two different numbers, strings or bools.
        ordered: Whether neighbouring values are expected to have similar outcomes.

    Raises:
        SpaceError: for fewer than two values, equal values, or values of another type.
    """

    values: Sequence[Value]
    ordered: bool = False

    def __post_init__(self) -> None:
        values = tuple(_plain(value) for value in self.values)
        object.__setattr__(self, "values", values)
        if len(values) < 2 or len(set(values)) < len(values):
            raise SpaceError(
                f"values {values}: a Choice needs at least two, all different. For a single value use Fixed"
            )
        for value in values:
            _require_value(value)

    @property
    @override
    def inputs(self) -> int:
        return 1 if self.ordered or len(self.values) == 2 else len(self.values)

    @property
    @override
    def numeric(self) -> bool:
        return not any(isinstance(value, str) for value in self.values)

    @property
    @override
    def lattice(self) -> Lattice | None:
        return Lattice(len(self.values)) if self.inputs == 1 else None

    @property
    @override
    def span(self) -> tuple[float, float] | None:
        if self.lattice is None or not self.numeric:
            return None
        values = [float(value) for value in self.values]
        step = (values[-1] - values[0]) / (len(values) - 1)
        even = all(abs(value - values[0] - k * step) <= NEAR * abs(step) for k, value in enumerate(values))
        return (values[0], values[-1]) if even else None

    @override
    def encode(self, column: Column) -> tuple[Float[Tensor, "n i"], Float[Tensor, " n"]]:
        found = self._indices(column)
        index = torch.tensor([each or 0 for each in found], dtype=torch.long)
        off = torch.tensor([math.inf if each is None else 0.0 for each in found], dtype=torch.float64)
        if self.lattice is not None:
            return self.lattice.position(index).unsqueeze(-1), off
        return torch.nn.functional.one_hot(index, len(self.values)).double(), off

    @override
    def decode(self, unit: Float[Tensor, "n i"]) -> list[Any]:
        index = unit.argmax(-1) if self.lattice is None else self.lattice.index(unit[:, 0])
        return [self.values[each] for each in index.tolist()]

    @override
    def settled(self, column: Column) -> list[Any]:
        return [value if index is None else self.values[index] for index, value in zip(self._indices(column), column)]

    @override
    def pack(self, value: Any) -> float:
        return float(self.values.index(value))

    @override
    def unpack(self, number: float) -> Any:
        return self.values[int(number)]

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "choice", "values": list(self.values), "ordered": self.ordered}

    @override
    def __str__(self) -> str:
        return f"one of {list(self.values)}"

    def _indices(self, column: Column) -> list[int | None]:
        places = {value: index for index, value in enumerate(self.values)}
        return [self._index(_plain(value), places) for value in column]

    def _index(self, value: Any, places: dict[Value, int]) -> int | None:
        if isinstance(value, str | bool | int) or not isinstance(value, float):
            return places.get(value) if isinstance(value, str | bool | int) else None
        near = (i for i, each in enumerate(self.values) if not isinstance(each, str) and _close(value, each))
        return places.get(value, next(near, None))


@dataclass(frozen=True)
class Fixed(Parameter):
    """A parameter with one value for all points. The model does not see it, and told points may leave it out.

    Attributes:
        value: A number, string or bool.

    Raises:
        SpaceError: for a value of another type.
    """

    value: Value

    def __post_init__(self) -> None:
        _require_value(self.value)

    @property
    @override
    def inputs(self) -> int:
        return 0

    @property
    @override
    def numeric(self) -> bool:
        return not isinstance(self.value, str)

    @override
    def encode(self, column: Column) -> tuple[Float[Tensor, "n i"], Float[Tensor, " n"]]:
        same = [self._is(_plain(value)) for value in column]
        off = torch.tensor([0.0 if each else math.inf for each in same], dtype=torch.float64)
        return off.new_empty(len(same), 0), off

    def _is(self, value: Any) -> bool:
        inexact = isinstance(value, float) and not isinstance(self.value, str)
        return value == self.value or (inexact and _close(value, float(self.value)))

    @override
    def decode(self, unit: Float[Tensor, "n i"]) -> list[Any]:
        return [self.value] * len(unit)

    @override
    def settled(self, column: Column) -> list[Any]:
        return [self.value] * len(column)

    @override
    def pack(self, value: Any) -> float:
        return 0.0

    @override
    def unpack(self, number: float) -> Any:
        return self.value

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "fixed", "value": self.value}

    @override
    def __str__(self) -> str:
        return f"only {self.value!r}"


@dataclass(frozen=True)
class When(Parameter):
    """A parameter that exists only where another one has certain values. Elsewhere points lack it.

    Two points that differ only in parameters which do not exist there are the same point.

    Attributes:
        on: The name of the other parameter: a Choice, an Integer, or a When of one of these.
        value: The value of it at which this one exists, or several.
        parameter: A Real, Integer or Choice; a pair of bounds means Real.

    Raises:
        SpaceError: for no value, or something else than such a parameter.

    Examples:
        >>> When("solver", "sgd", (0.0, 0.99))
        When(on='solver', value=('sgd',), parameter=Real(lower=0.0, upper=0.99, log=False, digits=None))
    """

    on: str
    value: Any
    parameter: Any

    def __post_init__(self) -> None:
        several = isinstance(self.value, Iterable) and not isinstance(self.value, str)
        plain = self.value.tolist() if hasattr(self.value, "tolist") else self.value
        values = [_plain(each) for each in plain] if several and isinstance(plain, Iterable) else [plain]
        for each in values:
            _require_value(each)
        object.__setattr__(self, "value", tuple(dict.fromkeys(values)))
        object.__setattr__(
            self, "parameter", parameter_of(f"when {self.on!r} is {_either(self.value)}", self.parameter)
        )
        if not self.value:
            raise SpaceError(f"When({self.on!r}, …): no value. Give the value of {self.on!r} at which it exists.")
        if not isinstance(self.parameter, Real | Integer | Choice):
            kind = type(self.parameter).__name__
            raise SpaceError(
                f"When({self.on!r}, …): the parameter is a {kind}. Give a Real, Integer or Choice; to nest conditions, "
                f"name the conditional parameter in `on`."
            )

    @property
    def idle(self) -> float:
        """The value of each input where the parameter does not exist: the middle, as far from one end as the other.

        Of a choice with an input for each value it is the point that is equally far from all values, and nearest.
        """
        return 0.5 if self.inputs == 1 else 1 / self.inputs

    @property
    @override
    def inputs(self) -> int:
        return int(self.parameter.inputs)

    @property
    @override
    def numeric(self) -> bool:
        return False  # it may have no value

    @property
    @override
    def lattice(self) -> Lattice | None:
        lattice: Lattice | None = self.parameter.lattice
        return lattice

    @override
    def encode(self, column: Column) -> tuple[Float[Tensor, "n i"], Float[Tensor, " n"]]:
        """Return the inputs of values, idle for None, and how far each is outside: 0 for None, inf for NaN."""
        places, off = self.parameter.encode(self._filled(column))
        for row, value in enumerate(column):
            if is_missing(value):
                places[row], off[row] = self.idle, 0.0 if value is None else math.inf
        return places, off

    @override
    def decode(self, unit: Float[Tensor, "n i"]) -> list[Any]:
        return list(self.parameter.decode(unit))

    @override
    def settled(self, column: Column) -> list[Any]:
        values = self.parameter.settled(self._filled(column))
        return [None if is_missing(given) else value for given, value in zip(column, values)]

    def _filled(self, column: Column) -> list[Any]:
        """Return a column with some value where there is none."""
        (some,) = self.parameter.decode(torch.full((1, self.inputs), self.idle, dtype=torch.float64))
        return [some if is_missing(value) else value for value in column]

    @override
    def pack(self, value: Any) -> float:
        return math.nan if value is None else float(self.parameter.pack(value))

    @override
    def unpack(self, number: float) -> Any:
        return None if math.isnan(number) else self.parameter.unpack(number)

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "when", "on": self.on, "value": list(self.value), "parameter": self.parameter.describe()}

    @override
    def __str__(self) -> str:
        return f"{self.parameter}, only where {self.on!r} is {_either(self.value)}"


DECADES = 1000.0
"""Ratio of a pair of bounds from which a logarithmic scale is proposed: three decades."""


def parameter_of(label: str | int, entry: Any) -> Parameter:
    """Return a parameter, made from a pair of bounds if need be.

    Args:
        label: Its name, for messages.
        entry: The parameter, or the pair.

    Raises:
        SpaceError: for something else, and bounds that are none.
    """
    if isinstance(entry, Parameter):
        return entry
    try:
        lower, upper = entry
        pair = float(lower), float(upper)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpaceError(
            f"space: parameter {label!r} needs a pair (lower, upper) of numbers, or a Real, Integer, Choice or Fixed; "
            f"got {entry!r}."
        ) from error
    if type(lower) is type(upper) is int:
        logger.info("parameter %r is taken as real; use Integer(%d, %d) for whole numbers.", label, lower, upper)
    try:
        parameter = Real(*pair)
    except SpaceError as error:
        raise SpaceError(f"space: parameter {label!r} has {error}.") from error
    if pair[1] >= DECADES * pair[0] > 0:
        logger.warning(
            "parameter %r has a linear scale: nine tenths of its range are the last decade. If ratios matter, give "
            "Real(%r, %r, log=True), else Real(%r, %r).",
            *(label, *pair, *pair),
        )
    return parameter


def bare(parameter: Parameter) -> Parameter:
    """Return a parameter without its condition."""
    return parameter.parameter if isinstance(parameter, When) else parameter


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: None, NaN, or pandas' NA."""
    plain = _plain(value)
    return plain is None or type(plain).__name__ == "NAType" or (isinstance(plain, float) and math.isnan(plain))


def _either(values: Sequence[Any]) -> str:
    """Write some values: "'a'", "'a' or 'b'"."""
    return " or ".join(map(repr, values))


def parameter_described(description: Mapping[str, Any]) -> Parameter:
    """Return a parameter from what its `describe` returned.

    Raises:
        KeyError: if it is no such description.
    """
    kinds: dict[str, type[Parameter]] = {"real": Real, "integer": Integer, "choice": Choice, "fixed": Fixed}
    values: dict[str, Any] = {name: value for name, value in description.items() if name != "kind"}
    if description["kind"] == "when":
        return When(values["on"], tuple(values["value"]), parameter_described(values["parameter"]))
    return kinds[description["kind"]](**values)


def numbers(column: Column) -> Float[Tensor, " n"]:
    """Return a column as numbers.

    Raises:
        InvalidDataError: naming a row with something else.
    """
    if isinstance(column, Tensor):
        return column
    for row, value in enumerate(column):
        if not isinstance(_plain(value), bool | int | float):
            raise InvalidDataError(f"X: row {row} has {value!r} where a number belongs.")
        if isinstance(_plain(value), int) and abs(value) > sys.float_info.max:
            raise InvalidDataError(f"X: row {row} has a number of {len(str(abs(value)))} digits, which no float holds.")
    return torch.tensor([float(value) for value in column], dtype=torch.float64)


def _close(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=NEAR)


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as a value of Python's own type."""
    return value.item() if hasattr(value, "item") else value


def _require_order(lower: float | int, upper: float | int, log: bool, largest: float | int = LARGEST_BOUND) -> None:
    if not (-math.inf < lower < upper < math.inf):
        raise SpaceError(f"bounds ({lower}, {upper}): both must be finite, and the lower one smaller")
    if max(abs(lower), abs(upper)) > largest:
        raise SpaceError(f"bounds: one is beyond ±{largest:g}. Choose another unit")
    if log and lower <= 0:
        raise SpaceError(f"bounds ({lower}, {upper}): on a logarithmic scale the lower one must be above zero")


def _require_value(value: Any) -> None:
    number = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    if not (number or isinstance(value, str)):
        raise SpaceError(f"value {value!r}: it must be a finite number, a string or a bool")
