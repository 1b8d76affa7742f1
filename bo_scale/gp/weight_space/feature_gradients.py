"""Exact gradients, with respect to the features' parameters, of any function of the statistics.

Pass 1 accumulates the statistics in chunks, without a graph. The function of the statistics then gives ∂/∂G, ∂/∂r and
∂/∂g. Pass 2 pulls these back through φ chunk by chunk. O(chunk·p + p²) memory at any n.
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


class _TwoPass(torch.autograd.Function):
    """G, r and g as functions of the features' parameters.

    Φ̄ = D⁻¹(Φ(Ḡ + Ḡᵀ) + z r̄ᵀ + 1 ḡᵀ) for dense features. Otherwise Ḡ holds the gradients of the entries that the Gram
    matrix keeps, and autograd goes back through the sums of each chunk.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, build: Callable[[], FeatureMap], X: Tensor, Z: Tensor, D: Tensor, sums: list[Tensor], *learned: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.build, ctx.learned = build, learned
        ctx.save_for_backward(X, Z, D)
        return tuple(total.clone() for total in sums)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        X, Z, D = ctx.saved_tensors
        G, r, g = grads
        with torch.enable_grad():
            features = ctx.build()
        totals = [torch.zeros_like(p) for p in ctx.learned]
        size = max(1, features.chunk_size() // 4)  # a graph holds several times the features themselves
        for x, z, d in zip(X.split(size), Z.split(size), D.split(size), strict=True):
            with torch.enable_grad():
                Phi = features(x)
                if isinstance(Phi, Tensor):
                    outputs = Phi
                    upstream = (Phi.detach() @ (G + G.mT) + z @ r.mT + g) / d.unsqueeze(-1)
                else:
                    gram = features.empty_gram(X.device).add_rows(Phi, 1 / d).values
                    sums = transpose_matmul(Phi, torch.cat([z, z.new_ones(len(z), 1)], -1) / d.unsqueeze(-1))
                    outputs = (gram * G).sum() + (sums * torch.cat([r, g.unsqueeze(-1)], -1)).sum()
                    upstream = None
            found = torch.autograd.grad(outputs, ctx.learned, upstream, retain_graph=True, allow_unused=True)
            totals = [total if new is None else total + new for total, new in zip(totals, found, strict=True)]
        return (None,) * 5 + tuple(totals)


def with_gradient(
    stats: SufficientStatistics,
    build: Callable[[], FeatureMap],
    learned: Sequence[torch.nn.Parameter],
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    D: Float[Tensor, " n"],
) -> SufficientStatistics:
    """The same statistics, differentiable in the features' parameters. Backward costs one pass over the rows.

    Args:
        stats: Statistics of all these rows, made without a graph.
        build: Function that builds the features anew, with a graph to the parameters.
        learned: The parameters.
        X: Inputs in the units of the features.
        Y: Targets.
        D: Relative noise variances.
    """
    sums = [stats.gram.values, stats.projection, stats.feature_sum]
    apply: Any = _TwoPass.apply
    gram, projection, feature_sum = apply(build, X, Y - stats.center, D, sums, *learned)
    return replace(stats, gram=replace(stats.gram, values=gram), projection=projection, feature_sum=feature_sum)
