"""Cross-validation: every measurement predicted from others, with the hyperparameters of all.

By place a measurement is predicted from those of all other places; by blocks from those outside its block, a compact
part of the area, as for a map beyond the measurements. With times also by periods: from those of other periods, as for
a map of a date without measurements. What is predicted is a measurement, with all that it varies.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2
from scipy.special import ndtri
from scipy.stats import norm

from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.mapping.forecast import Forecast, Scaled, TwoPart
from bo_scale.survey.mapping.gaps import Gaps
from bo_scale.survey.mapping.measurement import crps, held
from bo_scale.survey.mapping.model import coordinates, model_of, model_tensors, predict
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.structure import Structure
from bo_scale.survey.mapping.surface import Surface

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
TESTED = 1000
"""Measurements that are predicted, drawn at random, where the model is not exact."""
FOLDS, BLOCKS = 10, 10
"""Parts of the places that are left out together where the model is not exact, and compact blocks."""
FEWEST = 5
"""Places that are cross-validated, at least."""
FAR = 3.5
"""Standard normal scores of suspects: one of 2,000 sound measurements is as far."""
CAPPED = 8.0


@dataclass(frozen=True)
class Scores:
    """How well measurements were predicted, in the user's units.

    Attributes:
        name: How they were left out.
        count: Number of measurements predicted.
        rmse: Root of the mean squared error of means.
        bias: Mean of prediction less measurement.
        crps: Mean continuous ranked probability score.
        inside50: Share of measurements inside their 50 % intervals.
        inside95: Share inside their 95 % intervals.
        explained: 1 − MSE/variance of the measurements: below zero their mean would predict better.
        folds: Number of parts that were left out.
        chance: Share of the variance of counts that is the chance of counting, which nothing can explain; 0 of others.
    """

    name: str
    count: int
    rmse: float
    bias: float
    crps: float
    inside50: float
    inside95: float
    explained: float
    folds: int
    chance: float = 0.0

    @property
    def attainable(self) -> float:
        """Share of the variance that predictions could explain at best."""
        return 1 - self.chance


@dataclass(frozen=True)
class LeftOut:
    """Measurements and what the others let expect of them.

    Attributes:
        rows: Rows of the survey.
        value: Measurements, in the user's units.
        mean: Means expected.
        lower: Lower ends of 95 % intervals.
        upper: Upper ends.
        score: Standard normal scores of the measurements within what was expected.
        scores: The scores of all.
    """

    rows: npt.NDArray[np.intp]
    value: Array
    mean: Array
    lower: Array
    upper: Array
    score: Array
    scores: Scores

    @property
    def suspects(self) -> npt.NDArray[np.intp]:
        """Positions of measurements that are far from what was expected, the farthest first."""
        far = np.flatnonzero(np.abs(self.score) > FAR)
        return far[np.argsort(-np.abs(self.score[far]), kind="stable")]


def by_place(survey: FittedSurvey) -> LeftOut | None:
    """Predict measurements from those of all other places; None for fewer than `FEWEST` places."""
    xy = _places(survey)
    _, place = np.unique(xy, axis=0, return_inverse=True)
    place = place.reshape(-1).astype(np.int64)
    if place.max() + 1 < FEWEST:
        return None
    if _dense(survey):
        return _left_out(survey, place, "by place")
    rng = np.random.default_rng(0)
    fold = rng.integers(FOLDS, size=place.max() + 1)[place]
    return _left_out(survey, fold, "by place", _some(len(xy), rng))


def by_blocks(survey: FittedSurvey) -> LeftOut | None:
    """Predict measurements from those outside their blocks; None for fewer than two blocks of `FEWEST` places."""
    xy = _places(survey)
    inputs = survey.fit.in_space(xy)
    unique = np.unique(inputs, axis=0)
    blocks = min(BLOCKS, len(unique) // FEWEST)
    if blocks < 2:
        return None
    rng = np.random.default_rng(0)
    centres, _ = kmeans2(unique / np.ptp(unique, axis=0).max(), blocks, minit="++", rng=rng)
    apart = np.linalg.norm(inputs[:, None] / np.ptp(unique, axis=0).max() - centres, axis=-1)
    _, fold = np.unique(apart.argmin(1), return_inverse=True)
    some = None if _dense(survey) else _some(len(xy), rng)
    return _left_out(survey, fold.reshape(-1).astype(np.int64), "by blocks", some)


def by_periods(survey: FittedSurvey) -> LeftOut | None:
    """Predict measurements from those of other periods; None without times, and for fewer than `FEWEST` of them."""
    if survey.fit.time is None:
        return None
    times, which, counts = np.unique(survey.workspace.times, return_inverse=True, return_counts=True)
    if len(times) < FEWEST:
        return None
    before = np.cumsum(counts) - counts  # periods of about as many measurements, none of which parts a date
    fold = np.minimum(before * BLOCKS // len(which), BLOCKS - 1)[which.reshape(-1)]
    some = None if _dense(survey) else _some(len(which), np.random.default_rng(0))
    return _left_out(survey, fold.astype(np.int64), "by periods", some)


def _places(survey: FittedSurvey) -> Array:
    return survey.workspace.xy(survey.workspace.state.sites)


def _dense(survey: FittedSurvey) -> bool:
    """Whether all measurements are left out in closed form."""
    return survey.presence is None and isinstance(survey.model.processes[0], FunctionSpacePosterior)


def _some(count: int, rng: np.random.Generator) -> npt.NDArray[np.intp] | None:
    return np.sort(rng.permutation(count)[:TESTED]) if count > TESTED else None


def _left_out(
    survey: FittedSurvey, fold: Ints, name: str, tested: npt.NDArray[np.intp] | None = None
) -> LeftOut | None:
    """Leave folds out; score the measurements tested, but none below a limit."""
    space = survey.workspace
    usable = ~space.below if tested is None else np.isin(np.arange(len(fold)), tested) & ~space.below
    rows = np.flatnonzero(usable)
    if not len(rows):
        return None
    xy, value = _places(survey), space.values()[rows]
    known = _forecast(survey, xy, fold, rows)
    own = space.columns.of or space.columns.error
    told = None
    if own is not None:
        column = "of" if space.columns.of is not None else "error"
        told = space.state.sites[column].to_numpy(dtype=np.float64)[rows]
    expected = survey.measured(known, told)
    mean, _ = expected.moments()
    lower, upper = expected.quantile(0.025), expected.quantile(0.975)
    inside50, inside95 = (float(held(expected, value, share).mean()) for share in (0.5, 0.95))
    off = mean - value
    spread = max(float(np.square(value - value.mean()).mean()), float(np.finfo(np.float64).tiny))
    scores = Scores(
        name,
        len(rows),
        float(np.sqrt(np.square(off).mean())),
        float(off.mean()),
        float(crps(expected, value).mean()),
        inside50,
        inside95,
        1 - float(np.square(off).mean()) / spread,
        len(np.unique(fold[rows])),
        min(1.0, _by_chance(survey, known, told) / spread),
    )
    least = norm.sf(CAPPED)
    score = np.asarray(ndtri(np.clip(expected.below(value), least, 1 - 1e-15)))
    return LeftOut(rows, value, mean, lower, upper, score, scores)


def _by_chance(survey: FittedSurvey, known: Forecast, of: Array | None) -> float:
    """Return the mean variance of counts about their shares or rates: E[p(1 − p)]/n, or E[λ]/e; 0 of other values."""
    columns = survey.workspace.columns
    if columns.of is None or of is None:
        return 0.0
    mean, sd = known.moments()
    variance = mean if columns.exposed else mean * (1 - mean) - np.square(sd)
    return float((np.maximum(variance, 0.0) / of).mean())


def _forecast(survey: FittedSurvey, xy: Array, fold: Ints, rows: npt.NDArray[np.intp]) -> Forecast:
    """Return what is known of the quantity at rows without those of their folds."""
    beside = survey.workspace.at_sites
    if survey.presence is None:
        return Scaled(survey.workspace.scale, *_without_folds(survey.surface, xy, fold, rows, beside=beside))
    amounts = np.flatnonzero(survey.workspace.state.sites.value.to_numpy(dtype=np.float64) > 0)
    amount = _without_folds(survey.surface, xy, fold, rows, amounts, beside)
    return TwoPart(amount, _without_folds(survey.presence, xy, fold, rows, beside=beside))


def _without_folds(
    surface: Surface,
    xy: Array,
    fold: Ints,
    rows: npt.NDArray[np.intp],
    members: npt.NDArray[np.intp] | None = None,
    beside: Array | None = None,
) -> tuple[Array, Array]:
    """Return means and standard deviations of a surface at rows, without the measurements of their folds.

    Args:
        surface: The surface.
        xy: Places of all rows of the survey.
        fold: Fold of each.
        rows: Rows that are predicted.
        members: Rows that the surface has; None for all.
        beside: Covariates of all rows of the survey.
    """
    if members is None and isinstance(surface.model.processes[0], FunctionSpacePosterior):
        mean, sd = _closed(surface, fold)
        return mean[rows], sd[rows]
    mean, sd = np.empty(len(xy)), np.empty(len(xy))
    own = fold if members is None else fold[members]
    for number in np.unique(fold[rows]):
        at = rows[fold[rows] == number]
        rest = surface.sites.some(own != number)  # with the stand-ins that they have
        mean[at], sd[at] = _from(rest, surface, xy[at], None if beside is None else beside[at])
    return mean[rows], sd[rows]


def _from(rest: Sites, surface: Surface, xy: Array, covariates: Array | None = None) -> tuple[Array, Array]:
    """Predict from other sites, with the hyperparameters of a surface."""
    fit = surface.fit
    if not len(rest.z):
        sd = Structure.of(fit, rest.variance is not None).sill ** 0.5
        return np.full(len(xy), fit.offset), np.full(len(xy), sd)
    gaps = Gaps(fit, rest)
    needed = fit.nearest is None or (gaps.weights(xy) > 0).any()
    model: ScalableModel = model_of(rest, fit) if needed else surface.model
    return predict(model, fit, rest, xy, False, covariates, gaps)


def _closed(surface: Surface, fold: Ints) -> tuple[Array, Array]:
    """Return left-out means and standard deviations of the quantity for an exact model, in closed form.

    With Q = (K + Σ)⁻¹ the measurements of a fold F are C (Q y)_F from what the others let expect, and C = (Q_FF)⁻¹ is
    the covariance of that difference (S. Sundararajan, S. S. Keerthi. Predictive approaches for choosing
    hyperparameters in Gaussian processes. Neural Computation 13, 2001).
    """
    process, fit = surface.model.processes[0], surface.fit
    assert isinstance(process, FunctionSpacePosterior), "asked before"
    with torch.no_grad():
        points = coordinates(surface.model, fit, surface.sites.xy, surface.sites.covariates)
        _, Y, known = model_tensors(surface.sites, fit)
        noise = surface.model.measurement_noise(0).expand(len(Y)) if known is None else known.squeeze(-1)
        y = Y.squeeze(-1) - process.constant
        L = cholesky(process.kernel(points, points) + torch.diag(noise), "covariance of the measurements")
        Q, weighted = torch.cholesky_inverse(L), torch.cholesky_solve(y.unsqueeze(-1), L).squeeze(-1)
        mean, variance = np.empty(len(y)), np.empty(len(y))
        for rows in _folds(fold):
            C = torch.cholesky_inverse(cholesky(Q[np.ix_(rows, rows)], "precision of a fold"))
            mean[rows] = y[rows] - C @ weighted[rows]
            variance[rows] = C.diagonal() - noise[rows]
    constant = float(process.constant)
    return fit.offset + fit.unit * (mean + constant), fit.unit * np.sqrt(np.maximum(variance, 0.0))


def _folds(fold: Ints) -> Iterator[npt.NDArray[np.intp]]:
    order = np.argsort(fold, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(fold[order])) + 1)
