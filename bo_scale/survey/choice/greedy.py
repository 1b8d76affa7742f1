"""Where to measure next: a batch chosen one site after the other, each as if those before were measured already."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.special import owens_t
from scipy.stats import qmc
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.conditioning import condition
from bo_scale.gp.integrals import WeightSpaceIntegral
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.survey.geography.thinning import thinned

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Objective = Literal["variance", "maximum", "straddle", "misclassification", "thompson"]
OBJECTIVES: dict[str, str] = {
    "variance": "the variance integrated over the area falls most, where the quantity is rough counted more",
    "maximum": "the variance is largest",
    "straddle": "it is least known whether the threshold is exceeded: 1.96 sd − |mean − threshold|",
    "misclassification": "the area expected on the wrong side of the threshold falls most",
    "thompson": "a function drawn from the posterior has its maximum",
}
"""What is sought, by name: a site where …"""
THRESHOLDED = ("straddle", "misclassification")
STRADDLE = 1.96
CERTAIN = 5.0
"""Standard deviations from the threshold, beyond which a cell is on the wrong side with a probability below 3e-7."""
JOINT_CELLS = 2500
"""Cells whose covariances with all candidates are kept, where the integral is not in closed form."""
SAME = 0.05
"""Metres within which places are the same: tables are rounded."""
RINGS, AROUND = 3, 16
"""Refinements of a site, each to half the distance, and points in each."""


class Outlook(ABC):
    """What is known at points and over the area, and what measuring would change. Coordinates are the model's."""

    points: Float[Tensor, "M 2"]
    noise: Float[Tensor, ""]

    @abstractmethod
    def means(self) -> Float[Tensor, " M"]:
        """At the points."""

    @abstractmethod
    def variances(self) -> Float[Tensor, " M"]:
        """At the points."""

    @abstractmethod
    def total(self) -> float:
        """The variance, integrated over the area."""

    @abstractmethod
    def reduction(self) -> Float[Tensor, " M"]:
        """Of the total, by a measurement at a point: Σ_z ω_z k(z, x)²/(k(x, x) + σ²)."""

    @abstractmethod
    def cells(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "M N"]]:
        """Weights, means and variances of cells, and covariances with the points."""

    @abstractmethod
    def joint(self) -> Float[Tensor, "M M"]:
        """The covariance of the points."""

    @abstractmethod
    def after(self, index: int) -> "Outlook":
        """Once the point is measured; means stay, for what will be found is not known."""


@dataclass(frozen=True)
class ClosedOutlook(Outlook):
    """Of a posterior with a dense root: integrals over any number of cells in closed form.

    Attributes:
        points: Where.
        noise: σ² of a measurement.
        integral: Of the variance.
        some: Cells for what has no closed form, with weights.
    """

    points: Float[Tensor, "M 2"]
    noise: Float[Tensor, ""]
    integral: WeightSpaceIntegral
    some: tuple[Float[Tensor, "N 2"], Float[Tensor, " N"]]

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
    def after(self, index: int) -> "ClosedOutlook":
        integral = self.integral.after(self.points[index : index + 1], self.noise)
        return replace(self, integral=integral)

    def at(self, points: Float[Tensor, "K 2"]) -> "ClosedOutlook":
        """The same knowledge, of other points."""
        return replace(self, points=points)


@dataclass(frozen=True)
class JointOutlook(Outlook):
    """Of any posterior: the covariances of all points with each other and with some cells, kept. O(M (M + N)) memory.

    Attributes:
        points: Where.
        noise: σ² of a measurement.
        weights: Of the cells.
        mean: At the points.
        own: Covariances of the points.
        cross: Covariances with the cells.
        cell_mean: At the cells.
        cell_variance: At the cells.
    """

    points: Float[Tensor, "M 2"]
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
        points: Float[Tensor, "M 2"],
        some: tuple[Float[Tensor, "N 2"], Float[Tensor, " N"]],
        noise: Float[Tensor, ""],
    ) -> "JointOutlook":
        """Before anything is measured."""
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
    def after(self, index: int) -> "JointOutlook":
        """By k ← k − k(·, x) k(x, ·)/(k(x, x) + σ²)."""
        column, row = self.own[:, index], self.cross[index]
        pivot = column[index].clamp_min(0.0) + self.noise
        return replace(
            self,
            own=torch.addr(self.own, column, column, alpha=-1 / float(pivot)),
            cross=torch.addr(self.cross, column, row, alpha=-1 / float(pivot)),
            cell_variance=self.cell_variance - row.square() / pivot,
        )


