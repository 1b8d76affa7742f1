"""Values of a device against those of the CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}


def assert_matches(found: Tensor, expected: Tensor, device: Any, name: str = "") -> None:
    """The same values, on this device."""
    assert found.device == torch.device(device), f"{name} is on {found.device}"
    tolerance = TOLERANCE.get(found.dtype, 0.0) * (100 if name in ("gradient", "slope") else 1)
    torch.testing.assert_close(
        found.cpu(), expected.cpu(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}"
    )


def assert_all_on(model: Any, device: Any) -> None:
    """Parameters, data and the inference are on this device."""
    tensors = [*model.parameters(), *model.buffers(), *model.train_inputs, model.train_targets, model.inference.theta]
    assert {each.device for each in tensors} == {torch.device(device)}


def in_turns(cases: list[Any], first: int = 0) -> list[Any]:
    """Each case in one of both precisions, in turns. `test_models` has every model in both, and says the most there."""
    return [
        pytest.param(*case.values, (torch.float64, torch.float32)[i % 2], id=f"{case.id}-float{(64, 32)[i % 2]}")
        for i, case in enumerate(cases, first)
    ]
