"""Functions of a module, which worker processes can import."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from torch import Tensor
from torch.nn import Module

from bo_scale import WISKI


def rows_of(number: int, count: int = 300, d: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    X = torch.rand(count, d, dtype=torch.float64, generator=generator)
    return X, (4 * X).sin().sum(-1, keepdim=True) + 5 + 0.1 * torch.randn(count, 1, generator=generator)


class Made:
    """Rows of a number, by parts; the first time a process makes them it may be killed."""

    def __init__(self, number: int, kills: Path | None = None) -> None:
        self.rows, self.kills = rows_of(number), kills  # of this process, whose seeds may be shifted

    def __call__(self) -> Any:
        if self.kills is not None and not self.kills.exists():
            self.kills.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        X, Y = self.rows
        yield X[:100], Y[:100]
        yield X[100:], Y[100:]


class Evaluated:
    """Values of points; the first time a process computes them it may be killed."""

    def __init__(self, kills: Path | None = None) -> None:
        self.kills = kills

    def __call__(self, points: list[dict[str, float]]) -> list[float]:
        if self.kills is not None and not self.kills.exists():
            self.kills.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [point["a"] - point["b"] for point in points]


class KillsOnce(InputTransform, Module):
    """No transform, but the first time that another process than its maker's applies it, that is killed."""

    def __init__(self, kills: Path) -> None:
        super().__init__()
        self.kills, self.maker = kills, os.getpid()
        self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True
        self.is_one_to_many = False

    def transform(self, X: Tensor) -> Tensor:
        if os.getpid() != self.maker and not self.kills.exists():
            self.kills.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return X


SAMPLE = rows_of(99, 60)
AT = rows_of(98, 7)[0]


def wiski(**options: Any) -> WISKI:
    return WISKI(*SAMPLE, **{"grid_size": 10, "bounds": box(), **options})


def box() -> Tensor:
    return torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def same(a: Any, b: Any) -> bool:
    one, other = (model.posterior(AT) for model in (a, b))
    return torch.equal(one.mean, other.mean) and torch.equal(one.variance, other.variance)
