"""Models by name, and the default constructor options with which the loop and Ax build them."""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from torch.quasirandom import SobolEngine

from bo_scale.errors import InvalidArgumentError, SpaceError
from bo_scale.gp.weight_space.features.projection import width
from bo_scale.models.cagp import CaGP
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.grief.bayes import GRIEFBayes
from bo_scale.models.grief.model import GRIEF
from bo_scale.models.shell.student_t import StudentTNoise
from bo_scale.models.softki import SoftKI
from bo_scale.models.wiski.grid_sizes import MAX_DIMENSIONS, default_grid_size
from bo_scale.models.wiski.model import WISKI

FEW_POINTS, SPARE = 512, 128
"""Number of rows up to which a search with a SoftKI has points at all of them, and of points between them."""
Preset = Callable[[Tensor, Tensor, dict[str, Any]], dict[str, Any]]
"""Function from inputs `n × d`, corners of the search space `2 × d` and given options to constructor options."""


def as_given(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options unchanged."""
    return options


@dataclass(frozen=True)
class ModelKind:
    """A named model and its capabilities.

    Attributes:
        name: Name for `Optimizer(model=name)` and `bo_scale.ax.generation_strategy(name)`.
        model: Class of the model. Its constructor takes train_X, train_Y, train_Yvar and options by name.
        help: A description of the model, in one sentence.
        preset: Function that returns the constructor options for a search.
        dimensions: Minimum and maximum number of inputs; None for no maximum.
        wide_noise: Whether a search gives the model a likelihood for noise of any size. False keeps the model's own.
        small_noise: Whether that likelihood reaches down to values without noise. For models without an approximation
            error of their own.
        streams: Whether one more observation costs the same for any n, and gives the same model as a rebuild.
        several_outputs: Whether one model serves several outputs.
        ensemble: Whether posteriors are mixtures, which not all acquisition functions accept.
    """

    name: str
    model: type[Model]
    help: str = ""
    preset: Preset = as_given
    dimensions: tuple[int, int | None] = (1, None)
    wide_noise: bool = True
    small_noise: bool = False
    streams: bool = False
    several_outputs: bool = True
    ensemble: bool = False

    def serves(self, dimension: int) -> bool:
        """Return whether it serves this many inputs without a projection."""
        fewest, most = self.dimensions
        return fewest <= dimension and (most is None or dimension <= most)


def preset(
    model: type[Model], X: Tensor, known_noise: bool, bounds: Tensor, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the constructor options of a model for a search, including the given ones.

    Unless a likelihood is given or the noise is known, models get a likelihood for noise of any size, with a log-normal
    prior: median 0.02 of the targets' variance, where a standard deviation is a factor of 20, for the exact GP (CaGP);
    0.37 and 4.5 for models whose approximation leaves an error. With the latter prior an exact GP expects noise where
    there is none, and a search repeats its best point: 40 evaluations without noise, mean regret of 16 seeds in % of
    the range, Hartmann-6 7.6 against 4.7, a tuning problem 0.7 against 0.2, Levy-4 1.3 for both; with noise neither
    was better. GRIEFBayes keeps a prior of its own. `likelihood="student_t"` has the same prior.

    Args:
        model: The class of one of `MODELS`, or a subclass.
        X: Inputs `n × d`.
        known_noise: Whether variances are given.
        bounds: `2 × d` corners of the search space in the units of X.
        options: Options that replace the defaults. Modules among them are copied, since a fit would change them.
    """
    kind = kind_of(model)
    given = kind.preset(X, bounds, deepcopy(dict(options)))
    heavy = given.get("likelihood") == "student_t"
    own = "likelihood" in given and not heavy
    if own or known_noise or not kind.wide_noise or "likelihood" not in options_of(model):
        return given
    prior, floor, start = ((-4.0, 3.0), 1e-6, 1e-2) if kind.small_noise else ((-1.0, 1.5), 1e-4, 0.1)
    bound = GreaterThan(floor, transform=None, initial_value=start)
    wide = StudentTNoise if heavy else GaussianLikelihood
    return {**given, "likelihood": wide(noise_prior=LogNormalPrior(*prior), noise_constraint=bound)}


def kind_of(model: type[Model]) -> ModelKind:
    """Return the entry of a class or of its nearest base class; a plain entry for any other class."""
    found = {kind.model: kind for kind in MODELS.values()}
    return next((found[base] for base in model.__mro__ if base in found), ModelKind(model.__name__, model))


def options_of(model: type[Model]) -> set[str]:
    """Return the names of a constructor's arguments other than data and transforms."""
    data = {"self", "train_X", "train_Y", "train_Yvar", "input_transform", "outcome_transform"}
    return set(inspect.signature(model).parameters) - data


def require_dimension(
    model: type[Model],
    dimension: int,
    options: Mapping[str, Any] | None = None,
    because: str = "",
    otherwise: str = "",
) -> None:
    """Refuse a model for more dimensions than it serves.

    Args:
        model: The model's class.
        dimension: Number of dimensions d.
        options: Options for its constructor. With a projection among them, the check is left to the constructor.
        because: Reason for this number of dimensions, for the message.
        otherwise: A further remedy, for the message.

    Raises:
        SpaceError: if the model does not serve so many; the message names models that do.
    """
    kind = kind_of(model)
    if (options or {}).get("projection") or kind.serves(dimension):
        return
    fewest, most = kind.dimensions
    *others, last = (repr(name) for name in ("grief", "cagp", "softki") if name in MODELS)
    served = f"{', '.join(others)} or {last}"
    learned = ""
    if "projection" in options_of(model):
        learned = f", or learn a projection with the option projection=LinearProjection({dimension}, 2)"
    raise SpaceError(
        f"model={kind.name!r}: {dimension} parameters{because}, but it serves {fewest} to {most}. Take "
        f"model={served}{learned}{otherwise}."
    )


def _wiski(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Use BoTorch's default kernel with a learned outputscale (log-normal prior with median 1), and a fixed grid.

    Without the outputscale and the wide prior on the noise, no hyperparameters fit a signal that is small compared with
    the noise: its variance would have to equal the targets', and upper confidence bounds would chase the corners.

    The grid keeps its initial size unless `grid_size` is given. `grid_size=None` lets it follow the lengthscales, which
    is closer to an exact GP and slower. With it four of nine noisy searches of 305 observations ended at better values,
    five at worse.
    """
    d = width(options.get("projection"), X)
    options.setdefault("grid_size", default_grid_size(d, len(X)))
    if "covar_module" not in options:
        kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=d)
        scaled = ScaleKernel(kernel, outputscale_prior=LogNormalPrior(0.0, 1.0))
        scaled.outputscale = 1.0
        options["covar_module"] = scaled
    return options


def _softki(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Let a search vary between its rows while they are few: points at all rows, and up to 128 quasi-random ones.

    The variance that features lack is added while there are no more observations than points. The temperature is a
    tenth of the search space, and no rows are held out. The search then finds better values
    (`python -m benchmarks missing_variance`; 40 evaluations of Hartmann-6, mean regret of 4 seeds: 0.8, against 1.9
    with the defaults for regression). With more observations, intervals are right without it.
    """
    options = {"progress": False, "missing_variance": "few", **options}
    most = options.get("num_interpolation_points", FEW_POINTS)
    if "interpolation_points" in options or len(X) == 0 or len(X) > most:
        return options
    transform = options.get("input_transform")
    rows = torch.cat([X, bounds.to(X)])
    with torch.no_grad():
        rows = rows if transform is None else transform.preprocess_transform(rows)
    rows, corners = rows[: len(X)].unique(dim=0), rows[len(X) :]
    spare = SobolEngine(X.shape[-1], scramble=True, seed=0).draw(SPARE, dtype=torch.float64)[: max(0, most - len(rows))]
    lower, upper = corners.sort(0).values
    few = {
        "interpolation_points": torch.cat([rows, lower + (upper - lower) * spare.to(rows)]),
        "temperature": 0.1 * (upper - lower),
        "held_out": 0.0,
        "subset_size": 0,
        "epochs": 50,
    }
    return {**few, **options}


def _grief(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Use a grid over the whole search space."""
    return {"bounds": bounds, **options}


def _cagp(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Use actions of conjugate gradients at the hyperparameters of an exact GP on at most 1000 rows.

    Until there are more rows than actions, the model is the exact GP. With few actions the bound mistakes unexplained
    signal for noise, and a search with its hyperparameters ends early (`python -m benchmarks cagp_regret`).
    """
    return {"policy": "cg", "epochs": 0, "progress": False, **options}


def _decoupled(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Show no progress bar. The model's intervals are no bound on the exact GP's."""
    return {"progress": False, **options}


_BUILTIN = [
    ModelKind(
        "wiski",
        WISKI,
        "A grid: closest to an exact GP at any n, in few dimensions.",
        _wiski,
        (1, MAX_DIMENSIONS),
        streams=True,
    ),
    ModelKind("softki", SoftKI, "Interpolation from learned points, for many rows and inputs.", _softki, streams=True),
    ModelKind("grief", GRIEF, "Eigenfunctions of a grid of any dimension.", _grief, streams=True),
    ModelKind(
        "grief_bayes",
        GRIEFBayes,
        "GRIEF that integrates over weights and noise: a fully Bayesian model.",
        _grief,
        wide_noise=False,
        several_outputs=False,
        ensemble=True,
    ),
    ModelKind(
        "cagp", CaGP, "Computation-aware: exact up to its actions, never overconfident.", _cagp, small_noise=True
    ),
    ModelKind("decoupled", DecoupledGP, "A variational GP with a large basis for the mean.", _decoupled),
]
MODELS: dict[str, ModelKind] = {kind.name: kind for kind in _BUILTIN}
"""All models by name."""


def register_model(kind: ModelKind) -> None:
    """Register a model for `Optimizer(model=kind.name)` and `bo_scale.ax` in this process.

    Args:
        kind: The model. Register it before you resume a journal, or load an experiment, that names it.

    Raises:
        InvalidArgumentError: if another model has the name.

    Examples:
        register_model(ModelKind("exact", SingleTaskGP, "BoTorch's exact GP.", wide_noise=False))
        Optimizer(space, model="exact")
    """
    if MODELS.setdefault(kind.name, kind) != kind:
        raise InvalidArgumentError(f"name={kind.name!r}: already taken by another model. Choose a different name.")


def unit_cube(X: Tensor) -> Tensor:
    """Return the corners of the unit cube, `2 × d`."""
    return torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
