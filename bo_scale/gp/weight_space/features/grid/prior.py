"""The prior over the weights of a grid: its root by eigenpairs, what a rank leaves out of it, its sparse precision."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.gp.linalg.dense import symmetric_eigen
from bo_scale.gp.linalg.kronecker import KroneckerColumns, top_kronecker_eigenvalues
from bo_scale.gp.transfer import to_device
from bo_scale.gp.weight_space.features.grid.interpolation import (
    Basis,
    Grid,
    axis_weights,
    exponential_precision,
    prefilter,
)

RANK_TOLERANCE = 1e-10
"""Relative size below which Kronecker eigenpairs of the prior are left out of its root."""

KernelFactors = Callable[[list[Float[Tensor, " _"]], list[Float[Tensor, " _"]]], list[Float[Tensor, "_ _"]]]
"""Function from points u_l and v_l of every dimension to k_l(u_l, v_l). The kernel is the product of these factors.

The points may be on the CPU even if the features are not."""

HOST = torch.device("cpu")
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
        widths: Number of eigenvectors of every dimension that the pairs use.
    """

    eigen: list[tuple[Float[Tensor, " _"], Float[Tensor, "_ _"]]]
    pairs: Int[Tensor, "s d"]
    weight: Float[Tensor, " s"]
    cut: bool
    widths: tuple[int, ...]


