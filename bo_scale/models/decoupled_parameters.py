"""Parameters of a decoupled GP, of full size whatever is in use, and what they are optimal for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.gp.function_space.bases import Bases, BasisRule
from bo_scale.gp.function_space.process import Kernel
from bo_scale.gp.function_space.variational import Variational, new_root

POINTS = ("mean_inducing_points", "covar_inducing_points")
VARIATIONAL = ("variational_weights", "variational_root", "variational_innovation")


@dataclass(frozen=True)
class DecoupledParameters:
    """Bases and variational parameters of all outputs: views of a model's parameters, in which they are changed.

    The first of the points, weights, … are in use, as many as `counts` says; the others are 0.

    Attributes:
        mean_points: Points that serve the mean alone.
        covar_points: Covariance points.
        weights: Preconditioned weights of the mean.
        root: Preconditioned roots of the covariance.
        innovation: A hybrid's ν; else empty.
        counts: Number of mean points and of covariance points in use.
    """

    mean_points: Float[Tensor, "j d"]
    covar_points: Float[Tensor, "i d"]
    weights: Float[Tensor, "m j"]
    root: Float[Tensor, "m i i"]
    innovation: Float[Tensor, "m k"]
    counts: Int[Tensor, "2"]

    @classmethod
    def of(cls, model: torch.nn.Module) -> "DecoupledParameters":
        """Return a model's parameters."""
        held: list[Any] = [getattr(model, name) for name in (*POINTS, *VARIATIONAL, "basis_counts")]
        return cls(*held)

    @property
    def bases(self) -> Bases:
        """The points in use, differentiable in the parameters, in float64."""
        own, covar = self.counts.tolist()
        return Bases(self.mean_points[:own].double(), self.covar_points[:covar].double(), self.innovation.numel() > 0)

    def of_output(self, output: int) -> Variational:
        """Return one output's variational parameters in use, differentiable, in float64."""
        own, covar = self.counts.tolist()
        weights, root = self.weights[output, :own], self.root[output, :covar, :covar]
        return Variational(weights.double(), root.double(), self.innovation[output, :covar].double())

    def learn_variational(self, learned: bool) -> None:
        """Set whether optimisers see the variational parameters; at their optimum the gradient is zero."""
        for parameter in (self.weights, self.root, self.innovation):
            parameter.requires_grad_(learned and parameter.numel() > 0)

    @torch.no_grad()
    def put_bases(self, bases: Bases) -> None:
        """Set the points in use."""
        for parameter, points in ((self.mean_points, bases.mean), (self.covar_points, bases.covar)):
            points = points.clone()  # they may be of the parameter itself
            parameter.zero_()
            parameter[: len(points)] = points.to(parameter)
        self.counts.copy_(torch.tensor(bases.sizes))

    @torch.no_grad()
    def put_variational(self, found: Sequence[Variational]) -> None:
        """Set the variational parameters of every output."""
        own, covar = self.counts.tolist()
        for parameter in (self.weights, self.root, self.innovation):
            parameter.zero_()
        for j, one in enumerate(found):
            self.weights[j, :own] = one.weights.to(self.weights)
            self.root[j, :covar, :covar] = one.root.to(self.root)
            self.innovation[j, : len(one.innovation)] = one.innovation.to(self.innovation)

    @torch.no_grad()
    def grow(self, bases: Bases, kernels: Sequence[Kernel]) -> None:
        """Set bases that begin with the present points; the new points change every output's process little."""
        before, after = int(self.counts[1]), len(bases.covar)
        self.put_bases(bases)
        for root, kernel in zip(self.root, kernels, strict=True):
            root.diagonal()[before:after] = new_root(kernel, bases, after - before).to(root)


def register_parameters(model: torch.nn.Module, rule: BasisRule, outputs: int, d: int) -> None:
    """Register parameters of full size, so that all states of a model have the same shapes."""
    shapes = (
        (rule.mean_size, d),
        (rule.covar_size, d),
        (outputs, rule.mean_size),
        (outputs, rule.covar_size, rule.covar_size),
        (outputs, rule.covar_size if rule.hybrid else 0),
    )
    for name, shape in zip((*POINTS, *VARIATIONAL), shapes, strict=True):
        values = torch.zeros(shape, dtype=torch.float64)
        model.register_parameter(name, torch.nn.Parameter(values, requires_grad=values.numel() > 0))
    model.register_buffer("basis_counts", torch.zeros(2, dtype=torch.long))


@dataclass(frozen=True)
class Stamp:
    """The rows and settings that variational parameters are optimal for.

    Attributes:
        rows: Digest of rows.
        settings: Values of all other parameters, and the sizes of the bases; None if they are not known.
    """

    rows: Int[Tensor, ""]
    settings: Float[Tensor, " s"] | None

    @classmethod
    def of(cls, model: Any) -> "Stamp":
        """Return what a model's variational parameters are to be optimal for at present: its first rows, as it is."""
        variational = {id(getattr(model, name)) for name in VARIATIONAL}
        values = [p.detach().reshape(-1).double() for p in model.parameters() if id(p) not in variational]
        digest = model.rows.digest(model._joined, targets=True).to(model.basis_counts)
        return cls(digest, torch.cat([*values, model.basis_counts.double()]))

    def change_since(self, other: "Stamp") -> Literal["rows", "settings"] | None:
        """Return which is not as in another stamp, rows first; None if both are."""
        now, then = self.settings, other.settings
        if now is None or then is None or now.device != then.device or now.shape != then.shape:
            return "settings" if torch.equal(self.rows, other.rows) else "rows"
        rows, settings = torch.stack([self.rows == other.rows, (now == then).all()]).tolist()  # one wait
        return None if rows and settings else "settings" if rows else "rows"
