"""Copies of processes, feature maps and functions on another device."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch
from linear_operator import LinearOperator
from torch import Tensor

T = TypeVar("T")


class Movable:
    """An immutable object that holds tensors. Abstract."""

    def to(self: T, device: torch.device) -> T:
        """The same on another device: nothing is computed again. Itself if it is there."""
        return moved(self, device)


def moved(value: T, device: torch.device) -> T:
    """Copy a value to another device, with all tensors that it holds; what holds none is kept.

    Tensors are found in containers, dataclasses, modules and linear operators, in what functions close over, and in the
    objects that methods are bound to. What is shared stays shared. What was computed once and kept is moved too: on
    another device, eigenvectors might come out with another sign, and weights refer to those at hand.

    Args:
        value: Any value; it is unchanged.
        device: Where its tensors are to be.
    """
    there = torch.empty(0, device=device).device  # with a number, which "cuda" has not
    return cast(T, _Move(there)(value))


class _Move:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.done: dict[int, tuple[Any, Any]] = {}
        """Values met and their copies by the values' addresses."""

    def __call__(self, value: Any) -> Any:
        known = self.done.get(id(value))
        if known is not None:
            return known[1]
        for kind, move in _MOVES:
            if isinstance(value, kind):
                found = move(self, value)
                break
        else:
            found = self.dataclass(value) if is_dataclass(value) and not isinstance(value, type) else value
        self.done[id(value)] = value, found
        return found

    def tensor(self, value: Tensor) -> Tensor:
        if value.device == self.device:
            return value
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(value.detach().to(self.device), value.requires_grad)
        return value.to(self.device)

    def number(self, value: torch.device) -> torch.device:
        return self.device

    def sequence(self, value: Any) -> Any:
        found = [self(each) for each in value]
        if not _changed(found, value):
            return value
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)

    def mapping(self, value: dict[Any, Any]) -> Any:
        found = {key: self(each) for key, each in value.items()}
        if not _changed(found.values(), value.values()):
            return value
        copied = value.copy()
        copied.update(found)
        return copied

    def method(self, value: MethodType) -> MethodType:
        owner = self(value.__self__)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)

    def applied(self, value: "partial[Any]") -> "partial[Any]":
        parts = value.func, value.args, value.keywords
        found = [self(part) for part in parts]
        return partial(found[0], *found[1], **found[2]) if _changed(found, parts) else value

    def function(self, value: FunctionType) -> Callable[..., Any]:
        self.done[id(value)] = value, value  # it may close over itself
        held = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        parts = held, value.__defaults__, value.__kwdefaults__
        found = [self(part) for part in parts]
        if not _changed(found, parts):
            return value
        cells = iter(found[0])
        closure = tuple(CellType(next(cells)) if _filled(cell) else cell for cell in value.__closure__ or ())
        copied = FunctionType(value.__code__, value.__globals__, value.__name__, found[1], closure)
        copied.__kwdefaults__ = found[2]
        return copied

    def dataclass(self, value: Any) -> Any:
        attributes = getattr(value, "__dict__", {})
        found = {name: self(each) for name, each in attributes.items()}
        if not _changed(found.values(), attributes.values()):
            return value
        copied = object.__new__(type(value))
        copied.__dict__.update(found)
        return copied

    def whole(self, value: Any) -> Any:
        copied = object.__new__(type(value))
        self.done[id(value)] = value, copied  # its hooks may refer to it
        copied.__dict__.update({name: self(each) for name, each in value.__dict__.items()})
        for name, each in copied.__dict__.items():
            if each is value.__dict__[name] and isinstance(each, dict):
                copied.__dict__[name] = each.copy()  # tables of a module are its own
        return copied


_MOVES: tuple[tuple[Any, Callable[[_Move, Any], Any]], ...] = (
    (Tensor, _Move.tensor),
    (torch.device, _Move.number),
    (tuple | list, _Move.sequence),
    (dict, _Move.mapping),
    (MethodType, _Move.method),
    (partial, _Move.applied),
    (FunctionType, _Move.function),
    (torch.nn.Module | LinearOperator, _Move.whole),
)


def _changed(found: Any, before: Any) -> bool:
    return any(a is not b for a, b in zip(found, before, strict=True))


def _filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
