"""Places: rows with the same inputs, which are left out together where predictions of other inputs are judged.

A row whose twin is seen is predicted by it, whatever the kernel is. Replicates and duplicated rows would hide how well
a kernel predicts anything else.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Normal

from bo_scale.models.fitting.exact import ExactGP


@dataclass(frozen=True)
class LeftOut:
    """Predictions of rows from those at other places.

    Attributes:
        errors: Errors of the observations.
        of_function: Variances of f.
        variances: Variances of the observations.
        dependence: What the mean log density of all rows has beyond that of rows on their own, since rows at a place
            have errors in common.
    """

    errors: Float[Tensor, "n m"]
    of_function: Float[Tensor, "n m"]
    variances: Float[Tensor, "n m"]
    dependence: float


def places_of(X: Float[Tensor, "n d"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " p"]]:
    """Return the place of each row, and the first row at each place. O(n d log n)."""
    found, place = X.unique(dim=0, return_inverse=True)
    rows = torch.arange(len(X), device=X.device)
    first = torch.full((len(found),), len(X), device=X.device).scatter_reduce(0, place, rows, "amin")
    return place, first


def left_out_places(exact: ExactGP) -> LeftOut:
    """Return predictions of each row from those at other places. O(n d log n + p³) for p places.

    The rows y_i of a place, with noise variances V_i, say as much of f as their mean ȳ = V Σ y_i/V_i with the noise
    variance V = 1/Σ(1/V_i), whose prediction from other means has an error e and a variance s² of f. Their density is
    Π N(y_i; ȳ, V_i) N(e; 0, s² + V)/N(0; 0, V).
    """
    place, first = places_of(exact.X)
    if len(first) == len(exact.X):
        errors, variances = exact.left_out()
        return LeftOut(errors, exact.left_out_function()[1], variances, 0.0)
    none = torch.zeros_like(exact.Y[first])
    D = 1 / none.index_add(0, place, 1 / exact.D)
    means = D * none.index_add(0, place, exact.Y / exact.D)
    merged = replace(exact, X=exact.X[first], Y=means, D=D)
    e, of_means = merged.left_out_function()
    inside, noise, own = exact.Y - means[place], exact.noise_scale() * exact.D, exact.noise_scale() * D
    errors, of_function = inside + e[place], of_means[place]
    variances = of_function + noise
    joint = _log_density(inside, noise) + _log_density(e, of_means + own) - _log_density(none, own)
    return LeftOut(errors, of_function, variances, (joint - _log_density(errors, variances)) / len(errors))


def _log_density(values: Tensor, variances: Tensor) -> float:
    """Return the sum of the log densities of independent values about 0."""
    return Normal(0.0, variances.sqrt()).log_prob(values).sum().item()
