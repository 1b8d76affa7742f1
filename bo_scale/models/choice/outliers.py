"""Decide whether Student-t noise explains the outliers of exact GPs with Gaussian noise."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bo_scale.gp.student_t import log_density
from bo_scale.models.choice.kernels import (
    FAILURES,
    Data,
    Fit,
    KernelFits,
    failed_fit,
    loose,
    parameters_of,
    preference,
    scored,
    some_rows,
)
from bo_scale.models.choice.plan import Plan
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.fitting.student_t import GAUSSIAN_MAD, fit_student_t

FEWER_ERRORS, FEW_ROWS = (1 / 3, 0.45), 100
"""Factors by which Student-t noise lowers the median absolute error where there are outliers, for fewer rows than so
many and for more. With 50 rows of data sets .45 was too lenient. With 120 rows and Cauchy noise 1/3 missed a third."""
HEAVIER = 1.5
"""Root mean square of errors, relative to that of a Gaussian of equal median, above which Student-t noise is tried."""
TRIAL_ROWS = 256
"""Maximum number of rows on which Student-t noise is tried first."""


def have_heavy_tails(errors: Tensor) -> bool:
    """Return whether the root mean square of errors is far above that of a Gaussian with the same median of |errors|.

    It is 1.5 times as large for three degrees of freedom, 1.2 times for five, and more with gross outliers.
    """
    gaussian = GAUSSIAN_MAD * errors.abs().median()
    return bool(errors.square().mean().sqrt() > HEAVIER * gaussian)


def has_outliers(data: Data, fitted: Mapping[Plan, Fit]) -> bool:
    """Return whether Student-t noise explains outliers among some rows, with a smooth kernel.

    A rough kernel takes outliers for values.
    """
    smooth = Plan("exact", "matern52")
    trial = some_rows(data, torch.arange(min(len(data[0]), TRIAL_ROWS), device=data[0].device))
    start = fitted[smooth].score.hyperparameters if smooth in fitted else None
    gaussian = KernelFits(trial, start=start)(smooth)  # again, if it has all rows: a fit that goes on is closer
    if gaussian.score.failure:
        return False
    (heavy,) = student_t_fits([smooth], trial, {smooth: gaussian})
    return preference(heavy.score, 0.0) > preference(gaussian.score, 0.0) and explains_outliers(heavy, gaussian)


def student_t_fits(plans: list[Plan], data: Data, gaussian: Mapping[Plan, Fit]) -> Iterator[Fit]:
    """Fit exact GPs with Student-t noise; later ones start from the weights of the first. O(n³) each.

    In place of their evidence stands the variational bound.

    Args:
        plans: Plans, whose noise is replaced.
        data: The rows.
        gaussian: Fits of the same plans with Gaussian noise.
    """
    D, given = None, loose(len(data[0]))
    for plan in plans:
        started, heavy = time.perf_counter(), replace(plan, student_t=True)
        start = None if gaussian[plan].score.failure else gaussian[plan].score.hyperparameters
        try:
            exact, degrees, bound = fit_student_t(ExactGP.of(heavy.build(*data)), given, D, start)
            D = exact.D if D is None else D
            errors, variances = exact.left_out()
            noise = exact.noise_scale()[0].item()
            of_function = (variances - noise * exact.D).clamp_min(0.0)
            density = log_density(errors[:, 0], of_function[:, 0], noise, degrees[0]).mean().item()
            variances = of_function + noise * exact.squared_residuals().mean(0)
            score = scored(heavy, len(data[0]), errors, variances, time.perf_counter() - started)
            found = parameters_of(exact)
            yield Fit(replace(score, log_density=density, evidence=bound, hyperparameters=found), errors)
        except FAILURES as error:
            yield failed_fit(heavy, error)


def explains_outliers(heavy: Fit, gaussian: Fit) -> bool:
    """Return whether Student-t noise lowers errors, and not only their density.

    Noise that differs from place to place, or values that only few rows foretell, have a higher density with Student-t
    noise, which ignores those rows: on five of ten data sets it predicted worse. With gross outliers most other errors
    become much smaller, at about equal mean squared error, which the outliers dominate: with few rows it may be higher
    by a part of its standard error, with hundreds it is lower.
    """
    difference = differs(heavy, gaussian)
    if not math.isfinite(difference):
        return False
    at_most = max(0.0, 1 - len(heavy.errors) / TRIAL_ROWS)
    fewer = FEWER_ERRORS[len(heavy.errors) >= FEW_ROWS]
    return difference < -2 or (difference < at_most and _median_ratio(heavy, gaussian) < fewer)


def _median_ratio(fit: Fit, other: Fit) -> float:
    return (fit.errors.abs().median() / other.errors.abs().median().clamp_min(1e-300)).item()


def differs(fit: Fit, other: Fit) -> float:
    """Return the difference of mean squared errors in units of its standard error; infinite if a fit failed."""
    if fit.score.failure or other.score.failure:
        return math.inf
    difference = (fit.errors.square() - other.errors.square()).flatten()
    return (difference.mean() / (difference.std() / len(difference) ** 0.5).clamp_min(1e-300)).item()
