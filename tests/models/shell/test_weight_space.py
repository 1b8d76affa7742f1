from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.utils.types import DEFAULT
from cases import WEIGHT_SPACE, data
from linear_operator.operators import ConstantDiagLinearOperator
from torch import Tensor

from bo_scale import WISKI, CaGP, load_model, save_model
from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.models.shell.kernels import default_scaled_kernel
from bo_scale.models.shell.weight_space import WeightSpaceModel

N = 18


def streamed(d: int, build: Callable[..., Any]) -> Any:
    """A model of 12 rows that has observed 6 more, one by one."""
    X, Y = data(N, d)
    model = build(X[:12], Y[:12], outcome_transform=None).eval()
    model.posterior(X[:1])
    for i in range(12, N):
        model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    return model


@pytest.mark.parametrize(("d", "build"), WEIGHT_SPACE)
def test_rows_in_another_order_are_the_same_rows(d: int, build: Callable[..., Any], tmp_path: Path) -> None:
    """Saved models say how many of the last rows are not summed yet."""
    model, Z = streamed(d, build), data(4, d, seed=5)[0]
    before, order = model.posterior(Z), torch.randperm(N, generator=torch.Generator().manual_seed(0))
    model.reorder_rows(order)
    assert torch.equal(model.rows.X, data(N, d)[0][order])
    save_model(model, tmp_path / "model.pt")
    again = load_model(build(*data(12, d), outcome_transform=None), tmp_path / "model.pt")
    anew = build(*(values[order] for values in data(N, d)), outcome_transform=None)
    anew.load_state_dict(model.state_dict())
    for found in (model, again):
        torch.testing.assert_close(found.posterior(Z).mean, before.mean)
        for one, other in zip(found.statistics, anew.eval().statistics, strict=True):
            assert one.count == other.count == N
            torch.testing.assert_close(one.gram.to_dense(), other.gram.to_dense())
            torch.testing.assert_close(one.recenter(other.center).projection, other.projection)


def test_an_order_that_is_none_or_that_would_matter_is_refused() -> None:
    X, Y = data(N, 1)
    model = WISKI(X, Y, grid_size=8)
    for order in ([0, 1], [0] * N, [*range(1, N + 1)]):
        with pytest.raises(InvalidDataError):
            model.reorder_rows(torch.tensor(order))
    for other in (WISKI(X, Y, grid_size=8, keep_data=False), WISKI(X, Y, grid_size=8, decay=0.9)):
        with pytest.raises(UnsupportedError, match="reorder_rows"):
            other.reorder_rows(torch.arange(N))
    assert not hasattr(CaGP, "reorder_rows")


class Cosines(WeightSpaceModel):
    """A model on cos x/ℓ whose author may forget a parameter or a copy."""

    copies = True

    def __init__(self, train_X: Tensor, train_Y: Tensor) -> None:
        super().__init__(train_X, train_Y, None, None, None, None, DEFAULT, check_scaling=False)
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
