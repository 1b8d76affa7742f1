"""The data of a model as BoTorch accesses them: rows, transforms, targets and noise."""

from typing import Any

import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils import validate_input_scaling
from botorch.utils.types import _DefaultType
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.models import GP
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.arguments import make_likelihood, make_mean, require_frozen
from bo_scale.models.shell.cloning import unchanged_on_failure
from bo_scale.models.shell.door import (
    require_data,
    require_device,
    require_finite,
    require_inputs,
    require_state,
    require_tensors,
)
from bo_scale.models.shell.family import Family
from bo_scale.models.shell.kernels import units_of
from bo_scale.models.shell.lending import Lending, borrows, child_of, own_modules, parameter_of, settle
from bo_scale.models.shell.rows import Rows, followed_by
from bo_scale.models.shell.student_t import StudentTNoise


class ModelWithData(Lending, Family, GPyTorchModel, GP):
    """The part of the BoTorch shell that holds data. Abstract.

    Data are plain attributes and not part of the state_dict. Transforms are learned once, in the constructor. Nothing
    is swapped between train and eval mode: `train_inputs` depends on the mode.
    """

    likelihood: Likelihood
    outcome_transform: OutcomeTransform
    mean_module: Mean
    covar_module: torch.nn.Module
    _frozen: tuple[str, ...] = ("input_transform", "outcome_transform")
    """Names of modules that are always in evaluation mode: the constructor learned them."""
    _fixed: tuple[str, ...] = ()
    """Beginnings of names of further state that a model without rows cannot change."""
    _starts_fitted = False
    """True while the exact GP of some rows has one start, the present hyperparameters: those of a fit to such rows."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None,
        mean_module: Mean | None,
        likelihood: Likelihood | str | None,
        input_transform: InputTransform | None,
        outcome_transform: OutcomeTransform | _DefaultType | None,
        check_scaling: bool,
    ) -> None:
        require_data(train_X, train_Y, train_Yvar)
        self._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        if train_X.ndim != 2:
            raise UnsupportedError(
                f"{type(self).__name__}: batched training data (train_X of shape {tuple(train_X.shape)}) are not "
                f"supported; build one model for each batch, or use SingleTaskGP."
            )
        if isinstance(outcome_transform, _DefaultType):
            outcome_transform = standardize(train_Y)
        require_frozen(input_transform)
        with torch.no_grad():
            transformed_X = self.transform_inputs(X=train_X, input_transform=input_transform)
        if outcome_transform is not None:
            outcome_transform.train()
            train_Y, train_Yvar = outcome_transform(Y=train_Y, Yvar=train_Yvar, X=transformed_X)
        self._validate_tensor_args(X=transformed_X, Y=train_Y, Yvar=train_Yvar)
        units = units_of(transformed_X)  # in which the default kernel is
        in_units = transformed_X if units is None else (transformed_X - transformed_X.amin(0)) / units
        validate_input_scaling(
            train_X=in_units, train_Y=train_Y, train_Yvar=train_Yvar, check_nans_only=not check_scaling
        )
        super().__init__()
        self._load_state_dict_pre_hooks.clear()  # GPyTorch's is a method of the model: a cycle that outlives its use
        self._num_outputs = train_Y.shape[-1]
        self._rows: Rows | None = None
        self._fantasies: tuple[Tensor, Tensor, Tensor] | None = None  # raw X: b q d, transformed Y and D: f b q m
        self._batch_shape = torch.Size([])
        self._num_inputs = train_X.shape[-1]
        if train_Yvar is None and isinstance(likelihood, FixedNoiseGaussianLikelihood):
            train_Yvar = likelihood.noise.reshape(self._num_outputs, -1).mT.expand_as(train_Y)
        if train_Yvar is not None:
            train_Yvar = FixedNoiseGaussianLikelihood(noise=train_Yvar.mT).noise.mT  # BoTorch's smallest variance
        rows = Rows.of(
            train_X.detach(),
            train_Y.detach(),
            (torch.ones_like(train_Y) if train_Yvar is None else train_Yvar).detach(),
        )
        self._rows = rows
        self.knows_noise = train_Yvar is not None
        self.likelihood = make_likelihood(likelihood, rows, train_Yvar is not None, self._aug_batch_shape)
        self.mean_module = make_mean(mean_module, self._aug_batch_shape)
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        freeze(self)

    knows_noise: bool
    """Whether noise variances are known rather than learned."""

    @property
    def rows(self) -> Rows | None:
        """The observed rows, with raw inputs and transformed targets; None if they are not kept."""
        return self._rows

    @property
    def num_inputs(self) -> int:
        """The number of columns of raw inputs."""
        return self._num_inputs

    def _take_rows(self, rows: Rows | None) -> None:
        """Set the rows in place."""
        self._rows = rows
        self._tell_likelihood()

    def _tell_likelihood(self) -> None:
        """Pass to the likelihood what it reads from the model: rows with known noise variances."""
        if self.knows_noise and not borrows(self):
            noise, fantasised = self.likelihood.noise_covar, self._fantasies
            noise.rows = self._rows
            noise.fantasies = None if fantasised is None else (fantasised[2], self._batch_shape)

    def _transformed_rows(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Return transformed inputs, targets and D."""
        rows = self._rows
        assert rows is not None, "called where rows are kept"
        X = rows.X if not hasattr(self, "input_transform") else self.input_transform.preprocess_transform(rows.X)
        return X.to(torch.float64), rows.Y.to(torch.float64), rows.D.to(torch.float64)

    # ------------------------------------------------------------------ hyperparameters

    @override
    def _saved_options(self) -> dict[str, Any]:
        return {"number of inputs": self._num_inputs, "number of outputs": self._num_outputs}

    @property
    def learned_noise(self) -> Float[Tensor, " m"] | None:
        """The learned noise variance of every output, in squared units of the transformed targets; None if known."""
        return None if self.knows_noise else self._noise_scale().detach()

    def _noise_scale(self) -> Float[Tensor, " m"]:
        """Return σ², the factor of every output's D."""
        if self.knows_noise:
            return torch.ones(self._num_outputs, dtype=torch.float64, device=self._device)
        noise: Tensor = self.likelihood.noise
        return noise.reshape(-1).expand(self._num_outputs).to(torch.float64)

    @property
    def _aug_batch_shape(self) -> torch.Size:
        """The batch shape of hyperparameters: empty for one output, m for several."""
        return torch.Size([]) if self._num_outputs == 1 else torch.Size([self._num_outputs])

    def _constants(self) -> Float[Tensor, " m"]:
        """Return μ of every output."""
        if isinstance(self.mean_module, ZeroMean):
            return torch.zeros(self._num_outputs, dtype=torch.float64, device=self._device)
        constant: Tensor = self.mean_module.constant
        return constant.reshape(-1).expand(self._num_outputs).to(torch.float64)

    @property
    def _device(self) -> torch.device:
        return parameter_of(self).device

    @property
    def _dtype(self) -> torch.dtype:
        return parameter_of(self).dtype

    # ------------------------------------------------------------------ data

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """The batch shape of fantasies; empty without any."""
        return self._batch_shape

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Training inputs: raw in train mode, transformed in eval mode. Empty if not kept.

        `batch_shape × n × d`, or `batch_shape × m × n × d` for several outputs, as BoTorch's models have them.
        """
        X, transform = _for_each_output(self, _raw_inputs(self)), child_of(self, "input_transform")
        return (X if self.training or transform is None else transform.preprocess_transform(X),)

    @property
    def train_targets(self) -> Tensor:
        """Training targets after the outcome transform: `batch_shape × n`, or `batch_shape × m × n`."""
        rows = self._rows
        Y = rows.Y if rows is not None else parameter_of(self).new_empty(0, self._num_outputs)
        Y = followed_by(Y, None if self._fantasies is None else self._fantasies[1], self._batch_shape)
        return Y.squeeze(-1) if self._num_outputs == 1 else Y.mT

    @property
    @override
    def _original_train_inputs(self) -> Tensor | None:  # type: ignore[override]
        return None if child_of(self, "input_transform") is None else _for_each_output(self, _raw_inputs(self))

    @property
    @override
    def _has_transformed_inputs(self) -> bool:  # type: ignore[override]
        return child_of(self, "input_transform") is not None and not self.training

    @override
    def _set_transformed_inputs(self) -> None:
        """Do nothing: `train_inputs` depends on the mode."""

    @override
    def _revert_to_original_inputs(self) -> None:
        """Do nothing: `train_inputs` depends on the mode."""

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """Replace the training data.

        Args:
            inputs: Raw inputs `n × d`, or shaped like `train_inputs`, alone or in a tuple; None keeps the present ones.
            targets: Targets after the outcome transform, shaped like `train_targets`; None keeps the present ones.
            strict: Whether shapes must stay the same.
        """
        if self._rows is None or self._fantasies is not None:
            raise UnsupportedError("set_train_data needs a model that keeps its data and holds no fantasies.")
        X = self._rows.X if inputs is None else (inputs[0] if isinstance(inputs, tuple | list) else inputs)
        require_inputs(X, self._num_inputs, "inputs", self._device)
        X = _shared(X, self._num_outputs)
        Y = self._rows.Y if targets is None else self._as_columns(targets)
        if strict and (X.shape != self._rows.X.shape or Y.shape != self._rows.Y.shape):
            raise InvalidDataError(
                f"set_train_data: shapes {tuple(X.shape)}, {tuple(Y.shape)} are new. To allow that, pass strict=False."
            )
        if len(X) != len(Y):
            raise InvalidDataError(
                f"set_train_data: there are {len(X)} inputs and {len(Y)} targets. Give as many of both."
            )
        same_length = len(X) == len(self._rows.D)
        if not same_length and self.knows_noise:
            raise UnsupportedError("set_train_data: variances are known for the present rows only. Build a new model.")
        self._take_rows(Rows.of(X.detach(), Y.detach(), self._rows.D if same_length else torch.ones_like(Y)))
        self._forget_weights()
        self._forget_inference()

    def _as_columns(self, targets: Tensor) -> Float[Tensor, "n m"]:
        """Return targets shaped like `train_targets` as columns; refuse any other shape."""
        require_tensors(targets=targets)
        require_device(self._device, targets=targets)
        several = self._num_outputs > 1
        if targets.ndim != 1 + several or (several and len(targets) != self._num_outputs):
            expected = f"{self._num_outputs} × n, like train_targets" if several else "n"
            raise InvalidDataError(f"targets: shape {tuple(targets.shape)}, expected {expected}.")
        columns = targets.mT if several else targets.unsqueeze(-1)
        require_finite(targets=columns)
        return columns

    def set_targets_and_ratios(self, Y: Float[Tensor, "n m"], D: Float[Tensor, "n m"]) -> None:
        """Set transformed targets of the rows, and noise variances relative to the learned one, in place."""
        assert self._rows is not None, "called where rows are kept"
        self._take_rows(self._rows.with_targets(Y.detach().to(self._rows.Y), D.detach().to(self._rows.Y)))
        self._forget_inference()

    def _forget_weights(self) -> None:
        """Give all rows the same noise variance again, if a fit with Student-t noise had found others. In place."""
        if isinstance(self.likelihood, StudentTNoise) and self._rows is not None:
            self._take_rows(self._rows.with_targets(self._rows.Y, torch.ones_like(self._rows.D)))

    @override
    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        assert self._rows is not None
        fixed = self.knows_noise
        return self._rows.Y, (self._rows.D if fixed else None)

    @override
    def _restore_targets_and_noise(self, Y: Tensor, Yvar: Tensor | None, strict: bool) -> None:
        assert self._rows is not None
        self._take_rows(self._rows.with_targets(Y.detach(), None if Yvar is None else Yvar.detach()))
        self._forget_inference()

    @override
    def load_state_dict(  # type: ignore[override]
        self, state_dict: Any, strict: bool = True, keep_transforms: bool = True, assign: bool = False
    ) -> None:
        """Load hyperparameters, grids and transforms; data stay, and pass through the loaded transforms.

        A state that cannot be loaded leaves the model as it was.

        Raises:
            UnsupportedError: if the model holds fantasies, or keeps no data and its transforms or grid would change.
            WrongTypeError: for an entry that is no tensor where the model has one.
        """
        own_modules(self)
        settle(self)
        if self._fantasies is not None:
            raise UnsupportedError(
                "load_state_dict: the model holds fantasies. Load into the model that they were made from."
            )
        require_state(self.state_dict(), state_dict)
        with unchanged_on_failure(self):
            self._load(state_dict, strict, keep_transforms, assign)
        freeze(self)

    def _load(self, state_dict: Any, strict: bool, keep_transforms: bool, assign: bool) -> None:
        if self._rows is None:
            changed = _changed_state(self, state_dict)
            if changed:
                raise UnsupportedError(
                    f"load_state_dict: a model that keeps no data cannot change {changed}. Use keep_data=True."
                )
            super().load_state_dict(state_dict, strict=strict, keep_transforms=False, assign=assign)
        else:
            super().load_state_dict(state_dict, strict=strict, keep_transforms=keep_transforms, assign=assign)
            self._forget_weights()
            self._forget_inference()

    @classmethod
    @override
    def construct_inputs(cls, training_data: Any, **options: Any) -> dict[str, Any]:
        """Return constructor arguments from a SupervisedDataset, with any further ones passed through."""
        return {**super().construct_inputs(training_data), **options}


def standardize(Y: Tensor) -> Standardize:
    """Return the default transform of targets `n × m`, which is not learned yet."""
    if len(Y) == 0:
        raise InvalidDataError(
            "train_Y: there are no rows to standardise. Give at least one, or pass outcome_transform=None."
        )
    return Standardize(m=Y.shape[-1], min_stdv=least_stdv(Y))


def least_stdv(Y: Tensor) -> float:
    """Return the standard deviation below which targets are equal but for rounding, whatever their units are."""
    numbers = torch.finfo(Y.dtype)
    return max(numbers.tiny, 16 * numbers.eps * float(Y.detach().abs().max()))


def freeze(model: ModelWithData) -> None:
    """Put the modules that the constructor learned into evaluation mode."""
    for name in model._frozen:
        module = child_of(model, name)
        if module is not None:
            module.eval()


def _changed_state(model: ModelWithData, state: dict[str, Tensor]) -> list[str]:
    """Return names of what a state would change although the statistics of a model without rows depend on it."""
    of_features = {id(p) for p in model._feature_parameters()}
    names = {name for name, p in model.named_parameters() if id(p) in of_features}
    own = {
        name: value
        for name, value in model.state_dict().items()
        if name in state
        and (name in names or "_transform." in name or name.endswith("extra_state") or name.startswith(model._fixed))
    }
    return [k for k, v in own.items() if v.shape != state[k].shape or not torch.equal(v, state[k].to(v))]


def _raw_inputs(model: ModelWithData) -> Tensor:
    """Return inputs before any transform, fantasised ones last; empty if rows are not kept."""
    X = model._rows.X if model._rows is not None else parameter_of(model).new_empty(0, model._num_inputs)
    return followed_by(X, None if model._fantasies is None else model._fantasies[0], model._batch_shape)


def _for_each_output(model: ModelWithData, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n d"]:
    """Return inputs with a dimension for the outputs if there are several."""
    m = model._num_outputs
    return X if m == 1 else X.unsqueeze(-3).expand(*X.shape[:-2], m, *X.shape[-2:])


def _shared(X: Float[Tensor, "*m n d"], outputs: int) -> Float[Tensor, "n d"]:
    """Return the inputs that all outputs share; refuse others."""
    if X.ndim == 3 and outputs > 1 and len(X) == outputs and bool((X[0] == X).all()):
        return X[0]
    if X.ndim != 2:
        raise InvalidDataError(f"inputs: shape {tuple(X.shape)}, expected n × d, the same for all outputs.")
    return X
