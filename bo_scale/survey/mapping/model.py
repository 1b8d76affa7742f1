"""A model of a quantity over a map: exact for some hundreds of sites, on grids for more; its numbers as plain JSON.

On the globe, where no plane has right distances, its inputs are places in space, `n × 3`, and its kernel falls with the
straight line between them (`globe.in_space`). Radial kernels of three dimensions are positive definite on a sphere too.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from bo_scale.errors import ApproximationWarning, InterpolationWarning, SurveyError
from bo_scale.models.cagp import CaGP
from bo_scale.models.refit import Refit, best_fit, with_hyperparameters
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.softki import SoftKI
from bo_scale.models.wiski.model import WISKI
from bo_scale.models.wiski.trended import TrendedWISKI
from bo_scale.survey.geography.globe import EQUATOR
from bo_scale.survey.mapping.anisotropy import Stretch, learned_stretch
from bo_scale.survey.mapping.fit import Beside, Fit
from bo_scale.survey.mapping.gaps import Gaps
from bo_scale.survey.mapping.kernels import (
    FLOOR,
    KERNELS,
    SMOOTHNESS,
    TWO_SCALES,
    Box,
    about,
    cube,
    map_kernel,
    noise_likelihood,
    square_box,
)
from bo_scale.survey.mapping.left_out import grid_is_better, log_densities, rows_of
from bo_scale.survey.mapping.matern import practical
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.scored import EQUAL, PAIRS
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.temporal import (
    ABRUPT,
    PARTS,
    SMOOTH,
    WITH_A_STAY,
    Time,
    lengthscale_in_time,
    space_time_kernels,
)
from bo_scale.survey.mapping.trend import WIDTH, Trend

Array = npt.NDArray[np.float64]
LEARNED = 4
"""Parameters of an exact fit, at least: mean, variance, lengthscale, noise. Variances are too small by (n − p)/n."""
FEW = 10
"""Sites below which there is no nugget beside known errors: nothing would tell it."""
FEW_FOR_TWO = 400
"""Sites below which there is one lengthscale for both directions: fitted to fewer, two cost RMSE on real fields."""
EXACT = 1000
"""Sites up to which the model is an exact GP: a CaGP with an action for each."""
SMOOTHER = 1.0
"""Prior log odds against a step of smoothness, nats: too smooth a kernel takes a rough field for noise."""
CAUTIOUS = ["matern12", "matern32"]
"""Kernels from which the best is taken for counts, which tell little of smoothness: a smoother one is too sure."""
FINE_POINTS, COARSE_POINTS, RANK = 8000, 150, 512
"""Grid points of a rough summand, or the only one, and of the smooth one; eigenpairs of a kernel without sparsity."""
GLOBE_POINTS, BETWEEN = 1500, 0.3
"""Points around the globe, 580 km apart, and the range of interpolation between them, in distances of neighbours."""
OPTIMISER = {"options": {"maxiter": 25, "ftol": 1e-6}}
"""Options of fits on grids: the evidence of thousands of sites is flat in its last digits."""
CHANGING_POINTS, MOMENTS = 200, 8
"""Grid points in space of a part that changes, and in time."""
STAYING_POINTS, STILL = 200, 4
"""The same of a part that stays."""
COUNTS = 0.05
"""Share of the variance from which a part of the nearest sites counts for the range in time."""
AFTER = 0.5
"""Time before and after the measurements that grids cover, in spans of these."""
REFIT = Refit()
"""When a survey fits anew as its sites grow: as the loop does."""
KNOTS = 2 / 3
"""Weight of predictions from knots in gaps, beside those of the model on a grid."""
CHUNK = 10_000
MARGIN = 0.02
"""Share of the longer side that is added all around, for sites that come later."""


def fit_model(
    sites: Sites,
    box: Box,
    kernel: str = "auto",
    progress: bool | None = False,
    exact_up_to: int | None = None,
    near: Fit | None = None,
    globe: str | None = None,
    trend: Trend | None = None,
    beside: Beside | None = None,
    time: Time | None = None,
    anisotropy: "Stretch | str" = "none",
    divides: str | None = None,
) -> tuple[Fit, ScalableModel]:
    """Fit hyperparameters.

    "auto" takes the best kernel by evidence: of three smoothnesses where the model is exact, else of two scales and a
    smooth one. Seconds for hundreds of sites, half a minute for 250,000.

    Args:
        sites: The sites, at least one.
        box: Bounds that the grid must hold, metres.
        kernel: One of `KERNELS`.
        progress: Whether to show a bar; None for only on a terminal.
        exact_up_to: Sites up to which the model is exact; None for `EXACT`.
        near: A fit to similar values: the kernel stays the same, and hyperparameters start there.
        globe: Well-known text of the map of the world that places are on; None for a map that is true to scale.
        trend: Trend in the sites' covariates; None without any.
        beside: Function that returns covariates at places, `n × q` for `n × 2` metres.
        time: Time of the sites, which is the first of their covariates; None without time.
        anisotropy: A `Stretch` that is given, "learn" for one where the evidence asks for it, or "none"; not on the
            globe, and not with divides.
        divides: Well-known text of polygons, metres, that correlation goes around; None without any.

    Raises:
        SurveyError: if the kernel is not known, the divides have too many corners, or no fit succeeds.
    """
    if kernel not in KERNELS:
        raise SurveyError(f"kernel={kernel!r}: choose one of {', '.join(KERNELS)}.")
    exact = len(sites.z) <= (EXACT if exact_up_to is None else exact_up_to)
    smoothness = CAUTIOUS if sites.counted else list(SMOOTHNESS)
    automatic = smoothness if exact else [TWO_SCALES, "matern52"]
    names = [near.kernel] if near is not None else automatic if kernel == "auto" else [kernel]
    if near is not None and trend is not None and near.trend is not None:
        trend = Trend(**near.trend)
    offset, unit = sites.units
    in_space = globe is not None or divides is not None
    stretch = _stretch(sites, anisotropy, near, exact, in_space or time is not None, trend)
    bounds = Fit(names[0], 0, box, 0.0, 1.0, [], {}, stretch=stretch).within
    every: list[tuple[str, Time | None]] = [(name, None) for name in names]
    if time is not None:
        every = _of_time(names, time, near, exact)
    sizes = {name: [] if exact else [[GLOBE_POINTS]] if in_space else _sizes(name, bounds) for name in names}
    blank = [
        Fit(
            name,
            len(sites.z),
            box,
            offset,
            unit,
            sizes.get(name, []) if own is None or exact else _sizes_in_time(bounds, own),
            {},
            isotropic=in_space or stretch is not None or (exact and len(sites.z) < FEW_FOR_TWO),
            globe=globe,
            divides=divides,
            stretch=stretch,
            trend=None if trend is None else trend.saved(),
            time=None if own is None else own.saved,
            beside=beside,
        )
        for name, own in every
    ]
    nugget, trend = _first_look(sites, blank[0], trend, not exact)
    blank = [replace(fit, nugget=nugget, trend=None if trend is None else trend.saved()) for fit in blank]
    starts = [
        _model(sites, fit) if near is None else model_of(sites, replace(fit, values=near.values)) for fit in blank
    ]
    with warnings.catch_warnings(), _threads(1 if exact else torch.get_num_threads()):
        warnings.simplefilter("ignore", InterpolationWarning)  # two scales are for data that no grid resolves wholly
        warnings.simplefilter("ignore", ApproximationWarning)  # of models that are compared
        shown = tqdm(starts, desc="fit", disable=None if progress is None else not progress)
        chosen, best = _best(blank, starts, shown, None if exact else OPTIMISER)
        if exact and near is None:
            chosen, best = _best(*_smoother(sites, chosen, best))
    if exact:
        _widen(best, sites, _learned(best, chosen))
    learned = {key: p for key, p in best.named_parameters() if key != "interpolation_points"}  # these stay in place
    values = {key: p.detach().double().flatten().tolist() for key, p in learned.items()}
    if chosen.time is not None:
        chosen = replace(chosen, time=replace(Time(**chosen.time), range=_range_in_time(best, chosen)).saved)
    nearest = _nearest(sites, chosen, best.eval(), kernel, near)
    if chosen.time is not None and nearest is not None:
        chosen = replace(chosen, time={**chosen.time, "range": _range_of_nearest(nearest, chosen.time["span"])})
    return replace(chosen, values=values, nearest=nearest), best


def _best(
    fits: list[Fit],
    starts: list[ScalableModel],
    shown: Iterable[ScalableModel] | None = None,
    optimiser: dict[str, Any] | None = None,
) -> tuple[Fit, ScalableModel]:
    """Fit models and return the best by evidence, with its fit; one alone is taken for fitted if it is not shown.

    Raises:
        SurveyError: if no fit succeeds.
    """
    odds = [0.0 if fit.grids else -SMOOTHER * SMOOTHNESS.get(fit.kernel, 0.0) for fit in fits]
    alone = shown is None and len(starts) == 1
    best = starts[0] if alone else best_fit(shown or starts, fits[0].count, optimiser, odds)
    if not isinstance(best, ScalableModel):
        raise SurveyError(
            "the model could not be fitted; look for outliers and repeated values, or name a kernel (--kernel)."
        )
    return next(fit for fit, start in zip(fits, starts, strict=True) if start is best), best


def _smoother(sites: Sites, fit: Fit, model: ScalableModel) -> tuple[list[Fit], list[ScalableModel]]:
    """Return a fit and its model, and the same smooth in time from there if smoothness in time is learned."""
    if fit.time is None or fit.time["decay"] is not None:
        return [fit], [model]
    smooth = replace(fit, time={**fit.time, "smoothness": SMOOTH})
    values = {name: p.detach().double().flatten().tolist() for name, p in model.named_parameters()}
    return [fit, smooth], [model, model_of(sites, replace(smooth, values=values))]


def _stretch(
    sites: Sites, asked: "Stretch | str", near: Fit | None, exact: bool, is_fixed: bool, trend: Trend | None
) -> tuple[float, float] | None:
    """Return the ratio and the angle of an anisotropy that is given, or that values ask for; None without one.

    It is not learned on the globe, where no axis has one bearing, and from values of several times.
    """
    if near is not None:
        return near.stretch
    if isinstance(asked, Stretch):
        return (asked.ratio, asked.angle) if asked.ratio > 1 else None
    if asked != "learn" or is_fixed:
        return None
    z = sites.z
    if trend is not None and sites.covariates is not None:
        z = residuals(trend.columns(sites.covariates), z, sites.variance)
    with _threads(1):
        found = learned_stretch(sites.xy, z, sites.variance, (1.5,) if exact else (0.5, 1.5), sites.varies)
    return None if found is None else (found.ratio, found.angle)


def residuals(columns: Array, z: Array, variance: Array | None) -> Array:
    """Return values less their regression on columns, by least squares."""
    every = np.concatenate([np.ones((len(z), 1)), columns], 1)
    weight = np.ones(len(z)) if variance is None else 1 / np.sqrt(variance + max(float(z.var()), 1e-300))
    found, *_ = np.linalg.lstsq(every * weight[:, None], z * weight, rcond=1e-9)
    return np.asarray(z - every @ found)


def _nearest(sites: Sites, fit: Fit, model: ScalableModel, kernel: str, near: Fit | None) -> dict[str, Any] | None:
    """Fit the processes of the nearest sites, from a fit near by; None for few sites, equal values, or one place.

    None too where the model on a grid predicts measurements from the others better, for a field without time.
    """
    varied = np.ptp(sites.z) > 1e-12 * (1 + abs(sites.z).max()) and np.ptp(sites.xy, axis=0).max() > 0
    if len(sites.z) <= EXACT or not varied:
        return None
    choice = (
        [(SMOOTHNESS[kernel], SMOOTHNESS[kernel])] if kernel in SMOOTHNESS else PAIRS if fit.time is None else EQUAL
    )
    units = None if sites.likelihood is None else sites.units
    start = None if near is None or near.nearest is None else Nearest(**near.nearest)
    xy, columns = fit.in_space_and_time(sites.xy, sites.covariates), None
    time = None if fit.time is None else (fit.time["span"], fit.time["decay"])
    if fit.trend is not None:
        assert isinstance(model, TrendedWISKI), "of a fit with a trend"
        spreads = model.trend.features(frozen=True).variances.numpy()
        order = np.argsort([place for group in Trend(**fit.trend).groups for place in group])
        columns = fit.columns(sites.xy, sites.covariates), fit.unit**2 * spreads[order]
    found = asdict(Nearest.fitted(xy, sites.z, sites.variance, choice, units, sites.varies, start, columns, time))
    alone = fit.time is None and _grid_is_better(model, replace(fit, nearest=found), sites)
    return None if alone else found


def _grid_is_better(model: ScalableModel, fit: Fit, sites: Sites) -> bool:
    """Return whether the model on a grid predicts measurements from the others better than the nearest sites do."""
    assert fit.nearest is not None, "there are the nearest sites to compare with"
    rows = rows_of(len(sites.z))
    places, covariates = sites.xy[rows], None if sites.covariates is None else sites.covariates[rows]
    grid, nearest = (
        forecast(model, fit, places, False, covariates),
        predict(model, fit, sites, places, False, covariates),
    )
    known = np.zeros(len(rows)) if sites.variance is None else sites.variance[rows]
    beyond = fit.nugget if sites.variance is not None else float(model.measurement_noise(0))
    noises = known + fit.nearest["noise"], known + fit.unit**2 * max(beyond, FLOOR)
    of_nearest = log_densities(nearest, sites.z[rows], noises[0])
    of_grid = log_densities(grid, sites.z[rows], noises[1])
    return grid_is_better(of_nearest, of_grid, nearest[1], grid[1])


def _learned(model: ScalableModel, fit: Fit) -> int:
    """Return the number of parameters that were fitted to measurements: of an anisotropy two."""
    own = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return max(LEARNED, own) + 2 * (fit.stretch is not None)


def _widen(model: Any, sites: Sites, learned: int) -> None:
    """Multiply variances by n/(n − p − 2), at most 2, as in regression: Student's t has that variance.

    n/(n − p) gives back what p fitted parameters took; (n − p)/(n − p − 2) allows for variances that are estimated.
    Means stay as they are, and so does a known noise. A count tells less than a measurement: n is the sum of the shares
    k/(k + s) of the quantity's variance k in that of the values that stand for counts, k + s.
    """
    kernel = model.covar_module
    parts: Any = kernel.kernels if isinstance(kernel, AdditiveKernel) else [kernel]
    count = float(len(sites.z))
    if sites.likelihood is not None and sites.variance is not None:
        own = sum(part.outputscale.item() for part in parts)
        count = float((own / (own + sites.variance)).sum())
    factor = min(count / max(count - learned - 2, 1), 2.0)
    for part in parts:
        part.outputscale = factor * part.outputscale.detach()
    if isinstance(model.likelihood, GaussianLikelihood):
        model.likelihood.noise = factor * model.likelihood.noise.detach()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use so many threads within. Matrices of a few hundred rows are slower with several, above all on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def model_of(sites: Sites, fit: Fit) -> ScalableModel:
    """Return the model of sites with the hyperparameters of a fit.

    For the sites fitted it is the model fitted, to the last digits.
    """
    model = _model(sites, fit)
    shapes = dict(model.named_parameters())
    values = {name: torch.tensor(v, dtype=torch.float64).reshape(shapes[name].shape) for name, v in fit.values.items()}
    with_hyperparameters(model, values)
    return model.eval()


def predict(
    model: ScalableModel,
    fit: Fit,
    sites: Sites,
    xy: Array,
    progress: bool | None,
    covariates: Array | None = None,
    gaps: Gaps | None = None,
) -> tuple[Array, Array]:
    """Return means and standard deviations of the quantity itself at places, on the model's scale.

    They come from the model of all sites if there are few, else from the nearest ones. These lie on one side of a place
    in a gap. There predictions from knots and from the model on a grid are mixed, since either may be wrong; in fields
    with time there are no knots. Weights change with the distance. Covariates are looked up unless they are given, and
    so are gaps between the sites.
    """
    if fit.nearest is None:
        return forecast(model, fit, xy, progress, covariates)
    found, here, there = Nearest(**fit.nearest), None, None
    if fit.trend is not None:
        covariates = fit.beside(xy) if covariates is None and fit.beside is not None else covariates
        here, there = fit.columns(sites.xy, sites.covariates), fit.columns(xy, covariates)
    known = fit.in_space_and_time(sites.xy, sites.covariates), sites.z, sites.variance
    places, trend = fit.in_space_and_time(xy, covariates), None if here is None or there is None else (here, there)
    gaps = Gaps(fit, sites) if gaps is None else gaps
    weight = gaps.weights(xy)
    far = weight > 0
    knots = gaps.knots if far.any() else None
    close = weight < 1 if knots is not None else np.ones(len(xy), dtype=np.bool_)
    mean, sd = np.zeros((2, len(xy)))  # where a place is all in a gap, the nearest sites alone have no weight
    mean[close], sd[close] = found.forecast(*known, places[close], progress, _at(trend, close))
    if not far.any():
        return mean, sd
    in_far = forecast(model, fit, xy[far], False, None if covariates is None else covariates[far])
    if fit.time is None:
        near = mean[far], sd[far]
        if knots is not None:
            near = found.forecast(*known, places[far], False, _at(trend, far), knots)
        in_far = _mixed(in_far, near, KNOTS)
    mean[far], sd[far] = _mixed((mean[far], sd[far]), in_far, weight[far])
    return mean, sd


def _at(trend: tuple[Array, Array] | None, some: npt.NDArray[np.bool_]) -> tuple[Array, Array] | None:
    """Return columns of a trend at the sites and at some of the places."""
    return None if trend is None else (trend[0], trend[1][some])


def _mixed(one: tuple[Array, Array], other: tuple[Array, Array], weight: "Array | float") -> tuple[Array, Array]:
    """Return the means and standard deviations of mixtures of two forecasts, by the weight of the second."""
    mean = (1 - weight) * one[0] + weight * other[0]
    apart = weight * (1 - weight) * np.square(one[0] - other[0])
    return mean, np.sqrt((1 - weight) * np.square(one[1]) + weight * np.square(other[1]) + apart)


def forecast(
    model: ScalableModel, fit: Fit, xy: Array, progress: bool | None, covariates: Array | None = None
) -> tuple[Array, Array]:
    """Return means and standard deviations of the model itself at places, on its scale."""
    means, sds = [], []
    parts = np.array_split(np.arange(len(xy)), max(1, -(-len(xy) // CHUNK)))
    disable = None if progress is None else not progress
    with torch.no_grad():
        process = model.processes[0]  # a posterior of so many points would be joint, or a batch of each
        for part in tqdm(parts, desc="map", disable=disable if len(parts) > 1 else True):
            own = None if covariates is None else covariates[part]
            located = process.locate(coordinates(model, fit, xy[part], own))
            means.append(located.mean.numpy())
            sds.append(located.variance().clamp_min(0.0).sqrt().numpy())
    return fit.offset + fit.unit * np.concatenate(means), fit.unit * np.concatenate(sds)


def coordinates(model: ScalableModel, fit: Fit, xy: Array, covariates: Array | None = None) -> Float[Tensor, "n d"]:
    """Return places, in metres, in the coordinates of the model's posterior: two, or three on the globe, and others."""
    return model.transform_inputs(torch.from_numpy(np.ascontiguousarray(fit.inputs(xy, covariates)))).double()


