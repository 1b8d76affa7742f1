"""A trend in covariates: standardised columns, classes as indicators, and the prior of their coefficients.

A Gaussian prior on the coefficients makes the trend a linear kernel, which is added to that of the field: predictions
are those of universal kriging as the prior grows wide, and their variance contains that of the coefficients. The scale
of the prior is learned by the evidence, so that many coefficients are shrunk.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from scipy.cluster.vq import kmeans2
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from torch import Tensor
from typing_extensions import override

from bo_scale.survey.mapping.kernels import FLOOR, about
from bo_scale.survey.mapping.matern import matern

Array = npt.NDArray[np.float64]
KINDS = ("linear", "categorical", "kernel")
"""Ways in which a covariate enters."""
WIDTH = 1.0
"""Prior variance of coefficients at the mode, in squared units of the values, for columns of unit spread."""
NODES = 96
"""Nodes from which a smooth effect of covariates is interpolated where there are many sites."""
ROUNDING = 1e-8
"""Variance of the smooth effect at its nodes beyond that of the kernel: they may be near each other."""
STEEPEST = 0.05
"""Shortest lengthscale of a smooth effect, in standard deviations of the covariate."""


class Straight(Kernel):
    """The kernel xᵀz of some inputs: a trend with coefficients of unit variance."""

    @override
    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """Return the products."""
        return (x1 * x2).sum(-1) if diag else x1 @ x2.mT


@dataclass(frozen=True)
class Trend:
    """Covariates as a model knows them; plain numbers, as JSON can hold them.

    Attributes:
        names: Names of the covariates.
        kinds: How each enters, one of `KINDS`.
        centres: Mean at the sites of each; 0 of classes.
        scales: Standard deviation at the sites of each; 1 of classes.
        levels: Classes that sites have, of each; none of numbers.
        nodes: Standardised covariates at nodes of their smooth effect, where there are many sites; else none.
        lengthscales: Lengthscales of that effect.
    """

    names: list[str]
    kinds: list[str]
    centres: list[float]
    scales: list[float]
    levels: list[list[float]]
    nodes: list[list[float]] | None = None
    lengthscales: list[float] | None = None

    @classmethod
    def of(cls, names: list[str], kinds: list[str], values: Array) -> "Trend":
        """Return the trend in covariates with these values at the sites, `n × q`."""
        classes = [kind == "categorical" for kind in kinds]
        spread = [float(column.std()) for column in values.T]
        return cls(
            list(names),
            list(kinds),
            [0.0 if one else float(column.mean()) for one, column in zip(classes, values.T, strict=True)],
            [1.0 if one or sd == 0 else sd for one, sd in zip(classes, spread, strict=True)],
            [np.unique(column).tolist() if one else [] for one, column in zip(classes, values.T, strict=True)],
        )

    def columns(self, values: Array) -> Array:
        """Return the columns of the trend, `n × p`, for covariates, `n × q`.

        Of classes there is an indicator each, and one more for those that no site has: their coefficient is what the
        prior says of any class.
        """
        found = []
        for place, levels in enumerate(self.levels):
            column = values[:, place]
            if self.kinds[place] != "categorical":
                found.append(((column - self.centres[place]) / self.scales[place])[:, None])
                continue
            indicators = (column[:, None] == np.array(levels)).astype(np.float64)
            unseen = 1 - indicators.sum(1, keepdims=True)
            unknown = np.where(np.isnan(column), np.nan, 0.0)[:, None]
            found.append(np.concatenate([indicators, unseen], 1) + unknown)
        if self.nodes is not None:
            found.append(self._smooth(np.concatenate([found[place] for place in self._inputs], 1)))
        return np.concatenate(found, 1)

    @property
    def _inputs(self) -> list[int]:
        """Places of covariates that are inputs of the kernel."""
        return [place for place, kind in enumerate(self.kinds) if kind == "kernel"]

    @property
    def widths(self) -> list[int]:
        """Number of columns of each covariate."""
        return [len(each) + 1 if kind == "categorical" else 1 for kind, each in zip(self.kinds, self.levels)]

    @property
    def labels(self) -> list[tuple[str, float | None]]:
        """The covariate of each column and its class, if it has classes; NaN for classes that no site has."""
        found: list[tuple[str, float | None]] = []
        for name, kind, levels in zip(self.names, self.kinds, self.levels, strict=True):
            found += [(name, None)] if kind != "categorical" else [(name, each) for each in [*levels, np.nan]]
        return found

    @property
    def groups(self) -> list[list[int]]:
        """Columns whose coefficients share a prior variance: all numbers, the classes of each, and a smooth effect."""
        starts = np.cumsum([0, *self.widths]).tolist()
        numbers = [starts[place] for place, kind in enumerate(self.kinds) if kind != "categorical"]
        classes = [
            list(range(starts[place], starts[place + 1]))
            for place, kind in enumerate(self.kinds)
            if kind == "categorical"
        ]
        smooth = [] if self.nodes is None else [list(range(starts[-1], starts[-1] + len(self.nodes)))]
        return [group for group in (numbers, *classes, *smooth) if group]

    @property
    def smooth_columns(self) -> list[int]:
        """Columns of the covariates that are inputs of the kernel."""
        starts = np.cumsum([0, *self.widths]).tolist()
        return [starts[place] for place in self._inputs]

    def kernels(self, first: int) -> list[ScaleKernel]:
        """Return the kernels of the trend, with its columns behind so many other inputs."""
        parts = [_scaled(Straight(active_dims=[first + place for place in group])) for group in self.groups]
        if self.smooth_columns and self.nodes is None:
            parts.append(_scaled(self._effect([first + place for place in self.smooth_columns])))
        return parts

    def _effect(self, places: list[int]) -> MaternKernel:
        base = MaternKernel(
            2.5,
            ard_num_dims=len(places),
            active_dims=places,
            lengthscale_prior=about(2.0),
            lengthscale_constraint=GreaterThan(STEEPEST, transform=None, initial_value=2.0),
        )
        base.lengthscale = 2.0
        return base

    def with_nodes(self, values: Array, lengthscales: list[float]) -> "Trend":
        """Return the trend whose smooth effect is interpolated from nodes, which are centres of sites' covariates."""
        inputs = self.columns(values)[:, self.smooth_columns] / np.array(lengthscales)
        distinct = np.unique(inputs[np.random.default_rng(0).permutation(len(inputs))[:20_000]], axis=0)
        if len(distinct) > NODES:
            start = distinct[np.random.default_rng(0).permutation(len(distinct))[:NODES]]
            distinct = np.unique(kmeans2(distinct, start, iter=10, minit="matrix")[0], axis=0)
        return replace(self, nodes=(distinct * np.array(lengthscales)).tolist(), lengthscales=list(lengthscales))

    def _smooth(self, inputs: Array) -> Array:
        """Return k(c, Z) L⁻ᵀ with L Lᵀ = k(Z, Z): columns whose independent coefficients make a smooth effect of c.

        C. K. I. Williams, M. Seeger. Using the Nyström method to speed up kernel machines. NIPS 2000.
        """
        scales, nodes = np.array(self.lengthscales), np.array(self.nodes)
        K = matern(2.5, cdist(nodes / scales, nodes / scales)) + ROUNDING * np.eye(len(nodes))
        known = np.isfinite(inputs).all(1)
        found = np.full((len(inputs), len(nodes)), np.nan)
        cross = matern(2.5, cdist(nodes / scales, inputs[known] / scales))
        found[known] = solve_triangular(np.linalg.cholesky(K), cross, lower=True).T
        return found

    def saved(self) -> dict[str, Any]:
        """Return the trend as JSON can hold it."""
        return asdict(self)


def _scaled(base: Kernel) -> ScaleKernel:
    kernel = ScaleKernel(base, outputscale_prior=about(WIDTH), outputscale_constraint=GreaterThan(FLOOR))
    kernel.outputscale = torch.tensor(WIDTH)
    return kernel
