"""Initial kernel, mean and noise from an exact GP on some of the rows."""

from typing import Any

import torch

from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.exact import ANY_SCALING, ExactGP
from bo_scale.models.shell.data import ModelWithData


def start_from_subset(
    model: ModelWithData,
    size: int,
    seed: int,
    optimizer_kwargs: dict[str, Any] | None = None,
    near: bool = False,
) -> None:
    """Set a model's hyperparameters, in place, to those of an exact GP fitted on at most `size` random rows.

    The exact GP has copies of the model's kernel, mean and likelihood, including priors and constraints, and uses the
    model's transforms. It keeps hyperparameters without `requires_grad`. Computation is in float64, whatever the
    model's dtype, and costs O(size³) per evaluation.

    At most `COARSE` rows are fitted first, from up to three starts: the present hyperparameters, lengthscales so long
    that the kernel relates rows at typical distances, and, with few inputs, so short that it relates neighbours only.
    At others all rows can look independent, where the evidence is flat. The fit to all rows goes on from the best of
    these by evidence. Each of the two fits is repeated with a short lengthscale of an input along which errors of rows
    left out go together.

    Args:
        model: A model that keeps its rows.
        size: Maximum number of rows; all rows if there are no more.
        seed: Seed for the choice of rows. Nothing else is random.
        optimizer_kwargs: As for `fit_gpytorch_mll`. By default L-BFGS takes at most 100 iterations, and ends when one
            gains less than 0.001 nats.
        near: Whether the present hyperparameters are the only start, since they are near good ones.

    Raises:
        UnsupportedError: if the model keeps no rows.
        FitError: if the exact GP cannot be fitted from any start. One that fails is given up, with a warning if no
            other fit succeeds on all rows.
    """
    rows = model._rows
    if rows is None:
        raise UnsupportedError("start_from_subset: the model keeps no rows. Construct it with keep_data=True.")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(rows.count, generator=generator)[:size].to(model._device)
    X, Y, D = rows.X[chosen], rows.Y[chosen].double(), rows.D[chosen].double()
    if hasattr(model, "input_transform"):
        X = model.input_transform.preprocess_transform(X)
    with ANY_SCALING:
        exact = ExactGP.like(model, X.double(), Y, D)
        exact.fit_from_best_start(optimizer_kwargs or {}, near or model._starts_fitted)
    model.covar_module.load_state_dict(exact.modules.covar_module.state_dict())
    model.mean_module.load_state_dict(exact.modules.mean_module.state_dict())
    if not model.knows_noise:
        model.likelihood.load_state_dict(exact.modules.likelihood.state_dict())
