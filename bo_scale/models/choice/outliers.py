"""Decide whether Student-t noise explains the outliers of exact GPs with Gaussian noise."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bo_scale.gp.student_t import log_density
from bo_scale.models.choice.heavy_tails import (
    IN_TRIAL,
    OUTRIGHT,
    SURPASSING,
    TRIAL_ROWS,
    are_values,
    explains_outliers,
    gross_rows,
    have_heavy_tails,
    is_far_likelier,
    is_surely_smaller,
    may_be_chosen,
    may_be_chosen_outright,
    scaled_nearby,
    surpasses,
)
from bo_scale.models.choice.kernels import (
    FAILURES,
    Data,
    Fit,
    KernelFits,
    best_of,
    failed_fit,
    first_start,
    loose,
    parameters_of,
    preference,
    scored,
    some_rows,
    while_preferred,
)
from bo_scale.models.choice.logarithms import gain_of_logarithms
from bo_scale.models.choice.places import left_out_places
from bo_scale.models.choice.plan import Plan, on_scales
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.fitting.student_t import fit_student_t
from bo_scale.models.refit import with_hyperparameters


def to_the_front(rows: Tensor, order: Tensor) -> Tensor:
    """Return an order in which the rows at some places come first."""
    others = torch.ones(len(order), dtype=torch.bool, device=order.device)
    others[rows] = False
    return torch.cat([order[rows], order[others]])


def with_student_t(
    fit: KernelFits, own: list[Plan], shared: list[Plan], best: Fit, asked: bool, skewed: bool = False
) -> tuple[list[Fit], Fit]:
    """Compare exact GPs with Student-t noise, where it may explain outliers or is asked for.

    Args:
        fit: Fits plans with Gaussian noise.
        own: Plans with a lengthscale for each input.
        shared: The same with a shared one; empty if these are not compared.
        best: The best fit with Gaussian noise.
        asked: Whether the noise must be Student-t noise.
        skewed: Whether inputs may be on logarithmic scales, which outliers may have hidden from Gaussian noise: where
            Student-t noise is chosen, the other scales are compared too.

    Returns:
        The fits with Student-t noise, none if they are of no use, and the best fit of all that may be chosen.
    """
    gross = gross_rows(best.errors, len(best.errors))
    scales, scaled = best.score.plan.log_scales, best if asked else scaled_nearby(best)
    likely = not asked and have_heavy_tails(scaled)
    tried = trial(fit.data, fit.made, gross, scales) if likely else None
    if not asked and tried is None:
        return [], best
    heavy = StudentTFits(fit.data, fit)
    if tried is not None and len(fit.data[0]) <= TRIAL_ROWS:  # of all rows
        heavy = replace(tried.fits, gaussian=fit)
    fits = [heavy(plan) for plan in on_scales(own, scales)]
    if shared:
        fits += while_preferred(heavy, on_scales(shared, scales), best_of(fits, 0.0), 0.0)
    allowed = [] if tried is None else _allowed(fits, fit, scaled, tried)
    chosen = best_of(fits if asked else [best, *allowed], 0.0)  # a rough kernel takes outliers for values
    if skewed and chosen.score.plan.student_t:
        fits += while_preferred(heavy, on_scales(own, not scales), chosen, 0.0)
        chosen = best_of([chosen, *(each for each in fits if each.score.plan.log_scales != scales)], 0.0)
    return fits, chosen


def _allowed(fits: list[Fit], fit: KernelFits, best: Fit, tried: "Trial") -> list[Fit]:
    """Return the fits with Student-t noise that may be chosen; those that are far likelier only if there are no others.

    Args:
        fits: The fits.
        fit: Fits plans with Gaussian noise.
        best: The best of them, `scaled_nearby`.
        tried: What the trial said.
    """
    likelier = [each for each in fits if surpasses(each, best, SURPASSING)]
    pairs = [(each, fit(replace(each.score.plan, student_t=False))) for each in likelier]
    found = [each for each, gaussian in pairs if may_be_chosen(each, gaussian, best, tried.explained)]
    outright = likelier if tried.outright else []
    return found or [each for each in outright if may_be_chosen_outright(each, best)]


def trial(
    data: Data, fitted: Mapping[Plan, Fit], gross: Tensor | None = None, log_scales: bool = False
) -> "Trial | None":
    """Try Student-t noise on some rows, with a smooth kernel: a rough one takes outliers for values.

    Args:
        data: The rows.
        fitted: Fits to all of them.
        gross: Rows that must be among those on which it is tried, if there are more than `TRIAL_ROWS`.
        log_scales: Whether skewed inputs are on logarithmic scales.

    Returns:
        What it says; None if it does not explain outliers, nor surely lowers errors where there are further rows, nor
        makes few rows far likelier, if Gaussian noise that differs from place to place explains as much, or if these
        would be values of counts or classes.
    """
    smooth = Plan("exact", "matern52", log_scales=log_scales)
    rows = torch.arange(len(data[0]), device=data[0].device)
    if gross is not None and len(rows) > TRIAL_ROWS:
        rows = to_the_front(gross, rows)
    some = some_rows(data, rows[:TRIAL_ROWS])
    if are_values(some[1]):
        return None
    start = fitted[smooth].score.hyperparameters if smooth in fitted else None
    gaussian = KernelFits(some, start=start)(smooth)  # again, if it has all rows: a fit that goes on is closer
    if gaussian.score.failure:
        return None
    fits = StudentTFits(some, lambda _: gaussian)
    heavy = fits(smooth)
    likely = preference(heavy.score, 0.0) > preference(gaussian.score, 0.0)
    scaled = scaled_nearby(gaussian)
    if not likely or not surpasses(heavy, scaled, IN_TRIAL * len(some[0])):
        return None
    explained, many = explains_outliers(heavy, gaussian), len(data[0]) > TRIAL_ROWS
    outright = not many and is_far_likelier(heavy, scaled) and gain_of_logarithms(some, heavy, smooth) < OUTRIGHT
    perhaps = many and is_surely_smaller(heavy, gaussian)  # more rows will tell
    return Trial(fits, explained, outright) if explained or outright or perhaps else None


@dataclass
class StudentTFits:
    """Exact GPs with Student-t noise by several plans, fitted to the same rows. O(n³) each.

    Later ones start from the weights of the first, and from hyperparameters as `first_start` says. In place of the
    evidence stands the variational bound.

    Attributes:
        data: The rows.
        gaussian: Fits a plan with Gaussian noise to them.
        made: The fits, by their plans. None is made twice.
        D: Relative noise variances of rows in the first.
    """

    data: Data
    gaussian: Callable[[Plan], Fit]
    made: dict[Plan, Fit] = field(default_factory=dict)
    D: Tensor | None = None

    def __call__(self, plan: Plan) -> Fit:
        """Return the fit of a plan, whose noise is replaced."""
        heavy = replace(plan, student_t=True)
        if heavy not in self.made:
            try:
                self.made[heavy] = self._fit(heavy, self.gaussian(plan))
            except FAILURES as error:
                self.made[heavy] = failed_fit(heavy, error)
        return self.made[heavy]

    def _fit(self, heavy: Plan, gaussian: Fit) -> Fit:
        started, n = time.perf_counter(), len(self.data[0])
        start = None if gaussian.score.failure else gaussian.score.hyperparameters
        exact, first = ExactGP.of(heavy.build(*self.data)), first_start(heavy, self.made, self.data[0])
        if first is not None:
            with_hyperparameters(exact.modules, first)
        exact, degrees, bound = fit_student_t(exact, loose(n), self.D, start)
        self.D = exact.D if self.D is None else self.D
        left, noise, found = left_out_places(exact), exact.noise_scale()[0].item(), parameters_of(exact)
        density = log_density(left.errors[:, 0], left.of_function[:, 0], noise, degrees[0]).mean().item()
        errors, of_function = exact.left_out_function()
        own = log_density(errors[:, 0], of_function[:, 0], noise, degrees[0]).mean().item()
        variances = left.of_function + noise * exact.squared_residuals().mean(0)
        score = scored(heavy, n, left.errors, variances, time.perf_counter() - started)
        score = replace(score, log_density=density + left.dependence, evidence=bound, hyperparameters=found)
        return Fit(score, errors, density=own)


@dataclass(frozen=True)
class Trial:
    """A trial of Student-t noise on some rows.

    Attributes:
        fits: Fits with Student-t noise to these rows, from which others go on.
        explained: Whether it explains outliers.
        outright: Whether rows are few and far likelier with it, and no logarithms of the targets are as likely.
    """

    fits: StudentTFits
    explained: bool
    outright: bool
