"""Dense linear algebra: a Cholesky that reports its jitter, and Kronecker products that are never formed."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.errors import JitterWarning, NotPositiveDefiniteError

_JITTERS = (1e-12, 1e-10, 1e-8)
_ROUNDING = 1e-14


def cholesky(A: Float[Tensor, "*b n n"], name: str = "matrix") -> Float[Tensor, "*b n n"]:
    """Lower Cholesky factor. A jitter, relative to the mean diagonal, is added only where needed and is warned of.

    O(n³) time.

    Raises:
        NotPositiveDefiniteError: if A is not finite, or has no factor at a relative jitter of 1e-8.
    """
    L, info = torch.linalg.cholesky_ex(A)
    if not info.any():
        return L
    if not torch.isfinite(A).all():
        raise NotPositiveDefiniteError(f"{name} has NaN or inf entries; check the data and the hyperparameters.")
    scale = A.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(torch.finfo(A.dtype).tiny)
    for jitter in _JITTERS:
        added = (jitter * scale).unsqueeze(-1).expand(A.shape[:-1])
        L, info = torch.linalg.cholesky_ex(A + torch.diag_embed(added))
        if not info.any():
            warnings.warn(
                f"{name}: added {jitter:g} of the mean diagonal to factorise it.", JitterWarning, stacklevel=2
            )
            return L
    raise NotPositiveDefiniteError(
        f"{name} has no Cholesky factor, even with {_JITTERS[-1]:g} of its mean diagonal added; raise the noise floor."
    )


def solve_lower(L: Float[Tensor, "*b n n"], B: Float[Tensor, "*c n q"]) -> Float[Tensor, "*e n q"]:
    """L⁻¹B for a lower triangular L. One without a batch shape is not copied for every one of B's. O(n² q) each."""
    if L.ndim > 2 or B.ndim == 2:
        return torch.linalg.solve_triangular(L, B, upper=False)
    columns = B.movedim(-2, 0)
    solved = torch.linalg.solve_triangular(L, columns.reshape(len(L), -1), upper=False)
    return solved.reshape(columns.shape).movedim(0, -2)


class _SymmetricEigen(torch.autograd.Function):
    """Eigenvalues and vectors of a symmetric matrix, with a gradient that stays finite when eigenvalues meet.

    K̄ = Q (diag λ̄ + F ∘ (QᵀQ̄)) Qᵀ, F_ij = 1/(λ_j − λ_i), here Δ/(Δ² + ε²) with ε = 1e-13 of the largest |λ|.
    """

    @staticmethod
    @override
    def forward(ctx: Any, K: Tensor) -> tuple[Tensor, Tensor]:
        eigenvalues, Q = torch.linalg.eigh(K)
        ctx.save_for_backward(eigenvalues, Q)
        return eigenvalues, Q

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        eigenvalues, Q = ctx.saved_tensors
        g_values, g_Q = grads
        gap = eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)
        epsilon = 1e-13 * eigenvalues.abs().amax(-1)[..., None, None]
        F = gap / (gap.square() + epsilon.square())
        inner = F * (Q.mT @ g_Q) + torch.diag_embed(g_values)
        K_bar = Q @ inner @ Q.mT
        return 0.5 * (K_bar + K_bar.mT)


def symmetric_eigen(K: Float[Tensor, "*b n n"]) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b n n"]]:
    """Eigenvalues, largest first, and eigenvectors of a symmetric matrix. O(n³), differentiable.

    Where eigenvalues tie exactly (a periodic kernel whose period is a whole number of cells), the gradient leaves the
    rotation between their vectors out.

    Raises:
        NotPositiveDefiniteError: if K has NaN or inf entries, which LAPACK may never return from.
    """
    if not torch.isfinite(K).all():
        raise NotPositiveDefiniteError("a kernel matrix has NaN or inf entries; check the hyperparameters.")
    eigenvalues, Q = _SymmetricEigen.apply(0.5 * (K + K.mT))  # type: ignore[no-untyped-call]
    return eigenvalues.flip(-1), Q.flip(-1)


