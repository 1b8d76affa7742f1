"""Changes that a fit takes for noise: errors of rows near each other that go together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from bo_scale.models.fitting.starts import FEW_INPUTS, own_lengthscales, within

CORRELATED = 0.2
"""Correlation of errors of neighbours above which they go together, if it is above three of its standard deviations
too."""
NEIGHBOURS = 6
"""Errors in all inputs are compared with those of the first, second, fourth, … neighbour, so many in all."""

CLEAR = 0.5
"""Correlation beyond doubt, if it is above four of its standard deviations too."""


@dataclass(frozen=True)
class Missed:
    """A change that a fit takes for noise.

    Attributes:
        inputs: The inputs along which errors of neighbours go together.
        correlation: The correlation of errors of nearest neighbours.
        lengths: Distance in each input over which errors still go together.
        clear: Whether the correlation is high, and beyond chance.
        mean_square: Mean square of the errors.
    """

    inputs: tuple[int, ...]
    correlation: float
    lengths: Float[Tensor, " d"]
    clear: bool
    mean_square: float


def missed_changes(X: Float[Tensor, "n d"], errors: Float[Tensor, "n m"]) -> list[Missed | None]:
    """Return what each output misses; see `missed_change`."""
    return [missed_change(X, e) for e in errors.unbind(-1)]


def missed_change(X: Float[Tensor, "n d"], errors: Float[Tensor, " n"]) -> Missed | None:
    """Return the change that errors show most clearly, along one input or, up to four, along all; None without any.

    Neighbours along an input are rows next to each other when they are sorted by it. The correlation of their errors,
    Σ e_i e_j/Σ e_i², is 0 with a standard deviation of 1/√n if errors are independent. Errors go together up to the
    neighbour at which the correlation is still more than half as high. O(n d log n), and O(n²) for all inputs.

    Args:
        X: Inputs of the rows.
        errors: Their errors, best those of predictions from other rows.
    """
    n, d = X.shape
    e, total = _centred(errors)
    mixed = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(X.device)  # where inputs are equal
    found = list[Missed]()
    for i in range(d):
        order = mixed[X[mixed, i].argsort()]
        along, sorted_errors = X[order, i], e[order]
        if not bool(along[0] < along[-1]):
            continue
        lags = [2**k for k in range(int(math.log2(max(4, n) / 4)) + 1)]
        correlations = torch.stack([(sorted_errors[lag:] * sorted_errors[:-lag]).sum() / total for lag in lags])
        lag = lags[_last_above_half(correlations)]
        gaps = along[lag:] - along[:-lag]
        lengths = torch.full_like(X[0], math.inf)
        lengths[i] = gaps[gaps > 0].median()
        found.append(_missed((i,), correlations[0].item(), lengths, errors))
    if 1 < d <= FEW_INPUTS and n > 2**NEIGHBOURS:
        found.append(_in_all_inputs(X, errors))
    best = max(found, key=lambda each: each.correlation, default=None)
    return best if best is not None and best.correlation > max(CORRELATED, 3 / math.sqrt(n)) else None


def _in_all_inputs(X: Float[Tensor, "n d"], errors: Float[Tensor, " n"]) -> Missed:
    """Return what errors of neighbours in units of the inputs' ranges show."""
    e, total = _centred(errors)
    ranges = X.amax(0) - X.amin(0)
    units = torch.where(ranges > 0, ranges, 1.0)
    distances = torch.cdist(X / units, X / units)
    distances.fill_diagonal_(math.inf)
    near, which = distances.topk(2 ** (NEIGHBOURS - 1), largest=False)
    lags = [2**k - 1 for k in range(NEIGHBOURS)]
    correlations = torch.stack([(e * e[which[:, lag]]).sum() / total for lag in lags])
    length = near[:, lags[_last_above_half(correlations)]].median()
    return _missed(tuple(range(X.shape[-1])), correlations[0].item(), length * units, errors)


def _centred(errors: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, ""]]:
    """Return errors less their mean, and the sum of their squares."""
    e = errors - errors.mean()
    return e, e.square().sum().clamp_min(1e-300)


def _missed(
    inputs: tuple[int, ...], correlation: float, lengths: Float[Tensor, " d"], errors: Float[Tensor, " n"]
) -> Missed:
    clear = correlation > max(CLEAR, 4 / math.sqrt(len(errors)))
    return Missed(inputs, correlation, lengths, clear, errors.square().mean().item())


def _last_above_half(correlations: Float[Tensor, " k"]) -> int:
    """Return the index of the last correlation, from the first on, that is more than half of the first."""
    return max(1, int((correlations > 0.5 * correlations[0]).long().cumprod(0).sum())) - 1


@torch.no_grad()
def shorten(kernel: Kernel, changes: Sequence[Missed | None]) -> bool:
    """Shorten lengthscales of inputs along which errors go together, in place. Return whether that is possible.

    Args:
        kernel: The kernel. Nothing is done if it has no learned lengthscale for each input.
        changes: What each output misses.
    """
    found, missed = own_lengthscales(kernel), [change for change in changes if change is not None]
    if not missed or found is None or found.lengthscale.shape[-1] != len(missed[0].lengths):
        return False
    lengthscale = found.lengthscale.clone()
    for j, change in enumerate(changes):
        if change is not None:
            of_output = lengthscale[j] if lengthscale.shape[:-2] == (len(changes),) else lengthscale
            of_output.copy_(of_output.minimum(change.lengths.to(lengthscale)))
    found.lengthscale = within(found.raw_lengthscale_constraint, lengthscale)
    return True
