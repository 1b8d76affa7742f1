"""Samples of the weights' variances and the noise: when they are drawn, kept and drawn anew."""

from typing import Any

import pytest
import torch
from cases import conditioned, data, eigenfunctions, rand
from torch import Size, Tensor

from bo_scale.gp.conditioning import Conditioned
from bo_scale.gp.weight_space.inference import Hyperparameters, WeightSpaceInference, no_statistics
from bo_scale.gp.weight_space.sampled_inference import SampledInference, WeightSampler

S, N = 5, 16
X, Y = data(N, 2)
D = 0.5 + rand(N, 1, seed=7)
Z = rand(4, 2, seed=9)


def sampler(**options: Any) -> WeightSampler:
    given = {"kind": "exact", "num_samples": S, "num_chains": 3, "num_iterations": 60, "burn": 20, "seed": 3}
    return WeightSampler(**{**given, "known_noise": False, "max_new": 4, **options})


def inference(n: int = 10, **options: Any) -> SampledInference:
    phi = eigenfunctions(torch.tensor([0.5, 0.7]).double())
    known = Hyperparameters(torch.zeros(3).double(), (phi,), torch.tensor([0.05]).double(), torch.zeros(1).double())
    plain = WeightSpaceInference(known, no_statistics(known.features, 1, torch.device("cpu")))
    plain = plain.observe(X[:n], Y[:n], D[:n])
    return SampledInference.of(plain, sampler(**options), None)


def noise_of(found: SampledInference) -> Tensor:
    return found.drawn.mixture.log_noise.exp()


@pytest.mark.parametrize("n", [0, 1, 10])
def test_every_sample_is_the_dense_gp_of_its_variances_and_noise(n: int) -> None:
    found = inference(n)
    features: Any = found.hyperparameters.features[0]
    mixture, (process,) = found.drawn.mixture, found.processes
    assert process.mean(Z).shape == (S, 4)
    rotated = mixture.rotation
    log_weights = found.drawn.log_weights
    assert log_weights is not None
    assert log_weights.shape[1] <= n
    rho = torch.ones(S, features.num_features).double()
    rho[:, : log_weights.shape[1]] = log_weights.exp()
    for s in range(S):
        A, B = features(X[:n]) @ rotated, features(Z) @ rotated
        K = (A * rho[s]) @ A.mT + noise_of(found)[s] * torch.diag(D[:n, 0])
        gain = torch.linalg.solve(K, (A * rho[s]) @ B.mT).mT
        torch.testing.assert_close(process.mean(Z)[s], gain @ Y[:n, 0], rtol=1e-6, atol=1e-8)
        expected = (B * rho[s]) @ B.mT - gain @ (A * rho[s]) @ B.mT
        torch.testing.assert_close(process.covariance(Z)[s], expected, rtol=1e-6, atol=1e-8)


def test_samples_are_drawn_when_a_posterior_is_needed_and_by_their_seed_alone() -> None:
    found = inference()
    assert found.known_samples is None
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = noise_of(found)
    assert torch.equal(torch.get_rng_state(), state)
    assert found.known_samples is found.drawn
    torch.manual_seed(1)
    assert torch.equal(noise_of(inference()), first)
    assert not torch.equal(noise_of(inference(seed=4)), first)
    assert found.samples_shape == Size([S])
    assert found.drawn.count == 10
    assert found.drawn.diagnostics is not None
    assert (found.drawn.diagnostics.sampler, found.drawn.diagnostics.effective_size) == ("exact", S)


def test_a_few_more_rows_condition_the_samples_and_more_are_sampled_with() -> None:
    found = inference()
    unseen = found.observe(X[10:12], Y[10:12], D[10:12])
    assert unseen.known_samples is None
    _ = found.processes
    few = found.observe(X[10:12], Y[10:12], D[10:12]).observe(X[12:14], Y[12:14], D[12:14])
    (process,) = few.processes
    assert isinstance(process, Conditioned)
    assert few.drawn is found.drawn
    assert few.count == 14
    mean, covariance = conditioned(
        found.processes[0], X[10:14], Y[10:14, 0], noise_of(found).unsqueeze(-1) * D[10:14, 0], Z
    )
    torch.testing.assert_close(process.mean(Z), mean)
    torch.testing.assert_close(process.covariance(Z), covariance)
    many = few.observe(X[14:15], Y[14:15], D[14:15])
    assert many.known_samples is None
    torch.testing.assert_close(many.processes[0].mean(Z), inference(15).processes[0].mean(Z), rtol=1e-5, atol=1e-6)


def test_noise_is_every_samples_own_unless_it_is_known() -> None:
    found = inference()
    torch.testing.assert_close(found.sampled_noise, noise_of(found))
    assert found.noise_of(0, torch.ones(1).double(), X[:3]).shape == (S, 3)
    expected = noise_of(found).unsqueeze(-1) * D[:3, 0]
    torch.testing.assert_close(found.noise_of(0, D[:3, 0], X[:3]), expected)
    known = inference(known_noise=True)
    assert known.sampled_noise is None
    assert torch.equal(known.noise_of(0, D[:3, 0], X[:3]), D[:3, 0].expand(S, 3))


def test_other_data_need_other_samples_and_settled_ones_keep_theirs() -> None:
    found = inference()
    _ = found.processes
    less = found.without(X[8:10], Y[8:10], D[8:10])
    assert isinstance(less, SampledInference)
    assert less.known_samples is None
    torch.testing.assert_close(less.processes[0].mean(Z), inference(8).processes[0].mean(Z), rtol=1e-5, atol=1e-6)
    settled = found.settled()
    assert settled.known_samples is found.drawn
    assert torch.equal(settled.processes[0].mean(Z), found.processes[0].mean(Z))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_saved_inference_goes_on_to_the_last_bit(streamed: bool) -> None:
    found = inference()
    _ = found.processes
    rows = 12 if streamed else 10
    if streamed:
        found = found.observe(X[10:12], Y[10:12], D[10:12])
    state = found.state()
    again = inference(rows).with_samples(state)
    assert again.drawn.diagnostics == found.drawn.diagnostics
    assert torch.equal(again.drawn.log_weights, found.drawn.log_weights)
    assert again.drawn.count == 10
    for one, other in ((again, found), tuple(x.observe(X[12:13], Y[12:13], D[12:13]) for x in (again, found))):
        assert torch.equal(one.processes[0].mean(Z), other.processes[0].mean(Z))
        assert torch.equal(one.processes[0].covariance(Z), other.processes[0].covariance(Z))


def test_a_state_from_before_variances_and_diagnostics_were_kept_is_taken() -> None:
    state = inference().state()
    old = {name: value for name, value in state.items() if name != "log_weights"} | {"diagnostics": None}
    again = inference().with_samples(old)
    assert again.drawn.log_weights is again.drawn.diagnostics is None
    assert torch.equal(again.processes[0].mean(Z), inference().processes[0].mean(Z))


@pytest.mark.filterwarnings("ignore::bo_scale.errors.SamplingWarning")  # of chains for speed
@pytest.mark.parametrize("known", [False, True])
def test_chains_give_as_many_samples_and_say_how_they_mixed(known: bool) -> None:
    found = inference(kind="langevin", known_noise=known)
    drawn = found.drawn
    assert drawn.diagnostics is not None
    assert drawn.mixture.means.shape[0] == len(drawn.log_weights) == S
    assert drawn.diagnostics.iterations == 60
    assert 0 < drawn.diagnostics.acceptance <= 1
    assert (drawn.diagnostics.r_hat_noise == 1.0) == known
    assert bool((drawn.mixture.log_noise == 0).all()) == known