@dataclass(frozen=True)
class GridPrior:
    """The prior over the weights of a grid: w = (⊗ T_l) f_U with values f_U ~ N(0, ⊗ K_l) at its nodes.

    Attributes:
        grid: The grid.
        factors: One-dimensional factors of the kernel.
        basis: Basis of the interpolation, which gives T_l.
        device: Device on which the prior is computed.
        negligible: Variance, averaged over the nodes, below which an eigenpair is left out.
        rank: Largest number of eigenpairs; None for all that are not negligible.
        exponential: Whether the factors are Matérn-1/2 kernels, so that a sparse precision may serve.
    """

    grid: Grid
    factors: KernelFactors = field(repr=False)
    basis: Basis = "spline"
    device: torch.device | None = None
    negligible: float = 0.0
    rank: int | None = None
    exponential: bool = False

    @property
    def prefilter(self) -> list[Float[Tensor, "_ _"]]:
        """T_l: maps values at the nodes to coefficients of the basis."""
        return [prefilter(m, self.basis, self.device) for m in self.grid.size]

    @property
    def node_kernels(self) -> list[Float[Tensor, "_ _"]]:
        """K_l = k_l(U_l, U_l), computed once if the kernel is frozen."""
        if self._solved_on_host:
            return self._solved[0]
        if "_node_kernels" in self.__dict__:
            kept: list[Tensor] = self.__dict__["_node_kernels"]
            return kept
        nodes = self.grid.nodes(self.device)
        kernels = self.factors(nodes, nodes)
        if not any(K.requires_grad for K in kernels):
            self.__dict__["_node_kernels"] = kernels
        return kernels

    @property
    def spectrum(self) -> Spectrum:
        """Eigenpairs above 1e-10 of the largest, at most `rank`; computed once for frozen kernels.

        Pairs that add negligible variance are left out too. Pairs fade out before both limits, which keeps the evidence
        a smooth function of the hyperparameters: over a decade above the negligible variance, and over a factor of 1.25
        above the first pair beyond the rank. O(Σ m_l³ + d m_l s).
        """
        if self._solved_on_host:
            return self._solved[1]
        if "_spectrum" not in self.__dict__:
            spectrum = leading_pairs(self.node_kernels, self.negligible, self.rank)
            if any(values.requires_grad for values, _ in spectrum.eigen):
                return spectrum
            self.__dict__["_spectrum"] = spectrum
        kept: Spectrum = self.__dict__["_spectrum"]
        return kept

    def root(self) -> KroneckerColumns:
        """R = ⊗ T_l Q_l Λ_l^½ restricted to the pairs of `spectrum`.

        Eigenpairs replace Cholesky factors because K_UU of a smooth kernel is numerically singular. They need no
        jitter, and the rank s is far below p.
        """
        if self._solved_on_host:
            return self._root_on_gpu()
        eigen, index, weight, _, widths = self.spectrum
        roots = [
            T @ (Q[:, :s] * values[:s].sqrt()) for T, (values, Q), s in zip(self.prefilter, eigen, widths, strict=True)
        ]
        return KroneckerColumns(weight, *roots, index=index)

    @property
    def _solved_on_host(self) -> bool:
        """Whether it is solved for on the CPU: for a GPU, since matrices are small and the host must know sizes."""
        return self.device is not None and self.device.type == "cuda"

    @property
    def _solved(self) -> tuple[list[Float[Tensor, "_ _"]], Spectrum]:
        """Node kernels and spectrum, computed on the CPU and copied at once; kept for frozen kernels."""
        if "_on_gpu" not in self.__dict__:
            here, d = replace(self, device=HOST), len(self.grid.size)
            kernels, spectrum = here.node_kernels, here.spectrum
            pairs = [each for pair in spectrum.eigen for each in pair]
            index, weight, *found = to_device([spectrum.pairs, spectrum.weight, *kernels, *pairs], self.device)
            eigen = list(zip(found[d::2], found[d + 1 :: 2], strict=True))
            solved = found[:d], spectrum._replace(eigen=eigen, pairs=index.long(), weight=weight)
            if weight.requires_grad:
                return solved
            self.__dict__["_on_gpu"] = solved
        kept: tuple[list[Tensor], Spectrum] = self.__dict__["_on_gpu"]
        return kept

    def _root_on_gpu(self) -> KroneckerColumns:
        """R, computed on the CPU and copied; kept for frozen kernels."""
        if "_root" not in self.__dict__:
            here = replace(self, device=HOST).root()
            weight, index, *factors = to_device([here.weight, here.index, *here.factors], self.device)
            root = KroneckerColumns(weight, *factors, index=index.long())
            if weight.requires_grad:
                return root
            self.__dict__["_root"] = root
        kept: KroneckerColumns = self.__dict__["_root"]
        return kept

    @property
    def sparse(self) -> bool:
        """Whether there is an affordable sparse precision."""
        points = self.grid.num_points
        if not self.exponential or points * (3 * points // max(self.grid.size)) ** 2 > BANDED_WORK:
            return False
        correlations = [(near[1] / near[0]).item() for near in self._neighbours()]
        return math.prod(1 - rho**2 for rho in correlations) * LARGEST_PRECISION > 1

    @property
    def limited(self) -> bool:
        """Whether truncation drops variance that matters. A sparse precision is not truncated."""
        return self.rank is not None and self.rank < self.grid.num_points and not self.sparse and self.spectrum.cut

    def precision(self) -> tuple[Float[Tensor, "..."], Float[Tensor, ""]]:
        """Q = ⊗ C_lᵀK_l⁻¹C_l of exponential factors, without truncation, as a stencil; and log|Q|. O(4^d p)."""
        values = torch.ones((), dtype=torch.float64, device=self.device)
        logdet = torch.zeros_like(values)
        for near, m in zip(to_device(self._neighbours(), self.device), self.grid.size, strict=True):
            precision, own = exponential_precision(near[0], near[1] / near[0], m, self.basis)
            values = torch.tensordot(values, precision, 0)
            logdet = logdet + (self.grid.num_points // m) * own
        return values, logdet

    def _neighbours(self) -> list[Float[Tensor, " 2"]]:
        """Kernel of a node with itself and with the next node, for every dimension. On the CPU."""
        nodes = self.grid.nodes(HOST)
        return [K.squeeze(0) for K in self.factors([u[:1] for u in nodes], [u[:2] for u in nodes])]

    # ------------------------------------------------------------------ functions drawn from it

    def at_zero(self) -> list[Float[Tensor, ""]]:
        """k_l(0, 0) of every dimension; their product is the kernel's variance."""
        origin = [torch.zeros(1, dtype=torch.float64, device=self.device) for _ in self.grid.size]
        return [k0.squeeze() for k0 in self.factors(origin, origin)]

    def interpolation(self, u: Float[Tensor, " n"], axis: int) -> Float[Tensor, "n m"]:
        """φ_lᵀT_l: maps values at the nodes of one dimension to values at the points u. O(n m²)."""
        return axis_weights(self.grid, self.basis, u, axis).to_dense() @ prefilter(
            self.grid.size[axis], self.basis, self.device
        )

    def covariance(self, points: list[Float[Tensor, " n"]]) -> Float[Tensor, "n n"]:
        """Φ S Φᵀ without truncation, from the coordinates of n points: a product over dimensions. O(n² Σ m_l)."""
        K = torch.ones((), dtype=torch.float64, device=points[0].device)
        for axis, (u, node_kernel) in enumerate(zip(points, self.node_kernels, strict=True)):
            W = self.interpolation(u, axis)
            K = K * (W @ node_kernel @ W.mT)
        return K

    def variance(self, points: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        """φ(x)ᵀ S φ(x) without truncation: a product over dimensions. O(n Σ m_l²)."""
        interpolated = []
        for axis, (u, node_kernel) in enumerate(zip(points, self.node_kernels, strict=True)):
            W = self.interpolation(u, axis)
            interpolated.append(((W @ node_kernel) * W).sum(-1))
        return torch.stack(interpolated).prod(0)


def leading_pairs(kernels: list[Float[Tensor, "_ _"]], negligible: float, rank: int | None) -> Spectrum:
    """Kronecker eigenpairs of ⊗ K_l, without those that add less variance than is negligible, or are beyond a rank.

    O(Σ m_l³ + d m_l s).

    Args:
        kernels: K_l of every dimension.
        negligible: Variance, averaged over the nodes, below which a pair is left out.
        rank: Largest number of pairs; None for all that are not negligible.
    """
    eigen, size = [symmetric_eigen(K) for K in kernels], math.prod(len(K) for K in kernels)
    limit = None if rank is None else rank + 1
    found, index = top_kronecker_eigenvalues([values.detach() for values, _ in eigen], RANK_TOLERANCE, limit)
    counted = max(1, int((found > negligible * size).sum()))
    cut = rank is not None and counted > rank
    values = torch.stack([v[i] for (v, _), i in zip(eigen, index[:counted].unbind(-1))]).prod(0)
    weight = torch.ones_like(values)
    if negligible > 0:
        weight = _smooth_step((values / (negligible * size)).log10())
    if cut:
        fade = (values[:-1] / values[-1]).log() + TIE
        width = (fade[9 * len(fade) // 10]).clamp_max(math.log(FADE))
        index, values, weight = index[:rank], values[:-1], weight[:-1] * _smooth_step(fade / width)
    order = torch.from_numpy(np.lexsort(index[: len(values)].flip(-1).T.cpu().numpy())).to(index.device)
    index = index[order]
    return Spectrum(eigen, index, weight[order], cut, tuple((index.amax(0) + 1).tolist()))


def _smooth_step(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Smooth step: 0 below 0, 1 above 1, and 3x² − 2x³ between."""
    x = x.clamp(0.0, 1.0)
    return x.square() * (3 - 2 * x)
