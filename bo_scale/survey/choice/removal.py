"""Measured stations to give up: the state of what the loss of each adds to the variance over the area.

Without a station of noise variance σ² the posterior covariance grows by k(·, x) k(x, ·)/(σ² − k(x, x)), as by a
measurement of the variance −σ². In an exact process that is a difference of nearly equal numbers where σ² is small;
there the precision Q = (K + Σ)⁻¹ of the measurements tells the same, as Σ_z ω_z (Q k_z)_i²/Q_ii.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior

Array = npt.NDArray[np.float64]
CHUNK = 500
"""Cells whose covariances are computed at once."""
CANCELLED = 1e-9
"""Share of the noise that σ² − k(x, x) keeps: below it there is only rounding, for k(x, x) < σ² at a measurement."""


class RemovalState(ABC):
    """The knowledge over the area with the stations that are left."""

    @abstractmethod
    def total(self) -> float:
        """Return the variance integrated over the area."""

    @abstractmethod
    def increases(self) -> Float[Tensor, " m"]:
        """Return how much the loss of each station adds to the total; infinite for those that are gone."""

    @abstractmethod
    def increase(self, together: Sequence[int]) -> float:
        """Return how much the loss of several stations at once adds to the total."""

    @abstractmethod
    def without(self, index: int) -> "RemovalState":
        """Return the state without a station."""


@dataclass(frozen=True)
class ExactRemoval(RemovalState):
    """Stations of an exact process. O(m² N) once, O(m (m + N)) for each that goes.

    Attributes:
        precision: Q, with rows and columns of zeros for stations that are gone.
        smoother: Q K, of stations with cells.
        weights: Weights of the cells, which sum to one.
        variance: Variance integrated over the area.
        left: Which stations are left.
    """

    precision: Float[Tensor, "m m"]
    smoother: Float[Tensor, "m N"]
    weights: Float[Tensor, " N"]
    variance: float
    left: npt.NDArray[np.bool_]

    @override
    def total(self) -> float:
        return self.variance

    @override
    def increases(self) -> Float[Tensor, " m"]:
        own = self.precision.diagonal().clamp_min(torch.finfo(torch.float64).tiny)
        return (self.smoother.square() @ self.weights / own).where(torch.from_numpy(self.left), torch.inf)

    @override
    def increase(self, together: Sequence[int]) -> float:
        """Return Σ_z ω_z (Q k_z)_Rᵀ (Q_RR)⁻¹ (Q k_z)_R."""
        rows = list(together)
        inner = (self.smoother[rows] * self.weights) @ self.smoother[rows].mT
        return float(torch.linalg.solve(self.precision[rows][:, rows], inner).trace())

    @override
    def without(self, index: int) -> "ExactRemoval":
        column, row = self.precision[:, index], self.smoother[index]
        added, pivot = float(self.increases()[index]), float(column[index])
        precision = torch.addr(self.precision, column, column, alpha=-1 / pivot)
        smoother = torch.addr(self.smoother, column, row, alpha=-1 / pivot)
        precision[index], precision[:, index], smoother[index] = 0.0, 0.0, 0.0
        return replace(
            self,
            precision=precision,
            smoother=smoother,
            variance=self.variance + added,
            left=_without(self.left, index),
        )


@dataclass(frozen=True)
class WeightRemoval(RemovalState):
    """Stations of a process of weights, of which many more may be measured. O(m s + s²) for each that goes.

    Attributes:
        roots: Bᵀφ of the stations.
        inner: BᵀMB, with M the integral of φφᵀ over the area.
        noise: Noise variances of the stations.
        left: Which stations are left.
    """

    roots: Float[Tensor, "m s"]
    inner: Float[Tensor, "s s"]
    noise: Float[Tensor, " m"]
    left: npt.NDArray[np.bool_]

    @override
    def total(self) -> float:
        return float(self.inner.trace())

    @cached_property
    def _squares(self) -> Float[Tensor, " m"]:
        return ((self.roots @ self.inner) * self.roots).sum(-1)

    @override
    def increases(self) -> Float[Tensor, " m"]:
        kept = (self.noise - self.roots.square().sum(-1)).maximum(CANCELLED * self.noise)
        return (self._squares / kept).where(torch.from_numpy(self.left), torch.inf)

    @override
    def increase(self, together: Sequence[int]) -> float:
        """Return tr[(D − U Uᵀ)⁻¹ U W Uᵀ], with the rows U of the roots and their noise D."""
        U, noise = self.roots[list(together)], self.noise[list(together)]
        kept, V = torch.linalg.eigh(torch.diag(noise) - U @ U.mT)
        projected = V.mT @ U
        squares = ((projected @ self.inner) * projected).sum(-1)
        return float((squares / kept.maximum(CANCELLED * noise.max())).sum())

    @override
    def without(self, index: int) -> "WeightRemoval":
        """B ← B J with J = I + c u uᵀ such that J Jᵀ = I + u uᵀ/(σ² − |u|²)."""
        u = self.roots[index]
        square, noise = float(u @ u), float(self.noise[index])
        root = (noise / max(noise - square, CANCELLED * noise)) ** 0.5
        c = (root - 1) / max(square, torch.finfo(torch.float64).tiny)
        Wu = self.inner @ u
        inner = self.inner + c * (torch.outer(u, Wu) + torch.outer(Wu, u)) + c * c * (u @ Wu) * torch.outer(u, u)
        roots = self.roots + c * torch.outer(self.roots @ u, u)
        return replace(self, inner=inner, roots=roots, left=_without(self.left, index))


@dataclass(frozen=True)
class PartsRemoval(RemovalState):
    """Stations of several processes whose variances add up, such as presence and amount.

    Attributes:
        parts: State of each process.
        places: For each process, the row of each station in it; -1 for one that it does not have.
        factors: Factors of their totals.
    """

    parts: tuple[RemovalState, ...]
    places: tuple[npt.NDArray[np.intp], ...]
    factors: tuple[float, ...]

    @override
    def total(self) -> float:
        return sum(factor * part.total() for factor, part in zip(self.factors, self.parts, strict=True))

    @override
    def increases(self) -> Float[Tensor, " m"]:
        found = torch.zeros(len(self.places[0]), dtype=torch.float64)
        for part, places, factor in zip(self.parts, self.places, self.factors, strict=True):
            there = places >= 0
            found[there] += factor * part.increases()[places[there]]
        return found

    @override
    def increase(self, together: Sequence[int]) -> float:
        found = 0.0
        for part, places, factor in zip(self.parts, self.places, self.factors, strict=True):
            there = [int(places[k]) for k in together if places[k] >= 0]
            found += factor * part.increase(there) if there else 0.0
        return found

    @override
    def without(self, index: int) -> "PartsRemoval":
        at = [int(places[index]) for places in self.places]
        return replace(self, parts=tuple(p.without(k) if k >= 0 else p for p, k in zip(self.parts, at, strict=True)))


@dataclass(frozen=True)
class GroupedRemoval(RemovalState):
    """Stations with several rows of another state, such as visits at different times, which go together.

    Attributes:
        rows: State of all rows.
        groups: Rows of each station.
        left: Which stations are left.
    """

    rows: RemovalState
    groups: tuple[tuple[int, ...], ...]
    left: npt.NDArray[np.bool_]

    @override
    def total(self) -> float:
        return self.rows.total()

    @override
    def increases(self) -> Float[Tensor, " m"]:
        found = [
            self.rows.increase(group) if left else np.inf for group, left in zip(self.groups, self.left, strict=True)
        ]
        return torch.tensor(found, dtype=torch.float64)

    @override
    def increase(self, together: Sequence[int]) -> float:
        return self.rows.increase([row for station in together for row in self.groups[station]])

    @override
    def without(self, index: int) -> "GroupedRemoval":
        rows = self.rows
        for row in self.groups[index]:
            rows = rows.without(row)
        return replace(self, rows=rows, left=_without(self.left, index))


def removal_state(
    process: PosteriorProcess,
    stations: Float[Tensor, "m d"],
    noise: Float[Tensor, " m"],
    cells: Float[Tensor, "N d"],
    weights: Float[Tensor, " N"],
) -> RemovalState:
    """Return the state with all stations.

    Args:
        process: Posterior given all measurements.
        stations: Places of stations, all different; of a process of weights perhaps only some of them.
        noise: Noise variances; of several measurements of one station, the inverse of the sum of their precisions.
        cells: Cells of the area.
        weights: Weights of the cells.
    """
    weights, left = weights / weights.sum(), np.ones(len(stations), dtype=np.bool_)
    if isinstance(process, WeightSpacePosterior):
        gram, size = process.features.empty_gram(stations.device), process.features.chunk_size()
        for chunk, part in zip(cells.split(size), weights.split(size), strict=True):
            gram = gram.add_rows(process.features(chunk), part)
        inner = process.root.mT @ gram.matmul(process.root)
        roots = torch.cat([process.locate(chunk).root for chunk in stations.split(CHUNK)])
        return WeightRemoval(roots, inner, noise, left)
    assert isinstance(process, FunctionSpacePosterior), "models of surveys are one or the other"
    L = cholesky(process.kernel(stations, stations) + torch.diag(noise), "covariance of the stations")
    half = torch.cat(
        [torch.linalg.solve_triangular(L, process.kernel(stations, z), upper=False) for z in cells.split(CHUNK)], 1
    )
    variance = float(weights @ (process.kernel.variance(cells) - half.square().sum(0)))
    smoother = torch.linalg.solve_triangular(L.mT, half, upper=True)
    return ExactRemoval(torch.cholesky_inverse(L), smoother, weights, variance, left)


def backward_greedy(state: RemovalState, count: int) -> Iterator[tuple[int, float]]:
    """Yield stations one after the other, each the one whose loss then costs least, and the total without them."""
    for _ in range(count):
        index = int(state.increases().argmin())
        state = state.without(index)
        yield index, state.total()


def _without(left: npt.NDArray[np.bool_], index: int) -> npt.NDArray[np.bool_]:
    return np.where(np.arange(len(left)) == index, False, left)
