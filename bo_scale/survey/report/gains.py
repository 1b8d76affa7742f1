"""What plans have gained: the map without their measurements and with them, and how well these were expected."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.mapping.forecast import Scaled
from bo_scale.survey.mapping.measurement import held
from bo_scale.survey.mapping.model import model_of
from bo_scale.survey.mapping.surface import Surface

Array = npt.NDArray[np.float64]
SHOWN = 6
"""Latest plans that are told of."""
CELLS = 1000
"""Cells of the area that means are over."""


@dataclass(frozen=True)
class Gain:
    """The gain of a plan, with the hyperparameters of all measurements.

    Attributes:
        batch: Number of the plan.
        objective: What its sites were for.
        planned: Number of its sites.
        measured: Number of measurements of its sites.
        before: Typical sd over the area without its measurements and those of later plans; of two parts in the user's
            units, else on the model's scale.
            They are for the date of the plan, of a survey with time.
        after: The same with its measurements.
        expected: What the plan expected of `after`, by the model of then; None for plans from before this was kept.
        inside: Share of its measurements inside the 95 % intervals of what those before let expect.
    """

    batch: int
    objective: str
    planned: int
    measured: int
    before: float
    after: float
    expected: float | None
    inside: float

    @property
    def percent(self) -> float:
        """By how much the typical sd fell."""
        return 100 * (1 - self.after / self.before) if self.before > 0 else 0.0


def gains_of(survey: FittedSurvey) -> list[Gain]:
    """Return the gains of the latest plans that have measurements, in their order."""
    space = survey.workspace
    batch = space.state.sites.batch.to_numpy(dtype=np.int64)
    plans = {int(plan["batch"]): plan for plan in space.state.settings["plans"]}
    told = [number for number in np.unique(batch) if number in plans][-SHOWN:]
    if not told:
        return []
    cells = space.region.cells(CELLS).centres
    cells = cells[survey.fit.known(cells)]
    if not len(cells):
        return []
    found, before = [], _without(survey, batch < told[0])
    for number in told:
        after = _without(survey, batch <= number)
        if after is None:
            continue
        if before is not None:
            plan, rows = plans[number], np.flatnonzero(batch == number)
            when = None if space.time is None else plan.get("when")
            sd, now = (_typical_sd(each, cells, when) for each in (before, after))
            expected = plan.get("sd_after")
            inside = _inside(before, survey, rows)
            found.append(
                Gain(int(number), str(plan["objective"]), int(plan["sites"]), len(rows), sd, now, expected, inside)
            )
        before = after
    return found


def _without(survey: FittedSurvey, kept: npt.NDArray[np.bool_]) -> FittedSurvey | None:
    """Return the survey with some measurements only, and the hyperparameters of all; None if too few are left."""
    if kept.all():
        return survey
    amounts = kept
    if survey.presence is not None:
        amounts = kept[survey.workspace.state.sites.value.to_numpy(dtype=np.float64) > 0]
    if amounts.sum() < 1:
        return None
    main = _some(survey.surface, amounts)
    presence = None if survey.presence is None else _some(survey.presence, kept)
    return replace(survey, sites=main.sites, model=main.model, presence=presence)


def _some(surface: Surface, kept: npt.NDArray[np.bool_]) -> Surface:
    sites = surface.sites
    some = sites.some(kept)
    model = model_of(some, surface.fit)
    return Surface(replace(some, likelihood=sites.likelihood), surface.fit, model)


def _typical_sd(survey: FittedSurvey, cells: Array, when: float | None) -> float:
    """Return the root of the mean variance over cells; at a time, if that of a plan was kept."""
    known = survey.known(cells, covariates=None if when is None else survey.covariates_on(cells, when))
    sd = known.sd if isinstance(known, Scaled) else known.moments()[1]
    return float(np.sqrt(np.square(sd).mean()))


def _inside(before: FittedSurvey, survey: FittedSurvey, rows: npt.NDArray[np.intp]) -> float:
    """Return the share of measurements inside the intervals that those before let expect."""
    space = survey.workspace
    sites, columns = space.state.sites.iloc[rows], space.columns
    own = "of" if columns.of is not None else "error" if columns.error is not None else None
    told = None if own is None else sites[own].to_numpy(dtype=np.float64)
    expected = before.measured(before.known(space.xy(sites), covariates=space.covariates_of(rows)), told)
    return float(held(expected, space.values()[rows], 0.95).mean())
