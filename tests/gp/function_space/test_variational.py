"""The bound of the decoupled GP, its divergence and its optimum, each against dense Gaussians."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bo_scale.gp.function_space import variational as module
from bo_scale.gp.function_space.bases import Bases, positions
from bo_scale.gp.function_space.kernel_products import chunked as products
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.function_space.variational import (
    NUGGET,
    Combinations,
    Variational,
    basis_factor,
    bound,
    decoupled_process,
    direct_process,
    divergence,
    expected_log_likelihood,
    hybrid_process,
    new_root,
    optimal_root,
    optimal_spread,
    optimal_weights,
    optimum,
    process_mean,
)
from bo_scale.models.shell.kernels import OutputKernel

MU = torch.tensor(0.3, dtype=torch.float64)
N, D = 14, 2
KINDS = ["direct", "hybrid", "hybrid without more points"]


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_kernel(lengthscale: float = 0.4, outputscale: float = 1.7) -> OutputKernel:
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, outputscale
    return OutputKernel(kernel)


@dataclass
class Case:
    """A kernel, rows with unequal noise, and bases in general position."""

    kind: str
    kernel: OutputKernel

    @property
    def alpha(self) -> Tensor:
        return rand(0 if self.kind == KINDS[2] else 7, D, seed=1)

    @property
    def beta(self) -> Tensor:
        return rand(5, D, seed=2)

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        X = rand(N, D, seed=3)
        return X, torch.sin(4 * X.sum(-1)) + 0.2 * randn(N, seed=4), 0.02 + 0.2 * rand(N, seed=5)

    def arbitrary(self) -> list[Tensor]:
        """Variational parameters: weights, root, innovation."""
        root = 0.5 * randn(5, 5, seed=7)
        root = root if self.kind == "direct" else (0.3 * root).triu(1) + torch.diag(0.3 + rand(5, seed=8))
        return [randn(len(self.alpha), seed=6), root, randn(5, seed=9)]

    def process(self, parameters: list[Tensor], alpha: Tensor | None = None, beta: Tensor | None = None):
        weights, root, innovation = parameters
        alpha, beta = self.alpha if alpha is None else alpha, self.beta if beta is None else beta
        if self.kind == "direct":
            return direct_process(self.kernel, MU, alpha, weights, beta, root)
        return hybrid_process(self.kernel, MU, beta, innovation, root.triu(), alpha, weights)

    def optimum(self) -> list[Tensor]:
        X, y, noise = self.rows
        if self.kind == "direct":
            weights = optimal_weights(self.kernel, self.alpha, X, y - MU, noise)
            return [weights, optimal_root(self.kernel, self.beta, X, noise), torch.zeros(5).double()]
        weights = optimal_weights(self.kernel, torch.cat([self.beta, self.alpha]), X, y - MU, noise)
        innovation = basis_factor(self.kernel, self.beta)[0].mT @ weights[:5]
        return [weights[5:], optimal_spread(self.kernel, self.beta, X, noise), innovation]


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param, make_kernel())


def gaussians(process: FunctionSpacePosterior, Z: Tensor) -> tuple[MultivariateNormal, MultivariateNormal]:
    """Q and p of the values at points."""
    return (
        MultivariateNormal(process.mean(Z), process.covariance(Z)),
        MultivariateNormal(MU.expand(len(Z)), process.kernel(Z, Z)),
    )


# ---------------------------------------------------------------- the bound against dense Gaussians


def test_mean_and_covariance_are_those_of_the_equations(case: Case) -> None:
    (a, R, nu), Z, k = case.arbitrary(), rand(4, D, seed=10), case.kernel
    process = case.process([a, R, nu])
    K, k_z, of_mean = k(case.beta, case.beta), k(Z, case.beta), MU + k(Z, case.alpha) @ a
    if case.kind == "direct":
        B = R @ R.mT
        covariance = k(Z, Z) - k_z @ torch.linalg.solve(torch.linalg.inv(B) + K, k_z.mT)
        mean = of_mean
    else:
        L = torch.linalg.cholesky(K)
        m, S = L @ nu, L @ R @ R.mT @ L.mT
        half = torch.linalg.solve(K, k_z.mT)
        mean, covariance = of_mean + half.mT @ m, k(Z, Z) + half.mT @ (S - K) @ half
    torch.testing.assert_close(process.mean(Z), mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(process_mean(process, Z), mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(process.covariance(Z), covariance, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(process.variance(Z), covariance.diagonal(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("more", [0, 3], ids=["at the bases", "and elsewhere"])
def test_the_divergence_is_that_of_gaussians_over_the_values_at_both_bases(case: Case, more: int) -> None:
    process = case.process(case.arbitrary())
    Z = torch.cat([case.alpha, case.beta, rand(more, D, seed=11)])
    torch.testing.assert_close(divergence(process), kl_divergence(*gaussians(process, Z)), rtol=1e-5, atol=1e-5)


def test_the_expected_log_likelihood_is_the_dense_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    process, (X, y, noise) = case.process(case.arbitrary()), case.rows
    square = (y - process.mean(X)).square() + process.covariance(X).diagonal()
    dense = -0.5 * (square / noise + (2 * math.pi * noise).log()).sum()
    torch.testing.assert_close(expected_log_likelihood(process, X, y, noise), dense)
    monkeypatch.setattr(module, "CHUNK", 12)
    torch.testing.assert_close(expected_log_likelihood(process, X, y, noise), dense)


def test_the_bound_is_below_the_log_evidence_and_meets_it_where_both_bases_hold_all_rows() -> None:
    for kind in KINDS[:2]:
        case = Case(kind, make_kernel())
        X, y, noise = case.rows
        evidence = MultivariateNormal(MU.expand(N), case.kernel(X, X) + torch.diag(noise)).log_prob(y)
        assert bound(case.process(case.optimum()), X, y, noise) < evidence - 0.1
        weights = optimal_weights(case.kernel, X, X, y - MU, noise)
        if kind == "direct":
            whole = direct_process(case.kernel, MU, X, weights, X, optimal_root(case.kernel, X, X, noise))
        else:
            innovation = basis_factor(case.kernel, X)[0].mT @ weights
            spread = optimal_spread(case.kernel, X, X, noise)
            whole = hybrid_process(case.kernel, MU, X, innovation, spread, X[:0], weights[:0])
        torch.testing.assert_close(bound(whole, X, y, noise), evidence, rtol=1e-6, atol=1e-6)


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, kernel: gpytorch.kernels.Kernel, Z: Tensor, mean: Tensor, V: Tensor, jitter: float) -> None:
        q = gpytorch.variational.CholeskyVariationalDistribution(len(Z)).double()
        q.variational_mean.data, q.chol_variational_covar.data = mean, torch.linalg.cholesky(V)
        strategy = gpytorch.variational.VariationalStrategy(self, Z, q, False, jitter_val=jitter)
        strategy.variational_params_initialized.fill_(1)
        super().__init__(strategy)
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean().double(), kernel
        self.mean_module.constant = MU.item()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("kind", ["direct", "hybrid"])
def test_with_one_shared_basis_the_bound_is_gpytorchs_svgp(kind: str) -> None:
    case = Case(KINDS[2], make_kernel())
    (X, y, _), Z, (_, R, nu) = case.rows, case.beta, case.arbitrary()
    R = 0.4 * R  # eq. 8 has no covariance above the prior's
    V, noise = R @ R.mT, torch.tensor(0.05).double()
    svgp = SVGP(case.kernel.kernel, Z, nu, V, NUGGET * 1.7)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise
    with torch.no_grad():
        elbo = gpytorch.mlls.VariationalELBO(likelihood, svgp.train(), num_data=N)(svgp(X), y) * N
    if kind == "hybrid":
        process = case.process([torch.empty(0).double(), R, nu])
    else:
        L = torch.linalg.cholesky(case.kernel(Z, Z))
        root = torch.linalg.solve(L.mT, torch.linalg.cholesky(torch.linalg.inv(V) - torch.eye(5)))
        process = direct_process(case.kernel, MU, Z, torch.linalg.solve(L.mT, nu), Z, root)
    torch.testing.assert_close(bound(process, X, y, noise.expand(N)), elbo, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the optimum


@pytest.mark.parametrize("kind", ["direct", "hybrid"])
def test_with_one_shared_basis_the_optimum_is_sgprs_bound(kind: str) -> None:
    case = Case(KINDS[2], make_kernel())
    (X, y, noise), Z = case.rows, case.beta
    if kind == "hybrid":
        process = case.process(case.optimum())
    else:
        weights = optimal_weights(case.kernel, Z, X, y - MU, noise)
        process = direct_process(case.kernel, MU, Z, weights, Z, optimal_root(case.kernel, Z, X, noise))
    Q = case.kernel(X, Z) @ torch.linalg.solve(case.kernel(Z, Z), case.kernel(Z, X))
    missing = (case.kernel.variance(X) - Q.diagonal()) / noise
    sgpr = MultivariateNormal(MU.expand(N), Q + torch.diag(noise)).log_prob(y) - 0.5 * missing.sum()
    torch.testing.assert_close(bound(process, X, y, noise), sgpr, rtol=1e-6, atol=1e-6)


def test_at_the_optimum_the_gradient_is_zero_and_every_change_lowers_the_bound(case: Case) -> None:
    rows, parameters = case.rows, [p.requires_grad_() for p in case.optimum()]
    best = bound(case.process(parameters), *rows)
    for gradient in torch.autograd.grad(best, parameters, allow_unused=True):
        assert gradient is None or gradient.numel() == 0 or gradient.abs().max() < 1e-5
    with torch.no_grad():
        for seed in range(20):
            for i, p in enumerate(parameters):
                if p.numel() == 0 or (case.kind == "direct" and i == 2):
                    continue
                change = 0.05 * p.abs().max() * randn(*p.shape, seed=seed)
                moved = [p + change if j == i else q for j, q in enumerate(parameters)]
                assert bound(case.process(moved), *rows) < best


def test_points_that_are_all_rows_are_solved_for_as_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, X = make_kernel(0.15), rand(9, D, seed=3)
    rows, points = torch.cat([X, X[:4]]), torch.cat([X, rand(2, D, seed=4)])  # rows that repeat, points of no row
    y, noise = randn(13, seed=5), 0.05 + rand(13, seed=6)

    def solved() -> list[Tensor]:
        root = optimal_root(kernel, points, rows, noise)
        return [optimal_weights(kernel, points, rows, y, noise), root @ root.mT]

    known = solved()
    assert positions(points, rows) is not None
    monkeypatch.setattr(module, "positions", lambda *_: None)
    for a, b in zip(known, solved(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(module, "CHUNK", 30)
    for a, b in zip(known, solved(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_points_that_nearly_coincide_are_harmless(case: Case) -> None:
    X, y, noise = case.rows
    beta = torch.cat([case.beta, case.beta + 1e-9])
    weights = optimal_weights(case.kernel, beta, X, y - MU, noise)
    if case.kind == "direct":
        process = direct_process(case.kernel, MU, beta, weights, beta, optimal_root(case.kernel, beta, X, noise))
    else:
        innovation, spread = (
            basis_factor(case.kernel, beta)[0].mT @ weights,
            optimal_spread(case.kernel, beta, X, noise),
        )
        process = hybrid_process(case.kernel, MU, beta, innovation, spread, beta[:0], weights[:0])
    single = Case(KINDS[2], case.kernel)
    best = bound(single.process(single.optimum()), X, y, noise)
    torch.testing.assert_close(bound(process, X, y, noise), best, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["direct", "hybrid"])
def test_the_variance_of_the_optimum_is_at_most_the_exact_one_at_the_basis(kind: str) -> None:
    """Not conservative: the KL divergence that it minimises punishes too wide a q more than one too narrow."""
    case = Case(kind, make_kernel())
    X, _, noise = case.rows
    process = case.process(case.optimum())
    K = case.kernel(X, X) + torch.diag(noise)
    exact = case.kernel.variance(case.beta) - (
        case.kernel(case.beta, X) * torch.linalg.solve(K, case.kernel(X, case.beta)).mT
    ).sum(-1)
    assert (process.variance(case.beta) <= exact + 1e-8).all()
    assert (process.variance(case.beta) / exact).min() < 0.95


# ---------------------------------------------------------------- estimates, gradients


@pytest.mark.parametrize("count", [1, 2])
def test_columns_and_batches_estimate_the_bound_without_bias(case: Case, count: int) -> None:
    parameters = [p.requires_grad_() for p in case.arbitrary()]
    process, (X, y, noise) = case.process(parameters), case.rows
    exact = divergence(process)
    if len(case.alpha) > 0:
        chosen = [torch.tensor(J) for J in combinations(range(len(case.alpha)), count)]
        estimates = torch.stack([divergence(process, J) for J in chosen])
        assert estimates.std() > 0.01
        torch.testing.assert_close(estimates.mean(), exact)
        of_mean = [torch.autograd.grad(v, parameters[0], retain_graph=True)[0] for v in (estimates.mean(), exact)]
        torch.testing.assert_close(*of_mean)
    parts = [expected_log_likelihood(process, X[b], y[b], noise[b]) * N / count for b in torch.randperm(N).split(count)]
    torch.testing.assert_close(torch.stack(parts).mean(), expected_log_likelihood(process, X, y, noise))


@pytest.mark.parametrize("kept", [True, False], ids=["graph", "products"])
def test_gradients_of_the_bound_are_finite_differences(case: Case, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kept:
        monkeypatch.setattr(products, "KEPT", 0)
        monkeypatch.setattr(module, "CHUNK", 20)
    lengthscale = torch.tensor([[0.4]]).double()

    def of(lengthscale: Tensor, alpha: Tensor, beta: Tensor, *parameters: Tensor) -> Tensor:
        kernel = make_kernel()
        del kernel.kernel.base_kernel._parameters["raw_lengthscale"]
        kernel.kernel.base_kernel.raw_lengthscale = (
            kernel.kernel.base_kernel.raw_lengthscale_constraint.inverse_transform(lengthscale)
        )
        changed = Case(case.kind, kernel)
        return bound(changed.process(list(parameters), alpha, beta), *case.rows)

    values = [v.requires_grad_() for v in (lengthscale, case.alpha, case.beta, *case.arbitrary())]
    assert torch.autograd.gradcheck(of, values, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_no_matrix_of_the_means_basis_with_itself_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    count, seen = 128**2, []
    kernel, alpha, beta = make_kernel(), rand(128**2, D, seed=1), rand(8, D, seed=2)
    weights = (1e-3 * randn(count, seed=3)).requires_grad_()
    original = OutputKernel.__call__

    def record(self: OutputKernel, X: Tensor, Z: Tensor) -> Tensor:
        seen.append(len(X) * len(Z))
        return original(self, X, Z)

    monkeypatch.setattr(OutputKernel, "__call__", record)
    process = direct_process(kernel, MU, alpha, weights, beta, 0.1 * torch.eye(8).double())
    X, columns = rand(32, D, seed=4), torch.arange(64)
    value = expected_log_likelihood(process, X, X.sum(-1), torch.ones(32).double()) - divergence(process, columns)
    value.backward()
    assert weights.grad.abs().min() > 0
    assert max(seen) <= 64 * count


# ---------------------------------------------------------------- functionals


def test_combinations_are_combinations_of_values() -> None:
    kernel, beta, L = make_kernel(), rand(5, D, seed=2), randn(5, 3, seed=3)
    basis, Z = Combinations(beta, L), rand(2, 4, D, seed=4)
    assert basis.count == 3
    torch.testing.assert_close(basis.covariance(kernel, Z[0]), L.mT @ kernel(beta, Z[0]))
    torch.testing.assert_close(basis.covariance(kernel, Z)[1], basis.covariance(kernel, Z[1]))
    torch.testing.assert_close(basis.of_function(lambda X: X[:, 0]), beta[:, 0] @ L)
    moved = basis.to(torch.device("cpu"))
    assert torch.equal(moved.matrix, L)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_of_the_process(kind: str) -> None:
    case = Case(kind, make_kernel())
    process, Z = case.process(case.optimum()), torch.cat([case.beta[:2], rand(2, D, seed=12)])
    everywhere = torch.cat([Z, case.beta, case.alpha])
    root = torch.linalg.cholesky(case.kernel(everywhere, everywhere) + 1e-10 * torch.eye(len(everywhere)))

    def draw_prior(shape: torch.Size) -> Callable[[Tensor], Tensor]:
        values = torch.randn(*shape, len(everywhere)).double() @ root.mT
        return lambda X: values[..., (X.unsqueeze(-2) == everywhere).all(-1).long().argmax(-1)]

    drawn = process.draw(draw_prior, torch.Size([20_000]))(Z)
    sd = process.variance(Z).sqrt()
    assert ((drawn.mean(0) - process.mean(Z)).abs() < 5 * sd / 20_000**0.5).all()
    torch.testing.assert_close(torch.cov(drawn.mT), process.covariance(Z), rtol=0, atol=0.05 * sd.max().item() ** 2)


def test_a_process_without_more_points_has_no_basis_of_the_mean() -> None:
    case = Case(KINDS[2], make_kernel())
    process = case.process(case.arbitrary())
    assert process.mean_basis is None
    with_one = replace(process, mean_basis=None, weights=None)
    torch.testing.assert_close(divergence(process), divergence(with_one))


# ---------------------------------------------------------------- preconditioned parameters


def test_the_optimum_of_both_bases_is_the_optimum_of_each(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    bases, (X, y, noise), Z = Bases(case.alpha, case.beta, case.kind != "direct"), case.rows, rand(4, D, seed=10)
    found = optimum(case.kernel, bases, X, y - MU, noise)
    process, known = decoupled_process(case.kernel, MU, bases, found), case.process(case.optimum())
    torch.testing.assert_close(process.mean(Z), known.mean(Z))
    torch.testing.assert_close(process.covariance(Z), known.covariance(Z))
    assert found.innovation.numel() == (5 if bases.hybrid else 0)
    monkeypatch.setattr(module, "CLOSED_FORM", 6)
    partly = optimum(case.kernel, bases, X, y - MU, noise)
    assert (partly.weights != 0).sum() == min(len(case.alpha), 1 if bases.hybrid else 6)


def test_frozen_parameters_have_no_gradient_and_are_their_own() -> None:
    weights, root, innovation = (rand(3).requires_grad_(), rand(2, 2), rand(2))
    frozen = Variational(weights, root, innovation).frozen()
    assert not frozen.weights.requires_grad
    root.zero_()
    assert (frozen.root > 0).all()


def test_a_new_root_changes_an_isolated_points_variance_by_a_hundredth_or_not_at_all() -> None:
    kernel, bases = make_kernel(0.01), Bases(rand(0, D), rand(5, D, seed=2), hybrid=False)
    root = torch.zeros(5, 5, dtype=torch.float64)
    root.diagonal()[3:] = new_root(kernel, bases, 2)
    process = decoupled_process(kernel, MU, bases, Variational(rand(0), root, rand(0)))
    share = process.variance(bases.covar) / kernel.variance(bases.covar)
    torch.testing.assert_close(share, torch.tensor([1.0, 1.0, 1.0, 1 / 1.01, 1 / 1.01]).double())
    assert (new_root(kernel, replace(bases, hybrid=True), 2) == 1).all()
