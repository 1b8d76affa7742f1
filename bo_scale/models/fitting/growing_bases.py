"""Algorithm 1 of the decoupled GP: stochastic ascent with bases that grow with the rows seen; and its start."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from bo_scale.models.shell.data import ModelWithData
from bo_scale.training.minibatch import BoundedAdam

MEDIAN_ROWS = 1024
"""Maximum number of rows for the median distances."""
SHOWN = 50
"""Number of steps between two losses shown by the progress bar."""


def step_size(initial: float, step: int) -> float:
    """Return γ₀/(1 + 0.1 √t), the paper's schedule."""
    return initial / (1 + 0.1 * math.sqrt(step))


def train_growing(
    loss: Callable[[Int[Tensor, " b"]], Float[Tensor, ""]],
    grow: Callable[[Int[Tensor, " b"]], None],
    parameters: Mapping[str, torch.nn.Parameter],
    bounds: Mapping[str, tuple[Any, Any]],
    rows: int,
    num_steps: int,
    batch_size: int,
    lr: float,
    seed: int,
    progress: bool | None = None,
) -> None:
    """Minimise a loss over batches of rows by Adam with falling steps, in place. [DGP] algorithm 1.

    Projection keeps parameters within their bounds. Every row is used once before any is used again.

    Args:
        loss: Loss per row, as a function of the indices of rows.
        grow: Function called with a batch before its step; it adds points of the batch to the bases.
        parameters: Parameters to learn, by name. They keep their shapes while the bases grow.
        bounds: Lower and upper bounds of some of them; None for none.
        rows: Number of rows n.
        num_steps: Number of steps T.
        batch_size: Rows per batch N_m.
        lr: Initial step size γ₀.
        seed: Seed for the order of rows. The global random state is not changed.
        progress: Whether to show a progress bar; None shows it only on a terminal.
    """
    adam = BoundedAdam(parameters, bounds, lr)
    batches = _batches(rows, batch_size, torch.Generator().manual_seed(seed))
    bar = tqdm(range(num_steps), desc="steps", leave=False, disable=None if progress is None else not progress)
    for step in bar:
        batch = next(batches)
        grow(batch)
        value = adam.step(partial(loss, batch), step_size(1.0, step))
        if step % SHOWN == 0:
            bar.set_postfix(loss=f"{value:.4f}")


def _batches(rows: int, batch_size: int, generator: torch.Generator) -> Iterator[Int[Tensor, " b"]]:
    """Yield batches of row indices without end, in a new order on every pass."""
    while True:
        yield from torch.randperm(rows, generator=generator).split(batch_size)


def start_from_medians(model: ModelWithData, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], seed: int) -> None:
    """Set lengthscales by median distances, outputscale 1, noise by the variance of the targets; in place. O(b² d).

    ℓ_l = √d · median |x_l − x'_l| over pairs of at most 1024 rows. If all inputs have the same spread, this is the
    paper's median distance; unlike that, it is right for any units. Kernels without a lengthscale and known variances
    stay as they are.

    Args:
        model: The model whose kernel and likelihood are set.
        X: Transformed inputs.
        Y: Transformed targets.
        seed: Seed for the choice of rows. The global random state is not changed.
    """
    chosen = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:MEDIAN_ROWS].to(X.device)
    medians = torch.stack([torch.pdist(column.unsqueeze(-1)).median() for column in X[chosen].unbind(-1)])
    medians = (
        torch.where(medians > 0, medians * X.shape[-1] ** 0.5, 1.0) if len(chosen) > 1 else X.new_ones(X.shape[-1])
    )
    for kernel in model.covar_module.modules():
        if isinstance(kernel, Kernel) and kernel.has_lengthscale:
            of_kernel = medians if kernel.active_dims is None else medians[kernel.active_dims]
            width = kernel.lengthscale.shape[-1]
            lengthscale = of_kernel if width == len(of_kernel) else of_kernel.mean().expand(width)
            kernel.lengthscale = lengthscale.to(kernel.lengthscale).expand_as(kernel.lengthscale)
        if isinstance(kernel, ScaleKernel):
            kernel.outputscale = torch.ones_like(kernel.outputscale)
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        variance = Y.var(0, correction=0).clamp_min(1e-2)
        noise = model.likelihood.noise
        model.likelihood.noise = variance.to(noise).reshape(noise.shape)
