"""The models by name, and the constructor options with which they search: what the loop and Ax give unless told."""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from bo_scale.errors import SpaceError
from bo_scale.gp.weight_space.features.projection import width
from bo_scale.models.cagp import CaGP
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.grief.bayes import GRIEFBayes
from bo_scale.models.grief.model import GRIEF
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.softki import SoftKI
from bo_scale.models.wiski.grid_sizes import default_grid_size
from bo_scale.models.wiski.model import MAX_DIMENSIONS, WISKI

MODELS: dict[str, type[ScalableModel]] = {
    "wiski": WISKI,
    "softki": SoftKI,
    "grief": GRIEF,
    "grief_bayes": GRIEFBayes,
    "cagp": CaGP,
    "decoupled": DecoupledGP,
}


def preset(
    model: type[ScalableModel], X: Tensor, known_noise: bool, bounds: Tensor, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Options for a constructor of a model that searches, those given among them.

    All but GRIEFBayes, which has a prior of its own, get a likelihood for noise of any size unless one is given or the
    noise is known: a log-normal prior of median 0.37 of the targets' variance, a factor of 4.5 a standard deviation.

    Args:
        model: One of `MODELS`, or a subclass.
        X: Inputs `n × d`.
        known_noise: Whether variances are given.
        bounds: `2 × d` corners of the search space in the units of X.
        options: What is to be otherwise. Modules among them are copied: a fit would change the next one's start.
    """
    given = deepcopy(dict(options))
    for family, add in _PRESETS.items():
        if issubclass(model, family):
            given = add(X, bounds, given)
            break
    if "likelihood" in given or known_noise or issubclass(model, GRIEFBayes):
        return given
    floor = GreaterThan(1e-4, transform=None, initial_value=0.1)
    wide = GaussianLikelihood(noise_prior=LogNormalPrior(-1.0, 1.5), noise_constraint=floor)
    return {**given, "likelihood": wide}


def options_of(model: type[ScalableModel]) -> set[str]:
    """Names of what a constructor takes beside data and transforms."""
    data = {"self", "train_X", "train_Y", "train_Yvar", "input_transform", "outcome_transform"}
    return set(inspect.signature(model).parameters) - data


def require_dimension(
    model: type[ScalableModel],
    dimension: int,
    options: Mapping[str, Any] | None = None,
    because: str = "",
    otherwise: str = "",
) -> None:
    """Refuse a grid in more dimensions than it serves.

    Args:
        model: Whose class it is.
        dimension: d.
        options: For its constructor; a projection among them is looked at by the constructor itself.
        because: Where so many come from.
        otherwise: What else can be done.

    Raises:
        SpaceError: naming models that serve them.
    """
    if issubclass(model, WISKI) and not (options or {}).get("projection") and not 1 <= dimension <= MAX_DIMENSIONS:
        raise SpaceError(
            f"model='wiski': {dimension} parameters{because}, and a grid serves 1 to {MAX_DIMENSIONS}. Take "
            f"model='grief' or 'softki', or learn a projection by the option "
            f"projection=LinearProjection({dimension}, 2){otherwise}."
        )


def _wiski(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """BoTorch's default kernel, with an outputscale to learn (log-normal prior of median 1).

    Without it, and the wide prior on the noise, a signal that is small beside the noise has no hyperparameters that
    fit: its variance would have to be that of the targets, and upper confidence bounds then chase the corners.

    The grid stays as it is at first unless `grid_size` says otherwise. None lets it follow the lengthscales: nearer to
    an exact GP, and slower. Of nine noisy searches of 305 observations four ended at better values with it, five worse.
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
    """The variance that features lack is added while there are not more observations than interpolation points.

    The search then finds better values (`python -m benchmarks missing_variance`). With more, intervals are right
    without.
    """
    return {"progress": False, "missing_variance": "few", **options}


def _grief(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """A grid over the whole search space."""
    return {"bounds": bounds, **options}


def _cagp(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Actions of conjugate gradients at the hyperparameters of an exact GP on at most 1000 rows.

    The exact GP itself until there are more rows than actions. Hyperparameters learned by the bound take what few
    actions miss for noise, and the search then ends early (`python -m benchmarks cagp_regret`).
    """
    return {"policy": "cg", "epochs": 0, "progress": False, **options}


def _decoupled(X: Tensor, bounds: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """No progress bar. Its intervals are no bound on the exact GP's."""
    return {"progress": False, **options}


_PRESETS: dict[type[ScalableModel], Callable[[Tensor, Tensor, dict[str, Any]], dict[str, Any]]] = {
    WISKI: _wiski,
    SoftKI: _softki,
    GRIEF: _grief,
    CaGP: _cagp,
    DecoupledGP: _decoupled,
}


def unit_cube(X: Tensor) -> Tensor:
    """Its corners, `2 × d`."""
    return torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
