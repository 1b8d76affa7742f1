"""All seeds of a run of the tests, shifted by `--seed N`.

What a test asserts on the end of a search, a fit or a stream must hold for more than the one seed that it fixes.
"""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

VARIABLE = "TEST_SEED"
STRIDE = 1_000_003
"""Shifts are multiples of it, so that no shifted seed is another test's."""

_shift = 0


def shifted(seed: Any) -> Any:
    """A whole number, or each of several, shifted; anything else as it is."""
    if isinstance(seed, (list, tuple)):
        return [shifted(one) for one in seed]
    if isinstance(seed, (int, np.integer)):
        return (int(seed) + _shift) % 2**64
    return seed


class _TorchGenerator(torch.Generator):
    def manual_seed(self, seed: int) -> torch.Generator:
        return super().manual_seed(shifted(seed))


class _DefaultGenerator:
    """Torch's own, which is no object whose method can be replaced."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def manual_seed(self, seed: int) -> torch.Generator:
        return self._generator.manual_seed(shifted(seed))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


class _Random(random.Random):
    def seed(self, a: Any = None, version: int = 2) -> None:
        super().seed(shifted(a), version)


def shift(number: int) -> None:
    """Shift every seed from here on, where it enters a generator.

    Torch's (Sobol sequences have one), NumPy's and Python's. Child processes find the number in the environment, see
    `environment`. What hypothesis draws differs in every run anyway.
    """
    global _shift
    if not number or _shift:
        return
    _shift, of_numpy = number * STRIDE, np.random.default_rng
    legacy, plain = np.random.seed, random.seed
    torch.Generator = _TorchGenerator  # type: ignore[misc]
    torch.default_generator = torch.random.default_generator = _DefaultGenerator(torch.default_generator)  # type: ignore
    np.random.default_rng = lambda seed=None: of_numpy(shifted(seed))  # type: ignore[assignment]
    np.random.seed = lambda seed=None: legacy(shifted(seed))
    random.seed = lambda a=None, version=2: plain(shifted(a), version)  # type: ignore[assignment]
    random.Random = _Random  # type: ignore[misc]
    os.environ[VARIABLE] = str(number)


def environment() -> dict[str, str]:
    """For a child process whose seeds are to be shifted like ours: it imports this and calls `shift_as_parent`."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def shift_as_parent() -> None:
    """In a child process."""
    shift(int(os.environ.get(VARIABLE, "0")))