def outlook(
    process: PosteriorProcess,
    points: Float[Tensor, "M 2"],
    cells: Float[Tensor, "N 2"],
    weights: Float[Tensor, " N"],
    noise: Float[Tensor, ""],
    generator: torch.Generator,
    pending: Float[Tensor, "t 2"] | None = None,
) -> Outlook:
    """Before the batch: in closed form over all cells where that is possible, else over some drawn by their weights.

    Args:
        process: The posterior of what was measured.
        points: Candidates.
        cells: Of the area.
        weights: Of the cells.
        noise: σ² of a measurement.
        generator: Of the cells drawn.
        pending: Places under way, which count as measured.
    """
    weights = weights / weights.sum()
    some = cells, weights
    if len(cells) > JOINT_CELLS:
        kept, counted = thinned(cells.numpy(), weights.numpy(), JOINT_CELLS, generator)
        some = torch.from_numpy(kept), torch.from_numpy(counted)
    if not isinstance(process, WeightSpacePosterior):
        if pending is not None:
            process = condition(process, pending, process.mean(pending), noise.expand(len(pending)))
        return JointOutlook.of(process, points, some, noise)
    gram, size = process.features.empty_gram(points.device), process.features.chunk_size()
    for chunk, part in zip(cells.split(size), weights.split(size), strict=True):
        gram = gram.add_rows(process.features(chunk), part)
    integral = WeightSpaceIntegral.over(process, gram, weights.new_zeros(()))
    return ClosedOutlook(points, noise, integral if pending is None else integral.after(pending, noise), some)


def expected_misclassification(
    mean: Float[Tensor, " N"], variance: Float[Tensor, " N"], explained: Float[Tensor, "M N"], threshold: float
) -> Float[Tensor, "M N"]:
    """E[min(p, 1 − p)] of p = P(f(z) > t), once a measurement has explained r² of the variance s² of f(z).

    = 2 T(|m − t|/s, √(s² − r²)/r) with Owen's T: the posterior mean will be N(m, r²), its variance s² − r², and
    E Φ(−|M|/s') = P(s'U > |M|) is an orthant probability. Φ(−|m − t|/s) for r = 0.
    """
    s = variance.clamp_min(1e-300).sqrt()
    r = explained.clamp_min(0.0).sqrt()
    left = (variance - r.square()).clamp_min(0.0).sqrt()
    h = ((mean - threshold).abs() / s).expand_as(r)
    ratio = torch.where(r > 0, left / r.clamp_min(1e-300), torch.inf)
    return torch.from_numpy(2 * owens_t(h.numpy(), ratio.numpy()))


def scores(look: Outlook, objective: Objective, threshold: float | None) -> Float[Tensor, " M"]:
    """How good a measurement at every point is; larger is better. Thompson's are drawn elsewhere."""
    if objective == "variance":
        return look.reduction()
    if objective == "maximum":
        return look.variances()
    assert threshold is not None, "checked before"
    if objective == "straddle":
        return STRADDLE * look.variances().sqrt() - (look.means() - threshold).abs()
    weights, mean, variance, cross = look.cells()
    near = (mean - threshold).abs() < CERTAIN * variance.sqrt()
    weights, mean, variance, cross = weights[near], mean[near], variance[near], cross[:, near]
    explained = cross.square() / (look.variances() + look.noise).unsqueeze(-1)
    now = expected_misclassification(mean, variance, torch.zeros_like(explained[:1]), threshold) @ weights
    return now - expected_misclassification(mean, variance, explained, threshold) @ weights


