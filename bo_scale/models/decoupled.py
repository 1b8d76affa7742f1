"""Decoupled GP: a variational GP whose mean has a larger basis than its covariance."""

from dataclasses import replace
from typing import Any, Literal

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.gp.function_space.bases import BasisRule, KernelSum
from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.function_space.variational import CLOSED_FORM, bound, decoupled_process, optimum
from bo_scale.gp.weight_space.host_rows import CHUNK, require_host
from bo_scale.models.decoupled_parameters import VARIATIONAL, DecoupledParameters, Stamp, register_parameters
from bo_scale.models.decoupled_sums import (
    DecoupledStatistics,
    digest_of_model,
    of_transformed,
    restored,
    summed,
    with_statistics,
    without_rows,
)
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.checks import warn_of_wide_variances
from bo_scale.models.fitting.growing_bases import GrowingFit, Initialization
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.shell.door import require_given, require_tensors
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.kernels import default_scaled_kernel, require_inputs_of
from bo_scale.models.shell.lending import own_modules, settle

Parameterization = Literal["direct", "hybrid"]


class DecoupledGP(FunctionSpaceModel):
    """A variational GP with a large basis for the mean and a small one for the covariance. Any kernel works.

    The direct form has mean μ + k_xα a and covariance k − k_xβ (B⁻¹ + K_β)⁻¹ k_βx', B = LLᵀ. In the hybrid form the
    whitened values of f(β) have mean ν and covariance V, and weights a_r at further points serve the mean alone; it is
    better conditioned. A stochastic step costs O(batch · M_α + batch · M_β² + M_β³). This is linear in M_α, so
    M_α = 128² is practical.

    A basis that can hold all distinct rows does. If both can, the model is the exact GP. Up to 2048 points of the mean,
    `polish` keeps the variational parameters at their closed-form optimum for the current kernel, mean, noise and
    bases; fitting then maximises the bound with them eliminated.

    `fit_gpytorch_mll` fits in stages:

    0. Set the hyperparameters as `initialization` says; choose new bases and solve for the variational parameters.
    1. Take `num_steps` steps of Adam over all parameters, on the bound estimated from a batch of rows and of columns of
       K_α. The bases grow by points of each batch: [DGP] algorithm 1.
    2. Solve for the variational parameters again if `polish` applies.

    Stage (1) is skipped if (0) fitted an exact GP to all rows and the mean basis holds them all. It is undone if it
    lowers the bound of all rows.

    The variance is not conservative. At the optimum and at the covariance points it is at or below the exact GP's (0.11
    to 1 times it, over two kernels, lengthscales and noises). It is above, mostly far above, where these points are
    sparse for the lengthscale. Check the calibration before relying on it. New observations condition the variational
    process exactly, by Schur complement.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × m`. Outputs share the points of the bases; each has its own variational parameters
            and hyperparameters.
        train_Yvar: Known noise variances `n × m`. None to learn the noise.
        num_mean_inducing: Number of mean points M_α; in the hybrid form these include the covariance points.
        num_covar_inducing: Number of covariance points M_β.
        parameterization: "direct" or "hybrid".
        covar_module: Any kernel. None means BoTorch's default, an RBF with a prior scaled by d, times an outputscale
            with prior median 1.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, `StudentTNoise` or "student_t" for data with outliers, or
            FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP. Its parameters must be fixed, not learned.
        outcome_transform: As for SingleTaskGP: Standardize by default, None for none. It is learned once, from
            `train_Y`.
        initialization: Initial hyperparameters: "subset" for those of an exact GP on some of the rows, which leaves
            little to learn; "median" for the paper's, from median distances; "current" for the present ones.
        subset_size: Maximum number of rows for that exact GP.
        num_steps: Number of Adam steps T; 0 skips stage (1). None takes 20 passes over the rows, but from 300 to 2000
            steps: with 3000 rows half a minute, a tenth of the time of 2000 steps.
        batch_size: Rows per step.
        column_batch: Columns of K_α per step; all if there are no more.
        growth: Number of points N_Δ by which each batch grows a basis until it is full.
        start_size: Maximum number of mean points to start with.
        lr: γ₀ in Adam's step size γ₀/(1 + 0.1√t). Where points are close, the solved weights of the mean are large and
            of both signs. Steps in points and lengthscales then throw the mean off, more so at low noise.
        learn_inducing_points: Whether stage (1) moves the points. Points of a basis that holds all rows stay.
        polish: Whether to keep the variational parameters at their optimum, up to 2048 mean points. Strongly
            recommended there. False keeps Adam's values, which can be far from the optimum for a long time (`python -m
            benchmarks decoupled`).
        max_unit_observations: Number of new observations beyond which the variational parameters are solved for again
            over all rows, if `polish` applies. This bounds the rank of the posterior.
        seed: Seed for the choice of rows and the order of batches.
        progress: Whether fitting shows a progress bar; None shows it only on a terminal.

    References:
        C.-A. Cheng, B. Boots. Variational inference for Gaussian process models with linear complexity. 2017.
        arXiv:1711.10127.

    Examples:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = DecoupledGP(X, X.square().sum(-1, keepdim=True), num_mean_inducing=100, num_covar_inducing=20)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    _fitting = StagedFit()
    mean_inducing_points: torch.nn.Parameter
    covar_inducing_points: torch.nn.Parameter
    variational_weights: torch.nn.Parameter
    variational_root: torch.nn.Parameter
    variational_innovation: torch.nn.Parameter
    basis_counts: Tensor
    _optimal_at: Tensor | None = None
    _summed: DecoupledStatistics | None = None
    """Sums over rows that are not kept, instead of first rows."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_mean_inducing: int = 1024,
        num_covar_inducing: int = 128,
        parameterization: Parameterization = "direct",
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | str | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        initialization: Initialization = "subset",
        subset_size: int = 1000,
        num_steps: int | None = None,
        batch_size: int = 1024,
        column_batch: int = 1024,
        growth: int = 128,
        start_size: int = 1024,
        lr: float = 0.003,
        learn_inducing_points: bool = True,
        polish: bool = True,
        max_unit_observations: int = 512,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        if parameterization not in ("direct", "hybrid"):
            raise InvalidArgumentError(f"parameterization={parameterization!r}: choose 'direct' or 'hybrid'.")
        if initialization not in ("subset", "median", "current"):
            raise InvalidArgumentError(f"initialization={initialization!r}: choose 'subset', 'median' or 'current'.")
        if min(num_mean_inducing, num_covar_inducing, subset_size, batch_size, column_batch, growth, start_size) < 1:
            raise InvalidArgumentError(
                "num_mean_inducing, num_covar_inducing, sizes, batches, growth: must be at least 1."
            )
        if min(num_steps or 0, max_unit_observations) < 0 or not lr > 0:
            raise InvalidArgumentError("num_steps, max_unit_observations: must be at least 0; lr: must be positive.")
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            mean_module,
            likelihood,
            input_transform,
            outcome_transform,
            check_scaling=covar_module is None,
        )
        if len(train_X) == 0:
            raise InvalidDataError("train_X: it has no rows to choose inducing points from. Give at least one.")
        hybrid = parameterization == "hybrid"
        own = max(0, num_mean_inducing - num_covar_inducing) if hybrid else num_mean_inducing
        self._rule = BasisRule(hybrid, own, num_covar_inducing, start_size, growth, seed)
        self._stages = GrowingFit(initialization, subset_size, num_steps, batch_size, column_batch, lr, seed, progress)
        self._learn_points, self._polish, self._max_unit = learn_inducing_points, polish, max_unit_observations
        self._joined = len(train_X)
        d, batch_shape = self._transformed_rows()[0].shape[-1], self._aug_batch_shape
        if covar_module is None:
            covar_module = default_scaled_kernel(d, batch_shape, self._transformed_rows()[0])
        self.covar_module = require_inputs_of(covar_module, d)
        register_parameters(self, self._rule, self._num_outputs, d)
        self.register_buffer("rows_digest", torch.zeros((), dtype=torch.long))
        self.to(train_X)
        self._place_bases(keep=False)

    # ------------------------------------------------------------------ bases and the process

    @property
    def num_mean_points(self) -> int:
        """The number of mean points in use; in the hybrid form these include the covariance points."""
        own, covar = self.basis_counts.tolist()
        return own + covar if self._rule.hybrid else own

    @property
    def num_covar_points(self) -> int:
        """The number of covariance points in use."""
        return int(self.basis_counts[1])

    @property
    def _held(self) -> DecoupledParameters:
        return DecoupledParameters.of(self)

    @torch.no_grad()
    def _place_bases(self, keep: bool) -> bool:
        """Choose new points: all distinct rows if a basis can hold them, else some of them.

        Args:
            keep: Keep the present points of a basis that cannot hold all rows, if there are already enough.

        Returns:
            Whether the mean basis holds all rows.
        """
        settle(self)
        X, held = self._transformed_rows()[0][: self._joined], self._held
        kernel = KernelSum([self._kernel(j, frozen=True) for j in range(self._num_outputs)])
        chosen = self._rule.choose(X, kernel, held.bases if keep else None)
        held.put_bases(chosen.bases)
        held.mean_points.requires_grad_(self._learn_points and chosen.mean_moves)
        held.covar_points.requires_grad_(self._learn_points and not chosen.covar_holds)
        held.learn_variational(not self._polishes)
        self._inference = None
        return chosen.mean_holds

    def _process(self, output: int) -> FunctionSpacePosterior:
        """Return the variational process, differentiable in all parameters."""
        held, constant = self._held, self._constants()[output]
        return decoupled_process(self._kernel(output), constant, held.bases, held.of_output(output))

    @override
    def _base_process(self, output: int) -> FunctionSpacePosterior:
        held, constant = self._held, self._constants()[output].detach().clone()
        kernel = self._kernel(output, frozen=True)
        return decoupled_process(kernel, constant, held.bases.frozen(), held.of_output(output).frozen())

    @override
    def _restored_process(self, output: int, saved: dict[str, Tensor]) -> FunctionSpacePosterior:
        tensors: dict[str, Any] = dict(saved)
        return replace(self._base_process(output), **tensors)

    # ------------------------------------------------------------------ the optimum

    @property
    def _polishes(self) -> bool:
        return self._polish and self.num_mean_points <= CLOSED_FORM

    def _outdated(self) -> Literal["rows", "settings"] | None:
        """Return what has changed since the variational parameters were made; None if they may stay as they are.

        With other settings they may, unless `polish` applies. Only this method compares.
        """
        change = Stamp.of(self).change_since(Stamp(self.rows_digest, self._optimal_at))
        return None if change == "settings" and not self._polishes else change

    @torch.no_grad()
    def _refresh(self, all_rows: bool = False) -> None:
        """Solve for the variational parameters if they are outdated; new rows also have bases chosen anew.

        Args:
            all_rows: With `polish`, include rows that came after the first ones.

        Raises:
            UnsupportedError: if they are outdated, and their rows were summed and not kept.
        """
        if all_rows and self._polishes:
            self._joined = self._kept_rows.count
        outdated = self._outdated()
        if outdated is not None and self._summed is not None:
            raise UnsupportedError(
                "The hyperparameters or the points have changed, and of the first rows only sums are kept. Fit the "
                "model to a sample, and sum all rows again."
            )
        if outdated == "rows":
            self._place_bases(keep=True)
        if outdated is not None:
            self._solve()

    @torch.no_grad()
    def _solve(self) -> None:
        """Set the variational parameters to their optimum, given all other parameters and the first rows."""
        settle(self)
        X, Y, D = (values[: self._joined] for values in self._transformed_rows())
        residual, noise, bases = Y - self._constants(), self._noise_scale() * D, self._held.bases
        kernels = [self._kernel(j, frozen=True) for j in range(self._num_outputs)]
        found = [optimum(k, bases, X, residual[:, j], noise[:, j]) for j, k in enumerate(kernels)]
        self._held.put_variational(found)
        self._stamp()
        self._inference = None

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "DecoupledGP":
        super()._apply(fn, recurse)
        if self._optimal_at is not None:
            self._optimal_at = self._optimal_at.to(self._device)
        if self._summed is not None:
            self._summed = replace(self._summed.to(self._device), digest=digest_of_model(self))
            self._stamp()  # rounded to another dtype, they are still taken for the optimum
        return self

    def _stamp(self) -> None:
        """Take the variational parameters to be optimal for the first rows and all other parameters as they are."""
        now = Stamp.of(self)
        self.rows_digest.copy_(now.rows)
        self._optimal_at = now.settings

    @override
    def _infer(self, theta: Float[Tensor, " h"]) -> FunctionSpaceInference:
        self._refresh()
        return super()._infer(self._hyperparameters())

    @override
    def train(self, mode: bool = True) -> "DecoupledGP":
        """Set training or evaluation mode; evaluation mode first solves for the variational parameters."""
        evaluating = not mode and self.training and self._fantasies is None
        super().train(mode)
        if evaluating:
            self._refresh()
        return self

    @override
    def _forget_inference(self) -> None:
        """Drop the inference; variational parameters made for other rows will be solved for again.

        They carry information on the rows they were made for, which would leak in cross-validation.
        """
        self._inference = None
        if self._outdated() == "rows":
            self._joined, self._optimal_at = self._kept_rows.count, None
        else:
            self._stamp()
        self._held.learn_variational(not self._polishes)

    @override
    def _saved_options(self) -> dict[str, Any]:
        rule = self._rule
        return {
            **super()._saved_options(),
            "parameterization": "hybrid" if rule.hybrid else "direct",
            "num_mean_inducing": rule.mean_size + (rule.covar_size if rule.hybrid else 0),
            "num_covar_inducing": rule.covar_size,
        }

    @override
    def _restored_inference(self, saved: dict[str, Any]) -> FunctionSpaceInference:
        found = super()._restored_inference(saved)
        self._summed = restored(saved["summed"], self, "summed") if "summed" in saved else None
        self._optimal_at = Stamp.of(self).settings
        return found

    # ------------------------------------------------------------------ sums instead of rows

    def statistics_of(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, rows: int = CHUNK
    ) -> DecoupledStatistics:
        """Return the sums over rows under this model's bases and kernel. Its own rows have no part in it.

        Parts may be made anywhere, with copies of one model, saved, sent and added: `with_statistics` makes the model
        of all rows. O(n (M_α² + M_β²)).

        Args:
            X: Raw inputs `n × d`, on the CPU.
            Y: Raw values `n × m`, on the CPU.
            noise: Noise variances `n × m` as for `condition_on_observations`, on the CPU.
            rows: Number of rows that are summed at once.

        Raises:
            UnsupportedError: for a model with fantasies, `StudentTNoise`, more than 2048 mean points or without
                `polish`, whose sums do not make it.
            InvalidDataError: if rows do not fit, are not finite or are not on the CPU.
        """
        require_given(X=X, Y=Y)
        require_tensors(noise=noise)
        require_host(X, Y=Y, noise=noise)
        given = [X, Y] if noise is None else [X, Y, noise]
        parts = zip(*(values.split(rows) for values in given), strict=True)
        return summed(without_rows(self), [(x, y, *known, None)[:3] for x, y, *known in parts])

    def with_statistics(self, statistics: DecoupledStatistics) -> "DecoupledGP":
        """Return the model of the rows in these sums instead of its own, of which it keeps none.

        Its variational parameters are at the optimum of all those rows, for this model's hyperparameters and bases.
        Later observations condition it as always; beyond `max_unit_observations` they join the sums. O(M_α³ + M_β³).

        Args:
            statistics: Sums that were made with this model or a copy of it, or a sum of such.

        Raises:
            UnsupportedError: as for `statistics_of`.
            InvalidDataError: for sums of other bases, hyperparameters, units or noise.
        """
        return with_statistics(self, statistics)

    @torch.no_grad()
    def _take_sums(self, statistics: DecoupledStatistics) -> None:
        """Set sums instead of all rows, in place, and the variational parameters to their optimum."""
        settle(self)
        self._summed, self._joined, bases = statistics, 0, self._held.bases.frozen()
        kernels = [self._kernel(j, frozen=True) for j in range(self._num_outputs)]
        self._held.put_variational([each.optimum(k, bases) for each, k in zip(statistics.sums, kernels, strict=True)])
        self._take_rows(self._kept_rows.first(0))
        self._stamp()
        self._inference = None

    def _require_rows(self, what: str) -> None:
        if self._summed is not None:
            raise UnsupportedError(
                f"{what}: needs rows, of which only sums are kept. Fit the model to a sample, and sum all rows again."
            )

    @property
    @override
    def num_observations(self) -> int:
        """The number of observations in the model, those of which only sums are kept included."""
        return super().num_observations + (0 if self._summed is None else self._summed.count)

    @property
    @override
    def mean_noise(self) -> Float[Tensor, " m"]:
        """The learned noise variance, or the mean of the known ones, in squared units of the transformed targets."""
        if self._summed is None or not self.knows_noise:
            return super().mean_noise
        total = self._summed.noise_sum + self._kept_rows.D.double().sum(0)
        return (total / max(1, self.num_observations)).to(self._dtype)

    @override
    def _inference_in_units(self, scale: Float[Tensor, " m"], offset: Float[Tensor, " m"]) -> None:
        self._require_rows("restandardised")

    @override
    def _saved_inference(self) -> dict[str, Any]:
        content = {} if self._summed is None else {"summed": self._summed.content}
        return {**super()._saved_inference(), **content}

    # ------------------------------------------------------------------ other data, other outputs

    @override
    def _bound_rank(self) -> None:
        """Beyond `max_unit_observations` new rows, solve for the variational parameters over all rows when needed.

        If the first rows were summed, the new ones join the sums.
        """
        count = self._kept_rows.count
        if count - self._joined > self._max_unit and self._polishes:
            if self._summed is None:
                self._joined, self._inference = count, None
            else:
                own_modules(self)
                self._take_sums(self._summed + of_transformed(self, *self._transformed_rows()))

    @override
    def subset_output(self, idcs: list[int]) -> "DecoupledGP":
        """Return a model of some outputs, with the same hyperparameters, variational parameters and data."""
        if self._fantasies is None:
            self._refresh()
        subset = super().subset_output(idcs)
        assert isinstance(subset, DecoupledGP)
        if self._summed is not None:
            subset._summed = self._summed.outputs(idcs, digest_of_model(subset))
        return subset

    @override
    def _subset_own(self, outputs: list[int]) -> None:
        for name in VARIATIONAL:
            p = getattr(self, name)
            setattr(self, name, torch.nn.Parameter(p.detach()[outputs].clone(), requires_grad=p.requires_grad))
        self._stamp()

    @override
    def _unlike_prior(self) -> str | None:
        """Return why this is not the exact GP; None at the optimum if the bases hold all of the first rows."""
        reason = super()._unlike_prior()
        if reason is not None:
            return reason
        if self._summed is not None:
            return "only sums are kept of the first rows"
        _ = self.inference
        if self._polishes and self._held.bases.hold(self._transformed_rows()[0][: self._joined]):
            return None
        return (
            "the variational parameters change when a row is left out, unless `polish` applies and bases hold all rows"
        )

    # ------------------------------------------------------------------ fitting

    @override
    def _log_evidence(self) -> Float[Tensor, " m"]:
        """Return the bound of all rows for every output; `polish` first solves for the variational parameters.

        Their gradient is then zero, so this is also the gradient of the bound with them eliminated.
        """
        self._require_rows("the bound")
        self._refresh(all_rows=True)
        X, Y, D = self._transformed_rows()
        noise = self._noise_scale() * D
        unused = 0.0 * self.variational_weights.sum(-1)  # a gradient even if no weight is in use
        bounds = [bound(self._process(j), X, Y[:, j], noise[:, j]) for j in range(self._num_outputs)]
        return torch.stack(bounds) + unused.double()

    @override
    def _check_fit(self, record: Recorder) -> None:
        warn_of_wide_variances(self, "Raise num_covar_inducing.", record)

    def fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None, record: Recorder) -> None:
        """Fit in place, stage by stage; called by `StagedFit`."""
        self._require_rows("a fit")
        self._joined, self._inference = self.num_observations, None
        self._stages.run(self, mll, optimizer_kwargs, record)
