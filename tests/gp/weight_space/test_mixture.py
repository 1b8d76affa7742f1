"""A mixture is, sample by sample, the weight-space posterior of that sample."""

import pytest
import torch
from cases import eigenfunctions
from torch import Tensor

from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.mixture import MixturePosterior, _weighted, draw_weights, mixture_of
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior

S, P = 3, 11


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture() -> MixturePosterior:
    rotation = 1.3 * torch.linalg.qr(randn(P, P)).Q
    constant = torch.tensor(0.7, dtype=torch.float64)
    features = eigenfunctions(torch.tensor([0.5, 0.7]).double())
    return MixturePosterior(
        features, rotation, randn(S, P, seed=1), randn(S, P, seed=2).exp(), constant, randn(S, seed=3) - 2
    )


def one(of: MixturePosterior, s: int) -> WeightSpacePosterior:
    root = of.rotation * of.variances[s].sqrt()
    return WeightSpacePosterior(of.features, root, of.rotation @ of.means[s], of.constant)


def noise_of(of: MixturePosterior, q: int) -> Tensor:
    return of.log_noise.exp().unsqueeze(-1).expand(S, q)


def assert_same(found: PosteriorProcess, s: int, expected: PosteriorProcess, Z: Tensor, W: Tensor) -> None:
    torch.testing.assert_close(found.mean(Z)[..., s, :], expected.mean(Z))
    torch.testing.assert_close(found.variance(Z)[..., s, :], expected.variance(Z))
    torch.testing.assert_close(found.covariance(Z)[..., s, :, :], expected.covariance(Z))
    torch.testing.assert_close(found.covariance(Z, W)[..., s, :, :], expected.covariance(Z, W))


@pytest.mark.parametrize("batch", [(), (4,), (2, 4)], ids=str)
def test_every_sample_is_its_weight_space_posterior(batch: tuple[int, ...]) -> None:
    process, Z, W = mixture(), points(*batch, 5), points(*batch, 3, seed=1)
    assert process.batch_shape == (S,)
    assert process.mean(Z).shape == (*batch, S, 5)
    assert process.covariance(Z, W).shape == (*batch, S, 5, 3)
    torch.testing.assert_close(process.locate(Z).mean, process.mean(Z))
    for s in range(S):
        assert_same(process, s, one(process, s), Z, W)


def test_conditioning_is_that_of_every_sample() -> None:
    process, X, y, Z = mixture(), points(4, seed=2), randn(4), points(5)
    found = condition(process, X, y, noise_of(process, 4))
    for s in range(S):
        assert_same(found, s, condition(one(process, s), X, y, noise_of(process, 4)[s]), Z, points(3, seed=1))


def test_conditioning_is_the_dense_schur_complement() -> None:
    process, X, y, Z = mixture(), points(4, seed=2), randn(4), points(5)
    found = condition(process, X, y, noise_of(process, 4))
    A = process.covariance(X) + torch.diag_embed(noise_of(process, 4))
    gain = torch.linalg.solve(A, process.covariance(X, Z)).mT
    mean = process.mean(Z) + (gain @ (y - process.mean(X)).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.mean(Z), mean)
    torch.testing.assert_close(found.covariance(Z), process.covariance(Z) - gain @ process.covariance(X, Z))


@pytest.mark.parametrize("extend", [True, False], ids=["extended", "nested"])
def test_conditioning_twice_is_conditioning_on_both(extend: bool) -> None:
    process, X, y, Z = mixture(), points(5, seed=2), randn(5), points(4)
    first = condition(process, X[:2], y[:2], noise_of(process, 2))
    second = (first.extended if extend else lambda *seen: condition(first, *seen))(X[2:], y[2:], noise_of(process, 3))
    both = condition(process, X, y, noise_of(process, 5))
    torch.testing.assert_close(second.mean(Z), both.mean(Z))
    torch.testing.assert_close(second.covariance(Z), both.covariance(Z))
    assert mixture_of(second) is process


def test_batched_fantasies_are_conditioned_on_one_by_one() -> None:
    process, X, y, Z = mixture(), points(4, 2, seed=2), randn(6, 4, S, 2), points(5)
    found = condition(process, X, y, noise_of(process, 2))
    assert found.batch_shape == (6, 4, S)
    again = found.extended(points(4, 1, seed=3), randn(6, 4, S, 1, seed=1), noise_of(process, 1))
    for f, b, s in ((0, 0, 0), (5, 3, 2), (2, 1, 1)):
        alone = condition(one(process, s), X[b], y[f, b, s], noise_of(process, 2)[s])
        torch.testing.assert_close(found.mean(Z)[f, b, s], alone.mean(Z))
        torch.testing.assert_close(found.covariance(Z)[b, s], alone.covariance(Z))
        alone = condition(alone, points(4, 1, seed=3)[b], randn(6, 4, S, 1, seed=1)[f, b, s], noise_of(process, 1)[s])
        torch.testing.assert_close(again.mean(Z)[f, b, s], alone.mean(Z))
        torch.testing.assert_close(again.covariance(Z)[b, s], alone.covariance(Z))


