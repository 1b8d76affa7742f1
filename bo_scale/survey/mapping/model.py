"""A model of a quantity over a map: exact for some hundreds of sites, on grids for more; its numbers as plain JSON."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import SingleTaskGP
from gpytorch.kernels import AdditiveKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from bo_scale.errors import InterpolationWarning, SurveyError
from bo_scale.models.cagp import CaGP
from bo_scale.models.refit import Refit, best_fit, with_hyperparameters
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.wiski.model import WISKI
from bo_scale.survey.mapping.kernels import (
    FLOOR,
    KERNELS,
    SMOOTHNESS,
    TWO_SCALES,
    Box,
    map_kernel,
    noise_likelihood,
    square_box,
)
from bo_scale.survey.mapping.nearest import PAIRS, Nearest

Array = npt.NDArray[np.float64]
LEARNED = 4
"""Parameters p of an exact fit: mean, variance, lengthscale, noise. Variances come out too small by (n − p)/n."""
FEW = 10
"""Sites below which there is no nugget beside known errors: nothing would tell it."""
FEW_FOR_TWO = 100
"""Sites below which there is one lengthscale for both directions: fitted to fewer, two cost up to 10 % of RMSE."""
EXACT = 1000
"""Sites up to which the model is an exact GP: a CaGP with an action for each."""
FINE_POINTS, COARSE_POINTS, RANK = 8000, 150, 512
"""Grid points of a rough summand, or the only one, and of the smooth one; eigenpairs of a kernel without sparsity."""
OPTIMISER = {"options": {"maxiter": 25, "ftol": 1e-6}}
"""Options of fits on grids: the evidence of thousands of sites is flat in its last digits."""
REFIT = Refit()
"""When a survey fits anew as its sites grow: as the loop does."""
CHUNK = 10_000
MARGIN = 0.02
"""Share of the longer side that is added all around, for sites that come later."""


@dataclass(frozen=True)
class Fit:
    """Hyperparameters of a model, as JSON can hold them.

    Attributes:
        kernel: Its name, one of `KERNELS` but "auto".
        count: Sites they were fitted to.
        box: Bounds of the map.
        offset: Mean of the transformed values at the fit.
        unit: Their standard deviation.
        grids: Points a dimension, for every summand; none for the exact model.
        values: Parameters by name.
        nugget: Variance that measurements have beyond their known errors, in squared model units over `unit²`.
        isotropic: Whether there is one lengthscale for both directions.
        nearest: A `Nearest`, by which maps of many sites are made; None where the model itself makes them.
    """

    kernel: str
    count: int
    box: Box
    offset: float
    unit: float
    grids: list[list[int]]
    values: dict[str, list[float]]
    nugget: float = 0.0
    isotropic: bool = False
    nearest: dict[str, Any] | None = None

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Fit":
        """Return the fit that JSON holds."""
        return cls(**{**saved, "box": tuple(saved["box"])})


@dataclass(frozen=True)
class Sites:
    """Measured values on the model's scale.

    Attributes:
        xy: Places, `n × 2`, metres.
        z: Values, `n`.
        variance: Known variance of every measurement; None if unknown.
    """

    xy: Array
    z: Array
    variance: Array | None


def fit_model(
    sites: Sites, box: Box, kernel: str = "auto", progress: bool | None = False, exact_up_to: int | None = None
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

    Raises:
        SurveyError: if the kernel is not known, or no fit succeeds.
    """
    if kernel not in KERNELS:
        raise SurveyError(f"kernel={kernel!r}: choose one of {', '.join(KERNELS)}.")
    exact = len(sites.z) <= (EXACT if exact_up_to is None else exact_up_to)
    automatic = list(SMOOTHNESS) if exact else [TWO_SCALES, "matern52"]
    names = automatic if kernel == "auto" else [kernel]
    unit = float(sites.z.std()) if len(sites.z) > 1 else 0.0
    offset, unit = float(sites.z.mean()), unit if unit > 1e-12 * (1 + abs(sites.z).max()) else 1.0
    sizes = {name: [] if exact else _sizes(name, box) for name in names}
    nugget = _nugget(sites, box, offset, unit)
    blank = [
        Fit(
            name,
            len(sites.z),
            box,
            offset,
            unit,
            sizes[name],
            {},
            nugget,
            isotropic=exact and len(sites.z) < FEW_FOR_TWO,
        )
        for name in names
    ]
    starts = [_model(sites, fit) for fit in blank]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)  # two scales are for data that no grid resolves wholly
        with _threads(1 if exact else torch.get_num_threads()):
            shown = tqdm(starts, desc="fit", disable=None if progress is None else not progress)
            best = best_fit(shown, len(sites.z), None if exact else OPTIMISER)
    if not isinstance(best, ScalableModel):
        raise SurveyError(
            "the model could not be fitted; look for outliers and repeated values, or name a kernel (--kernel)."
        )
    chosen = next(fit for fit, start in zip(blank, starts, strict=True) if start is best)
    if exact:
        _widen(best, len(sites.z))
    values = {key: p.detach().double().flatten().tolist() for key, p in best.named_parameters()}
    return replace(chosen, values=values, nearest=_nearest(sites, kernel)), best.eval()


def _nearest(sites: Sites, kernel: str) -> dict[str, Any] | None:
    """Fit the processes of the nearest sites; None for few sites, equal values, or one place only."""
    varied = np.ptp(sites.z) > 1e-12 * (1 + abs(sites.z).max()) and np.ptp(sites.xy, axis=0).max() > 0
    if len(sites.z) <= EXACT or not varied:
        return None
    choice = [(SMOOTHNESS[kernel], SMOOTHNESS[kernel])] if kernel in SMOOTHNESS else PAIRS
    return asdict(Nearest.fitted(sites.xy, sites.z, sites.variance, choice))


