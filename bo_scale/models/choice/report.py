"""Reports on the choice of a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from typing_extensions import override

from bo_scale.models.choice.plan import Plan


@dataclass(frozen=True)
class Score:
    """The predictions of one candidate for rows that it had not seen. Targets are standardised.

    Attributes:
        plan: The candidate.
        rows: Number of rows that it was fitted to.
        log_density: Mean log density of an unseen observation.
        rmse: Root mean squared error; 1 for a model that predicts the mean.
        coverage: Share of unseen observations within their 95 % intervals.
        width: Mean width of these intervals; 3.9 for a model that knows nothing.
        seconds: Duration of the fit and the predictions.
        evidence: Log evidence and priors for each row, where several kernels are compared on the same rows; with
            Student-t noise a lower bound of it.
        failure: Why there are no predictions; empty if there are.
        hyperparameters: Parameters of the fit of an exact GP by name, from which a last fit to the same rows starts.
    """

    plan: Plan
    rows: int = 0
    log_density: float = float("-inf")
    rmse: float = float("nan")
    coverage: float = float("nan")
    width: float = float("nan")
    seconds: float = 0.0
    evidence: float = 0.0
    failure: str = ""
    hyperparameters: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @override
    def __str__(self) -> str:
        if self.failure:
            return f"{self.plan}: {self.failure}"
        return (
            f"{self.plan}: log density {self.log_density:.3f}, error {self.rmse:.3f}, 95 % intervals hold "
            f"{100 * self.coverage:.0f} %, width {self.width:.2f}, {self.rows} rows, {self.seconds:.2g} s"
        )


@dataclass(frozen=True)
class ChoiceReport:
    """The report of `choose`. `str()` shows it in a few lines.

    Attributes:
        plan: The chosen family, kernel and inputs.
        reason: Why it was chosen.
        scores: The candidates, in the order in which they were tried.
        seconds: Duration of the whole choice, the last fit included.
        scales_locally: Whether variances are scaled by errors of rows left out nearby; see `CaGP.scale_locally`.
        log_gain: Log density by which each row left out is likelier if logarithms of the targets are modelled; NaN if
            that was not compared.
    """

    plan: Plan
    reason: str
    scores: tuple[Score, ...] = ()
    seconds: float = 0.0
    scales_locally: bool = False
    log_gain: float = math.nan

    @override
    def __str__(self) -> str:
        local = "; its variances are scaled by errors of rows left out nearby" if self.scales_locally else ""
        lines = [f"{self.plan}, chosen in {self.seconds:.2g} s: {self.reason}{local}"]
        if self.log_gain > 0:
            told = "" if self.plan.log_targets else "; choose(…, log_targets=True) models them"
            lines.append(f"  logarithms of the targets are likelier by {self.log_gain:.2f} nats for each row{told}")
        return "\n".join(lines + [f"  {score}" for score in self.scores])