def assert_draws_have_the_moments(process: PosteriorProcess, batch: tuple[int, ...]) -> None:
    draws, Z, base = 6000, points(3, seed=9), mixture_of(process)
    u = draw_weights(process, torch.Size([draws]), torch.Generator().manual_seed(0))
    assert u.shape == (draws, *batch, S, P)
    values = base.constant + (u @ base.rotation.mT @ base.features(Z).mT)
    C = process.covariance(Z).expand(*batch, S, 3, 3)
    sd = C.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((values.mean(0) - process.mean(Z)) / sd).abs().max() < 5 / draws**0.5
    centred = values - process.mean(Z)
    found = torch.einsum("n...i,n...j->...ij", centred, centred) / draws
    relative = (found - C) / (sd.unsqueeze(-1) * sd.unsqueeze(-2))
    assert relative.abs().max() < 0.09


def test_draws_have_the_moments() -> None:
    assert_draws_have_the_moments(mixture(), ())


def test_draws_given_observations_have_the_moments() -> None:
    process = mixture()
    streamed = condition(process, points(2, seed=2), randn(2), noise_of(process, 2))
    assert_draws_have_the_moments(streamed, ())
    fantasies = condition(streamed, points(2, 1, seed=3), randn(3, 2, S, 1), noise_of(process, 1))
    assert_draws_have_the_moments(fantasies, (3, 2))
    assert_draws_have_the_moments(
        fantasies.extended(points(2, 2, seed=4), randn(3, 2, S, 2), noise_of(process, 2)), (3, 2)
    )


def test_draws_are_a_function_of_the_generator() -> None:
    process = mixture()
    for of in (process, condition(process, points(2, seed=2), randn(2), noise_of(process, 2))):
        a, b, c = (draw_weights(of, torch.Size([2]), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_joined_points_are_those_located_together() -> None:
    process, X, Z = mixture(), points(4, 2), points(3, seed=1)
    for of in (process, condition(process, points(2, seed=2), randn(2), noise_of(process, 2))):
        joined, together = of.locate(X).join(of.locate(Z)), of.locate(torch.cat([X, Z.expand(4, 3, 2)], -2))
        torch.testing.assert_close(joined.mean, together.mean)
        torch.testing.assert_close(joined.covariance(joined), together.covariance(together))


def test_a_state_makes_the_mixture_again() -> None:
    process, Z = mixture(), points(4)
    state = process.state()
    again = MixturePosterior(process.features, **state)
    assert torch.equal(again.mean(Z), process.mean(Z))
    assert torch.equal(again.covariance(Z), process.covariance(Z))
    state["means"].zero_()
    assert process.means.abs().sum() > 0


def test_moving_leaves_the_values() -> None:
    process, Z, cpu = mixture(), points(4), torch.device("cpu")
    given = condition(process, points(2, seed=2), randn(2), noise_of(process, 2))
    for of in (process, given):
        moved = of.to(cpu)
        assert isinstance(moved, Conditioned | MixturePosterior)
        assert torch.equal(moved.mean(Z), of.mean(Z))
        assert torch.equal(moved.covariance(Z), of.covariance(Z))


def test_gradients_flow_through_points_and_values() -> None:
    process = mixture()
    X, y, Z = points(1, 2, seed=2).requires_grad_(), randn(1, S, 2).requires_grad_(), points(2).requires_grad_()

    def moments(X: Tensor, y: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
        found = condition(process, X, y, noise_of(process, 2))
        return found.mean(Z), found.covariance(Z)

    assert torch.autograd.gradcheck(moments, (X, y, Z))


@pytest.mark.parametrize(
    ("F", "G"),
    [((7, 2), (3,)), ((3,), (7, 2)), ((4,), (4,)), ((5, 2), (5, 2)), ((2, 9), (2, 9)), ((2, 1, 3), (1, 4, 2))],
    ids=str,
)
def test_covariances_are_the_same_in_every_order_of_products(F: tuple[int, ...], G: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    f, g, v = (torch.rand(*shape, 6, generator=generator, dtype=torch.float64) for shape in (F, G, (5,)))
    dense = torch.einsum("...qp,sp,...rp->...sqr", f, v, g)
    torch.testing.assert_close(_weighted(f, g, v), dense)
