"""Actions: linear combinations of observations, on which a computation-aware GP conditions.

[CaGP] sections 2-3, whitened by the noise N = diag(d). Columns of S are scaled to SᵀNS = I. Then
A = Sᵀ(K + N)S = I + SᵀKS has no eigenvalue below 1 and needs no jitter, and the loss does not depend on the scales.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.function_space.kernel_products.chunked import kernel_products
from bo_scale.gp.function_space.process import Function, Functionals, Kernel
from bo_scale.gp.linalg.dense import cholesky


class Actions(Functionals):
    """Functionals Sᵀf(X): n observations reduced to i linear combinations."""

    @abstractmethod
    def project(self, values: Float[Tensor, "n ..."]) -> Float[Tensor, "i ..."]:
        """Sᵀ times a vector or a matrix."""

    @abstractmethod
    def products(self, kernel: Kernel, X: Float[Tensor, "n d"]) -> Float[Tensor, "n i"]:
        """K(X, X) S, in chunks of rows that are recomputed for gradients: O(n i) memory, n² kernel entries."""

    @abstractmethod
    def log_gram(self) -> Float[Tensor, ""]:
        """log|SᵀS|."""


@dataclass(frozen=True)
class Blocks:
    """A partition of n rows into i blocks.

    Attributes:
        index: Row numbers of every block, padded with 0 to the longest.
        mask: Whether an entry of `index` is a row, not padding.
    """

    index: Int[Tensor, "i k"]
    mask: Bool[Tensor, "i k"]

    @classmethod
    def of(cls, labels: Int[Tensor, " n"]) -> "Blocks":
        """Build a partition from the block of every row: 0 … i − 1, none empty."""
        order = labels.argsort(stable=True)
        sizes = labels.bincount()
        index = torch.zeros(len(sizes), int(sizes.max()), dtype=torch.long, device=labels.device)
        mask = torch.arange(index.shape[-1], device=labels.device) < sizes.unsqueeze(-1)
        index[mask] = order
        return cls(index, mask)

    @classmethod
    def single(cls, n: int, device: torch.device | None = None) -> "Blocks":
        """One block per row: unit actions, which lose nothing."""
        index = torch.arange(n, device=device).unsqueeze(-1)
        return cls(index, torch.ones_like(index, dtype=torch.bool))

    def gather(self, values: Float[Tensor, "n ..."]) -> Float[Tensor, "i k ..."]:
        """Rows of every block."""
        return values[self.index]


@dataclass(frozen=True)
class BlockActions(Actions):
    """Sparse actions: every row belongs to exactly one.    [CaGP] eq. 14.

    Attributes:
        points: Inputs of the rows of every block.
        entries: Entries of S, scaled to SᵀNS = I; padding is 0.
        blocks: Partition of the rows.
    """

    points: Float[Tensor, "i k d"]
    entries: Float[Tensor, "i k"]
    blocks: Blocks

    @classmethod
    def of(
        cls, X: Float[Tensor, "n d"], entries: Float[Tensor, " n"], noise: Float[Tensor, " n"], blocks: Blocks
    ) -> "BlockActions":
        """Build actions from one entry for each row, of any scale.

        Args:
            X: Inputs.
            entries: Entries of S before scaling, not all zero in any block.
            noise: Diagonal of N.
            blocks: Rows that each action combines.
        """
        s = blocks.gather(entries.to(torch.float64)) * blocks.mask
        scale = (s.square() * blocks.gather(noise)).sum(-1, keepdim=True).rsqrt()
        return cls(blocks.gather(X), s * scale, blocks)

    @property
    @override
    def count(self) -> int:
        return len(self.entries)

    @override
    def covariance(self, kernel: Kernel, Z: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b i q"]:
        b = kernel_products(kernel, Z.reshape(-1, Z.shape[-1]), self.points, self.entries)
        return b.reshape(*Z.shape[:-1], self.count).mT

    @override
    def of_function(self, function: Function) -> Float[Tensor, "*s i"]:
        values = function(self.points.flatten(0, 1))
        return (values.unflatten(-1, self.entries.shape) * self.entries).sum(-1)

    @override
    def project(self, values: Float[Tensor, "n ..."]) -> Float[Tensor, "i ..."]:
        gathered = self.blocks.gather(values)
        if self.entries.shape[-1] == 1:  # of unit actions there may be thousands
            return gathered.squeeze(1) * self.entries.view(-1, *[1] * (values.ndim - 1))
        return torch.einsum("ik,ik...->i...", self.entries, gathered)

    @override
    def products(self, kernel: Kernel, X: Float[Tensor, "n d"]) -> Float[Tensor, "n i"]:
        return kernel_products(kernel, X, self.points, self.entries)

    @override
    def log_gram(self) -> Float[Tensor, ""]:
        return self.entries.square().sum(-1).log().sum()


@dataclass(frozen=True)
class DenseActions(Actions):
    """Actions that combine all rows.

    Attributes:
        points: Inputs of all rows.
        matrix: S, scaled to SᵀNS = I.
    """

    points: Float[Tensor, "n d"]
    matrix: Float[Tensor, "n i"]

    @property
    @override
    def count(self) -> int:
        return self.matrix.shape[-1]

    @override
    def covariance(self, kernel: Kernel, Z: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b i q"]:
        return self.products(kernel, Z.reshape(-1, Z.shape[-1])).reshape(*Z.shape[:-1], self.count).mT

    @override
    def of_function(self, function: Function) -> Float[Tensor, "*s i"]:
        return function(self.points) @ self.matrix

    @override
    def project(self, values: Float[Tensor, "n ..."]) -> Float[Tensor, "i ..."]:
        return torch.tensordot(self.matrix, values, ([0], [0]))

    @override
    def products(self, kernel: Kernel, X: Float[Tensor, "q d"]) -> Float[Tensor, "q i"]:
        return kernel_products(kernel, X, self.points, self.matrix)

    @override
    def state(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix.clone()}

    @override
    def log_gram(self) -> Float[Tensor, ""]:
        return 2 * cholesky(self.matrix.mT @ self.matrix, "SᵀS").diagonal().log().sum()


# ---------------------------------------------------------------- losses


@dataclass(frozen=True)
class Projected:
    """Observations of one output, reduced by actions.

    Attributes:
        products: P = KS.
        factor: C, with C Cᵀ = A = I + W, W = SᵀKS.
        innovation: t = C⁻¹Sᵀ(y − μ).
    """

    products: Float[Tensor, "n i"]
    factor: Float[Tensor, "i i"]
    innovation: Float[Tensor, " i"]

    @classmethod
    def of(
        cls, kernel: Kernel, X: Float[Tensor, "n d"], residual: Float[Tensor, " n"], actions: Actions
    ) -> "Projected":
        """Reduce a residual y − μ by actions. Differentiable in all. n² kernel entries, O(n i) memory."""
        P = actions.products(kernel, X)
        W = actions.project(P)
        if W.requires_grad:
            W = 0.5 * (W + W.mT)  # for gradients: the factor is that of the lower triangle
        W.diagonal().add_(1.0)
        C = cholesky(W, "A = I + SᵀKS")
        t = torch.linalg.solve_triangular(C, actions.project(residual).unsqueeze(-1), upper=False)
        return cls(P, C, t.squeeze(-1))


def negative_elbo(
    projected: Projected,
    variance: Float[Tensor, " n"],
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    batch: Int[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Negative ELBO: −log p(y) plus the divergence of the approximate from the exact posterior. [CaGP] eq. 11.

    ½ [ Σ_j ((y_j − m_j)² + k_i(x_j, x_j))/d_j + log|N| + n log 2π + vᵀWv − tr(A⁻¹W) + log|A| ],  v = A⁻¹Sᵀ(y − μ),
    where N = diag(d) and SᵀNS = I. O(n i²), or O(b i²) for a batch.

    Args:
        projected: Projected observations of all rows.
        variance: k(x_j, x_j).
        residual: y − μ.
        noise: d.
        batch: Rows for an unbiased estimate of the first sum; None for all.
    """
    n, C, t = len(noise), projected.factor, projected.innovation
    rows = slice(None) if batch is None else batch
    weight = noise[rows].rsqrt()
    U = torch.linalg.solve_triangular(C, (projected.products[rows] * weight.unsqueeze(-1)).mT, upper=False)
    misfit = (weight * residual[rows] - t @ U).square().sum()
    data = (misfit + (weight.square() * variance[rows]).sum() - U.square().sum()) * (n / len(weight))
    inverse = torch.linalg.solve_triangular(C, torch.eye(len(C), dtype=C.dtype, device=C.device), upper=False)
    v = inverse.mT @ t
    complexity = t @ t - v @ v - len(C) + inverse.square().sum() + 2 * C.diagonal().log().sum()
    return 0.5 * (data + noise.log().sum() + n * math.log(2 * math.pi) + complexity)


