"""Functions of a module, which worker processes can import."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def rows_of(number: int, count: int = 300, d: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    X = torch.rand(count, d, dtype=torch.float64, generator=generator)
    return X, (4 * X).sin().sum(-1, keepdim=True) + 5 + 0.1 * torch.randn(count, 1, generator=generator)


class Made:
    """Rows of a number, by parts; the first time a process makes them it may be killed."""

    def __init__(self, number: int, kills: Path | None = None) -> None:
        self.number, self.kills = number, kills

    def __call__(self) -> Any:
        if self.kills is not None and not self.kills.exists():
            self.kills.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        X, Y = rows_of(self.number)
        yield X[:100], Y[:100]
        yield X[100:], Y[100:]
