"""Local cubic interpolation on a Cartesian grid: the features of WISKI.

A function is represented by its values at the grid's nodes: f(x) ≈ φ(x)ᵀ T f_U with f_U ~ N(0, ⊗ K_l). Hence
S = (⊗ T_l) (⊗ K_l) (⊗ T_l)ᵀ, and φ has 4^d non-zeros.

    keys:   cubic convolution (Keys 1981, a = −½), T = I.                       [WISKI] section 3
    spline: cubic B-splines, T the inverse of the matrix of their values at the nodes (prefiltering); C².
            Not-a-knot ends: the outermost cell continues the polynomial of its neighbour.
"""

import itertools
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import WrongTypeError
from bo_scale.gp.linalg.kronecker import KroneckerColumns, rowwise_kronecker
from bo_scale.gp.weight_space.features.base import FeatureMap, SparsePrior, Whitened
from bo_scale.gp.weight_space.features.grid.error import InterpolationError
from bo_scale.gp.weight_space.features.grid.inherited_gram import InheritedGram
from bo_scale.gp.weight_space.features.grid.interpolation import (
    Basis,
    Grid,
    axis_rows,
    axis_weights,
    cell_points,
    cubic_weights,
    gauss_points,
    grid_geometry,
    next_nodes,
)
from bo_scale.gp.weight_space.features.grid.prior import GridPrior, KernelFactors
from bo_scale.gp.weight_space.features.grid.stencil import StencilGram
from bo_scale.gp.weight_space.features.sparse_rows import SparseRows
from bo_scale.gp.weight_space.features.sums import BlockGram, StackedRoot, SumFeatures
from bo_scale.gp.weight_space.gram import DenseGram, Gram

SUMMED, MOST = 8_000_000, 1 << 17
"""Numbers that rows take while they are summed, and rows that are summed at once, at most."""
DENSE_ROOT = 1 << 24
"""Largest number of entries p·s of a posterior root that is kept whole. A point then costs 4^d s, else d s + s²."""


