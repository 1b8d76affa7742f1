"""Decoupled GP: a variational GP whose mean has a larger basis than its covariance."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.optim.utils import get_parameters_and_bounds
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import FitWarning, InvalidArgumentError, InvalidDataError
from bo_scale.gp.function_space.bases import spread_out, without
from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.gp.function_space.process import FunctionSpacePosterior, Radial
from bo_scale.gp.function_space.process import Kernel as Covariance
from bo_scale.gp.function_space.variational import (
    basis_factor,
    bound,
    direct_process,
    divergence,
    expected_log_likelihood,
    hybrid_process,
    optimal_root,
    optimal_spread,
    optimal_weights,
)
from bo_scale.gp.inference import Inference
from bo_scale.models.fitting.growing_bases import start_from_medians, train_growing
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.kernels import OutputKernel, default_scaled_kernel
from bo_scale.models.shell.model import ScalableModel

Parameterization = Literal["direct", "hybrid"]
Initialization = Literal["subset", "median", "current"]

CLOSED_FORM = 2048
"""Maximum number of mean points j whose weights are solved for in closed form, in O(n j² + j³)."""
CANDIDATES, GREEDY_ROWS = 20_000, 4096
"""Maximum number of rows to choose points from: for the mean basis, and for the covariance basis."""
NEW_ROOT = 0.1
"""L of a new point over its prior standard deviation: an isolated point removes 1 % of the variance."""


@dataclass(frozen=True)
class _KernelSum:
    """The sum of the kernels of all outputs, used to choose the points they share."""

    kernels: list[Covariance]

    def __call__(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"]) -> Float[Tensor, "*e n r"]:
        """Return K_xz."""
        return torch.stack([kernel(X, Z) for kernel in self.kernels]).sum(0)

    def variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Return k(x, x)."""
        return torch.stack([kernel.variance(X) for kernel in self.kernels]).sum(0)

    def radial(self) -> Radial | None:
        """Return None: a sum is not a scaled radial kernel."""
        return None

    def to(self, device: torch.device) -> Covariance:
        """Return the same kernel on another device."""
        return _KernelSum([kernel.to(device) for kernel in self.kernels])


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
        likelihood: GaussianLikelihood, or FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP. Its parameters must be fixed, not learned.
        outcome_transform: As for SingleTaskGP: Standardize by default, None for none. It is learned once, from
            `train_Y`.
        initialization: Initial hyperparameters: "subset" for those of an exact GP on some of the rows, which leaves
            little to learn; "median" for the paper's, from median distances; "current" for the present ones.
        subset_size: Maximum number of rows for that exact GP.
        num_steps: Number of Adam steps T; 0 skips stage (1).
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

    Example:
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
        likelihood: Likelihood | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        initialization: Initialization = "subset",
        subset_size: int = 1000,
        num_steps: int = 2000,
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
            raise InvalidArgumentError("num_mean_inducing, num_covar_inducing, sizes, batches and growth: at least 1.")
        if min(num_steps, max_unit_observations) < 0 or not lr > 0:
            raise InvalidArgumentError("num_steps, max_unit_observations: at least 0; lr: positive.")
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
            raise InvalidDataError("train_X: no rows to choose inducing points from.")
        self._hybrid = parameterization == "hybrid"
        self._initialization, self._subset_size = initialization, subset_size
        self._num_steps, self._batch_size, self._column_batch, self._lr = num_steps, batch_size, column_batch, lr
        self._growth, self._start_size = growth, start_size
        self._learn_points, self._polish, self._max_unit = learn_inducing_points, polish, max_unit_observations
        self._seed, self._progress = seed, progress
        self._joined = len(train_X)
        d, batch_shape = self._transformed_rows()[0].shape[-1], self._aug_batch_shape
        self.covar_module = default_scaled_kernel(d, batch_shape) if covar_module is None else covar_module
        self._allocate(num_mean_inducing, num_covar_inducing, d)
        self.to(train_X)
        self._place_bases(keep=False)

    def _allocate(self, num_mean: int, num_covar: int, d: int) -> None:
        """Register parameters of full size, whatever is in use, so that all states have the same shapes."""
        m, own = self._num_outputs, max(0, num_mean - num_covar) if self._hybrid else num_mean
        shapes = {
            "mean_inducing_points": (own, d),
            "covar_inducing_points": (num_covar, d),
            "variational_weights": (m, own),
            "variational_root": (m, num_covar, num_covar),
            "variational_innovation": (m, num_covar if self._hybrid else 0),
        }
        for name, shape in shapes.items():
            values = torch.zeros(shape, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=values.numel() > 0))
        self.register_buffer("basis_counts", torch.zeros(2, dtype=torch.long))
        self.register_buffer("rows_digest", torch.zeros((), dtype=torch.long))

    # ------------------------------------------------------------------ bases

    @property
    def num_mean_points(self) -> int:
        """The number of mean points in use; in the hybrid form these include the covariance points."""
        own, covar = self.basis_counts.tolist()
        return own + covar if self._hybrid else own

    @property
    def num_covar_points(self) -> int:
        """The number of covariance points in use."""
        return int(self.basis_counts[1])

    def _points(self) -> tuple[Float[Tensor, "j d"], Float[Tensor, "i d"]]:
        """Return the points in use, of mean and covariance; a hybrid's mean points exclude the covariance points."""
        own, covar = self.basis_counts.tolist()
        return self.mean_inducing_points[:own].double(), self.covar_inducing_points[:covar].double()

    @torch.no_grad()
    def _place_bases(self, keep: bool) -> bool:
        """Choose new points: all distinct rows if a basis can hold them, else some of them.

        Args:
            keep: Keep the present points of a basis that cannot hold all rows, if there are already enough.

        Returns:
            Whether the mean basis holds all rows.
        """
        candidates, complete = self._distinct_rows()
        shared = self._hybrid
        mean_size = min(len(self.mean_inducing_points), self._start_size) if not shared else self._start_size
        covar_size, old_mean, old_covar = len(self.covar_inducing_points), *self._points()
        covar_holds = complete and len(candidates) <= covar_size
        if covar_holds:
            covar = candidates
        else:
            covar = old_covar if keep and len(old_covar) == covar_size else self._spread_rows(candidates)
        others = without(candidates, covar) if shared else candidates
        if shared:
            mean_size = min(len(self.mean_inducing_points), max(0, mean_size - len(covar)))
        mean_holds = complete and len(others) <= mean_size
        kept = keep and not mean_holds and len(old_mean) >= min(mean_size, len(others))
        self._set_points(old_mean if kept else others[:mean_size], covar)
        self.mean_inducing_points.requires_grad_(self._learn_points and not mean_holds and mean_size > 0)
        self.covar_inducing_points.requires_grad_(self._learn_points and not covar_holds)
        self._require_variational_grad(not self._polishes())
        return mean_holds

    def _set_points(self, mean: Float[Tensor, "j d"], covar: Float[Tensor, "i d"]) -> None:
        self._settle()
        for parameter, points in ((self.mean_inducing_points, mean), (self.covar_inducing_points, covar)):
            points = points.clone()  # they may be of the parameter itself
            parameter.zero_()
            parameter[: len(points)] = points.to(parameter)
        self.basis_counts.copy_(torch.tensor([len(mean), len(covar)]))

    def _distinct_rows(self) -> tuple[Float[Tensor, "k d"], bool]:
        """Return distinct rows among at most 20,000, in random order, and whether these are all."""
        X = self._transformed_rows()[0][: self._joined]
        generator = torch.Generator().manual_seed(self._seed)
        chosen = X[torch.randperm(len(X), generator=generator)[:CANDIDATES].to(X.device)].unique(dim=0)
        order = torch.randperm(len(chosen), generator=generator).to(X.device)
        return chosen[order], len(X) <= CANDIDATES

    def _spread_rows(self, candidates: Float[Tensor, "k d"]) -> Float[Tensor, "i d"]:
        kernel = _KernelSum([self._kernel(j, frozen=True) for j in range(self._num_outputs)])
        candidates = candidates[:GREEDY_ROWS]
        return candidates[spread_out(kernel, candidates, len(self.covar_inducing_points))]

    def _grow(self, X: Float[Tensor, "b d"]) -> None:
        """Add points of a batch to the bases, at most N_Δ each, until these are full. [DGP] algorithm 1."""
        own, covar = self.basis_counts.tolist()
        if own == len(self.mean_inducing_points) and covar == len(self.covar_inducing_points):
            return
        with torch.no_grad():
            mean_points, covar_points = self._points()
            new_covar = without(X, covar_points)[: self._growth][: len(self.covar_inducing_points) - covar]
            covar_points = torch.cat([covar_points, new_covar])
            seen = torch.cat([mean_points, covar_points]) if self._hybrid else mean_points
            new_mean = without(X, seen)[: self._growth][: len(self.mean_inducing_points) - own]
            self._set_points(torch.cat([mean_points, new_mean]), covar_points)
            for j in range(self._num_outputs):
                scale = 1.0 if self._hybrid else NEW_ROOT * self._kernel(j).variance(new_covar).sqrt()
                at = slice(covar, covar + len(new_covar))
                self.variational_root[j].diagonal()[at] = torch.as_tensor(scale).to(self.variational_root)

    # ------------------------------------------------------------------ variational parameters

    def _process(self, output: int, frozen: bool = False) -> FunctionSpacePosterior:
        """Return the variational process, differentiable in all parameters unless frozen.

        The direct form's parameters are Jacobi-preconditioned, [DGP] A.1: a = diag(K_α)⁻¹a₀, L = diag(K_β)⁻¹L₀. So is a
        hybrid's a_r.
        """
        kernel, constant = self._kernel(output, frozen), self._constants()[output]
        mean_points, covar_points = self._points()
        own, covar = len(mean_points), len(covar_points)
        weights = self.variational_weights[output, :own].double() / _diagonal(kernel, mean_points)
        root = self.variational_root[output, :covar, :covar].double()
        if frozen:
            parts = (constant, mean_points, covar_points, weights, root)
            constant, mean_points, covar_points, weights, root = (part.detach().clone() for part in parts)
        if self._hybrid:
            innovation = self.variational_innovation[output, :covar].double()
            innovation = innovation.detach().clone() if frozen else innovation
            return hybrid_process(kernel, constant, covar_points, innovation, root.triu(), mean_points, weights)
        root = root / _diagonal(kernel, covar_points).unsqueeze(-1)
        return direct_process(kernel, constant, mean_points, weights, covar_points, root)

    @torch.no_grad()
    def _solve(self) -> None:
        """Set the variational parameters to their optimum, given all other parameters and the first rows."""
        self._settle()
        X, Y, D = (values[: self._joined] for values in self._transformed_rows())
        mean_points, covar_points = self._points()
        own, covar = len(mean_points), len(covar_points)
        for parameter in self._variational():
            parameter.zero_()
        for j in range(self._num_outputs):
            kernel, noise = self._kernel(j, frozen=True), self._noise_scale()[j] * D[:, j]
            points = torch.cat([covar_points, mean_points]) if self._hybrid else mean_points
            solved = optimal_weights(kernel, points[:CLOSED_FORM], X, Y[:, j] - self._constants()[j], noise)
            weights = torch.nn.functional.pad(solved, (0, len(points) - len(solved)))
            if self._hybrid:
                factor, _ = basis_factor(kernel, covar_points)
                self.variational_innovation[j, :covar] = (factor.mT @ weights[:covar]).to(self._dtype)
                root = optimal_spread(kernel, covar_points, X, noise)
            else:
                root = optimal_root(kernel, covar_points, X, noise) * _diagonal(kernel, covar_points).unsqueeze(-1)
            scaled = weights[len(weights) - own :] * _diagonal(kernel, mean_points)
            self.variational_weights[j, :own] = scaled.to(self._dtype)
            self.variational_root[j, :covar, :covar] = root.to(self._dtype)
        self.rows_digest.copy_(self._digest())
        self._optimal_at, self._inference = self._settings(), None

    def _require_variational_grad(self, required: bool) -> None:
        """Set whether optimisers see the variational parameters; at their optimum the gradient is zero."""
        for parameter in self._variational():
            parameter.requires_grad_(required and parameter.numel() > 0)

    def _variational(self) -> list[torch.nn.Parameter]:
        return [self.variational_weights, self.variational_root, self.variational_innovation]

    def _settings(self) -> Float[Tensor, " s"]:
        """Return what the variational parameters are optimal for, apart from the rows."""
        variational = {id(p) for p in self._variational()}
        values = [p.detach().reshape(-1).double() for p in self.parameters() if id(p) not in variational]
        return torch.cat([*values, self.basis_counts.double()])

    @override
    def _hyperparameters(self) -> Float[Tensor, " h"]:
        return torch.cat([super()._hyperparameters(), self.basis_counts.double()])

    def _digest(self) -> Int[Tensor, ""]:
        assert self._rows is not None, "function-space models keep their rows"
        return self._rows.digest(self._joined, targets=True).to(self._device)

    def _polishes(self) -> bool:
        return self._polish and self.num_mean_points <= CLOSED_FORM

    @torch.no_grad()
    def _refresh(self, all_rows: bool = False) -> None:
        """Solve for the variational parameters if rows have changed, or with `polish` also if settings have.

        Args:
            all_rows: With `polish`, include rows that came after the first ones.
        """
        if all_rows and self._polishes():
            self._joined = self.num_observations
        if not torch.equal(self._digest(), self.rows_digest):
            self._place_bases(keep=True)
            self._solve()
        elif self._polishes() and (self._optimal_at is None or not torch.equal(self._settings(), self._optimal_at)):
            self._solve()

    @property
    @override
    def inference(self) -> Inference:
        if self._known_inference() is None:
            self._refresh()
        return super().inference

    @override
    def train(self, mode: bool = True) -> "DecoupledGP":
        """Set training or evaluation mode; evaluation mode first solves for the variational parameters."""
        evaluating = not mode and self.training and self._fantasies is None
        super().train(mode)
        if evaluating:
            self._refresh()
        return self

    # ------------------------------------------------------------------ what the family provides

    @override
    def _base_process(self, output: int) -> FunctionSpacePosterior:
        return self._process(output, frozen=True)

    @override
    def _restored_process(self, output: int, saved: dict[str, Tensor]) -> FunctionSpacePosterior:
        tensors: dict[str, Any] = dict(saved)
        return replace(self._process(output, frozen=True), **tensors)

    @override
    def _log_evidence(self) -> Float[Tensor, " m"]:
        """Return the bound of all rows for every output; `polish` first solves for the variational parameters.

        Their gradient is then zero, so this is also the gradient of the bound with them eliminated.
        """
        self._refresh(all_rows=True)
        X, Y, D = self._transformed_rows()
        noise = self._noise_scale() * D
        unused = 0.0 * self.variational_weights.sum(-1)  # a gradient even if no weight is in use
        bounds = [bound(self._process(j), X, Y[:, j], noise[:, j]) for j in range(self._num_outputs)]
        return torch.stack(bounds) + unused.double()

    @override
    def _streamed(self, X: Tensor, transformed: Tensor, Y: Tensor, D: Tensor) -> "ScalableModel":
        """Add observations; beyond `max_unit_observations` solve for the variational parameters over all rows."""
        child = super()._streamed(X, transformed, Y, D)
        assert isinstance(child, DecoupledGP), "as its parent"
        count = child.num_observations
        if count - child._joined > child._max_unit and child._polishes():
            child._joined, child._inference = count, None
        return child

    @override
    def subset_output(self, idcs: list[int]) -> "DecoupledGP":
        """Return a model of some outputs, with the same hyperparameters, variational parameters and data."""
        if self._fantasies is None:
            self._refresh()
        subset = super().subset_output(idcs)
        assert isinstance(subset, DecoupledGP)
        return subset

    @override
    def _subset_own(self, outputs: list[int]) -> None:
        for name in ("variational_weights", "variational_root", "variational_innovation"):
            p = getattr(self, name)
            setattr(self, name, torch.nn.Parameter(p.detach()[outputs].clone(), requires_grad=p.requires_grad))
        self.rows_digest.copy_(self._digest())
        self._optimal_at = self._settings()

    @override
    def _forget_inference(self) -> None:
        """Drop the inference; variational parameters made for other rows will be solved for again.

        They carry information on the rows they were made for, which would leak in cross-validation.
        """
        same = torch.equal(self._digest(), self.rows_digest)
        if not same:
            super()._forget_inference()
        self._require_variational_grad(not self._polishes())
        self._optimal_at = self._settings() if same else None
        self._inference = None

    @override
    def _restored_inference(self, saved: dict[str, Any]) -> FunctionSpaceInference:
        found = super()._restored_inference(saved)
        self._optimal_at = self._settings()
        return found

    @override
    def _unlike_prior(self) -> str | None:
        """Return why this is not the exact GP; None at the optimum if the bases hold all of the first rows."""
        reason = super()._unlike_prior()
        if reason is not None:
            return reason
        _ = self.inference
        X, (mean, covar) = self._transformed_rows()[0][: self._joined], self._points()
        bases = (torch.cat([mean, covar]) if self._hybrid else mean, covar)
        if self._polishes() and all(len(without(X, points)) == 0 for points in bases):
            return None
        return "the variational state would be another without a row, unless `polish` applies and bases hold all rows"

    # ------------------------------------------------------------------ fitting

    def fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None) -> None:
        """Fit in place, stage by stage; called by `StagedFit`."""
        self._joined, self._inference = self.num_observations, None
        with self._stage(f"hyperparameters from the {self._initialization} start"):
            self._start(optimizer_kwargs)
        whole = self._place_bases(keep=False)
        self._solve()
        exact = self._initialization == "subset" and self._joined <= self._subset_size
        if self._num_steps > 0 and not (exact and whole):
            with self._stage(f"{self._num_steps} steps of Adam on batches"), self._kept_if_better(mll):
                self._train(mll)
                self._refresh()

    def _start(self, optimizer_kwargs: dict[str, Any] | None) -> None:
        if self._initialization == "subset":
            start_from_subset(self, self._subset_size, self._seed, optimizer_kwargs)
        elif self._initialization == "median":
            X, Y, _ = self._transformed_rows()
            start_from_medians(self, X, Y, self._seed)

    def _train(self, mll: MarginalLogLikelihood) -> None:
        self._require_variational_grad(True)
        learned = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        X, bounds = self._transformed_rows()[0], get_parameters_and_bounds(mll)[1]
        plan = (len(X), self._num_steps, self._batch_size, self._lr, self._seed)
        try:
            train_growing(self._batch_loss(mll), lambda b: self._grow(X[b]), learned, bounds, *plan, self._progress)
        finally:
            self._require_variational_grad(not self._polishes())
            self._inference = None

    def _batch_loss(self, mll: MarginalLogLikelihood) -> Callable[[Tensor], Tensor]:
        """Return the loss of a batch, given as row indices: −(estimated bound + log priors)/n. Linear in M_α."""
        X, Y, D = self._transformed_rows()
        generator = torch.Generator().manual_seed(self._seed + 1)

        def loss(batch: Tensor) -> Tensor:
            columns, noise = self._columns(generator), self._noise_scale() * D[batch]
            parts = []
            for j in range(self._num_outputs):
                process = self._process(j)
                fit = expected_log_likelihood(process, X[batch], Y[batch, j], noise[:, j])
                parts.append(fit / len(batch) - divergence(process, columns) / len(X))
            priors: Tensor = mll._add_other_terms(Y.new_zeros(()), [])
            return -torch.stack(parts).sum() - priors / len(X)

        return loss

    def _columns(self, generator: torch.Generator) -> Int[Tensor, " b"] | None:
        """Draw the columns of K_α for a step; None for all."""
        own = int(self.basis_counts[0])
        if own <= self._column_batch:
            return None
        return torch.randperm(own, generator=generator)[: self._column_batch].to(self._device)

    @contextmanager
    def _kept_if_better(self, mll: MarginalLogLikelihood) -> Iterator[None]:
        """Undo all changes within the context, with a warning, if they lower the bound of all rows plus priors."""
        before = [(value, value.detach().clone()) for value in (*mll.parameters(), *mll.buffers())]
        loss, optimal_at = self._whole_loss(mll), self._optimal_at
        yield
        if not self._whole_loss(mll) <= loss:
            with torch.no_grad():
                for value, kept in before:
                    value.copy_(kept)
            self._optimal_at, self._inference = optimal_at, None
            self._warn_of_fit(
                "DecoupledGP: the steps have lowered the bound and are undone. Choose a smaller lr, or more num_steps.",
                FitWarning,
            )

    @torch.no_grad()
    def _whole_loss(self, mll: MarginalLogLikelihood) -> float:
        return self._loss(mll, self._log_evidence()).item()


def _diagonal(kernel: OutputKernel, points: Float[Tensor, "i d"]) -> Float[Tensor, " i"]:
    """Return the diagonal of K, with 1 in place of 0."""
    variance = kernel.variance(points)
    return torch.where(variance > 0, variance, 1.0)
