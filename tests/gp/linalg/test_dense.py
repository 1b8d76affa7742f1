import warnings

import pytest
import torch
from linear_operator.utils.errors import NotPSDError

from bo_scale.errors import JitterWarning, NotPositiveDefiniteError
from bo_scale.gp.linalg.dense import cholesky, kernel_evidence, positive_root, quadratic_and_logdet, symmetric_eigen


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


def test_an_evidence_with_a_negative_determinant_is_refused() -> None:
    S = torch.diag(torch.tensor([-1.0, 1.0, 1.0])).double()  # no covariance
    with pytest.raises(NotPositiveDefiniteError, match="determinant"):
        kernel_evidence(S, torch.eye(3).double(), torch.ones(3).double(), torch.tensor(0.5).double())


def rbf(Z: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * ((Z.unsqueeze(1) - Z) / 0.8).square().sum(-1))


def evidence_terms(
    R: torch.Tensor, F: torch.Tensor, b: torch.Tensor, noise: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Both terms from S = RRᵀ and G = FFᵀ, and from the root R."""
    G = F @ F.mT
    by_kernel = kernel_evidence(R @ R.mT, G, b, noise)
    by_root = quadratic_and_logdet(R.mT @ G @ R / noise, R.mT @ b / noise)
    return list(by_kernel), list(by_root)


@pytest.mark.parametrize("rank", [2, 6])
@pytest.mark.parametrize("rows", [3, 20])
def test_an_evidence_from_s_equals_that_from_its_root_with_gradient(rows: int, rank: int) -> None:
    """Also where S and G are singular."""
    F = random(6, rows)
    noise = torch.tensor(0.3, dtype=torch.float64)
    arguments = [v.requires_grad_() for v in (random(6, rank), F, F.detach() @ random(rows), noise)]
    ours, reference = evidence_terms(*arguments)
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b)
        for g, h in zip(
            torch.autograd.grad(a, arguments, retain_graph=True, materialize_grads=True),
            torch.autograd.grad(b, arguments, retain_graph=True, materialize_grads=True),
            strict=True,
        ):
            torch.testing.assert_close(g, h, rtol=1e-6, atol=1e-8)


def test_gradients_of_an_evidence_from_s_equal_finite_differences() -> None:
    S, F = random(5, 3), random(5, 8)
    G = F @ F.mT
    noise = torch.tensor(0.3, dtype=torch.float64)
    arguments = [v.requires_grad_() for v in (S @ S.mT, G, random(5), noise)]

    def symmetric(S: torch.Tensor, G: torch.Tensor, b: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        S, G = 0.5 * (S + S.mT), 0.5 * (G + G.mT)
        v = torch.stack(kernel_evidence(S, G, G @ b, noise))
        return torch.cat([v, v[:1] * v[1:]])  # upstream gradients of both signs

    assert torch.autograd.gradcheck(symmetric, arguments)


@pytest.mark.parametrize("spoiled", [0, 1, 2, 3])
def test_an_evidence_of_nan_is_refused(spoiled: int) -> None:
    arguments = [torch.eye(3), torch.eye(3), torch.ones(3), torch.ones(())]
    arguments[spoiled] = torch.full_like(arguments[spoiled], torch.nan)
    with pytest.raises(NotPositiveDefiniteError, match="noise floor"):
        kernel_evidence(*[v.double() for v in arguments])


def test_the_root_of_a_singular_matrix_has_no_jitter() -> None:
    Z = random(12, 2)
    Z[6:10] = Z[:4]
    K = rbf(Z)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        R = positive_root(K)
    torch.testing.assert_close(R @ R.mT, K, rtol=0, atol=1e-12)
    deficient = random(12, 3)
    R = positive_root(deficient @ deficient.mT)
    torch.testing.assert_close(R @ R.mT, deficient @ deficient.mT, rtol=0, atol=1e-12)
    assert R.isfinite().all()


def test_the_root_of_a_positive_definite_matrix_is_its_cholesky_factor() -> None:
    K = rbf(2 * random(8, 3)) + 0.1 * torch.eye(8).double()
    assert torch.equal(positive_root(K), torch.linalg.cholesky(K))


def test_the_root_of_nan_is_refused() -> None:
    with pytest.raises(NotPositiveDefiniteError, match="NaN"):
        positive_root(torch.full((3, 3), torch.nan, dtype=torch.float64))


def test_a_gradient_through_the_root_of_a_singular_matrix_equals_that_of_the_matrix() -> None:
    """Of what depends on the root by its product alone."""
    Z = random(6, 2)
    Z[4] = Z[0]
    Z.requires_grad_()
    weights = random(6)
    R = positive_root(rbf(Z))
    values = (weights @ R).square().sum(), weights @ rbf(Z) @ weights
    gradients = [torch.autograd.grad(value, Z, retain_graph=True)[0] for value in values]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-6)
