"""Softmax interpolation from learned points: the features of SoftKI."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.linalg.dense import positive_root
from bo_scale.gp.weight_space.features.base import FeatureMap

DISTANCES = "donot_use_mm_for_euclid_dist"
"""Mode of distances: by products they would cancel far from 0."""
TOUCHING = 1e-9
"""Distance, in units of the temperature, up to which a place is a point."""
LONELY = 2.0
"""Distance from the nearest neighbour, relative to the median one, beyond which a point is lonely."""
FADING = 4.0
"""Distance, in units of the temperature, over which values at the points cease to say anything."""


class _SoftmaxOfDistances(torch.autograd.Function):
    """W_ij = softmax_j(−‖x_i − z_j‖) with its gradient in closed form.

    With s̄ = W ∘ (W̄ − rowsum(W̄ ∘ W)) and E = −s̄/‖x − z‖:  z̄ = Eᵀ1 ∘ z − Eᵀx,  x̄ = E1 ∘ x − Ez;  0 where x = z
    up to rounding, at the tip of the cusp, where a direction would be that of the rounding.
    Where the gradient is to be differentiated again, distances are computed anew, at n p d numbers.
    """

    @staticmethod
    @override
    def forward(X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
        distance = torch.cdist(X, Z, compute_mode=DISTANCES)
        return torch.softmax(-distance, -1), distance

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        X, Z, W, distance = ctx.saved_tensors
        if grads[0] is None:
            return None, None
        E = W * grads[0]
        if torch.is_grad_enabled():
            squares = (X.unsqueeze(-2) - Z).square().sum(-1)
            same = squares <= TOUCHING**2
            E = ((W * E.sum(-1, keepdim=True) - E) / squares.where(~same, 1.0).sqrt()).masked_fill(same, 0.0)
        else:
            E = torch.addcmul(E, W, E.sum(-1, keepdim=True), value=-1.0).neg_()
            E = E.div_(distance).masked_fill_(distance <= TOUCHING, 0.0)
        g_X = E.sum(-1, keepdim=True) * X - E @ Z if ctx.needs_input_grad[0] else None
        g_Z = E.sum(0).unsqueeze(-1) * Z - E.mT @ X if ctx.needs_input_grad[1] else None
        return g_X, g_Z


def softmax_weights(
    X: Float[Tensor, "*b n d"], points: Float[Tensor, "p d"], temperature: Float[Tensor, " d"]
) -> Float[Tensor, "*b n p"]:
    """W_ij = exp(−‖(x_i − z_j)/T‖) / Σ_k exp(−‖(x_i − z_k)/T‖). O(n p d), in the dtype given.    [SoftKI] def. 4.1."""
    W, _ = _SoftmaxOfDistances.apply(  # type: ignore[no-untyped-call]
        (X / temperature).reshape(-1, X.shape[-1]), points / temperature
    )
    return W.reshape(*X.shape[:-1], len(points))


@dataclass(frozen=True)
class SoftmaxFeatures(FeatureMap):
    """k(x, x') ≈ W(x) K_zz W(x')ᵀ: softmax weights interpolate values at p points. [SoftKI] section 4.

    Attributes:
        points: z. φ depends on them and on the temperature.
        temperature: T, the difference in each input over which an interpolation weight falls by a factor e.
        covariance: Function from points to their kernel matrix K_zz.
        variance: Function from points to k(x, x).
    """

    points: Float[Tensor, "p d"]
    temperature: Float[Tensor, " d"]
    covariance: Callable[[Float[Tensor, "p d"]], Float[Tensor, "p p"]] = field(repr=False)
    variance: Callable[[Float[Tensor, "*b n d"]], Float[Tensor, "*b n"]] = field(repr=False)

    @property
    @override
    def num_features(self) -> int:
        return len(self.points)

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n p"]:
        """Interpolation weights, positive with sum 1. O(n p d)."""
        return softmax_weights(X.to(torch.float64), self.points, self.temperature)

    @override
    def depends_on(self) -> tuple[Any, ...]:
        return "softmax", self.points.detach(), self.temperature.detach()

    @override
    def chunk_size(self) -> int:
        return max(1, 5_000_000 // self.num_features)  # distances and weights

    @override
    def prior_matrix(self) -> Float[Tensor, "p p"]:
        """S = K_zz, computed once if constant."""
        if "_prior_matrix" in self.__dict__:
            kept: Tensor = self.__dict__["_prior_matrix"]
            return kept
        K = self.covariance(self.points)
        if not K.requires_grad:
            self.__dict__["_prior_matrix"] = K
        return K

    @override
    def prior_root(self) -> DenseLinearOperator:
        """Root of K_zz. O(p³)."""
        return DenseLinearOperator(positive_root(self.prior_matrix()))

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        W = self(X)
        return W @ self.prior_matrix() @ W.mT

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        W = self(X)
        return ((W @ self.prior_matrix()) * W).sum(-1)

    @override
    def distance_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Prior variance v (1 − exp(−(e/4)²)) where the nearest interpolation point is e beyond twice the spacing.

        The spacing is the largest distance of a point from its nearest neighbour, but at most twice the median one, so
        that a lonely point hides no others. Distances are in units of T. Far away weights are equal, and the prior
        variance is that of an average; v is its mean at the points. With T of 0.4 lengthscales, the default for an RBF
        kernel, the factor is nearly its 1 − k²(e).
        """
        spacing, usual = self._spacing()
        scaled = (X.to(torch.float64) / self.temperature).reshape(-1, X.shape[-1])
        points = self.points / self.temperature
        with torch.no_grad():
            nearest = torch.cdist(scaled, points, compute_mode=DISTANCES).argmin(-1)
        squares = (scaled - points[nearest]).square().sum(-1)
        near = (2 * spacing).clamp_min(1e-100)  # where the root is not differentiated
        excess = squares.maximum(near.square()).sqrt() - near
        variance: Tensor = usual * -torch.expm1(-(excess / FADING).square())
        return variance.reshape(X.shape[:-1])

    def _spacing(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the distance of a point from its neighbours beyond which it is lonely, and the mean prior variance."""
        if "_kept_spacing" not in self.__dict__:
            with torch.no_grad():
                scaled = self.points / self.temperature
                distances = torch.cdist(scaled, scaled, compute_mode=DISTANCES)
                distances.fill_diagonal_(math.inf)
                neighbours = distances.amin(-1) if len(scaled) > 1 else scaled.new_zeros(1)
                spacing = neighbours.amax().minimum(LONELY * neighbours.median())
                self.__dict__["_kept_spacing"] = spacing, self.prior_variance(self.points).mean()
        kept: tuple[Tensor, Tensor] = self.__dict__["_kept_spacing"]
        return kept

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.variance(X.to(torch.float64))
