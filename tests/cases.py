"""What the laws are tested on: every feature map, every model, and data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from bo_scale import WISKI
from bo_scale.features.base import FeatureMap
from bo_scale.features.grid import Grid, GridFeatures


def stationary(lengthscales: Tensor, name: str = "rbf") -> Callable[[list[Tensor], list[Tensor]], list[Tensor]]:
    """Factors of a product kernel with unit variance."""

    def factors(U: list[Tensor], V: list[Tensor]) -> list[Tensor]:
        r = [(u.unsqueeze(-1) - v) / length for u, v, length in zip(U, V, lengthscales)]
        return [torch.exp(-0.5 * x.square()) if name == "rbf" else torch.exp(-x.abs()) for x in r]

    return factors


def grid_features(size: tuple[int, ...], basis: Any = "spline", name: str = "rbf") -> Callable[[Tensor], FeatureMap]:
    """From lengthscales to features on the unit cube."""
    d = len(size)

    def build(lengthscales: Tensor) -> FeatureMap:
        return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(lengthscales, name), basis)

    return build


@dataclass(frozen=True)
class CosineFeatures(FeatureMap):
    """A dense feature map, small and smooth: stands for those without structure."""

    lengthscales: Tensor
    p: int = 9

    @property
    def num_features(self) -> int:
        return self.p

    def __call__(self, X: Tensor) -> Tensor:
        order = torch.arange(self.p, dtype=torch.float64)
        return torch.cos(X.to(torch.float64).sum(-1, keepdim=True) * order)

    def prior_root(self) -> DenseLinearOperator:
        order = torch.arange(self.p, dtype=torch.float64)
        return DenseLinearOperator(torch.diag(torch.exp(-self.lengthscales.sum() * order)))


FEATURES = [
    pytest.param(1, grid_features((11,)), id="spline-1d"),
    pytest.param(2, grid_features((8, 7)), id="spline-2d"),
    pytest.param(3, grid_features((6, 5, 7)), id="spline-3d"),
    pytest.param(2, grid_features((8, 7), "keys"), id="keys-2d"),
    pytest.param(2, grid_features((9, 6), "spline", "exponential"), id="rough-2d"),
    pytest.param(2, CosineFeatures, id="dense-2d"),
]

MODELS = [
    pytest.param(1, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 12, **kw}), id="WISKI-1d"),
    pytest.param(2, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 10, **kw}), id="WISKI-2d"),
    pytest.param(3, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 7, **kw}), id="WISKI-3d"),
    pytest.param(2, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 10, "basis": "keys", **kw}), id="WISKI-keys"),
    pytest.param(
        2, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 10, "conservative": True, **kw}), id="WISKI-conservative"
    ),
]


def data(n: int, d: int, m: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs in the unit cube and smooth values with a little noise."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    Y = torch.stack([torch.sin((3 + j) * X.sum(-1) + j) for j in range(m)], -1)
    return X, Y + 0.1 * torch.randn(n, m, generator=g, dtype=torch.float64)
