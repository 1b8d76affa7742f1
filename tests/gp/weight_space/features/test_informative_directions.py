import pytest
import torch
from cases import data, randn
from torch import Tensor

from bo_scale.gp.weight_space.features.informative_directions import informative_directions


def angle(a: Tensor, b: Tensor) -> float:
    return ((a @ b).abs() / a.norm() / b.norm()).item()


def test_the_first_direction_is_that_of_least_squares_and_the_second_of_curvature() -> None:
    g = torch.Generator().manual_seed(0)
    Z = torch.randn(4000, 6, generator=g, dtype=torch.float64) @ torch.randn(6, 6, generator=g, dtype=torch.float64)
    Z = (Z - Z.mean(0)) / Z.std(0)
    steep, curved = torch.randn(2, 6, generator=g, dtype=torch.float64)
    y = (Z @ steep) + 2 * (Z @ curved / (Z @ curved).std()).square()
    found = informative_directions(Z, y.unsqueeze(-1), 2)
    s, c = Z @ steep, Z @ curved
    assert angle(Z @ found[0], s) > 0.95
    assert angle(Z @ found[1], c - s * (c @ s / (s @ s))) > 0.75
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(2).double())


@pytest.mark.parametrize(("m", "k"), [(1, 1), (1, 3), (3, 1), (3, 2), (2, 4), (1, 7)])
def test_there_are_as_many_directions_as_asked_for(m: int, k: int) -> None:
    X, Y = data(30, 5, m)
    found = informative_directions((X - X.mean(0)) / X.std(0), Y, k)
    assert found.shape == (k, 5)
    assert found.isfinite().all()
    assert torch.linalg.matrix_rank(found) == min(k, 5)


def test_directions_of_one_value_everywhere_are_finite() -> None:
    X, _ = data(30, 5)
    assert informative_directions(X, torch.ones(30, 1).double(), 2).isfinite().all()


def test_one_direction_is_that_of_ridge_regression() -> None:
    X, Y = data(30, 5)
    Z = (X - X.mean(0)) / X.std(0, correction=0)
    ridge = torch.linalg.solve(Z.mT @ Z + 5 * torch.eye(5).double(), Z.mT @ (Y - Y.mean(0)))[:, 0]
    (found,) = informative_directions(Z, Y, 1)
    assert angle(found, ridge) == pytest.approx(1.0)
    (other,) = informative_directions(Z, 100 - 7 * Y, 1)  # units do not matter
    assert angle(found, other) == pytest.approx(1.0)


def test_a_parabola_without_a_slope_is_seen_by_its_curvature() -> None:
    """The first direction is then any; the plane of both has that of the parabola."""
    Z = randn(4000, 4)
    Z = torch.cat([Z, -Z])
    direction = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    found = informative_directions(Z, (Z @ direction).square().unsqueeze(-1), 2)
    Q = torch.linalg.qr(found.mT).Q
    assert (Q.mT @ direction).norm() > 0.95 * direction.norm()


def test_two_rows_are_enough() -> None:
    Z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    found = informative_directions(Z, Z[:, :1], 1)
    torch.testing.assert_close(found.abs(), torch.tensor([[1.0, 0.0]], dtype=torch.float64))
