"""Compare families of models for many rows, by predictions of rows that they have not seen."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bo_scale.gp.student_t import log_density
from bo_scale.models.choice.fit import be_cautious, fitted, start_of
from bo_scale.models.choice.kernels import FAILURES, Data, scored, some_rows
from bo_scale.models.choice.plan import EXACT_ROWS, Plan
from bo_scale.models.choice.report import Score
from bo_scale.training.time_limit import time_limit

PILOT_ROWS, UNSEEN_ROWS = 5000, 500
"""Maximum numbers of rows to which candidates are fitted, and of rows that they predict."""
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


def candidates(d: int, kernel: str, streams: bool) -> Iterator[Plan]:
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


def family_scores(
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
            found.append(_tried(plan, data, seen[:PILOT_ROWS], unseen, start_of(plan, kernels), deadline))
    winner, *others = sorted(found, key=density_of, reverse=True)
    if winner.plan.rows is not None and len(seen) > 2 * PILOT_ROWS and _deficit(others, found) <= GAIN:
        plan = others[0].plan  # which gains from the other rows
        found.append(_tried(plan, data, seen, unseen, start_of(plan, kernels), deadline))
    return found


def _rise(smaller: list[Score]) -> bool:
    """Return whether the last of smaller models gained by its points; True if there are not two."""
    return len(smaller) < 2 or density_of(smaller[-1]) >= density_of(smaller[-2]) + RISE


def _deficit(some: list[Score], all_scores: list[Score]) -> float:
    """Return by how much the best log density of some scores is below that of all; inf if all of them failed."""
    best = max(map(density_of, some), default=-math.inf)
    return math.inf if best == -math.inf else max(map(density_of, all_scores)) - best


def density_of(score: Score) -> float:
    """Return the log density of unseen rows."""
    return score.log_density


def _tried(plan: Plan, data: Data, seen: Tensor, unseen: Tensor, start: Mapping[str, Tensor], deadline: float) -> Score:
    """Fit a candidate to some rows from a start until a deadline, and score its predictions of others."""
    started, (X, Y, Yvar), scale = time.perf_counter(), some_rows(data, unseen), data[1][seen].std()
    scale = scale if scale > 0 else torch.ones_like(scale)  # of constant targets
    try:
        with time_limit(max(LEAST_SECONDS, deadline - started)):
            model = fitted(plan, *some_rows(data, seen), start, compared=True)
        be_cautious(model, plan, seed=0)
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
