"""WISKI with a linear trend: a sum of grids over the first inputs, and of the other inputs times coefficients."""

from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from gpytorch.priors import Prior
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.linear import FirstColumns, LinearFeatures, OnFirstColumns
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.shell.kernels import is_exponential, summands_of
from bo_scale.models.wiski.model import WISKI

LEAST = 1e-6
"""Smallest variance of coefficients, in squared units of the targets."""


class CoefficientVariances(Module):
    """Prior variances of the coefficients of a trend, one for each group of columns.

    Args:
        groups: Columns of each group, as places among the inputs.
        prior: Prior of the variances.
    """

    def __init__(self, groups: Sequence[Sequence[int]], prior: Prior) -> None:
        super().__init__()
        self.groups = tuple(tuple(group) for group in groups)
        self.register_parameter("raw_variance", torch.nn.Parameter(torch.zeros(len(groups), dtype=torch.float64)))
        self.register_constraint("raw_variance", GreaterThan(LEAST))
        self.register_prior("variance_prior", prior, _variance_of, _unchanged)  # no lambdas: workers unpickle it

    @property
    def variance(self) -> Float[Tensor, " g"]:
        """The variances."""
        found: Tensor = self.raw_variance_constraint.transform(self.raw_variance)
        return found

    def features(self, frozen: bool) -> LinearFeatures:
        """Return the columns with their prior."""
        variance = self.variance.detach().clone() if frozen else self.variance
        counts = torch.tensor([len(group) for group in self.groups], device=variance.device)
        columns = tuple(place for group in self.groups for place in group)
        return LinearFeatures(columns, variance.to(torch.float64).repeat_interleave(counts))


def _variance_of(module: CoefficientVariances) -> Tensor:
    return module.variance


def _unchanged(module: CoefficientVariances, value: Any) -> None:
    """Let the variances be."""


class _First(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    @override
    def forward(self, X: Tensor) -> Tensor:
        return X[..., : self.count]


class TrendedWISKI(WISKI):
    """A WISKI over the first inputs, plus coefficients of the others: f(x) = g(x_1…x_d) + Σ_j w_j x_j.

    Coefficients have independent Gaussian priors, whose variances are learned with all other hyperparameters. Grids,
    and sparse precisions of Matérn-1/2 kernels, are those of a WISKI over the first inputs.

    Args:
        train_X: Inputs `n × (d + p)`.
        train_Y: As for `WISKI`, and so are all other arguments; `bounds` are of the first d transformed inputs.
        train_Yvar: As for `WISKI`.
        first: d.
        groups: Columns of the trend, as places among the inputs; those of one group share a prior variance.
        variance_prior: Prior of these variances.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None,
        first: int,
        groups: Sequence[Sequence[int]],
        variance_prior: Prior,
        **arguments: Any,
    ) -> None:
        super().__init__(train_X, train_Y, train_Yvar, projection=_First(first), **arguments)
        kernels = [self.covar_module] if len(self.grids) == 1 else summands_of(self.covar_module)
        self._exponential = tuple(is_exponential(kernel, first) for kernel in kernels)
        self._first = first
        self.trend = CoefficientVariances(groups, variance_prior).to(train_X)
        self._forget_inference()
        _ = self.statistics

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        trend = self._modules.get("trend")
        if not isinstance(trend, CoefficientVariances):  # not before the end of the constructor
            return super()._feature_map(output, frozen)
        projection, self._modules["projection"] = self._modules["projection"], None
        try:
            whole = super()._feature_map(output, frozen)
        finally:
            self._modules["projection"] = projection
        grids = whole.parts if isinstance(whole, SumFeatures) else (whole,)
        first = FirstColumns(self._first)
        return SumFeatures((*(OnFirstColumns(grid, first) for grid in grids), trend.features(frozen)))

    @override
    def _check_fit(self, record: Recorder) -> None:
        """Say nothing of coarse grids: the error of the sum is not that of one kernel."""
