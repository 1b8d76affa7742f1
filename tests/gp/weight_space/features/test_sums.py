"""Sums of feature maps: Gram matrices by blocks, stacked roots, integrals over the box."""

import itertools
from collections.abc import Callable

import pytest
import torch
from cases import CosineFeatures, data, eigenfunctions, grid_features, softmax_features, sum_features
from torch import Tensor

from bo_scale.gp.linalg.kronecker import KroneckerColumns
from bo_scale.gp.weight_space.evidence import log_evidence
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.features import GridFeatures, SpectralFeatures, box_gram, grid_parts
from bo_scale.gp.weight_space.features.sparse_rows import BlockRows, dot, transpose_matmul
from bo_scale.gp.weight_space.features.sums import BlockGram, StackedRoot, SumFeatures
from bo_scale.gp.weight_space.statistics import SufficientStatistics

LENGTHS = torch.tensor([0.3, 0.4], dtype=torch.float64)
fine, coarse, rough = grid_features((7, 6)), grid_features((4, 5), "keys"), grid_features((5, 6), name="rough")
SUMS = [
    pytest.param((fine, coarse), id="grids"),
    pytest.param((fine, softmax_features), id="grid and softmax"),
    pytest.param((CosineFeatures, fine, coarse), id="dense and grids"),
    pytest.param((softmax_features, eigenfunctions), id="dense alone"),
]
Builds = tuple[Callable[[Tensor], FeatureMap], ...]


def summed(builds: Builds) -> SumFeatures:
    phi = sum_features(*builds)(LENGTHS)
    assert isinstance(phi, SumFeatures)
    return phi


def dense(phi: FeatureMap, X: Tensor) -> Tensor:
    Phi = phi(X)
    return Phi if isinstance(Phi, Tensor) else Phi.to_dense()


@pytest.mark.parametrize("builds", SUMS)
def test_rows_of_a_sum_are_its_parts_side_by_side(builds: Builds) -> None:
    phi, X = summed(builds), data(6, 2)[0]
    whole = torch.cat([dense(part, X) for part in phi.parts], -1)
    Phi = phi(X)
    assert isinstance(Phi, BlockRows | Tensor)
    w, M = torch.randn(3, whole.shape[-1]).double(), torch.randn(6, 2).double()
    torch.testing.assert_close(dense(phi, X), whole)
    torch.testing.assert_close(Phi @ w.mT, whole @ w.mT)
    torch.testing.assert_close(dot(Phi, w[0]), whole @ w[0])
    torch.testing.assert_close(transpose_matmul(Phi, M), whole.mT @ M)
    batch = phi(X.unflatten(0, (3, 2)))
    torch.testing.assert_close(dot(batch, w.unsqueeze(0)[0]), torch.stack([x @ v for x, v in zip(whole.split(2), w)]))
    assert phi.num_features == whole.shape[-1]
    torch.testing.assert_close(Phi.to(torch.device("cpu")) @ w.mT, whole @ w.mT)


@pytest.mark.parametrize("builds", SUMS)
def test_a_block_gram_equals_the_dense_one(builds: Builds) -> None:
    phi, (X, _), weights = summed(builds), data(20, 2), torch.rand(20, dtype=torch.float64)
    whole = (dense(phi, X).mT * weights) @ dense(phi, X)
    gram = phi.empty_gram().add_rows(phi(X[:12]), weights[:12]).add_rows(phi(X[12:]), weights[12:])
    torch.testing.assert_close(gram.to_dense(), whole)
    torch.testing.assert_close(gram.combine(gram.scale(0.5), -1.0).to_dense(), 0.5 * whole)
    torch.testing.assert_close(gram.to(torch.device("cpu")).to_dense(), whole)
    M = torch.randn(len(whole), 2, dtype=torch.float64)
    torch.testing.assert_close(gram.matmul(M), whole @ M)
    R, scale = phi.prior_root(), torch.tensor(2.5, dtype=torch.float64)
    assert isinstance(R, StackedRoot)
    assert R.shape == R.to_dense().shape
    expected = 2.5 * R.to_dense().mT @ whole @ R.to_dense()
    torch.testing.assert_close(gram.congruence(R, scale), expected)
    torch.testing.assert_close(R.matmul(M := torch.randn(R.shape[-1], 2).double()), R.to_dense() @ M)
    torch.testing.assert_close(R.mT.matmul(whole), R.to_dense().mT @ whole)
    widths = [0, *itertools.accumulate(gram.widths)]
    for place in range(len(phi.parts)):
        own, mixed, rest = gram.split(place)
        here = torch.arange(widths[place], widths[place + 1])
        others = torch.tensor([i for i in range(len(whole)) if i not in set(here.tolist())])
        torch.testing.assert_close(own.to_dense(), whole[here][:, here])
        torch.testing.assert_close(mixed, whole[here][:, others])
        torch.testing.assert_close(rest.to_dense(), whole[others][:, others])
        a, b = gram.split_vector(whole[:, 0], place)
        assert torch.equal(a, whole[here, 0])
        assert torch.equal(b, whole[others, 0])


