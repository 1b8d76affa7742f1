"""Evidence of a weight-space GP in the basis where the data's Gram matrix is diagonal: O(p), without the data.

[GRIEF] section 4. Let G = VΓVᵀ, with weights u = Vᵀw of prior variances ρ. The data inform each u_i through a single
number, z_i = γ_i^(−½) v_iᵀ(r − μg) ~ N(0, γ_iρ_i + σ²). The remaining terms depend on σ² alone.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.statistics import SufficientStatistics

RANK_TOLERANCE = 1e-13
"""Relative size below which eigenvalues of G count as rounding: the data say nothing about their weights."""
SMALLEST_VARIANCE = 1e-12
"""Variance of a log-normal prior's logarithm below which the prior is taken as a point."""
NODES = 160
"""Quadrature nodes in each log weight, and in log σ²."""
WIDE, ZOOMS = 40.0, 12
"""Prior standard deviations below its middle at which the search for the noise starts, and how often it narrows."""
REACH = 8.0
"""Standard deviations that a quadrature extends to either side of the middle of a prior or posterior."""


@dataclass(frozen=True)
class LogNormal:
    """A log-normal prior: the logarithm is normal with this mean and variance."""

    mean: float
    variance: float

    @classmethod
    def of_mode(cls, mode: float, variance: float) -> "LogNormal":
        """Prior whose variable has this mode and variance.

        With t = exp(s²): mode = exp(m − s²) and variance = t(t − 1) exp(2m), so that (t − 1) t³ = variance/mode².
        """
        ratio, low, high = variance / mode**2, 0.0, 1.0  # of t − 1, whose digits are not to be lost to 1
        while high * (1 + high) ** 3 < ratio:
            high *= 2
        for _ in range(1100):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if middle * (1 + middle) ** 3 < ratio else (low, middle)
        s2 = max(math.log1p(high), SMALLEST_VARIANCE)
        return cls(math.log(mode) + s2, s2)


@dataclass(frozen=True)
class Rotated:
    """Sufficient statistics of the rotated weights and the noise.

    Attributes:
        rotation: V, orthonormal, with the directions that data inform first.
        gram: Γ of the informed directions.
        projection: z of the informed directions.
        rest: c − zᵀz, the part of ‖y − μ‖² that no weights explain.
        count: n, or the sum of the observations' weights.
        log_noise: log|D|.
    """

    rotation: Float[Tensor, "p p"]
    gram: Float[Tensor, " i"]
    projection: Float[Tensor, " i"]
    rest: Float[Tensor, ""]
    count: float
    log_noise: Float[Tensor, ""]

    @classmethod
    def of(cls, stats: SufficientStatistics, scale: Float[Tensor, ""], constant: Float[Tensor, ""]) -> "Rotated":
        """Rotate the statistics of one output, with weights in units of √scale. O(p³), once.

        Args:
            stats: Statistics of one output.
            scale: Prior variance at ρ = 1.
            constant: μ.
        """
        if stats.square.numel() != 1:
            raise InvalidDataError(f"expected the statistics of one output, got {stats.square.numel()}.")
        mu = constant - stats.center.squeeze()
        residual = scale.sqrt() * (stats.projection.squeeze(-1) - mu * stats.feature_sum)
        square = stats.square.squeeze() - 2 * mu * stats.target_sum.squeeze() + mu.square() * stats.weight_sum
        values, vectors = torch.linalg.eigh(scale * stats.gram.to_dense())
        values, vectors = values.flip(0), vectors.flip(-1)
        rank = int((values > RANK_TOLERANCE * values[0].clamp_min(torch.finfo(values.dtype).tiny)).sum())
        gram = values[:rank]
        z = (vectors[:, :rank].mT @ residual) / gram.sqrt()
        rest = (square - z.square().sum()).clamp_min(0.0)  # a residual's square: below 0 by rounding alone
        return cls(vectors, gram, z, rest, stats.effective_count.item(), stats.log_noise)

    def log_evidence(
        self, log_weights: Float[Tensor, "*b i"], log_noise: Float[Tensor, "*b"]
    ) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b i"], Float[Tensor, "*b"]]:
        """Log p(y | ρ, σ²), and its gradients in log ρ and log σ². O(p) each.

        −½ [ Σ z²/(w + σ²) + Σ log(w + σ²) + (c − zᵀz)/σ² + (n − rank) log σ² + log|D| + n log 2π ],  w = γρ.
        """
        w, noise = self.gram * log_weights.exp(), log_noise.exp()
        total = w + noise.unsqueeze(-1)
        share = 1 / total
        fit = self.projection.square() * share
        free = self.count - len(self.gram)
        unexplained = self.rest / noise
        constant = self.log_noise + self.count * math.log(2 * math.pi)
        value = -0.5 * (fit.sum(-1) + total.log().sum(-1) + unexplained + free * log_noise + constant)
        slope = 0.5 * (fit - 1) * share
        return value, slope * w, slope.sum(-1) * noise + 0.5 * (unexplained - free)

    def posterior_moments(
        self, log_weights: Float[Tensor, "*b i"], log_noise: Float[Tensor, "*b"]
    ) -> tuple[Float[Tensor, "*b p"], Float[Tensor, "*b p"]]:
        """Means and variances of the independent rotated weights u. Directions without data have ρ = 1.

        u_i | y ~ N(ρ_i √γ_i z_i / (γ_iρ_i + σ²), ρ_iσ²/(γ_iρ_i + σ²)).
        """
        rho, noise = log_weights.exp(), log_noise.exp().unsqueeze(-1)
        total = self.gram * rho + noise
        rest = len(self.rotation) - len(self.gram)
        mean = torch.nn.functional.pad(rho * self.gram.sqrt() * self.projection / total, (0, rest))
        return mean, torch.nn.functional.pad(rho * noise / total, (0, rest), value=1.0)