class _QuadraticAndLogdet(torch.autograd.Function):
    """bᵀΛ⁻¹b and log|Λ| of Λ = I + W by one Cholesky; gradients −uuᵀ and Λ⁻¹ in W, 2u and 0 in b, u = Λ⁻¹b."""

    @staticmethod
    @override
    def forward(ctx: Any, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        Lam = W.clone()
        Lam.diagonal().add_(1.0)
        C = cholesky(Lam, "Λ = I + W of the evidence")
        u = torch.cholesky_solve(b.unsqueeze(-1), C).squeeze(-1)
        ctx.save_for_backward(C, u)
        return b @ u, 2 * C.diagonal().log().sum()

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        C, u = ctx.saved_tensors
        return torch.cholesky_inverse(C).mul_(grads[1]).addr_(u, u, alpha=-grads[0].item()), 2 * grads[0] * u


def quadratic_and_logdet(
    W: Float[Tensor, "s s"], b: Float[Tensor, " s"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """bᵀΛ⁻¹b and log|Λ| with Λ = I + W: what an evidence needs. O(s³), with its gradient in closed form."""
    quadratic, logdet = _QuadraticAndLogdet.apply(W, b)  # type: ignore[no-untyped-call]
    return quadratic, logdet


class _KernelEvidence(torch.autograd.Function):
    """The two terms of an evidence from S itself, by one LU of M = σ²I + GS.

    With u = M⁻¹b and v = Su,

    e = σ⁻²bᵀv:         ∂S = uuᵀ,     ∂G = −σ⁻²vvᵀ,  ∂b = 2σ⁻²v,  ∂σ² = −σ⁻²(e + vᵀu)
    l = log|M| − p log σ²:  ∂S = M⁻¹G,  ∂G = SM⁻¹,              ∂σ² = tr M⁻¹ − pσ⁻²
    """

    @staticmethod
    @override
    def forward(ctx: Any, S: Tensor, G: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        M = torch.addmm(noise * torch.eye(len(S), dtype=S.dtype, device=S.device), G, S)
        LU, pivots, info = torch.linalg.lu_factor_ex(M)
        u = torch.linalg.lu_solve(LU, pivots, b.unsqueeze(-1)).squeeze(-1)
        v = S @ u
        explained, logdet = (b @ v) / noise, (LU.diagonal().abs() / noise).log().sum()
        swaps = pivots != torch.arange(1, len(S) + 1, dtype=pivots.dtype, device=S.device)
        negative = (LU.diagonal() < 0).sum() + swaps.sum()
        if info.any() or negative % 2 == 1 or not torch.isfinite(logdet + explained):
            raise NotPositiveDefiniteError(
                "σ²I + GS has no positive determinant, or is not finite; check the data, or raise the noise floor."
            )
        ctx.save_for_backward(S, G, noise, LU, pivots, u, v, explained)
        return explained, logdet

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        S, G, noise, LU, pivots, u, v, explained = ctx.saved_tensors
        (e, l), needs = grads, ctx.needs_input_grad
        inverse = torch.linalg.lu_solve(LU, pivots, torch.eye(len(S), dtype=S.dtype, device=S.device))
        g_S = torch.addr(l * (inverse @ G), u, u, alpha=e.item()) if needs[0] else None
        g_G = torch.addr(l * (S @ inverse), v, v, alpha=-(e / noise).item()) if needs[1] else None
        g_noise = l * (inverse.trace() - len(S) / noise) - e * (explained + v @ u) / noise
        return g_S, g_G, 2 * e / noise * v, g_noise


def kernel_evidence(
    S: Float[Tensor, "p p"], G: Float[Tensor, "p p"], b: Float[Tensor, " p"], noise: Float[Tensor, ""]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """bᵀRΛ⁻¹Rᵀb σ⁻⁴ and log|Λ| with Λ = I + σ⁻²RᵀGR, from S = RRᵀ itself, which may be singular. O(p³).

    As accurate as by a root of S, cheaper than making one, and with a gradient that never divides by S's eigenvalues.

    Raises:
        NotPositiveDefiniteError: if the factorisation has NaN or inf, or a determinant that rounding made negative.
    """
    explained, logdet = _KernelEvidence.apply(S, G, b, noise)  # type: ignore[no-untyped-call]
    return explained, logdet


def positive_root(K: Float[Tensor, "n n"]) -> Float[Tensor, "n s"]:
    """R with R Rᵀ = K to rounding, no jitter: its Cholesky factor, or eigenpairs above 1e-14 of the largest."""
    L, info = torch.linalg.cholesky_ex(K)
    if not info.any():
        return L
    values, Q = symmetric_eigen(K)
    kept = int((values > _ROUNDING * values[0]).sum())
    return Q[:, :kept] * values[:kept].sqrt()


def top_kronecker_eigenvalues(
    eigenvalues: Sequence[Float[Tensor, " _"]], tolerance: float = 0.0, limit: int | None = None
) -> tuple[Float[Tensor, " s"], Int[Tensor, "s d"]]:
    """The largest products λ_{i1}⋯λ_{id} of one eigenvalue a dimension, without forming them all.

    [GRIEF] algorithm 1, with a threshold beside a number (`top_sums` has that alone). Divided by their largest, factors
    are at most 1, so that a partial product below the threshold, or beyond the number, can be dropped at once. O(d m̄ s)
    time for m̄ eigenvalues a dimension.

    Args:
        eigenvalues: Those of each dimension.
        tolerance: Keep products above this share of the largest.
        limit: Keep no more than so many.

    Returns:
        The products, largest first, and their multi-indices.
    """
    values = eigenvalues[0].new_ones(1)
    index = torch.zeros(1, 0, dtype=torch.long, device=values.device)
    scale = values.new_ones(())
    for lam in eigenvalues:
        scale = scale * lam.max()
        products = values.unsqueeze(-1) * (lam / lam.max()).clamp_min(0.0)
        kept = (products.flatten() > tolerance).nonzero().squeeze(-1)
        order = products.flatten()[kept].sort(descending=True, stable=True).indices
        kept = kept[order][:limit]
        values = products.flatten()[kept]
        rows, last = kept // len(lam), kept % len(lam)
        index = torch.cat([index[rows], last.unsqueeze(-1)], -1)
    return values * scale, index


def top_sums(terms: Sequence[Int[Tensor, " _"]], limit: int) -> Int[Tensor, "s d"]:
    """Multi-indices of the largest sums of one term a dimension, largest first. [GRIEF] algorithm 1, O(d m̄ s).

    Of whole numbers, so that equal sums are equal to the last bit and stay in the order of their indices: which of
    them are within the limit does not depend on the machine.
    """
    values = terms[0].new_zeros(1)
    index = torch.zeros(1, 0, dtype=torch.long, device=values.device)
    for term in terms:
        sums = (values.unsqueeze(-1) + term).flatten()
        order = sums.sort(descending=True, stable=True).indices[:limit]
        values, rows, last = sums[order], order // len(term), order % len(term)
        index = torch.cat([index[rows], last.unsqueeze(-1)], -1)
    return index


class KroneckerColumns(LinearOperator):
    """Chosen columns of R_1 ⊗ ⋯ ⊗ R_d: column c is weight[c] ⊗_l R_l[:, index[c, l]]. Shape p s, p = Π m_l."""

    def __init__(
        self,
        weight: Float[Tensor, " s"],
        *factors: Float[Tensor, "_ _"],
        index: Int[Tensor, "s d"],
        transposed: bool = False,
    ) -> None:
        super().__init__(weight, *factors, index=index, transposed=transposed)
        self.weight = weight
        self.factors = factors
        self.index = index
        self.transposed = transposed

    @property
    def num_rows(self) -> int:
        """P, the number of grid points."""
        return math.prod(len(R) for R in self.factors)

    def _flat_index(self) -> Int[Tensor, " s"]:
        flat = torch.zeros_like(self.index[:, 0])
        for R, i in zip(self.factors, self.index.unbind(-1)):
            flat = flat * R.shape[-1] + i
        return flat

    @override
    def _matmul(self, rhs: Tensor) -> Tensor:
        M = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
        flat = self._flat_index()
        if self.transposed:
            out = self.weight.unsqueeze(-1) * kronecker_matmul([R.mT for R in self.factors], M)[flat]
        else:
            width = math.prod(R.shape[-1] for R in self.factors)
            full = M.new_zeros(width, M.shape[-1]).index_copy(0, flat, self.weight.unsqueeze(-1) * M)
            out = kronecker_matmul(self.factors, full)
        return out.squeeze(-1) if rhs.ndim == 1 else out

    @override
    def _size(self) -> torch.Size:
        shape = (self.num_rows, len(self.index))
        return torch.Size(shape[::-1] if self.transposed else shape)

    @override
    def _transpose_nonbatch(self) -> "KroneckerColumns":
        return KroneckerColumns(self.weight, *self.factors, index=self.index, transposed=not self.transposed)

    @override
    def to_dense(self) -> Tensor:
        """The matrix itself, as a column-wise Khatri-Rao product. O(p s)."""
        columns = [R[:, i] for R, i in zip(self.factors, self.index.unbind(-1))]
        dense = columns[0]
        for column in columns[1:]:
            dense = (dense.unsqueeze(1) * column.unsqueeze(0)).flatten(0, 1)
        dense = dense * self.weight
        return dense.mT if self.transposed else dense


def kronecker_matmul(factors: Sequence[Float[Tensor, "_ _"]], M: Float[Tensor, "p t"]) -> Float[Tensor, "q t"]:
    """(A_1 ⊗ ⋯ ⊗ A_d) M, one dimension at a time: O(t p Σ m_l)."""
    X = M.reshape(*[A.shape[-1] for A in factors], M.shape[-1])
    for A in factors:  # contracts the first dimension and appends the new one, so that t ends up first
        X = torch.tensordot(X, A, dims=([0], [1]))
    return X.movedim(0, -1).reshape(-1, M.shape[-1])


def rowwise_kronecker(A: Float[Tensor, "*b n i"], B: Float[Tensor, "*b n j"]) -> Float[Tensor, "*b n k"]:
    """Row-wise Khatri-Rao product: row r is A[r] ⊗ B[r]. O(n i j)."""
    return (A.unsqueeze(-1) * B.unsqueeze(-2)).flatten(-2)