@pytest.mark.parametrize("builds", SUMS[:-1])
def test_the_evidence_of_a_sum_has_a_gradient_towards_every_part(builds: Builds) -> None:
    X, Y = data(20, 2)
    stats = SufficientStatistics.from_data(summed(builds), X, Y)
    noise, mu = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    lengths = [LENGTHS.clone().requires_grad_() for _ in builds]
    phi = SumFeatures(tuple(build(length) for build, length in zip(builds, lengths)))
    Phi = dense(summed(builds), X)
    K = sum(
        (F := part.detach() @ piece.prior_root().to_dense()) @ F.mT
        for part, piece in zip(Phi.split([p.num_features for p in phi.parts], -1), phi.parts)
    )
    covariance = K + noise * torch.eye(20, dtype=torch.float64)
    reference = torch.distributions.MultivariateNormal(mu.expand(20), covariance).log_prob(Y[:, 0])
    ours = log_evidence(phi.prior_root(), stats, noise, mu)
    torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(value, lengths) for value in (ours, reference)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("builds", [(fine, coarse), (rough, fine, coarse)], ids=len)
def test_the_box_gram_of_grids_equals_numerical_quadrature(builds: Builds, reduced: bool) -> None:
    phi = summed(builds)
    if reduced:
        phi = SumFeatures(tuple(part.whitened(part.prior_root()) for part in phi.parts))
        assert all(isinstance(part, SpectralFeatures) for part in grid_parts(phi))
    side = (torch.arange(240, dtype=torch.float64) + 0.5) / 240
    Phi = dense(phi, torch.cartesian_prod(side, side))
    torch.testing.assert_close(box_gram(phi).to_dense(), Phi.mT @ Phi / len(Phi), rtol=1e-3, atol=2e-6)


def test_the_box_gram_of_one_reduced_part_among_others_and_of_other_parts() -> None:
    one = fine(LENGTHS)
    assert isinstance(one, GridFeatures)
    torch.testing.assert_close(box_gram(one).to_dense(), one.box_gram().to_dense())
    with pytest.raises(TypeError, match="not all grids"):
        box_gram(summed((fine, softmax_features)))


def test_only_a_sum_with_a_large_root_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    phi, X = summed((fine, softmax_features)), data(5, 2)[0]
    root = phi.prior_root()
    assert phi.reduced(root) is None
    monkeypatch.setattr("bo_scale.gp.weight_space.features.grid.features.DENSE_ROOT", 0)
    reduced = phi.reduced(root)
    assert reduced is not None
    torch.testing.assert_close(reduced(X), dense(phi, X) @ root.to_dense())
    assert reduced.prior_root().to_dense().diagonal().eq(1).all()
    assert isinstance(root, StackedRoot)
    assert isinstance(root.roots[0], KroneckerColumns)
    assert isinstance(phi.empty_gram(), BlockGram)


def test_a_sum_of_sums_is_one_sum() -> None:
    a, b, c = (grid_features((m, m))(LENGTHS) for m in (5, 6, 7))
    X = torch.rand(4, 2, dtype=torch.float64)
    nested, flat = SumFeatures((SumFeatures((a, b)), c)), SumFeatures((a, b, c))
    assert nested == flat
    torch.testing.assert_close(nested(X).to_dense(), torch.cat([phi(X).to_dense() for phi in (a, b, c)], -1))
