"""Function-space processes: an exact prior kernel, conditioned on linear functionals of f.

mean = μ + b_μ(x)ᵀα + T(x)ᵀt,   cov = k(x, x') − T(x)ᵀT(x') + A(x)ᵀA(x'),   T = E⁻¹b_Σ,   A = VᵀT

with b the covariances of functionals with f(x). Actions on data (CaGP) and bases of a variational GP both have this
form. Any kernel may be used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.function_space.local_scale import LocalScale
from bo_scale.gp.linalg.dense import solve_lower
from bo_scale.gp.moving import Movable
from bo_scale.gp.processes import Located, PosteriorProcess, join_entries, join_rows

Function = Callable[[Tensor], Tensor]
"""Values `*s × q` of one or several functions at points `*b × q × d`, with b broadcast against s."""


Profile = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]
"""Function from squared distances, which it may overwrite, to κ(r²) and, on request, its slope dκ/dr²."""


@dataclass(frozen=True)
class Radial:
    """A kernel of scaled distance alone: scale · κ(‖(x − z)/ℓ‖²).

    Attributes:
        scale: Variance of the kernel.
        lengthscale: ℓ, one per dimension or one for all.
        profile: κ.
    """

    scale: Float[Tensor, ""]
    lengthscale: Float[Tensor, " l"]
    profile: Profile


@runtime_checkable
class Kernel(Protocol):
    """A covariance function in float64, differentiable in its points."""

    def __call__(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"]) -> Float[Tensor, "*e n r"]:
        """K_xz."""

    def variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """k(x, x)."""

    def radial(self) -> Radial | None:
        """The same kernel as a function of distance, if it is one; otherwise None."""


class Functionals(Movable, ABC):
    """Linear functionals of f, in terms of which a process is expressed."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of functionals."""

    @abstractmethod
    def covariance(self, kernel: Kernel, Z: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b i q"]:
        """b(z), the covariances of the functionals with f at points. Differentiable in Z."""

    @abstractmethod
    def of_function(self, function: Function) -> Float[Tensor, "*s i"]:
        """Values of the functionals for a function."""

    def state(self) -> dict[str, Tensor]:
        """Tensors too expensive to recompute, for saving."""
        return {}


class PointBasis(Functionals):
    """Functionals of the values of f at points: the bases of a variational GP. Abstract.

    Attributes:
        points: Points at which f is evaluated.
    """

    points: Float[Tensor, "j d"]

    @abstractmethod
    def of_values(self, values: Float[Tensor, "*b j q"]) -> Float[Tensor, "*b i q"]:
        """The functionals, given the values of functions at the points."""

    @override
    def covariance(self, kernel: Kernel, Z: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b i q"]:
        return self.of_values(_covariance(kernel, self.points, Z))

    @override
    def of_function(self, function: Function) -> Float[Tensor, "*s i"]:
        return self.of_values(function(self.points).unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Evaluations(PointBasis):
    """Values of f at points.

    Attributes:
        points: Points at which f is evaluated.
    """

    points: Float[Tensor, "i d"]

    @property
    @override
    def count(self) -> int:
        return len(self.points)

    @override
    def of_values(self, values: Float[Tensor, "*b i q"]) -> Float[Tensor, "*b i q"]:
        return values


def _covariance(kernel: Kernel, points: Float[Tensor, "j d"], Z: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b j q"]:
    """K of points with others in any batch shape."""
    return kernel(Z.reshape(-1, Z.shape[-1]), points).reshape(*Z.shape[:-1], len(points)).mT


@dataclass(frozen=True)
class FunctionLocated(Located):
    """Points of a function-space process.

    Attributes:
        mean: Posterior mean.
        points: x.
        kernel: Prior kernel.
        reduction: T.
        addition: A; None for none.
        root: √s, which multiplies deviations from the mean; None for one.
    """

    mean: Float[Tensor, "*b q"]
    points: Float[Tensor, "*b q d"]
    kernel: Kernel
    reduction: Float[Tensor, "*b i q"]
    addition: Float[Tensor, "*b r q"] | None = None
    root: Float[Tensor, "*b q"] | None = None

    @override
    def covariance(self, other: "FunctionLocated") -> Float[Tensor, "*b q r"]:
        covariance = self.kernel(self.points, other.points) - self.reduction.mT @ other.reduction
        if self.addition is not None and other.addition is not None:
            covariance = covariance + self.addition.mT @ other.addition
        if self.root is None or other.root is None:
            return covariance
        return self.root.unsqueeze(-1) * covariance * other.root.unsqueeze(-2)

    @override
    def variance(self) -> Float[Tensor, "*b q"]:
        # k − TᵀT is a Schur complement: below zero only by rounding.
        variance = (self.kernel.variance(self.points) - self.reduction.square().sum(-2)).clamp_min(0.0)
        variance = variance if self.addition is None else variance + self.addition.square().sum(-2)
        return variance if self.root is None else variance * self.root.square()

    @override
    def join(self, other: "FunctionLocated") -> "FunctionLocated":
        mean, addition, root = join_entries(self.mean, other.mean), None, None
        if self.addition is not None and other.addition is not None:
            addition = join_rows(self.addition.mT, other.addition.mT).mT
        if self.root is not None and other.root is not None:
            root = join_entries(self.root, other.root)
        reduction = join_rows(self.reduction.mT, other.reduction.mT).mT
        return FunctionLocated(mean, join_rows(self.points, other.points), self.kernel, reduction, addition, root)


@dataclass(frozen=True)
class FunctionSpacePosterior(PosteriorProcess):
    """A GP given functionals of it, exactly or by a variational distribution.

    Attributes:
        kernel: k, the prior kernel.
        constant: μ, the prior mean.
        basis: Functionals ℓ of the covariance.
        factor: E, lower triangular. E Eᵀ is the covariance of the noisy observations of ℓ.
        innovation: t. The functionals ℓ contribute T(x)ᵀt to the mean.
        noise: Noise variance of the observations of ℓ, equal for all: E Eᵀ = cov(ℓ) + noise · I.
        spread: V, i × r, a root of the remaining variance of ℓ, in units of T; None for none.
        mean_basis: More functionals, for the mean alone; None for none.
        weights: α, the weights of `mean_basis`.
        local: s, by which variances near points are multiplied; None for one.
    """

    kernel: Kernel
    constant: Float[Tensor, ""]
    basis: Functionals
    factor: Float[Tensor, "i i"]
    innovation: Float[Tensor, " i"]
    noise: float = 1.0
    spread: Float[Tensor, "i r"] | None = None
    mean_basis: PointBasis | None = None
    weights: Float[Tensor, " j"] | None = None
    local: LocalScale | None = None

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """Batch shape, always empty."""
        return torch.Size([])

    @override
    def locate(self, X: Float[Tensor, "*b q d"]) -> FunctionLocated:
        b, own = self._covariance_and_mean(X)
        T = solve_lower(self.factor, b)
        mean = own + (T.mT @ self.innovation.unsqueeze(-1)).squeeze(-1)
        addition = None if self.spread is None else self.spread.mT @ T
        root = None if self.local is None else self.local(X).sqrt()
        return FunctionLocated(mean, X, self.kernel, T, addition, root)

    @override
    def mean(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
        """μ + b_μᵀα + b_Σᵀ E⁻ᵀt, without a triangular solve per point."""
        u = torch.linalg.solve_triangular(self.factor.mT, self.innovation.unsqueeze(-1), upper=True)
        b, own = self._covariance_and_mean(X)
        return own + (b.mT @ u).squeeze(-1)

    def _covariance_and_mean(self, X: Float[Tensor, "*b q d"]) -> tuple[Float[Tensor, "*b i q"], Float[Tensor, "*c"]]:
        """b_Σ, and what does not depend on it of the mean: μ + b_μᵀα. One evaluation of the kernel for both bases."""
        if self.mean_basis is None or self.weights is None:
            return self.basis.covariance(self.kernel, X), self.constant
        assert isinstance(self.basis, PointBasis), "the basis of a variational GP"
        points = torch.cat([self.basis.points, self.mean_basis.points])
        K = _covariance(self.kernel, points, X)
        b, b_mean = K.split([len(self.basis.points), len(self.mean_basis.points)], -2)
        own = self.mean_basis.of_values(b_mean).mT @ self.weights.unsqueeze(-1)
        return self.basis.of_values(b), self.constant + own.squeeze(-1)

    def state(self) -> dict[str, Tensor]:
        """Everything but the kernel and the data behind the functionals, for saving."""
        names = ("constant", "factor", "innovation", "spread", "weights")
        own = {name: getattr(self, name).clone() for name in names if getattr(self, name) is not None}
        return {**own, **self.basis.state(), **({} if self.local is None else self.local.state())}

    def draw(
        self,
        draw_prior: Callable[[torch.Size], Function],
        sample_shape: torch.Size,
        generator: torch.Generator | None = None,
    ) -> Function:
        """Draw functions of the posterior by Matheron's rule on draws of the prior. Exact if these are.

        f(x) = mean(x) + √s(x) (g(x) + T(x)ᵀ [V ζ − E⁻¹(ℓ(g) + ε)]), g of the prior without μ, ε and ζ standard normal.

        Args:
            draw_prior: Function that draws a given number of functions g of the prior.
            sample_shape: Number of draws.
            generator: Source of all other randomness; None for torch's global one.

        Returns:
            Function from points `*b × q × d` to values `*sample_shape × q`, with b broadcast against the samples.
        """
        like, prior = self.innovation, draw_prior(sample_shape)

        def normal(count: int) -> Tensor:
            return torch.randn(*sample_shape, count, generator=generator, dtype=like.dtype, device=like.device)

        seen = self.basis.of_function(prior) + self.noise**0.5 * normal(self.basis.count)
        back = -_solved(self.factor, seen, upper=False)
        if self.spread is not None:
            back = back + normal(self.spread.shape[-1]) @ self.spread.mT
        weights = _solved(self.factor.mT, back + like, upper=True).unsqueeze(-1)

        def function(X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
            b, own = self._covariance_and_mean(X)
            return own + prior(X) + (b.mT @ weights).squeeze(-1)

        return function if self.local is None else self._scaled(function, self.local)

    def _scaled(self, function: Function, local: LocalScale) -> Function:
        """Scale a function's deviations from the mean."""

        def scaled(X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
            mean = self.mean(X)
            return mean + local(X).sqrt() * (function(X) - mean)

        return scaled


def _solved(factor: Float[Tensor, "*c r r"], rows: Float[Tensor, "*s r"], upper: bool) -> Float[Tensor, "*s r"]:
    """Solve with a triangular factor for many rows at once: as columns of one matrix, where there is one factor."""
    if factor.ndim > 2:
        return torch.linalg.solve_triangular(factor, rows.unsqueeze(-1), upper=upper).squeeze(-1)
    columns = rows.reshape(-1, rows.shape[-1]).mT
    return torch.linalg.solve_triangular(factor, columns, upper=upper).mT.reshape(rows.shape)
