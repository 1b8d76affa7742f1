"""The error of interpolation from a grid, by products over dimensions: at points, and averaged over the box."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.gp.weight_space.features.grid.interpolation import axis_weights, cell_points
from bo_scale.gp.weight_space.features.grid.prior import GridPrior

Terms = tuple[Tensor, Tensor, Tensor]
"""Three terms of mse: k₀, φᵀT k_U and φᵀSφ."""


@dataclass(frozen=True)
class InterpolationError:
    """mse(x) = k₀ − 2 φ(x)ᵀ T k_U(x) + φ(x)ᵀ S φ(x): the prior variance of f(x) minus its interpolation.

    Each term is a product over dimensions. If the prior is truncated, f_U is projected on the eigenpairs kept. Means
    over the box of the bounds are by four Gauss points a cell. All is differentiable.

    Attributes:
        prior: The prior over the weights of the grid.
    """

    prior: GridPrior

    def at(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """mse(x). O(n Σ m_l²), whatever the number of nodes; O(n d s) if truncated.

        Raises:
            GridError: if a point is NaN or more than one cell outside the bounds.
        """
        X = X.to(torch.float64)
        self.prior.grid.positions(X.detach())  # refuses points outside
        exact, cross, interpolated = self._terms(self._tables([u.reshape(-1) for u in X.unbind(-1)]))
        # A variance: below zero only by rounding.
        return (exact - 2 * cross + interpolated).clamp_min(0.0).reshape(X.shape[:-1])

    def mean(self) -> Float[Tensor, ""]:
        """Mean of mse(x) over the box. O(Σ m_l³ + d s)."""
        exact, cross, interpolated = self._mean_terms()
        return (exact - 2 * cross + interpolated).clamp_min(0.0)

    def of_axis(self, axis: int) -> float:
        """Mean interpolation error in one dimension, as a share of the prior variance. O(m_l³)."""
        w, (k0, cross, square) = self._gauss_tables(self._factors)[axis]
        return max(0.0, (1 - (w @ (2 * cross - square)) / k0[0]).item())

    def rank_loss(self) -> Float[Tensor, ""]:
        """Share of the interpolated prior's variance, averaged over the box, that truncation loses."""
        whole = torch.stack([(w * t[2]).sum() for w, t in self._gauss_tables(self._factors)]).prod()
        return (1 - self._mean_terms()[2] / whole).clamp_min(0.0)

    def mean_missing_variance(self) -> Float[Tensor, ""]:
        """Mean over the box of k(x, x) − φ(x)ᵀ S φ(x) where positive. O(Σ m_l³ + Π m_l).

        If truncated, the positive part is taken of the mean, not of each point.
        """
        if self.prior.limited:
            terms = self._mean_terms()
            return (terms[0] - terms[2]).clamp_min(0.0)
        exact = interpolated = mass = torch.ones((), dtype=torch.float64, device=self.prior.device)
        for w, (k0, _, k) in self._gauss_tables(self._factors):
            exact, interpolated = k0[0] * exact, interpolated.unsqueeze(-1) * k
            mass = mass.unsqueeze(-1) * w
        return ((exact - interpolated).clamp_min(0.0) * mass).sum()

    def _mean_terms(self) -> Terms:
        means = [
            (w @ k0, (w.unsqueeze(-1) * cross).sum(0, keepdim=True), (w.unsqueeze(-1) * square).sum(0, keepdim=True))
            for w, (k0, cross, square) in self._gauss_tables(self._tables)
        ]
        exact, cross, interpolated = self._terms(means)
        return exact, cross.squeeze(), interpolated.squeeze()

    def _gauss_tables(self, tables: Callable[[list[Tensor]], list[Any]]) -> list[tuple[Float[Tensor, " n"], Any]]:
        """Weights of the Gauss points, and `tables` evaluated at these points, for every dimension."""
        grid, device = self.prior.grid, self.prior.device
        points, weights = zip(*[cell_points(grid, axis, device) for axis in range(len(grid.size))], strict=True)
        return list(zip(weights, tables(list(points)), strict=True))

    def _terms(self, tables: list[Terms]) -> Terms:
        """Three terms of mse from the terms of the dimensions: their products, or sums of products over eigenpairs."""
        exact = torch.stack([k0 for k0, _, _ in tables]).prod(0)
        crosses, squares = [cross for _, cross, _ in tables], [square for _, _, square in tables]
        if not self.prior.limited:
            return exact, torch.cat(crosses, -1).prod(-1), torch.cat(squares, -1).prod(-1)
        _, index, weight, _, _ = self.prior.spectrum
        return exact, sum_of_products(crosses, index, weight), sum_of_products(squares, index, weight.square())

    def _tables(self, points: list[Float[Tensor, " _"]]) -> list[Terms]:
        """k_l(u, u) and the other two terms of `_factors` for each dimension: n × 1, or n × m by eigenvector."""
        prior = self.prior
        if not prior.limited:
            return [(k0, cross.unsqueeze(-1), square.unsqueeze(-1)) for k0, cross, square in self._factors(points)]
        exact, k_nodes = prior.at_zero(), prior.factors(points, prior.grid.nodes(prior.device))
        tables = []
        for axis, (k, (values, Q)) in enumerate(zip(k_nodes, prior.spectrum.eigen)):
            along = axis_weights(prior.grid, prior.basis, points[axis], axis).to_dense() @ (prior.prefilter[axis] @ Q)
            tables.append((exact[axis].expand(len(k)), along * (k @ Q), along.square() * values.clamp_min(0.0)))
        return tables

    def _factors(self, points: list[Float[Tensor, " _"]]) -> list[Terms]:
        """k_l(u, u), φ_lᵀT_l k_l(U, u) and φ_lᵀT_l K_l T_lᵀφ_l for each dimension."""
        prior = self.prior
        nodes, at_zero = prior.grid.nodes(prior.device), prior.at_zero()
        terms = []
        for axis, (K, k, k0) in enumerate(zip(prior.node_kernels, prior.factors(points, nodes), at_zero)):
            W = prior.interpolation(points[axis], axis)
            terms.append((k0.expand(len(W)), (W * k).sum(-1), ((W @ K) * W).sum(-1)))
        return terms


def sum_of_products(
    tables: list[Float[Tensor, "n _"]], index: Int[Tensor, "s d"], weight: Float[Tensor, " s"]
) -> Float[Tensor, " n"]:
    """Σ_i weight_i Π_l tables_l[:, index_il], in chunks of rows. O(n d s)."""
    size = max(1, 10_000_000 // len(index))
    sums = []
    for rows in zip(*[table.split(size) for table in tables], strict=True):
        product = weight
        for table, i in zip(rows, index.unbind(-1), strict=True):
            product = product * table[:, i]
        sums.append(product.sum(-1))
    return torch.cat(sums) if sums else weight.new_zeros(0)
