"""Objectives for which sites are chosen. Plans, tours, the command line and benchmarks read this one table.

Examples:
    A site with the highest prediction, for `Survey.plan(objective="highest")`:

    >>> objective = Objective("highest", "the prediction is highest", lambda state, _: state.means(), additive=False)
    >>> register_objective(objective)  # doctest: +SKIP

    For `--objective highest` the process of the command line must have registered it; with the two lines in `mine.py`:

        python -c "import mine; from bo_scale.cli.program import main; main()" survey plan s.gpkg --objective highest …
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bo_scale.errors import SurveyError, SurveyWarning

if TYPE_CHECKING:  # the command line lists the objectives, and need not wait for PyTorch
    import torch
    from jaxtyping import Float
    from torch import Tensor

    from bo_scale.survey.choice.design_state import DesignState

STRADDLE = 1.96
DESIGNS: dict[str, str] = {
    "random": "anywhere, all places alike",
    "stratified": "one at random in each of as many compact strata of equal size",
    "maximin": "as far as can be from all sites, one after the other",
    "coverage": "so that every place is near a site: at centres of k-means, where sites that are there stay",
    "latin": "one in each of as many strata of equal size from west to east, and from south to north",
}
"""Designs, which need no model: where the sites are, by name."""

Score = Callable[["DesignState", float | None], "Tensor"]
Draw = Callable[["DesignState", int, "torch.Generator"], "Tensor"]


@dataclass(frozen=True)
class Objective:
    """A measure of how good a measurement is at each point of a design state. It has either a score or draws.

    Attributes:
        name: The name by which users ask for it.
        help: The end of the sentence "a site where …".
        score: Scores of all points, larger is better; from a design state and the threshold in the model's units.
        draw: Scores for so many sites of a batch, a row for each, from a design state and a generator.
        needs_threshold: Whether it is about a threshold.
        additive: Whether scores are gains, never negative, that add up over a tour. From other scores a tour subtracts
            their median, and ignores what is below.
        weighs_roughness: Whether errors count for more where the quantity is rough; not for teams that travel.
        former: Names that it had before, which still work.
        ignores_weights: Whether weights of places make no difference, because each site is scored by itself.
    """

    name: str
    help: str
    score: Score | None = None
    draw: Draw | None = None
    needs_threshold: bool = False
    additive: bool = True
    weighs_roughness: bool = False
    former: tuple[str, ...] = ()
    ignores_weights: bool = False

    def __post_init__(self) -> None:
        """Refuse an objective without a name or with two ways to score.

        Raises:
            SurveyError: saying what to give.
        """
        if not self.name or (self.score is None) == (self.draw is None):
            raise SurveyError(f"objective {self.name!r}: give a name, and either score or draw.")

    def scorer(
        self, state: "DesignState", threshold: float | None, count: int, generator: "torch.Generator"
    ) -> 'Callable[[DesignState, int], Float[Tensor, " M"]]':
        """Return what scores all points for the site of a number, from the state once the sites before are measured.

        Args:
            state: The state before the batch.
            threshold: Threshold in the model's units, for objectives that need one.
            count: Sites that draws are made for; later sites use them again from the first.
            generator: Random numbers for the draws.
        """
        if self.draw is not None:
            rows = self.draw(state, count, generator)
            return lambda _, number: rows[number % count]
        score = self.score
        assert score is not None, "checked at the beginning"
        return lambda current, _: score(current, threshold)


OBJECTIVES: dict[str, Objective] = {}
"""All objectives by name."""


def register_objective(objective: Objective) -> None:
    """Make an objective available everywhere in this process by its name; the same one again does nothing more.

    Raises:
        SurveyError: if another objective or a design has that name, or had it before.
    """
    if OBJECTIVES.get(objective.name) == objective:
        return
    taken = {*OBJECTIVES, *DESIGNS, *_former()}
    if twice := taken & {objective.name, *objective.former}:
        raise SurveyError(f"objective {min(twice)!r}: this name is taken; give the objective another one.")
    OBJECTIVES[objective.name] = objective


def objective_named(name: str) -> Objective:
    """Return the objective of a name; warn if it is a former name.

    Raises:
        SurveyError: for another name; designs are no objectives.
    """
    now = current_name(name)
    if now not in OBJECTIVES:
        raise SurveyError(f"objective={name!r}: choose one of {', '.join([*OBJECTIVES, *DESIGNS])}.")
    if now != name:
        warnings.warn(
            f"objective={name!r} is now called {now!r}: write objective={now!r} (--objective {now}).",
            SurveyWarning,
            stacklevel=2,
        )
    return OBJECTIVES[now]


def current_name(name: str) -> str:
    """Return the present name of an objective or a design that may be given by a former one."""
    return _former().get(name, name)


def _former() -> dict[str, str]:
    return {former: each.name for each in OBJECTIVES.values() for former in each.former}


def _straddle(state: "DesignState", threshold: float | None) -> 'Float[Tensor, " M"]':
    return STRADDLE * state.variances().sqrt() - (state.means() - _given(threshold)).abs()


def _misclassification(state: "DesignState", threshold: float | None) -> 'Float[Tensor, " M"]':
    from bo_scale.survey.choice.misclassification import misclassification_reduction

    return misclassification_reduction(state, _given(threshold))


def _given(threshold: float | None) -> float:
    assert threshold is not None, "checked with the request"
    return threshold


register_objective(
    Objective(
        "variance",
        "the variance integrated over the area falls most, where the quantity is rough counted more",
        lambda state, _: state.reduction(),
        weighs_roughness=True,
    )
)
register_objective(
    Objective(
        "uncertainty",
        "the variance is largest",
        lambda state, _: state.variances(),
        former=("maximum",),
        ignores_weights=True,
    )
)
register_objective(
    Objective(
        "straddle",
        "it is least known whether the threshold is exceeded: 1.96 sd − |mean − threshold|",
        _straddle,
        needs_threshold=True,
        additive=False,
        ignores_weights=True,
    )
)
register_objective(
    Objective(
        "misclassification",
        "the area expected on the wrong side of the threshold falls most",
        _misclassification,
        needs_threshold=True,
    )
)
register_objective(
    Objective(
        "thompson",
        "a function drawn from the posterior has its maximum",
        draw=lambda state, count, generator: state.draw(count, generator),
        additive=False,
        ignores_weights=True,
    )
)
