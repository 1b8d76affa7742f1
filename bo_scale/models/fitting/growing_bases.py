"""Stages in which a decoupled GP is fitted: a start, and stochastic ascent with bases that grow with the rows seen."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from bo_scale.errors import FitWarning
from bo_scale.gp.function_space.variational import divergence, expected_log_likelihood
from bo_scale.models.fitting.evidence import loss_of
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.data import ModelWithData
from bo_scale.models.shell.lending import settle
from bo_scale.training.minibatch import BoundedAdam
from bo_scale.training.time_limit import is_over

Initialization = Literal["subset", "median", "current"]
Loss = Callable[[Int[Tensor, " b"]], Float[Tensor, ""]]
"""Loss per row of a batch, given as indices of rows."""

MEDIAN_ROWS = 1024
"""Maximum number of rows for the median distances."""
PASSES, FEWEST_STEPS, MOST_STEPS = 20, 300, 2000
"""Number of passes over the rows unless a number of steps is asked for, and bounds for the steps. On kin40k with 3000
rows the negative log density was .70 without steps, .57 after 200, .44 after 600; on two other sets none helped."""
SHOWN = 50
"""Number of steps between two losses shown by the progress bar."""


@dataclass(frozen=True)
class GrowingFit:
    """Hyperparameters, bases and the closed form; then steps on batches, from which the bases grow. See `DecoupledGP`.

    Attributes:
        initialization: Initial hyperparameters.
        subset_size: Maximum number of rows of the exact GP that these may come from.
        num_steps: Number of steps T; None for as many as some passes over the rows.
        batch_size: Rows per batch N_m.
        column_batch: Columns of K_α per step.
        lr: Initial step size γ₀.
        seed: Seed for rows, batches and columns. The global random state is not changed.
        progress: Whether to show a progress bar; None shows it only on a terminal.
    """

    initialization: Initialization
    subset_size: int
    num_steps: int | None
    batch_size: int
    column_batch: int
    lr: float
    seed: int
    progress: bool | None = None

    def run(
        self, model: Any, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None, record: Recorder
    ) -> None:
        """Fit a model in place. Steps are skipped after an exact fit to all rows, undone if they lower the bound."""
        with record.stage(f"hyperparameters from the {self.initialization} start"):
            self._start(model, optimizer_kwargs)
        whole = model._place_bases(keep=False)
        model._solve()
        exact = self.initialization == "subset" and model.num_observations <= self.subset_size
        steps = self.steps_for(model.num_observations)
        if steps > 0 and not (exact and whole):
            with record.stage(f"{steps} steps of Adam on batches"), kept_if_better(model, mll, record):
                self._train(model, mll)
                model._refresh()

    def steps_for(self, rows: int) -> int:
        """Return the number of steps for n rows."""
        if self.num_steps is not None:
            return self.num_steps
        return min(max(FEWEST_STEPS, -(-PASSES * rows // self.batch_size)), MOST_STEPS)

    def _start(self, model: Any, optimizer_kwargs: dict[str, Any] | None) -> None:
        if self.initialization == "subset":
            start_from_subset(model, self.subset_size, self.seed, optimizer_kwargs)
        elif self.initialization == "median":
            X, Y, _ = model._transformed_rows()
            start_from_medians(model, X, Y, self.seed)

    def _train(self, model: Any, mll: MarginalLogLikelihood) -> None:
        model._held.learn_variational(True)
        learned = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        X, bounds = model._transformed_rows()[0], get_parameters_and_bounds(mll)[1]
        try:
            self.ascend(self.batch_loss(model, mll), lambda b: grow_bases(model, X[b]), learned, bounds, len(X))
        finally:
            model._held.learn_variational(not model._polishes)
            model._inference = None

    def ascend(
        self,
        loss: Loss,
        grow: Callable[[Int[Tensor, " b"]], None],
        parameters: Mapping[str, torch.nn.Parameter],
        bounds: Mapping[str, tuple[Any, Any]],
        rows: int,
    ) -> None:
        """Minimise a loss over batches of rows by Adam with falling steps, in place. [DGP] algorithm 1.

        Projection keeps parameters within their bounds. Every row is used once before any is used again.

        Args:
            loss: The loss.
            grow: Function called with a batch before its step; it adds points of the batch to the bases.
            parameters: Parameters to learn, by name. They keep their shapes while the bases grow.
            bounds: Lower and upper bounds of some of them; None for none.
            rows: Number of rows n.
        """
        adam = BoundedAdam(parameters, bounds, self.lr)
        batches = _batches(rows, self.batch_size, torch.Generator().manual_seed(self.seed))
        quiet = None if self.progress is None else not self.progress
        for step in (bar := tqdm(range(self.steps_for(rows)), desc="steps", leave=False, disable=quiet)):
            batch = next(batches)
            grow(batch)
            value = adam.step(partial(loss, batch), step_size(1.0, step))
            if step % SHOWN == 0:
                bar.set_postfix(loss=f"{value:.4f}")
            if is_over():
                bar.close()
                break

    def batch_loss(self, model: Any, mll: MarginalLogLikelihood) -> Loss:
        """Return the loss −(estimated bound + log priors)/n, linear in M_α."""
        X, Y, D = model._transformed_rows()
        generator = torch.Generator().manual_seed(self.seed + 1)

        def loss(batch: Tensor) -> Tensor:
            noise, own = model._noise_scale() * D[batch], len(model._held.bases.mean)
            columns = None  # all
            if own > self.column_batch:
                columns = torch.randperm(own, generator=generator)[: self.column_batch].to(X.device)
            parts = []
            for j in range(model.num_outputs):
                process = model._process(j)
                fit = expected_log_likelihood(process, X[batch], Y[batch, j], noise[:, j])
                parts.append(fit / len(batch) - divergence(process, columns) / len(X))
            priors: Tensor = mll._add_other_terms(Y.new_zeros(()), [])
            return -torch.stack(parts).sum() - priors / len(X)

        return loss


def step_size(initial: float, step: int) -> float:
    """Return γ₀/(1 + 0.1 √t), the paper's schedule."""
    return initial / (1 + 0.1 * math.sqrt(step))


