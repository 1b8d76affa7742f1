"""`torch.cuda` with devices that are not there."""

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from pretended import tensors
from pretended.generators import Generator, PretendGenerator, default_generator, indexed
from pretended.hooks import hooks
from pretended.log import Log


@contextlib.contextmanager
def pretend_cuda(devices: int = 1, watched: str = "bo_scale/", traced: bool = True) -> Iterator[Log]:
    """Pretend that there are CUDA devices.

    Args:
        devices: How many, at most 8. With two, "cuda:1" finds what is made on the current device instead.
        watched: Part of the path by which lines of the package under test are known in the log.
        traced: Whether events come with the line that asked for them (slower).

    Yields:
        The log of all that happens within.
    """
    if tensors.log is not None:
        raise RuntimeError("pretend_cuda: already pretending.")
    import torch._dynamo  # not within: it looks for devices

    library, future = hooks(), torch.__future__
    lifted, overwritten = torch._C._only_lift_cpu_tensors(), future.get_overwrite_module_params_on_conversion()
    with contextlib.ExitStack() as stack:
        library.pretend_cuda(ctypes.c_bool(True))
        stack.callback(library.pretend_cuda, ctypes.c_bool(False))
        for patch in (*_of_devices(devices), *_of_randomness(devices), *_of_torch()):
            stack.enter_context(patch)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(tensors.Mode())
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        future.set_overwrite_module_params_on_conversion(True)  # a plain Parameter cannot become ours in place
        stack.callback(future.set_overwrite_module_params_on_conversion, overwritten)
        tensors.log = Log(watched, traced)
        try:
            yield tensors.log
        finally:
            tensors.log = None


def _patched(**values: Any) -> list[Any]:
    return [mock.patch.object(torch.cuda, name, value, create=True) for name, value in values.items()]


def _of_devices(devices: int) -> list[Any]:
    """Patches of what says which devices there are."""
    cuda, current = torch.cuda, hooks().pretend_current

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= 0:
            current(index)

    def exchange(index: int) -> int:
        before: int = current(-1)
        set_device(index)
        return before

    return _patched(
        is_available=lambda: True,
        is_initialized=lambda: cuda._initialized,
        device_count=lambda: devices,
        current_device=lambda: current(-1),
        set_device=set_device,
        _exchange_device=exchange,
        _maybe_exchange_device=exchange,
        synchronize=lambda *args: None,
        empty_cache=lambda: None,
        memory_allocated=lambda *args: 0,
        max_memory_allocated=lambda *args: 0,
        reset_peak_memory_stats=lambda *args: None,
        mem_get_info=lambda *args: (2**34, 2**34),
        get_device_name=lambda *args: "Pretended",
        get_device_capability=lambda *args: (9, 0),
    )


def _of_randomness(devices: int) -> list[Any]:
    """Patches of random states, one for each device."""
    cuda, every = torch.cuda, range(devices)

    def lazy_init() -> None:
        if not cuda._initialized:
            cuda._initialized = True
            cuda.default_generators = tuple(PretendGenerator(torch.device("cuda", i)) for i in every)
            seed(torch.initial_seed(), every)

    def seed(number: int, numbers: Iterable[int] | None = None) -> None:
        for i in [cuda.current_device()] if numbers is None else numbers:
            default_generator(i).manual_seed(number)

    def set_state(state: Any, device: Any = "cuda") -> None:
        default_generator(device).set_state(state)

    return _patched(
        _initialized=False,
        default_generators=(),  # as in torch: empty until CUDA is first used
        _lazy_init=lazy_init,
        init=lazy_init,
        manual_seed=seed,
        manual_seed_all=lambda number: seed(number, every),
        get_rng_state=lambda device="cuda": default_generator(device).get_state(),
        get_rng_state_all=lambda: [default_generator(i).get_state() for i in every],
        set_rng_state=set_state,
        set_rng_state_all=lambda states: [set_state(state, i) for i, state in enumerate(states)] and None,
    )


def _of_torch() -> list[Any]:
    """Patches of functions of torch that look at devices before any operator does."""
    values = {
        "Generator": Generator,
        "load": _load(torch.load),
        "tensor": _from_host(torch.tensor),
        "as_tensor": _from_host(torch.as_tensor),
    }
    return [mock.patch.object(torch, name, value) for name, value in values.items()]


def _load(original: Any) -> Any:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(map_location) or isinstance(map_location, dict):
            raise NotImplementedError("pretended devices know devices as map_location only")
        device = None if map_location is None else torch.device(map_location)
        tensors.loading.device = None if device is None else indexed(device)
        try:
            found = original(f, None if device is None else "cpu", *args, **kwargs)
        finally:
            tensors.loading.device = None
        if device is not None and device.type == "cuda":
            found = pytree.tree_map_only(torch.Tensor, lambda t: t.to(indexed(device)), found)
        return found

    return load


def _from_host(original: Any) -> Any:
    """Torch reads tensors in a list one by one, where no mode sees it."""

    def make(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, list | tuple):
            data = pytree.tree_map_only(tensors.PretendTensor, lambda t: t.detach().cpu(), data)
        return original(data, *args, **kwargs)

    return make