def box_of(xy: Array, shape_bounds: Box) -> Box:
    """Return west, south, east and north of sites and region, with a margin."""
    west, south = np.minimum(xy.min(0), shape_bounds[:2])
    east, north = np.maximum(xy.max(0), shape_bounds[2:])
    margin = MARGIN * max(east - west, north - south)
    return float(west - margin), float(south - margin), float(east + margin), float(north + margin)


def _first_look(sites: Sites, fit: Fit, trend: Trend | None, many: bool) -> tuple[float, Trend | None]:
    """Return the nugget, and the trend with nodes if sites are many and covariates have a smooth effect.

    The nugget is the variance of measurements beyond their known errors; without it a fit would mistake it for
    structure of the size of a grid's cell, or less. It is 0 if no errors are known. Both come from an exact GP on at
    most `EXACT` sites.
    """
    asks_nugget = sites.varies and sites.variance is not None and len(sites.z) >= FEW
    asks_nodes = many and trend is not None and trend.nodes is None and bool(trend.smooth_columns)
    if not (asks_nugget or asks_nodes):
        return 0.0, trend
    rows = np.sort(np.random.default_rng(0).permutation(len(sites.z))[:EXACT])
    X, Y, known = model_tensors(sites.some(rows), replace(fit, nugget=0.0))
    likelihood: Any = noise_likelihood()
    if known is not None:
        likelihood = FixedNoiseGaussianLikelihood(known.squeeze(-1), learn_additional_noise=asks_nugget)
    parts = {
        "covar_module": _kernel(
            replace(fit, kernel="matern32", grids=[]),
            fit.lies_in_space or fit.stretch is not None or len(X) < FEW_FOR_TWO,
        ),
        "input_transform": _unit_square(fit),
        "outcome_transform": None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BotorchWarning)
        with _threads(1):
            best = best_fit([SingleTaskGP(X, Y, likelihood=likelihood, **parts)], len(X))
    if asks_nodes and trend is not None and sites.covariates is not None:
        effect = [1.0] * len(trend.smooth_columns)
        if best is not None:
            kernel: Any = best.covar_module
            effect = kernel.kernels[-1].base_kernel.lengthscale.detach().flatten().tolist()
        trend = trend.with_nodes(sites.covariates, effect)
    nugget = float(likelihood.second_noise.detach()) if asks_nugget and best is not None else 0.0
    return nugget, trend


