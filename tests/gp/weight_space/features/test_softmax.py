"""Softmax interpolation against its definition, written out."""

import pytest
import torch
from torch import Tensor

from bo_scale.gp.weight_space.features.softmax import SoftmaxFeatures, softmax_weights


def inputs(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def definition(X: Tensor, points: Tensor, temperature: Tensor) -> Tensor:
    """[SoftKI] definition 4.1, from differences."""
    distance = torch.linalg.vector_norm((X.unsqueeze(-2) - points) / temperature, dim=-1)
    weights = torch.exp(-distance)
    return weights / weights.sum(-1, keepdim=True)


def rbf(X: Tensor, Z: Tensor) -> Tensor:
    return 1.7 * torch.exp(-0.5 * ((X.unsqueeze(1) - Z) / 0.4).square().sum(-1))


def features(points: Tensor, temperature: float = 0.3) -> SoftmaxFeatures:
    T = torch.full(points.shape[-1:], temperature, dtype=torch.float64)
    return SoftmaxFeatures(points, T, lambda Z: rbf(Z, Z), lambda X: torch.full_like(X[..., 0], 1.7))


@pytest.mark.parametrize("p", [1, 5, 60])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1), (0,)])
def test_weights_are_positive_of_sum_1_and_those_of_the_definition(batch: tuple[int, ...], p: int) -> None:
    X, points, T = torch.rand(*batch, 7, 3, dtype=torch.float64), inputs(p, 3, seed=1), torch.tensor([0.1, 0.5, 2.0])
    T = T.double()
    W = softmax_weights(X, points, T)
    assert W.shape == (*batch, 7, p)
    assert (W > 0).all()
    torch.testing.assert_close(W.sum(-1), torch.ones(*batch, 7, dtype=torch.float64))
    torch.testing.assert_close(W, definition(X, points, T), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("coincident", [False, True])
def test_gradients_equal_finite_differences_at_the_points_themselves_too(coincident: bool) -> None:
    """At an interpolation point the distance has a kink: both sides of it cancel, and the gradient there is zero."""
    X, points = inputs(4, 3), inputs(5, 3, seed=1)
    if coincident:
        X[1], X[2] = points[3], points[0]
    T = torch.tensor([0.4, 0.7, 1.1]).double()
    assert torch.autograd.gradcheck(
        softmax_weights, (X.requires_grad_(), points.requires_grad_(), T.requires_grad_()), atol=1e-5
    )


def test_many_points_and_their_gradients_equal_the_definition_where_rows_are_points() -> None:
    """Distances then come from a matrix product: between equal points they are not quite zero."""
    points, T = inputs(60, 4), torch.full((4,), 0.3, dtype=torch.float64)
    X = torch.cat([points[:20], inputs(40, 4, seed=1)])
    parameters = [v.requires_grad_() for v in (X, points, T)]
    torch.testing.assert_close(softmax_weights(*parameters), definition(*parameters), rtol=1e-6, atol=1e-7)
    upstream = torch.randn(60, 60, dtype=torch.float64)
    ours = torch.autograd.grad(softmax_weights(*parameters), parameters, upstream)
    reference = torch.autograd.grad(definition(*parameters), parameters, upstream)
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_gradient_in_the_points_alone_or_the_inputs_alone() -> None:
    X, points, T = inputs(6, 2), inputs(5, 2, seed=1), torch.full((2,), 0.3, dtype=torch.float64)
    for i in (0, 1):
        arguments = [X.clone(), points.clone()]
        learned = arguments[i].requires_grad_()
        (ours,) = torch.autograd.grad(softmax_weights(*arguments, T).square().sum(), learned)
        (reference,) = torch.autograd.grad(definition(*arguments, T).square().sum(), learned)
        torch.testing.assert_close(ours, reference)


def test_the_prior_covariance_is_that_of_interpolated_values() -> None:
    F, X = features(inputs(20, 3)), inputs(12, 3, seed=1)
    W, K = definition(X, F.points, F.temperature), rbf(F.points, F.points)
    torch.testing.assert_close(F.prior_covariance(X), W @ K @ W.mT)
    torch.testing.assert_close(F.prior_variance(X), (W @ K @ W.mT).diagonal())
    torch.testing.assert_close(F.prior_variance(X.reshape(4, 3, 3)).flatten(), F.prior_variance(X))
    R = F.prior_root().to_dense()
    torch.testing.assert_close(R @ R.mT, K)
    torch.testing.assert_close(F.prior_matrix(), K)


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 100.0])
def test_the_prior_variance_is_never_above_that_of_a_stationary_kernel(temperature: float) -> None:
    F, X = features(inputs(30, 2), temperature), 3 * inputs(200, 2, seed=1) - 1
    missing = F.kernel_variance(X) - F.prior_variance(X)
    assert (missing >= -1e-12).all()
    assert (missing > 1e-3).any()
    torch.testing.assert_close(F.missing_variance(X), missing.clamp_min(0.0))


