"""Random states of pretended devices: one each, as in CUDA."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CPU = torch.device("cpu")
_PLAIN = torch.Generator
_devices: dict[int, torch.device] = {}
"""Devices of generators by their addresses: operators are handed other Python objects for them."""


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def indexed(device: Any) -> torch.device:
    """A device with the number of the current one where it has none."""
    device = torch.device(device)
    if device.type != "cuda":
        return device
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise RuntimeError("CUDA error: invalid device ordinal (pretended)")
    return torch.device("cuda", index)


class PretendGenerator(torch._C.Generator):  # type: ignore[misc]
    """A generator that says it is on a device."""

    _device: torch.device

    def __new__(cls, device: Any = "cuda") -> "PretendGenerator":
        self = super().__new__(cls, "cpu")
        self._device = _devices[self._cdata] = indexed(device)
        return self

    def __del__(self) -> None:
        _devices.pop(self._cdata, None)

    @property
    def device(self) -> torch.device:
        return self._device


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(metaclass=_AnyGenerator):
    """Stands for `torch.Generator`."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return PretendGenerator(device) if is_cuda(device) else _PLAIN(device)


def default_generator(device: Any = None) -> PretendGenerator:
    """A device's own generator."""
    torch.cuda._lazy_init()
    if isinstance(device, int):
        return torch.cuda.default_generators[device]
    return torch.cuda.default_generators[indexed("cuda" if device is None else device).index]


def require_device(generator: Any, device: torch.device) -> None:
    """Refuse a generator of another device, as CUDA does."""
    found = _devices.get(generator._cdata, CPU)
    if found.type != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator but found '{found.type}'")
    if found != device:
        raise RuntimeError(f"Expected a generator on {device} but found one on {found} (pretended)")


@contextmanager
def randomness_of(device: torch.device) -> Iterator[None]:
    """Draw from the state of a device within the block."""
    host, there = torch.default_generator, default_generator(device)
    kept = host.get_state()
    host.set_state(there.get_state())
    try:
        yield
    finally:
        there.set_state(host.get_state())
        host.set_state(kept)
