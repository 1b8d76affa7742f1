"""Lengthscales from which a fit of an exact GP starts."""

import math
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

SPACINGS, SHORT = 2.0, 0.5
"""Short lengthscales are so many distances of a row from the nearest other. They are a start if they are shorter than
this part of the present ones."""
FEW_INPUTS = 4
"""Maximum number of inputs whose functions are likely to be rough: there short lengthscales are tried."""
FEWEST, BOTORCHS, FAR = 20, 0.025, 1.5
"""Smallest number of rows that tell noise from a function, or errors that go together from others. Lengthscales are
noise if they are below BoTorch's bound, in units of an input's range, and nearest rows are so many of them apart."""
MORE = 3.0
"""Log evidence, without priors, by which short lengthscales must be better. Noise is as likely under a kernel that
relates no rows, and the prior of the noise variance prefers that."""


def with_long_lengthscales(modules: Any, X: Float[Tensor, "c d"]) -> dict[str, Tensor] | None:
    """Return hyperparameters whose kernels relate rows at typical distances; None if the present ones do.

    Args:
        modules: A model of BoTorch, with its present hyperparameters.
        X: Some of its rows.
    """

    def factor(columns: Tensor, scales: Tensor) -> Tensor:
        variances = columns.var(0, unbiased=False) if len(columns) > 1 else torch.zeros_like(columns[0])
        return (2 * (variances / scales.square()).sum(-1, keepdim=True)).sqrt().clamp_min(1.0)

    return _with_lengthscales(modules, X, factor)


def with_longer_lengthscales(modules: Any, X: Float[Tensor, "c d"], times: float) -> dict[str, Tensor]:
    """Return hyperparameters with lengthscales so many times as long, within their bounds.

    Args:
        modules: A model of BoTorch, with its present hyperparameters.
        X: Some of its rows.
        times: The factor. Lengthscales that are not learned stay.
    """
    found = _with_lengthscales(modules, X, lambda _, scales: torch.full_like(scales, times))
    return state_of(modules) if found is None else found


def with_short_lengthscales(modules: Any, X: Float[Tensor, "c d"]) -> dict[str, Tensor] | None:
    """Return hyperparameters whose kernels relate only rows that are near each other; None if that is not new.

    Where values go up and down many times, all rows look independent at longer ones, and the evidence is flat. In many
    dimensions near rows are repetitions rather than neighbours.

    Args:
        modules: A model of BoTorch, with its present hyperparameters.
        X: Some of its rows.
    """

    def factor(columns: Tensor, scales: Tensor) -> Tensor:
        if columns.shape[-1] > FEW_INPUTS:
            return torch.ones(()).to(X)
        scaled = columns / scales.reshape(-1, scales.shape[-1]).amin(0)
        distances = torch.cdist(scaled, scaled)
        nearest = torch.where(distances > 0, distances, math.inf).amin(-1)
        nearest = nearest[nearest.isfinite()]
        short = SPACINGS * nearest.median() if len(nearest) else torch.ones(()).to(X)
        return torch.where(short < SHORT, short, 1.0)

    return _with_lengthscales(modules, X, factor)


def explain_by_noise(modules: Any, Y: Float[Tensor, "n m"]) -> None:
    """Make all variance of the targets noise, in place.

    Args:
        modules: A model with learned noise.
        Y: Its targets.
    """
    likelihood, variances = modules.likelihood, Y.var(0).to(modules.likelihood.noise)
    constraint = likelihood.noise_covar.raw_noise_constraint
    likelihood.noise = within(constraint, variances.view_as(likelihood.noise))


def relates_no_rows(modules: Any, X: Float[Tensor, "n d"]) -> bool:
    """Return whether a kernel is so short that it is noise: shorter than BoTorch's bound, and than distances of rows.

    Args:
        modules: A model, with its present hyperparameters.
        X: Its rows. With few rows, or many inputs, none counts as noise: far rows may be related later.
    """
    kernel, d = own_lengthscales(modules.covar_module), X.shape[-1]
    if kernel is None or d > FEW_INPUTS or len(X) < FEWEST:
        return False
    scales = kernel.lengthscale.detach().reshape(-1, kernel.lengthscale.shape[-1]).amin(0)
    distances = torch.cdist(X / scales, X / scales)
    distances.fill_diagonal_(math.inf)
    return bool((scales < BOTORCHS * (X.amax(0) - X.amin(0))).any() and distances.amin(-1).median() > FAR)


def own_lengthscales(kernel: Kernel) -> Kernel | None:
    """Return the first kernel of all inputs if its lengthscales are learned."""
    for part in kernel.modules():
        if isinstance(part, Kernel) and part.has_lengthscale and part.active_dims is None:
            return part if part.raw_lengthscale.requires_grad else None
    return None


def _with_lengthscales(
    modules: Any, X: Float[Tensor, "c d"], factor: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor] | None:
    """Return hyperparameters with other lengthscales; None if they are the present ones.

    Args:
        modules: A model of BoTorch.
        X: Some of its rows.
        factor: Function from the inputs of a kernel `c × k` and its lengthscales `*m × 1 × k`, to factors of these.
    """
    before, changed = state_of(modules), False
    for kernel in modules.covar_module.modules():
        if not isinstance(kernel, Kernel) or not kernel.has_lengthscale or not kernel.raw_lengthscale.requires_grad:
            continue
        columns = X if kernel.active_dims is None else X[:, kernel.active_dims]
        scales = kernel.lengthscale.detach()
        if scales.shape[-1] not in (1, columns.shape[-1]):
            continue
        factors = factor(columns, scales)
        if bool((factors != 1).any()):
            kernel.lengthscale = within(kernel.raw_lengthscale_constraint, scales * factors)
            changed = True
    found = state_of(modules)
    modules.load_state_dict(before)
    return found if changed else None


def state_of(modules: Any) -> dict[str, Tensor]:
    """Return a copy of all hyperparameters of a model."""
    return {name: value.clone() for name, value in modules.state_dict().items()}


def within(constraint: Interval, values: Tensor) -> Tensor:
    """Return values inside the bounds of a constraint."""
    lower, upper = (bound.to(values) for bound in (constraint.lower_bound, constraint.upper_bound))
    inner = torch.where(upper.isfinite(), upper - 1e-6 * upper.abs(), upper)
    return values.maximum(lower + 1e-6 * lower.abs()).minimum(inner)
