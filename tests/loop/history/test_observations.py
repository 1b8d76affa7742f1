import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.loop.history.observations import ABANDONED, Observations, Pending


def points(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def pending(*values: float) -> Pending:
    made = Pending({}, {})
    made.add(points(*values))
    return made


# ---------------------------------------------------------------- told


@given(sizes=st.lists(st.integers(0, 40), max_size=6), known=st.booleans())
@settings(max_examples=30, deadline=None)
def test_rows_are_kept_in_order_and_what_was_read_stays(sizes: list[int], known: bool) -> None:
    told, whole, before = Observations(2), torch.empty(0, 4, dtype=torch.float64), []
    for size in sizes:
        new = torch.rand(size, 4, dtype=torch.float64)
        told.append(new[:, :2], new[:, 2:3], new[:, 3:] if known else None)
        whole = torch.cat([whole, new])
        before.append((told.first(told.count), len(whole)))
    for (X, Y, Yvar), n in before:
        assert torch.equal(X, whole[:n, :2])
        assert torch.equal(Y, whole[:n, 2:3])
        assert (Yvar is None) != (known and n > 0)
        assert Yvar is None or torch.equal(Yvar, whole[:n, 3:])


# ---------------------------------------------------------------- pending


def test_points_are_told_apart_by_number_in_the_order_they_were_asked() -> None:
    p = pending(0.1, 0.2)
    assert p.add(points(0.3)) == [2]
    p.resolve(p.match(points(0.2), 1e-6))
    assert p.add(points(0.4)) == [3]
    assert p.tensor(1).squeeze(-1).tolist() == [0.1, 0.3, 0.4]


@pytest.mark.parametrize(("told", "expected"), [(0.2 + 9e-4, [1]), (0.2 - 9e-4, [1]), (0.2 + 2e-3, [None])])
def test_a_told_point_within_the_tolerance_is_the_pending_one(told: float, expected: list[int | None]) -> None:
    assert pending(0.1, 0.2).match(points(told), 1e-3) == expected


def test_the_nearest_is_matched_and_each_at_most_once() -> None:
    p = pending(0.1, 0.1004)
    assert p.match(points(0.1003), 1e-3) == [1]
    assert p.match(points(0.1003, 0.1003, 0.1003), 1e-3) == [1, 0, None]


def test_twins_are_matched_one_by_one() -> None:
    p = pending(0.5, 0.5)
    p.resolve(p.match(points(0.5), 0.0))
    assert len(p.points) == 1
    assert p.match(points(0.5, 0.5), 0.0) == [1, None]


def test_a_tolerance_counts_in_every_parameter() -> None:
    p = Pending({}, {})
    p.add(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    assert p.match(torch.tensor([[0.5009, 0.4991]], dtype=torch.float64), 1e-3) == [0]
    assert p.match(torch.tensor([[0.5, 0.502]], dtype=torch.float64), 1e-3) == [None]


def test_matching_without_pending_points_finds_new_ones() -> None:
    assert pending().match(points(0.1, 0.2), 1.0) == [None, None]
    assert pending(0.1).match(points(), 1.0) == []


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_order_and_any_subset_resolves_just_these(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    values = torch.linspace(0, 1, n).tolist()
    subset = data.draw(st.lists(st.sampled_from(range(n)), unique=True))
    p = pending(*values)
    matched = p.match(points(*[values[i] for i in subset]), 1e-9)
    assert matched == subset
    p.resolve(matched)
    assert list(p.points) == [i for i in range(n) if i not in subset]


def test_abandoned_points_are_avoided_but_not_pending_and_the_oldest_are_forgotten() -> None:
    count = ABANDONED + 10
    p = pending(*torch.linspace(0, 1, count + 1).tolist())
    p.abandon(list(range(count)))
    assert p.tensor(1).tolist() == [[1.0]]
    avoided = p.avoided(1)
    assert avoided is not None
    assert len(avoided) == ABANDONED + 1
    assert list(p.abandoned) == list(range(10, count))


def test_nothing_to_avoid_is_none() -> None:
    assert pending().avoided(3) is None
    assert pending().tensor(3).shape == (0, 3)
