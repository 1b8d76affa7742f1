"""The state of a design: means and variances at points and over an area, and how a measurement changes them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.conditioning import condition
from bo_scale.gp.integrals import WeightSpaceIntegral
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.survey.geography.thinning import thinned

JOINT_CELLS = 2500
"""Cells whose covariances with all candidates are kept, where the integral has no closed form."""


class DesignState(ABC):
    """The knowledge at points and over the area, and how a measurement changes it. Coordinates are the model's."""

    points: Float[Tensor, "M d"]
    noise: Float[Tensor, ""]

    @abstractmethod
    def means(self) -> Float[Tensor, " M"]:
        """Return the posterior means at the points."""

    @abstractmethod
    def variances(self) -> Float[Tensor, " M"]:
        """Return the posterior variances at the points."""

    @abstractmethod
    def total(self) -> float:
        """Return the variance integrated over the area."""

    @abstractmethod
    def reduction(self) -> Float[Tensor, " M"]:
        """Return how much a measurement at each point lowers the total: Σ_z ω_z k(z, x)²/(k(x, x) + σ²)."""

    @abstractmethod
    def cells(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "M N"]]:
        """Return weights, means and variances of cells, and their covariances with the points."""

    @abstractmethod
    def joint(self) -> Float[Tensor, "M M"]:
        """Return the covariance of the points."""

    @abstractmethod
    def after(self, index: int) -> "DesignState":
        """Return the state once the point is measured. Means stay: the value is not known yet."""

    def draw(self, count: int, generator: torch.Generator) -> Float[Tensor, "q M"]:
        """Draw functions from the posterior, at the points. O(M³)."""
        L = cholesky(self.joint(), "posterior covariance of the candidates")
        z = torch.randn(len(L), count, generator=generator, dtype=L.dtype)
        return self.means() + (L @ z).mT


@dataclass(frozen=True)
class ClosedDesignState(DesignState):
    """The state of a posterior with a dense root: integrals over any number of cells in closed form.

    Attributes:
        points: Candidates.
        noise: Variance of a measurement, σ².
        integral: Integral of the variance.
        some: Cells and weights for quantities without a closed form.
    """

    points: Float[Tensor, "M d"]
    noise: Float[Tensor, ""]
    integral: WeightSpaceIntegral
    some: tuple[Float[Tensor, "N d"], Float[Tensor, " N"]]

    @override
    def means(self) -> Float[Tensor, " M"]:
        return self.integral.process.mean(self.points)

    @override
    def variances(self) -> Float[Tensor, " M"]:
        return self.integral.process.variance(self.points)

    @override
    def total(self) -> float:
        return float(self.integral.total())

    @override
    def reduction(self) -> Float[Tensor, " M"]:
        return self.integral.total() - self.integral(self.points.unsqueeze(1), self.noise)

    @override
    def cells(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "M N"]]:
        located = self.integral.process.locate(self.some[0])
        covariance = self.integral.process.locate(self.points).covariance(located)
        return self.some[1], located.mean, located.variance(), covariance

    @override
    def joint(self) -> Float[Tensor, "M M"]:
        return self.integral.process.covariance(self.points)

    @override
    def after(self, index: int) -> "ClosedDesignState":
        integral = self.integral.after(self.points[index : index + 1], self.noise)
        return replace(self, integral=integral)

    def at(self, points: Float[Tensor, "K d"]) -> "ClosedDesignState":
        """Return the same state at other points."""
        return replace(self, points=points)


