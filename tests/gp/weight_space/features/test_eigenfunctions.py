"""Eigenfunctions against the eigendecomposition of the whole grid, and where grids are too large to be formed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.gp.weight_space.features.eigenfunctions import AxisFactors, Eigenbasis, EigenfunctionFeatures, ProductPlan
from bo_scale.gp.weight_space.statistics import SufficientStatistics

SCALE = torch.tensor(1.7, dtype=torch.float64)


def factors(lengthscales: Tensor, name: str = "rbf") -> AxisFactors:
    """One-dimensional factors of unit variance."""

    def evaluate(X: Tensor, nodes: Tensor) -> Tensor:
        r = (X.unsqueeze(-1) - nodes) / lengthscales.unsqueeze(-1)
        return torch.exp(-0.5 * r.square()) if name == "rbf" else torch.exp(-r.abs())

    return evaluate


def nodes(d: int, g: int, reach: float = 1.0) -> Tensor:
    return torch.linspace(-reach, reach, g, dtype=torch.float64).expand(d, g)


def features(
    lengthscales: Tensor, g: int, limit: int, name: str = "rbf", weights: Tensor | None = None, reach: float = 1.0
) -> EigenfunctionFeatures:
    basis = Eigenbasis(nodes(len(lengthscales), g, reach), factors(lengthscales, name), limit)
    return EigenfunctionFeatures(basis, SCALE, weights)


def kernel(X: Tensor, Z: Tensor, lengthscales: Tensor, name: str = "rbf") -> Tensor:
    return SCALE * torch.stack([factors(lengthscales, name)(x, Z.mT).prod(0) for x in X])


def lengths(d: int) -> Tensor:
    """No two products of eigenvalues are equal."""
    return torch.linspace(0.6, 1.1, d, dtype=torch.float64)


def inputs(n: int, d: int, reach: float = 1.0) -> Tensor:
    return reach * (2 * torch.rand(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)


@pytest.mark.parametrize("name", ["rbf", "exponential"])
@pytest.mark.parametrize(("d", "g", "p"), [(1, 7, 5), (1, 9, 100), (2, 6, 12), (3, 5, 30), (5, 3, 40)])
def test_the_prior_is_equation_3_with_the_whole_grid(name: str, d: int, g: int, p: int) -> None:
    """K_XU Q_p Λ_p⁻¹ Q_pᵀ K_UX with the p largest eigenpairs of all g^d nodes."""
    F, X = features(lengths(d), g, p, name), inputs(20, d, 1.3)
    U = torch.cartesian_prod(*nodes(d, g)).reshape(-1, d)
    values, Q = torch.linalg.eigh(kernel(U, U, lengths(d), name))
    values, Q = values[-F.num_features :], Q[:, -F.num_features :]
    assert F.num_features == min(p, g**d)
    root = kernel(X, U, lengths(d), name) @ Q * values.rsqrt()
    torch.testing.assert_close(F.prior_covariance(X), root @ root.mT, rtol=1e-7, atol=1e-7)
    Phi, R = F(X), F.prior_root().to_dense()
    torch.testing.assert_close(Phi @ R @ R.mT @ Phi.mT, root @ root.mT, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(F.kernel_variance(X), kernel(X, X, lengths(d), name).diagonal())
    assert (Phi.square().sum(-1) <= 1 + 1e-9).all()


def test_weights_scale_their_eigenfunctions() -> None:
    weights, X = torch.linspace(0.5, 2.0, 40, dtype=torch.float64), inputs(6, 2)
    F, plain = features(lengths(2), 6, 12, weights=weights), features(lengths(2), 6, 12)
    expected = (plain(X) * weights[:12] * SCALE) @ plain(X).mT
    torch.testing.assert_close(F.prior_covariance(X), expected)
    torch.testing.assert_close(F.prior_root().to_dense().square(), torch.diag(SCALE * weights[:12]))
    torch.testing.assert_close(F.prior_variance(X), F.prior_covariance(X).diagonal())
    torch.testing.assert_close(F.missing_variance(X), (SCALE - F.prior_variance(X)).clamp_min(0))
    torch.testing.assert_close(F.prior_variance(X.reshape(3, 2, 2)).flatten(), F.prior_variance(X))


def test_ten_to_the_200_nodes_in_100_dimensions() -> None:
    """[GRIEF] figure 2: the error falls with p, towards the optimum of as many exact eigenvectors."""
    d, reach = 100, math.sqrt(3)
    X, ls = inputs(500, d, reach), torch.full((d,), 10.0, dtype=torch.float64)
    K = kernel(X, X, ls)
    exact = torch.linalg.eigvalsh(K).flip(0)
    errors = []
    for p in (1, 101, 1000, 5500):
        F = features(ls, 100, p, reach=reach)
        assert F.num_features == p
        Phi = F(X)
        assert Phi.isfinite().all()
        assert Phi.abs().max() <= 1
        errors.append(((K - F.prior_covariance(X)).norm() / K.norm()).item())
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 1.2 * (exact[101:].norm() / K.norm()).item()
    assert errors[3] < 0.01


def test_no_overflow_where_the_largest_eigenvalue_would() -> None:
    d, g = 150, 200
    ls = torch.full((d,), 1e3, dtype=torch.float64)
    Phi = features(ls, g, 300)(inputs(4, d))
    assert g**d > torch.finfo(torch.float64).max
    assert Phi.isfinite().all()
    torch.testing.assert_close(Phi[:, 0].abs(), torch.ones(4, dtype=torch.float64), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["rbf", "exponential"])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_gradients_equal_finite_differences(d: int, name: str) -> None:
    X = inputs(4, d, 0.93).requires_grad_()
    ls, scale = lengths(d).requires_grad_(), SCALE.clone().requires_grad_()
    weights = torch.linspace(0.5, 1.5, 30, dtype=torch.float64).requires_grad_()

    def covariance(X: Tensor, ls: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
        basis = Eigenbasis(nodes(d, 4), factors(ls, name), 14)
        return EigenfunctionFeatures(basis, scale, weights).prior_covariance(X)

    assert torch.autograd.gradcheck(covariance, (X, ls, scale, weights), atol=1e-6)


@pytest.mark.parametrize("length", [3.0, 1e2, 1e4, 1e8])
def test_long_lengthscales_leave_out_what_is_numerically_zero(length: float) -> None:
    ls = torch.tensor([length, 0.8, length], dtype=torch.float64).requires_grad_()
    X = inputs(8, 3).requires_grad_()
    F = features(ls, 10, 200)
    K = F.prior_covariance(X)
    torch.testing.assert_close(K, kernel(X, X, ls), rtol=1e-4, atol=1e-4)
    gradients = torch.autograd.grad(K.sum(), (X, ls))
    assert all(g.isfinite().all() for g in gradients)
    expected = torch.autograd.grad(kernel(X, X, ls).sum(), (X, ls))
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def test_short_lengthscales_give_unit_vectors() -> None:
    F = features(torch.full((2,), 1e-3, dtype=torch.float64), 5, 100)
    U = torch.cartesian_prod(*nodes(2, 5))
    torch.testing.assert_close(F.prior_covariance(U), SCALE * torch.eye(25, dtype=torch.float64))


def test_no_eigenfunction_is_spent_on_a_constant_column() -> None:
    with_constant = nodes(3, 6).clone()
    with_constant[1] = 0.3
    X = inputs(10, 3)
    X[:, 1] = 0.3
    whole = EigenfunctionFeatures(Eigenbasis(with_constant, factors(lengths(3)), 20), SCALE)
    without = Eigenbasis(nodes(2, 6), factors(lengths(3)[[0, 2]]), 20)
    assert (whole.basis.plan.index[:, 1] == 0).all()
    assert whole.num_features == 20
    expected = EigenfunctionFeatures(without, SCALE).prior_covariance(X[:, [0, 2]])
    torch.testing.assert_close(whole.prior_covariance(X), expected)
    X[:, 1] = 0.5
    assert (whole.prior_covariance(X).diagonal() < expected.diagonal()).all()


def test_one_node_everywhere_is_one_eigenfunction() -> None:
    F = EigenfunctionFeatures(Eigenbasis(torch.zeros(3, 5).double(), factors(lengths(3)), 20), SCALE)
    assert F.num_features == 1
    torch.testing.assert_close(F(torch.zeros(1, 3).double()).abs(), torch.ones(1, 1).double())


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3), (0,)])
def test_batches_and_dtypes(batch: tuple[int, ...]) -> None:
    F, X = features(lengths(3), 5, 30), torch.rand(*batch, 4, 3, dtype=torch.float64)
    Phi = F(X)
    assert Phi.shape == (*batch, 4, 30)
    torch.testing.assert_close(Phi.reshape(-1, 30), F(X.reshape(-1, 3)))
    assert F(X.float()).dtype == torch.float64
    assert F.kernel_variance(X).shape == (*batch, 4)


def test_chunks_make_the_same_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    F, X = features(lengths(3), 5, 30), inputs(23, 3)
    whole = SufficientStatistics.from_data(F, X, X[:, :1])
    assert 1_000 < F.chunk_size() < 1_000_000
    monkeypatch.setattr(EigenfunctionFeatures, "chunk_size", lambda self: 7)
    parts = SufficientStatistics.from_data(F, X, X[:, :1])
    torch.testing.assert_close(parts.gram.to_dense(), whole.gram.to_dense())


def test_what_is_constant_is_computed_once_and_gradients_are_never_lost() -> None:
    calls = []

    def counting(ls: Tensor) -> EigenfunctionFeatures:
        def evaluate(X: Tensor, U: Tensor) -> Tensor:
            calls.append(len(X) == 6 and torch.equal(X, U.mT))
            return factors(ls)(X, U)

        return EigenfunctionFeatures(Eigenbasis(nodes(2, 6), evaluate, 20), SCALE)

    X, frozen = inputs(5, 2), counting(lengths(2))
    frozen(X)
    first = sum(calls)
    frozen(X)
    assert sum(calls) == first
    ls = lengths(2).requires_grad_()
    live = counting(ls)
    with torch.no_grad():
        live(X)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(live(X).square().sum(), ls)
        assert gradient.abs().min() > 0


@given(d=st.integers(1, 9), p=st.integers(1, 40), r=st.integers(1, 4), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_plan_multiplies_the_rows_of_its_index(d: int, p: int, r: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    index = torch.randint(r, (p, d), generator=g)
    tables = torch.randn(d, r, 3, generator=g, dtype=torch.float64)
    expected = tables[torch.arange(d), index].prod(1)
    torch.testing.assert_close(ProductPlan.of(index)(tables), expected)


def test_a_plan_in_many_dimensions_costs_little_more_than_its_last_join() -> None:
    plan = features(torch.full((100,), 10.0, dtype=torch.float64), 20, 1000, reach=math.sqrt(3)).basis.plan
    assert sum(len(rows) for level in plan.levels for rows, _ in level) < 4_000


def test_eigenvectors_have_signs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a model from a file has the features that its weights were made for, whatever LAPACK gives."""
    X, eigh = inputs(5, 2), torch.linalg.eigh
    before = features(lengths(2), 6, 20)(X)
    flipped = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    monkeypatch.setattr(torch.linalg, "eigh", lambda K: (eigh(K)[0], eigh(K)[1] * flipped))
    torch.testing.assert_close(features(lengths(2), 6, 20)(X), before)
