"""Computation-aware GP: an exact kernel that sees the data through few linear combinations, never overconfident."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

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
from tqdm.auto import tqdm
from typing_extensions import override

from bo_scale.errors import InvalidArgumentError
from bo_scale.gp.function_space.actions import (
    Actions,
    BlockActions,
    Blocks,
    DenseActions,
    Projected,
    bisection,
    conjugate_gradient_actions,
    negative_elbo,
    negative_projected_evidence,
)
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.models.fitting.evidence import fit_evidence
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.kernels import default_scaled_kernel
from bo_scale.training.minibatch import BoundedAdam

Policy = Literal["learned", "cg"]
Objective = Literal["elbo", "projected"]
Optimiser = Literal["adam", "lbfgs"]

SPREAD = 0.05
"""Standard deviation of the initial entries about 1. With equal entries, coincident points get equal gradients."""
CG_TOLERANCE = 1e-4
"""Relative residual at which conjugate gradients stop adding actions."""
CG_ROUNDS = 3
"""Runs of L-BFGS; CG actions are recomputed before each."""
LAST_STEP = 0.1
"""Share of the step size left at the end of its linear schedule."""
NOISE_STEPS = 15
"""L-BFGS steps on the noise before Adam. At the exact GP's noise the first gradient would swamp Adam's moments."""
CHUNK = 2**22
"""Maximum number of distances in memory at once."""
UNEVEN = 2.0
"""Size of the largest block, relative to the mean, beyond which later rows cause new blocks."""


class CaGP(FunctionSpaceModel):
    """A GP that conditions on i linear combinations of n observations; what it does not compute stays uncertainty.

    With actions S (n × i) and A = Sᵀ(K + N)S: mean μ + K_xX S A⁻¹Sᵀ(y − μ), covariance k − K_xX S A⁻¹ SᵀK_Xx'. For any
    actions the variance is *never below* the exact GP's at the same hyperparameters. It falls as actions are added.
    With at most `num_actions` rows this is the exact GP. Any GPyTorch kernel works.

    `policy="learned"`: each row belongs to one action, a block of nearby rows. Its entry there is learned with the
    hyperparameters. The loss takes n² kernel entries, O(n i²) time and O(n i) memory: for thousands to tens of
    thousands of rows. `policy="cg"`: the actions are residuals of conjugate gradients at the current hyperparameters;
    an evaluation takes i products with K. A prediction takes n kernel entries and O(i²) per point.

    `fit_gpytorch_mll` fits in stages: first an exact GP on at most `subset_size` random rows; then all hyperparameters
    and the actions, by `objective` on all rows. No row is dropped. A refit continues from the present hyperparameters
    and actions; new rows join the actions of their nearest neighbours.

    `condition_on_observations` adds one action per observation, exactly, in O(n + r²) for r actions. Beyond
    `max_unit_actions` of these, if there are more than `num_actions` in all, they are merged into blocks of nearby rows
    ("cg" recomputes its actions instead). The variance is still not below the exact GP's.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × m`. Each output has its own hyperparameters and actions.
        train_Yvar: Known noise variances `n × m`. None to learn the noise.
        num_actions: Number of actions i.
        policy: Policy for the actions, "learned" or "cg"; see above.
        covar_module: Any kernel. None means BoTorch's default, an RBF with a prior scaled by d, times an outputscale
            with prior median 1. Give lengthscales a lower bound, `GreaterThan(0.02)` say: inputs with few distinct
            values drive them to 0.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, or FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP. Its parameters must be fixed, not learned.
        outcome_transform: As for SingleTaskGP: Standardize by default, None for none. It is learned once, from
            `train_Y`.
        epochs: Maximum number of L-BFGS iterations, or number of Adam steps. With policy "cg" every Adam step
            recomputes the actions, and L-BFGS runs three times with new actions each. 0 keeps the hyperparameters of
            the exact GP. That is better at very low noise: with few actions the bound mistakes unexplained signal for
            noise.
        lr: Adam's step size, which falls linearly to a tenth.
        optimizer: "lbfgs" or "adam". Batches need "adam".
        batch_size: Number of rows from which a step of Adam estimates the data term, without bias. This saves that
            term's O(n i²), not the n² kernel entries of SᵀKS. None for all rows.
        objective: "elbo", a bound on the evidence; or "projected", the evidence of the projected data, which
            oversmooths and is meant for comparison.
        max_unit_actions: Number of observations that may have an action each before they are merged.
        subset_size: Maximum number of rows for the exact GP that a first fit starts from, in O(subset_size³).
        seed: Seed for the choice of rows, the batches and the initial entries.
        progress: Whether fitting shows a progress bar; None shows it only on a terminal.

    References:
        J. Wenger, K. Wu, P. Hennig, J. R. Gardner, G. Pleiss, J. P. Cunningham. Computation-aware Gaussian processes:
        model selection and linear-time inference. NeurIPS 2024. arXiv:2411.01036.

    Example:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = CaGP(X, X.square().sum(-1, keepdim=True), num_actions=50)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    _fitting = StagedFit()
    action_entries: torch.nn.Parameter | None
    """Entries of S, one per row: `n`, or `m × n`. None if every row is its own action, or for policy "cg"."""
    action_labels: Int[Tensor, "m n"] | None
    """Index of each row's action, for every output."""
    action_state: Int[Tensor, "2"]
    """Number of rows in the last fit (or in the constructor), and whether there was a fit."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_actions: int = 512,
        policy: Policy = "learned",
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        epochs: int = 100,
        lr: float = 0.1,
        optimizer: Optimiser = "lbfgs",
        batch_size: int | None = None,
        objective: Objective = "elbo",
        max_unit_actions: int = 256,
        subset_size: int = 1000,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        _require_options(policy, optimizer, objective)
        if min(num_actions, max_unit_actions, subset_size, 1 if batch_size is None else batch_size) < 1 or epochs < 0:
            raise InvalidArgumentError(
                "num_actions, max_unit_actions, subset_size, batch_size: at least 1; epochs: at least 0."
            )
        if not lr > 0:
            raise InvalidArgumentError(f"lr={lr}: must be positive.")
        if batch_size is not None and (optimizer, objective) != ("adam", "elbo"):
            raise InvalidArgumentError(
                "batch_size: only steps of optimizer='adam' on objective='elbo' are of some rows."
            )
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
        self._num_actions, self._policy, self._objective = num_actions, policy, objective
        self._epochs, self._lr, self._optimizer, self._batch_size = epochs, lr, optimizer, batch_size
        self._max_unit_actions, self._subset_size = max_unit_actions, subset_size
        self._seed, self._progress = seed, progress
        batch_shape = self._aug_batch_shape
        self.covar_module = (
            default_scaled_kernel(train_X.shape[-1], batch_shape) if covar_module is None else covar_module
        )
        self._directions: list[Tensor] | None = None
        self.register_parameter("action_entries", None)
        self.register_buffer("action_labels", None)
        self.register_buffer("action_state", torch.zeros(2, dtype=torch.long))
        self.register_buffer("rows_digest", torch.zeros((), dtype=torch.long))
        self._other_rows = False
        self.to(train_X)
        self._make_actions()

    # ------------------------------------------------------------------ actions

    def _make_actions(self) -> None:
        """Make new actions for all present rows, with nothing learned yet."""
        n = self.num_observations
        if self._policy == "cg" or n <= self._num_actions:
            self._set_actions(None, None, n, learned=False)
            return
        noise = torch.randn(n, generator=torch.Generator().manual_seed(self._seed), dtype=torch.float64)
        labels = self._bisected(torch.arange(n), self._num_actions)
        self._set_actions(labels, (1 + SPREAD * noise).expand(self._num_outputs, n), n, learned=False)

    def _set_actions(
        self, labels: Int[Tensor, "m n"] | None, entries: Float[Tensor, "m n"] | None, own: int, learned: bool
    ) -> None:
        """Set the actions of all present rows, the first `own` of which were in the last fit."""
        assert self._rows is not None, "function-space models keep their rows"
        self._joined, self._inference = self.num_observations, None
        self.action_state = torch.tensor([own, learned], device=self._device)
        self.rows_digest = self._rows.digest(self._joined).to(self._device)
        self.action_labels = None if labels is None else labels.to(self._device)
        self.action_entries = None
        if entries is not None:
            values = entries.detach().to(self._device, self._dtype).reshape(*self._aug_batch_shape, self._joined)
            self.action_entries = torch.nn.Parameter(values.clone())

    def _bisected(self, rows: Int[Tensor, " r"], count: int) -> Int[Tensor, "m r"]:
        """Return blocks of nearby rows, with distances in units of each output's lengthscales."""
        X = self._transformed_rows()[0][rows.to(self._device)]
        return torch.stack([bisection(X / self._unit(j, X), count) for j in range(self._num_outputs)])

    def _unit(self, output: int, X: Float[Tensor, "n d"]) -> Float[Tensor, " l"]:
        """Return the units of distance: lengthscales, or the spread of the inputs for kernels without any."""
        radial = self._kernel(output, frozen=True).radial()
        if radial is not None:
            return radial.lengthscale
        spread = X.std(0) if len(X) > 1 else torch.ones_like(X[0])
        return torch.where(spread > 0, spread, 1.0)

    def _actions(self, output: int, count: int) -> Actions:
        """Return S of the first rows, differentiable in its entries; rows that have not joined get one action each."""
        X, _, D = (values[:count] for values in self._transformed_rows())
        N = self._noise_scale()[output] * D[:, output]
        if self._policy == "cg" and self._joined > self._num_actions:
            return self._cg_actions(output, X, N)
        labels = torch.arange(self._joined, device=X.device)
        entries = X.new_ones(len(labels))
        if self.action_labels is not None and self.action_entries is not None:
            labels = self.action_labels[output]
            entries = self.action_entries.reshape(self._num_outputs, -1)[output].to(torch.float64)
        units = torch.arange(count - len(labels), device=X.device)
        labels = torch.cat([labels, labels.max() + 1 + units])
        return BlockActions.of(X, torch.cat([entries, torch.ones_like(units).to(X)]), N, Blocks.of(labels))

    def _cg_actions(self, output: int, X: Float[Tensor, "n d"], N: Float[Tensor, " n"]) -> DenseActions:
        """Return the actions of conjugate gradients for the rows that have joined, without a gradient."""
        Q = self._basis_of(output) if self._directions is None else self._directions[output]
        whole = torch.block_diag(Q, torch.eye(len(X) - len(Q), dtype=Q.dtype, device=Q.device))
        return DenseActions(X, N.rsqrt().unsqueeze(-1) * whole)

    @torch.no_grad()
    def _basis_of(self, output: int) -> Float[Tensor, "n i"]:
        """Return orthonormal directions of conjugate gradients at the current hyperparameters."""
        X, Y, D = (values[: self._joined] for values in self._transformed_rows())
        residual, N = Y[:, output] - self._constants()[output], self._noise_scale()[output] * D[:, output]
        kernel = self._kernel(output, frozen=True)
        return conjugate_gradient_actions(kernel, X, residual, N, self._num_actions, CG_TOLERANCE)

    @override
    def _base_process(self, output: int) -> FunctionSpacePosterior:
        X, Y, _ = (values[: self._joined] for values in self._transformed_rows())
        kernel, constant = self._kernel(output, frozen=True), self._constants()[output].clone()
        actions = self._actions(output, self._joined)
        projected = Projected.of(kernel, X, Y[:, output] - constant, actions)
        return FunctionSpacePosterior(kernel, constant, actions, projected.factor, projected.innovation)

    @override
    def _restored_process(self, output: int, saved: dict[str, Tensor]) -> FunctionSpacePosterior:
        with torch.no_grad():
            actions: Actions = (
                DenseActions(self._transformed_rows()[0][: self._joined], saved["matrix"])
                if "matrix" in saved
                else self._actions(output, self._joined)
            )
        kernel, factor, innovation = self._kernel(output, frozen=True), saved["factor"], saved["innovation"]
        return FunctionSpacePosterior(kernel, saved["constant"], actions, factor, innovation)

    @override
    def _unlike_prior(self) -> str | None:
        """Return why this is not the exact GP; None if every row has an action of its own."""
        if self.action_labels is not None or self._count() < self._joined:
            return f"{self._joined} rows share {self._count()} actions, which would be others without a row"
        return super()._unlike_prior()

    # ------------------------------------------------------------------ rows that come later

    @override
    def _streamed(self, X: Tensor, transformed: Tensor, Y: Tensor, D: Tensor) -> "CaGP":
        child = super()._streamed(X, transformed, Y, D)
        assert isinstance(child, CaGP)
        child._bound_rank()
        return child

    def _bound_rank(self) -> None:
        """Merge single-row actions if there are too many of them and too many actions in all."""
        units = self.num_observations - self._joined
        if units > self._max_unit_actions and self._count() + units > self._num_actions:
            self._merge()

    def _count(self) -> int:
        """Return the number of actions of the rows that have joined."""
        if self.action_labels is not None:
            return int(self.action_labels.max()) + 1
        return min(self._joined, self._num_actions) if self._policy == "cg" else self._joined

    def _learned_count(self) -> int:
        """Return the number of actions with learned entries: those of the rows in the last fit."""
        own = int(self.action_state[0])
        return 0 if self.action_labels is None else int(self.action_labels[:, :own].max()) + 1

    def _merge(self) -> None:
        """Merge rows that came after the last fit into blocks of nearby rows, half as many as `max_unit_actions`.

        Entries are 1/d for relative noise d, so merging rows at the same point loses nothing. The rank stays bounded.
        """
        n, (own, learned) = self.num_observations, self.action_state.tolist()
        if self._policy == "cg":
            self._set_actions(None, None, n, bool(learned))
            return
        m, device = self._num_outputs, self._device
        kept = torch.arange(own, device=device).expand(m, own)
        entries = torch.ones(m, own, dtype=torch.float64, device=device)
        if self.action_labels is not None and self.action_entries is not None:
            kept = self.action_labels[:, :own]
            entries = self.action_entries.detach().reshape(m, -1)[:, :own].to(torch.float64)
        later = self._bisected(torch.arange(own, n), max(1, self._max_unit_actions // 2)).to(device)
        labels = torch.cat([kept, kept.amax(-1, keepdim=True) + 1 + later], -1)
        weights = 1 / self._transformed_rows()[2][own:].mT
        self._set_actions(labels, torch.cat([entries, weights], -1), own, bool(learned))

    def _continue_actions(self) -> None:
        """Let rows that came after the last fit join their nearest neighbours' actions, with the same entries."""
        assert self.action_labels is not None, "there are learned actions"
        assert self.action_entries is not None, "and their entries"
        X, n, own = self._transformed_rows()[0], self.num_observations, int(self.action_state[0])
        labels = self.action_labels[:, :own]
        entries = self.action_entries.detach().reshape(self._num_outputs, -1)[:, :own].to(torch.float64)
        nearest = torch.stack([_nearest(X[own:] / u, X[:own] / u) for u in self._units(X)])
        labels = torch.cat([labels, labels.gather(-1, nearest)], -1)
        entries = torch.cat([entries, entries.gather(-1, nearest)], -1)
        if max(int(each.bincount().max()) for each in labels) > UNEVEN * n / self._num_actions:
            labels = self._bisected(torch.arange(n), self._num_actions)
        self._set_actions(labels, entries, n, learned=True)

    def _units(self, X: Float[Tensor, "n d"]) -> list[Float[Tensor, " l"]]:
        return [self._unit(j, X) for j in range(self._num_outputs)]

    # ------------------------------------------------------------------ fitting

    @override
    def _log_evidence(self) -> Float[Tensor, " m"]:
        return self._bounds(None)

    def _loss_of(self, mll: MarginalLogLikelihood, batch: Int[Tensor, " b"] | None) -> Float[Tensor, ""]:
        return self._loss(mll, self._bounds(batch))

    def _bounds(self, batch: Int[Tensor, " b"] | None) -> Float[Tensor, " m"]:
        """Return the objective of every output, from all rows or estimated from a batch."""
        X, Y, D = self._transformed_rows()
        bounds = []
        for j, mu in enumerate(self._constants()):
            kernel, residual, noise = self._kernel(j), Y[:, j] - mu, self._noise_scale()[j] * D[:, j]
            actions = self._actions(j, len(X))
            projected = Projected.of(kernel, X, residual, actions)
            if self._objective == "elbo":
                bounds.append(-negative_elbo(projected, kernel.variance(X), residual, noise, batch))
            else:
                bounds.append(-negative_projected_evidence(projected, actions))
        return torch.stack(bounds)

    def fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None) -> None:
        """Fit in place, stage by stage; called by `StagedFit`."""
        n = self.num_observations
        if n <= self._num_actions:  # the exact GP
            with self._stage(f"exact GP on all {n} rows"):
                start_from_subset(self, n, self._seed, optimizer_kwargs)
            self._make_actions()
        else:
            learned = bool(self.action_state[1])
            if not learned or self._epochs == 0:
                with self._stage(f"exact GP on {min(n, self._subset_size)} rows"):
                    start_from_subset(self, self._subset_size, self._seed, optimizer_kwargs)
            if learned and self._learned_count() == self._num_actions:
                self._continue_actions()
            else:
                self._make_actions()
            if self._epochs > 0:
                with self._stage(f"hyperparameters and {self._policy} actions by the {self._objective} objective"):
                    self._maximise(mll, optimizer_kwargs)
        self.action_state[1], self._inference = 1, None

    def _maximise(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None) -> None:
        """Maximise the objective on all rows over hyperparameters and actions."""
        parameters = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        if self._epochs == 0 or not parameters:
            return
        if self._optimizer == "adam":
            self._by_adam(mll, parameters)
            return
        given = optimizer_kwargs or {}
        options = {**given, "options": {"maxiter": self._epochs, **given.get("options", {})}}
        for _ in range(CG_ROUNDS if self._policy == "cg" else 1):
            with self._fixed_directions():
                fit_evidence(mll, parameters, options)

    @contextmanager
    def _fixed_directions(self) -> Iterator[None]:
        """Keep CG actions fixed within the context: L-BFGS needs a fixed function."""
        if self._policy == "cg":
            self._directions = [self._basis_of(j) for j in range(self._num_outputs)]
        try:
            yield
        finally:
            self._directions = None

    def _by_adam(self, mll: MarginalLogLikelihood, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Take steps of Adam on all rows or on batches; with all rows, keep the best step."""
        noise = {id(p) for p in self.likelihood.parameters()}
        first = {name: p for name, p in parameters.items() if id(p) in noise}
        fit_evidence(mll, first, {"options": {"maxiter": NOISE_STEPS}})
        generator, n = torch.Generator().manual_seed(self._seed), self.num_observations
        adam = BoundedAdam(parameters, get_parameters_and_bounds(mll)[1], self._lr)
        quiet = None if self._progress is None else not self._progress
        best, kept = math.inf, list[Tensor]()
        for step in (bar := tqdm(range(self._epochs), desc="epochs", leave=False, disable=quiet)):
            before = [p.detach().clone() for p in parameters.values()]
            batch = None if self._batch_size is None else torch.randperm(n, generator=generator)[: self._batch_size]
            share = 1 - (1 - LAST_STEP) * step / self._epochs
            loss = adam.step(partial(self._loss_of, mll, batch), share)
            bar.set_postfix(loss=f"{loss:.4f}")
            if batch is None and loss < best:
                best, kept = loss, before
        with torch.no_grad():
            if kept and self._loss_of(mll, None) > best:
                for p, values in zip(parameters.values(), kept, strict=True):
                    p.copy_(values)

    # ------------------------------------------------------------------ state

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load the actions if they were made for the same rows; otherwise keep the model's own."""
        names = ("action_labels", "action_entries", "action_state", "rows_digest")
        digest = state_dict.get(prefix + "rows_digest")
        self._other_rows = digest is None or int(digest) != int(self.rows_digest)
        if self._other_rows:
            for name in names:
                state_dict.pop(prefix + name, None)
                if getattr(self, name) is not None:
                    state_dict[prefix + name] = getattr(self, name)
        else:
            labels, entries = (state_dict.get(prefix + name) for name in names[:2])
            self.action_labels = None if labels is None else torch.empty_like(labels, device=self._device)
            self.action_entries = None
            if entries is not None:
                self.action_entries = torch.nn.Parameter(torch.empty_like(entries).to(self._device, self._dtype))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @override
    def _forget_inference(self) -> None:
        """Drop the inference; make new actions if the rows differ from those the actions were made for."""
        assert self._rows is not None, "function-space models keep their rows"
        self._inference = None
        same = self._rows.count >= self._joined and self._rows.digest(self._joined) == self.rows_digest.cpu()
        if self._other_rows or not same:
            self._make_actions()
        self._other_rows = False
        self._bound_rank()

    @override
    def _subset_own(self, outputs: list[int]) -> None:
        super()._subset_own(outputs)
        if self.action_labels is not None and self.action_entries is not None:
            entries = self.action_entries.detach().reshape(len(self.action_labels), -1)[outputs]
            self.action_labels = self.action_labels[outputs]
            self.action_entries = torch.nn.Parameter(entries.squeeze(0) if len(outputs) == 1 else entries)


def _require_options(policy: str, optimizer: str, objective: str) -> None:
    given = {"policy": policy, "optimizer": optimizer, "objective": objective}
    known = {"policy": Policy, "optimizer": Optimiser, "objective": Objective}
    for name, value in given.items():
        if value not in get_args(known[name]):
            raise InvalidArgumentError(f"{name}={value!r}: choose one of {get_args(known[name])}.")


def _nearest(X: Float[Tensor, "q d"], Z: Float[Tensor, "n d"]) -> Int[Tensor, " q"]:
    """Which row of Z is the nearest to each of X. O(q n), in chunks."""
    size = max(1, CHUNK // max(1, len(Z)))
    parts = [torch.cdist(x, Z).argmin(-1) for x in X.split(size)]
    return torch.cat(parts) if parts else X.new_empty(0, dtype=torch.long)
