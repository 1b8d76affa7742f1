"""Edges of the evidence; its value and gradient for every feature map are laws, in `test_laws`."""

import math

import pytest
import torch
from cases import CosineFeatures, data, grid_features, rand, randn
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from bo_scale.errors import InvalidDataError
from bo_scale.gp.linalg.dense import quadratic_and_logdet
from bo_scale.gp.weight_space.evidence import (
    _whiten,
    log_density,
    log_evidence,
    log_evidence_of_kernel,
    residual,
    unexplained,
)
from bo_scale.gp.weight_space.statistics import SufficientStatistics

PHI = CosineFeatures(torch.tensor([0.05]).double())
NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)


def statistics(X: Tensor, Y: Tensor, D: Tensor | None = None, center: float | None = None) -> SufficientStatistics:
    found = SufficientStatistics.from_data(PHI, X, Y, D)
    return found if center is None else found.recenter(torch.tensor([center]).double())


def every_evidence(X: Tensor, y: Tensor, D: Tensor, noise: Tensor = NOISE, mu: Tensor = MU) -> list[Tensor]:
    R, stats = PHI.prior_root().to_dense(), statistics(X, y.unsqueeze(-1), D)
    return [
        log_evidence(PHI.prior_root(), stats, noise, mu),
        log_evidence_of_kernel(R @ R.mT, stats, noise, mu),
        log_density(PHI.prior_covariance(X), y, D, noise, mu),
    ]


def test_no_observations_have_an_evidence_of_one() -> None:
    X, Y = data(0, 2)
    for found in every_evidence(X, Y[:, 0], Y[:, 0]):
        assert found.item() == 0.0


def test_one_observation_has_the_density_of_a_number() -> None:
    X, D = rand(1, 2), torch.tensor([0.7]).double()
    k = PHI.prior_covariance(X)[0, 0]
    reference = Normal(MU, (k + 0.7 * NOISE).sqrt()).log_prob(torch.tensor(1.2).double())
    for found in every_evidence(X, torch.tensor([1.2]).double(), D):
        torch.testing.assert_close(found, reference)


def test_noise_of_1e_6_and_equal_points_keep_their_digits() -> None:
    (X, Y), noise = data(8, 2), torch.tensor(1e-6, dtype=torch.float64)
    X, y = X[[0, 0, 1, 2, 3, 4, 5, 6]], Y[:, 0]
    K = PHI.prior_covariance(X) + noise * torch.eye(8).double()
    reference = MultivariateNormal(MU.expand(8), K).log_prob(y)
    for found in every_evidence(X, y, torch.ones(8).double(), noise):
        torch.testing.assert_close(found, reference, rtol=1e-6, atol=0)


def test_a_density_has_weights_of_one_unless_told() -> None:
    (X, Y), D = data(5, 2), 0.5 + rand(5)
    K, ones = PHI.prior_covariance(X), torch.ones(5).double()
    plain = log_density(K, Y[:, 0], D, NOISE, MU)
    torch.testing.assert_close(log_density(K, Y[:, 0], D, NOISE, MU, ones), plain)
    one = torch.tensor([1.0, 1.0, 1.0, 1.0, 1e-200]).double()
    without = log_density(K[:4, :4], Y[:4, 0], D[:4], NOISE, MU)
    torch.testing.assert_close(log_density(K, Y[:, 0], D, NOISE, MU, one), without)


@pytest.mark.parametrize("center", [None, 0.0, -40.0])
def test_what_a_constant_leaves_does_not_depend_on_the_centre(center: float | None) -> None:
    (X, Y), D = data(6, 2), 0.5 + rand(6)
    stats = statistics(X, Y, D, center)
    Phi, y = PHI(X), Y[:, 0] - MU
    torch.testing.assert_close(residual(stats, MU), Phi.mT @ (y / D))
    expected = (y.square() / D).sum() / NOISE + (2 * math.pi * NOISE * D).log().sum()
    torch.testing.assert_close(unexplained(stats, NOISE, MU), expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_in_closed_form_equals_finite_differences(weighted: bool) -> None:
    """Of a grid of one dimension, whose root is a dense matrix."""
    X, Y = data(12, 1)
    phi = grid_features((8,))(torch.tensor([0.3]).double())
    weights = 0.2 + 0.8 * rand(12, seed=3) if weighted else None
    stats, R = SufficientStatistics.from_data(phi, X, Y + 5, 0.5 + rand(12), weights), phi.prior_root().to_dense()
    assert stats.gram.dense_for(phi.prior_root())

    def evidence(root: Tensor, noise: Tensor, mu: Tensor) -> Tensor:
        return log_evidence(DenseLinearOperator(root), stats, noise, mu)

    inputs = [each.clone().requires_grad_() for each in (R, NOISE, MU)]
    assert torch.autograd.gradcheck(evidence, inputs, rtol=1e-5, atol=1e-5)
    explained, logdet = quadratic_and_logdet(*_whiten(DenseLinearOperator(R), stats, NOISE, MU))
    expected = 0.5 * (explained - logdet - unexplained(stats, NOISE, MU))
    torch.testing.assert_close(evidence(R, NOISE, MU), expected, rtol=1e-10, atol=1e-10)


def test_statistics_of_several_outputs_are_refused_with_their_number() -> None:
    stats = SufficientStatistics.from_data(PHI, *data(4, 2, 3))
    for call in (
        lambda: log_evidence(PHI.prior_root(), stats, NOISE, MU),
        lambda: log_evidence_of_kernel(torch.eye(9).double(), stats, NOISE, MU),
    ):
        with pytest.raises(InvalidDataError, match="one output, got 3"):
            call()


def test_a_kernel_without_rank_is_noise_alone() -> None:
    y, D = randn(4), 0.5 + rand(4)
    found = log_density(torch.zeros(4, 4).double(), y, D, NOISE, MU)
    torch.testing.assert_close(found, Normal(MU, (NOISE * D).sqrt()).log_prob(y).sum())
