"""The soak test in a few seconds: nothing is lost or told twice, and what is counted is what happens."""

import math
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soak_worker import SHARES, answers, branin, drawn, key

MEDIANS = {"loop": (1.5, 0.1), "Ax": (2.0, 0.2)}
"""Seconds, and the median of an evaluation."""


@pytest.mark.parametrize("kind", soak.KINDS)
def test_nothing_is_lost_or_told_twice(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "TRIALS_AT_ONCE", 4)
    found = soak.soak(kind, MEDIANS[kind][0], kills=2, median=MEDIANS[kind][1])
    assert found["kills"] == 2
    assert found["asked"] >= found["finished"] + found["failed"]
    assert (found["lost"], found["told twice"], found["wrong"]) == (0, 0, 0)
    assert 1 <= len(found["lives"]) <= 3  # one that is killed at once has noted nothing
    result = {"units": {kind: {**found, "grown": 0.5}}}
    assert f"| {kind} | 2 |" in soak.table(result)
    assert "0 lost, 0 told twice, 0 wrong" in soak.headline(result)[0][1]


def test_fates_have_their_shares_and_depend_on_the_point_alone() -> None:
    points = [{"x": i / 7, "y": i / 3} for i in range(4000)]
    counts = Counter(drawn(point)[0] for point in points)
    for fate, share in SHARES.items():
        assert abs(counts[fate] / len(points) - share) < 0.015
    assert drawn({"y": 1.0, "x": 2.0}) == drawn({"x": 2, "y": 1})
    assert key({"x": 0.1, "y": 0.2}) != key({"x": 0.1, "y": 0.2 + 1e-16})


def test_answers_are_as_the_fate_says() -> None:
    by_fate = {drawn(point)[0]: point for point in ({"x": i / 7, "y": i / 3} for i in range(400))}
    assert answers(by_fate["dies"], 1.0) == []
    assert len(answers(by_fate["twice"], 1.0)) == 2
    assert math.isnan(answers(by_fate["nan"], 1.0)[0][4])
    ((_, _, _, point, value),) = answers(by_fate["answers"], 1.0)
    assert value == branin(point)
    assert branin({"x": math.pi, "y": 2.275}) == pytest.approx(0.397887, abs=1e-6)


def test_a_controller_that_fails_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path, median: float, until: float) -> None:
        raise ValueError("of the test")

    monkeypatch.setitem(soak.KINDS, "loop", (fails, soak.check_loop))
    with pytest.raises(RuntimeError, match="the controller failed: exit 1"):
        soak.soak("loop", 0.5, kills=0, median=0.1)
