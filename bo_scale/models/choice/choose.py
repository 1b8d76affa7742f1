"""Choose the model that some data ask for, by predictions of rows that candidates have not seen."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import Model
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.gp.student_t import log_density
from bo_scale.models.choice.caution import cautious_noise
from bo_scale.models.choice.kernels import (
    FAILURES,
    Data,
    Fit,
    KernelFits,
    best_of,
    loose,
    not_clearly_worse,
    scored,
    some_rows,
    while_preferred,
)
from bo_scale.models.choice.outliers import TRIAL_ROWS, gross_rows, to_the_front, trial, with_student_t
from bo_scale.models.choice.plan import EXACT_ROWS, KERNELS, Plan
from bo_scale.models.choice.report import ChoiceReport, Score
from bo_scale.models.errors import FitError
from bo_scale.models.fitting.exact import ANY_SCALING, ExactGP
from bo_scale.models.fitting.student_t import outliers_dwarf_others, set_scale
from bo_scale.models.refit import with_hyperparameters
from bo_scale.models.shell.any_units import IndependentModels
from bo_scale.models.shell.door import require_device, require_finite, require_given, require_tensors
from bo_scale.models.shell.model import ScalableModel
from bo_scale.threads import scipy_on_one_thread, threads_for
from bo_scale.training.time_limit import time_limit

KERNEL_ROWS = 500
"""Maximum number of rows on which kernels are compared."""
OTHER_ROWS = 2000
"""Maximum number of further rows, predicted from those, by which errors of kernels are compared too."""
CAUTION_ROWS, CAUTION_ROWS_STUDENT_T = 2000, 500
"""Maximum numbers of rows that are left out, one by one, for a cautious noise. With Student-t noise rows have other
weights for each variance that is looked at."""
FEWEST_ROWS = 8
"""Number of rows below which nothing is compared."""
NEAREST = 10
"""Number of rows around each gross error that are compared with it."""
ROUGHER = 40.0
"""Weight of the preference for rough kernels among few rows, in nats; see `preference`."""
PILOT_ROWS, UNSEEN_ROWS = 5000, 500
"""Maximum numbers of rows to which candidates are fitted, and of rows that they predict."""
MUCH_WORSE = 1.1
"""Error with a shared lengthscale, relative to the best with one for each input, up to which it may be chosen."""
GRID_INPUTS = 3
"""Maximum number of inputs for a grid."""
FEW_POINTS, MORE_POINTS = 256, 1500
"""Numbers of points of a smaller and a larger SoftKI than the default."""
BEHIND = 0.05
"""Largest lack of log density, in nats, with few points at which SoftKI is tried with more. On 19 splits of data sets
512 in place of 256 had at most .02 more where SoftKI was not far behind. For most points it must lead."""
RISE = 0.01
"""Least gain of log density, in nats, from 256 to 512 points with which SoftKI is tried with more. With it, on eight of
13 data sets, 1500 points gained .01 to .10 on six. Without it they gained .005 at most but for .08 on one, where an
exact GP was far ahead."""
LEAST_SECONDS = 1.0
"""Time for the fit of a candidate that is tried, however little is left."""
GAIN = 0.3
"""Largest lack of log density, in nats, beside a model that drops rows, at which the next best is tried with all. With
8,500 to 250,000 rows in place of 5000, SoftKI and GRIEF had at most .13 more on 11 data sets."""
COARSE = 0.1
"""Least gain of an iteration, in nats of all rows, with which a fit for comparison of SoftKI or GRIEF goes on. On four
data sets it took half of the time, and scores changed by .02 at most, or .13 where there is no noise."""
STARTED = ("exact", "softki", "grief")
"""Families whose fits begin with an exact GP of some rows."""


def choose(
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None = None,
    *,
    student_t: bool | None = None,
    seconds: float | int = 60,
    seed: int = 0,
) -> Model:
    """Choose, fit and return the model that the data ask for. Its `choice` says how it was chosen.

    Up to 5000 rows it is an exact GP, a `CaGP` with an action for each row. Its kernel is the best of four by the log
    evidence and the log density of each row given the others, on at most 500 rows, of those whose errors for these rows
    and at most 2000 others are not clearly larger than the smallest. Up to 500 rows its inputs may share a
    lengthscale, in units of their ranges. Its noise variance is cautious, since few rows can be explained without
    noise: it lies between the fitted one and the mean square of errors for rows left out, with 50 rows at two sevenths
    of the way, with n at 20/(n + 20), but nearer to the fitted one where rows left out would lose more log density than
    half a nat each, or 100 in all, and higher where rows left out lie farther off than it says. With more rows,
    candidates are fitted to at most 5000 rows and predict 500 others; the one with the highest log density is fitted to
    all rows. If that is the exact GP of 5000 rows, and there are over 10,000 others, the next best model, which can use
    all rows, has to lose to it with all of them, or by .3 nats with 5000.

    Where a few rows have most of the sum of squared errors, and the compared rows lack them, kernels are compared again
    on rows that have up to three of them, with Student-t noise too.

    An exact GP learns noise variances down to 1e-6 of the targets' variance, for simulators without noise, and
    lengthscales down to 1e-4 of an input's range; BoTorch's least are 1e-4 and .025. The noise may have heavy tails, by
    the same scores: the `suspects` of a model with `StudentTNoise` are the outliers. Inputs may have any units. Targets
    are standardised within the model.

    Args:
        X: Inputs `n × d`, in raw units.
        Y: Observations `n × m`. With several outputs each has a model of its own, in a ModelListGP.
        Yvar: Known noise variances `n × m`; None to learn the noise.
        student_t: Whether the noise has heavy tails; None to choose by evidence, log density and errors.
        seconds: Time for the comparison of families, for each output. The fit of a candidate ends with it, and no
            further one is tried. The last fit is not counted.
        seed: Seed for the choice of rows.

    Returns:
        A fitted model in eval mode. `print(model.choice)` shows the scores of all candidates.

    Raises:
        InvalidDataError: for NaN or inf, shapes that do not fit, or no rows.
        InvalidArgumentError: if `seconds` is not positive, or for Student-t noise of known variance.
        FitError: if no candidate can be fitted.

    Examples:
        >>> X = torch.rand(40, 2, dtype=torch.float64)
        >>> model = choose(X, X.sum(-1, keepdim=True))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
        >>> model.choice.plan.family
        'exact'
    """
    require_given(X=X, Y=Y)
    require_tensors(Yvar=Yvar)
    require_device(X.device, Y=Y, Yvar=Yvar)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or 0 in (*X.shape, *Y.shape):
        raise InvalidDataError(
            f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected n × d and n × m, each at least 1."
        )
    require_finite(X=X, Y=Y, Yvar=Yvar)
    if Yvar is not None and Yvar.shape != Y.shape:
        raise InvalidDataError(f"Yvar: shape {tuple(Yvar.shape)}, expected that of Y, {tuple(Y.shape)}.")
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise InvalidArgumentError(f"seconds={seconds!r}: must be a positive number.")
    if student_t not in (None, True, False):
        raise InvalidArgumentError(f"student_t={student_t!r}: must be True, False, or None for what the data say.")
    if student_t and Yvar is not None:
        raise InvalidArgumentError("student_t: noise of known variance Yvar is Gaussian. Leave one of the two out.")
    columns = range(Y.shape[-1])
    variances = [None if Yvar is None else Yvar[:, [j]] for j in columns]
    with threads_for(len(X)):
        models: list[Any] = [_chosen(X, Y[:, [j]], variances[j], student_t, float(seconds), seed) for j in columns]
    return models[0] if len(models) == 1 else IndependentModels(*models)


@scipy_on_one_thread()
def _chosen(X: Tensor, Y: Tensor, Yvar: Tensor | None, student_t: bool | None, seconds: float, seed: int) -> Model:
    started = time.perf_counter()
    choice = choose_plan(X, Y, Yvar, student_t=student_t, seconds=seconds, seed=seed)
    model = _fitted(choice.plan, X, Y, Yvar, _start(choice.plan, choice.scores))
    if choice.scores:
        _be_cautious(model, choice.plan, seed)
    model.choice = replace(choice, seconds=time.perf_counter() - started)
    return model


@torch.no_grad()
def _be_cautious(model: Any, plan: Plan, seed: int) -> None:
    """Raise the noise of a fitted exact GP to a cautious one, from errors of some rows left out. In place.

    Known noise and other families stay as they are.
    """
    if plan.family != "exact" or model.knows_noise:
        return
    X, Y, D = model._transformed_rows()
    rows = _order(len(X), seed)[: CAUTION_ROWS_STUDENT_T if plan.student_t else CAUTION_ROWS].to(X.device)
    with ANY_SCALING:
        exact = ExactGP.like(model, X[rows], Y[rows], D[rows])
    if plan.student_t:
        set_scale(model, cautious_noise(exact, len(X), model.likelihood.degrees_of_freedom.item()))
    else:
        model.likelihood.noise = cautious_noise(exact, len(X)).to(model.likelihood.noise)


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@scipy_on_one_thread()
def choose_plan(
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n 1"],
    Yvar: Float[Tensor, "n 1"] | None = None,
    *,
    student_t: bool | None = None,
    seconds: float = math.inf,
    seed: int = 0,
    kernels: tuple[str, ...] = tuple(KERNELS),
    rougher: float = ROUGHER,
    streams: bool = False,
) -> ChoiceReport:
    """Choose a plan for one output, without the last fit.

    Args:
        X: Inputs.
        Y: Observations.
        Yvar: Known noise variances; None to learn the noise.
        student_t: Whether the noise has heavy tails; None to choose.
        seconds: Time for the comparison of families. With inf the choice depends on the data and the seed alone.
        seed: Seed for the choice of rows.
        kernels: Names of the kernels to compare.
        rougher: Weight of the preference for rough kernels among few rows.
        streams: Whether the model must hold all rows, and more to come, as in a search. Every input then has a
            lengthscale of its own: few points near an optimum say little about inputs that do not matter there.
    """
    started, n = time.perf_counter(), len(X)
    order = _order(n, seed).to(X.device)
    if n < FEWEST_ROWS:
        few = "1 row is" if n == 1 else f"{n} rows are"
        reason = f"{few} too few to compare anything"
        return ChoiceReport(Plan("exact", "matern52", student_t=bool(student_t)), reason)
    comparison = _Comparison((X, Y, Yvar), kernels, rougher, streams)
    fit, best = comparison(order)
    heavy = list[Fit]()
    if student_t or (student_t is None and Yvar is None):
        fit, heavy, best = _with_heavy_tails(comparison, order, fit, best, asked=bool(student_t))
    fits = [*fit.made.values(), *heavy]
    scores, chosen = tuple(fit.score for fit in fits), best.score
    if chosen.failure:
        raise FitError(f"choose: no candidate could be fitted. {chosen}")
    if n <= EXACT_ROWS:
        reason = f"{n} rows are few enough for an exact GP; of the kernels it had the best evidence and log density"
        return ChoiceReport(chosen.plan, reason, scores)
    unseen, seen = order[:UNSEEN_ROWS], order[UNSEEN_ROWS:]
    candidates = _families(X.shape[-1], chosen.plan.kernel, streams)
    heavy_tails = chosen.plan.student_t  # a model that drops rows could not list outliers
    plans = [replace(plan, student_t=heavy_tails) for plan in candidates if plan.rows is None or not heavy_tails]
    families = _family_scores(plans, (X, Y, Yvar), seen, unseen, started + seconds, scores)
    winner = max(families, key=_density)
    if winner.failure:
        raise FitError(f"choose: no candidate could be fitted. {winner}")
    reason = f"of {len(families)} candidates it gave {len(unseen)} unseen rows the highest log density"
    return ChoiceReport(winner.plan, reason, (*scores, *families))


@dataclass(frozen=True)
class _Comparison:
    """A comparison of kernels of exact GPs with Gaussian noise.

    Attributes:
        data: All rows.
        kernels, rougher, streams: As for `choose_plan`.
    """

    data: Data
    kernels: tuple[str, ...]
    rougher: float
    streams: bool

    def __call__(self, order: Tensor) -> tuple[KernelFits, Fit]:
        """Compare kernels on the first rows of an order; return all fits and the best."""
        compared = some_rows(self.data, order[:KERNEL_ROWS])
        none = self.streams or len(order) <= KERNEL_ROWS
        others = None if none else some_rows(self.data, order[KERNEL_ROWS:][:OTHER_ROWS])
        fit = KernelFits(compared, others, cautious=not self.streams)
        fits = [fit(plan) for plan in self.own]
        best = best_of(fits, self.rougher)
        if self.shared:
            fits += while_preferred(fit, self.shared, best, self.rougher)
        as_good = [fit for fit in fits if fit.rmse <= MUCH_WORSE * best.rmse]
        if not self.streams:
            as_good = not_clearly_worse(as_good)
        return fit, best_of(as_good or fits, self.rougher)  # all, if none could be fitted with separate lengthscales

    @property
    def own(self) -> list[Plan]:
        """Plans with a lengthscale for each input."""
        return [Plan("exact", name) for name in self.kernels]

    @property
    def shared(self) -> list[Plan]:
        """Plans with a shared one; none if these are not compared."""
        X = self.data[0]
        shares = X.shape[-1] > 1 and len(X) <= KERNEL_ROWS and not self.streams
        return [replace(plan, shared_lengthscale=True) for plan in self.own] if shares else []

    def gross(self, fit: KernelFits, best: Fit, order: Tensor) -> Tensor:
        """Return the places in an order of rows with gross errors, if the compared ones lack any; see `gross_rows`.

        Of many rows it looks at some at random, and at those whose targets are the farthest from their median. O(n).
        """
        Y, places = self.data[1], torch.arange(len(order), device=order.device)
        rest = places[KERNEL_ROWS:]
        if best.score.failure or len(rest) == 0:
            return rest[:0]
        if len(rest) > 2 * OTHER_ROWS:
            away = (Y - Y.median())[order[rest]].flatten().abs()
            rest = to_the_front(away.topk(OTHER_ROWS).indices, rest)[: 2 * OTHER_ROWS]
        errors = fit.errors_of(best, some_rows(self.data, order[rest]))
        found = torch.cat([places[:KERNEL_ROWS], rest])[gross_rows(errors, len(order))]
        return found if bool((found >= KERNEL_ROWS).any()) else found[:0]


def _with_heavy_tails(
    comparison: _Comparison, order: Tensor, fit: KernelFits, best: Fit, asked: bool
) -> tuple[KernelFits, list[Fit], Fit]:
    """Compare Student-t noise; see `with_student_t`.

    Where gross errors are so rare that the compared rows lack them, kernels are compared again on rows that have them,
    and their nearest rows, which tell a narrow peak from an outlier.

    Returns:
        The fits with Gaussian noise, those with Student-t noise, and the best of all that may be chosen.
    """
    heavy, chosen = with_student_t(fit, comparison.own, comparison.shared, best, asked)
    gross = order[:0] if chosen.score.plan.student_t else comparison.gross(fit, best, order)
    if len(gross):
        data = comparison.data
        again = to_the_front(_nearest(data[0][order], gross), order)
        if trial(some_rows(data, again[:TRIAL_ROWS]), {}) is not None:
            fit_again, best_again = comparison(again)
            heavy_again, chosen_again = with_student_t(
                fit_again, comparison.own, comparison.shared, best_again, asked=False
            )
            if chosen_again.score.plan.student_t:
                return fit_again, heavy_again, chosen_again
    return fit, heavy, chosen


def _nearest(X: Tensor, rows: Tensor) -> Tensor:
    """Return rows, and the `NEAREST` to each of them, in units of the inputs' ranges. O(n d) for each."""
    ranges = X.amax(0) - X.amin(0)
    units = X / torch.where(ranges > 0, ranges, torch.ones_like(ranges))
    nearest = torch.cdist(units[rows], units).topk(min(NEAREST + 1, len(X)), largest=False).indices
    return torch.cat([rows, nearest.flatten()]).unique()


