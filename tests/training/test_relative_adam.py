"""Adam in logarithms, against Adam on a function of the logarithm."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bo_scale.training.relative_adam import RelativeAdam


def parameter(*values: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def run(bounds: dict[str, Any], steps: int = 20) -> tuple[Tensor, Tensor]:
    small, free = parameter(0.01, 2.0), parameter(0.3)
    adam = RelativeAdam({"small": small, "free": free}, bounds, lr=0.05)
    for _ in range(steps):
        adam.step(lambda: [(small.log() - 1.0).square().sum(), (free + 1).square().sum()])
    return small.detach(), free.detach()


def test_positive_parameters_take_adams_steps_in_their_logarithm() -> None:
    small, free = run({"small": (torch.tensor(1e-4), None)})
    logarithm, other = parameter(math.log(0.01), math.log(2.0)), parameter(0.3)
    adam = torch.optim.Adam([logarithm, other], lr=0.05)
    for _ in range(20):
        adam.zero_grad()
        ((logarithm - 1.0).square().sum() + (other + 1).square().sum()).backward()
        adam.step()
    torch.testing.assert_close(small, logarithm.detach().exp())
    torch.testing.assert_close(free, other.detach())


def test_a_step_changes_a_small_parameter_by_a_share_of_it() -> None:
    small, _ = run({"small": (0.0, None)}, steps=1)
    torch.testing.assert_close(small.log()[0].item(), math.log(0.01) + 0.05)


def test_bounds_hold() -> None:
    small, free = run({"small": (1e-4, 0.011), "free": (-0.1, None)})
    assert small.max().item() == pytest.approx(0.011)
    assert free.item() == pytest.approx(-0.1)


def test_what_is_restored_goes_on_as_what_was_saved() -> None:
    p, q = parameter(0.5), parameter(0.5)
    adams = [RelativeAdam({"p": each}, {"p": (0.0, None)}, lr=0.1) for each in (p, q)]
    for _ in range(3):
        adams[0].step(lambda: [(p - 2).square().sum()])
    q.data.copy_(p.data)
    adams[1].restore(adams[0].state())
    for adam, each in zip(adams, (p, q), strict=True):
        adam.step(lambda each=each: [(each - 2).square().sum()])
    assert torch.equal(p, q)
