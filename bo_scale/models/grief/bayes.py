"""GP-GRIEF-I: a fully Bayesian GP at any n, as an ensemble in BoTorch's sense."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import Mean
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError, SamplingWarning
from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.langevin import effective_size, langevin, split_r_hat
from bo_scale.gp.weight_space.mixture import MixtureLocated, MixturePosterior, mixture_of
from bo_scale.gp.weight_space.rotated_evidence import LogNormal, Quadrature, Rotated
from bo_scale.models.grief.model import GRIEF, LOG_WEIGHT_VARIANCE
from bo_scale.models.shell.cloning import clone_module

Sampler = Literal["exact", "langevin"]

NOISE_VARIANCE = 0.04
"""Of the prior of σ², whose mode is the noise of the fit.    [GRIEF] section 5"""
LARGEST_R_HAT = 1.05
SMALLEST_SHARE = 0.1
"""Of the draws asked for, that chains are at least to be worth."""
LONGEST_THINNING = 50
"""Iterations of which one is kept.    [GRIEF] section 5"""
MEAN_POINTS = 100
"""Training points at which the mixing of posterior means is looked at."""


@dataclass(frozen=True)
class Diagnostics:
    """How well the posterior was sampled.

    Attributes:
        sampler: "exact" or "langevin".
        acceptance: Mean share of accepted proposals; 1 for exact draws.
        effective_size: Independent draws that all kept ones are worth: of the noise, or of the means where it is known.
        r_hat_noise: Split R̂ of log σ².
        r_hat_mean: The largest of the posterior means at up to 100 training points.
        iterations: Of each chain.
    """

    sampler: Sampler
    acceptance: float
    effective_size: float
    r_hat_noise: float
    r_hat_mean: float
    iterations: int


class SampledNoise(GaussianLikelihood):
    """The noise of the fit as its parameter; in eval mode every sample's, for distributions of as many samples.

    Args:
        likelihood: Whose parameter, prior and constraint it shares.
    """

    samples: Float[Tensor, " s"] | None = None

    def __init__(self, likelihood: GaussianLikelihood) -> None:
        super(GaussianLikelihood, self).__init__(likelihood.noise_covar)

    @override
    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Tensor | LinearOperator:
        if self.training or self.samples is None or base_shape[-2:-1] != self.samples.shape:
            return super()._shaped_noise_covar(base_shape, *params, **kwargs)
        return ConstantDiagLinearOperator(self.samples.unsqueeze(-1), diag_shape=base_shape[-1])


class GRIEFBayes(GRIEF):
    """GRIEF with the prior variances of its weights, and the noise, integrated over: a fully Bayesian model of BoTorch.

    k(x, x') = Σ_i ρ_i ψ_i(x) ψ_i(x'), with ψ the eigenfunctions rotated so that their Gram matrix over the data is
    diagonal. Then the posterior of {ρ, σ²} costs O(p) an evaluation and never sees the data again. Priors are
    log-normal: of mode 1 and variance 100 for ρ, of mode σ₀² and variance 0.04 for σ², σ₀² the noise of the fit; known
    variances stay as they are.

    `fit_gpytorch_mll` fits kernel, mean and σ₀² as for GRIEF. Samples are drawn when a posterior is first asked for, by
    a seed, and again whenever hyperparameters have changed or more than `max_new_observations` rows have come:
    O(p³) for the rotation, then a second for independent draws by quadrature ("exact") or O(p) an iteration of
    Metropolis-adjusted Langevin ("langevin"), of which `diagnostics` tells how the chains have mixed.

    Posteriors are mixtures: of shape `… S × q × m`, with S samples where BoTorch's fully Bayesian models have theirs.
    Conditioning is exact at fixed samples, O(S p q). One output; for several, a ModelListGP of these.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × 1`.
        train_Yvar: Known noise variances `n × 1`; None to infer one.
        num_eigenfunctions: p; fewer where the grid has no more.
        grid_points: Nodes a dimension.
        num_samples: S.
        sampler: "exact": independent draws; "langevin": the paper's chains, thinned to S draws.
        num_chains: Of Langevin.
        num_iterations: Of every chain, burn-in included.
        burn: Iterations in which the step adapts.
        bounds: As for GRIEF.
        covar_module: As for GRIEF.
        mean_module: As for GRIEF.
        likelihood: As for GRIEF.
        input_transform: As for GRIEF.
        outcome_transform: As for GRIEF.
        subset_size: As for GRIEF.
        learn_kernel: As for GRIEF.
        max_new_observations: Rows that condition the samples there are before new ones are drawn.
        seed: Of the choice of rows and of the samples.
        keep_data: As for GRIEF.

    References:
        T. W. Evans, P. B. Nair. Scalable Gaussian processes with grid-structured eigenfunctions (GP-GRIEF). ICML 2018.
        arXiv:1807.02125.

    Example:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = GRIEFBayes(X, X.square().sum(-1, keepdim=True), num_eigenfunctions=50, num_samples=16).eval()
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([16, 3, 1])
    """

    _is_fully_bayesian = True
    _is_ensemble = True

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_eigenfunctions: int = 1000,
        grid_points: int = 10,
        num_samples: int = 32,
        sampler: Sampler = "exact",
        num_chains: int = 4,
        num_iterations: int = 10_000,
        burn: int = 1000,
        bounds: Tensor | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        subset_size: int = 1000,
        learn_kernel: bool = False,
        max_new_observations: int = 256,
        seed: int = 0,
        keep_data: bool = True,
    ) -> None:
        if sampler not in ("exact", "langevin"):
            raise ValueError(f"sampler={sampler!r}: choose 'exact' or 'langevin'.")
        if min(num_samples, num_chains, max_new_observations) < 1 or not 0 < burn < num_iterations:
            raise ValueError(
                "num_samples, num_chains, max_new_observations: at least 1; burn: from 1 to num_iterations."
            )
        if train_Y.shape[-1] != 1:
            raise UnsupportedError(
                "train_Y: one output at a time; make a ModelListGP of GRIEFBayes models for several."
            )
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            num_eigenfunctions=num_eigenfunctions,
            grid_points=grid_points,
            bounds=bounds,
            covar_module=covar_module,
            mean_module=mean_module,
            likelihood=likelihood,
            input_transform=input_transform,
            outcome_transform=outcome_transform,
            subset_size=subset_size,
            learn_kernel=learn_kernel,
            seed=seed,
            keep_data=keep_data,
        )
        if not isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            self.likelihood = SampledNoise(self.likelihood)
        self._num_samples, self._sampler = num_samples, sampler
        self._num_chains, self._num_iterations, self._burn = num_chains, num_iterations, burn
        self._max_new = max_new_observations
        self._sampled_at = 0
        self._batch_shape = torch.Size([num_samples])
        self._log_weights: Tensor | None = None
        self.diagnostics: Diagnostics | None = None

    @property
    def num_mcmc_samples(self) -> int:
        """S."""
        return self._num_samples

    # ------------------------------------------------------------------ sampling

    @override
    def _build_processes(self) -> list[PosteriorProcess]:
        features, constant = self._feature_map(0, frozen=True), self._constants()[0].clone()
        scale = features.outputscale
        rotated = Rotated.of(self._statistics_of(0), scale, constant)
        log_weights, log_noise = self._draw(rotated)
        means, variances = rotated.posterior_moments(log_weights, log_noise)
        self._sampled_at = self.num_observations
        self._keep_samples(log_weights, log_noise)
        return [MixturePosterior(features, scale.sqrt() * rotated.rotation, means, variances, constant, log_noise)]

    def _keep_samples(self, log_weights: Float[Tensor, "s i"] | None, log_noise: Float[Tensor, " s"]) -> None:
        """What processes do not know of their prior, and the likelihood of its noise."""
        self._log_weights = log_weights
        if isinstance(self.likelihood, SampledNoise):
            self.likelihood.samples = log_noise.exp().to(self._dtype)

    def _draw(self, rotated: Rotated) -> tuple[Float[Tensor, "s i"], Float[Tensor, " s"]]:
        """Draws of log ρ and log σ²; the global random state is left alone."""
        generator = torch.Generator(rotated.gram.device).manual_seed(self._seed)
        weights, noise = LogNormal(LOG_WEIGHT_VARIANCE, LOG_WEIGHT_VARIANCE), self._noise_prior()
        if self._sampler == "exact":
            self.diagnostics = Diagnostics("exact", 1.0, float(self._num_samples), 1.0, 1.0, 0)
            return Quadrature.of(rotated, weights, noise).draw(self._num_samples, generator)
        return self._by_langevin(rotated, weights, noise, generator)

    def _noise_prior(self) -> LogNormal | None:
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return None
        return LogNormal.of_mode(self._noise_scale().item(), NOISE_VARIANCE)

    def _by_langevin(
        self, rotated: Rotated, weights: LogNormal, noise: LogNormal | None, generator: torch.Generator
    ) -> tuple[Float[Tensor, "s i"], Float[Tensor, " s"]]:
        """Chains from draws about the prior's modes, preconditioned by the curvatures to expect there.

        −∂² log p is the prior's 1/s² and, of the likelihood, n/2 in log σ² and from 0 to ½ in log ρ: ¼ is taken.
        """
        rank, like = len(rotated.gram), rotated.gram
        middle = [0.0] * rank + ([] if noise is None else [noise.mean - noise.variance])
        sd = [(1 / (1 / weights.variance + 0.25)) ** 0.5] * rank
        sd += [] if noise is None else [(1 / (1 / noise.variance + 0.5 * rotated.count)) ** 0.5]
        start, scale = like.new_tensor(middle), like.new_tensor(sd)
        spread = torch.randn(self._num_chains, len(start), generator=generator, dtype=like.dtype, device=like.device)

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

        length = self._num_iterations - self._burn
        thin = max(1, min(LONGEST_THINNING, length, length * self._num_chains // self._num_samples))
        chains = langevin(target, start + scale * spread, scale, self._num_iterations, self._burn, thin, generator)
        states = chains.states
        log_noise = states[..., rank] if noise is not None else states.new_zeros(states.shape[:2])
        self._diagnose(rotated, states[..., :rank], log_noise, chains.acceptance.mean().item())
        flat = states.transpose(0, 1).flatten(0, 1)
        chosen = torch.linspace(0, len(flat) - 1, self._num_samples, device=flat.device).round().long()
        return flat[chosen, :rank], log_noise.transpose(0, 1).flatten()[chosen]

    def _diagnose(
        self,
        rotated: Rotated,
        log_weights: Float[Tensor, "t c i"],
        log_noise: Float[Tensor, "t c"],
        acceptance: float,
    ) -> None:
        """Keep how the chains have mixed, and warn where they have not."""
        means = rotated.posterior_moments(log_weights, log_noise)[0]
        if self._rows is not None and self._rows.count > 0:
            X = self._transformed_rows()[0][:MEAN_POINTS]
            means = means @ (self._feature_map(0, frozen=True)(X) @ rotated.rotation).mT
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        r_hat_noise = 1.0 if known else split_r_hat(log_noise).item()
        size = effective_size(means).min().item() if known else effective_size(log_noise).item()
        r_hat_mean = split_r_hat(means).max().item()
        self.diagnostics = Diagnostics("langevin", acceptance, size, r_hat_noise, r_hat_mean, self._num_iterations)
        worst = max(r_hat_noise, r_hat_mean)
        if worst > LARGEST_R_HAT or size < SMALLEST_SHARE * self._num_samples:
            warnings.warn(
                f"GRIEFBayes: chains have not mixed (R̂ = {worst:.3f}, {size:.0f} effective draws); raise "
                f"num_iterations, or take sampler='exact'.",
                SamplingWarning,
                stacklevel=2,
            )

    # ------------------------------------------------------------------ leaving rows out

    @property
    @override
    def train_targets(self) -> Tensor:
        """Training targets after the outcome transform: `n` in train mode, `… S × n` in eval mode, as of ensembles."""
        Y = super().train_targets
        return Y if self.training or self._fantasies is not None else Y.expand(self._num_samples, *Y.shape)

    @override
    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        every = targets is not None and targets.shape == (self._num_samples, self.num_observations)
        super().set_train_data(inputs, targets[0] if targets is not None and every else targets, strict)

    @override
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b s q q"]:
        """ΦV diag(ρ) VᵀΦᵀ of every sample, with ρ = 1 where the data said nothing. Samples stay as they are."""
        mixture = self._mixture()
        assert self._log_weights is not None, "kept with the samples"
        unseen = len(mixture.rotation) - self._log_weights.shape[-1]
        rho = torch.nn.functional.pad(self._log_weights.exp(), (0, unseen), value=1.0)
        points = replace(mixture, variances=rho).locate(X)
        return points.covariance(points)

    @override
    def _unlike_prior(self) -> str | None:
        _ = self._current_processes()
        if self._log_weights is None:
            return "saved by an earlier version, without the samples of its prior variances"
        return super()._unlike_prior()

    # ------------------------------------------------------------------ new observations

    def _mixture(self) -> MixturePosterior:
        return mixture_of(self._current_processes()[0])

    @override
    def _absorb(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q 1"], D: Float[Tensor, "q 1"]) -> None:
        self._stats = self._accumulate(X, Y, D, self.statistics)
        if self._rows is None:
            self._set_mean_noise()
        if self._processes is None or self._stats[0].count - self._sampled_at > self._max_new:
            self._processes = None
            return
        process, seen = self._processes[0], (X, Y[:, 0], self._noise_of_new(0, D[:, 0], len(X)))
        self._processes = [process.extended(*seen) if isinstance(process, Conditioned) else condition(process, *seen)]

    @override
    def _conditioned(self, X: Tensor, transformed: Tensor, Y: Tensor, noise: Tensor | None) -> "GRIEFBayes":
        """Values and variances with as many dimensions as X have none for the samples yet, and are equal for all."""
        streamed = X.ndim == 2 and Y.ndim == 2
        if Y.ndim == X.ndim and (not streamed or X.requires_grad or Y.requires_grad or self._fantasies is not None):
            Y = Y.unsqueeze(-3)
            noise = noise.unsqueeze(-3) if noise is not None and noise.ndim == X.ndim else noise
        if Y.ndim > 2 and Y.shape[-3] not in (1, self._num_samples):
            raise InvalidDataError(
                f"Y: shape {tuple(Y.shape)}; expected {self._num_samples} samples, or 1, in its third last dimension."
            )
        if noise is not None and noise.ndim == X.ndim and Y.ndim > X.ndim:
            noise = noise.unsqueeze(-3)
        child = super()._conditioned(X, transformed, Y, noise)
        assert isinstance(child, GRIEFBayes), "as its parent"
        return child

    @override
    def _noise_of_new(self, output: int, D: Float[Tensor, "*b r"], q: int) -> Float[Tensor, "*c s q"]:
        noise = self._mixture().log_noise.exp().unsqueeze(-1) * D
        return noise.expand(*noise.shape[:-1], q)

    @override
    def _measurement_noise(self, output: int) -> Float[Tensor, "*s"]:
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return super()._measurement_noise(output)
        return self._mixture().log_noise.exp()

    @override
    def subset_output(self, idcs: list[int]) -> "GRIEFBayes":
        """The model of its one output, at the same samples."""
        if [i % self._num_outputs for i in idcs] != [0]:
            raise UnsupportedError(f"idcs={idcs}: there is one output.")
        return clone_module(self)

    @override
    def _fantasised(self, X: Tensor, transformed: Tensor, Y: Tensor, D: Tensor) -> "GRIEFBayes":
        child = super()._fantasised(X.unsqueeze(-3), transformed, Y, D)
        assert isinstance(child, GRIEFBayes)
        return child

    @override
    def _point_batch(self, X: Float[Tensor, "*b q d"]) -> torch.Size:
        return torch.Size([*X.shape[:-2], self._num_samples])

    @override
    def _predictive_noise(self, outputs: list[int], observation_noise: bool | Tensor) -> Tensor | None:
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if isinstance(observation_noise, Tensor) or not observation_noise or known:
            return super()._predictive_noise(outputs, observation_noise)
        return self._mixture().log_noise.exp().reshape(-1, 1, 1)

    @property
    @override
    def mean_noise(self) -> Float[Tensor, " m"]:
        """The posterior mean of the noise variance, or the mean of the known ones, in squared transformed units."""
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return super().mean_noise
        return self._mixture().log_noise.exp().mean().reshape(1).to(self._dtype)

    # ------------------------------------------------------------------ saved models

    @override
    def _derived(self) -> dict[str, Any]:
        process = self._current_processes()[0]
        observed = {}
        if isinstance(process, Conditioned):
            points = process.points
            assert isinstance(points, MixtureLocated), "streamed rows condition the mixture itself"
            tensors = (process.noise, process.factor, process.innovation, points.mean, points.rotated)
            names = ("noise", "factor", "innovation", "mean", "rotated")
            observed = {name: value.clone() for name, value in zip(names, tensors, strict=True)}
        statistics = [stats.state() for stats in self.statistics]
        sampled = {"mixture": self._mixture().state(), "observed": observed, "sampled_at": self._sampled_at}
        sampled["log_weights"] = None if self._log_weights is None else self._log_weights.clone()
        sampled["diagnostics"] = None if self.diagnostics is None else vars(self.diagnostics)
        return {"statistics": statistics, **sampled}

    @override
    def _restore_derived(self, saved: dict[str, Any]) -> None:
        super()._restore_derived({"statistics": saved["statistics"], "posterior": []})
        mixture = MixturePosterior(self._feature_map(0, frozen=True), **saved["mixture"])
        seen, self._sampled_at = saved["observed"], saved["sampled_at"]
        self._keep_samples(saved.get("log_weights"), mixture.log_noise)
        self.diagnostics = None if saved["diagnostics"] is None else Diagnostics(**saved["diagnostics"])
        self._processes = [mixture]
        if seen:
            points = MixtureLocated(seen["mean"], seen["rotated"], mixture.variances)
            self._processes = [Conditioned(mixture, points, seen["noise"], seen["factor"], seen["innovation"])]

    # ------------------------------------------------------------------ posterior

    @override
    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GaussianMixturePosterior | GPyTorchPosterior | TransformedPosterior | Posterior:
        """The mixture posterior at raw inputs X `… q d`: means and samples are `… S × q × 1`.

        Args:
            X: Where; q points are considered jointly.
            output_indices: None or [0].
            observation_noise: True adds every sample's noise, or the mean of the known variances; a tensor, in
                transformed units, is added as it is.
            posterior_transform: Applied last.
            **kwargs: Ignored, as BoTorch's models do.
        """
        found = super().posterior(X, output_indices, observation_noise, **kwargs)
        if type(found) is GPyTorchPosterior:
            found = GaussianMixturePosterior(distribution=found.distribution)
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    @override
    def posterior_mean(self, X: Tensor) -> Tensor:
        """The mean of the mixture alone at raw inputs `… q d`: `… q 1`, in raw units."""
        return super().posterior_mean(X).mean(-3)
