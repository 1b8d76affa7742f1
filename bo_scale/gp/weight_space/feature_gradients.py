"""Exact gradients, with respect to the features' parameters, of any function of the statistics.

Pass 1 accumulates the statistics in chunks, without a graph. The function of the statistics then gives ∂/∂G, ∂/∂r and
∂/∂g. Pass 2 pulls these back through φ chunk by chunk. O(chunk·p + p²) memory at any n. Both passes are sums over rows,
which may be made anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.sparse_rows import transpose_matmul
from bo_scale.gp.weight_space.statistics import SufficientStatistics

Gradients = tuple[Tensor, Tensor, Tensor]
"""Derivatives with respect to the values of a Gram matrix, Φᵀ D⁻¹ z and Φᵀ D⁻¹ 1."""
PullBack = Callable[[list[Gradients]], list[Tensor]]
"""Function from derivatives with respect to every group of statistics to those with respect to the parameters."""


class _TwoPass(torch.autograd.Function):
    """G, r and g of some groups of statistics as functions of the features' parameters."""

    @staticmethod
    @override
    def forward(ctx: Any, pull_back: PullBack, sums: list[Tensor], *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.pull_back = pull_back
        return tuple(total.clone() for total in sums)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        groups = [grads[k : k + 3] for k in range(0, len(grads), 3)]
        return None, None, *ctx.pull_back(groups)


def differentiable(
    groups: Sequence[SufficientStatistics], pull_back: PullBack, learned: Sequence[Tensor]
) -> tuple[SufficientStatistics, ...]:
    """Return the same statistics, differentiable in the features' parameters.

    Args:
        groups: Statistics, made without a graph.
        pull_back: The second pass.
        learned: The parameters.
    """
    sums = [each for stats in groups for each in (stats.gram.values, stats.projection, stats.feature_sum)]
    apply: Any = _TwoPass.apply
    found = apply(pull_back, sums, *learned)
    return tuple(
        replace(stats, gram=replace(stats.gram, values=gram), projection=projection, feature_sum=feature_sum)
        for stats, gram, projection, feature_sum in zip(groups, found[::3], found[1::3], found[2::3], strict=True)
    )


def pulled_back(
    build: Callable[[], FeatureMap],
    learned: Sequence[Tensor],
    rows: tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, " n"]],
    grads: Gradients,
) -> list[Tensor]:
    """Return derivatives with respect to the parameters from those with respect to the sums, in one pass over rows.

    Φ̄ = D⁻¹(Φ(Ḡ + Ḡᵀ) + z r̄ᵀ + 1 ḡᵀ) for dense features. Otherwise Ḡ holds the gradients of the entries that the Gram
    matrix keeps, and autograd goes back through the sums of each chunk.

    Args:
        build: Function that builds the features anew, with a graph to the parameters.
        learned: The parameters.
        rows: Inputs in the units of the features, targets less the center of the statistics, relative noise variances.
        grads: Derivatives with respect to the sums.
    """
    G, r, g = grads
    with torch.enable_grad():
        features = build()
    totals = [torch.zeros_like(p) for p in learned]
    size = max(1, features.chunk_size() // 4)  # a graph holds several times the features themselves
    for x, z, d in zip(*(values.split(size) for values in rows), strict=True):
        with torch.enable_grad():
            Phi = features(x)
            if isinstance(Phi, Tensor):
                outputs = Phi
                upstream = (Phi.detach() @ (G + G.mT) + z @ r.mT + g) / d.unsqueeze(-1)
            else:
                gram = features.empty_gram(x.device).add_rows(Phi, 1 / d).values
                sums = transpose_matmul(Phi, torch.cat([z, z.new_ones(len(z), 1)], -1) / d.unsqueeze(-1))
                outputs = (gram * G).sum() + (sums * torch.cat([r, g.unsqueeze(-1)], -1)).sum()
                upstream = None
        found = torch.autograd.grad(outputs, learned, upstream, retain_graph=True, allow_unused=True)
        totals = [total if new is None else total + new for total, new in zip(totals, found, strict=True)]
    return totals