def _kernel(fit: Fit, isotropic: bool) -> Kernel:
    """Return the kernel of an exact model: of the field, and of the trend if there is one."""
    if fit.time is not None:
        parts = space_time_kernels(SMOOTHNESS[fit.kernel], isotropic, range(fit.width), Time(**fit.time))
    elif fit.trend is None:
        return map_kernel(fit.kernel, [], isotropic)
    else:
        field = map_kernel(fit.kernel, [], isotropic, range(fit.width))
        parts = list(field.kernels) if isinstance(field, AdditiveKernel) else [field]
    return AdditiveKernel(*parts, *([] if fit.trend is None else Trend(**fit.trend).kernels(fit.first)))


def _of_time(names: list[str], time: Time, near: Fit | None, exact: bool) -> list[tuple[str, Time | None]]:
    """Return the kernels to choose from, in space and in time: a part that stays only where no decay is given."""
    if near is not None and near.time is not None:
        return [(near.kernel, Time(**{**near.time, "start": time.start, "span": time.span}))]
    smooth = list(dict.fromkeys(name if name in SMOOTHNESS else "matern12" for name in names))
    if not exact:
        smooth = smooth[-1:]
    parts = PARTS if exact and time.decay is None else PARTS[:1] if time.decay is not None else PARTS[1:]
    return [(name, replace(time, parts=each)) for name in smooth for each in parts]


