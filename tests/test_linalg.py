import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.errors import NotPSDError

from bo_scale.errors import JitterWarning, NotPositiveDefiniteError
from bo_scale.linalg import (
    KroneckerColumns,
    cholesky,
    kronecker_matmul,
    quadratic_and_logdet,
    rowwise_kronecker,
    symmetric_eigen,
    top_kronecker_eigenvalues,
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_cholesky_is_exact_where_it_can_be() -> None:
    A = random(3, 4, 6)
    A = A @ A.mT + torch.eye(4).double()
    L = cholesky(A)
    torch.testing.assert_close(L @ L.mT, A)


def test_cholesky_reports_its_jitter() -> None:
    v = random(5, 2)
    with pytest.warns(JitterWarning, match="1e-1"):
        L = cholesky(v @ v.mT)
    torch.testing.assert_close(L @ L.mT, v @ v.mT, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("matrix", "reason"), [(-torch.eye(3), "noise floor"), (torch.full((3, 3), torch.nan), "NaN")])
def test_cholesky_refuses_what_has_no_factor(matrix: torch.Tensor, reason: str) -> None:
    with pytest.raises(NotPositiveDefiniteError, match=reason):
        cholesky(matrix)


def test_eigen_gradients_equal_finite_differences() -> None:
    K = random(5, 5).requires_grad_()

    def functions(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, Q = symmetric_eigen(A @ A.mT)
        return values, (Q[:, :3] * values[:3]) @ Q[:, :3].mT

    assert torch.autograd.gradcheck(functions, (K,))


def test_eigen_gradient_stays_finite_where_eigenvalues_meet() -> None:
    K = torch.eye(4, dtype=torch.float64).requires_grad_()
    values, Q = symmetric_eigen(K)
    ((Q[:, :2] * values[:2]) @ Q[:, :2].mT).sum().backward()
    assert torch.isfinite(K.grad).all()


def test_eigen_refuses_nan_as_a_matrix_botorch_retries_after() -> None:
    with pytest.raises(NotPSDError, match="NaN"):
        symmetric_eigen(torch.full((3, 3), torch.nan, dtype=torch.float64))


def test_quadratic_and_logdet_equals_dense_with_gradient() -> None:
    A, b = random(5, 5).requires_grad_(), random(5).requires_grad_()

    def ours(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        quadratic, logdet = quadratic_and_logdet(a @ a.mT, v)
        return torch.stack([quadratic, logdet])

    Lam = torch.eye(5).double() + A @ A.mT
    torch.testing.assert_close(ours(A, b), torch.stack([b @ torch.linalg.solve(Lam, b), torch.logdet(Lam)]))
    assert torch.autograd.gradcheck(ours, (A, b))


@given(widths=st.lists(st.integers(1, 5), min_size=1, max_size=4), tolerance=st.sampled_from([0.0, 1e-3, 0.3]))
@settings(max_examples=20, deadline=None)
def test_top_kronecker_eigenvalues_are_those_of_the_whole_product(widths: list[int], tolerance: float) -> None:
    eigenvalues = [torch.rand(w, dtype=torch.float64).sort(descending=True).values + 1e-9 for w in widths]
    every = sorted(
        (torch.stack(c).prod().item() for c in itertools.product(*[list(v) for v in eigenvalues])), reverse=True
    )
    kept = [v for v in every if v > tolerance * every[0]]
    for limit in (None, 3):
        values, index = top_kronecker_eigenvalues(eigenvalues, tolerance, limit)
        torch.testing.assert_close(values, torch.tensor(kept[:limit], dtype=torch.float64))
        picked = torch.stack([v[i] for v, i in zip(eigenvalues, index.unbind(-1))]).prod(0)
        torch.testing.assert_close(picked, values)


@pytest.mark.parametrize("shapes", [[(4, 3)], [(4, 3), (2, 5)], [(3, 2), (2, 2), (4, 3)]])
def test_kronecker_columns_equal_the_dense_product(shapes: list[tuple[int, int]]) -> None:
    factors = [random(*shape) for shape in shapes]
    dense = factors[0]
    for factor in factors[1:]:
        dense = torch.kron(dense, factor)
    columns = torch.tensor(list(itertools.product(*[range(s) for _, s in shapes])))[::2]
    weight = torch.rand(len(columns), dtype=torch.float64)
    R, chosen = KroneckerColumns(weight, *factors, index=columns), weight * dense[:, ::2]
    assert R.shape == chosen.shape
    torch.testing.assert_close(R.to_dense(), chosen)
    torch.testing.assert_close(R.mT.to_dense(), chosen.mT)
    M, v = random(chosen.shape[1], 2), random(chosen.shape[0], 3)
    torch.testing.assert_close(R @ M, chosen @ M)
    torch.testing.assert_close(R.mT @ v, chosen.mT @ v)
    whole = random(dense.shape[1], 2)
    torch.testing.assert_close(kronecker_matmul(factors, whole), dense @ whole)


def test_rowwise_kronecker_is_a_product_in_every_row() -> None:
    A, B = random(2, 4, 3), random(2, 4, 5)
    expected = torch.stack([torch.stack([torch.kron(a, b) for a, b in zip(x, y)]) for x, y in zip(A, B)])
    torch.testing.assert_close(rowwise_kronecker(A, B), expected)