@dataclass(frozen=True)
class JointDesignState(DesignState):
    """The state of any posterior: covariances of all points with each other and with some cells. O(M (M + N)) memory.

    Attributes:
        points: Candidates.
        noise: Variance of a measurement, σ².
        weights: Weights of the cells.
        mean: Means at the points.
        own: Covariances of the points.
        cross: Covariances of the points with the cells.
        cell_mean: Means at the cells.
        cell_variance: Variances at the cells.
    """

    points: Float[Tensor, "M d"]
    noise: Float[Tensor, ""]
    weights: Float[Tensor, " N"]
    mean: Float[Tensor, " M"]
    own: Float[Tensor, "M M"]
    cross: Float[Tensor, "M N"]
    cell_mean: Float[Tensor, " N"]
    cell_variance: Float[Tensor, " N"]

    @classmethod
    def of(
        cls,
        process: PosteriorProcess,
        points: Float[Tensor, "M d"],
        some: tuple[Float[Tensor, "N d"], Float[Tensor, " N"]],
        noise: Float[Tensor, ""],
    ) -> "JointDesignState":
        """Return the state before anything of the batch is measured."""
        located, cells = process.locate(points), process.locate(some[0])
        own, cross = located.covariance(located), located.covariance(cells)
        return cls(points, noise, some[1], located.mean, own, cross, cells.mean, cells.variance())

    @override
    def means(self) -> Float[Tensor, " M"]:
        return self.mean

    @override
    def variances(self) -> Float[Tensor, " M"]:
        return self.own.diagonal().clamp_min(0.0)

    @override
    def total(self) -> float:
        return float((self.weights * self.cell_variance).sum())

    @override
    def reduction(self) -> Float[Tensor, " M"]:
        return self.cross.square() @ self.weights / (self.variances() + self.noise)

    @override
    def cells(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "M N"]]:
        return self.weights, self.cell_mean, self.cell_variance.clamp_min(0.0), self.cross

    @override
    def joint(self) -> Float[Tensor, "M M"]:
        return self.own

    @override
    def after(self, index: int) -> "JointDesignState":
        """Return the state once the point is measured: k ← k − k(·, x) k(x, ·)/(k(x, x) + σ²)."""
        column, row = self.own[:, index], self.cross[index]
        pivot = column[index].clamp_min(0.0) + self.noise
        return replace(
            self,
            own=torch.addr(self.own, column, column, alpha=-1 / float(pivot)),
            cross=torch.addr(self.cross, column, row, alpha=-1 / float(pivot)),
            cell_variance=self.cell_variance - row.square() / pivot,
        )


def design_state(
    process: PosteriorProcess,
    points: Float[Tensor, "M d"],
    cells: Float[Tensor, "N d"],
    weights: Float[Tensor, " N"],
    noise: Float[Tensor, ""],
    generator: torch.Generator,
    pending: Float[Tensor, "t d"] | None = None,
    joint_cells: int = JOINT_CELLS,
) -> ClosedDesignState | JointDesignState:
    """Return the state before the batch. Integrals are over all cells in closed form where possible, else over some.

    Args:
        process: Posterior given all measurements.
        points: Candidates.
        cells: Cells of the area.
        weights: Weights of the cells; where not all are used, some are drawn in proportion.
        noise: Variance of a measurement, σ².
        generator: Random numbers for drawing cells.
        pending: Pending points, which count as measured.
        joint_cells: Cells whose covariances are kept where there is no closed form.
    """
    weights = weights / weights.sum()
    some = cells, weights
    if len(cells) > joint_cells:
        kept, counted = thinned(cells.numpy(), weights.numpy(), joint_cells, generator)
        some = torch.from_numpy(kept), torch.from_numpy(counted)
    if not isinstance(process, WeightSpacePosterior):
        if pending is not None:
            process = condition(process, pending, process.mean(pending), noise.expand(len(pending)))
        return JointDesignState.of(process, points, some, noise)
    gram, size = process.features.empty_gram(points.device), process.features.chunk_size()
    for chunk, part in zip(cells.split(size), weights.split(size), strict=True):
        gram = gram.add_rows(process.features(chunk), part)
    integral = WeightSpaceIntegral.over(process, gram, weights.new_zeros(()))
    return ClosedDesignState(points, noise, integral if pending is None else integral.after(pending, noise), some)
