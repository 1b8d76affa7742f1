from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from cases import WEIGHT_SPACE, data

from bo_scale import WISKI, CaGP, load_model, save_model
from bo_scale.errors import InvalidDataError

N = 18


def streamed(d: int, build: Callable[..., Any]) -> Any:
    """A model of 12 rows that has observed 6 more, one by one."""
    X, Y = data(N, d)
    model = build(X[:12], Y[:12], outcome_transform=None).eval()
    model.posterior(X[:1])
    for i in range(12, N):
        model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    return model


@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_rows_in_another_order_are_the_same_rows(d: int, build: Callable[..., Any], tmp_path: Path) -> None:
    """Saved models say how many of the last rows are not summed yet."""
    model, Z = streamed(d, build), data(4, d, seed=5)[0]
    before, order = model.posterior(Z), torch.randperm(N, generator=torch.Generator().manual_seed(0))
    model.reorder_rows(order)
    assert torch.equal(model.rows.X, data(N, d)[0][order])
    save_model(model, tmp_path / "model.pt")
    again = load_model(build(*data(12, d), outcome_transform=None), tmp_path / "model.pt")
    anew = build(*(values[order] for values in data(N, d)), outcome_transform=None)
    anew.load_state_dict(model.state_dict())
    for found in (model, again):
        torch.testing.assert_close(found.posterior(Z).mean, before.mean)
        for one, other in zip(found.statistics, anew.eval().statistics, strict=True):
            assert one.count == other.count == N
            torch.testing.assert_close(one.gram.to_dense(), other.gram.to_dense())
            torch.testing.assert_close(one.recenter(other.center).projection, other.projection)


def test_an_order_that_is_none_or_that_would_matter_is_refused() -> None:
    X, Y = data(N, 1)
    model = WISKI(X, Y, grid_size=8)
    for order in ([0, 1], [0] * N, [*range(1, N + 1)]):
        with pytest.raises(InvalidDataError):
            model.reorder_rows(torch.tensor(order))
    for other in (WISKI(X, Y, grid_size=8, keep_data=False), WISKI(X, Y, grid_size=8, decay=0.9)):
        with pytest.raises(UnsupportedError, match="reorder_rows"):
            other.reorder_rows(torch.arange(N))
    assert not hasattr(CaGP, "reorder_rows")
