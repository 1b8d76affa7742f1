"""Factors and inverses in the memory of their matrix, against dense ones."""

import numpy as np
import pytest

from bo_scale.gp.linalg import in_place
from bo_scale.gp.linalg.in_place import Array


def upper(n: int) -> tuple[Array, Array]:
    """A matrix, and a copy whose lower triangle is wrong."""
    B = np.random.default_rng(n).normal(size=(n, n))
    A = B @ B.T / n + np.eye(n)
    return A, np.triu(A) + np.tril(np.full_like(A, 99.0), -1)


@pytest.mark.parametrize("n", [1, 7, 60])
def test_they_are_the_dense_ones_and_stay_in_place(n: int) -> None:
    A, made = upper(n)
    b = np.arange(1.0, n + 1)
    assert in_place.factorise_(made)
    np.testing.assert_allclose(np.triu(made), np.linalg.cholesky(A).T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(in_place.solve(made, b), np.linalg.solve(A, b), rtol=1e-10)
    inverse = np.linalg.inv(A)
    np.testing.assert_allclose(in_place.inverse_diagonal_(made.copy()), inverse.diagonal(), rtol=1e-10)
    in_place.invert_(made)
    np.testing.assert_allclose(np.triu(made), np.triu(inverse), rtol=1e-10, atol=1e-12)
    B = np.stack([b, b * b], -1)
    np.testing.assert_allclose(in_place.product(upper(n)[1], B), A @ B, rtol=1e-10)


@pytest.mark.parametrize("wrong", [-1.0, np.nan])
def test_a_matrix_without_a_factor_is_told(wrong: float) -> None:
    A = np.eye(4)
    A[2, 2] = wrong
    assert not in_place.factorise_(A)


def test_a_matrix_that_would_be_copied_is_refused() -> None:
    with pytest.raises(AssertionError, match="a copy"):
        in_place.factorise_(np.eye(4, 8)[:, ::2])
