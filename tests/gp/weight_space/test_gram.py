from typing import Any

import pytest
import torch
from cases import rand, randn
from linear_operator.operators import DenseLinearOperator, DiagLinearOperator, IdentityLinearOperator
from torch import Tensor

from bo_scale.gp.weight_space.gram import DenseGram

P = 4
PHI, W = randn(7, P), 0.5 + rand(7)


def gram() -> DenseGram:
    return DenseGram.zeros(P).add_rows(PHI, W)


def test_rows_are_summed_in_any_parts() -> None:
    torch.testing.assert_close(gram().to_dense(), PHI.mT @ torch.diag(W) @ PHI)
    parts = DenseGram.zeros(P).add_rows(PHI[:3], W[:3]).add_rows(PHI[3:3], W[3:3]).add_rows(PHI[3:], W[3:])
    torch.testing.assert_close(parts.to_dense(), gram().to_dense())
    one = DenseGram.zeros(P).add_rows(PHI[:1], W[:1])
    torch.testing.assert_close(one.to_dense(), W[0] * torch.outer(PHI[0], PHI[0]))


def test_sums_are_added_taken_away_and_scaled_and_stay_as_they_were() -> None:
    first, second, before = gram(), DenseGram.zeros(P).add_rows(PHI[:2], W[:2]), gram().to_dense()
    torch.testing.assert_close(first.combine(second, 1.0).combine(second, -1.0).to_dense(), before)
    torch.testing.assert_close(first.combine(second, -1.0).to_dense(), before - second.to_dense())
    for factor in (0.3, torch.tensor(0.3).double()):
        torch.testing.assert_close(first.scale(factor).to_dense(), 0.3 * before)
    assert torch.equal(first.to_dense(), before)
    assert torch.equal(first.to(torch.device("cpu")).to_dense(), before)


def test_a_product_is_that_of_the_matrix() -> None:
    M = randn(P, 3, seed=1)
    torch.testing.assert_close(gram().matmul(M), gram().to_dense() @ M)
    assert gram().matmul(M[:, :0]).shape == (P, 0)


ROOTS = {
    "dense": lambda values: DenseLinearOperator(values),
    "diagonal": lambda values: DiagLinearOperator(values[:, 0]),
    "identity": lambda values: IdentityLinearOperator(P, dtype=torch.float64),
}


@pytest.mark.parametrize("kind", ROOTS)
def test_a_congruence_is_the_product_of_three_with_its_gradient(kind: str) -> None:
    values, scale = randn(P, 3, seed=1).requires_grad_(), torch.tensor(0.7).double().requires_grad_()

    def congruence(values: Tensor, scale: Tensor) -> Tensor:
        root: Any = ROOTS[kind](values)
        return gram().congruence(root, scale)

    R = ROOTS[kind](values).to_dense()
    torch.testing.assert_close(congruence(values, scale), scale * R.mT @ gram().to_dense() @ R)
    assert torch.autograd.gradcheck(congruence, (values, scale))
