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

    def _lend_to(self, borrower: "Lending", theta: Float[Tensor, " h"]) -> None:
        """Let a model that has copied this one's attributes borrow its modules.

        Args:
            borrower: The model that borrows.
            theta: Its hyperparameters, in the order of `parameters()`; further values may follow.
        """
        own = self.__dict__
        lent = own.get("_lent") or _Lent(weakref.ref(self), {name: own[name] for name in _COPIED if name in own}, theta)
        for name in _COPIED:
            borrower.__dict__.pop(name, None)
        borrower.__dict__["_lent"] = lent
        lender = lent.lender()
        if lender is not None:  # nobody changes modules of a model that is gone
            _BORROWERS.setdefault(lender, weakref.WeakSet()).add(borrower)

    @property
    def _borrows(self) -> bool:
        """Whether the modules belong to another model."""
        return "_lent" in self.__dict__

    def _own_modules(self) -> None:
        """Copy the borrowed modules, with this model's hyperparameters."""
        lent: _Lent | None = self.__dict__.pop("_lent", None)
        if lent is None:
            return
        whole = object.__new__(type(self))
        whole.__dict__.update({**self.__dict__, **lent.children})
        copied = clone_module(whole)
        self.__dict__.update({name: copied.__dict__[name] for name in lent.children})
        for p, values in zip(self.parameters(), lent.theta.split(_sizes(self, lent.theta))):
            p.data.copy_(values.view_as(p))
        torch.nn.Module.train(self, self.training)
        self._owned_modules()

    def _owned_modules(self) -> None:
        """Hook, called when modules have become this model's own."""

    def _settle(self) -> None:
        """Make all borrowers copy their modules, since one of this model's modules is about to change."""
        for borrower in list(_BORROWERS.get(self, ())):
            borrower._own_modules()

    def _child(self, name: str) -> Any:
        """Return a module by name, borrowed or not; None if there is none. Do not change it."""
        return self._children().get("_modules", {}).get(name)

    def _children(self) -> dict[str, Any]:
        lent: _Lent | None = self.__dict__.get("_lent")
        return self.__dict__ if lent is None else lent.children

    def _any_parameter(self) -> torch.nn.Parameter:
        """Return one of the parameters, borrowed or not: all have the model's dtype and device."""
        children = self._children()
        own = [p for p in children["_parameters"].values() if p is not None]
        if own:
            return own[0]
        parts = (p for module in children["_modules"].values() if module is not None for p in module.parameters())
        return next(parts)

    @override
    def __getattr__(self, name: str) -> Any:
        if "_lent" in self.__dict__:
            self._own_modules()
            return getattr(self, name)
        return super().__getattr__(name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        child = isinstance(value, torch.nn.Module | torch.nn.Parameter) or name in self._children().get("_buffers", ())
        if child:
            self._own_modules()
            self._settle()
        super().__setattr__(name, value)

    @override
    def __getstate__(self) -> dict[str, Any]:
        self._own_modules()
        return self.__dict__.copy()


def _sizes(module: torch.nn.Module, theta: Float[Tensor, " h"]) -> list[int]:
    sizes = [p.numel() for p in module.parameters()]
    return [*sizes, len(theta) - sum(sizes)]
