"""Thompson batches against dense evaluation of the very functions drawn, and the climbing they rest on."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.sampling.pathwise import draw_matheron_paths
from cases import data
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from bo_scale import WISKI
from bo_scale.decisions import thompson
from bo_scale.decisions.candidates import Admissible, Lattice
from bo_scale.decisions.thompson import thompson_batch
from bo_scale.errors import InvalidDataError

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
FAST = {"num_restarts": 2, "raw_samples": 256}


def model(d: int = 2, kind: str = "WISKI", length: float = 0.3) -> Any:
    """A posterior after a few noisy observations, its functions with several peaks."""
    X, Y = data(12, d)
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.05
    if kind == "WISKI":
        made: Any = WISKI(X, Y, grid_size={1: 20, 2: 12, 3: 9}[d], likelihood=likelihood)
    else:
        made = SingleTaskGP(X, Y, likelihood=likelihood)
    made.covar_module.lengthscale = length
    return made.eval()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Tensor], Tensor]]:
    """The functions that a batch draws, one collection a round."""
    collections: list[Callable[[Tensor], Tensor]] = []

    def draw(m: Any, shape: torch.Size) -> Any:
        collections.append(draw_matheron_paths(m, shape))
        return collections[-1]

    monkeypatch.setattr(thompson, "draw_matheron_paths", draw)
    return collections


def apart(X: Tensor, bounds: Tensor = UNIT) -> float:
    """The smallest distance between points, as a share of the range, in their most different coordinate."""
    return torch.pdist((X - bounds[0]) / (bounds[1] - bounds[0]), p=math.inf).min().item()


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("kind", ["WISKI", "SingleTaskGP"])
@pytest.mark.parametrize(("d", "points"), [(1, 2001), (2, 81), (3, 21)])
def test_every_point_is_nearly_the_maximum_of_its_function(
    d: int, points: int, kind: str, drawn: list[Callable[[Tensor], Tensor]]
) -> None:
    bounds = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    X = thompson_batch(model(d, kind), bounds, 8, distance=1e-9)
    assert X.shape == (8, d)
    axis = torch.linspace(0, 1, points, dtype=torch.float64)
    dense = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
    with torch.no_grad():
        values = drawn[0](dense.unsqueeze(0)).reshape(8, -1)
        reached = drawn[0](X.unsqueeze(1)).reshape(8)
    lost = (values.max(-1).values - reached) / values.std(-1)
    assert (lost < 0.02).sum() >= 7  # one peak of eight may be missed


def test_bounds_may_be_any_box() -> None:
    bounds = torch.tensor([[-5.0, 100.0], [20.0, 101.0]], dtype=torch.float64)
    X, Y = data(12, 2)
    X = bounds[0] + (bounds[1] - bounds[0]) * X
    m = WISKI(X, Y, bounds=bounds, grid_size=10, input_transform=Normalize(2, bounds=bounds)).eval()
    inner = torch.tensor([[0.0, 100.2], [10.0, 100.7]], dtype=torch.float64)
    found = thompson_batch(m, inner, 20, **FAST)
    assert ((found >= inner[0]) & (found <= inner[1])).all()
    assert apart(found, inner) >= 1e-3


def test_two_hundred_points_are_distinct_and_inside() -> None:
    X = thompson_batch(model(length=0.2), UNIT, 200, distance=0.004, **FAST)
    assert X.shape == (200, 2)
    assert ((X >= 0) & (X <= 1)).all()
    assert apart(X) >= 0.004


def test_points_spread_where_all_functions_peak_in_one_place() -> None:
    X, Y = data(200, 2)
    Y = -(X - 0.5).square().sum(-1, keepdim=True)
    m = WISKI(X, Y, torch.full_like(Y, 1e-6), grid_size=10).eval()
    found = thompson_batch(m, UNIT, 30, distance=0.01, **FAST)
    assert apart(found) >= 0.01
    assert (found - 0.5).abs().max() < 0.25


@pytest.mark.parametrize("distance", [1e-3, 0.05])
def test_points_to_avoid_are_avoided(distance: float) -> None:
    m, avoid = model(), thompson_batch(model(), UNIT, 15, **FAST)
    torch.manual_seed(0)
    free = thompson_batch(m, UNIT, 10, distance=distance, **FAST)
    torch.manual_seed(0)
    found = thompson_batch(m, UNIT, 10, distance=distance, avoid=torch.cat([avoid, free]), **FAST)
    assert torch.cdist(found, torch.cat([avoid, free]), p=math.inf).min() >= distance
    assert apart(found) >= distance


def test_a_good_start_is_used() -> None:
    """A needle that no quasi-random point sees."""
    X = torch.cat([torch.rand(30, 2, dtype=torch.float64), torch.tensor([[0.371, 0.628]], dtype=torch.float64)])
    Y = torch.zeros(31, 1, dtype=torch.float64).index_fill_(0, torch.tensor([30]), 9.0)
    m = WISKI(X, Y, torch.full_like(Y, 1e-4), grid_size=40).eval()
    m.covar_module.lengthscale = 0.03
    found = thompson_batch(m, UNIT, 3, starts=X[-1:], num_restarts=1, raw_samples=8, distance=1e-6)
    assert (found - X[-1]).abs().max() < 0.03


@pytest.mark.parametrize("q", [1, 5])
def test_a_batch_is_its_seeds(q: int) -> None:
    m, found = model(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(thompson_batch(m, UNIT, q, **FAST))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_what_cannot_be_done_is_refused() -> None:
    m = model()
    with pytest.raises(InvalidDataError, match="q=0"):
        thompson_batch(m, UNIT, 0)
    X, Y = data(10, 2, 2)
    with pytest.raises(InvalidDataError, match="2 outputs"):
        thompson_batch(WISKI(X, Y, grid_size=8), UNIT, 1)
    with pytest.raises(InvalidDataError, match=r"distance=0\.9: no room for 5 points"):
        thompson_batch(m, UNIT, 5, distance=0.9, **FAST)


def test_products_of_lists_that_nobody_enumerates_are_searched_nearly_to_their_best(drawn: Any) -> None:
    choices = tuple(range(6 * k, 6 * k + 6) for k in range(2))
    lattices = {12 + k: Lattice(6) for k in range(4)}  # 6⁶ = 46,656 points, of which the search may look at some
    admissible = Admissible(16, lattices, tuple(map(tuple, choices)))
    every = torch.cartesian_prod(*(torch.arange(6) for _ in range(6)))
    one_hot = torch.cat([torch.eye(6, dtype=torch.float64)[every[:, k]] for k in range(2)], -1)
    X = torch.cat([one_hot, every[:, 2:].double() / 5], -1)
    seen = X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:80]]
    weights = torch.linspace(2, 6, 16, dtype=torch.float64)
    made = SingleTaskGP(seen, (weights * seen).sin().sum(-1, keepdim=True), outcome_transform=None).eval()
    made.covar_module.lengthscale = 1.5
    torch.manual_seed(0)
    batch = thompson_batch(made, torch.tensor([[0.0], [1.0]]).double().expand(2, 16), 10, admissible=admissible)
    with torch.no_grad():
        (functions,) = drawn
        values = torch.cat([functions(part.unsqueeze(0)).reshape(10, -1) for part in X.split(5000)], -1)
        own = functions(batch.unsqueeze(0)).reshape(10, 10).diagonal()
    lowest, highest = values.aminmax(dim=-1)
    assert ((own - lowest) / (highest - lowest)).mean() > 0.99