@dataclass(frozen=True)
class GridFeatures(FeatureMap):
    """Cubic interpolation from a grid with a product kernel over its nodes. φ has no parameters.

    Attributes:
        grid: The grid.
        factors: One-dimensional factors of the kernel.
        basis: "spline" or "keys".
        device: Device on which the prior is computed; None for torch's default.
        negligible: Variance, averaged over the nodes, below which an eigenpair of the prior is left out.
        rank: Largest number of eigenpairs; None for all that are not negligible.
        exponential: Whether the factors are Matérn-1/2 kernels, whose precision is sparse.
        ancestors: Grids with data that this grid lacks, latest first; see `inherited_gram`.
    """

    grid: Grid
    factors: KernelFactors = field(repr=False)
    basis: Basis = "spline"
    device: torch.device | None = None
    negligible: float = 0.0
    rank: int | None = None
    exponential: bool = False
    ancestors: tuple[Grid, ...] = ()

    def __post_init__(self) -> None:
        """Name the device, so that `to` finds it."""
        if self.device is None:
            object.__setattr__(self, "device", torch.get_default_device())

    @cached_property
    def prior(self) -> GridPrior:
        """The prior over the weights."""
        exponential = self.exponential and not self.ancestors
        return GridPrior(
            self.grid, self.factors, self.basis, self.device, self.negligible, self.rank, exponential=exponential
        )

    @property
    def error(self) -> InterpolationError:
        """The error of the interpolation: its mean over the box, and its shares."""
        return InterpolationError(self.prior)

    @property
    @override
    def num_features(self) -> int:
        return self.grid.num_points

    @property
    @override
    def max_rank(self) -> int:
        return self.num_features if self.rank is None else min(self.num_features, self.rank)

    @override
    def depends_on(self) -> tuple[Any, ...]:
        return "grid", self.grid, self.basis

    @override
    def empty_gram(self, device: torch.device | None = None) -> StencilGram | InheritedGram:
        if not self.ancestors:
            return StencilGram.zeros(self.grid.size, device)
        return InheritedGram.along((self.grid, *self.ancestors), self.basis, device)

    @override
    def chunk_size(self) -> int:
        return max(1, 8_000_000 // 10 ** len(self.grid.size))

    @override
    def summed_at_once(self) -> int:
        d = len(self.grid.size)  # cells of many rows are summed by products of matrices
        return max(self.chunk_size(), min(MOST, SUMMED // (4**d + 10 ** (d - 1))))

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> SparseRows:
        """Interpolation weights, 4^d a point. O(4^d n).

        Raises:
            GridError: if a point is NaN or more than one cell outside the bounds.
        """
        positions = self.grid.positions(X.to(torch.float64))
        weights, first = cubic_weights(positions, grid_geometry(self.grid, X.device).last_cell, self.basis)
        nodes = first.unsqueeze(-1) + next_nodes(X.device)
        values, columns = weights[..., 0, :], nodes[..., 0, :]
        for axis in range(1, len(self.grid.size)):
            values = rowwise_kronecker(values, weights[..., axis, :])
            columns = (columns.unsqueeze(-1) * self.grid.size[axis] + nodes[..., axis, :].unsqueeze(-2)).flatten(-2)
        return SparseRows(values, columns.long(), self.num_features)

    @override
    def prior_root(self) -> KroneckerColumns:
        """R = ⊗ T_l Q_l Λ_l^½ of the leading eigenpairs; see `GridPrior.root`."""
        return self.prior.root()

    @override
    def reduced(self, root: LinearOperator) -> FeatureMap | None:
        if not isinstance(root, KroneckerColumns) or root.shape.numel() <= DENSE_ROOT:
            return None
        return SpectralFeatures(self, root)

    @override
    def whitened(self, root: LinearOperator) -> FeatureMap:
        return SpectralFeatures(self, root) if isinstance(root, KroneckerColumns) else super().whitened(root)

    @override
    def sparse_prior(self) -> SparsePrior | None:
        """The precision of exponential factors, without truncation, if its banded Cholesky is affordable."""
        return SparsePrior(self, self.grid.size, *self.prior.precision()) if self.prior.sparse else None

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """Φ S Φᵀ: O(n² Σ m_l), or O(n² s) if truncated."""
        if self.prior.limited:
            F = SpectralFeatures(self, self.prior_root())(X)
            return F @ F.mT
        return self.prior.covariance(list(X.to(torch.float64).unbind(-1)))

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return torch.stack(self.prior.at_zero()).prod().expand(X.shape[:-1])

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """φ(x)ᵀ S φ(x): O(n Σ m_l²), or O(n d s) if truncated."""
        X = X.to(torch.float64)
        if self.prior.limited:
            return SpectralFeatures(self, self.prior_root())(X).square().sum(-1)
        self.grid.positions(X.detach())  # refuses points outside
        return self.prior.variance([u.reshape(-1) for u in X.unbind(-1)]).reshape(X.shape[:-1])

    def interpolation_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """mse(x), the prior variance of f(x) minus its interpolation; see `InterpolationError.at`."""
        return self.error.at(X)

    def box_gram(self) -> StencilGram:
        """∫ φφᵀ dx over the box of the bounds, divided by its volume. Exact: a product over dimensions."""
        gram = torch.ones((), dtype=torch.float64, device=self.device)
        for axis, m in enumerate(self.grid.size):
            points, weights = cell_points(self.grid, axis, self.device)
            rows = axis_weights(self.grid, self.basis, points, axis)
            factor = StencilGram.zeros((m,), self.device).add_rows(rows, weights)
            gram = torch.tensordot(gram, factor.values, dims=0)
        return StencilGram(gram, self.grid.size)


@dataclass(frozen=True)
class SpectralFeatures(Whitened):
    """ψ(x) = Rᵀφ(x): features of a grid in the eigenbasis of its prior.

    Column i is Π_l (φ_l(x)ᵀT_l Q_lΛ_l^½)[i_l] ([GRIEF] theorem 2). O(n d s); no p×s matrix is formed.

    Attributes:
        base: φ.
        root: R.
    """

    base: GridFeatures
    root: KroneckerColumns

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n s"]:
        positions = self.base.grid.positions(X.to(torch.float64))
        features = self.root.weight
        for axis, (R, index) in enumerate(zip(self.root.factors, self.root.index.unbind(-1), strict=True)):
            rows = axis_rows(positions[..., axis], self.base.grid.size[axis], self.base.basis)
            features = features * (rows @ R)[..., index]
        return features

    def interpolation_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """mse(x) of the grid's features."""
        return self.base.interpolation_variance(X)

    def box_gram(self) -> DenseGram:
        """∫ ψψᵀ dx over the box of the bounds, divided by its volume."""
        gram = self.base.box_gram()
        return DenseGram(gram.congruence(self.root, gram.values.new_ones(())))


def grid_parts(features: FeatureMap) -> tuple["GridFeatures | SpectralFeatures", ...]:
    """Grids of a feature map: the map itself, or the parts of a sum.

    Raises:
        WrongTypeError: if any part is not a grid.
    """
    parts = features.parts if isinstance(features, SumFeatures) else (features,)
    grids = tuple(phi for phi in parts if isinstance(phi, GridFeatures | SpectralFeatures))
    if len(grids) < len(parts):
        raise WrongTypeError(f"{[type(phi).__name__ for phi in parts]} are not all grids.")
    return grids


def box_gram(features: FeatureMap) -> Gram:
    """∫ φφᵀ dx over the box that all grids share, divided by its volume. Exact."""
    parts = grid_parts(features)
    if len(parts) == 1:
        return parts[0].box_gram()
    grids = [phi.base if isinstance(phi, SpectralFeatures) else phi for phi in parts]
    entries = [phi.box_gram().values.flatten() for phi in grids]
    entries += [_box_coupling(one, two).flatten() for one, two in itertools.combinations(grids, 2)]
    gram = replace(BlockGram.zeros(grids, grids[0].device), values=torch.cat(entries))
    roots = [phi.root for phi in parts if isinstance(phi, SpectralFeatures)]
    return gram if not roots else DenseGram(gram.congruence(StackedRoot(*roots), gram.values.new_ones(())))


def _box_coupling(one: GridFeatures, two: GridFeatures) -> Float[Tensor, "a b"]:
    """∫ φ_1φ_2ᵀ dx over the box, a Kronecker product. Between the knots of either grid both are cubics."""
    coupling = torch.ones(1, 1, dtype=torch.float64, device=one.device)
    for axis in range(len(one.grid.size)):
        knots = torch.cat([phi.grid.nodes(phi.device)[axis][1:-1] for phi in (one, two)]).sort().values
        points, weights = gauss_points(knots)
        left, right = (axis_weights(phi.grid, phi.basis, points, axis).to_dense() for phi in (one, two))
        coupling = torch.kron(coupling, (left.mT * weights) @ right / (knots[-1] - knots[0]))
    return coupling
