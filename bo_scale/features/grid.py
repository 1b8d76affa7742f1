"""Local cubic interpolation on a Cartesian grid: the features of WISKI.

A function is represented by its values at the grid's nodes, f(x) ≈ φ(x)ᵀ T f_U with f_U ~ N(0, ⊗ K_l), so that
S = (⊗ T_l) (⊗ K_l) (⊗ T_l)ᵀ and φ has 4^d non-zeros.

    keys:   cubic convolution (Keys 1981, a = −½), T = I.                       [WISKI] section 3
    spline: cubic B-splines, T the inverse of the matrix of their values at the nodes (prefiltering); C².
            Not-a-knot ends: the outermost cell continues the polynomial of its neighbour.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import GridError
from bo_scale.features.base import FeatureMap
from bo_scale.features.sparse import SparseRows
from bo_scale.features.stencil import StencilGram
from bo_scale.linalg import KroneckerColumns, rowwise_kronecker, symmetric_eigen, top_kronecker_eigenvalues

Basis = Literal["spline", "keys"]

# Weights of the nodes j−1 … j+2 as polynomials in t = (x − u_j)/h; rows: powers of t.
_POLYNOMIALS: dict[str, list[list[float]]] = {
    "spline": [[1 / 6, 4 / 6, 1 / 6, 0], [-1 / 2, 0, 1 / 2, 0], [1 / 2, -1, 1 / 2, 0], [-1 / 6, 1 / 2, -1 / 2, 1 / 6]],
    "keys": [[0, 1, 0, 0], [-1 / 2, 0, 1 / 2, 0], [1, -5 / 2, 2, -1 / 2], [-1 / 2, 3 / 2, -3 / 2, 1 / 2]],
}

RANK_TOLERANCE = 1e-10
"""Kronecker eigenpairs of the prior below this share of the largest are left out of its root."""

KernelFactors = Callable[[list[Float[Tensor, " _"]], list[Float[Tensor, " _"]]], list[Float[Tensor, "_ _"]]]
"""From points u_l and v_l of every dimension to k_l(u_l, v_l); the product of the factors is the kernel."""


@dataclass(frozen=True)
class Grid:
    """A Cartesian grid of equally spaced nodes, with one cell of margin beyond the bounds on every side.

    Attributes:
        lower: The bounds' lower corner: node 1 of each dimension.
        upper: Their upper corner: node m − 2.
        size: m, nodes a dimension, margin included; at least 4.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    size: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(m < 4 for m in self.size):
            raise GridError(f"grid_size={self.size}: cubic interpolation needs at least 4 points a dimension.")
        if not all(math.isfinite(lo) and math.isfinite(hi) and lo < hi for lo, hi in zip(self.lower, self.upper)):
            raise GridError(f"bounds: lower {self.lower} must be finite and below upper {self.upper}.")

    @property
    def num_points(self) -> int:
        """P = Π m_l."""
        return math.prod(self.size)

    @property
    def spacing(self) -> tuple[float, ...]:
        """h_l, the width of a cell."""
        return tuple((hi - lo) / (m - 3) for lo, hi, m in zip(self.lower, self.upper, self.size))

    def nodes(self, device: torch.device | None = None) -> list[Float[Tensor, " _"]]:
        """The coordinates of the nodes of each dimension."""
        return [
            lo + h * torch.arange(-1, m - 1, dtype=torch.float64, device=device)
            for lo, h, m in zip(self.lower, self.spacing, self.size)
        ]

    def positions(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """X in units of nodes: 0 at the first of each dimension, m − 1 at the last.

        Raises:
            GridError: where the interpolation is undefined: more than the margin of one cell outside the bounds.
        """
        if X.shape[-1] != len(self.size):
            raise GridError(f"X has {X.shape[-1]} columns, the grid {len(self.size)} dimensions.")
        lower, spacing, last = _geometry(self, X.device)
        positions = (X - lower) / spacing + 1.0
        inside = (positions.detach() - 0.5 * last).abs() <= 0.5 * last + 1e-9
        if not inside.all():
            rows = (~inside).any(-1).reshape(-1).nonzero().squeeze(-1).tolist()
            raise GridError(
                f"{len(rows)} of {X.shape[:-1].numel()} points are NaN or outside the grid "
                f"over {self.lower}–{self.upper} "
                f"(rows {rows[:5]}{'…' if len(rows) > 5 else ''}); widen `bounds`, or scale the inputs with "
                f"`input_transform=Normalize(d, bounds=bounds)`."
            )
        return positions


@lru_cache(maxsize=64)
def _geometry(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The grid's lower corner, spacing and last node as tensors."""
    last = [m - 1.0 for m in grid.size]
    lower, spacing, last_node = torch.tensor([grid.lower, grid.spacing, last], dtype=torch.float64, device=device)
    return lower, spacing, last_node


@lru_cache(maxsize=16)
def _polynomials(basis: Basis, device: torch.device) -> Tensor:
    return torch.tensor(_POLYNOMIALS[basis], dtype=torch.float64, device=device)


def cubic_weights(
    positions: Float[Tensor, "*n"], last_node: Float[Tensor, "*d"] | float, basis: Basis
) -> tuple[Float[Tensor, "*n 4"], Float[Tensor, "*n"]]:
    """Weights of four neighbouring nodes of a one-dimensional grid, and the index of the first of them.

    Cells 1 … m − 3 have all four neighbours; the two cells of margin continue the polynomials of theirs.

    Args:
        positions: In units of nodes.
        last_node: m − 1.
        basis: Which polynomials.
    """
    cell = positions.detach().floor().clamp_min(1.0).clamp_max(last_node - 2.0)
    t = (positions - cell).unsqueeze(-1)
    square = t * t
    powers = torch.cat([torch.ones_like(t), t, square, square * t], -1)
    return powers @ _polynomials(basis, positions.device), cell - 1.0


def _axis_rows(positions: Float[Tensor, " n"], m: int, basis: Basis) -> SparseRows:
    """Interpolation weights of one dimension, from positions in units of nodes."""
    weights, first = cubic_weights(positions, m - 1.0, basis)
    columns = first.unsqueeze(-1).long() + torch.arange(4, device=positions.device)
    return SparseRows(weights, columns, m)


@lru_cache(maxsize=64)
def _prefilter(m: int, basis: Basis, device: torch.device | None) -> Tensor:
    if basis == "keys":
        return torch.eye(m, dtype=torch.float64, device=device)
    return torch.linalg.inv(_axis_rows(torch.arange(m, dtype=torch.float64, device=device), m, basis).to_dense())


@dataclass(frozen=True)
class GridFeatures(FeatureMap):
    """Cubic interpolation from a grid with a product kernel over its nodes. φ has no parameters.

    Attributes:
        grid: The grid.
        factors: The kernel's one-dimensional factors.
        basis: "spline" or "keys".
        device: Where the prior is computed.
        negligible: Eigenpairs of the prior that add less variance than this, averaged over the nodes, are left out.
    """

    grid: Grid
    factors: KernelFactors = field(repr=False)
    basis: Basis = "spline"
    device: torch.device | None = None
    negligible: float = 0.0

    @property
    @override
    def num_features(self) -> int:
        return self.grid.num_points

    @override
    def empty_gram(self, device: torch.device | None = None) -> StencilGram:
        return StencilGram.zeros(self.grid.size, device)

    @override
    def chunk_size(self) -> int:
        return max(1, 8_000_000 // 16 ** len(self.grid.size))

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> SparseRows:
        """Interpolation weights, 4^d a point. O(4^d n).

        Raises:
            GridError: if a point is NaN or more than one cell outside the bounds.
        """
        positions = self.grid.positions(X.to(torch.float64))
        weights, first = cubic_weights(positions, _geometry(self.grid, X.device)[2], self.basis)
        nodes = first.unsqueeze(-1) + torch.arange(4, device=X.device)
        values, columns = weights[..., 0, :], nodes[..., 0, :]
        for axis in range(1, len(self.grid.size)):
            values = rowwise_kronecker(values, weights[..., axis, :])
            columns = (columns.unsqueeze(-1) * self.grid.size[axis] + nodes[..., axis, :].unsqueeze(-2)).flatten(-2)
        return SparseRows(values, columns.long(), self.num_features)

    @property
    def prefilter(self) -> list[Float[Tensor, "_ _"]]:
        """T_l: from the values at the nodes to the coefficients of the basis."""
        return [_prefilter(m, self.basis, self.device) for m in self.grid.size]

    @property
    def node_kernels(self) -> list[Float[Tensor, "_ _"]]:
        """K_l = k_l(U_l, U_l); computed once where the kernel is frozen."""
        if "_node_kernels" in self.__dict__:
            kept: list[Tensor] = self.__dict__["_node_kernels"]
            return kept
        nodes = self.grid.nodes(self.device)
        kernels = self.factors(nodes, nodes)
        if not any(K.requires_grad for K in kernels):
            self.__dict__["_node_kernels"] = kernels
        return kernels

    def _axis_weights(self, u: Float[Tensor, " n"], axis: int) -> SparseRows:
        """Interpolation weights of one dimension."""
        grid = self.grid
        return _axis_rows((u - grid.lower[axis]) / grid.spacing[axis] + 1.0, grid.size[axis], self.basis)

    @override
    def prior_root(self) -> KroneckerColumns:
        """R = ⊗ T_l Q_l Λ_l^½ restricted to the Kronecker eigenpairs above 1e-10 of the largest.

        Those that add negligible variance are left out too, faded out over a decade above it so that the evidence stays
        a smooth function of the hyperparameters.
        Eigenpairs instead of Cholesky factors, since K_UU of a smooth kernel is numerically singular: no jitter, and a
        rank s far below p. O(Σ m_l³).
        """
        eigen = [symmetric_eigen(K) for K in self.node_kernels]
        kept, index = top_kronecker_eigenvalues([values.detach() for values, _ in eigen], RANK_TOLERANCE)
        index = index[: max(1, int((kept > self.negligible * self.num_features).sum()))]
        widths = (index.amax(0) + 1).tolist()
        index = index[torch.from_numpy(np.lexsort(index.flip(-1).T.cpu().numpy())).to(index.device)]
        roots = [
            T @ (Q[:, :s] * values[:s].sqrt()) for T, (values, Q), s in zip(self.prefilter, eigen, widths, strict=True)
        ]
        added = torch.stack([v[i] for (v, _), i in zip(eigen, index.unbind(-1))]).prod(0) / self.num_features
        fade = (added / self.negligible).log10().clamp(0.0, 1.0) if self.negligible > 0 else torch.ones_like(added)
        return KroneckerColumns(fade.square() * (3 - 2 * fade), *roots, index=index)

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """Φ S Φᵀ as a product over dimensions, ∘_l (W_l T_l) K_l (W_l T_l)ᵀ: O(n² Σ m_l), no eigenpair left out."""
        K = X.new_ones((), dtype=torch.float64)
        for axis, (u, node_kernel) in enumerate(zip(X.to(torch.float64).unbind(-1), self.node_kernels, strict=True)):
            W = self._axis_weights(u, axis).to_dense() @ self.prefilter[axis]
            K = K * (W @ node_kernel @ W.mT)
        return K

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        origin = [torch.zeros(1, dtype=torch.float64, device=self.device) for _ in self.grid.size]
        return torch.stack([k0.squeeze() for k0 in self.factors(origin, origin)]).prod().expand(X.shape[:-1])

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """φ(x)ᵀ S φ(x) as a product over dimensions: O(n Σ m_l²), no eigenpair left out."""
        X = X.to(torch.float64)
        self.grid.positions(X.detach())  # refuses points outside
        terms = self._error_factors([u.reshape(-1) for u in X.unbind(-1)])
        return torch.stack([interpolated for _, _, interpolated in terms]).prod(0).reshape(X.shape[:-1])

    def interpolation_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """mse(x) = k₀ − 2 φ(x)ᵀ T k_U(x) + φ(x)ᵀ S φ(x): prior variance of f(x) less its interpolation.

        Each term is a product over dimensions: O(n Σ m_l²), no matter how many nodes. Differentiable.
        """
        X = X.to(torch.float64)
        self.grid.positions(X.detach())  # refuses points outside
        terms = self._error_factors([u.reshape(-1) for u in X.unbind(-1)])
        exact, cross, interpolated = (torch.stack(list(factors)).prod(0) for factors in zip(*terms, strict=True))
        # A variance: below zero only by rounding.
        return (exact - 2 * cross + interpolated).clamp_min(0.0).reshape(X.shape[:-1])

    def mean_interpolation_variance(self) -> Float[Tensor, ""]:
        """The mean of mse(x) over the box of the bounds, by four Gauss points a cell. O(Σ m_l³); differentiable."""
        points, weights = zip(*[self._gauss(axis) for axis in range(len(self.grid.size))], strict=True)
        terms = self._error_factors(list(points))
        means = [[(w * factor).sum() for factor in factors] for w, factors in zip(weights, terms, strict=True)]
        exact, cross, interpolated = (torch.stack(list(column)).prod() for column in zip(*means, strict=True))
        return (exact - 2 * cross + interpolated).clamp_min(0.0)

    def mean_missing_variance(self) -> Float[Tensor, ""]:
        """The mean of `missing_variance` over the box of the bounds, by four Gauss points a cell. O(Σ m_l³ + Π m_l)."""
        points, weights = zip(*[self._gauss(axis) for axis in range(len(self.grid.size))], strict=True)
        exact = interpolated = mass = torch.ones((), dtype=torch.float64, device=self.device)
        for (k0, _, k), w in zip(self._error_factors(list(points)), weights, strict=True):
            exact, interpolated = k0[0] * exact, interpolated.unsqueeze(-1) * k
            mass = mass.unsqueeze(-1) * w
        return ((exact - interpolated).clamp_min(0.0) * mass).sum()

    def _error_factors(self, points: list[Float[Tensor, " _"]]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Per dimension: k_l(u, u), φ_lᵀT_l k_l(U, u) and φ_lᵀT_l K_l T_lᵀφ_l."""
        nodes = self.grid.nodes(self.device)
        origin = [u.new_zeros(1) for u in points]
        at_zero = self.factors(origin, origin)
        terms = []
        for axis, (K, k, k0) in enumerate(zip(self.node_kernels, self.factors(points, nodes), at_zero)):
            W = self._axis_weights(points[axis], axis).to_dense() @ self.prefilter[axis]
            terms.append((k0.squeeze().expand(len(W)), (W * k).sum(-1), ((W @ K) * W).sum(-1)))
        return terms

    def _gauss(self, axis: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Four Gauss–Legendre points in every cell between the bounds of one dimension, with weights that sum to 1."""
        inner, outer = math.sqrt(3 / 7 - 2 / 7 * math.sqrt(6 / 5)), math.sqrt(3 / 7 + 2 / 7 * math.sqrt(6 / 5))
        heavy, light = (18 + math.sqrt(30)) / 72, (18 - math.sqrt(30)) / 72
        t = torch.tensor([-outer, -inner, inner, outer], dtype=torch.float64, device=self.device)
        w = torch.tensor([light, heavy, heavy, light], dtype=torch.float64, device=self.device)
        left = self.grid.nodes(self.device)[axis][1:-2]
        points = left.unsqueeze(-1) + self.grid.spacing[axis] * (t + 1) / 2
        return points.flatten(), w.expand(len(left), 4).flatten() / len(left)

    def box_gram(self) -> StencilGram:
        """∫ φφᵀ dx over the box of the bounds, divided by its volume: exact, a product over dimensions."""
        gram = torch.ones((), dtype=torch.float64, device=self.device)
        for axis, m in enumerate(self.grid.size):
            points, weights = self._gauss(axis)
            factor = StencilGram.zeros((m,), self.device).add_rows(self._axis_weights(points, axis), weights)
            gram = torch.tensordot(gram, factor.values, dims=0)
        return StencilGram(gram, self.grid.size)
