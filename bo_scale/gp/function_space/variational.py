"""Decoupled variational GPs: separate bases for mean and covariance, their bound, and its closed-form optimum.

The direct form has mean μ + k_xα a and covariance k − k_xβ (B⁻¹ + K_β)⁻¹ k_βx' with B = LLᵀ, [DGP] eq. 8: f given
combinations Lᵀf(β) with unit noise. In the hybrid form, [DGP] A.3, whitened values of f(β) have mean ν and covariance
V, and further points serve the mean alone. Both are a `FunctionSpacePosterior`, so bound, prediction and draws share
one object.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from bo_scale.gp.function_space.bases import Bases, positions
from bo_scale.gp.function_space.kernel_products.chunked import kernel_products
from bo_scale.gp.function_space.process import Evaluations, FunctionSpacePosterior, Kernel, PointBasis
from bo_scale.gp.linalg.dense import cholesky, positive_root

NUGGET = 1e-10
"""Noise variance of a hybrid's basis values, relative to the kernel's variance. It keeps near points factorisable."""
CHUNK = 2**22
"""Largest number of kernel entries at a time."""
CLOSED_FORM = 2048
"""Maximum number of mean points j whose weights are solved for in closed form, in O(n j² + j³)."""
NEW_ROOT = 0.1
"""L of a new point over its prior standard deviation: an isolated point removes 1 % of the variance."""


@dataclass(frozen=True)
class Combinations(PointBasis):
    """Linear combinations Lᵀf(β) of values at points.

    Attributes:
        points: β.
        matrix: L.
    """

    points: Float[Tensor, "j d"]
    matrix: Float[Tensor, "j i"]

    @property
    @override
    def count(self) -> int:
        return self.matrix.shape[-1]

    @override
    def of_values(self, values: Float[Tensor, "*b j q"]) -> Float[Tensor, "*b i q"]:
        return self.matrix.mT @ values


# ---------------------------------------------------------------- the two parameterisations


def direct_process(
    kernel: Kernel,
    constant: Float[Tensor, ""],
    mean_points: Float[Tensor, "j d"],
    weights: Float[Tensor, " j"],
    covar_points: Float[Tensor, "i d"],
    root: Float[Tensor, "i r"],
) -> FunctionSpacePosterior:
    """Process of mean μ + k_xα a, covariance k − k_xβ L H⁻¹ Lᵀ k_βx', H = I + LᵀK_βL. [DGP] eq. 8, footnote 9.

    H ⪰ I, so neither an inverse of K_β nor jitter is needed. O(i²r + r³), differentiable in everything.

    Args:
        kernel: k.
        constant: μ.
        mean_points: α.
        weights: a, in units of y over those of k.
        covar_points: β.
        root: L.
    """
    H = root.mT @ kernel(covar_points, covar_points) @ root
    factor = cholesky(H + torch.eye(len(H), dtype=H.dtype, device=H.device), "H of the covariance basis")
    basis, innovation = Combinations(covar_points, root), root.new_zeros(root.shape[-1])
    return FunctionSpacePosterior(
        kernel, constant, basis, factor, innovation, 1.0, None, Evaluations(mean_points), weights
    )


def hybrid_process(
    kernel: Kernel,
    constant: Float[Tensor, ""],
    points: Float[Tensor, "i d"],
    innovation: Float[Tensor, " i"],
    spread: Float[Tensor, "i r"],
    residual_points: Float[Tensor, "j d"],
    weights: Float[Tensor, " j"],
) -> FunctionSpacePosterior:
    """Process of mean μ + T(x)ᵀν + k_xr a_r, covariance k − TᵀT + TᵀVT, T = L_K⁻¹k_βx. [DGP] A.3, whitened.

    K_β includes a nugget of 1e-10 of the kernel's variance: the basis consists of values of f with that much noise, for
    which all formulas hold exactly. O(i³), differentiable in everything.

    Args:
        kernel: k.
        constant: μ.
        points: β.
        innovation: ν.
        spread: R, V = RRᵀ.
        residual_points: α_r, possibly empty.
        weights: a_r, in units of y over those of k.

    Raises:
        NotPositiveDefiniteError: if K_β is not finite.
    """
    factor, nugget = basis_factor(kernel, points)
    return FunctionSpacePosterior(
        kernel,
        constant,
        Evaluations(points),
        factor,
        innovation,
        nugget,
        spread,
        Evaluations(residual_points) if len(residual_points) > 0 else None,
        weights if len(residual_points) > 0 else None,
    )


@dataclass(frozen=True)
class Variational:
    """Variational parameters of a process, Jacobi-preconditioned as in [DGP] A.1.

    Attributes:
        weights: diag(K_α)a, or a hybrid's diag(K_r)a_r.
        root: diag(K_β)L, or a hybrid's R, of which the upper triangle counts.
        innovation: A hybrid's ν; else empty.
    """

    weights: Float[Tensor, " j"]
    root: Float[Tensor, "i i"]
    innovation: Float[Tensor, " k"]

    def frozen(self) -> "Variational":
        """Return the same values in tensors of their own, without gradients."""
        return Variational(*(values.detach().clone() for values in (self.weights, self.root, self.innovation)))


def decoupled_process(
    kernel: Kernel, constant: Float[Tensor, ""], bases: Bases, parameters: Variational
) -> FunctionSpacePosterior:
    """Direct or hybrid process of preconditioned parameters, differentiable in everything. O(i³)."""
    weights = parameters.weights / _diagonal(kernel, bases.mean)
    if bases.hybrid:
        root = parameters.root.triu()
        return hybrid_process(kernel, constant, bases.covar, parameters.innovation, root, bases.mean, weights)
    root = parameters.root / _diagonal(kernel, bases.covar).unsqueeze(-1)
    return direct_process(kernel, constant, bases.mean, weights, bases.covar, root)


def _diagonal(kernel: Kernel, points: Float[Tensor, "i d"]) -> Float[Tensor, " i"]:
    """Diagonal of K, with 1 in place of 0."""
    variance = kernel.variance(points)
    return torch.where(variance > 0, variance, 1.0)


def basis_factor(kernel: Kernel, points: Float[Tensor, "i d"]) -> tuple[Float[Tensor, "i i"], float]:
    """L_K with L_K L_Kᵀ = K_β + nugget, and the nugget. O(i³)."""
    K = kernel(points, points)
    scale = K.diagonal().mean() if len(K) > 0 else K.new_ones(())
    nugget = (NUGGET * scale).clamp_min(torch.finfo(K.dtype).tiny)
    return cholesky(K + nugget * torch.eye(len(K), dtype=K.dtype, device=K.device), "K of a basis"), nugget.item()


# ---------------------------------------------------------------- the bound


def bound(
    process: FunctionSpacePosterior, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Bound E_q log p(y | f) − KL(q ‖ p) ≤ log p(y). O(n (j + i²)) time, O(chunk (j + i)) memory, with gradients."""
    return expected_log_likelihood(process, X, y, noise) - divergence(process)


