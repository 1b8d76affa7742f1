"""Say what a fit has shown: a coarse grid, and observations that stand apart."""

import logging
import warnings
from dataclasses import replace

import torch
from botorch.models.model import Model

from bo_scale.errors import InterpolationWarning
from bo_scale.loop import insight
from bo_scale.loop.history.observations import Id
from bo_scale.loop.run import Run
from bo_scale.loop.surrogate.builder import Surrogate
from bo_scale.loop.surrogate.resolution import coarse_grid
from bo_scale.loop.surrogate.surprise import LEAST_ERROR
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.model import ScalableModel

logger = logging.getLogger("bo_scale.loop")
LOOKED_AT = 5000
"""Up to so many observations each fit looks for suspicious ones: with any, as long as the fit took."""
ERRORS = 2, 0.1
"""Number of suspicious observations, and share of all, up to which each is named as a possible error."""
MOST_DEVIATIONS = 100
"""Distances are said up to so many standard deviations: beyond, they depend on rounding."""
_MANY = (
    "%d observations are far from what the others predict. So many are seldom errors: values may change faster in some "
    "places than the model describes. suspects() lists them."
)


class Reports:
    """Reports of the fits of a run, each thing once.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._grid_reported = False
        self._reported: Surrogate | None = None
        self._suspects: dict[Id, float] = {}
        self._many_reported = False

    def after_fit(self, surrogate: Surrogate) -> None:
        """Report what the fit of a surrogate has shown, if it was not reported before."""
        if surrogate is self._reported:
            return
        self._reported = surrogate
        self._report_grid(surrogate.model)
        if isinstance(surrogate.model, ScalableModel) and surrogate.model.fit_report is not None:
            for message in surrogate.model.fit_report.warnings:
                logger.info("%s", message)
        if surrogate.count <= LOOKED_AT:
            self._report_suspects(surrogate)

    def _report_grid(self, model: Model) -> None:
        """Report a coarse grid: to the log after every fit, as a warning once."""
        message = coarse_grid(model)
        if message is None:
            return
        logger.info("%s", message)
        if not self._grid_reported:
            self._grid_reported = True
            later = "For later fits see the log 'bo_scale.loop'."
            warnings.warn(f"{message} {later}", InterpolationWarning, 5)

    def _report_suspects(self, surrogate: Surrogate) -> None:
        """Say in the log which observations stand apart, each value once."""
        try:
            found = suspects_of(self._run, surrogate)
        except UnsupportedError:
            return
        except Exception as error:  # the points are asked for already
            logger.warning("suspects are not looked for: %s", error)
            return
        self._run.suspected = frozenset()
        apart = len({each.row for each in found})
        if apart > max(ERRORS[0], ERRORS[1] * surrogate.count):
            if not self._many_reported:
                logger.warning(_MANY, apart)
            self._many_reported = True
            return
        values = self._run.data(surrogate)[1]
        names = self._run.history.outcomes.names
        for each in found:
            own = values[:, 0 if names is None else names.index(each.outcome or "")]
            others = torch.cat([own[: each.row], own[each.row + 1 :]])
            if abs(each.value - each.predicted) >= LEAST_ERROR * others.std().item():
                self._report_suspect(each)

    def _report_suspect(self, found: insight.Suspect) -> None:
        if found.id is None:
            return
        self._run.suspected |= {found.id}
        if self._suspects.get(found.id) == found.value:
            return
        self._suspects[found.id] = found.value
        far = f"over {MOST_DEVIATIONS}" if abs(found.z) > MOST_DEVIATIONS else f"{abs(found.z):.3g}"
        logger.warning(
            "observation %r is far from what the others predict: %.6g, %s standard deviations from %.6g. If it is an "
            "error, revise(%r, value) or forget(%r).",
            found.id,
            found.value,
            far,
            found.predicted,
            found.id,
            found.id,
        )


def suspects_of(run: Run, surrogate: Surrogate, threshold: float | None = None) -> list[insight.Suspect]:
    """Return the observations of a run that stand apart, with their ids.

    Args:
        run: The run.
        surrogate: The model of its first observations.
        threshold: Smallest distance in standard deviations, or None.
    """
    history = run.history
    told = history.told
    again = None if surrogate.parts else run.single.refitted(surrogate)
    found = insight.suspects(
        history.space,
        history.outcomes,
        surrogate.model,
        *run.data(surrogate),
        threshold=threshold,
        fitted=again,
    )
    return [replace(each, id=told.ids[each.row]) for each in found]
