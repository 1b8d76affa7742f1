"""Models with more observations than another: streamed ones join the data, fantasies condition the posterior."""

from typing import Any, TypeVar

import torch
from botorch.models.utils.assorted import fantasize as fantasize_flag
from torch import Tensor

from bo_scale.gp.waiting import read_now
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.lending import child_of, lend

M = TypeVar("M", bound=Any)
"""A `ScalableModel`."""


def new_inputs(model: Any, X: Tensor) -> Tensor:
    """Transform fantasised inputs as BoTorch does, observed ones like training inputs, as a new model would."""
    transform = child_of(model, "input_transform")
    if fantasize_flag.on() or transform is None:
        transformed: Tensor = model.transform_inputs(X)
        return transformed
    return transform.preprocess_transform(X)


def streamed(model: M, X: Tensor, transformed: Tensor, Y: Tensor, D: Tensor) -> M:
    """Return a model in which observations have joined the data.

    Args:
        model: The model without them; it is unchanged.
        X: Raw inputs `q × d`.
        transformed: The same after the input transform.
        Y: Transformed targets `q × m`.
        D: Relative noise variances `q × m`.
    """
    with torch.no_grad():
        seen = transformed.detach().to(torch.float64), Y.detach().to(torch.float64), D.to(torch.float64)
        known = model.inference if model._infers_first else model._known_inference()
        inference = None if known is None else known.observe(*seen)
        read_now()
        child = clone_module(model) if known is None else _borrower(model, known.theta)
        child._inference = inference
    if model._rows is not None:
        child._take_rows(model._rows.append(X.detach().to(model._dtype), Y.detach(), D.to(Y)))
    child._bound_rank()
    return child


def fantasised(model: M, X: Tensor, transformed: Tensor, Y: Tensor, D: Tensor) -> M:
    """Return a model whose posterior is conditioned on fantasies.

    Args:
        model: The model without them; it is unchanged.
        X: Raw inputs `b × q × d`.
        transformed: The same after the input transform.
        Y: Transformed targets `f × b × q × m`.
        D: Relative noise variances, of shapes that broadcast to that of the targets.
    """
    inference = model.inference.fantasised(transformed.to(torch.float64), Y.to(torch.float64), D)
    X = X.unsqueeze(-3) if inference.samples_shape else X
    child = _borrower(model, inference.theta)
    child._inference = inference
    child._batch_shape = torch.broadcast_shapes(Y.shape[:-2], X.shape[:-2], model._batch_shape)
    new = X, Y, D.to(Y).expand_as(Y)
    child._fantasies = new if model._fantasies is None else _append(model._fantasies, new)
    return child


def _borrower(model: M, theta: Tensor) -> M:
    """Return a copy of a model's attributes that borrows its modules."""
    child: M = object.__new__(type(model))
    child.__dict__.update(model.__dict__)
    lend(model, child, theta)
    return child


def _append(fantasies: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Append further fantasies, with batch shapes broadcast."""
    joined = []
    for old, new in zip(fantasies, more, strict=True):
        batch = torch.broadcast_shapes(old.shape[:-2], new.shape[:-2])
        joined.append(torch.cat([old.expand(*batch, *old.shape[-2:]), new.expand(*batch, *new.shape[-2:])], -2))
    return tuple(joined)