def test_without_temperature_it_is_the_nearest_point() -> None:
    F, X = features(inputs(30, 2), 1e-7), inputs(50, 2, seed=1)
    nearest = torch.cdist(X, F.points).argmin(-1)
    torch.testing.assert_close(F(X), torch.nn.functional.one_hot(nearest, 30).double())
    torch.testing.assert_close(F.prior_covariance(X), rbf(F.points, F.points)[nearest][:, nearest])


def test_features_of_float32_inputs_are_float64_and_weights_keep_their_dtype() -> None:
    F, X = features(inputs(30, 2)), inputs(12, 2, seed=1).float()
    assert F(X).dtype == F.kernel_variance(X).dtype == F.prior_variance(X).dtype == torch.float64
    torch.testing.assert_close(F(X), F(X.double()))
    W = softmax_weights(X, F.points.float(), F.temperature.float())
    assert W.dtype == torch.float32
    torch.testing.assert_close(W.double(), F(X), rtol=1e-5, atol=1e-6)


def test_weights_do_not_depend_on_the_origin_of_the_inputs() -> None:
    """Years, or degrees Kelvin: in float32, as training sees them in a model of that dtype."""
    X, points = (100 + inputs(50, 3)).float(), (100 + inputs(40, 3, seed=1)).float()
    T = torch.full((3,), 0.3)
    expected = definition(X.double(), points.double(), T.double())
    torch.testing.assert_close(softmax_weights(X, points, T).double(), expected, rtol=0, atol=1e-4)


def test_what_is_constant_is_computed_once_and_gradients_are_never_lost() -> None:
    calls, lengthscale = [], torch.tensor(0.4).double()

    def covariance(Z: Tensor) -> Tensor:
        calls.append(len(Z))
        return torch.exp(-0.5 * ((Z.unsqueeze(1) - Z) / lengthscale).square().sum(-1))

    def build() -> SoftmaxFeatures:
        return SoftmaxFeatures(inputs(5, 2), torch.ones(2).double(), covariance, lambda X: torch.ones_like(X[..., 0]))

    frozen = build()
    for _ in range(3):
        frozen.prior_variance(inputs(4, 2))
    assert len(calls) == 1
    lengthscale.requires_grad_()
    live = build()
    for _ in range(2):
        (gradient,) = torch.autograd.grad(live.prior_covariance(inputs(4, 2)).sum(), lengthscale)
        assert gradient.abs() > 0


def test_variance_is_added_far_from_the_points_alone_and_grows_to_the_usual_one() -> None:
    phi = features(inputs(40, 2))
    line = torch.linspace(1.0, 12.0, 30, dtype=torch.float64).unsqueeze(-1).expand(30, 2)
    added = phi.distance_variance(line)
    assert (phi.distance_variance(phi.points) == 0).all()
    assert (added.diff() >= 0).all()
    assert added[-1].item() == pytest.approx(phi.prior_variance(phi.points).mean().item(), rel=1e-3)
    X = line[5:8].clone().requires_grad_()
    assert torch.autograd.gradcheck(phi.distance_variance, X)
    X = phi.points.detach()[:3].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(phi.distance_variance(X).sum(), X)
    assert (gradient == 0).all()


def test_a_lonely_point_hides_no_others_and_one_point_is_enough() -> None:
    lonely = features(torch.cat([inputs(40, 2), torch.tensor([[5.0, 5.0]]).double()]))
    assert lonely.distance_variance(torch.tensor([[-3.0, -3.0], [2.5, 2.5]]).double()).min() > 0.5
    assert (lonely.distance_variance(lonely.points) == 0).all()
    one = features(inputs(1, 2))
    assert one.distance_variance(inputs(1, 2) + 8).item() > 0.5
