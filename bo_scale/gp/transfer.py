"""Small tensors between a GPU and the host, packed into one copy each way, with gradients.

The host waits for what it reads. It does not wait for what it writes: that goes through pinned memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies on the CPU, in float64. One wait, and none for their gradients."""
    return _carried(tensors, _ToHost.apply) if tensors[0].is_cuda else [each.to(torch.float64) for each in tensors]


def to_device(tensors: Sequence[Tensor], device: torch.device | None) -> list[Tensor]:
    """Return copies of tensors of the CPU on a device, in float64. No wait, and one for their gradients."""
    if device is None or device.type != "cuda":
        return [each.to(torch.float64) for each in tensors]
    return _carried(tensors, lambda packed: _ToDevice.apply(packed, device))  # type: ignore[no-untyped-call]


def _carried(tensors: Sequence[Tensor], carry: Any) -> list[Tensor]:
    packed: Tensor = carry(torch.cat([each.reshape(-1).to(torch.float64) for each in tensors]))
    parts = packed.split([each.numel() for each in tensors])
    return [part.view(each.shape) for part, each in zip(parts, tensors, strict=True)]


def _written(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory().to(device, non_blocking=True)


class _ToHost(torch.autograd.Function):
    """A copy on the CPU."""

    @staticmethod
    @override
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.device = values.device
        return values.cpu()

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _written(grads[0], ctx.device)


class _ToDevice(torch.autograd.Function):
    """A copy on a GPU."""

    @staticmethod
    @override
    def forward(ctx: Any, values: Tensor, device: torch.device) -> Tensor:
        return _written(values, device)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].cpu(), None
