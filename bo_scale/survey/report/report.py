"""The report on a survey: sections on its measurements, structure, predictions and plans."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.mapping.coefficients import without_trend
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.structure import Structure, compass, distance_text, measured_on
from bo_scale.survey.mapping.surface import Surface
from bo_scale.survey.mapping.temporal import Time
from bo_scale.survey.paths import REPORT_ENDINGS, require_ending
from bo_scale.survey.report.figures import (
    colour_key,
    draw_errors,
    draw_measured,
    draw_variogram,
    draw_variogram_in_time,
)
from bo_scale.survey.report.gains import Gain, gains_of
from bo_scale.survey.report.page import page_of
from bo_scale.survey.report.sections import Block, Facts, Figure, Grid, Section, text_of
from bo_scale.survey.report.validation import FAR, LeftOut, Scores, by_blocks, by_periods, by_place
from bo_scale.survey.report.variogram import Variogram, variogram_in_time, variogram_of
from bo_scale.survey.whole_files import write_whole

Array = npt.NDArray[np.float64]
LISTED = 12
"""Suspects that are named."""
BY_PERIODS = "By periods: from those of other times, as for a map of a date without measurements. "
TOGETHER = 0.15
"""Share of a range up to which measurements count as at one place, or at one time, in a variogram of the other."""
LITTLE = 0.1
"""Share of what can be explained below which predictions explain little."""
OFF = 0.05
"""Difference of a coverage from 95 % of which a report makes a sentence, and at least two standard errors."""


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        title: Its title.
        structures: Structure of each process, by name: "" for the only one, or "amount" and "presence".
        scores: Scores of cross-validations.
        gains: Gains of plans.
        sections: What it says.
    """

    title: str
    structures: dict[str, Structure]
    scores: list[Scores]
    gains: list[Gain]
    sections: list[Section]

    @property
    def text(self) -> str:
        """The report without its drawings."""
        return text_of(self.title, self.sections)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing else (.html), or the text (.txt). Atomic.

        Raises:
            SurveyError: for another kind of file, or if it cannot be written.
        """
        is_text = require_ending(path, REPORT_ENDINGS) == ".txt"
        content = self.text + "\n" if is_text else page_of(self.title, self.sections)
        write_whole(path, [content.encode("utf-8", errors="replace")])


@dataclass(frozen=True)
class Material:
    """What sections of a report are made from; the costly parts are computed once.

    Attributes:
        survey: The survey and its model.
        path: Its file.
    """

    survey: FittedSurvey
    path: str

    @property
    def surfaces(self) -> dict[str, Surface]:
        """The models, by the names of `Report.structures`."""
        if self.survey.presence is None:
            return {"": self.survey.surface}
        return {"amount": self.survey.surface, "presence": self.survey.presence}

    @cached_property
    def structures(self) -> dict[str, Structure]:
        """The structure of each."""
        return {name: Structure.of(each.fit, each.sites.variance is not None) for name, each in self.surfaces.items()}

    @cached_property
    def left_out(self) -> LeftOut | None:
        """Measurements predicted from those of other places."""
        return by_place(self.survey)

    @cached_property
    def beyond(self) -> LeftOut | None:
        """Measurements predicted from those outside their blocks."""
        return by_blocks(self.survey)

    @cached_property
    def between(self) -> LeftOut | None:
        """Measurements predicted from those of other periods."""
        return by_periods(self.survey)

    @cached_property
    def gains(self) -> list[Gain]:
        """Gains of plans."""
        return gains_of(self.survey)

    @property
    def labels(self) -> list[str]:
        """Labels of measurements: ids, or file and row."""
        sites = self.survey.workspace.state.sites
        return [
            str(site) if site else f"{file}, row {row}"
            for site, file, row in zip(sites.site, sites.file, sites.row, strict=True)
        ]

    def where(self, name: str) -> str:
        """Return what variances of a process are of."""
        space = self.survey.workspace
        if name == "presence":
            return f"the logit of the presence of {space.quantity}"
        return measured_on(space.quantity, space.scale.name)


def summary(material: Material) -> Section:
    """Return what the survey is, in numbers."""
    space, left_out = material.survey.workspace, material.left_out
    value = space.values()
    middle = f"mean {value.mean():.4g}, median {np.median(value):.4g}"
    facts = [
        ("Measurements", f"{len(value):,}"),
        (space.quantity, f"{value.min():.4g} to {value.max():.4g}, {middle}"),
        ("Area", f"{space.region.area / 1e6:,.4g} km²"),
        ("Range", ", ".join(each.reach for each in material.structures.values())),
    ]
    if (time := material.survey.fit.time) is not None:
        facts.append((space.time_column or "time", _dates(Time(**time), space.times)))
    if left_out is not None:
        scores = left_out.scores
        explained = f"{100 * max(scores.explained, 0):.0f} % of the variance explained"
        explained += f" ({100 * scores.attainable:.0f} % at most)" if scores.chance else ""
        facts += [
            ("Error of predictions (RMSE)", f"{scores.rmse:.3g}, {explained}"),
            ("Inside 95 % intervals", f"{100 * scores.inside95:.0f} % of the measurements"),
        ]
    return Section("The survey", [Facts(facts)], "summary")


def _dates(time: Time, found: Array) -> str:
    """Return the first and the last time, and the number of different ones."""
    return f"{time.shown(found.min())} to {time.shown(found.max())}, {len(np.unique(found)):,} different"


def structure(material: Material) -> Section:
    """Return the spatial structure in words, with variograms."""
    fit = material.survey.fit
    if fit.nearest is not None:
        blocks: list[Block] = ["Maps are made from the nearest sites, by a sum of two Gaussian processes."]
    else:
        blocks = [f"Maps are made from all measurements at once, by a Gaussian process with kernel {fit.kernel}."]
    for name, surface in material.surfaces.items():
        found = material.structures[name]
        before = f"{name.capitalize()}: " if name else ""
        blocks += [before + each for each in found.sentences(material.where(name))]
        if surface.sites.varies:
            blocks += _variograms(surface, found, material.where(name))
        else:
            blocks.append("One measurement at a place says only if it is there, so no variogram is shown.")
    return Section("Spatial structure", blocks, "structure")


def _variograms(surface: Surface, found: Structure, where: str) -> list[Block]:
    """Return empirical variograms over the fitted one, of two directions if ranges differ."""
    bearings: list[float | None] = [None]
    if found.anisotropic:
        axis = found.parts[-1].angle
        bearings = [axis, (axis + 90) % 180]
    names = ["all directions" if bearing is None else compass(bearing) for bearing in bearings]
    sites = without_trend(surface.sites, surface.model, surface.fit)
    within = inf if found.range_in_time is None else TOGETHER * found.range_in_time
    every = [variogram_of(sites, surface.fit, found.sill, bearing, within) for bearing in bearings]
    if not any(len(each.distance) for each in every):
        return ["There are too few pairs of measurements for a variogram.", *_in_time(sites, surface.fit, found, where)]
    caption = "Points: half the mean squared differences, larger where there are more pairs. Line: fitted."
    if found.time is not None and within < inf:
        caption += f" Pairs are of measurements within {found.time.duration(within)} of each other."
    if surface.sites.likelihood is not None:
        caption += " The points are of values that stand for counts or limits, less their errors."
    elif surface.sites.variance is not None:
        caption += " Known errors are subtracted."
    in_space: list[Block] = [Figure(draw_variogram(found, every, names, where), caption), _bins(every, names)]
    return [*in_space, *_in_time(sites, surface.fit, found, where)]


def _in_time(sites: Sites, fit: Fit, found: Structure, where: str) -> list[Block]:
    """Return the variogram by the time between measurements, of pairs that are near each other; none without time."""
    if found.time is None:
        return []
    within = TOGETHER * found.range
    seen = variogram_in_time(sites, fit, found.sill, within)
    if not len(seen.distance):
        return [f"There are too few pairs within {distance_text(within)} for a variogram in time."]
    caption = f"The same by the time between measurements, of pairs within {distance_text(within)} of each other."
    return [Figure(draw_variogram_in_time(found, found.time, seen, where), caption)]


def coefficients(material: Material) -> Section | None:
    """Return the coefficients of covariates; None without any."""
    if not material.survey.fit.trend:
        return None
    rows = [
        (str(one[1]), str(one[2]), *(f"{number:.4g}" for number in one[3:5]), f"{one[5]:.4g} to {one[6]:.4g}")
        for one in material.survey.coefficients.itertuples()
    ]
    where = material.where("amount" if material.survey.presence else "")
    said = (
        f"They are of {where}: of a number the change for each of its units, of a class the difference from the mean "
        "of all classes. Covariates with a smooth effect have none."
    )
    grid = Grid(("covariate", "class", "coefficient", "sd", "95 % interval"), rows, 2)
    return Section("Coefficients of covariates", [grid, said] if rows else [said], "coefficients")


def _bins(found: list[Variogram], names: list[str]) -> Grid:
    """Return a table of a few bins."""
    rows = []
    for each, name in zip(found, names, strict=True):
        for k in range(0, len(each.distance), 3):
            at, height = distance_text(float(each.distance[k])), f"{each.semivariance[k]:.3g}"
            rows.append((name, at, height, f"{each.pairs[k]:,}"))
    return Grid(("direction", "distance", "semivariance", "pairs"), rows)


def validation(material: Material) -> Section:
    """Return how well measurements are predicted."""
    found = [each for each in (material.left_out, material.beyond, material.between) if each is not None]
    if not found:
        return Section("Cross-validation", ["There are too few places to leave some out."], "validation")
    space = material.survey.workspace
    header = ("left out", "measured", "RMSE", "bias", "CRPS", "explained", "in 50 %", "in 95 %")
    blocks: list[Block] = [
        "Each measurement is predicted from others and compared. By place: from those of all other places. By blocks: "
        "from those outside its part of the area, as for a map beyond the measurements. "
        + BY_PERIODS * (material.between is not None)
        + "Hyperparameters are those of all.",
        Grid(header, [_row(each.scores) for each in found]),
        f"RMSE, bias and CRPS are in units of {space.quantity}. Explained: the share of the variance that predictions "
        "explain; below zero the mean of all would be better. In 50 % and 95 %: measurements inside these intervals.",
        *_by_chance(found[0].scores),
        *_judgements(found),
    ]
    if (first := material.left_out) is not None:
        drawn = draw_errors(first, space.xy(space.state.sites), space.region.shape, material.labels)
        expected = "Measurements by what those of other places let expect, with 95 % intervals."
        below = "Measurements below (blue) and above (red) what others let expect; suspects have a thick rim."
        blocks += [Figure(draw_measured(first, space.quantity), expected), Figure(drawn + colour_key(), below)]
    return Section("Cross-validation", blocks, "validation")


def _by_chance(scores: Scores) -> list[str]:
    """Return a sentence on what nothing can explain of counts."""
    if not scores.chance:
        return []
    return [
        f"About {100 * scores.chance:.0f} % of the variance of these counts is the chance of counting, so predictions "
        f"can explain {100 * scores.attainable:.0f} % at most."
    ]


def _row(scores: Scores) -> tuple[str, ...]:
    numbers = (f"{number:.3g}" for number in (scores.rmse, scores.bias, scores.crps))
    shares = (f"{100 * share:.0f} %" for share in (scores.explained, scores.inside50, scores.inside95))
    return scores.name, f"{scores.count:,}", *numbers, *shares


def _judgements(found: list[LeftOut]) -> list[str]:
    """Return sentences on intervals that hold too little or too much, and on blocks that are worse."""
    said = []
    for each in found:
        scores, error = each.scores, 2 * (0.95 * 0.05 / each.scores.count) ** 0.5
        if scores.inside95 < 0.95 - max(OFF, error):
            said.append(
                f"Left out {scores.name}, only {100 * scores.inside95:.0f} % of the measurements are inside their 95 % "
                "intervals: predictions are less certain than the map says."
            )
        if scores.explained < LITTLE * scores.attainable or scores.attainable == 0:
            much = " of what could be explained" if scores.chance else ""
            said.append(f"Left out {scores.name}, predictions explain little{much}: a mean would do almost as well.")
    return said


def suspects(material: Material) -> Section:
    """Return the measurements that fit worst."""
    left_out = material.left_out
    if left_out is None:
        return Section("Suspects", ["There are too few places to tell."], "suspects")
    far = left_out.suspects
    if not len(far):
        said = f"No measurement is more than {FAR:g} sd from what the others let expect."
        return Section("Suspects", [said], "suspects")
    labels = material.labels
    rows = [
        (
            labels[left_out.rows[k]],
            f"{left_out.value[k]:.4g}",
            f"{left_out.mean[k]:.4g}",
            f"{left_out.lower[k]:.4g} to {left_out.upper[k]:.4g}",
            f"{left_out.score[k]:+.1f}",
        )
        for k in far[:LISTED]
    ]
    more = f" The {LISTED} farthest of {len(far):,}:" if len(far) > LISTED else ""
    return Section(
        "Suspects",
        [
            f"These measurements are more than {FAR:g} sd from what the others let expect. One of 2,000 sound ones is. "
            f"Check them for errors of typing, units and places; they count like all others.{more}",
            Grid(("measurement", "value", "expected", "95 % interval", "sd off"), rows),
        ],
        "suspects",
    )


def plans(material: Material) -> Section:
    """Return what plans have gained."""
    gains, space = material.gains, material.survey.workspace
    if not gains:
        pending = len(space.pending)
        said = f"{pending} planned sites are to be measured." if pending else "No site of a plan has been measured yet."
        return Section("What plans gained", [said], "plans")
    rows = [
        (
            f"{each.batch}",
            each.objective,
            f"{each.measured} of {each.planned}" if each.measured <= each.planned else f"{each.measured}",
            f"{each.before:.4g}",
            f"{each.after:.4g}",
            f"{each.percent:.1f} %",
            "" if each.expected is None else f"{each.expected:.4g}",
            f"{100 * each.inside:.0f} %",
        )
        for each in gains
    ]
    last, scale = gains[-1], "" if space.scale.name in ("none", "two-part") else f" (on the {space.scale.name} scale)"
    dated = "" if space.time is None else ", on the date of the plan"
    blocks: list[Block] = [
        f"The last plan with measurements, {last.batch}, lowered the typical sd over the area{scale} from "
        f"{last.before:.4g} to {last.after:.4g}, by {last.percent:.1f} %.",
        Grid(("plan", "objective", "measured", "sd before", "sd after", "gain", "expected sd", "in 95 %"), rows, 2),
        "Typical sds are those without and with the measurements of the plan, given those before, with the present "
        f"hyperparameters{dated}; what a plan expected was computed with those of then, over its own weights. In 95 %: "
        "its measurements inside the intervals that those before let expect.",
    ]
    return Section("What plans gained", blocks, "plans")


def notes(material: Material) -> Section:
    """Return what a reader should know of the survey."""
    return Section("Notes", material.survey.workspace.notes or ["There are none."], "notes")


SECTIONS: list[Callable[[Material], Section | None]] = [
    summary,
    structure,
    coefficients,
    validation,
    suspects,
    plans,
    notes,
]
"""Functions that make the sections, in their order; one that returns None leaves its section out."""


def report_of(survey: FittedSurvey, path: str | os.PathLike[str], title: str | None = None) -> Report:
    """Return the report on a survey.

    Args:
        survey: The survey and its model.
        path: Its file.
        title: Title of the report; None for one of the quantity.
    """
    material = Material(survey.of_modelled, os.fspath(path))
    sections = [found for make in SECTIONS if (found := make(material)) is not None]
    scores = [each.scores for each in (material.left_out, material.beyond, material.between) if each is not None]
    named = title or f"Survey of {survey.workspace.quantity} ({Path(path).name})"
    return Report(named, material.structures, scores, material.gains, sections)
