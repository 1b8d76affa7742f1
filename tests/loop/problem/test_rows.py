from typing import Any

import numpy as np
import pytest
import torch

from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop import Space

NAMED = Space.of({"x": (-1.0, 2.0), "y": (10.0, 30.0)})
PLAIN = Space.of([(-1.0, 2.0), (10.0, 30.0)])


@pytest.mark.parametrize(
    "points",
    [
        {"y": 20.0, "x": 0.5},
        [{"x": 0.5, "y": 20.0}],
        [0.5, 20.0],
        [[0.5, 20.0]],
        np.array([[0.5, 20.0]]),
        torch.tensor([[0.5, 20.0]]),
        torch.tensor([0.5, 20.0]),
    ],
)
def test_every_form_of_a_point_is_the_same_row(points: Any) -> None:
    torch.testing.assert_close(NAMED.encode(points), torch.tensor([[0.5, 0.5]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("points", "kind", "message"),
    [
        ([[0.0, 20.0], [3.0, 20.0]], SpaceError, r"rows \[1\] lie outside.*row 1 is \[3\.0, 20\.0\]"),
        ([[0.0, 9.9]], SpaceError, r"rows \[0\]"),
        ([[0.0, 20.0], [float("nan"), 20.0], [0.0, float("inf")]], InvalidDataError, r"NaN or inf in rows \[1, 2\]"),
        ([[0.0, 20.0, 1.0]], InvalidDataError, r"\(1, 3\); expected n × 2"),
        ([0.0, 20.0, 1.0], InvalidDataError, "expected n × 2"),
        (torch.zeros(1, 1, 2), InvalidDataError, "expected n × 2"),
        ([{"x": 0.0}], SpaceError, r"row 0 lacks the parameters \['y'\]"),
        ([{"x": 0.0, "y": 20.0}, {"x": 0.0, "y": 20.0, "z": 1.0}], SpaceError, r"row 1 .*unknown parameters \['z'\]"),
    ],
)
def test_points_that_do_not_fit_are_refused_by_row(points: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        NAMED.encode(points)


def test_dictionaries_need_names() -> None:
    with pytest.raises(SpaceError, match="no names"):
        PLAIN.encode([{"x": 0.0, "y": 20.0}])


def test_many_bad_rows_are_not_all_listed() -> None:
    with pytest.raises(SpaceError, match=r"rows \[0, 1, 2, 3, 4\]… lie"):
        PLAIN.encode(torch.full((9, 2), 99.0))
