"""Told observations as predicted from all others, and those that such predictions find suspicious."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model, ModelList
from botorch.models.transforms.outcome import Standardize
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.loop.history.observations import Id
from bo_scale.loop.insight.outliers import FEWEST, Apart, default_threshold, standing_apart
from bo_scale.loop.insight.predict import moments
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Point, Space
from bo_scale.loop.served import ModelFactory
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.left_out import GaussianRows, gaussian_rows
from bo_scale.models.refit import with_hyperparameters
from bo_scale.models.shell.model import ScalableModel

MOST = 100
"""The most suspects of an outcome."""
ROUNDS = 4
"""The most fits without the suspects, each of which may find others that these have hidden."""
Fitted = Callable[[Tensor, Tensor, Tensor | None], Model]
"""A function of inputs `n × d`, values `n × 1` and noise variances or None that returns a model ready to predict."""


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Told observations as predicted from all others, in raw units.

    Attributes:
        observed: The observations.
        means: Predictions.
        sds: Standard deviations of observations about these, noise included.
    """

    observed: Float[Tensor, "n m"]
    means: Float[Tensor, "n m"]
    sds: Float[Tensor, "n m"]

    @property
    def z(self) -> Float[Tensor, "n m"]:
        """Errors in standard deviations."""
        return (self.observed - self.means) / self.sds


@dataclass(frozen=True, eq=False)
class Suspect:
    """An observation that stands apart from what all others predict, in raw units.

    Attributes:
        row: Its number, in the order of telling.
        x: Its point.
        outcome: The name of the outcome; None if there are no names.
        value: The observed value.
        predicted: The prediction by the observations that are not suspicious.
        sd: Standard deviation of an observation about it, with the scale of these observations.
        z: (value − predicted) / sd.
        id: The id by which `Optimizer.revise` and `forget` know it.
    """

    row: int
    x: Tensor | Point
    outcome: str | None
    value: float
    predicted: float
    sd: float
    z: float
    id: Id | None = None


def leave_one_out(
    outcomes: Outcomes,
    model: Model,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    Yvar: Float[Tensor, "n m"] | None = None,
    *,
    fitted: Fitted | None = None,
    folds: int = 10,
) -> LeaveOneOut:
    """Return every observation as predicted from all others, at the model's present hyperparameters.

    In closed form: O(n³) for exact GPs, 4 s for 5000 rows, and O(n p s) for models of ours with p features.

    Args:
        outcomes: The outcomes.
        model: The model of all observations.
        X: Told points in the unit cube.
        Y: Their values, larger better.
        Yvar: Their noise variances.
        fitted: Makes the model of one outcome from part of the rows, for models without a closed form: `folds` of them,
            each without one part of the rows.
        folds: Number of parts.

    Raises:
        UnsupportedError: for a model without a closed form if `fitted` is not given.
    """
    found = []
    for j, part in enumerate(parts_of(model)):
        y, v = Y[:, j : j + 1], None if Yvar is None else Yvar[:, j : j + 1]
        try:
            errors, variances = rows_of(part, len(X)).left_out()
        except UnsupportedError as error:
            if fitted is None:
                raise UnsupportedError(f"{error} Pass fitted, and folds are left out instead.") from error
            found.append(of_folds(fitted, X, y, v, split(len(X), folds, 0)))
        else:
            found.append((y[:, 0] - errors.cpu(), variances.cpu()))
    return as_left_out(outcomes, Y, found)


def as_left_out(outcomes: Outcomes, Y: Float[Tensor, "n m"], found: list[tuple[Tensor, Tensor]]) -> LeaveOneOut:
    """Return predictions of inner values, a pair of means and variances for each outcome, in raw units."""
    means = torch.stack([mean for mean, _ in found], -1)
    variances = torch.stack([variance for _, variance in found], -1)
    return LeaveOneOut(outcomes.inner(Y), outcomes.inner(means), variances.clamp_min(0.0).sqrt())


def parts_of(model: Model) -> list[Any]:
    """Return the models of the outcomes."""
    return list(model.models) if isinstance(model, ModelList) else [model]


def split(n: int, folds: int, seed: int) -> list[Int[Tensor, " _"]]:
    """Return the rows of each of so many folds of nearly equal size, at random; no more folds than rows."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return [each for each in order.tensor_split(min(folds, n)) if len(each)]


def of_folds(
    fitted: Fitted,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, "n 1"],
    variances: Float[Tensor, "n 1"] | None,
    folds: list[Int[Tensor, " _"]],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return means and variances of all rows, each by a model of the other folds; known noise is that of the row."""
    mean, variance = torch.empty(len(X), dtype=torch.float64), torch.empty(len(X), dtype=torch.float64)
    for fold in folds:
        rest = torch.ones(len(X), dtype=torch.bool)
        rest[fold] = False
        model = fitted(X[rest], y[rest], None if variances is None else variances[rest]).eval()
        means, spread = moments(model, X[fold], observation=variances is None)
        mean[fold] = means[:, 0]
        variance[fold] = spread[:, 0] if variances is None else spread[:, 0] + variances[fold, 0]
    return mean, variance


