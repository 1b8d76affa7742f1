"""Posteriors from a sparse precision of the prior, against dense matrices and the route by its root."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from cases import assert_alike, data, end_to_end, grid_features, rough_and_smooth, softmax_features
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale import WISKI, draw_posterior_functions, load_model, qNegIntegratedPosteriorVariance, save_model
from bo_scale.gp.conditioning import condition
from bo_scale.gp.weight_space import sparse_precision as precision
from bo_scale.gp.weight_space.evidence import log_evidence
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.sparse_precision import PrecisionPosterior, log_evidence_of_precision
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.shell import weight_space
from bo_scale.models.shell.weight_space import evidence_of
from bo_scale.models.wiski.grid_choice import grids_of

NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)


def rough(size: tuple[int, ...], basis: Basis = "spline", lengthscales: Tensor | None = None) -> GridFeatures:
    """Of a product of exponential kernels, whose precision is sparse."""
    lengthscales = torch.linspace(0.3, 0.5, len(size), dtype=torch.float64) if lengthscales is None else lengthscales
    phi = grid_features(size, basis, "exponential")(lengthscales)
    assert isinstance(phi, GridFeatures)
    return replace(phi, exponential=True)


def sum_of(kind: str, lengthscales: Tensor) -> FeatureMap:
    """The rough part first, last, in the middle, or alone."""
    main = rough((7, 6), "spline", lengthscales)
    smooth, soft = grid_features((5, 4), "keys")(lengthscales), softmax_features(lengthscales)
    parts = {"first": (main, smooth), "last": (smooth, main), "middle": (soft, main, smooth)}
    return main if kind == "alone" else SumFeatures(parts[kind])


CASES = [
    pytest.param(1, lambda v: rough((11,), "spline", v), id="spline-1d"),
    pytest.param(1, lambda v: rough((9,), "keys", v), id="keys-1d"),
    pytest.param(2, lambda v: rough((8, 6), "keys", v), id="keys-2d"),
    pytest.param(3, lambda v: rough((5, 4, 6), "spline", v), id="spline-3d"),
    *[pytest.param(2, lambda v, kind=kind: sum_of(kind, v), id=kind) for kind in ("alone", "first", "last", "middle")],
]


def posteriors(
    phi: FeatureMap, X: Tensor, Y: Tensor, D: Tensor, noise: Tensor
) -> tuple[PrecisionPosterior, WeightSpacePosterior]:
    stats, prior = SufficientStatistics.from_data(phi, X, Y, D), phi.sparse_prior()
    assert prior is not None
    ours = PrecisionPosterior.from_statistics(phi, prior, stats, noise, MU)
    return ours, WeightSpacePosterior.from_statistics(phi, stats, noise, MU)


@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize(("d", "build"), CASES)
def test_a_posterior_by_precision_equals_the_dense_one(d: int, build, n: int) -> None:
    (X, Y), Xt = data(n, d), 1.1 * data(6, d, seed=1)[0] - 0.05
    D = 0.3 + X[:, 0]
    phi = build(torch.linspace(0.3, 0.5, d, dtype=torch.float64))
    K = phi.prior_covariance(torch.cat([X, Xt]))
    for noise, tolerance in ((NOISE, 1e-8), (torch.tensor(1e-6, dtype=torch.float64), 1e-6)):
        ours, by_root = posteriors(phi, X, Y, D, noise)
        G = torch.linalg.solve(K[:n, :n] + noise * torch.diag(D), K[:n, n:])
        mean, covariance = MU + G.mT @ (Y[:, 0] - MU), K[n:, n:] - K[n:, :n] @ G
        torch.testing.assert_close(ours.mean(Xt), mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(ours.locate(Xt).mean, mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(ours.covariance(Xt), covariance, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(ours.covariance(Xt, Xt[:2]), covariance[:, :2], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(ours.variance(Xt), covariance.diagonal(), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(by_root.covariance(Xt), covariance, rtol=10 * tolerance, atol=10 * tolerance)
        F = ours.weighted_features(Xt)
        F = (F if isinstance(F, Tensor) else F.to_dense()) @ ours.spread(torch.eye(ours.rank).double()).mT
        torch.testing.assert_close(F @ F.mT, covariance, rtol=tolerance, atol=tolerance)
        sample = ours.sample_weights(torch.Size([2, 3]), torch.Generator().manual_seed(0))
        assert sample.shape == (2, 3, ours.rank)


@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize(("d", "build"), CASES)
def test_the_evidence_by_precision_and_its_gradient_equal_the_dense_ones(d: int, build, n: int) -> None:
    X, Y = data(n, d)
    D = 0.3 + X[:, 0]
    for variance, tolerance in ((0.02, 1e-8), (1e-6, 1e-5)):
        lengthscales = torch.linspace(0.3, 0.5, d, dtype=torch.float64).requires_grad_()
        noise, mu = torch.tensor(variance, dtype=torch.float64, requires_grad=True), MU.clone().requires_grad_()
        phi = build(lengthscales)
        prior = phi.sparse_prior()
        stats = SufficientStatistics.from_data(build(lengthscales.detach()), X, Y, D)
        ours = log_evidence_of_precision(prior, stats, noise, mu)
        dense = phi.prior_covariance(X) + noise * torch.diag(D)
        reference = MultivariateNormal(mu.expand(n), dense).log_prob(Y[:, 0]) if n else 0 * (dense.sum() + mu)
        torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)
        parameters = [lengthscales, noise, mu]
        gradients = [
            torch.autograd.grad(v, parameters, allow_unused=True, retain_graph=True) for v in (ours, reference)
        ]
        for a, b in zip(*gradients, strict=True):
            a, b = (torch.zeros(1).double() if g is None else g for g in (a, b))
            torch.testing.assert_close(a, b.expand_as(a), rtol=100 * tolerance, atol=100 * tolerance * max(1, n))
        by_root = log_evidence(phi.prior_root(), stats, noise, mu)
        torch.testing.assert_close(ours, by_root, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("chunk", [1, 1 << 25])
@pytest.mark.parametrize("kind", ["alone", "last"])
def test_batches_and_fantasies_equal_those_by_the_root(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "CHUNK", chunk)
    (X, Y), Xt = data(20, 2), data(12, 2, seed=1)[0].reshape(2, 2, 3, 2)
    phi = sum_of(kind, torch.tensor([0.3, 0.5], dtype=torch.float64))
    found = []
    for process in posteriors(phi, X, Y, torch.ones(20).double(), NOISE):
        Xq, yq = data(4, 2, seed=2)[0].reshape(2, 2, 2), torch.ones(3, 2, 2, dtype=torch.float64)
        fantasies = condition(process, Xq, yq, NOISE.expand(2, 2))
        more = fantasies.extended(Xq * 0.9, 0.5 * yq, NOISE.expand(2, 2))
        twice = condition(fantasies, Xq * 0.9, 0.5 * yq, NOISE.expand(2, 2))
        answers = [f(Xt) for p in (process,) for f in (p.mean, p.covariance, p.variance)]
        for p in (fantasies, more, twice):
            answers += [p.mean(Xt[0]), p.covariance(Xt[0]), p.variance(Xt[0, 0])]
        points = Xt[0].clone().requires_grad_()
        answers += torch.autograd.grad(more.variance(points).sum() + process.covariance(points).sum(), points)
        found.append(answers)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["alone", "first"])
def test_weights_drawn_from_a_conditioned_process_have_its_moments(kind: str) -> None:
    (X, Y), Xt = data(6, 2), data(3, 2, seed=1)[0]
    phi = sum_of(kind, torch.tensor([0.3, 0.5], dtype=torch.float64))
    process, _ = posteriors(phi, X, Y, torch.ones(6).double(), NOISE)
    conditioned = condition(process, X[:2] * 0.9, Y[:2, 0], NOISE.expand(2))
    w = conditioned.sample_weights(torch.Size([20_000]), torch.Generator().manual_seed(0))
    values = MU + (process.weighted_features(Xt) @ w.mT).mT
    sd = conditioned.variance(Xt).max().sqrt().item()
    torch.testing.assert_close(values.mean(0), conditioned.mean(Xt), rtol=0, atol=0.03 * sd)
    torch.testing.assert_close(torch.cov(values.mT), conditioned.covariance(Xt), rtol=0, atol=0.05 * sd**2)


def test_a_point_in_the_margin_has_its_gradient() -> None:
    phi = rough((6, 5))
    process, _ = posteriors(phi, *data(8, 2), torch.ones(8).double(), NOISE)
    x = torch.tensor([[-0.2, 0.3], [0.7, 1.1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(process.mean, (x,))
    assert torch.autograd.gradcheck(process.covariance, (x,))
    assert torch.autograd.gradcheck(process.variance, (x,))


# ---------------------------------------------------------------- models


def model(rank: int, m: int = 1, kernel: Kernel | None = None, **options) -> WISKI:
    """Of a rank that would be cut, or that keeps all."""
    X, Y = data(40, 2, m)
    batch = torch.Size([m] if m > 1 else [])
    single = ScaleKernel(MaternKernel(0.5, ard_num_dims=2, batch_shape=batch), batch_shape=batch)
    options = {"grid_size": (8, 7), "covar_module": single if kernel is None else kernel, **options}
    fitted = WISKI(X, Y, rank=rank, outcome_transform=None, **options).eval()
    fitted.likelihood.noise = 0.05
    return fitted


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("kind", ["alone", "sum", "conservative", "missing variance", "few rows"])
def test_a_model_by_precision_is_that_by_a_whole_root(kind: str, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "few rows":
        monkeypatch.setattr(weight_space, "FEW", 0.1)
    options: dict = {"conservative": {"conservative": True}, "missing variance": {"missing_variance": True}}.get(
        kind, {}
    )

    def built(rank: int) -> WISKI:
        given = {"kernel": rough_and_smooth(m), "grid_size": [(8, 7), 4]} if kind == "sum" else {}
        return model(rank, m, **given, **options)

    whole, cut = built(2048), built(20)
    assert isinstance(cut.processes[0], PrecisionPosterior)
    assert isinstance(whole.processes[0], WeightSpacePosterior)
    assert_alike(end_to_end(cut, box=False), end_to_end(whole, box=False), 1e-6)
    X = data(4, 2, seed=5)[0]
    streamed = cut.condition_on_observations(X, torch.ones(4, m, dtype=torch.float64))
    draw = draw_posterior_functions(streamed, torch.Size([4000]), torch.Generator().manual_seed(0))(X)
    process = [p.covariance(X.double()) for p in streamed.processes]
    sd = torch.stack([each.diagonal().sqrt() for each in process])
    draw = draw.reshape(4000, m, 4)
    assert ((draw.mean(0) - streamed.posterior(X).mean.mT).abs() < 5 * sd / 4000**0.5 + 1e-9).all()
    torch.testing.assert_close(draw.std(0), sd, rtol=0.1, atol=1e-9)


def test_files_and_copies_of_a_model_by_precision_say_the_same(tmp_path: Path) -> None:
    streamed = model(20, 2).condition_on_observations(data(4, 2, seed=5)[0], torch.ones(4, 2, dtype=torch.float64))
    save_model(streamed, tmp_path / "model.pt")
    loaded = load_model(model(20, 2), tmp_path / "model.pt")
    said = end_to_end(streamed, box=False)
    for same in (loaded, copy.deepcopy(streamed)):
        assert_alike(said, end_to_end(same, box=False), 0.0)


def test_integrals_over_the_box_need_points_and_say_so() -> None:
    with pytest.raises(UnsupportedError, match=r"mc_points: needed .* sparse precision"):
        qNegIntegratedPosteriorVariance(model(20))


def test_two_rough_grids_whose_ranks_would_be_cut_say_what_is_lost_of_the_second() -> None:
    """Only one part of a sum can be by its precision."""
    kernel = ScaleKernel(MaternKernel(0.5, ard_num_dims=2)) + ScaleKernel(MaternKernel(0.5, ard_num_dims=2))
    both = model(20, kernel=kernel, grid_size=[(8, 7), (6, 7)])
    phi, X = both._feature_map(0), data(5, 2, seed=3)[0]
    prior = phi.sparse_prior()
    assert prior is not None
    stats = SufficientStatistics.empty(phi, 1)
    process = PrecisionPosterior.from_statistics(phi, prior, stats, NOISE, MU)
    torch.testing.assert_close(process.covariance(X), phi.prior_covariance(X))
    torch.testing.assert_close(process.variance(X), phi.prior_variance(X))
    assert both.rank_loss.item() > 0.001


def test_a_precision_of_independent_nodes_has_a_finite_gradient() -> None:
    X = torch.rand(3000, 2, dtype=torch.float64)
    model = WISKI(X, X[:, :1], covar_module=ScaleKernel(MaternKernel(0.5, ard_num_dims=2)), grid_size=30)
    model.covar_module.base_kernel.lengthscale = 3e-5
    model.train()
    model.compute_custom_loss(ExactMarginalLogLikelihood(model.likelihood, model)).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_long_lengthscales_go_back_to_a_root() -> None:
    """In two dimensions entries of the precision grow as 1/(1 − ρ²)²: its evidence would lose all digits."""
    X = torch.rand(60, 2, dtype=torch.float64)
    model = WISKI(X, X[:, :1], covar_module=ScaleKernel(MaternKernel(0.5, ard_num_dims=2)), grid_size=20)
    assert grids_of(model._feature_map(0))[0].prior.sparse
    for lengthscale in (1e5, 1e8):
        model.covar_module.base_kernel.lengthscale = lengthscale
        (phi,) = grids_of(model._feature_map(0))
        assert not phi.prior.sparse
        whole = log_evidence(phi.prior_root(), model.statistics[0], *model.inference.noise, *model._constants())
        torch.testing.assert_close(evidence_of(model, model.statistics), whole.unsqueeze(0))
