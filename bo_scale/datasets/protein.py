"""Quality of models of proteins: nine properties of a decoy and its distance from the native structure (UCI, CC BY)."""

import os
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from bo_scale.datasets.arrays import doubles, read_arrays, shipped
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
        with shipped(_SAMPLE) as npz:
            X = npz["lower"] + np.stack([npz[f"F{i}"] for i in range(1, 10)], -1) * npz["quantum"]
            return _protein(X, npz["milliangstrom"] / 1000)
    instead = (
        "Leave path out for the shipped sample, or save the full set there as npz with the arrays X (n×9, columns F1 "
        "to F9) and rmsd; it is CASP.csv in the UCI Machine Learning Repository."
    )
    X, rmsd = read_arrays(path, ("X", "rmsd"), instead)
    if X.ndim != 2 or X.shape[1] != 9 or rmsd.shape != X.shape[:1]:
        shapes = f"{X.shape} and {rmsd.shape}"
        raise InvalidDataError(f"path: X and rmsd in {path} have shapes {shapes}, expected n×9 and n.")
    return _protein(X, rmsd)


def _protein(X: np.ndarray, rmsd: np.ndarray) -> ProteinData:
    return ProteinData(doubles(X), doubles(rmsd).unsqueeze(-1))
