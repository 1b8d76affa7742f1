"""Models that borrow the modules of the model they were conditioned from, until these are accessed.

Copying kernels, likelihoods and transforms takes longer than observing one row. A conditioned model needs none of them
for its posterior, since its inference is frozen. So it borrows them. It makes its own copies, at the hyperparameters of
its inference, before any of its modules is read or changed and before one of the lender's is changed.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.models.shell.cloning import clone_module

_COPIED = ("_modules", "_parameters", "_buffers", "_priors", "_constraints")
_BORROWERS: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.WeakSet[Any]]" = weakref.WeakKeyDictionary()
"""The models that borrow from each lender."""


@dataclass(frozen=True)
class _Lent:
    """Modules that a model borrows.

    Attributes:
        lender: The model that owns the modules; it may no longer exist.
        children: Its modules, parameters and buffers, and whatever refers to them.
        theta: Hyperparameters of the borrower, in a row.
    """

    lender: "weakref.ReferenceType[Any]"
    children: dict[str, Any]
    theta: Float[Tensor, " h"]


class Lending(torch.nn.Module):
    """A module whose children may belong to another module. Abstract.

    PyTorch keeps children in `_modules`, `_parameters` and `_buffers`. A borrower has none of the three: the first
    access to one of them, or to a child, ends in `__getattr__`, which creates them.
    """

    def _owned_modules(self) -> None:
        """Hook, called when modules have become this model's own."""

    @override
    def __getattr__(self, name: str) -> Any:
        if borrows(self):
            own_modules(self)
            return getattr(self, name)
        return super().__getattr__(name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        child = isinstance(value, torch.nn.Module | torch.nn.Parameter) or name in _children(self).get("_buffers", ())
        if child:
            own_modules(self)
            settle(self)
        super().__setattr__(name, value)

    @override
    def __getstate__(self) -> dict[str, Any]:
        own_modules(self)
        return self.__dict__.copy()


def lend(owner: Lending, borrower: Lending, theta: Float[Tensor, " h"]) -> None:
    """Let a model that has copied another's attributes borrow its modules.

    Args:
        owner: The model that lends, its own modules or those that it borrows.
        borrower: The model that borrows.
        theta: Hyperparameters of the borrower, in the order of `parameters()`; further values may follow.
    """
    own = owner.__dict__
    lent = own.get("_lent") or _Lent(weakref.ref(owner), {name: own[name] for name in _COPIED if name in own}, theta)
    for name in _COPIED:
        borrower.__dict__.pop(name, None)
    borrower.__dict__["_lent"] = lent
    lender = lent.lender()
    if lender is not None:  # nobody changes modules of a model that is gone
        _BORROWERS.setdefault(lender, weakref.WeakSet()).add(borrower)


def borrows(model: Lending) -> bool:
    """Return whether a model's modules belong to another."""
    return "_lent" in model.__dict__


def own_modules(model: Lending) -> None:
    """Give a model copies of the modules that it borrows, with its own hyperparameters."""
    lent: _Lent | None = model.__dict__.pop("_lent", None)
    if lent is None:
        return
    whole = object.__new__(type(model))
    whole.__dict__.update({**model.__dict__, **lent.children})
    copied = clone_module(whole)
    model.__dict__.update({name: copied.__dict__[name] for name in lent.children})
    for p, values in zip(model.parameters(), lent.theta.split(_sizes(model, lent.theta))):
        p.data.copy_(values.view_as(p))
    torch.nn.Module.train(model, model.training)
    model._owned_modules()


def settle(model: Lending) -> None:
    """Make all borrowers copy a model's modules, since one of these is about to change."""
    for borrower in list(_BORROWERS.get(model, ())):
        own_modules(borrower)


def child_of(model: Lending, name: str) -> Any:
    """Return a module by name, borrowed or not; None if there is none. Do not change it."""
    return _children(model).get("_modules", {}).get(name)


def parameter_of(model: Lending) -> torch.nn.Parameter:
    """Return one of a model's parameters, borrowed or not: all have the model's dtype and device."""
    children = _children(model)
    own = [p for p in children["_parameters"].values() if p is not None]
    if own:
        return own[0]
    parts = (p for module in children["_modules"].values() if module is not None for p in module.parameters())
    return next(parts)


def _children(model: Lending) -> dict[str, Any]:
    lent: _Lent | None = model.__dict__.get("_lent")
    return model.__dict__ if lent is None else lent.children


def _sizes(module: torch.nn.Module, theta: Float[Tensor, " h"]) -> list[int]:
    sizes = [p.numel() for p in module.parameters()]
    return [*sizes, len(theta) - sum(sizes)]
