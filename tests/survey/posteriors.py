"""Posteriors of a few sites to choose from, and the same as dense algebra."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from bo_scale.gp.processes import PosteriorProcess
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.choice.design_state import DesignState, design_state
from bo_scale.survey.choice.objectives import OBJECTIVES
from bo_scale.survey.choice.places import Places
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import coordinates, model_of
from bo_scale.survey.mapping.sites import Sites

BOX = (0.0, 0.0, 1000.0, 800.0)
GRIDS = {"wiski": ("matern32", [[12, 10]]), "sparse": ("matern12", [[30, 24]]), "exact": ("matern52", [])}
THRESHOLD = 0.2
SCORED = ("variance", "uncertainty", "straddle", "misclassification")
"""Objectives that score points without draws."""


@dataclass(frozen=True)
class Case:
    """A posterior of a few sites, points to choose from and cells of unequal weights."""

    sites: Sites
    fit: Fit
    model: ScalableModel
    xy: np.ndarray
    cells: torch.Tensor
    weights: torch.Tensor

    @property
    def process(self) -> PosteriorProcess:
        return self.model.processes[0]

    @property
    def noise(self) -> torch.Tensor:
        return self.model.measurement_noise(0)

    @property
    def points(self) -> torch.Tensor:
        return coordinates(self.model, self.fit, self.xy)

    def state(
        self, xy: np.ndarray | None = None, pending: np.ndarray | None = None, joint_cells: int = 2500
    ) -> DesignState:
        points = self.points if xy is None else coordinates(self.model, self.fit, xy)
        under_way = None if pending is None else coordinates(self.model, self.fit, pending)
        generator = torch.Generator().manual_seed(0)
        return design_state(
            self.process, points, self.cells, self.weights, self.noise, generator, under_way, joint_cells
        )

    def dense(self, xy: np.ndarray | None = None) -> "Dense":
        points = self.points if xy is None else coordinates(self.model, self.fit, xy)
        whole = torch.cat([points, self.cells])
        omega = (self.weights / self.weights.sum()).numpy()
        K = self.process.covariance(whole).numpy()
        return Dense(self.process.mean(whole).numpy(), K, len(points), omega, float(self.noise))

    def places(self, **given: object) -> Places:
        kept = {"taken": [], "spacing": 0.0, "repeats": 1, "inside": None, "reach": 0.0}
        return Places(self.xy, to_model=lambda xy: coordinates(self.model, self.fit, xy), **{**kept, **given})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Dense:
    """Points, then cells, as one normal vector."""

    mean: np.ndarray
    K: np.ndarray
    count: int
    weights: np.ndarray
    noise: float

    def after(self, index: int) -> "Dense":
        column = self.K[:, index]
        K = self.K - np.outer(column, column) / (self.K[index, index] + self.noise)
        return Dense(self.mean, K, self.count, self.weights, self.noise)

    def total(self) -> float:
        return float(self.weights @ self.K.diagonal()[self.count :])

    def value(self, objective: str, index: int) -> float:
        sd = self.K[index, index] ** 0.5
        if objective == "uncertainty":
            return float(sd**2)
        if objective == "straddle":
            return float(1.96 * sd - abs(self.mean[index] - THRESHOLD))
        if objective == "variance":
            return self.total() - self.after(index).total()
        cells = slice(self.count, None)
        m, s = self.mean[cells], self.K.diagonal()[cells] ** 0.5
        r = np.abs(self.K[index, cells]) / (self.K[index, index] + self.noise) ** 0.5
        u = (np.arange(2000) + 0.5) / 2000  # E min(p, 1 - p) over where the mean will be
        means = m[:, None] + r[:, None] * stats.norm.ppf(u)
        wrong = stats.norm.cdf(-np.abs(means - THRESHOLD) / np.sqrt(s**2 - r**2)[:, None]).mean(1)
        return float(self.weights @ (stats.norm.cdf(-np.abs(m - THRESHOLD) / s) - wrong))


def make(name: str) -> Case:
    rng = np.random.default_rng(3)
    kernel, grids = GRIDS[name]
    xy = rng.random((15, 2)) * [700.0, 800.0]
    sites = Sites(xy, np.sin(xy[:, 0] / 150) + np.cos(xy[:, 1] / 200), None)
    fit = Fit(kernel, 15, BOX, 0.1, 0.8, grids, {})
    cells = rng.random((60, 2)) * [1000.0, 800.0]
    model = model_of(sites, fit)
    weights = torch.from_numpy(rng.random(60) * np.linspace(0.1, 3.0, 60))
    return Case(sites, fit, model, rng.random((20, 2)) * [1000.0, 800.0], coordinates(model, fit, cells), weights)


def scores(state: DesignState, objective: str) -> torch.Tensor:
    score = OBJECTIVES[objective].score
    assert score is not None
    return score(state, THRESHOLD)
