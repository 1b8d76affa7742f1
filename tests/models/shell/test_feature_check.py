from dataclasses import dataclass
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from cases import data
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.models.shell.kernels import default_scaled_kernel
from bo_scale.models.shell.weight_space import WeightSpaceModel

N = 18


class Cosines(WeightSpaceModel):
    """A model on cos x/ℓ whose author may forget a parameter or a copy."""

    copies = True

    def __init__(self, train_X: Tensor, train_Y: Tensor) -> None:
        super().__init__(train_X, train_Y, None, None, None, None, None, check_scaling=False)
        self.covar_module = default_scaled_kernel(1, torch.Size())
        self.lengthscale = torch.nn.Parameter(torch.ones(1))
        self.to(train_X)

    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        values = self.lengthscale.detach() if frozen else self.lengthscale
        return CosineFeatures(values.clone() if frozen and self.copies else values)


@dataclass(frozen=True)
class CosineFeatures(FeatureMap):
    lengthscale: Tensor

    @property
    def num_features(self) -> int:
        return 2

    def __call__(self, X: Tensor) -> Tensor:
        return torch.cat([(X / self.lengthscale).cos(), torch.ones_like(X)], -1)

    def prior_root(self) -> Any:
        return ConstantDiagLinearOperator(torch.ones(1, dtype=torch.float64), 2)

    def kernel_variance(self, X: Tensor) -> Tensor:
        return X.new_ones(X.shape[:-1])


def test_a_parameter_that_the_author_of_a_model_forgot_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"Forgetful._feature_parameters: φ depends on \['lengthscale'\]"):
        _ = type("Forgetful", (Cosines,), {})(*data(N, 1)).statistics
    listed = {"_feature_parameters": lambda self: [self.lengthscale]}
    with pytest.raises(UnsupportedError, match=r"Sharing._feature_map: if frozen, \['lengthscale'\] must be copies"):
        _ = type("Sharing", (Cosines,), {**listed, "copies": False})(*data(N, 1)).statistics
    model = type("Whole", (Cosines,), listed)(*data(N, 1))
    assert model.statistics[0].count == N


def test_a_model_that_starts_without_rows_is_checked_with_its_first() -> None:
    forgetful: Any = type("LateForgetful", (Cosines,), {})
    X, Y = data(N, 1)
    assert forgetful(X[:0], Y[:0]).statistics[0].count == 0
    with pytest.raises(UnsupportedError, match="LateForgetful"):
        _ = forgetful(X, Y).statistics
