"""Fit the model of a plan, and make its noise cautious."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale.models.choice.caution import cautious_noise
from bo_scale.models.choice.comparison import KERNEL_ROWS
from bo_scale.models.choice.kernels import loose
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import Score
from bo_scale.models.fitting.exact import ANY_SCALING, ExactGP
from bo_scale.models.fitting.student_t import outliers_dwarf_others, set_scale
from bo_scale.models.refit import with_hyperparameters
from bo_scale.models.shell.model import ScalableModel

CAUTION_ROWS, CAUTION_ROWS_STUDENT_T = 2000, 500
"""Maximum numbers of rows that are left out, one by one, for a cautious noise. With Student-t noise rows have other
weights for each variance that is looked at."""
COARSE = 0.1
"""Least gain of an iteration, in nats of all rows, with which a fit for comparison of SoftKI or GRIEF goes on. On four
data sets it took half of the time, and scores changed by .02 at most, or .13 where there is no noise."""
STARTED = ("exact", "softki", "grief")
"""Families whose fits begin with an exact GP of some rows."""


def fitted(
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


@torch.no_grad()
def be_cautious(model: Any, plan: Plan, seed: int) -> None:
    """Raise the noise of a fitted exact GP to a cautious one, from errors of some rows left out. In place.

    Known noise and other families stay as they are.
    """
    if plan.family != "exact" or model.knows_noise:
        return
    X, Y, D = model._transformed_rows()
    rows = shuffled(len(X), seed)[: CAUTION_ROWS_STUDENT_T if plan.student_t else CAUTION_ROWS].to(X.device)
    with ANY_SCALING:
        exact = ExactGP.like(model, X[rows], Y[rows], D[rows])
    if plan.student_t:
        set_scale(model, cautious_noise(exact, len(X), model.likelihood.degrees_of_freedom.item()))
    else:
        model.likelihood.noise = cautious_noise(exact, len(X)).to(model.likelihood.noise)
        model.scale_locally()


@torch.no_grad()
def vary_as_targets(model: Any) -> None:
    """Raise the kernel's variance of a fitted model to that of the standardised targets, which is 1. In place.

    A handful of rows has the largest evidence with less: the values that they lack are unforeseen. On 16 functions each
    of 1 to 50 inputs, with 2 to 7 rows, 95 % intervals held 54 to 86 % without, and hold 65 to 91 % with it.
    """
    model.covar_module.outputscale = model.covar_module.outputscale.clamp_min(1.0)


def start_of(plan: Plan, scores: tuple[Score, ...]) -> Mapping[str, Tensor]:
    """Return hyperparameters of the exact GP with the kernel and the noise of a plan; none if it was not fitted."""
    if plan.family not in STARTED or plan.principal_axes:
        return {}
    exact = replace(plan, family="exact", size=None, rows=None)
    return next((score.hyperparameters for score in scores if score.plan == exact), {})


def shuffled(n: int, seed: int) -> Tensor:
    """Return rows 0 to n − 1 in random order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
