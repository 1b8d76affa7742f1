"""Uniform points within linear inequalities."""

import pytest
import torch

from bo_scale.decisions.polytope import uniform_within


def exact(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("d", [5, 12])
def test_a_simplex_is_filled_evenly(d: int) -> None:
    """Coordinates of the simplex Σ u ≤ 1 have Beta(1, d) distributions and correlations −1/d."""
    X = uniform_within(torch.ones(1, d).double(), exact([1.0]), 2000, 0)
    assert ((X >= 0) & (X.sum(-1, keepdim=True) <= 1 + 1e-12)).all()
    assert (X.mean(0) * (d + 1) - 1).abs().max() < 0.1
    assert (X.var(0) * (d + 1) ** 2 * (d + 2) / d).mean().item() == pytest.approx(1, abs=0.05)
    off = torch.corrcoef(X.T)[~torch.eye(d, dtype=torch.bool)]
    assert off.mean().item() == pytest.approx(-1 / d, abs=0.02)


def test_a_thin_strip_is_filled_along_and_across() -> None:
    X = uniform_within(exact([[1.0, -1.0], [-1.0, 1.0]]), exact([1e-4, 1e-4]), 2000, 0)
    assert X.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.03)
    assert (12 * X.var(0)).tolist() == pytest.approx([1, 1], abs=0.1)
    across = (X[:, 0] - X[:, 1]) / 1e-4
    assert across.abs().max() <= 1 + 1e-8
    assert (3 * across.var()).item() == pytest.approx(1, abs=0.1)


def test_successive_points_are_as_far_apart_as_any() -> None:
    X = uniform_within(torch.ones(1, 15).double(), exact([1.0]), 1000, 0)
    apart = (X[1:] - X[:-1]).norm(dim=-1).mean()
    assert apart.item() == pytest.approx(torch.pdist(X).mean().item(), rel=0.05)


def test_the_seed_decides_and_any_number_can_be_had() -> None:
    W, w = exact([[1.0, 1.0]]), exact([0.1])
    assert torch.equal(uniform_within(W, w, 7, 3), uniform_within(W, w, 7, 3))
    assert not torch.equal(uniform_within(W, w, 7, 3), uniform_within(W, w, 7, 4))
    assert [len(uniform_within(W, w, n, 0)) for n in (1, 2, 5)] == [1, 2, 5]


@pytest.mark.parametrize("w", [[0.5, -0.5], [0.5, -0.6]])
def test_no_room_is_refused(w: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no room|empty"):
        uniform_within(exact([[1.0, 1.0], [-1.0, -1.0]]), exact(w), 5, 0)