def negative_projected_evidence(projected: Projected, actions: Actions) -> Float[Tensor, ""]:
    """Negative log density of the data's projection on the range of S, [CaGP] eq. 9.

    ½ [ tᵀt + log|A| − log|SᵀS| + i log 2π ]. Kept for comparison: it oversmooths.
    """
    C, t = projected.factor, projected.innovation
    rest = 2 * C.diagonal().log().sum() - actions.log_gram() + len(t) * math.log(2 * math.pi)
    return 0.5 * (t @ t + rest)


# ---------------------------------------------------------------- policies


def bisection(X: Float[Tensor, "n d"], count: int) -> Int[Tensor, " n"]:
    """Labels of `count` blocks of near points, by recursive bisection along the widest axis.

    Block sizes are nearly equal. They do not depend on the order of the points, or on the last digits of their extents.
    O(d n log n).
    """
    labels = torch.empty(len(X), dtype=torch.long)
    values = X.detach().cpu()
    waiting, done = [(lexicographic(values), min(count, len(X)))], 0
    while waiting:
        rows, share = waiting.pop()
        if share == 1:
            labels[rows], done = done, done + 1
            continue
        block = values[rows]
        extent = block.amax(0) - block.amin(0)
        axis = int((extent >= (1 - EQUAL) * extent.max()).byte().argmax())  # the first of equal ones
        order = rows[block[:, axis].argsort(stable=True)]
        left = share // 2
        cut = round(len(rows) * left / share)
        waiting += [(order[cut:], share - left), (order[:cut], left)]
    return labels.to(X.device)