def _family_scores(
    plans: list[Plan], data: Data, seen: Tensor, unseen: Tensor, deadline: float, kernels: tuple[Score, ...]
) -> list[Score]:
    """Score candidates for many rows on unseen ones. They start from the scores of their kernels."""
    found: list[Score] = []
    for plan in plans:
        smaller = [score for score in found if replace(score.plan, size=plan.size) == plan]
        at_most = BEHIND if plan.size is None else 0.0
        if found and time.perf_counter() > deadline:
            found.append(Score(plan, failure="not tried, since the time was over"))
        elif all(score.failure for score in smaller) or (_rise(smaller) and _deficit(smaller, found) <= at_most):
            found.append(_tried(plan, data, seen[:PILOT_ROWS], unseen, _start(plan, kernels), deadline))
    winner, *others = sorted(found, key=_density, reverse=True)
    if winner.plan.rows is not None and len(seen) > 2 * PILOT_ROWS and _deficit(others, found) <= GAIN:
        plan = others[0].plan  # which gains from the other rows
        found.append(_tried(plan, data, seen, unseen, _start(plan, kernels), deadline))
    return found


def _rise(smaller: list[Score]) -> bool:
    """Return whether the last of smaller models gained by its points; True if there are not two."""
    return len(smaller) < 2 or _density(smaller[-1]) >= _density(smaller[-2]) + RISE


