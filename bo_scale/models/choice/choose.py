"""Choose the model that some data ask for, by predictions of rows that candidates have not seen."""

import math
import time
from dataclasses import replace
from typing import Any

from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.models.choice.comparison import Comparison, with_heavy_tails
from bo_scale.models.choice.families import UNSEEN_ROWS, candidates, density_of, family_scores
from bo_scale.models.choice.fit import be_cautious, fitted, shuffled, start_of, vary_as_targets
from bo_scale.models.choice.kernels import Fit
from bo_scale.models.choice.logarithms import are_likelier, gain_of_logarithms, may_be_logarithms
from bo_scale.models.choice.plan import EXACT_ROWS, KERNELS, Plan
from bo_scale.models.choice.report import ChoiceReport
from bo_scale.models.errors import FitError
from bo_scale.models.outcomes import of_logarithms, require_positive
from bo_scale.models.shell.any_units import IndependentModels
from bo_scale.models.shell.door import require_device, require_finite, require_given, require_tensors, require_whole
from bo_scale.threads import scipy_on_one_thread, threads_for

FEWEST_ROWS = 8
"""Number of rows below which nothing is compared."""
ROUGHER = 40.0
"""Weight of the preference for rough kernels among few rows, in nats; see `preference`."""


def choose(
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None = None,
    *,
    student_t: bool | None = None,
    log_targets: bool | None = False,
    seconds: float | int = 60,
    seed: int = 0,
) -> Model:
    """Choose, fit and return the model that the data ask for. Its `choice` says how it was chosen.

    Up to 5000 rows it is an exact GP, a `CaGP` with an action for each row. Its kernel is the best of four by the log
    evidence and the log density of each row given the others, on at most 500 rows, of those whose errors for these rows
    and at most 2000 others are not clearly larger than the smallest. Up to 500 rows its inputs may share a
    lengthscale, in units of their ranges. Skewed inputs may have `LogScales`.

    Its noise variance is cautious, since few rows can be explained without noise: it lies between the fitted one and
    the mean square of errors for rows left out, with 50 rows at two sevenths of the way, with n at 20/(n + 20), but
    nearer to the fitted one where rows left out would lose more log density than half a nat each, or 100 in all, and
    higher where rows left out lie farther off than it says. Below eight rows nothing is compared, and the kernel's
    variance is at least that of the targets.

    With more than 5000 rows, candidates are fitted to at most 5000 rows and predict 500 others; the one with the
    highest log density is fitted to all rows. If that is the exact GP of 5000 rows, and there are over 10,000 others,
    the next best model, which can use all rows, has to lose to it with all of them, or by .3 nats with 5000.

    Where a few rows have two fifths of the sum of squared errors, and the compared rows lack them, kernels are compared
    again on rows that have up to three of them, with Student-t noise too. Rows with the same inputs are left out
    together. Where a third of the targets are equal, others are not taken for outliers, nor are errors that differ from
    place to place: from 200 rows on left-out rows must be likelier with Student-t noise, by 50 nats in all, than with
    Gaussian noise whose variances are scaled nearby. Up to 256 rows, outliers are also taken for such where each row
    left out is .4 nats likelier, and no logarithms of skewed targets are likelier still.

    An exact GP learns noise variances down to 1e-6 of the targets' variance, for simulators without noise, and
    lengthscales down to 1e-4 of an input's range; BoTorch's least are 1e-4 and .025. The noise may have heavy tails, by
    the same scores: the `suspects` of a model with `StudentTNoise` are the outliers. Inputs may have any units. Targets
    are standardised within the model.

    Args:
        X: Inputs `n × d`, in raw units.
        Y: Observations `n × m`. With several outputs each has a model of its own, in a ModelListGP; `model.models[j]`
            has the `choice` and the `suspects` of output j.
        Yvar: Known noise variances `n × m`; None to learn the noise.
        student_t: Whether the noise has heavy tails; None to choose by evidence, log density and errors.
        log_targets: Whether logarithms of the targets are modelled, which must be positive; None to choose by the log
            density of left-out rows, by .2 nats for each. The posterior is then a `LogNormalPosterior`, for Monte-Carlo
            acquisition functions and quantiles, and no Gaussian. With False the report says what they would gain, if
            targets are positive and skewed.
        seconds: Time for the comparison of families, for each output. The fit of a candidate ends with it, and no
            further one is tried. The last fit is not counted.
        seed: Seed for the choice of rows.

    Returns:
        A fitted model in eval mode. `print(model.choice)` shows the scores of all candidates.

    Raises:
        InvalidDataError: for NaN or inf, shapes or types that do not fit, no rows, or logarithms of targets that are
            not positive.
        InvalidArgumentError: if `seconds` is not positive, for a seed that is no whole number, or for Student-t noise
            or logarithms with noise of known variance.
        FitError: if no candidate can be fitted.

    Examples:
        >>> import torch
        >>> X = torch.rand(40, 2, dtype=torch.float64)
        >>> model = choose(X, X.sum(-1, keepdim=True))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
        >>> model.choice.plan.family
        'exact'
    """
    _require_data(X, Y, Yvar)
    _require_either("student_t", student_t, "is Gaussian", Yvar)
    _require_either("log_targets", log_targets, "is that of the targets themselves", Yvar)
    if log_targets:
        require_positive(Y)
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise InvalidArgumentError(f"seconds={seconds!r}: must be a positive number.")
    seed = require_whole(seed, "seed")
    columns = range(Y.shape[-1])
    variances = [None if Yvar is None else Yvar[:, [j]] for j in columns]
    with threads_for(len(X)):
        models: list[Any] = [
            _chosen(X, Y[:, [j]], variances[j], log_targets, student_t=student_t, seconds=float(seconds), seed=seed)
            for j in columns
        ]
    return models[0] if len(models) == 1 else IndependentModels(*models)