def at_hyperparameters(model: Any, factory: ModelFactory) -> Fitted:
    """Return what makes models of part of the rows with the hyperparameters of a model, in the units of its targets.

    Args:
        model: The model of one outcome.
        factory: Makes a model of data; the class must be the same.
    """

    def made(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
        found: Any = with_hyperparameters(factory(X, Y, Yvar), dict(model.named_parameters())).eval()
        units = getattr(model, "outcome_transform", None)
        if isinstance(found, ScalableModel) and type(units) is Standardize:
            found = found.restandardised(units.means, units.stdvs).eval()
        return found

    return made


def suspects(
    space: Space,
    outcomes: Outcomes,
    model: Model,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    Yvar: Float[Tensor, "n m"] | None = None,
    *,
    threshold: float | None = None,
    fitted: Fitted | None = None,
) -> list[Suspect]:
    """Return the observations that stand apart from what all others predict, the farthest of each outcome first.

    A value far off has also moved the model's mean, noise and scale, which hides it from its own standard deviations.
    So mean and scale are those of the other rows, and rows are taken out one after the other: see `standing_apart`. A
    model with `StudentTNoise` has done so in its fit. Up to a tenth of the rows are listed, from 3 to 100.

    Args:
        space: The space of the points.
        outcomes: The outcomes.
        model: The model of all observations.
        X: Told points in the unit cube.
        Y: Their values, larger better.
        Yvar: Their noise variances.
        threshold: Smallest distance, in standard deviations of a Gaussian; None for one by the number of rows, 4.3 for
            20 and 5.1 for 1000, that one of 3000 sets of Gaussian values exceeds.
        fitted: Makes and fits the model of one outcome from the other rows, to look at the suspects again and for
            more: what they did to the lengthscales no longer matters. Up to 4 fits, if there are any. None for none.

    Raises:
        UnsupportedError: for a model without leave-one-out in closed form.
    """
    n = len(X)
    if n < FEWEST:
        return []
    limit = default_threshold(n) if threshold is None else threshold
    found = []
    for j, part in enumerate(parts_of(model)):
        apart = _apart(rows_of(part, n), Y[:, j], limit)
        if fitted is not None and apart.rows:
            apart = _seen_again(fitted, apart, X, Y[:, j : j + 1], None if Yvar is None else Yvar[:, j : j + 1], limit)
        found += _described(space, outcomes, j, apart, X, Y)
    return found


def rows_of(model: Any, n: int) -> GaussianRows:
    """Return the rows of a model, which must be n."""
    rows = gaussian_rows(model)
    if len(rows.residual) != n:
        raise InvalidDataError(f"model: it has {len(rows.residual)} observations, and X {n}. Give all that it has.")
    return rows


def _apart(rows: GaussianRows, y: Float[Tensor, " n"], limit: float) -> Apart:
    most = max(3, min(MOST, len(y) // 10))
    if rows.regular is None:
        return standing_apart(rows.precision, y.to(rows.residual), limit, most)
    errors, variances = (each.cpu() for each in rows.left_out(noise=rows.regular))
    far = errors.abs() / variances.sqrt()
    order = [int(row) for row in far.argsort(descending=True)[:most] if far[row] > limit]
    return Apart(order, (y - errors)[order].tolist(), variances[order].sqrt().tolist())


def _seen_again(
    fitted: Fitted, apart: Apart, X: Tensor, y: Float[Tensor, "n 1"], variances: Tensor | None, limit: float
) -> Apart:
    """Return those that stand apart from the predictions of a model of the other rows, and what that model finds."""
    found = list(apart.rows)
    for _ in range(ROUNDS):
        rest = torch.ones(len(X), dtype=torch.bool)
        rest[found] = False
        model = fitted(X[rest], y[rest], None if variances is None else variances[rest]).eval()
        others = rest.nonzero().squeeze(-1)
        more = _apart(rows_of(model, len(others)), y[rest, 0], limit).rows
        if not more or len(found) + len(more) > len(X) // 2:
            break
        found += others[more].tolist()
    mean, variance = moments(model, X[found], observation=variances is None)
    sd = (variance if variances is None else variance + variances[found]).sqrt()
    kept = (((y[found] - mean).abs() / sd).squeeze(-1) > limit).nonzero().squeeze(-1).tolist()
    return Apart([found[k] for k in kept], mean[kept, 0].tolist(), sd[kept, 0].tolist())


def _described(space: Space, outcomes: Outcomes, j: int, apart: Apart, X: Tensor, Y: Tensor) -> list[Suspect]:
    """Return rows that stand apart in one outcome in raw units, the farthest first."""
    sign, name = outcomes.signs[j], None if outcomes.names is None else outcomes.names[j]
    found = []
    for row, predicted, sd in zip(apart.rows, apart.predicted, apart.sds, strict=True):
        value = sign * Y[row, j].item()
        z = (value - sign * predicted) / sd
        found.append(Suspect(row, space.decode(X[row : row + 1])[0], name, value, sign * predicted, sd, z))
    return sorted(found, key=lambda each: -abs(each.z))
