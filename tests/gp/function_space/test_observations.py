"""Observations of one output."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bo_scale.gp.function_space.kernel_products.profiles import rbf
from bo_scale.gp.function_space.observations import Observations
from bo_scale.gp.function_space.process import Radial


@dataclass(frozen=True)
class Constant:
    """The kernel 1, with lengthscales or without."""

    lengthscale: Tensor | None = None

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        return X.new_ones(*X.shape[:-1], Z.shape[-2])

    def variance(self, X: Tensor) -> Tensor:
        return X.new_ones(X.shape[:-1])

    def radial(self) -> Radial | None:
        return None if self.lengthscale is None else Radial(torch.tensor(1.0).double(), self.lengthscale, rbf)

    def to(self, device: torch.device) -> "Constant":
        return self


def observed(n: int, lengthscale: Tensor | None = None) -> Observations:
    X = torch.linspace(0, 1, 2 * n).double().reshape(n, 2) * torch.tensor([1.0, 10.0]).double()
    values = torch.arange(n).double()
    return Observations(Constant(lengthscale), X, values, 1 + values, torch.tensor(0.5).double())


def test_the_noise_is_scaled() -> None:
    assert torch.equal(observed(3).noise, torch.tensor([0.5, 1.0, 1.5]).double())


def test_a_part_is_of_the_same_rows_throughout() -> None:
    whole = observed(6)
    part = whole.part(slice(2, 4))
    for name in ("X", "residual", "relative", "noise"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[2:4])


def test_inputs_are_in_units_of_the_lengthscales_without_a_gradient() -> None:
    lengthscale = torch.tensor([2.0, 5.0]).double().requires_grad_()
    found = observed(6, lengthscale)
    assert torch.equal(found.scaled(), (found.X / lengthscale).detach())
    assert not found.scaled().requires_grad


def test_without_lengthscales_the_unit_is_the_spread() -> None:
    torch.testing.assert_close(observed(6).scaled().std(0), torch.ones(2).double())


@pytest.mark.parametrize("n", [1, 4])
def test_inputs_of_no_spread_are_as_they_are(n: int) -> None:
    same = Observations(Constant(), torch.ones(n, 2).double(), *torch.ones(2, n).double(), torch.tensor(1.0).double())
    assert torch.equal(same.scaled(), same.X)
