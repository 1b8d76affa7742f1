"""Posterior processes of weight-space models.

A process is its mean and covariance; `conditioning` conditions any process on a few points. Points are located first:
their features are computed once. Means, covariances and cross-covariances are then products of these features.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import WrongTypeError
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.processes import Located, PosteriorProcess, join_rows
from bo_scale.gp.weight_space.evidence import _whiten
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.sparse_rows import BlockRows, Features, SparseRows, dot
from bo_scale.gp.weight_space.statistics import SufficientStatistics

# ---------------------------------------------------------------- weight space


@dataclass(frozen=True)
class WeightLocated(Located):
    """Points of a weight-space process: cov = F Fᵀ with F = Φ B.

    Attributes:
        mean: Posterior mean.
        root: F.
        features: Φ.
    """

    mean: Float[Tensor, "*b q"]
    root: Float[Tensor, "*b q s"]
    features: Features

    @override
    def covariance(self, other: "WeightLocated") -> Float[Tensor, "*b q r"]:
        return self.root @ other.root.mT

    @override
    def variance(self) -> Float[Tensor, "*b q"]:
        return self.root.square().sum(-1)

    @override
    def join(self, other: "WeightLocated") -> "WeightLocated":
        mean, root = join_rows(self.mean.unsqueeze(-1), other.mean.unsqueeze(-1)), join_rows(self.root, other.root)
        return WeightLocated(mean.squeeze(-1), root, join_features(self.features, other.features))


class WeightProcess(PosteriorProcess):
    """f(x) = μ + φ(x)ᵀw with w ~ N(w̄, B Bᵀ), from which whole functions can be drawn. Points have a root F = Φ B.

    Attributes:
        features: φ of the whole function, as in its model.
        weights: w̄.
        constant: μ.
    """

    features: FeatureMap
    weights: Float[Tensor, " p"]
    constant: Float[Tensor, ""]

    @property
    @abstractmethod
    def rank(self) -> int:
        """Number of columns of B."""

    @property
    @abstractmethod
    def weighted_features(self) -> FeatureMap:
        """Features whose weights are w."""

    @abstractmethod
    def spread(self, z: Float[Tensor, "*s r"]) -> Float[Tensor, "*s p"]:
        """B z."""

    def sample_weights(
        self, sample_shape: torch.Size, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*s p"]:
        """Draw w exactly. Each draw is a whole function μ + φ(x)ᵀw. O(p s) a draw."""
        z = torch.randn(*sample_shape, self.rank, generator=generator, dtype=torch.float64, device=self.weights.device)
        return self.weights + self.spread(z)


@dataclass(frozen=True)
class WeightSpacePosterior(WeightProcess):
    """f(x) = μ + φ(x)ᵀw with w ~ N(B a, B Bᵀ).

    Attributes:
        features: φ.
        root: B.
        weights: B a, the posterior mean of w.
        constant: μ.
    """

    features: FeatureMap
    root: Float[Tensor, "p s"]
    weights: Float[Tensor, " p"]
    constant: Float[Tensor, ""]

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """Batch shape, always empty."""
        return torch.Size([])

    @classmethod
    def from_statistics(
        cls,
        features: FeatureMap,
        stats: SufficientStatistics,
        noise: Float[Tensor, ""],
        constant: Float[Tensor, ""],
        root: LinearOperator | None = None,
    ) -> "WeightSpacePosterior":
        """Condition w ~ N(0, R Rᵀ) on data seen only through the statistics of one output.

        w | y ~ N(B a, B Bᵀ), B = R C⁻ᵀ, a = σ⁻²C⁻¹Rᵀ(r − μg), C Cᵀ = Λ = I + σ⁻²RᵀGR.   [WISKI] eqs. 11-15, whitened.

        Eigenvalues of Λ are at least 1: neither an inverse of S nor jitter is needed. O(s³ + p s²), free of n. If the
        features can be reduced to ψ = Rᵀφ, the weights are those of ψ and B = C⁻ᵀ: O(s³).

        Args:
            features: φ and R.
            stats: Statistics of one output under the same features.
            noise: σ², the scale of D, in squared units of y.
            constant: μ, in units of y.
            root: R, if already computed.
        """
        R = features.prior_root() if root is None else root
        reduced = features.reduced(R)
        if stats.gram.dense_for(R):
            R = DenseLinearOperator(R.to_dense())
        W, b = _whiten(R, stats, noise, constant)
        W.diagonal().add_(1.0)
        C = cholesky(W, "Λ = I + σ⁻²RᵀGR")
        right = torch.eye(len(W), dtype=W.dtype, device=W.device) if reduced is not None else R.to_dense().mT
        B = torch.linalg.solve_triangular(C, right, upper=False).mT.contiguous()
        a = torch.linalg.solve_triangular(C, b.unsqueeze(-1), upper=False)
        return cls(reduced or features, B, (B @ a).squeeze(-1), constant)

    @classmethod
    def from_rows(
        cls,
        features: FeatureMap,
        X: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        noise: Float[Tensor, " n"],
        constant: Float[Tensor, ""],
        dtype: torch.dtype = torch.float64,
    ) -> "WeightSpacePosterior":
        """The same posterior from rows, by QR. Forming Λ would square the condition number, so it is never formed.

        A = [N^(−½)ΦR; I] = QT, with N the noise: Λ = TᵀT, B = R T⁻¹ and Ba = B Qᵀ[N^(−½)(y − μ); 0].   [SoftKI]
        algorithm 1, lines 11-13, whitened. The right-hand side is one more column, and rows are taken in chunks:
        O(n s²) time, O(chunk·p + p s) memory.

        Args:
            features: φ and R.
            X: Inputs in the units of the features.
            y: Targets of one output.
            noise: Noise variances of the targets.
            constant: μ.
            dtype: Dtype of the decomposition. Features and the result are float64.
        """
        R = features.prior_root().to_dense()
        s = R.shape[-1]
        T = torch.eye(s, s + 1, dtype=dtype, device=R.device)
        size = features.chunk_size()
        for x, z, v in zip(X.split(size), (y - constant).split(size), noise.split(size), strict=True):
            weight = v.rsqrt().unsqueeze(-1)
            rows = torch.cat([(features(x) @ R) * weight, z.unsqueeze(-1) * weight], -1)
            T = torch.linalg.qr(torch.cat([T, rows.to(dtype)]), mode="r").R[: s + 1]
        upper, right = T[:s, :s].to(torch.float64), T[:s, s:].to(torch.float64)
        B = torch.linalg.solve_triangular(upper, R, upper=True, left=False)
        return cls(features, B, (B @ right).squeeze(-1), constant)

    @classmethod
    def prior(cls, features: FeatureMap, constant: Float[Tensor, ""]) -> "WeightSpacePosterior":
        """The process before any data: B = R. Following it with `update`, O(p s n), is cheaper while n < s."""
        R = features.prior_root()
        reduced = features.reduced(R)
        root = R.to_dense() if reduced is None else torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
        return cls(reduced or features, root, root.new_zeros(len(root)), constant)

    @override
    def locate(self, X: Float[Tensor, "*b q d"]) -> WeightLocated:
        return self.located(self.features(X))

    @override
    def mean(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
        """μ + φ(x)ᵀBa, without a root: O(p) a point for dense features, O(4^d) for a grid."""
        return self.constant + dot(self.features(X), self.weights)

    def located(self, Phi: Features) -> WeightLocated:
        """Locate points whose features are known."""
        return WeightLocated(self.constant + dot(Phi, self.weights), Phi @ self.root, Phi)

    def update(
        self, points: WeightLocated, y: Float[Tensor, " q"], noise: Float[Tensor, " q"]
    ) -> "WeightSpacePosterior":
        """Observe q more values by a square-root Kalman update, positive semi-definite by construction. O(p s q).

        w ← w + B G E⁻¹(y − μ − φw),   B ← B (I − G T)   with E, G, T of `kalman_factors`.
        """
        E, G, T = kalman_factors(points.root, noise)
        gain = self.root @ G
        off = (y - points.mean).unsqueeze(-1)
        innovation = off / E if len(E) == 1 else torch.linalg.solve_triangular(E, off, upper=False)
        return replace(
            self,
            weights=self.weights + (gain @ innovation).squeeze(-1),
            root=torch.addmm(self.root, gain, T, alpha=-1.0),
        )

    @property
    @override
    def rank(self) -> int:
        return self.root.shape[-1]

    @property
    @override
    def weighted_features(self) -> FeatureMap:
        return self.features

    @override
    def spread(self, z: Float[Tensor, "*s r"]) -> Float[Tensor, "*s p"]:
        return z @ self.root.mT

    def state(self) -> dict[str, Tensor]:
        """Everything but the features, for saving."""
        return {name: getattr(self, name).clone() for name in ("root", "weights", "constant")}

    @classmethod
    def restored(cls, features: FeatureMap, saved: dict[str, Tensor]) -> "WeightSpacePosterior":
        """Restore a process from its state and its features."""
        return cls(features.reduced(features.prior_root()) or features, **saved)


def kalman_factors(
    Vt: Float[Tensor, "q s"], noise: Float[Tensor, " q"]
) -> tuple[Float[Tensor, "q q"], Float[Tensor, "s q"], Float[Tensor, "q s"]]:
    """E, G = V E⁻ᵀ and T = (E + N^½)⁻¹ Vᵀ, with V = Bᵀφᵀ, N = diag(noise) and E Eᵀ = VᵀV + N.

    They condition on q values without a difference of squares: (I − G T)(I − G T)ᵀ = I − V (VᵀV + N)⁻¹ Vᵀ. O(q² s).
    """
    if len(Vt) == 1:  # a scalar E
        E = (Vt @ Vt.mT + noise).sqrt()
        return E, (Vt / E).mT, Vt / (E + noise.sqrt())
    E = cholesky(Vt @ Vt.mT + torch.diag(noise), "covariance of new observations")
    G = torch.linalg.solve_triangular(E, Vt, upper=False).mT
    return E, G, torch.linalg.solve_triangular(E + torch.diag(noise.sqrt()), Vt, upper=False)


def join_features(
    A: Tensor | SparseRows | BlockRows, B: Tensor | SparseRows | BlockRows
) -> Tensor | SparseRows | BlockRows:
    """Rows of A followed by rows of B, in the form that both share."""
    if isinstance(A, SparseRows) and isinstance(B, SparseRows):
        return SparseRows(join_rows(A.values, B.values), join_rows(A.columns, B.columns), A.width)
    if isinstance(A, Tensor) and isinstance(B, Tensor):
        return join_rows(A, B)
    if isinstance(A, BlockRows) and isinstance(B, BlockRows):
        parts = [join_features(a, b) for a, b in zip(A.parts, B.parts, strict=True)]
        return BlockRows(tuple(part for part in parts if not isinstance(part, BlockRows)))
    raise WrongTypeError("features of one process have one form")