def _batches(rows: int, batch_size: int, generator: torch.Generator) -> Iterator[Int[Tensor, " b"]]:
    """Yield batches of row indices without end, in a new order on every pass."""
    while True:
        yield from torch.randperm(rows, generator=generator).split(batch_size)


@torch.no_grad()
def grow_bases(model: Any, X: Float[Tensor, "b d"]) -> None:
    """Add points of a batch to a model's bases, in place, until these are full. [DGP] algorithm 1."""
    bases = model._held.bases
    grown = model._rule.grown(bases, X)
    if grown.sizes != bases.sizes:
        settle(model)
        model._held.grow(grown, [model._kernel(j) for j in range(model.num_outputs)])
        model._inference = None


@contextmanager
def kept_if_better(model: Any, mll: MarginalLogLikelihood, record: Recorder) -> Iterator[None]:
    """Undo all changes within the context, with a warning, if they lower the bound of all rows plus priors."""
    before = [(value, value.detach().clone()) for value in (*mll.parameters(), *mll.buffers())]
    loss = _whole_loss(model, mll)
    yield
    if not _whole_loss(model, mll) <= loss:
        with torch.no_grad():
            for value, kept in before:
                value.copy_(kept)
        model._forget_inference()
        record.warn(
            f"{type(model).__name__}: the steps of Adam lowered the bound, so they were undone. Choose a smaller lr or "
            f"a larger num_steps.",
            FitWarning,
        )


@torch.no_grad()
def _whole_loss(model: Any, mll: MarginalLogLikelihood) -> float:
    found: float = loss_of(model, mll, model._log_evidence()).item()
    return found


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