def _deficit(some: list[Score], all_scores: list[Score]) -> float:
    """Return by how much the best log density of some scores is below that of all; inf if all of them failed."""
    best = max(map(_density, some), default=-math.inf)
    return math.inf if best == -math.inf else max(map(_density, all_scores)) - best


def _density(score: Score) -> float:
    return score.log_density


def _start(plan: Plan, scores: tuple[Score, ...]) -> Mapping[str, Tensor]:
    """Return hyperparameters of the exact GP with the kernel and the noise of a plan; none if it was not fitted."""
    if plan.family not in STARTED or plan.principal_axes:
        return {}
    exact = replace(plan, family="exact", size=None, rows=None)
    return next((score.hyperparameters for score in scores if score.plan == exact), {})


def _fitted(
    plan: Plan,
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None,
    start: Mapping[str, Tensor] | None = None,
    compared: bool = False,
) -> ScalableModel:
    """Return the model of a plan, fitted from its own hyperparameters or a given start, in eval mode.

    There is no other start then. With Student-t noise a start is of no use where outliers dwarf all other targets. From
    hyperparameters of fewer rows a fit of an exact GP ends when an iteration gains less than .005 nats. For 42 splits
    of data sets, 1000 rows, this lowered the mean log density of test rows by .0003 nats, at half of the time. Fits of
    others that are only `compared` end at `COARSE`.
    """
    model: Any = plan.build(X, Y, Yvar)
    if plan.student_t and outliers_dwarf_others(model):
        start = None
    with_hyperparameters(model, start or {})
    model._starts_fitted = bool(start)
    goes_on = model._starts_fitted and plan.family == "exact" and len(X) > KERNEL_ROWS
    options = loose(min(len(X), model._subset_size)) if goes_on else {}
    if compared and plan.family in ("softki", "grief"):
        options = {"options": {"ftol": COARSE / len(X)}}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=options or None)
    model._starts_fitted = False
    return model.eval()