def lexicographic(X: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Return the rows in the order of their first column, then of the second, and so on. O(d n log n)."""
    return torch.from_numpy(np.lexsort(X.detach().cpu().numpy().T[::-1])).to(X.device)


def nearest(X: Float[Tensor, "q d"], Z: Float[Tensor, "n d"]) -> Int[Tensor, " q"]:
    """Return the index of the row of Z nearest to each row of X. O(q n), in chunks."""
    size = max(1, DISTANCES // max(1, len(Z)))
    parts = [torch.cdist(x, Z).argmin(-1) for x in X.split(size)]
    return torch.cat(parts) if parts else X.new_empty(0, dtype=torch.long)


def conjugate_gradient_actions(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    count: int,
    tolerance: float,
) -> Float[Tensor, "n i"]:
    """Q of the actions S = N^(−½)Q, the residuals of conjugate gradients on (K + N)v = y − μ.

    [CaGP] algorithm S1, on the whitened system M = I + N^(−½)KN^(−½). There residuals are mutually orthogonal, and
    reorthogonalisation keeps them so: QᵀQ = I, hence SᵀNS = I. Stops early when ‖r‖ falls to `tolerance` times its
    start. No gradient. n² kernel entries an iteration, kept in memory if few.

    Args:
        kernel: k.
        X: Inputs.
        residual: y − μ.
        noise: Diagonal of N.
        count: Largest number of actions.
        tolerance: Relative tolerance of the whitened residual.
    """
    weight = noise.rsqrt()
    z = weight * (residual if residual.any() else torch.ones_like(residual))  # constant targets have a mean at least
    limit = tolerance * z.norm()
    K = kernel(X, X) if len(X) ** 2 <= KEPT_ENTRIES else None

    def product(q: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        s = (weight * q).unsqueeze(-1)
        Ks = K @ s if K is not None else kernel_products(kernel, X, X, s)
        return q + weight * Ks.squeeze(-1)

    Q, r = [], z
    direction = r
    for _ in range(min(count, len(X))):
        size = r.norm()
        if size <= limit or size == 0:
            break
        Q.append(r / size)
        image = product(direction)
        step = size.square() / (direction @ image)
        r = r - step * image
        basis = torch.stack(Q, -1)
        for _ in range(2):  # once more: what rounding left of the first time
            r = r - basis @ (basis.mT @ r)
        direction = r + (r.norm() / size).square() * direction
    return torch.stack(Q, -1) if Q else z.new_zeros(len(z), 0)


EQUAL = 1e-5
"""Relative difference of extents that single precision may make."""
DISTANCES = 2**22
"""Largest number of distances in memory at once."""
KEPT_ENTRIES = 2**26
"""Largest number of kernel entries kept over iterations: half a gigabyte."""
