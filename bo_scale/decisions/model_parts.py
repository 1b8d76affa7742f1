"""The parts of the package's models that have no public name yet, read and changed in one place."""

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.processes import PosteriorProcess
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows
from bo_scale.models.shell.weight_space import WeightSpaceModel
from bo_scale.models.wiski.model import WISKI

# ruff: noqa: SLF001


def processes_of(model: ScalableModel) -> list[PosteriorProcess]:
    """Return the posterior process of each output at the current hyperparameters."""
    return model._current_processes()


def measurement_noise_of(model: ScalableModel, output: int) -> Float[Tensor, "*s"]:
    """Return the noise variance of a new measurement of an output, in units of the transformed targets."""
    return model._measurement_noise(output)


def extra_variance_of(model: ScalableModel, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
    """Return the variance that a model adds at transformed inputs for what its features miss; None for none."""
    return model._extra_variance(X, output)


def mean_extra_variance_of(model: WISKI, output: int) -> Float[Tensor, ""]:
    """Return the mean over the box of the variance that a WISKI adds for what its features miss."""
    grids = model._grid_features(output)
    if model._conservative:
        return torch.stack([phi.mean_interpolation_variance() for phi in grids]).sum()
    if model._adds_missing_variance():
        return torch.stack([phi.mean_missing_variance() for phi in grids]).sum()
    return torch.zeros((), dtype=torch.float64)


def transformed_dimension_of(model: FunctionSpaceModel) -> int:
    """Return the number of inputs after the input transform."""
    return model._transformed_rows()[0].shape[-1]


def shares_features(model: WeightSpaceModel) -> bool:
    """Return whether all outputs have the same features."""
    return model._shared_features


def has_parametric_features(model: WeightSpaceModel) -> bool:
    """Return whether features depend on hyperparameters, so that statistics are of one value of these."""
    return bool(model._feature_parameters())


def weighs_by_age(model: ScalableModel) -> bool:
    """Return whether the order of rows matters: they lose weight with age, or the model depends on their sequence."""
    return not isinstance(model, WeightSpaceModel) or model._decay != 1.0


def known_rows_of(model: ScalableModel) -> Rows | None:
    """Return the rows that a model keeps; None if it keeps statistics alone."""
    return model._rows


def rows_of(model: ScalableModel) -> Rows:
    """Return the rows of a model that keeps them, as all models in Ax do."""
    rows = model._rows
    assert rows is not None, "the model keeps no rows"
    return rows


def set_rows(model: ScalableModel, rows: Rows) -> None:
    """Replace the rows of a model, in place, by the same rows in another order."""
    model._rows = rows
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        model.likelihood.noise_covar.rows = rows


def observe_transformed(
    model: ScalableModel, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]
) -> ScalableModel:
    """Condition a model on new rows exactly.

    Args:
        model: It stays as it is.
        X: Raw inputs.
        Y: Targets in the units of the model.
        D: Noise variances in squared units of the model, or ones.
    """
    return model._streamed(X, model._transform_new_inputs(X), Y, D)
