"""Factors and inverses in the memory of their matrix, by SciPy and by torch, against dense ones."""

import pytest
import torch
from torch import Tensor

from bo_scale.gp.linalg import in_place

DOUBLE = torch.float64


@pytest.fixture(params=["scipy", "torch"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "FEW_THREADS", 10_000 if request.param == "scipy" else 0)


def upper(n: int) -> tuple[Tensor, Tensor]:
    """A matrix, and a copy whose lower triangle is wrong."""
    B = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=DOUBLE)
    A = B @ B.mT / n + torch.eye(n, dtype=DOUBLE)
    return A, A.triu() + torch.full_like(A, 99.0).tril(-1)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("n", [1, 7, 60])
def test_they_are_the_dense_ones_and_stay_in_place(n: int) -> None:
    A, made = upper(n)
    memory, b = made.data_ptr(), torch.arange(1.0, n + 1, dtype=DOUBLE)
    assert in_place.factorise_(made)
    torch.testing.assert_close(made.triu(), torch.linalg.cholesky(A).mT)
    torch.testing.assert_close(in_place.solve(made, b), torch.linalg.solve(A, b))
    torch.testing.assert_close(in_place.inverse_diagonal_(made.clone()), A.inverse().diagonal())
    in_place.invert_(made)
    torch.testing.assert_close(made.triu(), A.inverse().triu())
    assert made.data_ptr() == memory
    B = torch.stack([b, b.square()], -1)
    torch.testing.assert_close(in_place.product(upper(n)[1], B), A @ B)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("wrong", [-1.0, torch.nan])
def test_a_matrix_without_a_factor_is_told(wrong: float) -> None:
    A = torch.eye(4, dtype=DOUBLE)
    A[2, 2] = wrong
    assert not in_place.factorise_(A)
