"""GP-GRIEF-I: a fully Bayesian GP for any n, an ensemble in BoTorch's sense."""

from dataclasses import replace
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import Mean
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.gp.inference import Fantasised, Inference
from bo_scale.gp.weight_space.inference import Hyperparameters, WeightSpaceInference
from bo_scale.gp.weight_space.predictive_variance import NOTHING_ADDED
from bo_scale.gp.weight_space.sampled_inference import (
    Diagnostics,
    SampledInference,
    SamplerName,
    Samples,
    WeightSampler,
)
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.grief.model import GRIEF
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.door import require_given, require_outputs
from bo_scale.models.shell.lending import borrows
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.student_t import StudentTNoise

MEAN_POINTS = 100
"""Number of training points at which the mixing of posterior means is checked."""


class SampledNoise(GaussianLikelihood):
    """Noise whose parameter is the fitted one; in eval mode it is that of every sample, for batches of samples.

    Args:
        likelihood: The likelihood whose parameter, prior and constraint it shares.
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
    """Fully Bayesian GRIEF: it integrates over the noise and the prior variances of its weights.

    k(x, x') = Σ_i ρ_i ψ_i(x) ψ_i(x'), with eigenfunctions ψ rotated so that their Gram matrix over the data is
    diagonal. The posterior density of {ρ, σ²} then costs O(p) per evaluation and needs no further pass over the data.
    Priors are log-normal: mode 1 and variance 100 for ρ; mode σ₀² and variance 0.04 for σ², where σ₀² is the fitted
    noise. Known variances stay as they are.

    `fit_gpytorch_mll` fits kernel, mean and σ₀² as for GRIEF. The first request for a posterior draws samples, with a
    fixed seed. They are drawn again after hyperparameters change or more than `max_new_observations` rows arrive. The
    rotation costs O(p³). Independent draws by quadrature ("exact") then take about a second. Metropolis-adjusted
    Langevin ("langevin") takes O(p) per iteration; `diagnostics` tells how well its chains mixed.

    Posteriors are mixtures of shape `… S × q × m`, with the S samples in the same place as in BoTorch's fully Bayesian
    models. Conditioning is exact at fixed samples, in O(S p q). There is one output; for several use a ModelListGP.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × 1`.
        train_Yvar: Known noise variances `n × 1`. None to infer the noise.
        num_eigenfunctions: Number of eigenfunctions p; fewer if the grid has fewer.
        grid_points: Grid nodes per dimension; None to choose, as in `GRIEF`.
        num_samples: Number of samples S.
        sampler: "exact" for independent draws, or "langevin" for the paper's chains, thinned to S draws.
        num_chains: Number of Langevin chains.
        num_iterations: Iterations of each chain, including burn-in.
        burn: Burn-in iterations, in which the step size adapts.
        bounds: As for GRIEF.
        covar_module: As for GRIEF.
        mean_module: As for GRIEF.
        likelihood: As for GRIEF, without `StudentTNoise`.
        input_transform: As for GRIEF.
        outcome_transform: As for GRIEF.
        subset_size: As for GRIEF.
        learn_kernel: As for GRIEF.
        max_new_observations: Number of new rows that condition the present samples before new ones are drawn.
        seed: Seed for the choice of rows and for the samples.
        keep_data: As for GRIEF.

    References:
        T. W. Evans, P. B. Nair. Scalable Gaussian processes with grid-structured eigenfunctions (GP-GRIEF). ICML 2018.
        arXiv:1807.02125.

    Examples:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = GRIEFBayes(X, X.square().sum(-1, keepdim=True), num_eigenfunctions=50, num_samples=16).eval()
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([16, 3, 1])
    """

    _is_fully_bayesian = True
    _is_ensemble = True
    _sampler: WeightSampler

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_eigenfunctions: int = 1000,
        grid_points: int | None = None,
        num_samples: int = 32,
        sampler: SamplerName = "exact",
        num_chains: int = 4,
        num_iterations: int = 10_000,
        burn: int = 1000,
        bounds: Tensor | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | str | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        subset_size: int = 1000,
        learn_kernel: bool = False,
        max_new_observations: int = 256,
        seed: int = 0,
        keep_data: bool = True,
    ) -> None:
        if sampler not in ("exact", "langevin"):
            raise InvalidArgumentError(f"sampler={sampler!r}: choose 'exact' or 'langevin'.")
        if min(num_samples, num_chains, max_new_observations) < 1 or not 0 < burn < num_iterations:
            raise InvalidArgumentError(
                "num_samples, num_chains, max_new_observations: must be at least 1. burn: must be at least 1 and below "
                "num_iterations."
            )
        require_given(train_X=train_X, train_Y=train_Y)
        if train_Y.shape[-1] != 1:
            raise UnsupportedError(
                "train_Y: GRIEFBayes models one output. For several, make a ModelListGP of GRIEFBayes models."
            )
        self._sampler = WeightSampler(
            sampler, num_samples, num_chains, num_iterations, burn, seed, False, max_new_observations
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
        self._extra = NOTHING_ADDED
        if isinstance(self.likelihood, StudentTNoise):
            raise UnsupportedError("likelihood: GRIEFBayes samples Gaussian noise. For outliers use GRIEF.")
        if not self.knows_noise:
            self.likelihood = SampledNoise(self.likelihood)
        self._batch_shape = torch.Size([num_samples])

    @property
    def num_mcmc_samples(self) -> int:
        """The number of samples S."""
        return self._sampler.num_samples

    # ------------------------------------------------------------------ sampling

    @override
    def _inference_from(self, inference: WeightSpaceInference) -> SampledInference:
        sampler, points = replace(self._sampler, known_noise=self.knows_noise), None
        if self._rows is not None and self._rows.count > 0:
            points = self._transformed_rows()[0][:MEAN_POINTS]
        return SampledInference.of(inference, sampler, points)

    @override
    def _better_rows(self, known: Hyperparameters) -> None:
        """Return None: the prior is inferred from the statistics."""

    @property
    def _samples(self) -> Samples:
        """The samples at the current hyperparameters; access passes their noise to the likelihood."""
        found = _of_samples(self.inference)
        assert found is not None, "made by this class"
        samples = found.drawn
        self._tell_likelihood()
        return samples

    @override
    def _tell_likelihood(self) -> None:
        super()._tell_likelihood()
        found = _of_samples(self._inference)
        samples = None if found is None else found.known_samples
        if samples is not None and not borrows(self) and isinstance(self.likelihood, SampledNoise):
            self.likelihood.samples = samples.mixture.log_noise.exp().to(self._dtype)

    @property
    def diagnostics(self) -> Diagnostics | None:
        """Sampling diagnostics; None before the first posterior."""
        found = _of_samples(self._inference)
        samples = None if found is None else found.known_samples
        return None if samples is None else samples.diagnostics

    # ------------------------------------------------------------------ leaving rows out

    @property
    @override
    def train_targets(self) -> Tensor:
        """Training targets after the outcome transform: `n` in train mode, `… S × n` in eval mode, as in ensembles."""
        Y = super().train_targets
        return Y if self.training or self._fantasies is not None else Y.expand(self._sampler.num_samples, *Y.shape)

    @override
    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        every = targets is not None and targets.shape == (self._sampler.num_samples, self.num_observations)
        super().set_train_data(inputs, targets[0] if targets is not None and every else targets, strict)

    @override
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b s q q"]:
        """Return ΦV diag(ρ) VᵀΦᵀ of every sample, with ρ = 1 for directions without data. Samples stay fixed."""
        mixture, log_weights = self._samples.mixture, self._samples.log_weights
        assert log_weights is not None, "kept with the samples"
        unseen = len(mixture.rotation) - log_weights.shape[-1]
        rho = torch.nn.functional.pad(log_weights.exp(), (0, unseen), value=1.0)
        points = replace(mixture, variances=rho).locate(X)
        return points.covariance(points)

    @override
    def _unlike_prior(self) -> str | None:
        if self._samples.log_weights is None:
            return "an earlier version saved the model without the samples of its prior variances; fit it anew"
        return super()._unlike_prior()

    # ------------------------------------------------------------------ new observations

    @override
    def _conditioned(self, X: Tensor, transformed: Tensor, Y: Tensor, noise: Tensor | None) -> ScalableModel:
        """Condition on values; values and variances with as many dimensions as X are shared by all samples."""
        streamed = X.ndim == 2 and Y.ndim == 2
        if Y.ndim == X.ndim and (not streamed or X.requires_grad or Y.requires_grad or self._fantasies is not None):
            Y = Y.unsqueeze(-3)
            noise = noise.unsqueeze(-3) if noise is not None and noise.ndim == X.ndim else noise
        samples = self._sampler.num_samples
        if Y.ndim > 2 and Y.shape[-3] not in (1, samples):
            raise InvalidDataError(
                f"Y: shape {tuple(Y.shape)}. The third dimension from the end must be {samples}, one per sample, or 1."
            )
        if noise is not None and noise.ndim == X.ndim and Y.ndim > X.ndim:
            noise = noise.unsqueeze(-3)
        return super()._conditioned(X, transformed, Y, noise)

    @override
    def subset_output(self, idcs: list[int]) -> "GRIEFBayes":
        """Return the model of its one output, with the same samples."""
        if require_outputs(idcs, 1, "idcs") != [0]:
            raise UnsupportedError(f"idcs={idcs}: the model has one output. Pass [0].")
        return clone_module(self)

    @property
    @override
    def mean_noise(self) -> Float[Tensor, " m"]:
        """The posterior mean of the noise variance, or the mean of the known ones, in squared transformed units."""
        if self.knows_noise:
            return super().mean_noise
        return self._samples.mixture.log_noise.exp().mean().reshape(1).to(self._dtype)

    @override
    def _saved_options(self) -> dict[str, Any]:
        return {**super()._saved_options(), "num_samples": self._sampler.num_samples}

    @override
    def _restored_inference(self, saved: dict[str, Any]) -> SampledInference:
        count = len(saved["mixture"]["means"])
        if count != self._sampler.num_samples:
            raise InvalidDataError(
                f"num_samples is {count} in the saved model and {self._sampler.num_samples} in this one. Construct "
                f"this model with the saved value."
            )
        found = super()._restored_inference(saved)
        assert isinstance(found, SampledInference), "made by this class"
        return found.with_samples(saved)

    # ------------------------------------------------------------------ posterior

    @override
    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor | None = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GaussianMixturePosterior | GPyTorchPosterior | TransformedPosterior | Posterior:
        """Return the mixture posterior at raw inputs X `… q d`; means and samples are `… S × q × 1`.

        Args:
            X: Raw inputs; the q points are considered jointly.
            output_indices: None or [0].
            observation_noise: True adds every sample's noise, or the mean of the known variances; a tensor, in
                transformed units, is added as it is.
            posterior_transform: A transform of the posterior, applied last.
            **kwargs: Ignored, as BoTorch's models do.
        """
        if self.training:
            self.eval()
        _ = self._samples
        found = super().posterior(X, output_indices, observation_noise, **kwargs)
        if type(found) is GPyTorchPosterior:
            found = GaussianMixturePosterior(distribution=found.distribution)
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    @override
    def posterior_mean(self, X: Tensor) -> Tensor:
        """Return only the mean of the mixture at raw inputs `… q d`: `… q 1`, in raw units."""
        return super().posterior_mean(X).mean(-3)


def _of_samples(inference: Inference | None) -> SampledInference | None:
    """Return the inference by samples, without any fantasies; None if there is none yet."""
    found = inference.base if isinstance(inference, Fantasised) else inference
    return found if isinstance(found, SampledInference) else None
