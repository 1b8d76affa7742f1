"""Checks of a fit against the rows that it was given."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import ApproximationWarning
from bo_scale.models.fitting.missed import missed_changes
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.starts import FEWEST

LOOKED_AT = 2000
"""Maximum number of rows whose residuals are looked at."""
RESIDUAL = 0.05
"""Mean square of residuals, in units of the variance of the targets, from which a fit warns of missed changes."""
AT_ROWS, WIDE, SPREAD = 500, 3.0, 0.01
"""Maximum number of rows whose variances are looked at. A fit warns if these are, in the mean, so many times the noise
and so large a part of the variance of the targets."""


def warn_of_missed(model: Any, record: Recorder) -> None:
    """Warn if residuals show that a model takes changes of the function for noise."""
    found = residuals_of(model)
    if found is None:
        return
    X, errors, Y = found
    for change, variance in zip(missed_changes(X, errors), Y.var(0).tolist(), strict=True):
        if change is not None and change.clear and change.mean_square > RESIDUAL * variance:
            along = f"input {change.inputs[0]}" if len(change.inputs) == 1 else "all inputs"
            record.warn(
                f"{type(model).__name__}: residuals of neighbouring rows along {along} go together (correlation "
                f"{change.correlation:.2f}), so changes of the function may be taken for noise. Raise the size of the "
                f"approximation, start from a covar_module with shorter lengthscales, or take bo_scale.choose.",
                ApproximationWarning,
            )
            return


def warn_of_wide_variances(model: Any, remedy: str, record: Recorder) -> None:
    """Warn if variances of f at the rows are far above the noise: those of an exact GP are at most the noise.

    With noise V the covariance of f at the rows is K − K (K + V)⁻¹ K = V − V (K + V)⁻¹ V, which is at most V.
    C. E. Rasmussen, C. K. I. Williams. Gaussian processes for machine learning. MIT Press, 2006: equation 2.24.

    Args:
        model: A model whose approximation can only raise variances.
        remedy: What would lower them, for the message.
        record: The recorder of the fit.
    """
    found = rows_of(model, AT_ROWS)
    if found is None:
        return
    X, Y, D = found
    with torch.no_grad():
        variances = torch.stack([process.variance(X) for process in model.processes], -1).mean(0)
        noise = D.mean(0) if model.knows_noise else model.mean_noise.double() * D.mean(0)
    ratios = torch.where(variances > SPREAD * Y.var(0), variances / noise, 0.0)
    if ratios.max().item() > WIDE:
        record.warn(
            f"{type(model).__name__}: variances at the rows are {ratios.max().item():.2g} times the noise, while those "
            f"of an exact GP are at most the noise, so intervals are wider than they need be. {remedy}",
            ApproximationWarning,
        )


def rows_of(model: Any, most: int) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k m"], Float[Tensor, "k m"]] | None:
    """Return transformed inputs, targets and D of some rows of a model; None if it keeps few, or none."""
    if model._rows is None or model._rows.count < FEWEST:
        return None
    every = model._transformed_rows()
    n, device = len(every[0]), every[0].device
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most].to(device)
    X, Y, D = (values[chosen] for values in every)
    return X, Y, D


def residuals_of(model: Any) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k m"], Float[Tensor, "k m"]] | None:
    """Return transformed inputs, residuals and targets of some rows of a model; None if it keeps few, or none."""
    found = rows_of(model, LOOKED_AT)
    if found is None:
        return None
    X, Y, _ = found
    with torch.no_grad():
        means = [process.mean(X).reshape(-1, len(X)).mean(0) for process in model.processes]  # of samples, if any
        return X, Y - torch.stack(means, -1), Y
