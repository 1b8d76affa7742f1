"""Actions on data and their losses against dense Gaussian conditioning."""

import math
from dataclasses import dataclass

import pytest
import torch
from cases import data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bo_scale.gp.function_space import actions as module
from bo_scale.gp.function_space.actions import (
    Actions,
    BlockActions,
    Blocks,
    DenseActions,
    Projected,
    bisection,
    conjugate_gradient_actions,
    nearest,
    negative_elbo,
    negative_projected_evidence,
)
from bo_scale.gp.function_space.process import FunctionSpacePosterior, Radial
from bo_scale.gp.weight_space.evidence import log_density

FORMS = ["blocks", "dense"]
MU = torch.tensor(0.3, dtype=torch.float64)


@dataclass(frozen=True)
class Matern:
    """Matérn-1/2, or RBF where smooth, of given tensors."""

    lengthscale: Tensor
    scale: Tensor
    smooth: bool = False

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        squares = ((X.unsqueeze(-2) - Z.unsqueeze(-3)) / self.lengthscale).square().sum(-1)
        r = torch.where(squares > 0, torch.where(squares > 0, squares, 1.0).sqrt(), 0.0)
        return self.scale * torch.exp(-0.5 * squares if self.smooth else -r)

    def variance(self, X: Tensor) -> Tensor:
        return self.scale.expand(X.shape[:-1])

    def radial(self) -> Radial | None:
        return None

    def to(self, device: torch.device) -> "Matern":
        return self


def kernel(d: int = 2, lengthscale: float = 0.4, smooth: bool = False) -> Matern:
    lengths = lengthscale * torch.linspace(1.0, 1.5, d, dtype=torch.float64)
    return Matern(lengths, torch.tensor(1.3, dtype=torch.float64), smooth)


def noises(n: int, equal: bool = False) -> Tensor:
    return torch.full((n,), 0.05).double() if equal else torch.linspace(0.02, 0.2, n, dtype=torch.float64)


def some_actions(form: str, X: Tensor, N: Tensor, i: int, seed: int = 0) -> Actions:
    g = torch.Generator().manual_seed(seed)
    if form == "blocks":
        entries = torch.randn(len(X), generator=g, dtype=torch.float64)
        return BlockActions.of(X, entries, N, Blocks.of(bisection(X, i)))
    Q = torch.linalg.qr(torch.randn(len(X), i, generator=g, dtype=torch.float64)).Q
    return DenseActions(X, N.rsqrt().unsqueeze(-1) * Q)


def matrix(actions: Actions, n: int) -> Tensor:
    """S."""
    return actions.project(torch.eye(n, dtype=torch.float64)).mT


def elbo_loss(k: Matern, X: Tensor, residual: Tensor, N: Tensor, actions: Actions) -> Tensor:
    return negative_elbo(Projected.of(k, X, residual, actions), k.variance(X), residual, N)


def process(k: Matern, X: Tensor, y: Tensor, actions: Actions) -> FunctionSpacePosterior:
    projected = Projected.of(k, X, y - MU, actions)
    return FunctionSpacePosterior(k, MU, actions, projected.factor, projected.innovation)


