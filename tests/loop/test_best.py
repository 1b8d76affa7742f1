import pytest
import torch
from loops import cheap, f, tell

from bo_scale.errors import (
    InvalidDataError,
)

# ---------------------------------------------------------------- the best


def test_the_best_by_the_model_and_the_best_observed() -> None:
    grid = torch.cartesian_prod(torch.linspace(0, 1, 7), torch.linspace(-2, 3, 7)).double()
    loop = cheap()
    loop.tell(torch.cat([grid, grid[:1]]), torch.cat([f(grid), torch.tensor([9.0])]))  # a lucky outlier in a corner
    best = loop.best()
    means = loop.model.posterior(loop.space.encode(grid)).mean.squeeze(-1)
    assert torch.equal(best.x, grid[means.argmax()])
    assert best.mean == pytest.approx(means.max().item(), rel=1e-6)
    assert best.sd > 0
    assert torch.equal(best.observed_x, grid[0])
    assert best.observed_y == 9.0


def test_the_best_before_anything_was_told_is_refused() -> None:
    with pytest.raises(InvalidDataError, match="nothing has been told"):
        cheap().best()


def test_the_best_is_known_before_the_first_model_is_due() -> None:
    loop, calm = cheap(num_initial=6), cheap(num_initial=6)
    for _ in range(5):
        X = calm.ask(2)
        assert torch.equal(loop.ask(2), X)
        tell(calm, X)
        tell(loop, X)
        loop.best()
