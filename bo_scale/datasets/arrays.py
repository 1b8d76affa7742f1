"""Arrays of data sets, from the files that ship or from the user's own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError


@contextmanager
def shipped(name: str) -> Iterator[Any]:
    """Open an npz file that ships with the package."""
    with (files("bo_scale.datasets") / name).open("rb") as file, np.load(file) as npz:
        yield npz


def read_arrays(path: str | os.PathLike[str], names: tuple[str, ...], instead: str) -> list[np.ndarray]:
    """Read arrays from an npz file of the user's.

    Args:
        path: The file.
        names: Names of the arrays.
        instead: What to do if there is no such file: what ships, and what to save there.

    Raises:
        InvalidDataError: if the file does not exist or lacks an array.
    """
    if not Path(path).is_file():
        raise InvalidDataError(f"path: no file {path}. {instead}")
    with np.load(path) as npz:
        missing = set(names) - set(npz.files)
        if missing:
            raise InvalidDataError(f"path: {path} has no array {', '.join(sorted(missing))}.")
        return [npz[name] for name in names]


def doubles(values: np.ndarray) -> Float[Tensor, "*n"]:
    """Return an array as a tensor in double precision."""
    return torch.from_numpy(np.asarray(values, dtype=np.float64))
