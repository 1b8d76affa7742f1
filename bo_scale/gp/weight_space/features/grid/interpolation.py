"""Local cubic interpolation of a function from its values at the nodes of a Cartesian grid."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import GridError
from bo_scale.gp.waiting import granting, holds
from bo_scale.gp.weight_space.features.sparse_rows import SparseRows

Basis = Literal["spline", "keys"]

# Weights of the nodes j−1 … j+2 as polynomials in t = (x − u_j)/h; rows: powers of t.
_POLYNOMIALS: dict[str, list[list[float]]] = {
    "spline": [[1 / 6, 4 / 6, 1 / 6, 0], [-1 / 2, 0, 1 / 2, 0], [1 / 2, -1, 1 / 2, 0], [-1 / 6, 1 / 2, -1 / 2, 1 / 6]],
    "keys": [[0, 1, 0, 0], [-1 / 2, 0, 1 / 2, 0], [1, -5 / 2, 2, -1 / 2], [-1 / 2, 3 / 2, -3 / 2, 1 / 2]],
}


@dataclass(frozen=True)
class Grid:
    """A Cartesian grid of equally spaced nodes, with one cell of margin beyond the bounds on every side.

    Attributes:
        lower: Lower corner of the bounds: node 1 of each dimension.
        upper: Upper corner of the bounds: node m − 2.
        size: m, the number of nodes in each dimension, margin included; at least 4.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    size: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(m < 4 for m in self.size):
            raise GridError(f"grid_size={self.size}: cubic interpolation needs at least 4 points in each dimension.")
        if not all(math.isfinite(lo) and math.isfinite(hi) and lo < hi for lo, hi in zip(self.lower, self.upper)):
            raise GridError(f"bounds: lower {self.lower} must be finite and below upper {self.upper}.")

    @property
    def num_points(self) -> int:
        """Number of nodes, p = Π m_l."""
        return math.prod(self.size)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Widths h_l of a cell."""
        return tuple((hi - lo) / (m - 3) for lo, hi, m in zip(self.lower, self.upper, self.size))

    def nodes(self, device: torch.device | None = None) -> list[Float[Tensor, " _"]]:
        """Coordinates of the nodes of each dimension."""
        return [
            lo + h * torch.arange(-1, m - 1, dtype=torch.float64, device=device)
            for lo, h, m in zip(self.lower, self.spacing, self.size)
        ]

    def positions(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """X in units of nodes: 0 at the first of each dimension, m − 1 at the last.

        Raises:
            GridError: if a point is more than one cell outside the bounds, where the interpolation is undefined.
        """
        if X.shape[-1] != len(self.size):
            raise GridError(
                f"X has {X.shape[-1]} columns, the grid {len(self.size)} dimensions. Give one column for each."
            )
        geometry = grid_geometry(self, X.device)
        positions = (X - geometry.lower) / geometry.spacing + 1.0
        inside = (positions.detach() - geometry.middle).abs() <= geometry.reach
        if not holds(inside):
            rows = (~inside).any(-1).reshape(-1).nonzero().squeeze(-1).tolist()
            raise GridError(
                f"{len(rows)} of {X.shape[:-1].numel()} points are NaN or outside the grid "
                f"over {self.lower}–{self.upper} "
                f"(rows {rows[:5]}{'…' if len(rows) > 5 else ''}); widen `bounds`, or scale the inputs with "
                f"`input_transform=Normalize(d, bounds=bounds)`."
            )
        return positions.nan_to_num() if positions.is_cuda and granting() else positions


class GridGeometry(NamedTuple):
    """The geometry of a grid, with a number for every dimension.

    Attributes:
        lower: Lower corner.
        spacing: Width of a cell.
        middle: Position of the middle, in units of nodes.
        reach: Largest distance of positions from the middle, with room for rounding.
        last_cell: Last cell with four neighbours, m − 3.
    """

    lower: Float[Tensor, " d"]
    spacing: Float[Tensor, " d"]
    middle: Float[Tensor, " d"]
    reach: Float[Tensor, " d"]
    last_cell: Float[Tensor, " d"]


@lru_cache(maxsize=64)
def grid_geometry(grid: Grid, device: torch.device) -> GridGeometry:
    """Geometry of a grid as tensors on a device."""
    last = [m - 1.0 for m in grid.size]
    middle, reach, last_cell = [0.5 * m for m in last], [0.5 * m + 1e-9 for m in last], [m - 2.0 for m in last]
    rows = torch.tensor([grid.lower, grid.spacing, middle, reach, last_cell], dtype=torch.float64, device=device)
    return GridGeometry(*rows)


@lru_cache(maxsize=16)
def next_nodes(device: torch.device) -> Float[Tensor, "4"]:
    """Numbers of the four nodes of a cell, counted from the first."""
    return torch.arange(4, device=device, dtype=torch.float64)


@lru_cache(maxsize=16)
def _polynomials(basis: Basis, device: torch.device) -> Tensor:
    return torch.tensor(_POLYNOMIALS[basis], dtype=torch.float64, device=device)


def cubic_weights(
    positions: Float[Tensor, "*n"], last_cell: Float[Tensor, "*d"] | float, basis: Basis
) -> tuple[Float[Tensor, "*n 4"], Float[Tensor, "*n"]]:
    """Weights of four neighbouring nodes of a one-dimensional grid, and the index of the first.

    Cells 1 … m − 3 have all four neighbours. The two margin cells continue the polynomials of their neighbours.

    Args:
        positions: Positions in units of nodes.
        last_cell: m − 3.
        basis: Kind of polynomials.
    """
    cell = positions.detach().floor().clamp_min(1.0).clamp_max(last_cell)
    t = (positions - cell).unsqueeze(-1)
    constant, linear, square, cube = _polynomials(basis, positions.device).unbind(0)
    weights = torch.addcmul(constant, t, torch.addcmul(linear, t, torch.addcmul(square, t, cube)))  # Horner
    return weights, cell - 1.0


def axis_rows(positions: Float[Tensor, "*n"], m: int, basis: Basis) -> SparseRows:
    """Interpolation weights of one dimension, from positions in units of nodes."""
    weights, first = cubic_weights(positions, m - 3.0, basis)
    columns = first.unsqueeze(-1).long() + torch.arange(4, device=positions.device)
    return SparseRows(weights, columns, m)


def axis_weights(grid: Grid, basis: Basis, u: Float[Tensor, " n"], axis: int) -> SparseRows:
    """Interpolation weights of one dimension of a grid, from coordinates u. O(n)."""
    return axis_rows((u - grid.lower[axis]) / grid.spacing[axis] + 1.0, grid.size[axis], basis)


@lru_cache(maxsize=64)
def prefilter(m: int, basis: Basis, device: torch.device | None) -> Float[Tensor, "m m"]:
    """T: maps values at the nodes of one dimension to coefficients of the basis."""
    if basis == "keys":
        return torch.eye(m, dtype=torch.float64, device=device)
    return torch.linalg.inv(axis_rows(torch.arange(m, dtype=torch.float64, device=device), m, basis).to_dense())


def gauss_points(knots: Float[Tensor, " k"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Four Gauss–Legendre points between adjacent knots, and their weights: exact for products of two cubics."""
    inner, outer = math.sqrt(3 / 7 - 2 / 7 * math.sqrt(6 / 5)), math.sqrt(3 / 7 + 2 / 7 * math.sqrt(6 / 5))
    heavy, light = (18 + math.sqrt(30)) / 72, (18 - math.sqrt(30)) / 72
    t = torch.tensor([-outer, -inner, inner, outer], dtype=torch.float64, device=knots.device)
    w = torch.tensor([light, heavy, heavy, light], dtype=torch.float64, device=knots.device)
    left, widths = knots[:-1].unsqueeze(-1), knots.diff().unsqueeze(-1)
    return (left + widths * (t + 1) / 2).flatten(), (widths * w).flatten()


