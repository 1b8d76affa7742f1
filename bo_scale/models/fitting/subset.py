"""Initial kernel, mean and noise from an exact GP on some of the rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from botorch import settings
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.data import ModelWithData


def start_from_subset(
    model: ModelWithData, size: int, seed: int, optimizer_kwargs: dict[str, Any] | None = None
) -> None:
    """Set a model's hyperparameters, in place, to those of an exact GP fitted on at most `size` random rows.

    The exact GP has copies of the model's kernel, mean and likelihood, including priors and constraints, and uses the
    model's transforms. It starts from the present hyperparameters and keeps those without `requires_grad`. Computation
    is in float64, whatever the model's dtype, and costs O(size³) per evaluation.

    If a learned noise is scaled row by row (observations added with their own noise), all rows get equal noise here.

    Args:
        model: A model that keeps its rows.
        size: Maximum number of rows; all rows if there are no more.
        seed: Seed for the choice of rows, and for new starting points if BoTorch's fit needs any. The global random
            state is restored.
        optimizer_kwargs: As for `fit_gpytorch_mll`.

    Raises:
        UnsupportedError: if the model keeps no rows.
        FitError: if the exact GP cannot be fitted; see `botorch.fit`.
    """
    rows = model._rows
    if rows is None:
        raise UnsupportedError("start_from_subset: the model keeps no rows. Construct it with keep_data=True.")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(rows.count, generator=generator)[:size].sort().values.to(model._device)
    X, Y, D = rows.X[chosen], rows.Y[chosen], rows.D[chosen]
    if hasattr(model, "input_transform"):
        X = model.input_transform.preprocess_transform(X)
    known = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
    with settings.validate_input_scaling(False), _seeded(seed, model._device):
        exact = SingleTaskGP(
            X.to(torch.float64),
            Y.to(torch.float64),
            train_Yvar=D.to(torch.float64) if known else None,
            covar_module=clone_module(model.covar_module).double(),
            mean_module=clone_module(model.mean_module).double(),
            likelihood=None if known else clone_module(model.likelihood).double(),
            outcome_transform=None,
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(exact.likelihood, exact), optimizer_kwargs=optimizer_kwargs)
    model.covar_module.load_state_dict(exact.covar_module.state_dict())
    model.mean_module.load_state_dict(exact.mean_module.state_dict())
    if not known:
        model.likelihood.load_state_dict(exact.likelihood.state_dict())


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global random state within the context, and restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield
