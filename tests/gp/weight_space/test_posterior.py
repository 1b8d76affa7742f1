"""Updates, roots and forms of a weight-space posterior; its moments for every feature map are laws, in `test_laws`."""

from typing import Any

import pytest
import torch
from cases import CosineFeatures, conditioned, data, grid_features, rand, randn, softmax_features, sum_features
from torch import Size, Tensor

from bo_scale.errors import WrongTypeError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.sparse_rows import BlockRows, SparseRows
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior, join_features, kalman_factors

SCALES = torch.tensor([0.4, 0.7], dtype=torch.float64)
MU = torch.tensor(0.3, dtype=torch.float64)
Z = rand(5, 2, seed=9)
MAPS = {
    "dense": CosineFeatures,
    "sparse": grid_features((6, 5)),
    "blocks": sum_features(softmax_features, grid_features((6, 5))),
}
FORMS = pytest.mark.parametrize("form", MAPS)


def prior(form: str) -> WeightSpacePosterior:
    return WeightSpacePosterior.prior(MAPS[form](SCALES), MU)


@pytest.mark.parametrize("noise", [0.1, 1e-6])
@pytest.mark.parametrize("q", [0, 1, 3])
def test_kalman_factors_condition_without_a_difference_of_squares(q: int, noise: float) -> None:
    Vt, N = randn(q, 4), noise * (0.5 + rand(q))
    E, G, T = kalman_factors(Vt, N)
    A = Vt @ Vt.mT + torch.diag(N)
    torch.testing.assert_close(E @ E.mT, A)
    torch.testing.assert_close(G @ E.mT, Vt.mT, rtol=1e-6, atol=1e-9)
    J = torch.eye(4).double() - G @ T
    expected = torch.eye(4).double() - Vt.mT @ torch.linalg.solve(A, Vt)
    torch.testing.assert_close(J @ J.mT, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("q", [0, 1, 3])
@FORMS
def test_an_update_is_dense_conditioning_and_leaves_what_was(form: str, q: int) -> None:
    process, X, y, noise = prior(form), rand(q, 2, seed=1), randn(q, seed=2), 0.02 + 0.1 * rand(q)
    before = process.covariance(Z)
    found = process.update(process.locate(X), y, noise)
    mean, covariance = conditioned(process, X, y, noise, Z)
    torch.testing.assert_close(found.mean(Z), mean)
    torch.testing.assert_close(found.covariance(Z), covariance)
    assert torch.equal(process.covariance(Z), before)


def test_a_value_told_a_thousand_times_leaves_no_negative_variance() -> None:
    process, x, noise = prior("dense"), Z[:1], torch.tensor([1e-6]).double()
    for _ in range(1000):
        process = process.update(process.locate(x), torch.ones(1).double(), noise)
    torch.testing.assert_close(process.mean(x), torch.ones(1).double())
    torch.testing.assert_close(process.variance(x), noise / 1000, rtol=1e-6, atol=0)


@FORMS
def test_without_rows_qr_gives_the_prior(form: str) -> None:
    phi, (X, Y) = MAPS[form](SCALES), data(0, 2)
    found = WeightSpacePosterior.from_rows(phi, X, Y[:, 0], Y[:, 0], MU)
    torch.testing.assert_close(found.mean(Z), MU.expand(5))
    torch.testing.assert_close(found.covariance(Z), prior(form).covariance(Z))


@FORMS
def test_points_may_be_located_by_their_features_joined_and_moved(form: str) -> None:
    process = prior(form)
    process = process.update(process.locate(rand(3, 2)), randn(3), torch.full((3,), 0.1).double())
    whole = process.locate(Z)
    known = process.located(process.features(Z))
    joined = process.locate(Z[:2]).join(process.locate(Z[2:]))
    for found in (known, joined, whole.to(torch.device("cpu"))):
        torch.testing.assert_close(found.mean, process.mean(Z))
        torch.testing.assert_close(found.variance(), process.variance(Z))
        torch.testing.assert_close(found.covariance(whole), process.covariance(Z))
        torch.testing.assert_close(dense(found.features), dense(process.features(Z)))
    batch = process.locate(Z[:2].expand(3, 2, 2)).join(process.locate(Z[2:]))
    torch.testing.assert_close(batch.covariance(batch), process.covariance(Z).expand(3, 5, 5))


def dense(features: Any) -> Tensor:
    return features if isinstance(features, Tensor) else features.to_dense()


def test_features_of_two_forms_are_not_joined() -> None:
    rows: list[Any] = [prior(form).features(Z) for form in MAPS]
    assert [type(each) for each in rows] == [Tensor, SparseRows, BlockRows]
    for a, b in ((0, 1), (1, 2), (2, 0)):
        with pytest.raises(WrongTypeError, match="one form"):
            join_features(rows[a], rows[b])


@FORMS
def test_weights_drawn_are_the_mean_and_a_root_times_normal_numbers(form: str) -> None:
    process = prior(form)
    process = process.update(process.locate(rand(3, 2)), randn(3), torch.full((3,), 0.1).double())
    found = process.sample_weights(Size([4, 2]), torch.Generator().manual_seed(3))
    z = torch.randn(4, 2, process.rank, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert process.batch_shape == Size([])
    for i in range(4):
        torch.testing.assert_close(found[i, 1], process.weights + process.root @ z[i, 1])
    assert process.weighted_features is process.features


@FORMS
def test_a_posterior_restored_goes_on_to_the_last_bit(form: str) -> None:
    phi: FeatureMap = MAPS[form](SCALES)
    process = prior(form).update(prior(form).locate(rand(3, 2)), randn(3), torch.full((3,), 0.1).double())
    state = process.state()
    again = WeightSpacePosterior.restored(phi, {name: value.clone() for name, value in state.items()})
    state["root"].zero_()
    more = [p.update(p.locate(Z), randn(5), rand(5)) for p in (process, again)]
    for one, other in ((process, again), (process.to(torch.device("cpu")), again), more):
        assert torch.equal(one.mean(Z), other.mean(Z))
        assert torch.equal(one.covariance(Z), other.covariance(Z))


def test_the_mean_needs_no_root_and_has_its_gradient() -> None:
    process = prior("sparse").update(prior("sparse").locate(rand(3, 2)), randn(3), torch.full((3,), 0.1).double())
    batch = rand(2, 3, 4, 2, seed=1)
    torch.testing.assert_close(process.mean(batch), process.locate(batch).mean)
    assert torch.autograd.gradcheck(process.mean, (Z[:2].clone().requires_grad_(),))