def cell_points(
    grid: Grid, axis: int, device: torch.device | None = None
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Four Gauss–Legendre points in every cell between the bounds of one dimension, with weights that sum to 1."""
    knots = grid.nodes(device)[axis][1:-1]
    points, weights = gauss_points(knots)
    return points, weights / (knots[-1] - knots[0])


@lru_cache(maxsize=64)
def _collocation_stencils(m: int, basis: Basis, device: torch.device | None) -> tuple[Tensor, Float[Tensor, ""]]:
    """Sums over the rows C_i of C = T⁻¹, and log|C|.

    The sums are Σ C_iC_iᵀ over the two end rows, the same over the other rows, and Σ C_iC_{i+1}ᵀ plus its transpose.
    All are banded, kept as entries (i, i + δ) with δ ∈ {0…3}.
    """
    nodes = torch.arange(m, dtype=torch.float64, device=device)
    C = torch.diag(torch.ones_like(nodes)) if basis == "keys" else axis_rows(nodes, m, basis).to_dense()
    ends = torch.zeros_like(nodes)
    ends[0] = ends[-1] = 1.0
    sums = [(C.mT * ends) @ C, (C.mT * (1 - ends)) @ C, C[:-1].mT @ C[1:] + C[1:].mT @ C[:-1]]
    padded = torch.nn.functional.pad(torch.stack(sums), (0, 3))
    stencils = torch.stack([padded.diagonal(delta, -2, -1)[:, :m] for delta in range(4)], -1)
    return stencils, torch.linalg.slogdet(C).logabsdet


def exponential_precision(
    variance: Float[Tensor, ""], correlation: Float[Tensor, ""], m: int, basis: Basis
) -> tuple[Float[Tensor, "m 4"], Float[Tensor, ""]]:
    """S⁻¹ = CᵀK⁻¹C of an exponential kernel on equally spaced nodes, as a stencil, and log|S⁻¹|. O(m).

    K_ij = k₀ρ^|i−j| has a tridiagonal inverse: k₀(1 − ρ²) K⁻¹ has 1 at the ends of its diagonal, 1 + ρ² between them
    and −ρ beside it. |K| = k₀^m (1 − ρ²)^(m−1).

    Args:
        variance: k₀.
        correlation: ρ, the correlation of neighbours.
        m: Number of nodes.
        basis: Basis of the interpolation, which gives C = T⁻¹.
    """
    stencils, logdet = _collocation_stencils(m, basis, variance.device)
    rest = (1 - correlation) * (1 + correlation)
    entries = torch.stack([torch.ones_like(correlation), 1 + correlation.square(), -correlation])
    precision = torch.tensordot(entries / (variance * rest), stencils, 1)
    return precision, 2 * logdet - m * variance.log() - (m - 1) * rest.log()
