"""A fully Bayesian GP as a process: a mixture of weight-space posteriors that share one rotated basis.

f_s(x) = μ + φ(x)ᵀV u_s with u_s ~ N(m_s, diag v_s) for every sample s of the prior variances and the noise. Samples
are the last batch dimension, just before the points.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.conditioning import Conditioned, ConditionedLocated
from bo_scale.gp.processes import Located, PosteriorProcess, join_rows
from bo_scale.gp.weight_space.features.base import FeatureMap


@dataclass(frozen=True)
class MixtureLocated(Located):
    """Points of a mixture.

    Attributes:
        mean: Posterior mean of every sample.
        rotated: F = Φ V, shared by all samples.
        variances: v.
    """

    mean: Float[Tensor, "*b s q"]
    rotated: Float[Tensor, "*b q p"]
    variances: Float[Tensor, "s p"]

    @override
    def covariance(self, other: "MixtureLocated") -> Float[Tensor, "*b s q r"]:
        return _weighted(self.rotated, other.rotated, self.variances)

    @override
    def variance(self) -> Float[Tensor, "*b s q"]:
        return (self.rotated.square() @ self.variances.mT).mT

    @override
    def join(self, other: "MixtureLocated") -> "MixtureLocated":
        mean = join_rows(self.mean.unsqueeze(-1), other.mean.unsqueeze(-1)).squeeze(-1)
        return MixtureLocated(mean, join_rows(self.rotated, other.rotated), self.variances)


def _weighted(
    F: Float[Tensor, "*f q p"], G: Float[Tensor, "*g r p"], v: Float[Tensor, "s p"]
) -> Float[Tensor, "*b s q r"]:
    """F diag(v_s) Gᵀ for every s, in the order of products that avoids large intermediates of b·s·q·p numbers."""
    if G.ndim == 2:
        weighted = (v.unsqueeze(-2) * G).flatten(0, 1)
        return (F @ weighted.mT).unflatten(-1, (len(v), len(G))).movedim(-2, -3)
    if F.ndim == 2:
        return _weighted(G, F, v).mT
    if G.shape[-2] <= len(v):
        return ((F.unsqueeze(-2) * G.unsqueeze(-3)) @ v.mT).movedim(-1, -3)
    return (F.unsqueeze(-3) * v.unsqueeze(-2)) @ G.unsqueeze(-3).mT


@dataclass(frozen=True)
class MixturePosterior(PosteriorProcess):
    """S posteriors over one output.

    Attributes:
        features: φ.
        rotation: V, in units of f.
        means: m.
        variances: v.
        constant: μ.
        log_noise: Log σ² of every sample.
    """

    features: FeatureMap
    rotation: Float[Tensor, "p p"]
    means: Float[Tensor, "s p"]
    variances: Float[Tensor, "s p"]
    constant: Float[Tensor, ""]
    log_noise: Float[Tensor, " s"]

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """Batch shape: S, the number of samples."""
        return self.log_noise.shape

    @override
    def locate(self, X: Float[Tensor, "*b q d"]) -> MixtureLocated:
        rotated = self.features(X) @ self.rotation
        return MixtureLocated(self.constant + (rotated @ self.means.mT).mT, rotated, self.variances)

    @override
    def mean(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b s q"]:
        return self.constant + (self.features(X) @ (self.rotation @ self.means.mT)).mT

    def state(self) -> dict[str, Tensor]:
        """Everything but the features, for saving."""
        names = ("rotation", "means", "variances", "constant", "log_noise")
        return {name: getattr(self, name).clone() for name in names}


def draw_weights(
    process: PosteriorProcess, sample_shape: torch.Size, generator: torch.Generator | None = None
) -> Float[Tensor, "*c p"]:
    """Draw u exactly for every sample of a mixture, conditioned or not: `*sample_shape × *batch × S × p`.

    Conditioning corrects a draw by Matheron's rule: u' = u + cov(u, f(X_q)) A⁻¹(y − f(X_q) − ε).
    """
    if isinstance(process, MixturePosterior):
        z = torch.randn(
            *sample_shape, *process.means.shape, generator=generator, dtype=torch.float64, device=process.means.device
        )
        return process.means + process.variances.sqrt() * z
    assert isinstance(process, Conditioned), "of a mixture"
    batch = process.batch_shape[:-1]
    u = draw_weights(process.base, torch.Size([*sample_shape, *batch]), generator)
    points = _of_mixture(process.points)
    values = mixture_of(process).constant + (points.rotated.unsqueeze(-3) @ u.unsqueeze(-1)).squeeze(-1)
    e = torch.randn(values.shape, generator=generator, dtype=torch.float64, device=values.device)
    seen = values - process.points.mean + process.noise.sqrt() * e
    back = process.innovation.unsqueeze(-1) - torch.linalg.solve_triangular(
        process.factor, seen.unsqueeze(-1), upper=False
    )
    weight = torch.linalg.solve_triangular(process.factor.mT, back, upper=True)
    return u + (_with_weights(process.base, process.points) @ weight).squeeze(-1)


def mixture_of(process: PosteriorProcess) -> MixturePosterior:
    """The mixture below a conditioned process, or the process itself."""
    while isinstance(process, Conditioned):
        process = process.base
    assert isinstance(process, MixturePosterior), "of a mixture"
    return process


def _of_mixture(located: Located) -> MixtureLocated:
    while isinstance(located, ConditionedLocated):
        located = located.base
    assert isinstance(located, MixtureLocated), "of a mixture"
    return located


def _with_weights(process: PosteriorProcess, located: Located) -> Float[Tensor, "*b s p q"]:
    """Posterior covariance of u with f at points of the process."""
    if isinstance(located, MixtureLocated):
        return located.variances.unsqueeze(-1) * located.rotated.unsqueeze(-3).mT
    assert isinstance(located, ConditionedLocated), "of a mixture"
    assert isinstance(process, Conditioned), "of a mixture"
    whitened = torch.linalg.solve_triangular(process.factor.mT, located.reduction, upper=True)
    return _with_weights(process.base, located.base) - _with_weights(process.base, process.points) @ whitened
