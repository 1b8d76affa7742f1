"""Computation-aware GP: an exact kernel that sees the data through few linear combinations, never overconfident."""

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.gp.function_space.actions import (
    DenseActions,
    Projected,
    lexicographic,
    negative_elbo,
    negative_projected_evidence,
)
from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.gp.function_space.local_scale import LocalScale
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.function_space.scaled_by_errors import scaled_by_errors
from bo_scale.models.cagp_actions import Policy, Shares, policy_named
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.adam import fit_by_adam
from bo_scale.models.fitting.checks import warn_of_wide_variances
from bo_scale.models.fitting.evidence import fit_evidence, loss_of
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.door import require_whole
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.kernels import default_scaled_kernel, require_inputs_of
from bo_scale.training.time_limit import is_over

Objective = Literal["elbo", "projected"]
Optimiser = Literal["adam", "lbfgs"]
OLD_STATE = 2
"""Numbers in the `action_state` of older versions, whose actions are in the order of the rows."""


class CaGP(FunctionSpaceModel):
    """A GP that conditions on i linear combinations of n observations; what it does not compute stays uncertainty.

    With actions S (n × i) and A = Sᵀ(K + N)S: mean μ + K_xX S A⁻¹Sᵀ(y − μ), covariance k − K_xX S A⁻¹ SᵀK_Xx'. For any
    actions the variance is *never below* the exact GP's at the same hyperparameters. It falls as actions are added.
    With at most `num_actions` rows, by default 4096, this is the exact GP. Any GPyTorch kernel works.

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
        num_actions: Number of actions i. None means one for each row up to 4096 rows, where a Cholesky factorisation is
            as cheap, and 512 beyond. Conjugate gradients end before, once the mean has converged; intervals stay wide.
        policy: Policy for the actions, "learned" or "cg"; see above.
        covar_module: Any kernel. None means BoTorch's default, an RBF with a prior scaled by d, times an outputscale
            with prior median 1. Give lengthscales a lower bound, `GreaterThan(0.02)` say: inputs with few distinct
            values drive them to 0.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, `StudentTNoise` or "student_t" for data with outliers, or
            FixedNoiseGaussianLikelihood for known variances.
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

    Examples:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = CaGP(X, X.square().sum(-1, keepdim=True), num_actions=50)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    _fitting = StagedFit()
    _scales_locally = False
    """True if errors of left-out rows are to scale variances; see `scale_locally`."""
    action_entries: torch.nn.Parameter | None
    """Entries of S, one per row, in lexicographic order of the inputs: `n`, or `m × n`. None if every row is its own
    action, or for policy "cg"."""
    action_labels: Int[Tensor, "m n"] | None
    """Index of each row's action, for every output."""
    action_state: Int[Tensor, "3"]
    """Number of rows in the last fit (or in the constructor), whether there was a fit, and whether actions are in the
    order of the inputs."""
    _kept_places: tuple[tuple[Any, ...], Int[Tensor, " n"]] | None = None
    """The last result of `_places`, and what it was made for."""
    _other_rows = False
    """Whether hyperparameters were loaded from a model of other rows since the actions were made."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_actions: int | None = None,
        policy: Policy = "learned",
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | str | None = None,
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
        if (
            min(
                1 if num_actions is None else num_actions,
                max_unit_actions,
                subset_size,
                1 if batch_size is None else batch_size,
            )
            < 1
            or epochs < 0
        ):
            raise InvalidArgumentError(
                "num_actions, max_unit_actions, subset_size, batch_size: must be at least 1; epochs: at least 0."
            )
        num_actions = None if num_actions is None else require_whole(num_actions, "num_actions")
        if not lr > 0:
            raise InvalidArgumentError(f"lr={lr}: must be positive.")
        if batch_size is not None and (optimizer, objective) != ("adam", "elbo"):
            raise InvalidArgumentError(
                "batch_size: batches need optimizer='adam' and objective='elbo'. Choose both, or leave batch_size out."
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
        if len(train_X) == 0:
            raise InvalidDataError("train_X: it has no rows to act on. Give at least one.")
        self._num_actions = num_actions
        self._policy = policy_named(policy, num_actions, max_unit_actions, seed)
        self._objective, self._subset_size, self._seed = objective, subset_size, seed
        self._optimizer, self._epochs, self._lr, self._batch_size = optimizer, epochs, lr, batch_size
        self._progress = progress
        X, batch_shape = self._transformed_rows()[0], self._aug_batch_shape
        given = default_scaled_kernel(X.shape[-1], batch_shape, X) if covar_module is None else covar_module
        self.covar_module = require_inputs_of(given, X.shape[-1])
        self.register_parameter("action_entries", None)
        self.register_buffer("action_labels", None)
        self.register_buffer("action_state", torch.zeros(3, dtype=torch.long))
        self.register_buffer("rows_digest", torch.zeros((), dtype=torch.long))
        self.to(train_X)
        self._set_actions(self._policy.made(self._all_observations()), learned=False)

    # ------------------------------------------------------------------ actions

    @property
    def _shares(self) -> Shares:
        """The sparse actions of the rows that have joined, differentiable in their entries."""
        if self.action_labels is None or self.action_entries is None:
            return Shares.units(self._num_outputs, self._joined, self._device)
        entries = self.action_entries.reshape(len(self.action_labels), -1).to(torch.float64)
        places = self._places()
        return Shares(self.action_labels[:, places], entries[:, places], int(self.action_state[0]))

    def _places(self) -> Int[Tensor, " n"]:
        """Return the place of each row that has joined in `action_labels` and `action_entries`.

        These are in the order of the inputs, in single precision as their digest is, so that the model does not depend
        on that of its rows; only rows with the same inputs stay in theirs.
        """
        key = self._joined, int(self.rows_digest), self._device
        if self._kept_places is None or self._kept_places[0] != key:
            order = lexicographic(self._kept_rows.X[: self._joined].float()).to(self._device)
            self._kept_places = key, order.argsort()
        return self._kept_places[1]

    def _set_actions(self, shares: Shares, learned: bool) -> None:
        """Set the actions of the first rows, after a fit or not."""
        self._joined, self._inference = shares.joined, None
        self.action_state = torch.tensor([shares.fitted, learned, True], device=self._device)
        self.rows_digest = self._joined_digest()
        self.action_labels = self.action_entries = None
        if not shares.are_units:
            order = self._places().argsort()
            self.action_labels = shares.labels.to(self._device)[:, order]
            entries = shares.entries.detach().to(self._device, self._dtype)[:, order]
            self.action_entries = torch.nn.Parameter(entries.reshape(*self._aug_batch_shape, -1).clone())

    @override
    def _base_process(self, output: int) -> FunctionSpacePosterior:
        seen, constant = self._observations(output, frozen=True).part(slice(self._joined)), self._constants()[output]
        actions = self._policy.actions(output, seen, self._shares)
        projected = Projected.of(seen.kernel, seen.X, seen.residual, actions)
        found = FunctionSpacePosterior(seen.kernel, constant.clone(), actions, projected.factor, projected.innovation)
        return scaled_by_errors(found) if self._scales_locally else found

    @override
    def _restored_process(self, output: int, saved: dict[str, Tensor]) -> FunctionSpacePosterior:
        seen, matrix = self._observations(output, frozen=True).part(slice(self._joined)), saved.get("matrix")
        with torch.no_grad():
            actions = (
                self._policy.actions(output, seen, self._shares) if matrix is None else DenseActions(seen.X, matrix)
            )
        if len(saved["factor"]) != actions.count:
            raise InvalidDataError(
                f"the number of actions is {len(saved['factor'])} in the saved model and {actions.count} in this one. "
                f"Construct this model with the saved policy and num_actions."
            )
        found = FunctionSpacePosterior(seen.kernel, saved["constant"], actions, saved["factor"], saved["innovation"])
        return replace(found, local=LocalScale.restored(saved))

    @override
    def _saved_inference(self) -> dict[str, Any]:
        return {**super()._saved_inference(), "scales_locally": self._scales_locally}

    @override
    def _restored_inference(self, saved: dict[str, Any]) -> FunctionSpaceInference:
        self._scales_locally = saved.get("scales_locally", False)  # older files know nothing of it
        return super()._restored_inference(saved)

    def scale_locally(self, scales: bool = True) -> None:
        """Let errors of rows left out scale the variances near them, of the function and of noise. In place.

        A kernel and one noise variance say the same of all places. With it, variances are multiplied by the mean square
        of errors of nearby rows left out, in units of their variances, and of 5 to 20 rows with a square of one: away
        from all rows they stay. The mean does not change. It is done where every row, of at least 200, has an action of
        its own, most have inputs of their own, the kernel is a function of distance, and the log density of left-out
        rows gains 5 nats; and anew after every fit: O(n³), and O(d) for each of at most 2000 rows in a prediction. Rows
        that are conditioned on later do not change the factors. `choose` does it.

        Args:
            scales: False to end it.

        Raises:
            UnsupportedError: for noise of known variance, or `StudentTNoise`.
        """
        if scales and (self.knows_noise or type(self.likelihood) is not GaussianLikelihood):
            raise UnsupportedError("scale_locally: for a learned noise variance, not for train_Yvar or StudentTNoise.")
        self._scales_locally, self._inference = scales, None

    @override
    def _unlike_prior(self) -> str | None:
        """Return why this is not the exact GP; None if every row has an action of its own."""
        count = self._policy.count(self._shares)
        if count < self._joined:
            return f"{self._joined} rows share {count} actions, which change when a row is left out"
        if self.inference.scales_locally:
            return "errors of left-out rows scale its variances"
        return super()._unlike_prior()

    # ------------------------------------------------------------------ rows that come later

    @override
    def _bound_rank(self) -> None:
        """Merge single-row actions if there are too many of them and too many actions in all."""
        units, policy = self.num_observations - self._joined, self._policy
        if units > policy.max_unit_actions and policy.count(self._shares) + units > policy.exact_rows:
            merged = policy.merged(self._all_observations(), self._shares)
            self._set_actions(merged, bool(self.action_state[1]))

    # ------------------------------------------------------------------ fitting

    @override
    def _log_evidence(self, batch: Int[Tensor, " b"] | None = None) -> Float[Tensor, " m"]:
        """Return the objective of every output, from all rows or estimated from a batch."""
        bounds = []
        for j, seen in enumerate(self._all_observations()):
            actions = self._policy.actions(j, self._observations(j), self._shares)
            projected = Projected.of(seen.kernel, seen.X, seen.residual, actions)
            if self._objective == "elbo":
                bounds.append(-negative_elbo(projected, seen.kernel.variance(seen.X), seen.residual, seen.noise, batch))
            else:
                bounds.append(-negative_projected_evidence(projected, actions))
        return torch.stack(bounds)

    @override
    def _check_fit(self, record: Recorder) -> None:
        warn_of_wide_variances(self, "Raise num_actions.", record)

    def fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None, record: Recorder) -> None:
        """Fit in place, stage by stage; called by `StagedFit`."""
        n, learned, policy = self.num_observations, bool(self.action_state[1]), self._policy
        exact = n <= policy.exact_rows
        if exact or not learned or self._epochs == 0:
            size = min(n, self._subset_size)
            with record.stage(f"exact GP on {'all ' if size == n else ''}{size} rows"):
                start_from_subset(self, size, self._seed, optimizer_kwargs)
        every = self._all_observations()
        self._set_actions(policy.continued(every, self._shares) if learned else policy.made(every), learned=True)
        if not exact and self._epochs > 0:
            with record.stage(f"hyperparameters and {policy.name} actions by the {self._objective} objective"):
                self._maximise(mll, optimizer_kwargs or {})

    def _maximise(self, mll: MarginalLogLikelihood, given: dict[str, Any]) -> None:
        """Maximise the objective on all rows over hyperparameters and actions, with options for L-BFGS."""
        parameters = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        if not parameters:
            return
        if self._optimizer == "adam":
            plan = (self.num_observations, self._epochs, self._batch_size, self._lr, self._seed, self._progress)
            fit_by_adam(mll, lambda batch: loss_of(self, mll, self._log_evidence(batch)), parameters, *plan)
            return
        options, policy = {**given, "options": {"maxiter": self._epochs, **given.get("options", {})}}, self._policy
        try:
            for _ in range(policy.rounds):
                self._policy = policy.fixed(self._all_observations())
                fit_evidence(mll, parameters, options)
                if is_over():
                    break
        finally:
            self._policy, self._inference = policy, None

    # ------------------------------------------------------------------ state

    @override
    def _saved_options(self) -> dict[str, Any]:
        own = {"policy": self._policy.name, "num_actions": self._num_actions}
        return {**super()._saved_options(), **own}

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load the actions if they were made for the same rows; otherwise keep the model's own."""
        digest = state_dict.get(prefix + "rows_digest")
        same = isinstance(digest, Tensor) and digest.numel() == 1 and int(digest) == int(self.rows_digest)
        self._other_rows = not same
        if self._other_rows:
            for name in ("action_labels", "action_entries", "action_state", "rows_digest"):
                state_dict.pop(prefix + name, None)
                if getattr(self, name) is not None:
                    state_dict[prefix + name] = getattr(self, name)
        else:
            self._in_order(state_dict, prefix)
            labels, entries = (state_dict.get(prefix + name) for name in ("action_labels", "action_entries"))
            self.action_labels = None if labels is None else torch.empty_like(labels, device=self._device)
            self.action_entries = None
            if entries is not None:
                self.action_entries = torch.nn.Parameter(torch.empty_like(entries).to(self._device, self._dtype))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled model, also one of an older version, whose actions are in the order of the rows."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if len(self.action_state) > OLD_STATE:
            return
        self.action_state = torch.cat([self.action_state, self.action_state.new_tensor([True])])
        if self.action_labels is not None and self.action_entries is not None:
            order = self._places().argsort()
            self.action_labels = self.action_labels[:, order]
            self.action_entries.data = self.action_entries.data[..., order]

    def _in_order(self, state_dict: Any, prefix: str) -> None:
        """Bring actions that an older version saved, in the order of the rows, into the order of the data."""
        state = state_dict.get(prefix + "action_state")
        if not isinstance(state, Tensor) or len(state) > OLD_STATE:  # what is missing is refused by PyTorch
            return
        state_dict[prefix + "action_state"] = torch.cat([state, state.new_tensor([True])])
        for name in ("action_labels", "action_entries"):
            values = state_dict.get(prefix + name)
            if values is not None:
                self._joined = values.shape[-1]
                state_dict[prefix + name] = values[..., self._places().argsort().to(values.device)]

    @override
    def _forget_inference(self) -> None:
        """Drop the inference; make new actions if the rows differ from those the actions were made for."""
        self._inference = None
        if self._other_rows or self._joined_digest() != self.rows_digest:
            self._set_actions(self._policy.made(self._all_observations()), learned=False)
        self._other_rows = False
        self._bound_rank()

    @override
    def _subset_own(self, outputs: list[int]) -> None:
        if self.action_labels is not None:
            self._set_actions(self._shares.outputs(outputs), bool(self.action_state[1]))


def _require_options(policy: str, optimizer: str, objective: str) -> None:
    given = {"policy": policy, "optimizer": optimizer, "objective": objective}
    known = {"policy": Policy, "optimizer": Optimiser, "objective": Objective}
    for name, value in given.items():
        if value not in get_args(known[name]):
            raise InvalidArgumentError(f"{name}={value!r}: choose one of {get_args(known[name])}.")
