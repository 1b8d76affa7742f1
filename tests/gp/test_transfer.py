"""Small tensors to the host and back: values, gradients, and waits."""

from typing import Any

import torch
from cases import rand

from bo_scale.gp.transfer import to_device, to_host


def test_values_and_gradients_pass_through_the_host(device: torch.device) -> None:
    values = rand(3, 2), rand(1, seed=1).squeeze(), rand(4, seed=2)
    given = [each.to(device).requires_grad_() for each in values]
    here = to_host(given)
    there = to_device([here[0] * here[1], here[2]], device)
    assert all(each.device.type == "cpu" for each in here)
    assert all(each.device == device for each in there)
    gradients = torch.autograd.grad(there[0].sum() + there[1].square().sum(), given)
    expected = given[1].expand(3, 2), given[0].sum(), 2 * given[2]
    for found, value in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, value.detach())
        assert found.device == device


def test_the_host_waits_for_what_it_reads_alone(log: Any) -> None:
    given = [rand(3).cuda().requires_grad_(), rand(2, 2, seed=1).cuda().float()]
    with log.counting() as counted:
        here = to_host(given)
    assert (counted.waits, here[1].dtype) == (1, torch.float64), counted.report()
    with log.counting() as counted:
        there = to_device([value.exp() for value in here], torch.device("cuda:0"))
    assert counted.waits == 0, counted.report()
    with log.counting() as counted:
        torch.autograd.grad(there[0].sum(), given[0])
    assert counted.waits == 1, counted.report()


def test_on_the_cpu_nothing_is_copied() -> None:
    values = rand(3)
    assert to_host([values])[0] is values
    assert to_device([values], None)[0] is values
