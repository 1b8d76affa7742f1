"""Symmetric positive definite matrices in NumPy's arrays, of which LAPACK reads and overwrites the upper triangle.

Memory for a large matrix comes from the operating system page by page: with 1000 rows this can take as long as the
Cholesky factorisation. What is computed again and again therefore stays where it is. Matrices are contiguous by rows.
It is for one thread: with more of them, torch's own factorisation is faster.
"""

import math
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

Array = np.ndarray[Any, np.dtype[np.float64]]


def factorise_(A: Array) -> bool:
    """Overwrite A, `n × n`, by U, A = UᵀU, and return whether there is such a factor. O(n³)."""
    assert A.flags.c_contiguous, "LAPACK would overwrite a copy"
    failed = lapack.dpotrf(A.T, lower=1, overwrite_a=1, clean=0)[1]
    return not failed and math.isfinite(A.trace())  # which NaN reaches: LAPACK may take it for a number


def solve(U: Array, b: Array) -> Array:
    """Return A⁻¹b, A = UᵀU `n × n` and b `n`. O(n²)."""
    solved: Array = lapack.dpotrs(U.T, b, lower=1)[0]
    return solved


def invert_(U: Array) -> None:
    """Overwrite U, `n × n`, by A⁻¹, A = UᵀU. O(n³)."""
    lapack.dpotri(U.T, lower=1, overwrite_c=1)


def inverse_diagonal_(U: Array) -> Array:
    """Return the diagonal of A⁻¹ = U⁻¹U⁻ᵀ, A = UᵀU `n × n`. U is overwritten. O(n³), half of `invert_`."""
    lapack.dtrtri(U.T, lower=1, overwrite_c=1)
    return np.array([row[i:] @ row[i:] for i, row in enumerate(U)])


def product(A: Array, B: Array) -> Array:
    """Return A B, A `n × n` and B `n × q`. O(n² q)."""
    found: Array = blas.dsymm(1.0, A.T, B, lower=1)
    return found
