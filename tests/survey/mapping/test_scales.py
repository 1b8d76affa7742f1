import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping.scales import Amounts, Identity, Log, Logit, Scale, scale_of

ALL = [Identity(), Log(), Logit(), Logit(-2.0, 7.0)]


def some_values(scale: Scale) -> np.ndarray:
    return scale.backward(np.linspace(-3.0, 3.0, 13))


@pytest.mark.parametrize("scale", ALL)
def test_the_way_back_is_the_inverse(scale: Scale) -> None:
    z = np.linspace(-3.0, 3.0, 13)
    np.testing.assert_allclose(scale.forward(scale.backward(z)), z, rtol=0, atol=1e-12)
    assert (np.diff(scale.backward(z)) > 0).all()
    assert scale.usable(scale.backward(z)).all()


@pytest.mark.parametrize("scale", ALL)
def test_the_slope_is_the_derivative_and_gives_the_variance(scale: Scale) -> None:
    y, h = some_values(scale), 1e-6
    difference = (scale.forward(y + h * y.std()) - scale.forward(y - h * y.std())) / (2 * h * y.std())
    np.testing.assert_allclose(scale.slope(y), difference, rtol=1e-5)
    np.testing.assert_allclose(scale.variance(y, 0.3 * np.ones_like(y)), (0.3 * difference) ** 2, rtol=1e-5)


@pytest.mark.parametrize("scale", ALL)
def test_the_variance_is_that_of_simulated_measurements(scale: Scale) -> None:
    y = some_values(scale)[[4, 6, 8]]
    sd = 0.02 / scale.slope(y)
    measured = y + sd * np.random.default_rng(0).normal(size=(40_000, 3))
    np.testing.assert_allclose(scale.forward(measured).var(0), scale.variance(y, sd), rtol=0.03)


@pytest.mark.parametrize("scale", ALL)
@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (-1.3, 0.4), (2.0, 2.0), (4.0, 0.7), (-0.5, 0.0)])
def test_moments_are_those_of_quadrature(scale: Scale, mean: float, sd: float) -> None:
    def expectation(power: int, middle: float) -> float:
        if sd == 0:
            return float((scale.backward(np.array([mean]))[0] - middle) ** power)
        return quad(
            lambda u: (scale.backward(np.array([mean + sd * u]))[0] - middle) ** power * stats.norm.pdf(u),
            -14,
            14,
            epsabs=1e-12,
            epsrel=1e-11,
            limit=400,
        )[0]

    first = expectation(1, 0.0)
    second = expectation(2, first)
    found = scale.moments(np.array([mean, mean]), np.array([sd, sd]))
    np.testing.assert_allclose(found[0], first, rtol=2e-6)
    np.testing.assert_allclose(found[1], second**0.5, rtol=2e-5, atol=1e-12)


def test_small_deviations_far_from_zero_are_kept() -> None:
    mean, sd = Logit(1000.0, 1001.0).moments(np.array([1.0]), np.array([1e-7]))
    p = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(sd, 1e-7 * p * (1 - p), rtol=1e-3)  # of 1000, an ulp is 1e-13
    assert 1000 < mean[0] < 1001
    assert np.isfinite(Log().moments(np.array([3.0]), np.array([1e-9]))[1] / 1e-9).all()
    np.testing.assert_allclose(Log().moments(np.array([3.0]), np.array([1e-9]))[1], 1e-9 * np.exp(3.0), rtol=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(ALL), st.floats(-3, 3), st.floats(0.05, 3), st.floats(-4, 4))
def test_exceedance_is_the_share_of_draws_above(scale: Scale, mean: float, sd: float, at: float) -> None:
    threshold = float(scale.backward(np.array([at]))[0])
    found = scale.exceedance(np.array([mean]), np.array([sd]), threshold)[0]
    draws = scale.backward(mean + sd * stats.norm.ppf((np.arange(2000) + 0.5) / 2000))
    assert abs(found - (draws > threshold).mean()) <= 1e-3


def test_exceedance_without_doubt_is_certain() -> None:
    found = Identity().exceedance(np.array([1.0, 3.0, 2.0]), np.zeros(3), 2.0)
    np.testing.assert_array_equal(found, [0.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("scale", "bad", "word"),
    [
        (Identity(), [np.nan, np.inf, -np.inf], "finite"),
        (Log(), [0.0, -1.0, np.nan, np.inf], "positive"),
        (Logit(), [0.0, 1.0, -0.1, 1.1, np.nan], "above 0 and below 1"),
        (Logit(2.0, 5.0), [2.0, 5.0, 1.0], "above 2 and below 5"),
    ],
)
def test_values_without_an_image_are_told(scale: Scale, bad: list[float], word: str) -> None:
    assert not scale.usable(np.array(bad)).any()
    assert word in scale.requirement()
    with pytest.raises(SurveyError, match=word):
        scale.exceedance(np.zeros(2), np.ones(2), bad[0])


def test_scales_by_name() -> None:
    for name, kind in {"none": Identity, "log": Log, "log1p": Log, "two-part": Amounts, "logit": Logit}.items():
        assert type(scale_of(name)) is kind
        assert scale_of(name).name == name
    assert scale_of("logit", -1.0, 4.0) == Logit(-1.0, 4.0)
    with pytest.raises(SurveyError, match="choose one of none, log, log1p, two-part, logit"):
        scale_of("sqrt")
    for lower, upper in ((1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)):
        with pytest.raises(SurveyError, match="must be below"):
            scale_of("logit", lower, upper)