def _families(d: int, kernel: str, streams: bool) -> Iterator[Plan]:
    """Return the candidates for many rows, fast ones first; larger ones after smaller ones of their family."""
    yield Plan("softki", kernel, size=FEW_POINTS)
    if not streams:
        yield Plan("exact", kernel, rows=EXACT_ROWS)
    elif d <= GRID_INPUTS:  # of the unit cube; elsewhere it would refuse points outside its grid
        yield Plan("wiski", kernel)
    yield Plan("grief", "rbf")
    if d > 1:
        yield Plan("grief", "rbf", principal_axes=True)
    yield Plan("softki", kernel)
    yield Plan("softki", kernel, size=MORE_POINTS)


def _tried(plan: Plan, data: Data, seen: Tensor, unseen: Tensor, start: Mapping[str, Tensor], deadline: float) -> Score:
    """Fit a candidate to some rows from a start until a deadline, and score its predictions of others."""
    started, (X, Y, Yvar), scale = time.perf_counter(), some_rows(data, unseen), data[1][seen].std()
    scale = scale if scale > 0 else torch.ones_like(scale)  # of constant targets
    try:
        with time_limit(max(LEAST_SECONDS, deadline - started)):
            model = _fitted(plan, *some_rows(data, seen), start, compared=True)
        _be_cautious(model, plan, seed=0)
        with torch.no_grad():
            posterior: Any = model.posterior(X, observation_noise=Yvar is None)
            variance = posterior.variance if Yvar is None else posterior.variance + Yvar
            errors = Y - posterior.mean
            seconds = time.perf_counter() - started
            score = scored(plan, len(seen), errors / scale, variance / scale.square(), seconds)
            if not plan.student_t or score.failure:
                return score
            made: Any = model
            of_function = made.posterior(X).variance / scale.square()
            noise = (made.likelihood.noise * made.outcome_transform.stdvs.square() / scale.square()).item()
            degrees = made.likelihood.degrees_of_freedom.item()
            density = log_density((errors / scale).flatten(), of_function.flatten(), noise, degrees)
            return replace(score, log_density=density.mean().item())
    except FAILURES as error:
        return Score(plan, len(seen), failure=f"failed: {error}")
