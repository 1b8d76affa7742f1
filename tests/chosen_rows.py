"""Rows for tests of the choice of a model: smooth, rough, and with gross outliers; and its limits."""

import pytest
import torch
from torch import Tensor

from bo_scale.models.choice import choose, comparison, families, fit


def limits(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    """Few rows are many already."""
    for name, value in values.items():
        modules = [module for module in (choose, comparison, families, fit) if hasattr(module, name)]
        assert modules, name
        for module in modules:
            monkeypatch.setattr(module, name, value)


def rows(n: int, d: int, seed: int = 0, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """A smooth function of the first three inputs."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    f = torch.sin(6 * X[:, :1]) + X[:, 1:2] * X[:, -1:]
    return X, f + noise * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def brownian(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 1, generator=generator, dtype=torch.float64).sort(0).values
    steps = torch.randn(n, 1, generator=generator, dtype=torch.float64) * X.diff(dim=0, prepend=X[:1]).sqrt()
    return X, steps.cumsum(0)


def spoilt(n: int, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor, set[int]]:
    """Rows with gross outliers, and the indices of those."""
    X, Y = rows(n, 3, seed=seed, noise=0.05)
    generator = torch.Generator().manual_seed(seed)
    size = 5 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    size *= torch.rand(n, 1, generator=generator) < share
    return 100 * X, Y + size, {int(i) for i in (size.abs() > 0.5).any(-1).nonzero()}