def expected_log_likelihood(
    process: FunctionSpacePosterior, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Σ E_q log N(y | f(x), N) = −½ Σ [log 2πN + ((y − m)² + v)/N], [DGP] eq. 10, in chunks of rows."""

    def of(X: Tensor, square: Tensor, noise: Tensor) -> Tensor:
        return -0.5 * ((square + of_basis.locate(X).variance()) / noise + noise.log() + math.log(2 * math.pi)).sum()

    of_basis = replace(process, mean_basis=None, weights=None)
    square = (y - process_mean(process, X)).square()
    parts = (_checkpointed(of, X[s], square[s], noise[s]) for s in _slices(len(X), process.basis.count))
    return sum(parts, y.new_zeros(()))


def process_mean(process: FunctionSpacePosterior, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Mean of a process at points, by kernel products that never hold the kernel matrix in memory whole."""
    return process.constant + _of_innovation(process, X) + _of_weights(process, X)


def _of_innovation(process: FunctionSpacePosterior, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """T(x)ᵀν, or 0 for a direct process, which has no ν."""
    if process.spread is None:
        return X.new_zeros(len(X))
    return replace(process, mean_basis=None, weights=None).mean(X) - process.constant


def _of_weights(process: FunctionSpacePosterior, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """k_xα a."""
    if process.weights is None:
        return X.new_zeros(len(X))
    return kernel_products(process.kernel, X, _mean_points(process), process.weights.unsqueeze(-1)).squeeze(-1)


def divergence(process: FunctionSpacePosterior, columns: Int[Tensor, " b"] | None = None) -> Float[Tensor, ""]:
    """KL(q ‖ p) of a direct or hybrid process. [DGP] eq. 9, and eq. 14 with a ½ before its logarithm.

    Direct: ½aᵀK_αa + ½log|H| − ½(r − tr H⁻¹).
    Hybrid: ½(νᵀν + tr V − log|V| − i) + νᵀGa_r + ½a_rᵀK_r a_r, G = L_K⁻¹K_βr.

    Args:
        process: Result of `direct_process` or `hybrid_process`.
        columns: Columns of K_α that estimate its terms, scaled by j/b: unbiased if every choice of b columns is equally
            likely, and O(j b). None for all columns, in chunks.
    """
    if process.spread is None:
        inverse = torch.linalg.solve_triangular(process.factor, _eye_like(process.factor), upper=False)
        of_covariance = 2 * process.factor.diagonal().log().sum() - len(inverse) + inverse.square().sum()
    else:
        V_root = process.spread
        logdet = 2 * V_root.diagonal().abs().log().sum()
        of_covariance = V_root.square().sum() - logdet - len(V_root) + process.innovation.square().sum()
    return 0.5 * of_covariance + _mean_divergence(process, columns)


def _mean_divergence(process: FunctionSpacePosterior, columns: Int[Tensor, " b"] | None) -> Float[Tensor, ""]:
    """½aᵀK_αa + νᵀGa of the basis of the mean alone, νᵀGa = Σ_j a_j T(α_j)ᵀν."""
    if process.weights is None:
        return process.innovation.new_zeros(())
    points, weights = _mean_points(process), process.weights
    if columns is not None:
        points, weights = points[columns], weights[columns]
    share = len(process.weights) / max(1, len(weights))
    return share * weights @ (0.5 * _of_weights(process, points) + _of_innovation(process, points))


def _mean_points(process: FunctionSpacePosterior) -> Float[Tensor, "j d"]:
    assert isinstance(process.mean_basis, Evaluations), "not made by this file"
    return process.mean_basis.points


def _slices(rows: int, width: int) -> Iterator[slice]:
    size = max(1, CHUNK // max(1, width))
    return (slice(start, start + size) for start in range(0, rows, size))


def _checkpointed(function: Any, *values: Tensor) -> Tensor:
    """Value of a function that is recomputed for its gradient instead of keeping its graph."""
    if not torch.is_grad_enabled():
        return function(*values)
    result: Tensor = checkpoint(function, *values, use_reentrant=False, preserve_rng_state=False)
    return result


def _eye_like(matrix: Float[Tensor, "i i"]) -> Float[Tensor, "i i"]:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


# ---------------------------------------------------------------- the optimum


def optimum(
    kernel: Kernel,
    bases: Bases,
    X: Float[Tensor, "n d"],
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
) -> Variational:
    """Parameters that maximise the bound, in closed form: O(n (j² + i²) + j³ + i³).

    The weights of points beyond the first 2048 of the mean are 0.

    Args:
        kernel: k.
        bases: α and β.
        X: Rows.
        residual: y − μ.
        noise: Diagonal of N.
    """
    weights = optimal_weights(kernel, bases.of_mean[:CLOSED_FORM], X, residual, noise)
    of_covariance = optimal_spread if bases.hybrid else optimal_root
    return _variational(kernel, bases, weights, of_covariance(kernel, bases.covar, X, noise))


def _variational(kernel: Kernel, bases: Bases, solved: Float[Tensor, " w"], root: Float[Tensor, "i i"]) -> Variational:
    """Return preconditioned parameters from the weights of the first mean points, and L or R."""
    own, covar = bases.sizes
    weights = torch.nn.functional.pad(solved, (0, len(bases.of_mean) - len(solved)))
    scaled = weights[len(weights) - own :] * _diagonal(kernel, bases.mean)
    if bases.hybrid:
        factor, _ = basis_factor(kernel, bases.covar)
        return Variational(scaled, root, factor.mT @ weights[:covar])
    return Variational(scaled, root * _diagonal(kernel, bases.covar).unsqueeze(-1), weights[:0])


@dataclass(frozen=True)
class BasisSums:
    """Sums over rows that determine the optimum, with A = L_K⁻¹ K_·X N^(−½) of either basis. They add up.

    Whitened, they keep their accuracy whatever the condition of K.

    Attributes:
        mean_gram: AAᵀ of the mean's points, of which there are at most 2048.
        projection: A N^(−½)(y − μ) of these.
        covar_gram: AAᵀ of the covariance points.
    """

    mean_gram: Float[Tensor, "j j"]
    projection: Float[Tensor, " j"]
    covar_gram: Float[Tensor, "i i"]

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        bases: Bases,
        X: Float[Tensor, "n d"],
        residual: Float[Tensor, " n"],
        noise: Float[Tensor, " n"],
    ) -> "BasisSums":
        """Return the sums over some rows, as `optimum` takes them. O(n (j² + i²) + j³ + i³)."""
        gram, projection = _sums(kernel, bases.of_mean[:CLOSED_FORM], X, residual, noise)
        return cls(gram, projection, _sums(kernel, bases.covar, X, torch.zeros_like(noise), noise)[0])

    @classmethod
    def nothing(cls, bases: Bases) -> "BasisSums":
        """Return the sums over no rows."""
        j, i = min(len(bases.of_mean), CLOSED_FORM), len(bases.covar)
        return cls(*(bases.covar.new_zeros(size) for size in ((j, j), (j,), (i, i))))

    def __add__(self, other: "BasisSums") -> "BasisSums":
        """Return the sums over both sets of rows."""
        pairs = zip(self.tensors, other.tensors, strict=True)
        return BasisSums(*(a + b for a, b in pairs))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All sums."""
        return self.mean_gram, self.projection, self.covar_gram

    def optimum(self, kernel: Kernel, bases: Bases) -> Variational:
        """Return the parameters that maximise the bound of these rows, in closed form. O(j³ + i³)."""
        points = bases.of_mean[:CLOSED_FORM]
        weights = _weights_of(self.mean_gram, self.projection, basis_factor(kernel, points)[0])
        if bases.hybrid:
            return _variational(kernel, bases, weights, _spread_of(self.covar_gram))
        return _variational(kernel, bases, weights, _root_of(self.covar_gram, basis_factor(kernel, bases.covar)[0]))


def new_root(kernel: Kernel, bases: Bases, count: int) -> Float[Tensor, " r"]:
    """Diagonal of the root for the last covariance points, which changes the process little. [DGP] algorithm 1."""
    points = bases.covar[len(bases.covar) - count :]
    return points.new_ones(count) if bases.hybrid else NEW_ROOT * kernel.variance(points).sqrt()


def optimal_weights(
    kernel: Kernel,
    points: Float[Tensor, "j d"],
    X: Float[Tensor, "n d"],
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
) -> Float[Tensor, " j"]:
    """Weights a = (K_α + K_αX N⁻¹ K_Xα)⁻¹ K_αX N⁻¹ (y − μ) of the mean, which maximise the bound.

    Whitened, a = L_K⁻ᵀ (I + AAᵀ)⁻¹ A N^(−½)(y − μ) with A = L_K⁻¹ K_αX N^(−½): O(n j² + j³) time, O(j²) memory. If
    every row is one of the points, a = (K + P⁻¹)⁻¹ȳ, with P the summed precisions and ȳ the weighted means at each
    point. These are the weights of the exact GP, whatever the condition of K_α.

    Args:
        kernel: k.
        points: α.
        X: Rows.
        residual: y − μ.
        noise: Diagonal of N.
    """
    index = positions(points, X)
    if index is not None:
        return _interpolating_weights(kernel, points, index, residual, noise)
    gram, projection = _sums(kernel, points, X, residual, noise)
    return _weights_of(gram, projection, basis_factor(kernel, points)[0])


def _weights_of(
    gram: Float[Tensor, "j j"], projection: Float[Tensor, " j"], factor: Float[Tensor, "j j"]
) -> Float[Tensor, " j"]:
    C = cholesky(gram + _eye_like(gram), "Λ of the mean's basis")
    solved = torch.cholesky_solve(projection.unsqueeze(-1), C)
    return torch.linalg.solve_triangular(factor.mT, solved, upper=True).squeeze(-1)


def _interpolating_weights(
    kernel: Kernel,
    points: Float[Tensor, "j d"],
    index: Int[Tensor, " n"],
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
) -> Float[Tensor, " j"]:
    precision, total = (residual.new_zeros(len(points)).index_add(0, index, v) for v in (1 / noise, residual / noise))
    seen = precision > 0
    K = kernel(points[seen], points[seen])
    C = cholesky(K + torch.diag(1 / precision[seen]), "K + N of the rows")
    weights = residual.new_zeros(len(points))
    weights[seen] = torch.cholesky_solve((total / precision)[seen].unsqueeze(-1), C).squeeze(-1)
    return weights


def optimal_root(
    kernel: Kernel, points: Float[Tensor, "i d"], X: Float[Tensor, "n d"], noise: Float[Tensor, " n"]
) -> Float[Tensor, "i i"]:
    """Root L, LLᵀ = K_β⁻¹ K_βX N⁻¹ K_Xβ K_β⁻¹, which maximises the bound over B. O(n i² + i³).

    L = L_K⁻ᵀ (AAᵀ)^½. If every row is one of the points, B is diagonal: the summed precisions at each point.
    """
    index = positions(points, X)
    if index is not None:
        precision = noise.new_zeros(len(points)).index_add(0, index, 1 / noise)
        return torch.diag(precision.sqrt())
    gram, _ = _sums(kernel, points, X, torch.zeros_like(noise), noise)
    return _root_of(gram, basis_factor(kernel, points)[0])


def _root_of(gram: Float[Tensor, "i i"], factor: Float[Tensor, "i i"]) -> Float[Tensor, "i i"]:
    root = torch.linalg.solve_triangular(factor.mT, positive_root(gram), upper=True)
    return torch.nn.functional.pad(root, (0, len(gram) - root.shape[-1]))


def optimal_spread(
    kernel: Kernel, points: Float[Tensor, "i d"], X: Float[Tensor, "n d"], noise: Float[Tensor, " n"]
) -> Float[Tensor, "i i"]:
    """Upper triangular R, RRᵀ = V = (I + AAᵀ)⁻¹, which maximises a hybrid's bound over V. O(n i² + i³)."""
    gram, _ = _sums(kernel, points, X, torch.zeros_like(noise), noise)
    return _spread_of(gram)


def _spread_of(gram: Float[Tensor, "i i"]) -> Float[Tensor, "i i"]:
    C = cholesky(gram + _eye_like(gram), "Λ of the covariance basis")
    return torch.linalg.solve_triangular(C.mT, _eye_like(C), upper=True)


def _sums(
    kernel: Kernel,
    points: Float[Tensor, "i d"],
    X: Float[Tensor, "n d"],
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
) -> tuple[Float[Tensor, "i i"], Float[Tensor, " i"]]:
    """AAᵀ and A N^(−½)(y − μ), A = L_K⁻¹ K_βX N^(−½), in chunks of rows."""
    factor, _ = basis_factor(kernel, points)
    gram, projection = factor.new_zeros(factor.shape), factor.new_zeros(len(factor))
    for s in _slices(len(X), len(points)):
        root = noise[s].sqrt()
        A = torch.linalg.solve_triangular(factor, kernel(points, X[s]) / root, upper=False)
        gram += A @ A.mT
        projection += A @ (residual[s] / root)
    return gram, projection
