"""Transforms of inputs, learned once from data."""

import torch
from botorch.models.transforms.input import InputTransform
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.models.shell.door import require_finite, require_given

SMALLEST = 1e-3
"""Standard deviation along an axis, relative to the largest, below which rounding would be blown up; such an axis is
scaled like the largest."""


class PrincipalAxes(InputTransform, torch.nn.Module):
    """An input transform to principal axes of standardised inputs, with unit variance: z = Λ^(−½) Vᵀ (x − μ)/σ.

    Inputs that are strongly correlated, or lie near a plane, fill a small part of a grid in their own coordinates. In
    these coordinates they spread over all of it. Every direction is kept, so points away from the data stay away.

    Args:
        X: Inputs `n × d` from which μ, σ, V and Λ are computed, once. O(n d²).

    Examples:
        GRIEF(X, Y, input_transform=PrincipalAxes(X))
    """

    mean: Float[Tensor, " d"]
    matrix: Float[Tensor, "d d"]

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        require_given(X=X)
        require_finite(X=X)
        if X.ndim != 2 or len(X) == 0:
            raise InvalidDataError(f"X: shape {tuple(X.shape)}, expected n × d with at least one row.")
        self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True
        mean = X.mean(0)
        spread = X.std(0, unbiased=False)
        spread = torch.where(spread > 0, spread, 1.0)
        standard = ((X - mean) / spread).double()
        variances, axes = torch.linalg.eigh(standard.mT @ standard / len(X))
        largest = variances[-1] if variances[-1] > 0 else torch.ones_like(variances[-1])  # of rows that do not vary
        scale = torch.where(variances > SMALLEST**2 * largest, variances, largest).rsqrt()
        self.register_buffer("mean", mean)
        self.register_buffer("matrix", ((axes * scale) / spread.double().unsqueeze(-1)).to(X))

    @override
    def transform(self, X: Tensor) -> Tensor:
        """Return inputs `… × d` in principal axes."""
        if X.shape[-1] != len(self.mean):
            raise InvalidDataError(f"X: {X.shape[-1]} columns, but the principal axes are of {len(self.mean)} inputs.")
        z: Tensor = (X - self.mean.to(X)) @ self.matrix.to(X)
        return z

    @override
    def untransform(self, X: Tensor) -> Tensor:
        """Return raw inputs from principal axes."""
        raw: Tensor = torch.linalg.solve(self.matrix.to(X).mT, X.unsqueeze(-1)).squeeze(-1) + self.mean.to(X)
        return raw
