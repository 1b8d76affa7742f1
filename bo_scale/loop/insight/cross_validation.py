"""Cross-validation: how well a model predicts observations that it has not seen."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop.insight.leave_one_out import Fitted, LeaveOneOut, as_left_out, of_folds, parts_of, rows_of, split
from bo_scale.loop.problem.outcomes import Outcomes

PROBABILITIES = (0.5, 0.8, 0.95)
"""Probabilities of the intervals whose coverage is reported."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The quality of predictions of one outcome where it was not observed, in raw units.

    Attributes:
        outcome: Its name; None if there are no names.
        rmse: Root of the mean squared error.
        r2: 1 − mean squared error / variance of the observations; NaN if these are constant.
        nll: Mean negative log density, less that of a Gaussian with mean and variance of the observations: 0 for a
            prediction that knows no more than these, below 0 for a better one.
        coverage: Share of observations inside the central intervals of each probability.
        correlation: Of observations and predictions; NaN if either are constant.
        observed: The observations.
        predicted: Their predictions, for a plot.
        sds: Standard deviations of observations about these.
    """

    outcome: str | None
    rmse: float
    r2: float
    nll: float
    coverage: dict[float, float]
    correlation: float
    observed: Float[Tensor, " n"]
    predicted: Float[Tensor, " n"]
    sds: Float[Tensor, " n"]

    @classmethod
    def of(
        cls,
        outcome: str | None,
        observed: Float[Tensor, " n"],
        predicted: Float[Tensor, " n"],
        sds: Float[Tensor, " n"],
    ) -> "Fit":
        """Measure predictions by observations."""
        errors, spread = observed - predicted, observed.std(unbiased=False)
        mse, z = errors.square().mean().item(), (errors / sds).abs()
        constant = float(spread) <= 1e-12 * max(1.0, float(observed.abs().max()))
        trivial = math.nan if constant else 0.5 + math.log(float(spread))
        inside = {p: (z <= NormalDist().inv_cdf(0.5 + p / 2)).double().mean().item() for p in PROBABILITIES}
        correlation = math.nan if constant else torch.corrcoef(torch.stack([observed, predicted]))[0, 1].item()
        nll = (0.5 * z.square() + sds.log()).mean().item() - trivial
        r2 = math.nan if constant else 1 - mse / float(spread) ** 2
        return cls(outcome, math.sqrt(mse), r2, nll, inside, correlation, observed, predicted, sds)


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The report of a cross-validation.

    Attributes:
        folds: Number of folds.
        outcomes: One entry for each outcome.
    """

    folds: int
    outcomes: tuple[Fit, ...]

    @override
    def __str__(self) -> str:
        """Return a table with a row for each outcome."""
        width = max(8, *(len(str(each.outcome)) for each in self.outcomes))
        shares = "".join(f"{f'in {p:.0%}':>9}" for p in PROBABILITIES)
        lines = [f"{'outcome':<{width}}{'RMSE':>11}{'R²':>8}{'NLL':>8}{'corr.':>8}{shares}"]
        for each in self.outcomes:
            inside = "".join(f"{share:>9.0%}" for share in each.coverage.values())
            numbers = f"{each.rmse:>11.4g}{each.r2:>8.3f}{each.nll:>8.2f}{each.correlation:>8.3f}{inside}"
            lines.append(f"{each.outcome or 'value':<{width}}{numbers}")
        return "\n".join([*lines, f"{self.folds} folds, {len(self.outcomes[0].observed)} observations"])


def cross_validate(
    outcomes: Outcomes,
    model: Model,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    Yvar: Float[Tensor, "n m"] | None = None,
    *,
    folds: int = 10,
    seed: int = 0,
    fitted: Fitted | None = None,
) -> CrossValidation:
    """Cross-validate the model of all observations: predict each fold from the others.

    By default hyperparameters stay those of all observations, which is cheap (as `leave_one_out`), and optimistic where
    they are few.

    Args:
        outcomes: The outcomes.
        model: The model of all observations.
        X: Told points in the unit cube.
        Y: Their values, larger better.
        Yvar: Their noise variances.
        folds: Number of folds, at most n.
        seed: Seed of the folds.
        fitted: Makes and fits the model of one outcome, for hyperparameters fitted anew without each fold; see
            `at_hyperparameters` for models without a closed form. None for the present hyperparameters.

    Raises:
        InvalidArgumentError: for fewer than two folds.
        InvalidDataError: for fewer than three observations.
        UnsupportedError: for a model without a closed form if `fitted` is not given.
    """
    if folds < 2:
        raise InvalidArgumentError(f"folds={folds}: choose at least 2.")
    if len(X) < 3:
        raise InvalidDataError(f"{len(X)} observations: cross-validation needs at least 3. Tell more first.")
    rows = split(len(X), folds, seed)
    found = []
    for j, part in enumerate(parts_of(model)):
        y, v = Y[:, j : j + 1], None if Yvar is None else Yvar[:, j : j + 1]
        if fitted is not None:
            found.append(of_folds(fitted, X, y, v, rows))
            continue
        errors, variances = rows_of(part, len(X)).left_out(rows)
        found.append((y[:, 0] - errors.cpu(), variances.cpu()))
    left: LeaveOneOut = as_left_out(outcomes, Y, found)
    names = outcomes.names or (None,)
    columns = zip(names, left.observed.unbind(-1), left.means.unbind(-1), left.sds.unbind(-1), strict=True)
    return CrossValidation(len(rows), tuple(Fit.of(*column) for column in columns))
