"""Predictions in the user's units."""

import pytest
import torch
from botorch.models import SingleTaskGP
from insights import MAXIMISED, MINIMISED, SPACE, TWO, data, two

from bo_scale import WISKI, GRIEFBayes
from bo_scale.errors import InvalidArgumentError, SpaceError
from bo_scale.loop import Space
from bo_scale.loop.insight.predict import moments, predict

POINTS = [{"x": 0.0, "y": 12.0}, {"x": 3.0, "y": 20.0}]


def test_minimised_values_have_their_sign_and_intervals_their_order() -> None:
    X, Y = data()
    model = SingleTaskGP(X, Y).eval()
    posterior = model.posterior(SPACE.encode(POINTS))
    for outcomes, sign in ((MINIMISED, -1), (MAXIMISED, 1)):
        first, _ = predict(SPACE, outcomes, model, POINTS)
        assert first.x == POINTS[0]
        assert first.mean == pytest.approx(sign * posterior.mean[0].item())
        assert first.sd == pytest.approx(posterior.variance[0].sqrt().item())
        assert first.upper == pytest.approx(first.mean + 1.959964 * first.sd)
        assert first.lower == pytest.approx(first.mean - 1.959964 * first.sd)
        assert first.observation_sd is None
        assert first.outcomes == {}


def test_intervals_of_observations_include_the_noise_and_have_their_probability() -> None:
    X, Y = data()
    model = WISKI(X, Y, grid_size=8).eval()
    (one,) = predict(SPACE, MAXIMISED, model, POINTS[:1], observation=True, probability=0.5)
    noisy = model.posterior(SPACE.encode(POINTS[:1]), observation_noise=True).variance.sqrt().item()
    assert one.observation_sd == pytest.approx(noisy)
    assert one.observation_sd > one.sd
    assert one.upper - one.lower == pytest.approx(2 * 0.6744898 * noisy)


def test_several_outcomes_are_found_by_name() -> None:
    X, Y = data()
    model = two(SingleTaskGP, X, torch.cat([Y, 2 * Y + 1], -1))
    one = predict(SPACE, TWO, model, POINTS[0])[0]
    assert list(one.outcomes) == ["loss", "gain"]
    assert (one.mean, one.sd) == (one.outcomes["loss"].mean, one.outcomes["loss"].sd)
    means = model.posterior(SPACE.encode(POINTS[:1])).mean[0].tolist()
    assert [each.mean for each in one.outcomes.values()] == pytest.approx([-means[0], means[1]])


@pytest.mark.parametrize("kind", [SingleTaskGP, WISKI])
def test_many_points_are_predicted_as_few_are(kind: type) -> None:
    X, Y = data()
    model = kind(X, Y).eval()
    plain = Space.of([(0.0, 1.0)] * 2)
    points = torch.rand(5000, 2).double()
    every = predict(plain, MAXIMISED, model, points)
    assert len(every) == 5000
    for row in (0, 4321):
        (one,) = predict(plain, MAXIMISED, model, points[row])
        assert torch.equal(one.x, points[row])
        assert (every[row].mean, every[row].sd) == pytest.approx((one.mean, one.sd), rel=1e-6)


def test_ensembles_predict_by_their_mixture() -> None:
    X, Y = data()
    model = GRIEFBayes(X, Y, num_eigenfunctions=16, num_samples=3).eval()
    mean, variance = moments(model, X[:4])
    posterior = model.posterior(X[:4])
    torch.testing.assert_close(mean, posterior.mixture_mean)
    torch.testing.assert_close(variance, posterior.mixture_variance)


def test_what_cannot_be_predicted_is_refused() -> None:
    X, Y = data()
    model = SingleTaskGP(X, Y)
    with pytest.raises(InvalidArgumentError, match="probability=95"):
        predict(SPACE, MAXIMISED, model, POINTS, probability=95)
    with pytest.raises(SpaceError, match="outside the space"):
        predict(SPACE, MAXIMISED, model, {"x": 4.0, "y": 12.0})
