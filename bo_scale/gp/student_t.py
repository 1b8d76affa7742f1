"""Student-t noise as a mixture of Gaussians whose precisions vary from row to row, by variational inference.

y_i = f(x_i) + ε_i,   ε_i | w_i ~ N(0, σ²/w_i),   w_i ~ Gamma(ν/2, ν/2),

so ε_i is σ times a Student-t variable with ν degrees of freedom. With q(f)Π q(w_i), the best q(f) is the posterior of
a GP with noise variances σ²/E[w_i], and q(w_i) is Gamma((ν + 1)/2, (ν + s_i)/2) with s_i = E[(y_i − f(x_i))²]/σ².

M. E. Tipping, N. D. Lawrence. Variational inference for Student-t models. Neurocomputing 69, 2005: section 3.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import StudentT

DEGREES = (3.0, 5.0, 10.0, 30.0)
"""Degrees of freedom ν that are compared, from heavy tails to nearly Gaussian ones."""
FIRST, STEP, NODES = -60.0, 0.1, 650
"""First node, distance and number of nodes of the integral over log w."""
ITERATIONS = 100
"""Number of iterations for the weight of a single row."""
SCALE_ITERATIONS = 30
"""Number of iterations for a scale."""


def expected_precision(squares: Float[Tensor, "*n"], degrees: float | Tensor) -> Float[Tensor, "*n"]:
    """Return E[w_i] = (ν + 1)/(ν + s_i).

    Args:
        squares: s_i, expected squared residuals relative to σ².
        degrees: ν.
    """
    return (degrees + 1) / (degrees + squares)


def squares_of(variances: Float[Tensor, "*n"], degrees: float | Tensor) -> Float[Tensor, "*n"]:
    """Return s_i from relative noise variances 1/E[w_i]: the inverse of `expected_precision`."""
    return (degrees + 1) * variances - degrees


def bound_gain(squares: Float[Tensor, " n"], degrees: float) -> Float[Tensor, " n"]:
    """Return what each row adds to log N(y; 0, K + σ² diag(1/E[w])) to make the variational bound of the log evidence.

    ½(E[log w_i] − log E[w_i]) − KL(q(w_i) ‖ p(w_i)); at most 0, and 0 for ν → ∞.
    """
    a, prior = torch.as_tensor((degrees + 1) / 2, dtype=torch.float64), degrees / 2
    b = (degrees + squares.double()) / 2
    mean_log = torch.digamma(a) - b.log()
    divergence = (a - prior) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(prior)
    divergence = divergence + prior * (b.log() - math.log(prior)) + a * (prior - b) / b
    return 0.5 * (mean_log - (a / b).log()) - divergence


def bound_slope(squares: Float[Tensor, "*n"], degrees: float | Tensor) -> Float[Tensor, "*n"]:
    """Return the derivative of `bound_gain` in s_i: ½ν(1 − s_i)/(ν + s_i)²."""
    return 0.5 * degrees * (1 - squares) / (degrees + squares).square()


def best_degrees(squares: Float[Tensor, " n"]) -> float:
    """Return the degrees of freedom for which the bound is largest, among `DEGREES`, with q(f) as it is.

    With the best q(w) for each ν the bound depends on ν by Σ log t_ν(√s_i), the log density of a Student-t variable.
    """
    return max(DEGREES, key=lambda degrees: StudentT(degrees).log_prob(squares.double().sqrt()).sum().item())


def scale_of(values: Float[Tensor, " n"], degrees: float) -> Float[Tensor, ""]:
    """Return the scale σ by which values, about 0, are likeliest as σ times a Student-t variable.

    There σ² = Σ w_i x_i²/n, with the weights w_i = (ν + 1)/(ν + x_i²/σ²); it is updated, from the mean square, until it
    stays. It is 0 if all values are.

    Args:
        values: x_i.
        degrees: ν.
    """
    squares = values.square()
    total = squares.mean()
    for _ in range(SCALE_ITERATIONS if total > 0 else 0):
        total = (expected_precision(squares / total, degrees) * squares).mean()
    return total.sqrt()


def weights_of_new_rows(
    errors: Float[Tensor, " n"], variances: Float[Tensor, " n"], noise: float, degrees: float
) -> Float[Tensor, " n"]:
    """Return E[w] of rows that f has not seen, each on its own: the fixed point of its q(f) and q(w).

    Args:
        errors: y − E[f].
        variances: Variances of f before the row is seen.
        noise: σ².
        degrees: ν.
    """
    w = torch.ones_like(errors)
    for _ in range(ITERATIONS):
        left = (noise / w) / (variances + noise / w)  # the share of the error that remains once the row is seen
        w = expected_precision(((left * errors).square() + left * variances) / noise, degrees)
    return w


def log_density(
    errors: Float[Tensor, " n"], variances: Float[Tensor, " n"], noise: float, degrees: float
) -> Float[Tensor, " n"]:
    """Return the log density of errors whose f is Gaussian and whose noise is Student-t: an integral over log w.

    Args:
        errors: y − E[f].
        variances: Variances of f.
        noise: σ².
        degrees: ν.
    """
    logs = FIRST + STEP * torch.arange(NODES, dtype=torch.float64, device=errors.device)
    prior = math.log(degrees / 2) * degrees / 2 - math.lgamma(degrees / 2) + degrees / 2 * (logs - logs.exp())
    total = variances.unsqueeze(-1) + noise * (-logs).exp()
    given = -0.5 * (errors.unsqueeze(-1).square() / total + (2 * math.pi * total).log())
    return (prior + given).logsumexp(-1) + math.log(STEP)
