"""Linear constraints on named quantities: parameters or outcomes."""

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from bo_scale.errors import InvalidArgumentError

Terms = dict[str | int, float]


@dataclass(frozen=True)
class Linear:
    """A linear constraint Σ weight · quantity ≤ upper, on parameters or on outcomes; on parameters also an equality.

    Attributes:
        weights: Weight of each quantity, by its name, or by its column if points have no names. Zeros are dropped.
        upper: The bound, in units of the sum.
        equal: Whether the sum must equal the bound.

    Raises:
        InvalidArgumentError: if a number is not finite, or all weights are zero.

    Examples:
        >>> Linear.of("2 * x - y >= 1")
        Linear(weights={'x': -2.0, 'y': 1.0}, upper=-1.0, equal=False)
        >>> print(Linear.of("a + b + c == 1"))
        1 * a + 1 * b + 1 * c == 1
    """

    weights: Mapping[str | int, float | int]
    upper: float | int
    equal: bool = False

    def __post_init__(self) -> None:
        weights = {name: float(weight) for name, weight in self.weights.items() if weight != 0}
        if not weights or not all(map(math.isfinite, [*weights.values(), self.upper])):
            raise InvalidArgumentError(
                f"constraint {dict(self.weights)} {self._sign} {self.upper}: all numbers must be finite, and at least "
                f"one weight must not be zero."
            )
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "upper", float(self.upper))

    @property
    def _sign(self) -> str:
        return "==" if self.equal else "<="

    @classmethod
    def of(cls, constraint: "str | Linear") -> "Linear":
        """Read a constraint such as `"x + 2 * y <= 3"`: one `<=`, `>=` or `==` between linear expressions.

        Raises:
            InvalidArgumentError: if the text is not such a constraint; the message shows one.
        """
        if isinstance(constraint, Linear):
            return constraint
        try:
            less, more, equal = _sides(ast.parse(constraint.strip(), mode="eval").body)
        except (SyntaxError, InvalidArgumentError, ZeroDivisionError) as error:
            raise InvalidArgumentError(
                f"constraint {constraint!r}: {error}. Write it as 'x + 2 * y <= 3', 'x >= 1' or 'x + y == 1'. "
                f"If a name is not a Python identifier, write Linear({{'x': 1.0, 'y': 2.0}}, 3.0)."
            ) from error
        total = _sum(less, {name: -weight for name, weight in more.items()})
        constant = total.pop(_CONSTANT, 0.0)
        return cls(total, -constant, equal)

    def describe(self) -> dict[str, Any]:
        """Return the constraint as a journal keeps it."""
        weights = [[name, weight] for name, weight in self.weights.items()]
        return {"weights": weights, "upper": self.upper, **({"equal": True} if self.equal else {})}

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> "Linear":
        """Return a constraint from what `describe` returned of it.

        Raises:
            KeyError, TypeError, ValueError: if it is no such description.
        """
        weights: dict[str | int, float] = dict(map(tuple, description["weights"]))
        return cls(weights, description["upper"], description.get("equal", False))

    def value(self, point: Mapping[str | int, Any]) -> float:
        """Return the sum at a point, given by quantity."""
        return sum(weight * float(point[name]) for name, weight in self.weights.items())

    def require_known(self, names: Iterable[str | int], what: str) -> None:
        """Refuse a constraint on a quantity that does not exist.

        Args:
            names: The quantities that exist.
            what: What they are: "parameters" or "outcomes".

        Raises:
            InvalidArgumentError: naming them.
        """
        unknown = [name for name in self.weights if name not in set(names)]
        if unknown:
            raise InvalidArgumentError(f"constraint {self}: {unknown} are not {what}. Choose from {list(names)}.")

    @override
    def __str__(self) -> str:
        return " + ".join(f"{weight:g} * {name}" for name, weight in self.weights.items()) + (
            f" {self._sign} {self.upper:g}"
        )


_CONSTANT = ""


def _sum(a: Terms, b: Terms) -> Terms:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in [*a, *(each for each in b if each not in a)]}


def _sides(node: ast.expr) -> tuple[Terms, Terms, bool]:
    """Return the smaller and the larger side of a constraint, and whether they must be equal."""
    match node:
        case ast.Compare(left=left, ops=[ast.LtE()], comparators=[right]):
            return _terms(left), _terms(right), False
        case ast.Compare(left=left, ops=[ast.GtE()], comparators=[right]):
            return _terms(right), _terms(left), False
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            a, b = _terms(left), _terms(right)
            return (b, a, True) if set(a) == {_CONSTANT} else (a, b, True)
    raise InvalidArgumentError("it needs exactly one <=, >= or ==")


def _terms(node: ast.expr) -> Terms:
    """Return the weights of a linear expression, its constant under the empty name.

    Raises:
        InvalidArgumentError: if it is not linear.
    """
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return {_CONSTANT: float(value)}
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return {name: -weight for name, weight in _terms(operand).items()}
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(_terms(left), _terms(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _sum(_terms(left), {name: -weight for name, weight in _terms(right).items()})
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(_terms(left), _terms(right))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _product(_terms(left), {_CONSTANT: 1.0 / _number(_terms(right))})
    raise InvalidArgumentError(f"{ast.unparse(node)!r} is not linear")


def _number(terms: Terms) -> float:
    if set(terms) != {_CONSTANT}:
        raise InvalidArgumentError("a product or quotient of names is not linear")
    return terms[_CONSTANT]


def _product(a: Terms, b: Terms) -> Terms:
    factor, terms = (_number(a), b) if set(a) == {_CONSTANT} else (_number(b), a)
    return {name: factor * weight for name, weight in terms.items()}
