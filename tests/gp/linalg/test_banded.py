import itertools
import math

import pytest
import torch

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.gp.linalg.banded import REACH, BandedCholesky, banded_quadratic, stencil_matmul

SIZES = [(1,), (2,), (11,), (4,), (130,), (300,), (9, 6), (5, 12), (31, 31), (4, 26), (2, 7), (4, 5, 6), (7, 3, 2)]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def banded_factor(m: int) -> torch.Tensor:
    """Positive definite, of half bandwidth 3."""
    F = random(m, m).triu().tril(REACH) + 3 * torch.eye(m).double()
    return F @ F.mT / 9


def stencil_of(A: torch.Tensor) -> torch.Tensor:
    """Of one dimension: values[i, δ] = A[i, i + δ]."""
    return torch.stack([torch.nn.functional.pad(A.diagonal(o), (0, min(o, len(A)))) for o in range(REACH + 1)], -1)


def outer(factors: list[torch.Tensor]) -> torch.Tensor:
    out = torch.ones((), dtype=torch.float64)
    for factor in factors:
        out = torch.tensordot(out, factor, dims=0)
    return out


def kron(factors: list[torch.Tensor]) -> torch.Tensor:
    out = torch.ones(1, 1, dtype=torch.float64)
    for factor in factors:
        out = torch.kron(out, factor)
    return out


def case(size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum of two Kronecker products: its stencil and the matrix itself."""
    terms = [[banded_factor(m) for m in size] for _ in range(2)]
    return sum(outer([stencil_of(F) for F in term]) for term in terms), sum(kron(term) for term in terms)


def dense(values: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """The definition, entry by entry for all pairs. Differentiable."""
    nodes = torch.cartesian_prod(*[torch.arange(m) for m in size]).view(math.prod(size), len(size))
    r, c = nodes.unsqueeze(1), nodes.unsqueeze(0)
    offset, least = (r - c).abs(), torch.minimum(r, c)
    place = [a for l in range(len(size)) for a in (least[..., l], offset[..., l].clamp_max(REACH))]
    return torch.where((offset <= REACH).all(-1), values[tuple(place)], 0.0)


@pytest.mark.parametrize("size", SIZES)
def test_every_method_equals_the_dense_computation(size: tuple[int, ...]) -> None:
    values, A = case(size)
    torch.testing.assert_close(dense(values, size), A)
    factor, B, C = BandedCholesky.of(values, size), random(len(A), 3), random(len(A), 2)
    inverse = torch.linalg.inv(A)
    torch.testing.assert_close(stencil_matmul(values, size, B), A @ B)
    torch.testing.assert_close(factor.logdet(), torch.logdet(A))
    torch.testing.assert_close(factor.solve(B), inverse @ B)
    torch.testing.assert_close(factor.half_solve(B).mT @ factor.half_solve(C), B.mT @ inverse @ C)
    root = factor.spread(torch.eye(len(A)).double())
    torch.testing.assert_close(root @ root.mT, inverse)
    leaf = values.clone().requires_grad_()
    (dense(leaf, size) * inverse).sum().backward()  # sums the inverse over each place
    torch.testing.assert_close(factor.inverse_stencil(), leaf.grad)
    torch.testing.assert_close(factor.to(torch.device("cpu")).solve(B), factor.solve(B))


@pytest.mark.parametrize("size", SIZES)
def test_the_quadratic_and_its_gradient_equal_the_dense_ones(size: tuple[int, ...]) -> None:
    values, _ = case(size)
    arguments = values.requires_grad_(), random(math.prod(size), 3).requires_grad_()
    ours, A = banded_quadratic(arguments[0], size, arguments[1]), dense(values, size)
    reference = torch.logdet(A), arguments[1].mT @ torch.linalg.solve(A, arguments[1])
    weights = random(3, 3)  # not symmetric
    gradients = []
    for logdet, quadratic in (ours, reference):
        gradients.append(torch.autograd.grad(0.7 * logdet + (weights * quadratic).sum(), arguments))
    torch.testing.assert_close(ours, reference)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("size", [(6,), (5, 2), (2, 2, 2)])
def test_gradients_equal_finite_differences(size: tuple[int, ...]) -> None:
    values, _ = case(size)
    H = random(math.prod(size), 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v, h: banded_quadratic(v, size, h), (values.requires_grad_(), H))


def test_a_gradient_towards_h_alone_is_that_of_a_solve() -> None:
    values, A = case((9, 6))
    H = random(len(A), 3).requires_grad_()
    (gradient,) = torch.autograd.grad(banded_quadratic(values, (9, 6), H)[1].trace(), H)
    torch.testing.assert_close(gradient, 2 * torch.linalg.solve(A, H.detach()))


@pytest.mark.parametrize("size", [(70,), (4, 26), (5, 4, 3)])
def test_places_beyond_the_grid_mean_nothing(size: tuple[int, ...]) -> None:
    values, A = case(size)
    spoiled = values.clone()
    for axis, m in enumerate(size):
        for i, o in itertools.product(range(m), range(REACH + 1)):
            if i + o >= m:
                spoiled.movedim((2 * axis, 2 * axis + 1), (0, 1))[i, o] = 5.0
    B = random(len(A), 2)
    assert torch.equal(BandedCholesky.of(spoiled, size).solve(B), BandedCholesky.of(values, size).solve(B))
    assert torch.equal(stencil_matmul(spoiled, size, B), stencil_matmul(values, size, B))


def test_a_solve_at_condition_1e8_is_backward_stable() -> None:
    """A fourth difference in each direction, as the precision of a smooth prior is."""
    size = (30, 22)
    terms = []
    for m in size:
        D = torch.diff(torch.eye(m).double(), n=2, dim=0)
        terms.append(D.mT @ D + 1e-7 * torch.eye(m))
    one = [torch.eye(m).double() for m in size]
    pairs = [[terms[0], one[1]], [one[0], terms[1]]]
    values, A = sum(outer([stencil_of(F) for F in pair]) for pair in pairs), sum(kron(pair) for pair in pairs)
    assert 1e8 < torch.linalg.cond(A) < 1e9
    factor, B = BandedCholesky.of(values, size), random(len(A), 2)
    X = factor.solve(B)
    assert (A @ X - B).norm() < 1e-14 * torch.linalg.matrix_norm(A, 2) * X.norm()
    torch.testing.assert_close(factor.logdet(), torch.logdet(A), rtol=1e-10, atol=0)
    leaf = values.clone().requires_grad_()
    (dense(leaf, size) * torch.linalg.inv(A)).sum().backward()
    torch.testing.assert_close(factor.inverse_stencil(), leaf.grad, rtol=1e-7, atol=1e-7 * leaf.grad.abs().max().item())


@pytest.mark.parametrize("node", [0, 5, 10])
def test_what_has_no_factor_is_refused(node: int) -> None:
    values, _ = case((11, 26))
    values[node, 0, 2 * node, 0] = -1.0
    with pytest.raises(NotPositiveDefiniteError, match="noise floor"):
        BandedCholesky.of(values, (11, 26))
    values[node, 0, 2 * node, 0] = torch.nan
    with pytest.raises(NotPositiveDefiniteError, match="NaN"):
        banded_quadratic(values, (11, 26), random(286, 2))
