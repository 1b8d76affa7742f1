import pytest
import torch

from bo_scale.gp.weight_space.features.sparse_rows import SparseRows, dot, transpose_matmul


def rows(*batch: int, n: int = 5, k: int = 3, p: int = 8) -> SparseRows:
    columns = torch.stack([torch.randperm(p)[:k].sort().values for _ in range(n * torch.Size(batch).numel())])
    return SparseRows(torch.randn(*batch, n, k, dtype=torch.float64), columns.reshape(*batch, n, k), p)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_products_equal_the_dense_matrix(batch: tuple[int, ...]) -> None:
    S, M, w = rows(*batch), torch.randn(8, 4, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    torch.testing.assert_close(S @ M, S.to_dense() @ M)
    torch.testing.assert_close(S.dot(w), S.to_dense() @ w)


@pytest.mark.parametrize(
    ("batch", "weights"), [((), (4,)), ((1,), (4,)), ((), (2, 4)), ((4,), (4,)), ((3, 1), (4,)), ((3, 4), (1,))]
)
def test_dot_broadcasts_batches_of_weights(batch: tuple[int, ...], weights: tuple[int, ...]) -> None:
    S, w = rows(*batch), torch.randn(*weights, 8, dtype=torch.float64)
    expected = (S.to_dense() @ w.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(S.dot(w), expected)
    torch.testing.assert_close(dot(S.to_dense(), w), expected)


def test_transpose_product_equals_the_dense_matrix() -> None:
    S, Y = rows(), torch.randn(5, 2, dtype=torch.float64)
    torch.testing.assert_close(transpose_matmul(S, Y), S.to_dense().mT @ Y)
    torch.testing.assert_close(transpose_matmul(S.to_dense(), Y), S.to_dense().mT @ Y)


def test_gradients_equal_finite_differences() -> None:
    S, M = rows(2), torch.randn(8, 4, dtype=torch.float64, requires_grad=True)

    def product(values: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return SparseRows(values, S.columns, 8) @ matrix

    assert torch.autograd.gradcheck(product, (S.values.requires_grad_(), M))


def test_no_rows_give_no_rows() -> None:
    S = SparseRows(torch.zeros(2, 0, 3).double(), torch.zeros(2, 0, 3).long(), 8)
    assert (S @ torch.randn(8, 4, dtype=torch.float64)).shape == (2, 0, 4)
