"""Symmetric positive definite matrices in NumPy's arrays, of which the upper triangle is read and overwritten.

Memory for a large matrix comes from the operating system page by page: with 1000 rows this takes as long as the
Cholesky factorisation. What is computed again and again therefore stays where it is. Matrices are contiguous by rows.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy.linalg import blas, lapack

Array = np.ndarray[Any, np.dtype[np.float64]]
FEW_THREADS = 2
"""Number of torch's threads up to which SciPy's LAPACK is faster on one: it overwrites matrices, which torch copies."""


def factorise_(A: Array) -> bool:
    """Overwrite A by U, A = UᵀU, and return whether there is such a factor. O(n³)."""
    if _few_threads():
        failed = lapack.dpotrf(A.T, lower=1, overwrite_a=1, clean=0)[1]
        return not failed and math.isfinite(A.trace())  # which NaN reaches: LAPACK may take it for a number
    U, info = torch.linalg.cholesky_ex(torch.from_numpy(A), upper=True)
    A[:] = U.numpy()
    return bool(info == 0)


def solve(U: Array, b: Array) -> Array:
    """Return A⁻¹b, A = UᵀU. O(n²)."""
    solved: Array = lapack.dpotrs(U.T, b, lower=1)[0]
    return solved


def invert_(U: Array) -> None:
    """Overwrite U by A⁻¹, A = UᵀU. O(n³)."""
    if _few_threads():
        lapack.dpotri(U.T, lower=1, overwrite_c=1)
    else:
        U[:] = torch.cholesky_inverse(torch.from_numpy(U), upper=True).numpy()


def inverse_diagonal_(U: Array) -> Array:
    """Return the diagonal of A⁻¹ = U⁻¹U⁻ᵀ, A = UᵀU. U is overwritten. O(n³), half of the time of `invert_`."""
    if _few_threads():
        lapack.dtrtri(U.T, lower=1, overwrite_c=1)
        found: Array = torch.from_numpy(U).triu_().square_().sum(-1).numpy()
        return found
    invert_(U)
    return U.diagonal().copy()


def product(A: Array, B: Array) -> Array:
    """Return A B, B `n × q`. O(n² q)."""
    found: Array = blas.dsymm(1.0, A.T, B, lower=1)
    return found


def _few_threads() -> bool:
    return torch.get_num_threads() <= FEW_THREADS