def _range_in_time(model: Any, fit: Fit) -> float:
    """Return the time after which what was measured has lost its hold."""
    kernel = model.covar_module
    parts = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    assert fit.time is not None
    span = float(fit.time["span"])
    lasting = practical(Time(**fit.time).smoothness) * span * lengthscale_in_time(parts)
    return min(lasting, AFTER * span) if fit.grids else lasting


def _range_of_nearest(nearest: dict[str, Any], span: float) -> float:
    """Return the same of the nearest sites: of the parts that count, the one that lasts longest, as far as grids go."""
    counted = np.array(nearest["variances"]) > COUNTS * sum(nearest["variances"])
    reach = practical(nearest.get("lasting", ABRUPT))
    return float(min(reach * np.array(nearest["times"])[counted].max(), AFTER * span))


def _sizes_in_time(box: Box, time: Time) -> list[list[int]]:
    """Return points a dimension of the grids of the changing part, and of the staying one if there is one."""
    width, height = box[2] - box[0], box[3] - box[1]
    parts = [(CHANGING_POINTS, MOMENTS), (STAYING_POINTS, STILL)][: 1 + (time.parts == WITH_A_STAY)]
    return [[*_square_cells(width, height, points), moments] for points, moments in parts]


def model_tensors(sites: Sites, fit: Fit) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return inputs, targets and known variances in units of a fit; the nugget is added to the variances."""
    X = torch.from_numpy(fit.inputs(sites.xy, sites.covariates))
    Y = torch.from_numpy((sites.z - fit.offset) / fit.unit).unsqueeze(-1)
    if sites.variance is None:
        return X, Y, None
    return X, Y, torch.from_numpy(np.maximum(sites.variance / fit.unit**2 + fit.nugget, FLOOR)).unsqueeze(-1)


def _model(sites: Sites, fit: Fit) -> ScalableModel:
    """Return the model with the kernel, box and grids of a fit, before it is fitted."""
    west, south, east, north = fit.within
    X, Y, known = model_tensors(sites, fit)
    common: dict[str, Any] = {
        "likelihood": noise_likelihood() if known is None else None,
        "input_transform": _unit_square(fit),
        "outcome_transform": None,
    }
    if not fit.grids:
        common["covar_module"] = _kernel(fit, fit.isotropic)
        return CaGP(X, Y, known, num_actions=len(X), policy="cg", epochs=0, progress=False, **common)
    common["covar_module"] = map_kernel(fit.kernel, [] if fit.lies_in_space else fit.grids, fit.isotropic)
    if fit.lies_in_space:
        points, apart = _points_in_space(fit)
        return SoftKI(X, Y, known, interpolation_points=points, temperature=BETWEEN * apart, epochs=0, **common)
    sizes: Any = [tuple(size) for size in fit.grids]
    corners = torch.tensor([[west, south], [east, north]], dtype=torch.float64)
    summed = (
        {"grid_size": sizes, "basis": "keys"} if fit.kernel == TWO_SCALES else {"grid_size": sizes[0], "rank": RANK}
    )
    within = square_box(fit.within)(corners)
    if fit.time is not None:
        parts = space_time_kernels(
            SMOOTHNESS[fit.kernel], fit.isotropic, range(2), Time(**fit.time), (1 + 2 * AFTER) / MOMENTS
        )
        common["covar_module"] = AdditiveKernel(*parts) if len(parts) > 1 else parts[0]
        summed = {"grid_size": sizes if len(parts) > 1 else sizes[0], "rank": RANK // 2}
        moments = torch.tensor([[-AFTER], [1 + AFTER]], dtype=torch.float64)
        corners, within = torch.cat([corners, moments], 1), torch.cat([within, moments], 1)
    if fit.trend is not None:
        first = [[fit.first + place for place in group] for group in Trend(**fit.trend).groups]
        return TrendedWISKI(X, Y, known, fit.first, first, about(WIDTH), bounds=within, **summed, **common)
    common |= {"bounds": corners}
    if fit.time is not None:
        return WISKI(X, Y, known, **summed, **common)
    if fit.kernel == TWO_SCALES:
        return WISKI(X, Y, known, grid_size=sizes, basis="keys", **common)
    return WISKI(X, Y, known, grid_size=sizes[0], rank=RANK, **common)


def _unit_square(fit: Fit) -> Normalize:
    """Return the map of the model's inputs to a unit square or cube."""
    if fit.globe is not None:
        return cube(EQUATOR, fit.others)
    return square_box(fit.within, fit.others, fit.width - 2)


