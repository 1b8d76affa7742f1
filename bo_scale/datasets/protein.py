"""Quality of models of proteins: nine properties of a decoy and its distance from the native structure (UCI, CC BY)."""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError

_SAMPLE = "protein_decoys_sample.npz"


@dataclass(frozen=True)
class ProteinData:
    """Properties of decoys, and how far each is from the native structure.

    Attributes:
        X: The properties F1 to F9 of the source: total surface area, non-polar exposed area, two fractions of it,
            mass-weighted exposed area, deviation from standard exposed area, Euclidean distance, secondary structure
            penalty, spatial distribution constraints. The shipped sample has the mean of each taken off.
        Y: RMSD from the native structure in ångström; smaller is better.
        source: Source to credit.
    """

    X: Float[Tensor, "n 9"]
    Y: Float[Tensor, "n 1"]
    source: str = "P. S. Rana, Physicochemical Properties of Protein Tertiary Structure, UCI, CC BY 4.0"

    def __len__(self) -> int:
        return len(self.X)


def load_protein(path: str | os.PathLike[str] | None = None) -> ProteinData:
    """Load decoys of proteins: models of their structure, some good and most bad.

    Args:
        path: An npz file of the full set with arrays X (F1 to F9) and rmsd; None for the shipped sample of 25,000 of
            the 45,730 decoys. Rows of the sample are sorted by F8: shuffle them before you split them.

    Raises:
        InvalidDataError: if the file does not exist, lacks an array or has another number of properties.
    """
    if path is None:
        with (files("bo_scale.datasets") / _SAMPLE).open("rb") as file, np.load(file) as npz:
            X = npz["lower"] + np.stack([npz[f"F{i}"] for i in range(1, 10)], -1) * npz["quantum"]
            return _protein(X, npz["milliangstrom"] / 1000)
    if not Path(path).is_file():
        raise InvalidDataError(
            f"path: no file {path}. Leave path out for the shipped sample, or save the full set there as npz with the "
            f"arrays X (n×9, columns F1 to F9) and rmsd; it is CASP.csv in the UCI Machine Learning Repository."
        )
    with np.load(path) as npz:
        missing = {"X", "rmsd"} - set(npz.files)
        if missing:
            raise InvalidDataError(f"path: {path} has no array {', '.join(sorted(missing))}.")
        if npz["X"].ndim != 2 or npz["X"].shape[1] != 9 or npz["rmsd"].shape != npz["X"].shape[:1]:
            shapes = f"{npz['X'].shape} and {npz['rmsd'].shape}"
            raise InvalidDataError(f"path: X and rmsd in {path} have shapes {shapes}, expected n×9 and n.")
        return _protein(npz["X"], npz["rmsd"])


def _protein(X: np.ndarray, rmsd: np.ndarray) -> ProteinData:
    column = torch.from_numpy(np.asarray(rmsd, dtype=np.float64)).unsqueeze(-1)
    return ProteinData(torch.from_numpy(np.asarray(X, dtype=np.float64)), column)
