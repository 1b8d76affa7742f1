from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from cases import WEIGHT_SPACE, data

from bo_scale import WISKI
from bo_scale.errors import InvalidDataError
from bo_scale.models.shell.removal import without_rows, without_values

ALL = pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)


@ALL
def test_rows_are_removed_by_number(d: int, build: Any) -> None:
    X, Y = data(14, d)
    model = build(X, Y, outcome_transform=None).eval()
    less = without_rows(model, [-1, 3], None, None, None)
    kept = [k for k in range(13) if k != 3]
    assert torch.equal(less.rows.X, X[kept])
    assert less.num_observations == 12
    assert model.num_observations == 14
    expected = build(X[kept], Y[kept], outcome_transform=None).eval()
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(less.posterior(X).mean, expected.posterior(X).mean, rtol=1e-6, atol=1e-8)


def test_values_are_removed_from_statistics() -> None:
    X, Y = data(14, 2)
    options: dict[str, Any] = {"grid_size": 7, "outcome_transform": None}
    model = WISKI(X, Y, keep_data=False, **options).eval()
    less = without_values(model, None, X[:2], Y[:2], None)
    expected = WISKI(X[2:], Y[2:], **options).eval()
    torch.testing.assert_close(less.posterior(X).mean, expected.posterior(X).mean, rtol=1e-6, atol=1e-8)


def test_the_wrong_way_to_name_an_observation_is_refused() -> None:
    X, Y = data(14, 2)
    kept, summed = (WISKI(X, Y, grid_size=7, keep_data=keep) for keep in (True, False))
    with pytest.raises(InvalidDataError, match="rows: this model keeps its data"):
        without_rows(kept, None, X, Y, None)
    with pytest.raises(InvalidDataError, match="X, Y: this model keeps no rows"):
        without_values(summed, [0], None, None, None)
    with pytest.raises(InvalidDataError, match="X, Y: shapes"):
        without_values(summed, None, X[:2], Y[:1], None)
    with pytest.raises(UnsupportedError, match="decay"):
        without_values(WISKI(X, Y, grid_size=7, keep_data=False, decay=0.9), None, X[:1], Y[:1], None)
