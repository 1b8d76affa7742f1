"""Inference of GP-GRIEF-I: samples integrate over the weights' prior variances and the noise."""

import warnings
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import SamplingWarning
from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.features.eigenfunctions import EigenfunctionFeatures
from bo_scale.gp.weight_space.inference import Hyperparameters, WeightSpaceInference
from bo_scale.gp.weight_space.langevin import effective_size, langevin, split_r_hat
from bo_scale.gp.weight_space.mixture import MixtureLocated, MixturePosterior, mixture_of
from bo_scale.gp.weight_space.rotated_evidence import LogNormal, Quadrature, Rotated

SamplerName = Literal["exact", "langevin"]

LOG_WEIGHT_VARIANCE = 1.2370
"""Variance of log ρ under the prior of mode 1 and variance 100, and also its mean.    [GRIEF] section 5"""
NOISE_VARIANCE = 0.04
"""Variance of the prior of σ², whose mode is the fitted noise.    [GRIEF] section 5"""
LARGEST_R_HAT = 1.05
SMALLEST_SHARE = 0.1
"""Smallest effective sample size of the chains, as a share of the requested draws."""
LONGEST_THINNING = 50
"""Largest interval between the iterations that are kept.    [GRIEF] section 5"""


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of the sampling.

    Attributes:
        sampler: "exact" or "langevin".
        acceptance: Mean share of accepted proposals; 1 for exact draws.
        effective_size: Effective sample size of the noise, or of the posterior means if the noise is known.
        r_hat_noise: Split R̂ of log σ².
        r_hat_mean: Largest split R̂ of the posterior means at up to 100 training points.
        iterations: Iterations of each chain.
    """

    sampler: SamplerName
    acceptance: float
    effective_size: float
    r_hat_noise: float
    r_hat_mean: float
    iterations: int


@dataclass(frozen=True)
class Samples:
    """Draws of the prior variances ρ and the noise, and the posterior that each implies.

    Attributes:
        mixture: Posterior of every draw.
        log_weights: Log ρ, which the mixture does not hold; None if a saved file lacks it.
        diagnostics: Diagnostics of the sampling.
        count: Number of observations when they were drawn.
    """

    mixture: MixturePosterior
    log_weights: Float[Tensor, "s i"] | None
    diagnostics: Diagnostics | None
    count: int


@dataclass(frozen=True)
class WeightSampler:
    """Sampler of {ρ, σ²} given the statistics: independent draws by quadrature, or Langevin chains.

    Attributes:
        kind: "exact" or "langevin".
        num_samples: S.
        num_chains: Number of Langevin chains.
        num_iterations: Iterations of every chain, burn-in included.
        burn: Iterations in which the step adapts.
        seed: Seed of the draws. The global random state is left alone.
        known_noise: Whether noise variances are known and therefore not drawn.
        max_new: Number of new rows that condition the samples before new samples are drawn.
    """

    kind: SamplerName
    num_samples: int
    num_chains: int
    num_iterations: int
    burn: int
    seed: int
    known_noise: bool
    max_new: int

    def draw(self, inference: WeightSpaceInference, points: Float[Tensor, "k d"] | None) -> Samples:
        """Draw samples at an inference's hyperparameters and statistics. O(p³) for the rotation.

        Args:
            inference: Inference with the data and the features.
            points: Points whose posterior means are checked for mixing; None to check the weights.
        """
        known = inference.hyperparameters
        features, constant = known.features[0], known.constants[0]
        assert isinstance(features, EigenfunctionFeatures), "weights of eigenfunctions"
        scale = features.outputscale
        rotated = Rotated.of(inference.statistics_of(0), scale, constant)
        log_weights, log_noise, diagnostics = self._drawn(rotated, known, points)
        means, variances = rotated.posterior_moments(log_weights, log_noise)
        rotation = scale.sqrt() * rotated.rotation
        mixture = MixturePosterior(features, rotation, means, variances, constant, log_noise)
        return Samples(mixture, log_weights, diagnostics, inference.count)

    def _drawn(
        self, rotated: Rotated, known: Hyperparameters, points: Float[Tensor, "k d"] | None
    ) -> tuple[Float[Tensor, "s i"], Float[Tensor, " s"], Diagnostics]:
        weights = LogNormal(LOG_WEIGHT_VARIANCE, LOG_WEIGHT_VARIANCE)
        noise = None if self.known_noise else LogNormal.of_mode(known.noise[0].item(), NOISE_VARIANCE)
        generator = torch.Generator(rotated.gram.device).manual_seed(self.seed)
        if self.kind == "langevin":
            return self._by_langevin(rotated, weights, noise, generator, known, points)
        draws = Quadrature.of(rotated, weights, noise).draw(self.num_samples, generator)
        return *draws, Diagnostics("exact", 1.0, float(self.num_samples), 1.0, 1.0, 0)

    def _by_langevin(
        self,
        rotated: Rotated,
        weights: LogNormal,
        noise: LogNormal | None,
        generator: torch.Generator,
        known: Hyperparameters,
        points: Float[Tensor, "k d"] | None,
    ) -> tuple[Float[Tensor, "s i"], Float[Tensor, " s"], Diagnostics]:
        """Run chains from draws about the prior's modes, preconditioned by the expected curvatures.

        −∂² log p is 1/s² from the prior plus a term of the likelihood: n/2 in log σ²; 0 to ½ in log ρ, taken as ¼.
        """
        rank, like = len(rotated.gram), rotated.gram
        middle = [0.0] * rank + ([] if noise is None else [noise.mean - noise.variance])
        sd = [(1 / (1 / weights.variance + 0.25)) ** 0.5] * rank
        sd += [] if noise is None else [(1 / (1 / noise.variance + 0.5 * rotated.count)) ** 0.5]
        start, scale = like.new_tensor(middle), like.new_tensor(sd)
        spread = torch.randn(self.num_chains, len(start), generator=generator, dtype=like.dtype, device=like.device)

        def target(state: Float[Tensor, "c k"]) -> tuple[Float[Tensor, " c"], Float[Tensor, "c k"]]:
            u, v = state[:, :rank], state[:, rank] if noise is not None else state.new_zeros(len(state))
            value, slope, slope_noise = rotated.log_evidence(u, v)
            off = (u - weights.mean) / weights.variance
            value, slope = value - 0.5 * (off * (u - weights.mean)).sum(-1), slope - off
            if noise is None:
                return value, slope
            beyond = (v - noise.mean) / noise.variance
            gradient = torch.cat([slope, (slope_noise - beyond).unsqueeze(-1)], -1)
            return value - 0.5 * beyond * (v - noise.mean), gradient

        length = self.num_iterations - self.burn
        thin = max(1, min(LONGEST_THINNING, length, length * self.num_chains // self.num_samples))
        chains = langevin(target, start + scale * spread, scale, self.num_iterations, self.burn, thin, generator)
        states = chains.states
        log_noise = states[..., rank] if noise is not None else states.new_zeros(states.shape[:2])
        acceptance = chains.acceptance.mean().item()
        diagnostics = self._diagnosed(rotated, states[..., :rank], log_noise, acceptance, known, points)
        flat = states.transpose(0, 1).flatten(0, 1)
        chosen = torch.linspace(0, len(flat) - 1, self.num_samples, device=flat.device).round().long()
        return flat[chosen, :rank], log_noise.transpose(0, 1).flatten()[chosen], diagnostics

    def _diagnosed(
        self,
        rotated: Rotated,
        log_weights: Float[Tensor, "t c i"],
        log_noise: Float[Tensor, "t c"],
        acceptance: float,
        known: Hyperparameters,
        points: Float[Tensor, "k d"] | None,
    ) -> Diagnostics:
        """Diagnose the mixing of the chains, and warn if they have not mixed."""
        means = rotated.posterior_moments(log_weights, log_noise)[0]
        if points is not None:
            Phi: Any = known.features[0](points)
            means = means @ (Phi @ rotated.rotation).mT
        r_hat_noise = 1.0 if self.known_noise else split_r_hat(log_noise).item()
        size = effective_size(means).min().item() if self.known_noise else effective_size(log_noise).item()
        r_hat_mean = split_r_hat(means).max().item()
        worst = max(r_hat_noise, r_hat_mean)
        if worst > LARGEST_R_HAT or size < SMALLEST_SHARE * self.num_samples:
            warnings.warn(
                f"GRIEFBayes: the chains have not mixed (R̂ = {worst:.3f}, {size:.0f} effective draws). Raise "
                f"num_iterations, or use sampler='exact'.",
                SamplingWarning,
                stacklevel=2,
            )
        return Diagnostics("langevin", acceptance, size, r_hat_noise, r_hat_mean, self.num_iterations)


@dataclass(frozen=True, kw_only=True)
class SampledInference(WeightSpaceInference):
    """Posterior of every sample of {ρ, σ²}. Samples are drawn when a posterior is first needed.

    Up to `max_new` later rows condition these samples; after that, new samples are drawn.

    Attributes:
        sampler: Sampler that draws them.
        points: Points whose posterior means are checked for mixing.
        samples: Samples drawn so far; None to draw them on demand.
    """

    sampler: WeightSampler
    points: Float[Tensor, "k d"] | None = field(default=None, repr=False)
    samples: Samples | None = None

    @classmethod
    def of(
        cls, inference: WeightSpaceInference, sampler: WeightSampler, points: Float[Tensor, "k d"] | None
    ) -> "SampledInference":
        """Inference by samples from the statistics of another inference."""
        shared = {f.name: getattr(inference, f.name) for f in fields(WeightSpaceInference)}
        return cls(**{**shared, "rows": None, "updated": None}, sampler=sampler, points=points)

    @property
    def known_samples(self) -> Samples | None:
        """Samples if they have been drawn; None otherwise."""
        found: Samples | None = self.__dict__.get("drawn", self.samples)
        return found

    @cached_property
    def drawn(self) -> Samples:
        """Samples, drawn now if there are none."""
        if self.samples is not None:
            return self.samples
        with torch.no_grad():
            return self.sampler.draw(self, self.points)

    @cached_property
    @override
    def processes(self) -> tuple[PosteriorProcess, ...]:
        """The mixture, conditioned on rows that arrived after it was drawn."""
        return (self.drawn.mixture,) if self.updated is None else self.updated

    @property
    @override
    def samples_shape(self) -> torch.Size:
        return torch.Size([self.sampler.num_samples])

    @property
    @override
    def sampled_noise(self) -> Float[Tensor, " s"] | None:
        return None if self.sampler.known_noise else self.drawn.mixture.log_noise.exp()

    @override
    def derived_from(self, **changes: Any) -> "SampledInference":
        return replace(self, **{"updated": None, "rows": None, "samples": None, **changes})

    @override
    def observe(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> "SampledInference":
        child = self.counting(X, Y, D)
        assert isinstance(child, SampledInference), "as its parent"
        if self.known_samples is None or child.count - self.drawn.count > self.sampler.max_new:
            return child
        process, seen = self.processes[0], (X, Y[:, 0], self.noise_of(0, D[:, 0], X))
        updated = process.extended(*seen) if isinstance(process, Conditioned) else condition(process, *seen)
        return replace(child, updated=(updated,), samples=self.drawn)

    @override
    def settled(self) -> "SampledInference":
        found = super().settled()
        assert isinstance(found, SampledInference), "as this one"
        return replace(found, samples=self.known_samples)

    @override
    def noise_of(self, output: int, D: Float[Tensor, "*b r"], X: Float[Tensor, "*e q d"]) -> Float[Tensor, "*c s q"]:
        noise = self.drawn.mixture.log_noise.exp().unsqueeze(-1) * D
        return noise.expand(*noise.shape[:-1], X.shape[-2])

    @override
    def state(self) -> dict[str, Any]:
        process, drawn, observed = self.processes[0], self.drawn, {}
        if isinstance(process, Conditioned):
            points = process.points
            assert isinstance(points, MixtureLocated), "streamed rows condition the mixture itself"
            tensors = (process.noise, process.factor, process.innovation, points.mean, points.rotated)
            names = ("noise", "factor", "innovation", "mean", "rotated")
            observed = {name: value.clone() for name, value in zip(names, tensors, strict=True)}
        return {
            "statistics": [stats.state() for stats in self.summed],
            "waiting": self.waiting,
            "mixture": mixture_of(process).state(),
            "observed": observed,
            "sampled_at": drawn.count,
            "log_weights": None if drawn.log_weights is None else drawn.log_weights.clone(),
            "diagnostics": None if drawn.diagnostics is None else vars(drawn.diagnostics),
        }

    def with_samples(self, saved: dict[str, Any]) -> "SampledInference":
        """Copy with the samples of a saved `state`. This inference must already have the statistics of that state."""
        mixture = MixturePosterior(self.hyperparameters.features[0], **saved["mixture"])
        diagnostics = None if saved["diagnostics"] is None else Diagnostics(**saved["diagnostics"])
        samples = Samples(mixture, saved.get("log_weights"), diagnostics, saved["sampled_at"])
        seen, process = saved["observed"], None
        if seen:
            points = MixtureLocated(seen["mean"], seen["rotated"], mixture.variances)
            process = Conditioned(mixture, points, seen["noise"], seen["factor"], seen["innovation"])
        return replace(self, samples=samples, updated=None if process is None else (process,))
