"""Local cubic interpolation on a Cartesian grid: the features of WISKI.

A function is represented by its values at the grid's nodes: f(x) ≈ φ(x)ᵀ T f_U with f_U ~ N(0, ⊗ K_l). Hence
S = (⊗ T_l) (⊗ K_l) (⊗ T_l)ᵀ, and φ has 4^d non-zeros.

    keys:   cubic convolution (Keys 1981, a = −½), T = I.                       [WISKI] section 3
    spline: cubic B-splines, T the inverse of the matrix of their values at the nodes (prefiltering); C².
            Not-a-knot ends: the outermost cell continues the polynomial of its neighbour.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import WrongTypeError
from bo_scale.gp.linalg.dense import symmetric_eigen
from bo_scale.gp.linalg.kronecker import KroneckerColumns, rowwise_kronecker, top_kronecker_eigenvalues
from bo_scale.gp.weight_space.features.base import FeatureMap, SparsePrior, Whitened
from bo_scale.gp.weight_space.features.grid.interpolation import (
    Basis,
    Grid,
    axis_rows,
    cubic_weights,
    exponential_precision,
    gauss_points,
    grid_geometry,
    prefilter,
)
from bo_scale.gp.weight_space.features.grid.stencil import StencilGram
from bo_scale.gp.weight_space.features.sparse_rows import SparseRows
from bo_scale.gp.weight_space.features.sums import BlockGram, StackedRoot, SumFeatures
from bo_scale.gp.weight_space.gram import DenseGram, Gram
from bo_scale.gp.weight_space.inherited_statistics import InheritedGram, Transfer

RANK_TOLERANCE = 1e-10
"""Relative size below which Kronecker eigenpairs of the prior are left out of its root."""

KernelFactors = Callable[[list[Float[Tensor, " _"]], list[Float[Tensor, " _"]]], list[Float[Tensor, "_ _"]]]
"""Function from points u_l and v_l of every dimension to k_l(u_l, v_l). The kernel is the product of these factors."""

DENSE_ROOT = 1 << 24
"""Largest number of entries p·s of a posterior root that is kept whole. A point then costs 4^d s, else d s + s²."""
BANDED_WORK = 3e10
"""Largest p b² of an affordable banded Cholesky, a few seconds: b nodes in a block of three planes."""
FADE = 1.25
"""Range over which eigenpairs fade out before the first that a limited rank leaves out: this factor in the eigenvalue,
or a tenth of the eigenpairs, whichever is less."""
TIE = 1e-9
"""Difference below which log eigenvalues count as equal. If all are equal, none fades."""
LARGEST_PRECISION = 1e11
"""Largest Π 1/(1 − ρ_l²) of a sparse precision; above it too many digits are lost, but such priors have low rank."""


class Spectrum(NamedTuple):
    """The leading Kronecker eigenpairs of a prior over the nodes.

    Attributes:
        eigen: Eigenvalues, largest first, and eigenvectors of every dimension.
        pairs: Multi-index of each pair: the one-dimensional eigenpairs that it is a product of.
        weight: Factors on the roots of the pairs: 1, or less where pairs fade out.
        cut: Whether the rank limit left out pairs that matter.
    """

    eigen: list[tuple[Float[Tensor, " _"], Float[Tensor, "_ _"]]]
    pairs: Int[Tensor, "s d"]
    weight: Float[Tensor, " s"]
    cut: bool


@dataclass(frozen=True)
class GridFeatures(FeatureMap):
    """Cubic interpolation from a grid with a product kernel over its nodes. φ has no parameters.

    Attributes:
        grid: The grid.
        factors: One-dimensional factors of the kernel.
        basis: "spline" or "keys".
        device: Device on which the prior is computed.
        negligible: Variance, averaged over the nodes, below which an eigenpair of the prior is left out.
        rank: Largest number of eigenpairs; None for all that are not negligible.
        exponential: Whether the factors are Matérn-1/2 kernels, whose precision is sparse.
        ancestors: Grids with data that this grid lacks, latest first; see `inherited_statistics`.
    """

    grid: Grid
    factors: KernelFactors = field(repr=False)
    basis: Basis = "spline"
    device: torch.device | None = None
    negligible: float = 0.0
    rank: int | None = None
    exponential: bool = False
    ancestors: tuple[Grid, ...] = ()

    @property
    @override
    def num_features(self) -> int:
        return self.grid.num_points

    @property
    @override
    def max_rank(self) -> int:
        return self.num_features if self.rank is None else min(self.num_features, self.rank)

    @override
    def empty_gram(self, device: torch.device | None = None) -> StencilGram | InheritedGram:
        if not self.ancestors:
            return StencilGram.zeros(self.grid.size, device)
        line = (self.grid, *self.ancestors)
        transfers: list[Transfer] = []
        for new, old in itertools.pairwise(line):
            step = self._transfer(old, new, device)
            transfers.append(step if not transfers else tuple(s @ t for s, t in zip(step, transfers[-1], strict=True)))
        return InheritedGram.zeros([StencilGram.zeros(grid.size, device) for grid in line], transfers)

    def _transfer(self, old: Grid, new: Grid, device: torch.device | None) -> Transfer:
        """P_l = T_old φ_new(U_old): coefficients on the old grid of a function on the new one."""
        steps = []
        for axis, nodes in enumerate(old.nodes(device)):
            positions = (nodes - new.lower[axis]) / new.spacing[axis] + 1.0  # outside the new margin by rounding only
            seen = axis_rows(positions, new.size[axis], self.basis).to_dense()
            steps.append(prefilter(old.size[axis], self.basis, device) @ seen)
        return tuple(steps)

    @override
    def chunk_size(self) -> int:
        return max(1, 8_000_000 // 10 ** len(self.grid.size))

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> SparseRows:
        """Interpolation weights, 4^d a point. O(4^d n).

        Raises:
            GridError: if a point is NaN or more than one cell outside the bounds.
        """
        positions = self.grid.positions(X.to(torch.float64))
        weights, first = cubic_weights(positions, grid_geometry(self.grid, X.device)[2], self.basis)
        nodes = first.unsqueeze(-1) + torch.arange(4, device=X.device)
        values, columns = weights[..., 0, :], nodes[..., 0, :]
        for axis in range(1, len(self.grid.size)):
            values = rowwise_kronecker(values, weights[..., axis, :])
            columns = (columns.unsqueeze(-1) * self.grid.size[axis] + nodes[..., axis, :].unsqueeze(-2)).flatten(-2)
        return SparseRows(values, columns.long(), self.num_features)

    @property
    def prefilter(self) -> list[Float[Tensor, "_ _"]]:
        """T_l: maps values at the nodes to coefficients of the basis."""
        return [prefilter(m, self.basis, self.device) for m in self.grid.size]

    @property
    def node_kernels(self) -> list[Float[Tensor, "_ _"]]:
        """K_l = k_l(U_l, U_l), computed once if the kernel is frozen."""
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
        return axis_rows((u - grid.lower[axis]) / grid.spacing[axis] + 1.0, grid.size[axis], self.basis)

    @property
    def spectrum(self) -> Spectrum:
        """Eigenpairs of the prior above 1e-10 of the largest, at most `rank`; computed once for frozen kernels.

        Pairs that add negligible variance are left out too. Pairs fade out before both limits, which keeps the evidence
        a smooth function of the hyperparameters: over a decade above the negligible variance, and over a factor of 1.25
        above the first pair beyond the rank. O(Σ m_l³ + d m_l s).
        """
        if "_spectrum" not in self.__dict__:
            spectrum = self._find_spectrum()
            if any(values.requires_grad for values, _ in spectrum.eigen):
                return spectrum
            self.__dict__["_spectrum"] = spectrum
        kept: Spectrum = self.__dict__["_spectrum"]
        return kept

    def _find_spectrum(self) -> Spectrum:
        eigen = [symmetric_eigen(K) for K in self.node_kernels]
        limit = None if self.rank is None else self.rank + 1
        found, index = top_kronecker_eigenvalues([values.detach() for values, _ in eigen], RANK_TOLERANCE, limit)
        counted = max(1, int((found > self.negligible * self.num_features).sum()))
        cut = self.rank is not None and counted > self.rank
        values = torch.stack([v[i] for (v, _), i in zip(eigen, index[:counted].unbind(-1))]).prod(0)
        weight = torch.ones_like(values)
        if self.negligible > 0:
            weight = _smooth_step((values / (self.negligible * self.num_features)).log10())
        if cut:
            fade = (values[:-1] / values[-1]).log() + TIE
            width = (fade[9 * len(fade) // 10]).clamp_max(math.log(FADE))
            index, values, weight = index[: self.rank], values[:-1], weight[:-1] * _smooth_step(fade / width)
        order = torch.from_numpy(np.lexsort(index[: len(values)].flip(-1).T.cpu().numpy())).to(index.device)
        return Spectrum(eigen, index[order], weight[order], cut)

    @override
    def prior_root(self) -> KroneckerColumns:
        """R = ⊗ T_l Q_l Λ_l^½ restricted to the pairs of `spectrum`.

        Eigenpairs replace Cholesky factors because K_UU of a smooth kernel is numerically singular. They need no
        jitter, and the rank s is far below p.
        """
        eigen, index, weight, _ = self.spectrum
        widths = (index.amax(0) + 1).tolist()
        roots = [
            T @ (Q[:, :s] * values[:s].sqrt()) for T, (values, Q), s in zip(self.prefilter, eigen, widths, strict=True)
        ]
        return KroneckerColumns(weight, *roots, index=index)

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
        """Q = ⊗ C_lᵀK_l⁻¹C_l of exponential factors, without truncation, if its banded Cholesky is affordable."""
        if not self.sparse:
            return None
        size = self.grid.size
        values = logdet = torch.ones((), dtype=torch.float64, device=self.device)
        logdet = logdet - 1.0
        for near, m in zip(self._neighbours(), size, strict=True):
            precision, own = exponential_precision(near[0], near[1] / near[0], m, self.basis)
            values = torch.tensordot(values, precision, 0)
            logdet = logdet + (self.num_features // m) * own
        return SparsePrior(self, size, values, logdet)

    @property
    def limited(self) -> bool:
        """Whether truncation drops variance that matters. A sparse precision is not truncated."""
        return self.num_features > self.max_rank and not self.sparse and self.spectrum.cut

    @property
    def sparse(self) -> bool:
        """Whether there is an affordable sparse precision."""
        work = self.num_features * (3 * self.num_features // max(self.grid.size)) ** 2
        if not self.exponential or self.ancestors or work > BANDED_WORK:
            return False
        correlations = [(near[1] / near[0]).item() for near in self._neighbours()]
        return math.prod(1 - rho**2 for rho in correlations) * LARGEST_PRECISION > 1

    def _neighbours(self) -> list[Float[Tensor, " 2"]]:
        """Kernel of a node with itself and with the next node, for every dimension."""
        nodes = self.grid.nodes(self.device)
        return [K.squeeze(0) for K in self.factors([u[:1] for u in nodes], [u[:2] for u in nodes])]

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """Φ S Φᵀ as a product over dimensions, ∘_l (W_l T_l) K_l (W_l T_l)ᵀ: O(n² Σ m_l), or O(n² s) if truncated."""
        if self.limited:
            F = SpectralFeatures(self, self.prior_root())(X)
            return F @ F.mT
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
        """φ(x)ᵀ S φ(x) as a product over dimensions: O(n Σ m_l²), or O(n d s) if truncated."""
        X = X.to(torch.float64)
        if self.limited:
            return SpectralFeatures(self, self.prior_root())(X).square().sum(-1)
        self.grid.positions(X.detach())  # refuses points outside
        terms = self._error_factors([u.reshape(-1) for u in X.unbind(-1)])
        return torch.stack([interpolated for _, _, interpolated in terms]).prod(0).reshape(X.shape[:-1])

    def interpolation_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """mse(x) = k₀ − 2 φ(x)ᵀ T k_U(x) + φ(x)ᵀ S φ(x): prior variance of f(x) minus its interpolation.

        Each term is a product over dimensions: O(n Σ m_l²), whatever the number of nodes. If truncated, f_U is
        projected on the eigenpairs kept: O(n d s). Differentiable.
        """
        X = X.to(torch.float64)
        self.grid.positions(X.detach())  # refuses points outside
        exact, cross, interpolated = self._error_terms(self._error_tables([u.reshape(-1) for u in X.unbind(-1)]))
        # A variance: below zero only by rounding.
        return (exact - 2 * cross + interpolated).clamp_min(0.0).reshape(X.shape[:-1])

    def mean_interpolation_variance(self) -> Float[Tensor, ""]:
        """Mean of mse(x) over the box of the bounds, by four Gauss points a cell. O(Σ m_l³ + d s); differentiable."""
        exact, cross, interpolated = self._mean_error_terms()
        return (exact - 2 * cross + interpolated).clamp_min(0.0)

    def rank_loss(self) -> Float[Tensor, ""]:
        """Share of the interpolated prior's variance, averaged over the box, that truncation loses."""
        whole = torch.stack([(w * t[2]).sum() for w, t in self._gauss_tables(self._error_factors)]).prod()
        return (1 - self._mean_error_terms()[2] / whole).clamp_min(0.0)

    def axis_error(self, axis: int) -> float:
        """Mean interpolation error in one dimension, as a share of the prior variance. O(m_l³)."""
        w, (k0, cross, square) = self._gauss_tables(self._error_factors)[axis]
        return max(0.0, (1 - (w @ (2 * cross - square)) / k0[0]).item())

    def _mean_error_terms(self) -> tuple[Tensor, Tensor, Tensor]:
        means = [
            (w @ k0, (w.unsqueeze(-1) * cross).sum(0, keepdim=True), (w.unsqueeze(-1) * square).sum(0, keepdim=True))
            for w, (k0, cross, square) in self._gauss_tables(self._error_tables)
        ]
        exact, cross, interpolated = self._error_terms(means)
        return exact, cross.squeeze(), interpolated.squeeze()

    def _gauss_tables(self, tables: Callable[[list[Tensor]], list[Any]]) -> list[tuple[Float[Tensor, " n"], Any]]:
        """Weights of the Gauss points, and `tables` evaluated at these points, for every dimension."""
        points, weights = zip(*[self._gauss(axis) for axis in range(len(self.grid.size))], strict=True)
        return list(zip(weights, tables(list(points)), strict=True))

    def _error_terms(self, tables: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Three terms of mse from the terms of the dimensions: their products, or sums of products over eigenpairs."""
        exact = torch.stack([k0 for k0, _, _ in tables]).prod(0)
        crosses, squares = [cross for _, cross, _ in tables], [square for _, _, square in tables]
        if not self.limited:
            return exact, torch.cat(crosses, -1).prod(-1), torch.cat(squares, -1).prod(-1)
        _, index, weight, _ = self.spectrum
        return exact, _sum_of_products(crosses, index, weight), _sum_of_products(squares, index, weight.square())

    def _error_tables(self, points: list[Float[Tensor, " _"]]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """k_l(u, u) and the other two terms of `_error_factors` for each dimension: n × 1, or n × m by eigenvector."""
        if not self.limited:
            return [
                (k0, cross.unsqueeze(-1), square.unsqueeze(-1)) for k0, cross, square in self._error_factors(points)
            ]
        nodes = self.grid.nodes(self.device)
        exact = [k0.squeeze() for k0 in self.factors(*[[u.new_zeros(1) for u in points]] * 2)]
        tables = []
        for axis, (k, (values, Q)) in enumerate(zip(self.factors(points, nodes), self.spectrum.eigen)):
            along = self._axis_weights(points[axis], axis).to_dense() @ (self.prefilter[axis] @ Q)
            tables.append((exact[axis].expand(len(k)), along * (k @ Q), along.square() * values.clamp_min(0.0)))
        return tables

    def mean_missing_variance(self) -> Float[Tensor, ""]:
        """Mean of `missing_variance` over the box of the bounds, by four Gauss points a cell. O(Σ m_l³ + Π m_l).

        If truncated, the positive part is taken of the mean, not of each point.
        """
        if self.limited:
            terms = self._mean_error_terms()
            return (terms[0] - terms[2]).clamp_min(0.0)
        exact = interpolated = mass = torch.ones((), dtype=torch.float64, device=self.device)
        for w, (k0, _, k) in self._gauss_tables(self._error_factors):
            exact, interpolated = k0[0] * exact, interpolated.unsqueeze(-1) * k
            mass = mass.unsqueeze(-1) * w
        return ((exact - interpolated).clamp_min(0.0) * mass).sum()

    def _error_factors(self, points: list[Float[Tensor, " _"]]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """k_l(u, u), φ_lᵀT_l k_l(U, u) and φ_lᵀT_l K_l T_lᵀφ_l for each dimension."""
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
        knots = self.grid.nodes(self.device)[axis][1:-1]
        points, weights = gauss_points(knots)
        return points, weights / (knots[-1] - knots[0])

    def box_gram(self) -> StencilGram:
        """∫ φφᵀ dx over the box of the bounds, divided by its volume. Exact: a product over dimensions."""
        gram = torch.ones((), dtype=torch.float64, device=self.device)
        for axis, m in enumerate(self.grid.size):
            points, weights = self._gauss(axis)
            factor = StencilGram.zeros((m,), self.device).add_rows(self._axis_weights(points, axis), weights)
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
        raise WrongTypeError(f"{[type(phi).__name__ for phi in parts]} are not all grids")
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
        left, right = (phi._axis_weights(points, axis).to_dense() for phi in (one, two))
        coupling = torch.kron(coupling, (left.mT * weights) @ right / (knots[-1] - knots[0]))
    return coupling


def _smooth_step(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Smooth step: 0 below 0, 1 above 1, and 3x² − 2x³ between."""
    x = x.clamp(0.0, 1.0)
    return x.square() * (3 - 2 * x)


def _sum_of_products(
    tables: list[Float[Tensor, "n _"]], index: Int[Tensor, "s d"], weight: Float[Tensor, " s"]
) -> Float[Tensor, " n"]:
    """Σ_i weight_i Π_l tables_l[:, index_il], in chunks of rows."""
    size = max(1, 10_000_000 // len(index))
    sums = []
    for rows in zip(*[table.split(size) for table in tables], strict=True):
        product = weight
        for table, i in zip(rows, index.unbind(-1), strict=True):
            product = product * table[:, i]
        sums.append(product.sum(-1))
    return torch.cat(sums) if sums else weight.new_zeros(0)
