"""Places that share their neighbours have the predictions that each has alone, to rounding."""

from typing import Any

import numpy as np
import pytest

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.survey.mapping import nearest as module
from bo_scale.survey.mapping.knots import Knots
from bo_scale.survey.mapping.local import around, searched
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.together import around_all, weights_of

GIVEN = Nearest([0.5, 1.5], [150.0, 900.0], [0.4, 3.0], 5.0, 0.02)
TIMED = Nearest([0.5, 1.5], [150.0, 900.0], [0.4, 3.0], 5.0, 0.02, times=[20.0, 200.0], pace=9.0, lasting=1.5)
TREND = Nearest(
    [0.5, 1.5], [150.0, 900.0], [0.4, 3.0], 5.0, 0.02, coefficients=[0.3, -0.7], spread=[[0.1, 0.02], [0.02, 0.3]]
)


def sites_of(count: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sites around a hole, values, and known errors."""
    rng = np.random.default_rng(0)
    xy = rng.random((count, 2)) * [4000.0, 2000.0]
    xy = xy[np.hypot(*(xy - [1700.0, 1100.0]).T) > 300]
    return xy, rng.normal(5, 1, len(xy)), rng.uniform(0, 0.2, len(xy))


def square(corner: tuple[float, float], size: float = 5.0, side: int = 16) -> np.ndarray:
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    return np.asarray(corner) + size * np.stack([x.ravel(), y.ravel()], -1)


def both(given: Nearest, places: np.ndarray, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Predictions of places together and alone."""
    xy, z, known = sites_of()
    if given.times is not None:
        xy = np.c_[xy, np.random.default_rng(1).uniform(0, 100, len(xy))]
        places = np.c_[places, np.full(len(places), 60.0)]
    together = given.forecast(xy, z, known, places, False, **options)
    monkeypatch.setattr(module, "FEWEST", 10**6)
    return together, given.forecast(xy, z, known, places, False, **options)


@pytest.mark.parametrize(
    ("case", "corner"),
    [
        ("plain", (-300.0, 1900.0)),
        ("in time", (700.0, 300.0)),
        ("trend", (1650.0, 1050.0)),
        ("knots", (700.0, 300.0)),
        ("knots and trend", (1650.0, 1050.0)),
    ],
)
def test_places_together_are_as_they_are_alone(
    case: str, corner: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, places, options = GIVEN, square(corner), dict[str, Any]()
    xy, z, known = sites_of()
    if case == "in time":
        given = TIMED
    if "trend" in case:
        given = TREND
        options["trend"] = np.sin(xy[:, :1] / 300), np.sin(places[:, :1] / 300)
    if "knots" in case:
        options["knots"] = given.knots(xy, z, known, options["trend"][0] if "trend" in case else None)
        assert isinstance(options["knots"], Knots)
    calls, whole = list[bool](), Nearest._together
    monkeypatch.setattr(Nearest, "_together", lambda *a: (calls.append((r := whole(*a)) is not None), r)[1])
    one, other = both(given, places, monkeypatch, **options)
    assert calls == [True]
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_places_that_share_little_are_predicted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    places = square((0.0, 0.0), 250.0)
    assert around_all(searched(sites_of()[0]), places) is None
    one, other = both(GIVEN, places, monkeypatch)
    np.testing.assert_array_equal(one, other)


def test_shares_are_those_of_each_place() -> None:
    trees, places = searched(sites_of()[0]), square((700.0, 300.0))
    found = around_all(trees, places)
    assert found is not None
    every, shares, reaches = found
    near, share, reach = around(trees, places)
    for row in range(0, len(places), 37):
        for site, own, at in zip(near[row], share[row], reach[row], strict=True):
            if own > 1e-6:
                place = int(np.flatnonzero(every == site)[0])
                assert shares[row, place] == pytest.approx(own, rel=1e-9)
                assert own == 1 or reaches[row, place] == pytest.approx(at, rel=1e-12)
        assert (shares[row] > 0).sum() <= near.shape[1]


def test_what_has_no_cholesky_factor_is_refused() -> None:
    share = np.ones((3, 2))
    with pytest.raises(NotPositiveDefiniteError):
        weights_of(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((3, 2)), share, 0 * share)
    with pytest.raises(NotPositiveDefiniteError):
        weights_of(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((3, 2)), 0.5 * share, 0 * share)
