"""The model of a search, chosen anew as its data grow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from botorch.models.model import Model
from torch import Tensor

from bo_scale.models.catalogue import options_of, preset, unit_cube
from bo_scale.models.choice.choose import choose_plan
from bo_scale.models.choice.plan import EXACT_ROWS, Plan
from bo_scale.models.choice.report import ChoiceReport
from bo_scale.threads import threads_for

SEARCH_KERNELS = ("rbf", "matern52", "matern32")
"""Kernels of a search, whose points crowd near the optimum: a Matérn-1/2 kernel has a cusp at each of them."""
AGAIN = 2
"""Factor by which observations grow between two choices."""


@dataclass(frozen=True)
class AutomaticModel:
    """A model of a search by name "auto": chosen by `choose_plan`, anew whenever the data have doubled.

    Attributes:
        options: Options of the model. Those that the chosen class lacks are ignored.
    """

    options: Mapping[str, Any] = field(default_factory=dict)

    def due(self, n: int, chosen: int) -> bool:
        """Return whether n observations call for a choice when the last one saw `chosen` of them.

        They do when they have doubled, and when they become too many for an exact GP.
        """
        return n >= AGAIN * chosen or chosen <= EXACT_ROWS < n

    def choose(self, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> ChoiceReport:
        """Return the choice for these data. It depends on nothing else.

        Student-t noise is not considered: the best value so far may be the one farthest from a smooth function.
        """
        with threads_for(len(X)):
            return choose_plan(X, Y, Yvar, student_t=False, kernels=SEARCH_KERNELS, rougher=0.0, streams=True)

    def build(self, plan: Plan, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
        """Return an unfitted model by a plan, with the options of a search in the unit cube.

        Args:
            plan: The plan.
            X: Inputs `n × d`.
            Y: Observations `n × 1`.
            Yvar: Known noise variances, or None.
        """
        make: Any = plan.model
        return make(X, Y, Yvar, **self.search_options(plan, X, Yvar is not None, unit_cube(X), self.options))

    @staticmethod
    def search_options(
        plan: Plan, X: Tensor, known_noise: bool, bounds: Tensor, options: Mapping[str, Any], outputs: int = 1
    ) -> dict[str, Any]:
        """Return the arguments of a constructor for a search: the plan's, a search's, and those given.

        Args:
            plan: The plan.
            X: Inputs `n × d`.
            known_noise: Whether variances are given.
            bounds: Corners of the search space `2 × d`.
            options: Options that replace the others. Those that the class lacks are ignored.
            outputs: Number of outputs m.
        """
        transforms = {"input_transform", "outcome_transform"}
        own = {name: value for name, value in options.items() if name in options_of(plan.model) | transforms}
        searched = preset(plan.model, X, known_noise, bounds, own)
        planned = plan.options(X, outputs)
        if plan.principal_axes:
            searched.pop("bounds", None)  # corners of another space
        by_name = {name: value for name, value in own.items() if not (name == "likelihood" and value == "student_t")}
        return {**searched, **planned, **by_name}
