"""Stochastic training: Adam over batches of rows, and the evidence of a batch with dense features."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from linear_operator.utils import linear_cg
from torch import Tensor
from torch.autograd.function import once_differentiable
from tqdm.auto import tqdm
from typing_extensions import override

from bo_scale.gp.linalg.dense import kernel_evidence
from bo_scale.gp.weight_space.evidence import log_density
from bo_scale.training.time_limit import is_over

PROBES = 10
"""Number of random sign vectors in the pseudoloss's trace estimate."""
CG_TOLERANCE, CG_ITERATIONS = 1e-4, 500
"""Relative residual at which the pseudoloss's solves stop, and their largest number of iterations (linear_cg warns)."""


def train_on_batches(
    loss: Callable[[Int[Tensor, " b"]], Float[Tensor, ""]],
    parameters: Mapping[str, torch.nn.Parameter],
    bounds: Mapping[str, tuple[Any, Any]],
    rows: int,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    progress: bool | None = None,
    units: Mapping[str, Tensor] | None = None,
) -> None:
    """Minimise a loss over batches of rows by Adam, in place. Each epoch takes every row once, in a new order.

    Parameters are kept within their bounds by projection. A `time_limit` ends it between two batches.

    Args:
        loss: Function from row numbers to the mean loss of these rows.
        parameters: Parameters to learn, by name. Without any, nothing happens.
        bounds: Lower and upper bounds of some of them; None for none.
        rows: n.
        epochs: Passes over the rows.
        batch_size: Rows per step.
        lr: Step size of Adam.
        seed: Seed of the order. The global random state is not touched.
        progress: Whether to show a progress bar; None to show it on a terminal only.
        units: Units of some parameters, by which their steps are multiplied.
    """
    if not parameters:
        return
    generator = torch.Generator().manual_seed(seed)
    adam = BoundedAdam(parameters, bounds, lr, units)
    bar = tqdm(range(epochs), desc="epochs", leave=False, disable=None if progress is None else not progress)
    for _ in bar:
        total = 0.0
        for batch in torch.randperm(rows, generator=generator).split(batch_size):
            total += adam.step(partial(loss, batch)) * len(batch)
            if is_over():
                bar.close()
                return
        bar.set_postfix(loss=f"{total / rows:.4f}")


class BoundedAdam:
    """Adam that keeps parameters within their bounds by projection.

    Args:
        parameters: Parameters to learn, by name.
        bounds: Lower and upper bounds of some of them; None for none.
        lr: Step size.
        units: Units of some parameters, by which their steps are multiplied.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        bounds: Mapping[str, tuple[Any, Any]],
        lr: float,
        units: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._adam = torch.optim.Adam(list(parameters.values()), lr=lr)
        self._bounded = [(parameters[name], *limits) for name, limits in bounds.items() if name in parameters]
        self._lr = lr
        self._units = [(parameters[name], unit) for name, unit in (units or {}).items() if name in parameters]

    def step(self, loss: Callable[[], Tensor], share: float = 1.0) -> float:
        """Take one step, of `share` times the step size, and return the loss before it."""
        self._adam.param_groups[0]["lr"] = share * self._lr
        self._adam.zero_grad()
        value = loss()
        value.backward()
        before = [p.detach().clone() for p, _ in self._units]
        self._adam.step()
        with torch.no_grad():
            for (p, unit), old in zip(self._units, before, strict=True):
                p.sub_(old).mul_(unit).add_(old)
            for p, lower, upper in self._bounded:
                p.clamp_(lower, upper)
        return value.item()


class _WeightedGram(torch.autograd.Function):
    """WᵀD⁻¹W, whose gradient D⁻¹W(Ḡ + Ḡᵀ) takes one product where autograd would take two."""

    @staticmethod
    @override
    def forward(ctx: Any, W: Tensor, D: Tensor) -> Tensor:
        ctx.save_for_backward(W, D)
        return W.mT @ (W / D.unsqueeze(-1))

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        W, D = ctx.saved_tensors
        return (W / D.unsqueeze(-1)) @ (grads[0] + grads[0].mT), None


def batch_log_evidence(
    W: Float[Tensor, "b p"],
    S: Float[Tensor, "p p"],
    y: Float[Tensor, " b"],
    D: Float[Tensor, " b"],
    noise: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """Log N(y; 0, W S Wᵀ + σ²D). O(b p² + p³), or O(b p² + b³) for few rows. Differentiable in W, S, y and σ².

    Args:
        W: Features of the batch.
        S: Prior covariance of the weights; may be singular.
        y: Targets minus their mean.
        D: Relative noise variances.
        noise: σ².

    Raises:
        NotPositiveDefiniteError: if W or S is not finite.
    """
    if 2 * len(y) <= len(S):
        return log_density(W @ S @ W.mT, y, D, noise, y.new_zeros(()))
    G: Tensor = _WeightedGram.apply(W, D)  # type: ignore[no-untyped-call]
    explained, logdet = kernel_evidence(S, G, W.mT @ (y / D), noise)
    rest = (y.square() / D).sum() / noise + len(y) * (noise.log() + math.log(2 * math.pi)) + D.log().sum()
    return 0.5 * (explained - logdet - rest)


def pseudo_log_evidence(
    W: Float[Tensor, "b p"],
    S: Float[Tensor, "p p"],
    y: Float[Tensor, " b"],
    D: Float[Tensor, " b"],
    noise: Float[Tensor, ""],
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """Pseudoloss whose expected gradient is that of the log evidence, by products with Σ = W S Wᵀ + σ²D alone.

    ½ b₀ᵀΣb₀ − (1/2L) Σ_j a_jᵀΣb_j with Σb₀ = y, Σb_j = a_j, every b constant and a_j of random signs: the Hutchinson
    pseudoloss, [SoftKI] def. 4.2 with its signs corrected. Conjugate gradients solve in O((b p + p²) L) an iteration.
    """
    noisy = noise * D

    def product(M: Tensor) -> Tensor:
        return W @ (S @ (W.mT @ M)) + noisy.unsqueeze(-1) * M

    signs = torch.randint(0, 2, (len(y), PROBES), generator=generator).to(W) * 2 - 1
    with torch.no_grad():
        right = torch.cat([y.unsqueeze(-1), signs], -1)
        solved = linear_cg(
            product,
            right,
            tolerance=CG_TOLERANCE,
            max_iter=CG_ITERATIONS,
            preconditioner=lambda M: M / noisy.unsqueeze(-1),
        )
    b0, probes = solved[:, :1], solved[:, 1:]
    quadratic = 0.5 * (b0.mT @ product(b0)).squeeze() - (y - y.detach()) @ b0.squeeze(-1)
    return quadratic - 0.5 * (signs * product(probes)).sum() / PROBES
