"""Adam on all rows or on batches, after a few steps of L-BFGS on the noise."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from bo_scale.models.fitting.evidence import fit_evidence
from bo_scale.training.minibatch import BoundedAdam
from bo_scale.training.time_limit import is_over

LAST_STEP = 0.1
"""Share of the step size left at the end of its linear schedule."""
NOISE_STEPS = 15
"""L-BFGS steps on the noise before Adam. At the exact GP's noise the first gradient would swamp Adam's moments."""


def fit_by_adam(
    mll: MarginalLogLikelihood,
    loss: Callable[[Int[Tensor, " b"] | None], Float[Tensor, ""]],
    parameters: Mapping[str, torch.nn.Parameter],
    rows: int,
    num_steps: int,
    batch_size: int | None,
    lr: float,
    seed: int,
    progress: bool | None = None,
) -> None:
    """Minimise a model's loss by Adam with falling steps, in place; with all rows, keep the best step.

    Args:
        mll: The mll of the model, in train mode. First its evidence is maximised over the noise alone.
        loss: Function from the indices of rows to an estimate of the loss; None gives the loss itself.
        parameters: Parameters to learn, by their names in `mll`. They are kept within their bounds.
        rows: Number of rows n.
        num_steps: Number of steps.
        batch_size: Rows per step; None for all.
        lr: Initial step size, which falls linearly to a tenth.
        seed: Seed for the batches. The global random state is not changed.
        progress: Whether to show a progress bar; None shows it only on a terminal.
    """
    noise = {id(p) for p in mll.likelihood.parameters()}
    first = {name: p for name, p in parameters.items() if id(p) in noise}
    fit_evidence(mll, first, {"options": {"maxiter": NOISE_STEPS}})
    generator = torch.Generator().manual_seed(seed)
    adam = BoundedAdam(parameters, get_parameters_and_bounds(mll)[1], lr)
    best, kept = math.inf, list[Tensor]()
    bar = tqdm(range(num_steps), desc="epochs", leave=False, disable=None if progress is None else not progress)
    for step in bar:
        before = [p.detach().clone() for p in parameters.values()]
        batch = None if batch_size is None else torch.randperm(rows, generator=generator)[:batch_size]
        value = adam.step(partial(loss, batch), 1 - (1 - LAST_STEP) * step / num_steps)
        bar.set_postfix(loss=f"{value:.4f}")
        if batch is None and value < best:
            best, kept = value, before
        if is_over():
            bar.close()
            break
    with torch.no_grad():
        if kept and loss(None) > best:
            for p, values in zip(parameters.values(), kept, strict=True):
                p.copy_(values)
