"""Models of observations that were made apart on several devices, or that are too many for one."""

from functools import reduce
from operator import add
from typing import Any, TypeVar

import torch
from botorch.models.transforms.outcome import Standardize
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.waiting import reading_once
from bo_scale.gp.weight_space.host_rows import chunks, require_host
from bo_scale.gp.weight_space.inference import Observed
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.conditioning import new_inputs
from bo_scale.models.shell.door import require_finite, require_given, require_noise, require_tensors
from bo_scale.models.shell.lending import child_of

M = TypeVar("M", bound=Any)
"""A `WeightSpaceModel`."""


def merged(model: M, others: tuple[Any, ...]) -> M:
    """Return a model of the observations of several, which keep statistics alone."""
    for each in (model, *others):
        if type(each) is not type(model) or each.num_outputs != model.num_outputs:
            raise InvalidDataError(f"others: expected {type(model).__name__}s of {model.num_outputs} outputs.")
        if each.rows is not None or each._fantasies is not None or each.forgetting.forgets:
            raise UnsupportedError(
                "merged: needs models that keep statistics alone (keep_data=False), without decay and fantasies."
            )
        if each.knows_noise != model.knows_noise:
            raise InvalidDataError("others: noise is known in some models and learned in others.")
    every = [model._seen().statistics, *(_in_units_of(model, each)._seen().statistics for each in others)]
    if len({len(statistics) for statistics in every}) > 1:
        raise InvalidDataError("others: noise differs between outputs in some models and not in others.")
    there = [tuple(each.to(model._device) for each in statistics) for statistics in every]
    child = clone_module(model)
    child._inference = model._seen().derived_from(summed=tuple(reduce(add, group) for group in zip(*there)))
    child._tell_likelihood()
    return child


def with_host_rows(model: M, X: Tensor, Y: Tensor, noise: Tensor | None, rows: int) -> M:
    """Return a model that has also observed rows of the host, chunk by chunk. It keeps statistics alone."""
    if model.rows is not None or model._fantasies is not None:
        raise UnsupportedError(
            "observe_from_host: needs a model that keeps statistics alone (keep_data=False), without fantasies."
        )
    require_given(X=X, Y=Y)
    require_tensors(noise=noise)
    require_host(X, Y=Y, noise=noise)
    if X.shape != (len(X), model.num_inputs) or Y.shape != (len(X), model.num_outputs):
        expected = f"n × {model.num_inputs} and n × {model.num_outputs}"
        raise InvalidDataError(f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected {expected}.")
    require_noise(noise, Y.shape, "noise", zero=model.knows_noise)
    start = model._seen().settled()

    def observed() -> Any:
        found = start
        for x, y, *known in chunks([X, Y] if noise is None else [X, Y, noise], model._device, rows):
            require_finite(X=x, Y=y)
            found = found.counting(*in_model_units(model, x, y, known[0] if known else None))
        return found

    child = clone_module(model)
    with torch.no_grad():
        child._inference = reading_once(model._device, observed)
    child._tell_likelihood()
    return child


def in_model_units(model: Any, X: Tensor, Y: Tensor, noise: Tensor | None) -> Observed:
    """Return raw rows as a model's sums take them."""
    transform, inputs = child_of(model, "outcome_transform"), new_inputs(model, X)
    targets = Y if transform is None else transform(Y=Y, X=inputs)[0]
    D = model._relative_noise(targets, noise).expand_as(targets)
    return inputs.to(torch.float64), targets.to(torch.float64), D


def _in_units_of(model: Any, other: Any) -> Any:
    """Return the other model with the first one's standardisation of targets."""
    own, its = child_of(model, "outcome_transform"), child_of(other, "outcome_transform")
    if own is None and its is None:
        return other
    if type(own) is not Standardize or type(its) is not Standardize:
        raise UnsupportedError("merged: outcome transforms must be Standardize, or none.")
    return other.restandardised(own.means.to(its.means), own.stdvs.to(its.stdvs))
