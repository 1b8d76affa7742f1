import itertools

import pytest
import torch
from cases import randn
from hypothesis import given, settings
from hypothesis import strategies as st

from bo_scale.gp.linalg.kronecker import (
    KroneckerColumns,
    kronecker_matmul,
    rowwise_kronecker,
    top_kronecker_eigenvalues,
    top_sums,
)


@given(widths=st.lists(st.integers(1, 5), min_size=1, max_size=4), tolerance=st.sampled_from([0.0, 1e-3, 0.3]))
@settings(max_examples=20, deadline=None)
def test_top_kronecker_eigenvalues_are_those_of_the_whole_product(widths: list[int], tolerance: float) -> None:
    eigenvalues = [torch.rand(w, dtype=torch.float64).sort(descending=True).values + 1e-9 for w in widths]
    every = sorted(
        (torch.stack(c).prod().item() for c in itertools.product(*[list(v) for v in eigenvalues])), reverse=True
    )
    kept = [v for v in every if v > tolerance * every[0]]
    values, index = top_kronecker_eigenvalues(eigenvalues, tolerance)
    torch.testing.assert_close(values, torch.tensor(kept, dtype=torch.float64))
    picked = torch.stack([v[i] for v, i in zip(eigenvalues, index.unbind(-1))]).prod(0)
    torch.testing.assert_close(picked, values)


@given(widths=st.lists(st.integers(1, 5), min_size=1, max_size=4), limit=st.integers(1, 700))
@settings(max_examples=20, deadline=None)
def test_top_sums_are_those_of_all_combinations(widths: list[int], limit: int) -> None:
    terms = [-torch.randint(0, 4, (w,)).sort().values for w in widths]
    index = top_sums(terms, limit)
    found = torch.stack([term[i] for term, i in zip(terms, index.unbind(-1), strict=True)]).sum(0)
    every = sorted((int(sum(c)) for c in itertools.product(*[term.tolist() for term in terms])), reverse=True)
    assert found.tolist() == every[:limit]
    assert len({tuple(row) for row in index.tolist()}) == len(index)


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_the_largest_products_up_to_a_limit_come_first(limit: int) -> None:
    """Rounding may leave eigenvalues below zero: not even two of them make a product."""
    eigenvalues = [torch.tensor([4.0, 2.0, -1e-17]).double(), torch.tensor([0.5, 0.3, -1e-17]).double()]
    values, index = top_kronecker_eigenvalues(eigenvalues, limit=limit)
    torch.testing.assert_close(values, torch.tensor([2.0, 1.2, 1.0, 0.6]).double()[:limit])
    assert index.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]][:limit]


@pytest.mark.parametrize("shapes", [[(4, 3)], [(4, 3), (2, 5)], [(3, 2), (2, 2), (4, 3)]])
def test_kronecker_columns_equal_the_dense_product(shapes: list[tuple[int, int]]) -> None:
    factors = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    dense = factors[0]
    for factor in factors[1:]:
        dense = torch.kron(dense, factor)
    columns = torch.tensor(list(itertools.product(*[range(s) for _, s in shapes])))[::2]
    weight = torch.rand(len(columns), dtype=torch.float64)
    R, chosen = KroneckerColumns(weight, *factors, index=columns), weight * dense[:, ::2]
    assert R.shape == chosen.shape
    torch.testing.assert_close(R.to_dense(), chosen)
    torch.testing.assert_close(R.mT.to_dense(), chosen.mT)
    M, v = randn(chosen.shape[1], 2), randn(chosen.shape[0], 3, seed=1)
    torch.testing.assert_close(R @ M, chosen @ M)
    torch.testing.assert_close(R.mT @ v, chosen.mT @ v)
    whole = randn(dense.shape[1], 2, seed=2)
    torch.testing.assert_close(kronecker_matmul(factors, whole), dense @ whole)


def test_rowwise_kronecker_is_a_product_in_every_row() -> None:
    A, B = randn(2, 4, 3), randn(2, 4, 5, seed=1)
    expected = torch.stack([torch.stack([torch.kron(a, b) for a, b in zip(x, y)]) for x, y in zip(A, B)])
    torch.testing.assert_close(rowwise_kronecker(A, B), expected)


def columns(*leaves: torch.Tensor) -> KroneckerColumns:
    """Some columns, not in order."""
    return KroneckerColumns(leaves[0], *leaves[1:], index=torch.tensor([[2, 1], [0, 1], [2, 0]]))


def test_one_vector_is_a_matrix_of_one_column() -> None:
    R = columns(randn(3), randn(4, 3, seed=1), randn(2, 2, seed=2))
    torch.testing.assert_close(R @ randn(3, seed=3), R.to_dense() @ randn(3, seed=3))
    torch.testing.assert_close(R.mT @ randn(8, seed=3), R.to_dense().mT @ randn(8, seed=3))
    torch.testing.assert_close(R.mT.mT.to_dense(), R.to_dense())


def test_gradients_of_products_equal_finite_differences() -> None:
    leaves = [randn(3), randn(4, 3, seed=1), randn(2, 2, seed=2), randn(3, 2, seed=3), randn(8, 2, seed=4)]

    def products(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        R = columns(*given[:3])
        return R.to_dense(), R @ given[3], R.mT @ given[4]

    assert torch.autograd.gradcheck(products, tuple(v.requires_grad_() for v in leaves))