@dataclass(frozen=True)
class Places:
    """Where sites may be, in metres, and how they become the model's coordinates.

    Attributes:
        candidates: `M × 2`.
        taken: Sites already there, `t × 2`, or under way, and the least distance from them, metres.
        spacing: Least distance between sites of the batch, metres; 0 for none.
        repeats: How often a candidate may be chosen.
        inside: Whether places may be used, for refined ones; None where only candidates are.
        reach: Distance between neighbouring candidates: that of the first refinement.
        to_model: From metres to the model's coordinates.
        there: Sites, `u × 2`, each of which counts as one choice of the candidate that is at the same place.
    """

    candidates: Array
    taken: list[tuple[Array, float]]
    spacing: float
    repeats: int
    inside: Callable[[Array], npt.NDArray[np.bool_]] | None
    reach: float
    to_model: Callable[[Array], Tensor]
    there: Array = field(default_factory=lambda: np.empty((0, 2)))

    def used(self) -> Counts:
        """How often each candidate counts as chosen before anything of the batch is."""
        if not len(self.there):
            return np.zeros(len(self.candidates), dtype=np.int64)
        found = cKDTree(self.there).query_ball_point(self.candidates, SAME, return_length=True)
        return np.asarray(found, dtype=np.int64)

    def open(self, used: Counts, chosen: Array) -> npt.NDArray[np.bool_]:
        """Which candidates may be chosen: not used up, and far from all sites."""
        return (used < self.repeats) & self.far(self.candidates, chosen)

    def far(self, xy: Array, chosen: Array) -> npt.NDArray[np.bool_]:
        """Which places keep the distance from all sites, measured and chosen."""
        kept = np.ones(len(xy), dtype=bool)
        for others, least in (*self.taken, (chosen, self.spacing)):
            if least > 0:
                kept &= _distances(xy, others) >= least
        return kept


def _distances(xy: Array, others: Array) -> Array:
    """To the nearest of others; infinite where there is none."""
    return cKDTree(others).query(xy)[0] if len(others) else np.full(len(xy), np.inf)


@dataclass(frozen=True)
class Choice:
    """A site chosen.

    Attributes:
        xy: Metres.
        candidate: Its number among the candidates; −1 where it was refined.
        score: Of the objective when it was chosen.
    """

    xy: Array
    candidate: int
    score: float


def choose(
    look: Outlook,
    places: Places,
    batch: int,
    objective: Objective,
    threshold: float | None,
    seed: int,
) -> Iterator[Choice]:
    """The batch, one site after the other; fewer where no place is left. O(M (s + N)) a site.

    Args:
        look: At the candidates.
        places: Of them.
        batch: How many.
        objective: One of `OBJECTIVES`.
        threshold: In the model's units, for those that have one.
        seed: Of what is random.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = function_draws(look, batch, generator) if objective == "thompson" else None
    angles = qmc.Sobol(2, seed=seed)
    chosen, used = np.empty((0, 2)), places.used()
    for number in range(batch):
        open_ = places.open(used, chosen)
        if not open_.any():
            return
        value = draws[number] if draws is not None else scores(look, objective, threshold)
        index = int(value.masked_fill(~torch.from_numpy(open_), -torch.inf).argmax())
        found = Choice(places.candidates[index], index, float(value[index]))
        if places.inside is not None and draws is None and isinstance(look, ClosedOutlook):
            found = _refined(look, places, found, chosen, objective, threshold, angles)
            look = look.at(places.to_model(found.xy[None])).after(0).at(look.points)
        else:
            look = look.after(index)
        used[index] += 1
        chosen = np.concatenate([chosen, found.xy[None]])
        yield found


def _refined(
    look: ClosedOutlook,
    places: Places,
    found: Choice,
    chosen: Array,
    objective: Objective,
    threshold: float | None,
    angles: qmc.Sobol,
) -> Choice:
    """The best place around: three rounds of points in discs, each of half the radius, about the best so far."""
    assert places.inside is not None
    for ring in range(RINGS):
        turn, share = angles.random(AROUND).T
        direction = np.stack([np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)], -1)
        xy = found.xy + places.reach / 2**ring * np.sqrt(share)[:, None] * direction
        xy = xy[places.inside(xy) & places.far(xy, chosen)]
        if len(xy) == 0:
            continue
        value = scores(look.at(places.to_model(xy)), objective, threshold)
        best = int(value.argmax())
        if float(value[best]) > found.score:
            found = Choice(xy[best], -1, float(value[best]))
    return found


def function_draws(look: Outlook, count: int, generator: torch.Generator) -> Float[Tensor, "q M"]:
    """Functions drawn from the posterior, at the points. O(M³)."""
    L = cholesky(look.joint(), "posterior covariance of the candidates")
    z = torch.randn(len(L), count, generator=generator, dtype=L.dtype)
    return look.means() + (L @ z).mT
