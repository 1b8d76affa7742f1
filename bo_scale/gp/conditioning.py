"""Conditioning of any process on a few points by Schur complement: fantasies, pending points, look-ahead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import WrongTypeError
from bo_scale.gp.function_space.process import Function, FunctionLocated, FunctionSpacePosterior
from bo_scale.gp.linalg.dense import cholesky, solve_lower
from bo_scale.gp.processes import Located, PosteriorProcess, join_entries, join_rows
from bo_scale.gp.weight_space.posterior import WeightProcess


@dataclass(frozen=True)
class ConditionedLocated(Located):
    """Points of a conditioned process: points of its base, and T = E⁻¹ k(X_q, ·)."""

    mean: Float[Tensor, "*b q"]
    base: Located
    reduction: Float[Tensor, "*c i q"]

    @override
    def covariance(self, other: "ConditionedLocated") -> Float[Tensor, "*b q r"]:
        return self.base.covariance(other.base) - self.reduction.mT @ other.reduction

    @override
    def variance(self) -> Float[Tensor, "*b q"]:
        # k − TᵀT is a Schur complement: below zero only by rounding.
        return (self.base.variance() - self.reduction.square().sum(-2)).clamp_min(0.0)

    @override
    def join(self, other: "ConditionedLocated") -> "ConditionedLocated":
        mean = join_entries(self.mean, other.mean)
        reduction = join_rows(self.reduction.mT, other.reduction.mT).mT
        return ConditionedLocated(mean, self.base.join(other.base), reduction)


@dataclass(frozen=True)
class Conditioned(PosteriorProcess):
    """A process given a few more values, by Schur complement. Only y has a dimension of fantasies, covariances do not.

    A = k(X_q, X_q) + D_q = E Eᵀ,   m'(x) = m(x) + k(x, X_q) A⁻¹ (y − m(X_q)),
    k'(x, x') = k(x, x') − k(x, X_q) A⁻¹ k(X_q, x').

    Conditioning again extends E by a block row. Nothing as large as the base is copied.

    Attributes:
        base: Process before conditioning.
        points: X_q, located in the base.
        noise: D_q.
        factor: E.
        innovation: E⁻¹ (y − m(X_q)).
    """

    base: PosteriorProcess
    points: Located
    noise: Float[Tensor, "*n i"]
    factor: Float[Tensor, "*c i i"]
    innovation: Float[Tensor, "*f i"]

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """Broadcast shape of everything conditioned on."""
        return torch.broadcast_shapes(self.factor.shape[:-2], self.innovation.shape[:-1])

    @override
    def locate(self, X: Float[Tensor, "*b q d"]) -> ConditionedLocated:
        return self._reduce(self.base.locate(X))

    def _reduce(self, base: Located) -> ConditionedLocated:
        T = solve_lower(self.factor, self.points.covariance(base))
        mean = base.mean + (T.mT @ self.innovation.unsqueeze(-1)).squeeze(-1)
        return ConditionedLocated(mean, base, T)

    def extended(
        self, X: Float[Tensor, "*b q d"], y: Float[Tensor, "*f q"], noise: Float[Tensor, "*n q"]
    ) -> "Conditioned":
        """Condition once more, by one block row of E. O(i² q + q³)."""
        located = self.base.locate(X)
        points, i = self.points.join(located), self.factor.shape[-1]
        K = points.covariance(located)  # all that is asked of the kernel, at once
        T = solve_lower(self.factor, K[..., :i, :])
        E = cholesky(K[..., i:, :] - T.mT @ T + torch.diag_embed(noise), "covariance of new observations")
        off = y - located.mean - (T.mT @ self.innovation.unsqueeze(-1)).squeeze(-1)
        return Conditioned(
            self.base,
            points,
            join_entries(self.noise, noise),
            _extend(self.factor, T.mT, E),
            join_entries(self.innovation, _solve(E, off)),
        )

    def state(self) -> dict[str, Tensor]:
        """Everything but the base, a function-space process, for saving."""
        points = self.points
        assert isinstance(points, FunctionLocated)
        located = {name: getattr(points, name) for name in ("mean", "points", "reduction", "addition", "root")}
        given = {"noise": self.noise, "factor": self.factor, "innovation": self.innovation}
        return {name: value.clone() for name, value in {**given, **located}.items() if value is not None}

    @classmethod
    def restored(cls, base: FunctionSpacePosterior, saved: dict[str, Tensor]) -> "Conditioned":
        """Restore a process from its state and its base."""
        own = {name: saved[name] for name in ("noise", "factor", "innovation")}
        located = {name: value for name, value in saved.items() if name not in own}
        return cls(base, FunctionLocated(kernel=base.kernel, **located), **own)

    def sample_weights(
        self, sample_shape: torch.Size, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*s p"]:
        """Draw weights exactly, by Matheron's rule on draws of the base: w' = B (z + V A⁻¹ (y − m − Vᵀz − ε)) + w.

        Raises:
            WrongTypeError: if the base is not a weight-space process.
        """
        base, points = self.base, cast(Any, self.points)
        if not isinstance(base, WeightProcess):
            raise WrongTypeError(f"{type(base).__name__} has no weights to sample.")
        root: Tensor = points.root
        shape, device = (*sample_shape, *self.batch_shape), root.device
        z = torch.randn(*shape, base.rank, 1, generator=generator, dtype=torch.float64, device=device)
        e = torch.randn(*shape, self.factor.shape[-1], generator=generator, dtype=torch.float64, device=device)
        u = self.innovation - _solve(self.factor, (root @ z).squeeze(-1) + self.noise.sqrt() * e)
        back = torch.linalg.solve_triangular(self.factor.mT, u.unsqueeze(-1), upper=True)
        return base.weights + base.spread((z + root.mT @ back).squeeze(-1))

    def draw(
        self,
        draw_prior: Callable[[torch.Size], Function],
        sample_shape: torch.Size,
        generator: torch.Generator | None = None,
    ) -> Function:
        """Draw functions, by Matheron's rule on draws of the base: f' = f + k(·, X_q) A⁻¹ (y − f(X_q) − ε).

        Args:
            draw_prior: Function that draws from the prior, as in the base.
            sample_shape: Number of draws for each of a batch of fantasies.
            generator: Source of randomness; None for torch's global one.

        Raises:
            WrongTypeError: if the base is not a function-space process.
        """
        base, X = self.base, _points(self.points)
        if not isinstance(base, FunctionSpacePosterior | Conditioned):
            raise WrongTypeError(f"{type(base).__name__} cannot be sampled by updating functions of the prior.")
        shape = torch.Size([*sample_shape, *self.batch_shape])
        f = base.draw(draw_prior, shape, generator)
        e = torch.randn(
            *shape, self.factor.shape[-1], generator=generator, dtype=torch.float64, device=self.factor.device
        )
        u = self.innovation - _solve(self.factor, f(X) - self.points.mean + self.noise.sqrt() * e)

        def function(Z: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
            T = solve_lower(self.factor, self.points.covariance(base.locate(Z)))
            return f(Z) + (T.mT @ u.unsqueeze(-1)).squeeze(-1)

        return function


def _points(located: Located) -> Float[Tensor, "*b q d"]:
    """Coordinates of located points of a function-space process."""
    while isinstance(located, ConditionedLocated):
        located = located.base
    if not isinstance(located, FunctionLocated):
        raise WrongTypeError(f"{type(located).__name__} is not of a function-space process.")
    return located.points


def condition(
    process: PosteriorProcess,
    X: Float[Tensor, "*b q d"],
    y: Float[Tensor, "*f q"],
    noise: Float[Tensor, "*n q"],
) -> Conditioned:
    """Condition a process on q more noisy values. Arguments may have batch shapes, and gradients flow through them.

    O(q³) a batch, plus the covariance of the process at X. The result is a new level above `process`. If both have one
    batch shape, `Conditioned.extended` gives the same result in a single level.

    Args:
        process: Posterior, conditioned before or not.
        X: Points of the values.
        y: Values; extra leading dimensions are fantasies.
        noise: Noise variances.
    """
    points = process.locate(X)
    A = points.covariance(points) + torch.diag_embed(noise)
    E = cholesky(A, "covariance of new observations")
    return Conditioned(process, points, noise, E, _solve(E, y - points.mean))


def _solve(E: Float[Tensor, "*c i i"], y: Float[Tensor, "*f i"]) -> Float[Tensor, "*g i"]:
    """E⁻¹ y, with batch shapes broadcast."""
    return torch.linalg.solve_triangular(E, y.unsqueeze(-1), upper=False).squeeze(-1)


def _extend(
    E: Float[Tensor, "*c i i"], rows: Float[Tensor, "*r j i"], corner: Float[Tensor, "*s j j"]
) -> Float[Tensor, "*t k k"]:
    """[[E, 0], [rows, corner]]."""
    i, j = E.shape[-1], corner.shape[-1]
    batch = torch.broadcast_shapes(E.shape[:-2], rows.shape[:-2], corner.shape[:-2])
    top = torch.nn.functional.pad(E.expand(*batch, i, i), (0, j))
    return torch.cat([top, torch.cat([rows.expand(*batch, j, i), corner.expand(*batch, j, j)], -1)], -2)