def _widen(model: Any, count: int) -> None:
    """Multiply variances by n/(n − p − 2), at most 2, as in regression: Student's t has that variance.

    n/(n − p) gives back what p fitted parameters took; (n − p)/(n − p − 2) allows for variances that are estimated.
    Means stay as they are, and so does a known noise.
    """
    factor = min(count / max(count - LEARNED - 2, 1), 2.0)
    kernel = model.covar_module
    for part in kernel.kernels if isinstance(kernel, AdditiveKernel) else [kernel]:
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


def predict(model: ScalableModel, fit: Fit, sites: Sites, xy: Array, progress: bool | None) -> tuple[Array, Array]:
    """Return means and standard deviations of the quantity itself at places, on the model's scale.

    They come from the nearest sites if there are many, else from the model of all.
    """
    if fit.nearest is None:
        return forecast(model, fit, xy, progress)
    return Nearest(**fit.nearest).forecast(sites.xy, sites.z, sites.variance, xy, progress)


def forecast(model: ScalableModel, fit: Fit, xy: Array, progress: bool | None) -> tuple[Array, Array]:
    """Return means and standard deviations of the model itself at places, on its scale."""
    means, sds = [], []
    parts = np.array_split(xy, max(1, -(-len(xy) // CHUNK)))
    disable = None if progress is None else not progress
    with torch.no_grad():
        process = model.processes[0]  # a posterior of so many points would be joint, or a batch of each
        for part in tqdm(parts, desc="map", disable=disable if len(parts) > 1 else True):
            located = process.locate(coordinates(model, part))
            means.append(located.mean.numpy())
            sds.append(located.variance().clamp_min(0.0).sqrt().numpy())
    return fit.offset + fit.unit * np.concatenate(means), fit.unit * np.concatenate(sds)


def coordinates(model: ScalableModel, xy: Array) -> Float[Tensor, "n 2"]:
    """Return places, in metres, in the coordinates of the model's posterior."""
    return model.transform_inputs(torch.from_numpy(np.ascontiguousarray(xy))).double()


def box_of(xy: Array, shape_bounds: Box) -> Box:
    """Return west, south, east and north of sites and region, with a margin."""
    west, south = np.minimum(xy.min(0), shape_bounds[:2])
    east, north = np.maximum(xy.max(0), shape_bounds[2:])
    margin = MARGIN * max(east - west, north - south)
    return float(west - margin), float(south - margin), float(east + margin), float(north + margin)


def _nugget(sites: Sites, box: Box, offset: float, unit: float) -> float:
    """Return the variance of measurements beyond their known errors, by an exact GP on at most `EXACT` of them.

    Without it a fit would mistake it for structure of the size of a grid's cell, or less. 0 if no errors are known.
    """
    if sites.variance is None or len(sites.z) < FEW:
        return 0.0
    rows = np.sort(np.random.default_rng(0).permutation(len(sites.z))[:EXACT])
    some = Sites(sites.xy[rows], sites.z[rows], sites.variance[rows])
    X, Y, known = model_tensors(some, offset, unit, 0.0)
    assert known is not None
    likelihood = FixedNoiseGaussianLikelihood(known.squeeze(-1), learn_additional_noise=True)
    parts = {
        "covar_module": map_kernel("matern32", [], isotropic=len(X) < FEW_FOR_TWO),
        "input_transform": square_box(box),
        "outcome_transform": None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BotorchWarning)
        with _threads(1):
            best = best_fit([SingleTaskGP(X, Y, likelihood=likelihood, **parts)], len(X))
    return 0.0 if best is None else float(likelihood.second_noise.detach())


def model_tensors(sites: Sites, offset: float, unit: float, nugget: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return inputs, targets and known variances in units of a fit; the nugget is added to the variances."""
    X, Y = torch.from_numpy(sites.xy), torch.from_numpy((sites.z - offset) / unit).unsqueeze(-1)
    if sites.variance is None:
        return X, Y, None
    return X, Y, torch.from_numpy(np.maximum(sites.variance / unit**2 + nugget, FLOOR)).unsqueeze(-1)


def _model(sites: Sites, fit: Fit) -> ScalableModel:
    """Return the model with the kernel, box and grids of a fit, before it is fitted."""
    west, south, east, north = fit.box
    X, Y, known = model_tensors(sites, fit.offset, fit.unit, fit.nugget)
    common: dict[str, Any] = {
        "covar_module": map_kernel(fit.kernel, fit.grids, fit.isotropic),
        "likelihood": noise_likelihood() if known is None else None,
        "input_transform": square_box(fit.box),
        "outcome_transform": None,
    }
    if not fit.grids:
        return CaGP(X, Y, known, num_actions=len(X), policy="cg", epochs=0, progress=False, **common)
    sizes: Any = [tuple(size) for size in fit.grids]
    common |= {"bounds": torch.tensor([[west, south], [east, north]], dtype=torch.float64)}
    if fit.kernel == TWO_SCALES:
        return WISKI(X, Y, known, grid_size=sizes, basis="keys", **common)
    return WISKI(X, Y, known, grid_size=sizes[0], rank=RANK, **common)


def _sizes(kernel: str, box: Box) -> list[list[int]]:
    """Return points a dimension of grids of square cells, for every summand."""
    width, height = box[2] - box[0], box[3] - box[1]
    summands = (FINE_POINTS, COARSE_POINTS) if kernel == TWO_SCALES else (FINE_POINTS,)
    return [_square_cells(width, height, points) for points in summands]


def _square_cells(width: float, height: float, points: int) -> list[int]:
    """Return points a dimension of a grid of about so many points in all."""
    columns = (points * width / height) ** 0.5
    return [max(8, round(columns)), max(8, round(points / columns))]