def _around_the_globe(count: int) -> tuple[Float[Tensor, "p 3"], float]:
    """Return points evenly around the sphere in the unit cube, a Fibonacci lattice, and how far they are apart.

    Á. González. Measurement of areas on a sphere using Fibonacci and latitude-longitude lattices. Mathematical
    Geosciences 42, 2010.
    """
    k = np.arange(count) + 0.5
    z, turn = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
    out = np.sqrt(1 - z**2)
    points = 0.5 + np.stack([out * np.cos(turn), out * np.sin(turn), z], -1) / 2
    return torch.from_numpy(points), (np.pi / count) ** 0.5


def _points_in_space(fit: Fit) -> tuple[Float[Tensor, "p q"], float]:
    """Return points evenly over the map or the globe, in the unit of the model, and how far they are apart.

    Raises:
        SurveyError: for a trend or time.
    """
    if fit.trend is not None or fit.time is not None:
        where, remedy = "with divides", "leave out one of the two (--divide none)"
        if fit.globe is not None:
            where, remedy = "on the globe", "begin a survey of a part (--area)"
        raise SurveyError(f"covariates, time: {where} at most {EXACT:,} sites may have them; {remedy}.")
    if fit.globe is not None:
        return _around_the_globe(fit.grids[0][0])
    west, south, east, north = fit.box
    columns, rows = _square_cells(east - west, north - south, fit.grids[0][0])
    x, y = np.meshgrid(np.linspace(west, east, columns), np.linspace(south, north, rows))
    places = torch.from_numpy(fit.in_space(np.stack([x.ravel(), y.ravel()], 1)))
    return square_box(fit.within, 0, fit.width - 2).eval()(places), 1 / max(columns, rows)


def _sizes(kernel: str, box: Box) -> list[list[int]]:
    """Return points a dimension of grids of square cells, for every summand."""
    width, height = box[2] - box[0], box[3] - box[1]
    summands = (FINE_POINTS, COARSE_POINTS) if kernel == TWO_SCALES else (FINE_POINTS,)
    return [_square_cells(width, height, points) for points in summands]


def _square_cells(width: float, height: float, points: int) -> list[int]:
    """Return points a dimension of a grid of about so many points in all."""
    columns = (points * width / height) ** 0.5
    return [max(8, round(columns)), max(8, round(points / columns))]
