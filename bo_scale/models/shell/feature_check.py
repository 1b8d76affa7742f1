"""A check of feature maps, the user's own included, for what would make statistics silently wrong."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.models.errors import UnsupportedError

_CHECKED: set[type] = set()
"""Classes whose feature map has been checked."""


def check_feature_map(model: Any, X: Float[Tensor, "n d"]) -> None:
    """Check, once for each class, what would make statistics silently wrong.

    Raises:
        UnsupportedError: if φ depends on parameters that `_feature_parameters` omits, or a frozen φ shares memory
            with parameters.
    """
    if type(model) in _CHECKED or len(X) == 0:
        return
    _CHECKED.add(type(model))
    given = {id(p) for p in model._feature_parameters()}
    others = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in given}
    with torch.enable_grad():
        phi = model._feature_map(0)
        total = (phi(X[:1]) @ X.new_ones(phi.num_features, 1)).sum()
        learned = list(others.values()) if total.requires_grad else []
        slopes = torch.autograd.grad(total, learned, allow_unused=True) if learned else ()
    omitted = [name for name, slope in zip(others, slopes) if slope is not None]
    own = {p.data_ptr() for p in model.parameters()}
    shared = [
        name
        for name, value in vars(model._feature_map(0, frozen=True)).items()
        if isinstance(value, Tensor) and value.data_ptr() in own
    ]
    name = type(model).__name__
    if omitted or shared:
        _CHECKED.discard(type(model))
    if omitted:
        raise UnsupportedError(f"{name}._feature_parameters: φ depends on {omitted} too. Return them as well.")
    if shared:
        raise UnsupportedError(f"{name}._feature_map: if frozen, {shared} must be copies. Use .detach().clone().")