def given_actions(k: Matern, X: Tensor, residual: Tensor, N: Tensor, S: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (less μ) and covariance at Z given Sᵀy, by Gaussian conditioning."""
    K = k(X, X)
    A, B = S.mT @ (K + torch.diag(N)) @ S, k(Z, X) @ S
    return B @ torch.linalg.solve(A, S.mT @ residual), k(Z, Z) - B @ torch.linalg.solve(A, B.mT)


def exact(k: Matern, X: Tensor, residual: Tensor, N: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    return given_actions(k, X, residual, N, torch.eye(len(X), dtype=torch.float64), Z)


# ---------------------------------------------------------------- blocks


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_blocks_hold_every_row_once_and_give_back_the_labels(labels: list[int]) -> None:
    given = torch.tensor(labels).unique(return_inverse=True)[1]
    blocks = Blocks.of(given)
    assert blocks.mask.any(-1).all()
    assert torch.equal(blocks.index[blocks.mask].sort().values, torch.arange(len(given)))
    for block, (index, mask) in enumerate(zip(blocks.index, blocks.mask, strict=True)):
        assert (given[index[mask]] == block).all()


def test_single_blocks_are_the_rows() -> None:
    blocks = Blocks.single(4)
    assert torch.equal(blocks.gather(torch.arange(4.0)), torch.arange(4.0).unsqueeze(-1))
    assert torch.equal(blocks.index, Blocks.of(torch.arange(4)).index)


def test_block_actions_are_the_matrix_of_entries_and_labels_whitened_by_the_noise() -> None:
    (X, Y), N, labels = data(7, 2), noises(7), torch.tensor([0, 2, 1, 0, 0, 2, 0])
    entries = torch.randn(7, dtype=torch.float64)
    actions = BlockActions.of(X, entries, N, Blocks.of(labels))
    S = torch.zeros(7, 3, dtype=torch.float64)
    S[torch.arange(7), labels] = entries
    S = S / (S.mT @ torch.diag(N) @ S).diagonal().sqrt()
    torch.testing.assert_close(matrix(actions, 7), S)
    torch.testing.assert_close(actions.project(Y), S.mT @ Y)
    torch.testing.assert_close(actions.project(Y[:, 0]), S.mT @ Y[:, 0])
    torch.testing.assert_close(actions.log_gram(), torch.logdet(S.mT @ S))


@pytest.mark.parametrize("form", FORMS)
def test_actions_are_functionals_of_functions_and_of_the_kernel(form: str) -> None:
    (X, _), N, k = data(11, 2), noises(11), kernel()
    actions, Z = some_actions(form, X, N, 3), data(6, 2, seed=1)[0].unflatten(0, (2, 3))
    S = matrix(actions, 11)
    torch.testing.assert_close(S.mT @ torch.diag(N) @ S, torch.eye(3).double())
    torch.testing.assert_close(actions.log_gram(), torch.logdet(S.mT @ S))
    torch.testing.assert_close(actions.products(k, X), k(X, X) @ S)
    torch.testing.assert_close(actions.covariance(k, Z), S.mT @ k(X, Z))
    of_two = actions.of_function(lambda x: torch.stack([x.sum(-1), torch.sin(x[..., 0])]))
    torch.testing.assert_close(of_two, torch.stack([X.sum(-1), torch.sin(X[:, 0])]) @ S)


def test_what_pads_a_block_contributes_nothing() -> None:
    X, k = torch.rand(5, 2, dtype=torch.float64), kernel()
    padded = BlockActions.of(X, torch.ones(5).double(), noises(5), Blocks.of(torch.tensor([1, 0, 0, 0, 1])))
    assert (padded.entries == 0).sum() == 1
    moved = padded.points.clone()
    moved[~padded.blocks.mask] = 100.0
    other = BlockActions(moved, padded.entries, padded.blocks)
    Z = data(4, 2)[0]
    torch.testing.assert_close(other.covariance(k, Z), padded.covariance(k, Z))

    def square(x: Tensor) -> Tensor:
        return x.square().sum(-1)

    torch.testing.assert_close(other.of_function(square), padded.of_function(square))


# ---------------------------------------------------------------- the bound


@pytest.mark.parametrize("equal", [True, False], ids=["equal noise", "unequal noise"])
@pytest.mark.parametrize("form", FORMS)
def test_the_negative_elbo_is_the_evidence_and_the_divergence_from_the_exact_posterior(form: str, equal: bool) -> None:
    (X, Y), N, k = data(14, 2), noises(14, equal), kernel()
    residual = Y[:, 0] - MU
    actions = some_actions(form, X, N, 4)
    q = MultivariateNormal(*given_actions(k, X, residual, N, matrix(actions, 14), X))
    p = MultivariateNormal(*exact(k, X, residual, N, X))
    evidence = MultivariateNormal(torch.zeros(14).double(), k(X, X) + torch.diag(N)).log_prob(residual)
    assert kl_divergence(q, p) > 0.1
    torch.testing.assert_close(elbo_loss(k, X, residual, N, actions), kl_divergence(q, p) - evidence)


@pytest.mark.parametrize("equal", [True, False], ids=["equal noise", "unequal noise"])
def test_unit_actions_lose_nothing(equal: bool) -> None:
    (X, Y), N, k = data(14, 2), noises(14, equal), kernel()
    residual, entries = Y[:, 0] - MU, torch.linspace(-1.0, 2.0, 14, dtype=torch.float64)
    units = BlockActions.of(X, entries, N, Blocks.single(14))
    evidence = MultivariateNormal(torch.zeros(14).double(), k(X, X) + torch.diag(N)).log_prob(residual)
    projected = Projected.of(k, X, residual, units)
    torch.testing.assert_close(negative_elbo(projected, k.variance(X), residual, N), -evidence)
    torch.testing.assert_close(negative_projected_evidence(projected, units), -evidence)
    dense = DenseActions(X, torch.diag(N.rsqrt()))
    torch.testing.assert_close(elbo_loss(k, X, residual, N, dense), -evidence)


@given(
    n=st.integers(1, 20),
    i=st.integers(1, 20),
    copies=st.integers(0, 6),
    log_noise=st.floats(-6.0, 0.5),
    log_length=st.floats(-3.0, 1.5),
    smooth=st.booleans(),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_negative_elbo_is_never_below_the_exact_one(
    n: int, i: int, copies: int, log_noise: float, log_length: float, smooth: bool, form: str, seed: int
) -> None:
    X, Y = data(n, 2, seed=seed)
    X, residual = torch.cat([X, X[:copies]]), torch.cat([Y, Y[:copies] + 0.1])[:, 0]
    N, k = 10**log_noise * (1 + X[:, 0]), kernel(lengthscale=10**log_length, smooth=smooth)
    bound = elbo_loss(k, X, residual, N, some_actions(form, X, N, min(i, len(X)), seed))
    reference = -log_density(k(X, X), residual, N, torch.tensor(1.0).double(), torch.tensor(0.0).double())
    assert bound >= reference - 1e-7 * (len(X) + reference.abs())


@pytest.mark.parametrize("equal", [True, False], ids=["equal noise", "unequal noise"])
@pytest.mark.parametrize("form", FORMS)
def test_the_projected_evidence_is_the_density_of_the_data_on_the_range_of_the_actions(form: str, equal: bool) -> None:
    (X, Y), N, k = data(14, 2), noises(14, equal), kernel()
    residual = Y[:, 0] - MU
    actions = some_actions(form, X, N, 4)
    U = torch.linalg.qr(matrix(actions, 14)).Q
    density = MultivariateNormal(torch.zeros(4).double(), U.mT @ (k(X, X) + torch.diag(N)) @ U)
    found = negative_projected_evidence(Projected.of(k, X, residual, actions), actions)
    torch.testing.assert_close(found, -density.log_prob(U.mT @ residual))


@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_scales_and_signs_of_the_entries_do_not_matter(loss: str) -> None:
    (X, Y), N, k = data(14, 2), noises(14), kernel()
    residual, labels = Y[:, 0] - MU, bisection(X, 4)
    entries, values = torch.randn(14, dtype=torch.float64), []
    for scale in (torch.ones(4), torch.tensor([1e-3, -5.0, 1e4, -0.1])):
        actions = BlockActions.of(X, entries * scale.double()[labels], N, Blocks.of(labels))
        projected = Projected.of(k, X, residual, actions)
        of_elbo = negative_elbo(projected, k.variance(X), residual, N)
        values.append(of_elbo if loss == "elbo" else negative_projected_evidence(projected, actions))
    torch.testing.assert_close(*values, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_of_dense_actions_only_the_range_matters(loss: str) -> None:
    (X, Y), N, k = data(14, 2), noises(14), kernel()
    residual, R = Y[:, 0] - MU, torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    first, values = some_actions("dense", X, N, 4), []
    for actions in (first, DenseActions(X, matrix(first, 14) @ R)):
        projected = Projected.of(k, X, residual, actions)
        of_elbo = negative_elbo(projected, k.variance(X), residual, N)
        values.append(of_elbo if loss == "elbo" else negative_projected_evidence(projected, actions))
    torch.testing.assert_close(*values, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_gradients_of_both_losses_equal_finite_differences(loss: str, form: str) -> None:
    X, Y = data(9, 2)
    labels, Q = bisection(X, 3), torch.linalg.qr(torch.randn(9, 3, dtype=torch.float64)).Q

    def value(lengthscale: Tensor, scale: Tensor, noise: Tensor, mu: Tensor, entries: Tensor) -> Tensor:
        k, N, residual = Matern(lengthscale, scale), noise * noises(9), Y[:, 0] - mu
        actions: Actions = (
            BlockActions.of(X, entries, N, Blocks.of(labels))
            if form == "blocks"
            else DenseActions(X, (N.rsqrt() * entries).unsqueeze(-1) * Q)
        )
        projected = Projected.of(k, X, residual, actions)
        if loss == "projected":
            return negative_projected_evidence(projected, actions)
        return negative_elbo(projected, k.variance(X), residual, N)

    entries = 1 + 0.3 * torch.randn(9, dtype=torch.float64) if form == "blocks" else torch.ones(9).double()
    inputs = [torch.tensor([0.4, 0.7]), torch.tensor(1.3), torch.tensor(0.9), MU.clone(), entries]
    assert torch.autograd.gradcheck(value, tuple(v.double().requires_grad_() for v in inputs), atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("b", [1, 3])
def test_batches_estimate_the_loss_and_its_gradient_without_bias(form: str, b: int) -> None:
    (X, Y), N = data(12, 2), noises(12)
    lengthscale = torch.tensor([0.4, 0.7]).double().requires_grad_()
    k, residual = Matern(lengthscale, torch.tensor(1.3).double()), Y[:, 0] - MU
    projected = Projected.of(k, X, residual, some_actions(form, X, N, 4))
    whole = negative_elbo(projected, k.variance(X), residual, N)
    parts = [negative_elbo(projected, k.variance(X), residual, N, batch) for batch in torch.randperm(12).split(b)]
    mean = torch.stack(parts).mean()
    torch.testing.assert_close(mean, whole, rtol=1e-11, atol=1e-11)
    gradients = [torch.autograd.grad(v, lengthscale, retain_graph=True)[0] for v in (mean, whole)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- the posterior


@pytest.mark.parametrize("form", FORMS)
def test_the_posterior_is_gaussian_conditioning_on_the_combinations(form: str) -> None:
    (X, Y), N, k, Z = data(14, 2), noises(14), kernel(), data(6, 2, seed=1)[0]
    actions = some_actions(form, X, N, 4)
    mean, covariance = given_actions(k, X, Y[:, 0] - MU, N, matrix(actions, 14), Z)
    found = process(k, X, Y[:, 0], actions)
    torch.testing.assert_close(found.mean(Z), MU + mean)
    torch.testing.assert_close(found.locate(Z).mean, MU + mean)
    torch.testing.assert_close(found.covariance(Z), covariance)
    torch.testing.assert_close(found.variance(Z), covariance.diagonal())


@given(
    n=st.integers(2, 20),
    log_noise=st.floats(-6.0, 0.5),
    log_length=st.floats(-2.0, 1.0),
    smooth=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_the_variance_falls_towards_the_exact_one_as_actions_are_added(
    n: int, log_noise: float, log_length: float, smooth: bool, seed: int
) -> None:
    (X, Y), Z = data(n, 2, seed=seed), torch.cat([data(5, 2, seed=100)[0], data(n, 2, seed=seed)[0][:3]])
    N, k = 10**log_noise * (1 + X[:, 0]), kernel(lengthscale=10**log_length, smooth=smooth)
    Q = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q
    variances = [k.variance(Z)]
    for i in range(1, n + 1):
        S = N.rsqrt().unsqueeze(-1) * Q[:, :i]
        variances.append(process(k, X, Y[:, 0], DenseActions(X, S)).variance(Z))
    whole = process(k, X, Y[:, 0], BlockActions.of(X, torch.ones(n).double(), N, Blocks.single(n))).variance(Z)
    for before, after in zip(variances, [*variances[1:], whole], strict=True):
        assert (after <= before + 1e-8).all()
    torch.testing.assert_close(variances[-1], whole, rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------- bisection


@given(n=st.integers(1, 200), count=st.integers(1, 40), distinct=st.integers(1, 200), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_bisection_gives_the_asked_number_of_blocks_of_equal_size(n: int, count: int, distinct: int, seed: int) -> None:
    X = data(n, 3, seed=seed)[0]
    X = X[torch.arange(n) % min(n, distinct)]
    sizes = bisection(X, count).bincount()
    assert len(sizes) == min(n, count)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 2


def test_blocks_of_a_bisection_are_local() -> None:
    X = data(1000, 2)[0]
    labels, shuffled = bisection(X, 50), torch.randperm(1000) % 50

    def spread(blocks: Tensor) -> float:
        return sum(X[blocks == j].var(0).sum().item() for j in range(50)) / 50

    assert spread(labels) < 0.05 * spread(shuffled)


def test_bisection_cuts_along_the_widest_axis() -> None:
    X = data(40, 2)[0] * torch.tensor([1.0, 10.0]).double()
    labels = bisection(X, 4)
    order = labels[X[:, 1].argsort()]
    assert torch.equal(order.unique_consecutive(), order[::10])


@pytest.mark.parametrize("seed", range(20))
def test_bisection_does_not_depend_on_last_digits(seed: int) -> None:
    """Of columns in units of their extents, which are equal but for rounding."""
    X = data(40, 3, seed=seed)[0]
    X = (X - X.amin(0)) / (X.amax(0) - X.amin(0))
    rng = torch.Generator().manual_seed(seed)
    moved = X * (1 + 1e-7 * torch.rand(3, generator=rng, dtype=torch.float64))
    assert torch.equal(bisection(X, 8), bisection(moved, 8))
    assert torch.equal(bisection(X, 8), bisection(X.float().double(), 8))


# ---------------------------------------------------------------- nearest rows


def test_the_nearest_row_in_chunks_is_that_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Z = data(17, 2)[0], data(9, 2, seed=1)[0]
    expected = (X.unsqueeze(1) - Z).norm(dim=-1).argmin(-1)
    for distances in (2**22, 30, 1):
        monkeypatch.setattr(module, "DISTANCES", distances)
        assert torch.equal(nearest(X, Z), expected)
    assert nearest(X[:0], Z).shape == (0,)


# ---------------------------------------------------------------- conjugate gradients


def whitened(k: Matern, X: Tensor, N: Tensor) -> Tensor:
    weight = N.rsqrt()
    return torch.eye(len(X)).double() + weight.unsqueeze(-1) * k(X, X) * weight


def iterates(k: Matern, X: Tensor, residual: Tensor, N: Tensor, count: int) -> Tensor:
    """[CaGP] algorithm S1, plainly: v after so many actions s = N⁻¹r, the residuals (up to a scale for equal noise)."""
    noisy = k(X, X) + torch.diag(N)
    C, v = torch.zeros_like(noisy), torch.zeros_like(residual)
    for _ in range(count):
        r = residual - noisy @ v
        s = r / N
        alpha, z = s @ r, noisy @ s
        direction = s - C @ z
        eta = z @ direction
        C = C + torch.outer(direction, direction) / eta
        v = v + direction * alpha / eta
    return v


@pytest.mark.parametrize("equal", [True, False], ids=["equal noise", "unequal noise"])
@pytest.mark.parametrize("kept", [True, False], ids=["matrix", "products"])
def test_cg_actions_are_an_orthonormal_basis_of_the_krylov_space(
    kept: bool, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (X, Y), N, k = data(30, 2), noises(30, equal), kernel()
    if not kept:
        monkeypatch.setattr(module, "KEPT_ENTRIES", 0)
    Q = conjugate_gradient_actions(k, X, Y[:, 0] - MU, N, 6, 0.0)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(6).double(), rtol=0, atol=1e-13)
    M, column, krylov = whitened(k, X, N), N.rsqrt() * (Y[:, 0] - MU), []
    for _ in range(6):
        krylov.append(column / column.norm())
        column = M @ krylov[-1]
    basis = torch.linalg.qr(torch.stack(krylov, -1)).Q
    assert torch.linalg.svdvals(basis.mT @ Q).min() > 1 - 1e-8


@pytest.mark.parametrize("equal", [True, False], ids=["equal noise", "unequal noise"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_mean_of_cg_actions_is_the_iterate_of_algorithm_s1(count: int, equal: bool) -> None:
    (X, Y), N, k, Z = data(30, 2), noises(30, equal), kernel(), data(5, 2, seed=1)[0]
    Q = conjugate_gradient_actions(k, X, Y[:, 0] - MU, N, count, 0.0)
    found = process(k, X, Y[:, 0], DenseActions(X, N.rsqrt().unsqueeze(-1) * Q)).mean(Z)
    v = iterates(k, X, Y[:, 0] - MU, N, count)
    torch.testing.assert_close(found, MU + k(Z, X) @ v, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("log_noise", [-6, -1])
@pytest.mark.parametrize("smooth", [True, False])
def test_as_many_cg_actions_as_rows_give_the_exact_posterior(smooth: bool, log_noise: int) -> None:
    (X, Y), k, Z = data(25, 2), kernel(smooth=smooth), data(5, 2, seed=1)[0]
    N = 10.0**log_noise * (1 + X[:, 0])
    Q = conjugate_gradient_actions(k, X, Y[:, 0] - MU, N, 25, 0.0)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(25).double(), rtol=0, atol=1e-12)
    found = process(k, X, Y[:, 0], DenseActions(X, N.rsqrt().unsqueeze(-1) * Q))
    reference = process(k, X, Y[:, 0], BlockActions.of(X, torch.ones(25).double(), N, Blocks.single(25)))
    torch.testing.assert_close(found.mean(Z), reference.mean(Z), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.covariance(Z), reference.covariance(Z), rtol=1e-6, atol=1e-8)


def test_cg_stops_where_the_residual_has_fallen_to_the_tolerance() -> None:
    (X, Y), N, k = data(60, 2), noises(60), kernel(lengthscale=1.0, smooth=True)
    residual, tolerance = Y[:, 0] - MU, 1e-3
    Q = conjugate_gradient_actions(k, X, residual, N, 60, tolerance)
    assert 1 < Q.shape[-1] < 30
    noisy, weight = k(X, X) + torch.diag(N), N.rsqrt()
    left = [
        (weight * (residual - noisy @ iterates(k, X, residual, N, count))).norm() / (weight * residual).norm()
        for count in (Q.shape[-1] - 1, Q.shape[-1])
    ]
    assert left[1] <= tolerance < left[0]


def test_cg_ends_where_the_krylov_space_does() -> None:
    X, Y = data(3, 2)[0].repeat(5, 1), data(15, 2)[1]
    Q = conjugate_gradient_actions(kernel(), X, Y[:, 0], noises(15, True), 15, 1e-10)
    assert Q.shape[-1] == 4  # three places, and what no function of these can explain


@pytest.mark.parametrize("equal", [True, False], ids=["equal noise", "unequal noise"])
def test_constant_targets_have_an_action_at_least(equal: bool) -> None:
    X, N = data(15, 2)[0], noises(15, equal)
    Q = conjugate_gradient_actions(kernel(), X, torch.zeros(15).double(), N, 4, 1e-4)
    torch.testing.assert_close(Q[:, 0], N.rsqrt() / N.rsqrt().norm())
    found = process(kernel(), X, MU.expand(15), DenseActions(X, N.rsqrt().unsqueeze(-1) * Q))
    torch.testing.assert_close(found.mean(X), MU.expand(15))
    assert (found.variance(X) < kernel().variance(X)).all()


def test_a_single_observation_has_the_exact_posterior_and_evidence() -> None:
    (X, Y), N, k, Z = data(1, 2), noises(1), kernel(), data(5, 2, seed=1)[0]
    residual = Y[:, 0] - MU
    Q = conjugate_gradient_actions(k, X, residual, N, 5, 1e-4)
    mean, covariance = exact(k, X, residual, N, Z)
    density = 0.5 * (residual.square() / (1.3 + N) + (1.3 + N).log() + math.log(2 * math.pi))
    for actions in (DenseActions(X, N.rsqrt().unsqueeze(-1) * Q), some_actions("blocks", X, N, 5)):
        found = process(k, X, Y[:, 0], actions)
        torch.testing.assert_close(found.mean(Z), MU + mean)
        torch.testing.assert_close(found.covariance(Z), covariance)
        torch.testing.assert_close(elbo_loss(k, X, residual, N, actions), density.squeeze())
