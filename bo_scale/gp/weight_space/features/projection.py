"""Features φ(h(x)) of projected inputs, which let a grid of few dimensions serve many inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.informative_directions import informative_directions
from bo_scale.gp.weight_space.features.sparse_rows import Features
from bo_scale.gp.weight_space.gram import Gram

SMALLEST_VARIANCE = 1e-12
"""Variance of a coordinate, before normalisation, below which all its values count as equal."""

Projection = Callable[[Float[Tensor, "*b n d"]], Float[Tensor, "*b n k"]]
"""Function from inputs to coordinates in the grid's cube."""


class LinearProjection(torch.nn.Module):
    """h(x) = tanh(γ ∘ (z − E z)/sd(z) + β) with z = W x: linear, batch norm, tanh into [−1, 1]^k.  [WISKI] section 5.1.

    Normalisation runs over all training inputs. Their mean and covariance give E z and sd(z) exactly for any W, so h of
    a row does not depend on the other rows of its batch.

    Args:
        d: Number of inputs.
        k: Number of coordinates.
        weight: Initial W, `k × d`, for inputs of unit spread. With None, a model takes the directions along which its
            training targets vary most, see `bo_scale.gp.weight_space.features.informative_directions`.

    Examples:
        >>> X = torch.rand(100, 8, dtype=torch.float64)
        >>> projection = LinearProjection(8, 2).for_data(X, X[:, :1].square())
        >>> projection(torch.rand(3, 8, dtype=torch.float64)).shape
        torch.Size([3, 2])
    """

    mean: Tensor
    scale: Tensor
    correlation: Tensor

    def __init__(self, d: int, k: int = 2, weight: Float[Tensor, "k d"] | None = None) -> None:
        if min(d, k) < 1 or (weight is not None and weight.shape != (k, d)):
            shown = "" if weight is None else f", weight of shape {tuple(weight.shape)}"
            raise InvalidDataError(
                f"LinearProjection({d}, {k}{shown}): d and k must be at least 1, and weight of shape k × d."
            )
        super().__init__()
        start = torch.eye(k, d, dtype=torch.float64) if weight is None else weight.detach().to(torch.float64).clone()
        self._given = weight is not None
        self.weight = torch.nn.Parameter(start)
        self.gain = torch.nn.Parameter(torch.ones(k, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.zeros(k, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(d, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(d, dtype=torch.float64))
        self.register_buffer("correlation", torch.eye(d, dtype=torch.float64))

    def for_data(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"]) -> "LinearProjection":
        """Projection normalised over these inputs, with directions from the data unless they were given. O(n d²).

        Args:
            X: Training inputs. With fewer than two, normalisation and directions stay as they are.
            Y: Training targets.

        Raises:
            InvalidDataError: if the number of columns differs from d.
        """
        k, d = self.weight.shape
        if X.shape[-1] != d:
            raise InvalidDataError(
                f"projection: takes {d} inputs, but there are {X.shape[-1]}. Make it with d={X.shape[-1]}."
            )
        found = LinearProjection(d, k, self.weight)
        found.load_state_dict(self.state_dict())
        if len(X) >= 2:
            X, Y = X.detach().double(), Y.detach().double()
            spread = X.std(0, correction=0)
            found.mean, found.scale = X.mean(0), torch.where(spread > 0, spread, 1.0)
            Z = (X - found.mean) / found.scale
            found.correlation = Z.mT @ Z / len(Z)
            if not self._given:
                found.weight.data = informative_directions(Z, Y, k)
        for own, given in zip(found.parameters(), self.parameters(), strict=True):
            own.requires_grad_(given.requires_grad)
        return found.to(self.weight)

    @override
    def forward(self, X: Tensor) -> Tensor:
        """Coordinates `… n k` of inputs `… n d`."""
        variance = ((self.weight @ self.correlation) * self.weight).sum(-1).clamp_min(SMALLEST_VARIANCE)
        slope = self.weight * (self.gain * variance.rsqrt()).unsqueeze(-1)
        return torch.tanh(((X - self.mean) / self.scale) @ slope.mT + self.bias)


def width(projection: torch.nn.Module | None, X: Float[Tensor, "n d"]) -> int:
    """Number of grid dimensions for inputs X: the number of their columns, or of their projected coordinates."""
    if projection is None:
        return X.shape[-1]
    with torch.no_grad():
        x = X[:1] if len(X) > 0 else X.new_zeros(1, X.shape[-1])
        return int(in_double(projection, frozen=True)(x).shape[-1])


def in_double(module: torch.nn.Module, frozen: bool) -> Projection:
    """Turn a module of any dtype into a function in float64, with a graph to its parameters unless frozen.

    A frozen function does not follow later changes of the module.

    Args:
        module: Module from `… n d` to `… n k`.
        frozen: Whether its parameters are copied.
    """
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if frozen:
        values = {name: value.detach().clone() for name, value in values.items()}
    double = {name: value.double() if value.is_floating_point() else value for name, value in values.items()}
    return InDouble(module, double)


@dataclass(frozen=True)
class InDouble:
    """A module in float64.

    Attributes:
        module: The module, of any dtype.
        values: Its parameters and buffers.
    """

    module: torch.nn.Module
    values: dict[str, Tensor]

    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n k"]:
        """The module's value at inputs."""
        found: Tensor = torch.func.functional_call(self.module, self.values, (X.to(torch.float64),))
        return found


@dataclass(frozen=True)
class ProjectedFeatures(FeatureMap):
    """φ(h(x)), where φ has fewer dimensions than x. Features depend on the parameters of h; the prior does not.

    Attributes:
        base: φ.
        projection: h.
    """

    base: FeatureMap
    projection: Projection = field(repr=False)

    @property
    @override
    def num_features(self) -> int:
        return self.base.num_features

    @property
    @override
    def max_rank(self) -> int:
        return self.base.max_rank

    @property
    @override
    def free_of_prior(self) -> bool:
        return self.base.free_of_prior

    @override
    def depends_on(self) -> tuple[Any, ...]:
        base = self.base.depends_on()
        if not base or not isinstance(self.projection, InDouble):
            return ()
        return *base, *(value.detach() for value in self.projection.values.values())

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Features:
        """Features of the base at h(x). Differentiable in X and in the parameters of h."""
        return self.base(self.projection(X))

    @override
    def prior_root(self) -> LinearOperator:
        return self.base.prior_root()

    @override
    def prior_matrix(self) -> Float[Tensor, "p p"] | None:
        return self.base.prior_matrix()

    @override
    def reduced(self, root: LinearOperator) -> FeatureMap | None:
        reduced = self.base.reduced(root)
        return None if reduced is None else ProjectedFeatures(reduced, self.projection)

    @override
    def whitened(self, root: LinearOperator) -> FeatureMap:
        return ProjectedFeatures(self.base.whitened(root), self.projection)

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.base.kernel_variance(self.projection(X))

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        return self.base.prior_covariance(self.projection(X))

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.base.prior_variance(self.projection(X))

    @override
    def missing_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.base.missing_variance(self.projection(X))

    @override
    def distance_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.base.distance_variance(self.projection(X))

    @override
    def empty_gram(self, device: torch.device | None = None) -> Gram:
        return self.base.empty_gram(device)

    @override
    def chunk_size(self) -> int:
        return self.base.chunk_size()

    @override
    def summed_at_once(self) -> int:
        return self.base.summed_at_once()


def unprojected(features: FeatureMap, X: Float[Tensor, "*b n d"]) -> tuple[FeatureMap, Any]:
    """Base map and h(X) for projected features; otherwise the map itself and X."""
    if isinstance(features, ProjectedFeatures):
        return features.base, features.projection(X)
    return features, X