# ---------------------------------------------------------------- exact draws


@dataclass(frozen=True)
class Quadrature:
    """Posterior of noise and weights by one-dimensional quadratures: given σ², the weights are independent.

    p(σ² | y) ∝ p(σ²) σ^−(n − rank) exp(−rest/2σ²) Π_i ∫ N(z_i; 0, γ_iρ + σ²) p(ρ) dρ; then each ρ_i on its own. The
    trapezoidal rule is applied in the logarithms, where integrands are smooth and decay like Gaussians.

    Attributes:
        rotated: Rotated statistics of the data.
        weights: Prior of every ρ.
        log_noise: Nodes of log σ², or the one value of a known noise.
        log_density: Log posterior density of log σ² at the nodes, up to a constant.
    """

    rotated: Rotated
    weights: LogNormal
    log_noise: Float[Tensor, " t"]
    log_density: Float[Tensor, " t"]

    @classmethod
    def of(cls, rotated: Rotated, weights: LogNormal, noise: LogNormal | None) -> "Quadrature":
        """Build the quadrature. O(p · nodes) for each of a hundred values of σ².

        Args:
            rotated: Rotated statistics of the data.
            weights: Prior of every ρ.
            noise: Prior of σ²; None if σ² is known to be 1.
        """
        like = rotated.projection
        if noise is None:
            return cls(rotated, weights, like.new_zeros(1), like.new_zeros(1))

        def density(nodes: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
            prior = -0.5 * (nodes - noise.mean).square() / noise.variance
            return prior + torch.stack([_marginal(rotated, weights, node) for node in nodes])

        sd = noise.variance**0.5
        widest = torch.linspace(noise.mean - WIDE * sd - 3.0, noise.mean + REACH * sd + 3.0, NODES).to(like)
        low, high = widest[0].item(), widest[-1].item()
        for _ in range(ZOOMS):  # onto the mass, which may have two modes
            nodes = torch.linspace(low, high, NODES // 2 + 1, dtype=like.dtype, device=like.device)
            values = density(nodes)
            kept = (values > values.max() - 0.5 * REACH**2).nonzero().squeeze(-1)
            first, last = max(0, int(kept[0]) - 1), min(len(nodes) - 1, int(kept[-1]) + 1)
            if last - first > len(nodes) // 2:
                break
            low, high = nodes[first].item(), nodes[last].item()
        return cls(rotated, weights, nodes, values)

    def draw(
        self, count: int, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "s i"], Float[Tensor, " s"]]:
        """Draw log ρ and log σ² independently. O(count · p · nodes)."""
        uniform = torch.rand(count, generator=generator, dtype=self.log_noise.dtype, device=self.log_noise.device)
        noise = _inverse_cdf(self.log_noise, self.log_density, uniform)
        drawn = []
        for value in noise:
            u = torch.rand(len(self.rotated.gram), generator=generator, dtype=value.dtype, device=value.device)
            nodes, log_density = _conditional(self.rotated, self.weights, value)
            drawn.append(_inverse_cdf(nodes, log_density, u))
        return torch.stack(drawn), noise


def _conditional(
    rotated: Rotated, weights: LogNormal, log_noise: Float[Tensor, ""]
) -> tuple[Float[Tensor, " t"], Float[Tensor, "i t"]]:
    """Nodes of log ρ, and log N(z; 0, γρ + σ²) + log p(log ρ) at these for every weight."""
    z2, sd = rotated.projection.square(), weights.variance**0.5
    largest = (z2 / rotated.gram).amax().clamp_min(1.0).log().item() if len(z2) > 0 else 0.0
    low, high = weights.mean - REACH * sd, max(weights.mean + REACH * sd, largest + 3.0)
    nodes = torch.linspace(low, high, NODES, dtype=z2.dtype, device=z2.device)
    total = rotated.gram.unsqueeze(-1) * nodes.exp() + log_noise.exp()
    prior = -0.5 * (nodes - weights.mean).square() / weights.variance - 0.5 * math.log(2 * math.pi * weights.variance)
    return nodes, prior - 0.5 * (z2.unsqueeze(-1) / total + total.log() + math.log(2 * math.pi))


def _marginal(rotated: Rotated, weights: LogNormal, log_noise: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Log p(y | σ²) with the weights integrated out, up to a constant."""
    nodes, log_density = _conditional(rotated, weights, log_noise)
    free = rotated.count - len(rotated.gram)
    rest = -0.5 * (rotated.rest / log_noise.exp() + free * log_noise)
    return rest + (log_density.logsumexp(-1) + (nodes[1] - nodes[0]).log()).sum()


def _inverse_cdf(
    nodes: Float[Tensor, " t"], log_density: Float[Tensor, "*b t"], uniform: Float[Tensor, "*c"]
) -> Float[Tensor, "*c"]:
    """Inverse of the distribution function at u, for densities that are linear between nodes."""
    if len(nodes) == 1:
        return nodes.expand(uniform.shape)
    density = (log_density - log_density.amax(-1, keepdim=True)).exp()
    step = nodes[1] - nodes[0]
    cells = 0.5 * (density[..., 1:] + density[..., :-1])
    cumulative = cells.cumsum(-1) / cells.sum(-1, keepdim=True)
    u = uniform.unsqueeze(-1)
    cell = torch.searchsorted(cumulative, u).clamp_max(len(nodes) - 2)
    if density.ndim == 1:
        density, cumulative = density.expand(len(uniform), -1), cumulative.expand(len(uniform), -1)
    before = torch.where(cell > 0, cumulative.gather(-1, (cell - 1).clamp_min(0)), 0.0)
    a, b = density.gather(-1, cell), density.gather(-1, cell + 1)
    within = ((u - before) / (cumulative.gather(-1, cell) - before).clamp_min(1e-300)).clamp(0.0, 1.0)
    # ∫₀ˢ (a + (b − a)x) dx = within · (a + b)/2, solved without cancellation
    s = within * (a + b) / (a + (a.square() + (b - a) * within * (a + b)).clamp_min(0.0).sqrt()).clamp_min(1e-300)
    return (nodes[cell] + step * s).squeeze(-1)
