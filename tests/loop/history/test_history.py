from pathlib import Path

import pytest
import torch
from loops import asked, cheap, events, tell

from bo_scale.errors import (
    InvalidDataError,
)
from bo_scale.loop import Integer


def test_abandoned_points_are_not_pending_and_not_asked_again() -> None:
    loop = cheap()
    asked(loop, 3)
    first = loop.ask(1)
    loop.abandon(first)
    assert len(loop.pending) == 0
    again = loop.ask(1)
    assert (loop.space.encode(first) - loop.space.encode(again)).abs().max() > 1e-3
    with pytest.raises(InvalidDataError, match=r"rows \[0\] match no pending point"):
        loop.abandon(first)


def test_abandoning_a_stranger_abandons_nothing(tmp_path: Path) -> None:
    loop = cheap(tmp_path)
    X = loop.ask(3)
    before = events(tmp_path)
    with pytest.raises(InvalidDataError, match=r"rows \[1\]"):
        loop.abandon(torch.stack([X[0], 0.5 * (X[0] + X[1]), X[2]]))
    assert torch.equal(loop.pending, X)
    assert events(tmp_path) == before


def test_pending_integers_of_a_wide_range_are_matched_exactly() -> None:
    loop = cheap(space={"n": Integer(1, 10_000_000), "x": (0.0, 1.0)})
    (point,) = loop.ask(1)
    other = {**point, "n": point["n"] + 5 if point["n"] < 9_999_995 else point["n"] - 5}
    loop.tell([other], [1.0])
    assert loop.pending == [point]
    assert loop.observations[0] == [other]


def test_observations_are_ones_own(tmp_path: Path) -> None:
    loop = cheap()
    loop.tell(loop.ask(2), [1.0, 2.0], [0.1, 0.2])
    for part in loop.observations:
        part *= 7
    assert loop.observations[1].tolist() == [1.0, 2.0]
    assert loop.observations[2].tolist() == [0.1, 0.2]


def test_abandoning_nothing_is_no_event(tmp_path: Path) -> None:
    loop = cheap(tmp_path, space={"x": (0.0, 1.0), "y": (0.0, 1.0)})
    before = events(tmp_path)
    loop.abandon(loop.pending)
    assert events(tmp_path) == before


# ---------------------------------------------------------------- telling


def test_tells_in_any_order_and_in_part_are_the_same_knowledge() -> None:
    """Points and model agree; what was told when may not matter beyond rounding."""
    loop, means = cheap(), []
    X = loop.ask(6)
    for order in ([[0, 1, 2, 3, 4, 5]], [[5, 2], [0], [4, 3, 1]]):
        other = cheap()
        other.ask(6)
        for part in order:
            tell(other, X[part])
        assert len(other.pending) == 0
        means.append(other.best().mean)
    assert means[0] == pytest.approx(means[1], rel=1e-6)


def test_pending_points_are_matched_within_the_tolerance_and_strangers_are_welcome() -> None:
    loop = cheap(match_tolerance=1e-3)
    X = loop.ask(4)
    loop.tell((1000 * X[1:3]).round() / 1000, [0.0, 1.0])
    assert torch.equal(loop.pending, X[[0, 3]])
    loop.tell([[0.123, 0.456]], [2.0])
    assert torch.equal(loop.pending, X[[0, 3]])
    loop.tell(X[0], 1.0)
    assert torch.equal(loop.pending, X[[3]])
    assert loop.num_observations == 4


def test_default_tolerance_forgives_the_rounding_of_float32_and_of_seven_digits() -> None:
    loop = cheap(space=[(0.0, 1.0), (0.0, 3.0)], num_initial=100)
    X = loop.ask(30)
    loop.tell(X[:15].float(), torch.zeros(15))
    loop.tell([[float(f"{v:.7f}") for v in x] for x in X[15:].tolist()], [0.0] * 15)
    assert len(loop.pending) == 0


def test_a_point_told_twice_counts_twice() -> None:
    loop = cheap()
    X = loop.ask(5)
    tell(loop, X)
    tell(loop, X[:1])
    tell(loop, X[:1])
    assert loop.num_observations == 7
    assert loop.ask(1).shape == (1, 2)
    assert torch.isfinite(torch.tensor([loop.best().mean, loop.best().sd])).all()


def test_observations_are_what_was_told_and_tell_another_loop_the_same(tmp_path: Path) -> None:
    with cheap(tmp_path, objective="minimize") as loop:
        assert loop.observations[0].shape == (0, 2)
        asked = loop.ask(3)
        X = torch.stack([asked[2], torch.tensor([0.25, 0.5], dtype=torch.float64), asked[0]])
        loop.tell(X, [3.0, 1.0, 2.0], [0.1, 0.2, 0.3])
        loop.abandon(asked[1])
    with cheap(tmp_path, objective="minimize") as loop:
        points, values, variances = loop.observations
        assert torch.equal(points, X)
        assert values.tolist() == [3.0, 1.0, 2.0]
        assert variances.tolist() == [0.1, 0.2, 0.3]
    other = cheap(objective="minimize")
    other.tell(*loop.observations)
    assert torch.equal(other.observations[0], X)
