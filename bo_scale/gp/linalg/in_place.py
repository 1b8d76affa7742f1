"""Symmetric positive definite matrices in float64, of which the upper triangle is read and overwritten.

Memory for a large matrix comes from the operating system page by page: with 1000 rows this takes as long as the
Cholesky factorisation. What is computed again and again therefore stays where it is.
"""

import math

import torch
from jaxtyping import Float
from scipy.linalg import blas, lapack
from torch import Tensor

FEW_THREADS = 2
"""Number of torch's threads up to which SciPy's LAPACK is faster on one: it overwrites matrices, which torch copies."""


def factorise_(A: Float[Tensor, "n n"]) -> bool:
    """Overwrite A by U, A = UᵀU, and return whether there is such a factor. O(n³)."""
    if _few_threads(A):
        failed = lapack.dpotrf(A.mT.numpy(), lower=1, overwrite_a=1, clean=0)[1]
        return not failed and math.isfinite(A.trace())  # which NaN reaches: LAPACK may take it for a number
    U, info = torch.linalg.cholesky_ex(A, upper=True)
    A.copy_(U)
    return bool(info == 0)


def solve(U: Float[Tensor, "n n"], b: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return A⁻¹b, A = UᵀU. O(n²)."""
    if _few_threads(U):
        return torch.from_numpy(lapack.dpotrs(U.mT.numpy(), b.numpy(), lower=1)[0]).reshape(-1)
    return torch.cholesky_solve(b.unsqueeze(-1), U, upper=True).squeeze(-1)


def invert_(U: Float[Tensor, "n n"]) -> None:
    """Overwrite U by A⁻¹, A = UᵀU. O(n³)."""
    if _few_threads(U):
        lapack.dpotri(U.mT.numpy(), lower=1, overwrite_c=1)
    else:
        U.copy_(torch.cholesky_inverse(U, upper=True))


def inverse_diagonal_(U: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """Return the diagonal of A⁻¹ = U⁻¹U⁻ᵀ, A = UᵀU. U is overwritten. O(n³), half of the time of `invert_`."""
    if _few_threads(U):
        lapack.dtrtri(U.mT.numpy(), lower=1, overwrite_c=1)
        return U.triu_().square_().sum(-1)
    return torch.cholesky_inverse(U, upper=True).diagonal()


def product(A: Float[Tensor, "n n"], B: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
    """Return A B. O(n² q)."""
    if _few_threads(A):
        return torch.from_numpy(blas.dsymm(1.0, A.mT.numpy(), B.numpy(), lower=1))
    return A.triu() @ B + A.triu(1).mT @ B


def _few_threads(A: Tensor) -> bool:
    return not A.is_cuda and torch.get_num_threads() <= FEW_THREADS
