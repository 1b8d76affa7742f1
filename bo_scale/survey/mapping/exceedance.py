"""The area above a threshold, with an interval.

Probabilities cell by cell give the mean only, because cells vary together. The interval is that of the area above the
threshold in functions drawn from the posterior.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.special import log_expit
from torch import Size, Tensor
from typing_extensions import override

from bo_scale.decisions.paths import draw_posterior_functions
from bo_scale.errors import SurveyError
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.geography.thinning import thinned
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.forecast import TwoPart
from bo_scale.survey.mapping.model import coordinates, forecast, predict
from bo_scale.survey.mapping.scales import Scale
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.surface import Surface

Array = npt.NDArray[np.float64]
CELLS = 2500
"""Places at which functions are drawn."""
DRAWS, MOST_DRAWS = 1000, 10_000
LEVEL, SURE = 0.9, 0.95
ROUNDING = 1e-9
"""Share of the prior's variance that is added to each place's: rounding errs by some 1e-12 of it."""
CHUNK = 250
"""Places at which functions of features are evaluated at once."""


@dataclass(frozen=True)
class Interval:
    """A quantity that is not known.

    Attributes:
        mean: Expected.
        lower: 5 % are below.
        upper: 5 % are above.
    """

    mean: float
    lower: float
    upper: float

    @classmethod
    def of(cls, mean: float, draws: Array) -> "Interval":
        """Return the interval of draws, with a mean that is known."""
        lower, upper = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(mean, float(lower), float(upper))

    def times(self, factor: float) -> "Interval":
        """The same in other units."""
        return Interval(factor * self.mean, factor * self.lower, factor * self.upper)

    @override
    def __str__(self) -> str:
        mean, lower, upper = (f"{float(f'{x:.3g}'):,.12g}" for x in (self.mean, self.lower, self.upper))
        return f"{mean} ({lower} to {upper})"

    @property
    def percent(self) -> str:
        """The interval of a share, in per cent."""
        digits = 1 if self.upper < 0.1 else 0
        mean, lower, upper = (f"{100 * x:.{digits}f}" for x in (self.mean, self.lower, self.upper))
        return f"{mean} % ({lower} to {upper} %)"


@dataclass(frozen=True)
class Exceeding:
    """The parts of the area and of the weights above a threshold, with 90 % intervals.

    Attributes:
        threshold: Threshold in the user's units.
        area: Area above the threshold, km².
        share: Share of the area above the threshold.
        weight: Sum of the weights of the places above; None for a survey without weights.
        weight_share: The same as a share of all weights.
        unknown: Share of the area whose side of the threshold is not known at 95 %.
    """

    threshold: float
    area: Interval
    share: Interval
    weight: Interval | None
    weight_share: Interval | None
    unknown: float

    @property
    def summary(self) -> str:
        """Return the numbers in two sentences."""
        whole = f"Above {self.threshold:g}, with 90 % intervals: {self.share.percent} of the area, {self.area} km²"
        if self.weight is not None and self.weight_share is not None:
            whole += f"; {self.weight_share.percent} of the weights, {self.weight}"
        return f"{whole}. In {100 * self.unknown:.0f} % of the area, the 95 % interval includes the threshold."


def exceeding(
    model: ScalableModel,
    fit: Fit,
    scale: Scale,
    cells: Array,
    area: float,
    counted: tuple[Array, Array] | None,
    threshold: float,
    draws: int = DRAWS,
    seed: int = 0,
    sites: Sites | None = None,
    presence: Surface | None = None,
) -> Exceeding:
    """Estimate how much is above a threshold. 1 to 4 s on one core for the area, as much for weights, at any n.

    Means are integrals of the exceedance probability. An exact model takes O(n³ + n² draws) time and O(n²) memory for
    n cells, 250 MB for 2500; one on grids O(n draws), 50 MB.

    Args:
        model: Fitted.
        fit: Its hyperparameters.
        scale: Scale of the model.
        cells: Centres of cells of equal size, `n × 2`, metres.
        area: Area of all cells, square metres.
        counted: Places, `m × 2` metres, and their weights; None without. At most `CELLS` of them are drawn.
        threshold: Threshold in the user's units.
        draws: Number of functions, 2 to 10,000.
        seed: Seed of the functions.
        sites: Measurements, if maps are made from the nearest sites: each place then varies as on the map, and
            together with others as in the model.
        presence: Where the quantity is present, if that is modelled apart from its amount.

    Raises:
        SurveyError: for a threshold that has no image on the scale, or too few or many draws.
    """
    scale.require(threshold)
    if not (2 <= draws <= MOST_DRAWS and seed >= 0):
        raise SurveyError(f"draws: give 2 to {MOST_DRAWS:,}. seed: must not be negative.")
    generator = torch.Generator().manual_seed(seed)
    limit = float(scale.forward(np.array([threshold]))[0])

    def of(xy: Array, weights: Array) -> tuple[Interval, Array]:
        if presence is not None:
            amount = Surface(sites, fit, model) if sites is not None else None
            assert amount is not None, "of two parts the sites are given"
            above, shares = _of_two_parts(amount, presence, xy, weights, threshold, draws, generator)
            return Interval.of(float(above @ weights / weights.sum()), shares), above
        mean, sd = own = forecast(model, fit, xy, progress=False)
        limits = np.full(len(xy), limit)
        if sites is not None and fit.nearest is not None:
            mean, sd = predict(model, fit, sites, xy, progress=False)
            with np.errstate(over="ignore"):  # known exactly: above its limit, or below, in every function
                limits = own[0] + own[1] * (limit - mean) / np.maximum(sd, 1e-300)
        above = scale.exceedance(mean, sd, threshold)
        shares = shares_above(model, fit, xy, weights, limits, draws, generator)
        return Interval.of(float(above @ weights / weights.sum()), shares), above

    share, above = of(cells, np.ones(len(cells)))
    unknown = np.abs(above - 0.5) < SURE / 2
    weight_share = None if counted is None else of(*thinned(*counted, CELLS, generator))[0]
    weight = None if counted is None or weight_share is None else weight_share.times(float(counted[1].sum()))
    return Exceeding(threshold, share.times(area / 1e6), share, weight, weight_share, float(unknown.mean()))


def shares_above(
    model: ScalableModel,
    fit: Fit,
    xy: Array,
    weights: Array,
    limits: Array,
    draws: int,
    generator: torch.Generator,
    chunk: int = CHUNK,
) -> Array:
    """Return weighted shares of places above their limits, one for each function drawn from the posterior.

    Draws are exact: joint ones at the places for an exact model, of the features' weights for one on grids.

    Args:
        model: Fitted.
        fit: Its hyperparameters.
        xy: Places, `n × 2`, metres.
        weights: Weights of the places, not negative.
        limits: Limits of the places, `n`, on the model's scale.
        draws: Number of functions.
        generator: Random numbers for the draws.
        chunk: Places at which functions of features are evaluated at once.
    """
    share, level = torch.from_numpy(weights / weights.sum()), torch.from_numpy((limits - fit.offset) / fit.unit)
    found = torch.zeros(draws, dtype=torch.float64)
    with torch.no_grad():
        for values, rows in _values(model, fit, xy, draws, generator, chunk):
            found += (values > level[rows]).double() @ share[rows]
    return found.numpy()


def _of_two_parts(
    amount: Surface,
    presence: Surface,
    xy: Array,
    weights: Array,
    threshold: float,
    draws: int,
    generator: torch.Generator,
) -> tuple[Array, Array]:
    """Return probabilities of more than a threshold at places, and weighted shares of these above it, as drawn."""
    above = TwoPart(amount.forecast(xy, False), presence.forecast(xy, False)).exceedance(threshold)
    log_value = _drawn(amount, xy, draws, generator) + log_expit(_drawn(presence, xy, draws, generator))
    return above, (log_value > np.log(threshold)) @ weights / weights.sum()


def _drawn(surface: Surface, xy: Array, draws: int, generator: torch.Generator) -> Array:
    """Return functions drawn from a surface at places, `draws × m`, with its means and deviations there."""
    model, fit = surface.model, surface.fit
    with torch.no_grad():
        parts = [values for values, _ in _values(model, fit, xy, draws, generator, CHUNK)]
    drawn = fit.offset + fit.unit * torch.cat(parts, -1).numpy()
    if fit.nearest is None:
        return np.asarray(drawn)
    (mean, sd), (middle, spread) = surface.forecast(xy, False), forecast(model, fit, xy, progress=False)
    return np.asarray(mean + sd * (drawn - middle) / np.maximum(spread, np.finfo(float).tiny))


def _values(
    model: ScalableModel, fit: Fit, xy: Array, draws: int, generator: torch.Generator, chunk: int
) -> Iterator[tuple[Float[Tensor, "s m"], slice]]:
    """Yield values of the functions in units of the fit, some places at a time, with the rows of these places."""
    process = model.processes[0]
    if isinstance(process, FunctionSpacePosterior):
        located = process.locate(coordinates(model, fit, xy))
        rounding = torch.diag(ROUNDING * process.kernel.variance(located.points))
        L = cholesky(located.covariance(located) + rounding, "posterior covariance of the cells")
        z = torch.randn(len(L), draws, generator=generator, dtype=L.dtype)
        yield located.mean + (L @ z).mT, slice(None)
        return
    functions = draw_posterior_functions(model, Size([draws]), generator)
    for begin in range(0, len(xy), chunk):
        rows = slice(begin, begin + chunk)
        yield functions(torch.from_numpy(fit.inputs(xy[rows]))), rows