def _require_data(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
    require_given(X=X, Y=Y)
    require_tensors(Yvar=Yvar)
    require_device(X.device, Y=Y, Yvar=Yvar)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or 0 in (*X.shape, *Y.shape):
        raise InvalidDataError(
            f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected n × d and n × m, each at least 1."
        )
    if X.dtype != Y.dtype or (Yvar is not None and Yvar.dtype != Y.dtype):
        types = ", ".join(str(each.dtype) for each in (X, Y, Yvar) if each is not None)
        raise InvalidDataError(f"X, Y, Yvar: types {types}, expected the same. Convert them, as by X.double().")
    require_finite(X=X, Y=Y, Yvar=Yvar)
    if Yvar is not None and Yvar.shape != Y.shape:
        raise InvalidDataError(f"Yvar: shape {tuple(Yvar.shape)}, expected that of Y, {tuple(Y.shape)}.")


def _require_either(name: str, asked: bool | None, known: str, Yvar: Tensor | None) -> None:
    """Raise InvalidArgumentError if a wish is none of True, False and None, or does not go with known noise."""
    if asked not in (None, True, False):
        raise InvalidArgumentError(f"{name}={asked!r}: must be True, False, or None for what the data say.")
    if asked and Yvar is not None:
        raise InvalidArgumentError(f"{name}: noise of known variance Yvar {known}. Leave one of the two out.")


@scipy_on_one_thread()
def _chosen(X: Tensor, Y: Tensor, Yvar: Tensor | None, log_targets: bool | None, *, seed: int, **asked: Any) -> Model:
    """Choose and fit the model of one output; see `choose`."""
    started, gain = time.perf_counter(), math.nan
    if not log_targets:
        compared = Yvar is None and (may_be_logarithms(Y) if log_targets is False else bool((Y > 0).all()))
        choice = choose_plan(X, Y, Yvar, seed=seed, logarithms=compared, **asked)
        gain = choice.log_gain
        log_targets = log_targets is None and are_likelier(gain, len(X))
    if log_targets:
        Y = Y.log()
        choice = choose_plan(X, Y, seed=seed, **asked)
    model: Any = fitted(choice.plan, X, Y, Yvar, start_of(choice.plan, choice.scores))
    if choice.scores:
        be_cautious(model, choice.plan, seed)
    else:
        vary_as_targets(model)
    plan, local = choice.plan, choice.plan.family == "exact" and model.inference.scales_locally
    if log_targets:
        plan = replace(plan, log_targets=True)
        model.outcome_transform = of_logarithms(model.outcome_transform).eval()
    seconds = time.perf_counter() - started
    model.choice = replace(choice, plan=plan, seconds=seconds, scales_locally=local, log_gain=gain)
    return model


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
    logarithms: bool = False,
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
        logarithms: Whether logarithms of the targets are compared, for the report.
    """
    started, n = time.perf_counter(), len(X)
    order = shuffled(n, seed).to(X.device)
    if n < FEWEST_ROWS:
        few = "1 row is" if n == 1 else f"{n} rows are"
        reason = f"{few} too few to compare anything"
        return ChoiceReport(Plan("exact", "matern52", student_t=bool(student_t)), reason)
    comparison = Comparison((X, Y, Yvar), kernels, rougher, streams)
    fit, best = comparison(order)
    heavy = list[Fit]()
    if student_t or (student_t is None and Yvar is None):
        fit, heavy, best = with_heavy_tails(comparison, order, fit, best, asked=bool(student_t))
    fits = [*fit.made.values(), *heavy]
    scores, chosen = tuple(fit.score for fit in fits), best.score
    if chosen.failure:
        raise FitError(f"choose: no candidate could be fitted. {chosen}")
    gain = gain_of_logarithms(fit.data, best, replace(chosen.plan, student_t=False)) if logarithms else math.nan
    if n <= EXACT_ROWS:
        reason = f"{n} rows are few enough for an exact GP; of the kernels it had the best evidence and log density"
        return ChoiceReport(chosen.plan, reason, scores, log_gain=gain)
    unseen, seen = order[:UNSEEN_ROWS], order[UNSEEN_ROWS:]
    heavy_tails = chosen.plan.student_t  # a model that drops rows could not list outliers
    plans = [
        replace(plan, student_t=heavy_tails, log_scales=chosen.plan.log_scales)
        for plan in candidates(X.shape[-1], chosen.plan.kernel, streams)
        if plan.rows is None or not heavy_tails
    ]
    tried = family_scores(plans, (X, Y, Yvar), seen, unseen, started + seconds, scores)
    winner = max(tried, key=density_of)
    if winner.failure:
        raise FitError(f"choose: no candidate could be fitted. {winner}")
    reason = f"of {len(tried)} candidates it gave {len(unseen)} unseen rows the highest log density"
    return ChoiceReport(winner.plan, reason, (*scores, *tried), log_gain=gain)
