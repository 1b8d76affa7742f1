"""Tensors of pretended devices: a CPU tensor inside a wrapper that says "cuda:0", and what runs operators on them."""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from pretended.generators import CPU, indexed, is_cuda, randomness_of, require_device
from pretended.log import Log
from pretended.rules import INDEXED, VIEWS, WAITS, aten, on_cuda, refuse_what_cuda_would

log: Log | None = None
"""The log of the present pretence; None outside of one."""
loading = threading.local()
"""`device` is the `map_location` of the present `torch.load`."""
ON_THE_HOST = {aten.is_pinned, aten._pin_memory}
"""Operators that are not what they are even without any pretended tensor."""
_PINNED: set[int] = set()
"""Addresses of pinned memory."""


class PretendTensor(Tensor):
    """A CPU tensor that says it is on "cuda:0"."""

    _inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device, requires_grad: bool = False) -> "PretendTensor":
        assert not isinstance(inner, PretendTensor)
        options: dict[str, Any] = {"dtype": inner.dtype, "layout": inner.layout, "device": device}
        if inner.layout == torch.strided:
            options |= {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        else:
            options["dispatch_layout"] = True
        self = Tensor._make_wrapper_subclass(cls, inner.size(), requires_grad=requires_grad, **options)
        self._inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretend({self._inner!r}, device='{self.device}')"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PretendTensor":
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol.")
        new = PretendTensor(self._inner.clone(), self.device, self.requires_grad)
        memo[id(self)] = new
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        new.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k != "_inner"})
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        parameter = bool(getattr(self, "_is_param", False))
        return rebuilt, (self._inner.contiguous().clone(), str(self.device), self.requires_grad, parameter)

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self._inner = value._inner  # type: ignore[attr-defined]

    def data_ptr(self) -> int:
        return self._inner.data_ptr()


def rebuilt(inner: Tensor, device: str, requires_grad: bool, parameter: bool) -> Tensor:
    """A tensor that was saved on the device."""
    where = getattr(loading, "device", None)
    if where is None:
        if log is None:
            raise RuntimeError(
                "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."
            )
        where = torch.device(device)
    tensor = inner.to(where)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([rebuilt])


class Mode(TorchDispatchMode):
    """Sees every operator below autograd, also those that make tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled within; True would import all of torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU tensors inside, label what comes out, and log it."""
    tensors: list[Tensor] = []
    _gather(args, tensors)
    _gather(kwargs.values(), tensors)
    if not any(isinstance(t, PretendTensor) for t in tensors):
        if not kwargs and func.overloadpacket not in ON_THE_HOST:
            return func(*args)
        if not is_cuda(kwargs.get("device")):
            return _on_the_host(func, args, kwargs)
    if func.overloadpacket is torch.ops.prim.layout:
        return args[0]._inner.layout
    refuse_what_cuda_would(func, args, tensors)
    target = _target(func, args, kwargs, tensors)
    torch.cuda._lazy_init()
    _record(func, args, kwargs, target)
    out = _run(func, args, kwargs, target)
    if torch.Tag.inplace_view in func.tags or func.overloadpacket is aten.set_:
        return return_and_correct_aliasing(func, args, kwargs, out)
    known = {id(_inside(t)): t for t in tensors} if func._schema.is_mutable else {}

    def label(x: Tensor) -> Tensor:
        if id(x) in known:
            return known[id(x)]  # what was written to
        return PretendTensor(x, target) if target.type == "cuda" and not isinstance(x, PretendTensor) else x

    return mapped(label, out)


def _gather(values: Iterable[Any], tensors: list[Tensor]) -> None:
    """Append the tensors among an operator's arguments. Four of five operators have nothing but tensors and numbers."""
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif type(value) in (tuple, list, dict):
            _gather(value.values() if type(value) is dict else value, tensors)


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to the tensors of an operator's arguments or results. Faster than torch's pytrees."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)([mapped(function, each) for each in value])
    return {name: mapped(function, each) for name, each in value.items()} if type(value) is dict else value


def _on_the_host(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.get("generator") is not None:
        require_device(kwargs["generator"], CPU)
    if func.overloadpacket is aten.is_pinned:
        return is_pinned(args[0])
    if func.overloadpacket is aten._pin_memory or kwargs.get("pin_memory"):
        made = (
            args[0].clone()
            if func.overloadpacket is aten._pin_memory
            else func(*args, **{**kwargs, "pin_memory": False})
        )
        _PINNED.add(made.untyped_storage().data_ptr())
        return made
    return func(*args, **kwargs)


def _inside(x: Any) -> Any:
    return x._inner if isinstance(x, PretendTensor) else x


def _target(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> torch.device:
    """Device of the result."""
    if kwargs.get("device") is not None and any(each.name == "device" for each in func._schema.arguments):
        return indexed(kwargs["device"])
    if func.overloadpacket in (aten.copy_, aten.set_):
        return args[0].device
    return next((t.device for t in tensors if isinstance(t, PretendTensor)), CPU)


def _run(func: Any, args: Any, kwargs: dict[str, Any], target: torch.device) -> Any:
    generator = kwargs.get("generator") or next((x for x in args if isinstance(x, torch._C.Generator)), None)
    if generator is not None:
        require_device(generator, target)
    inner_args, inner = mapped(_inside, args), mapped(_inside, kwargs)
    inner |= {"device": CPU} if "device" in kwargs else {}
    inner |= {"pin_memory": False} if kwargs.get("pin_memory") else {}
    draws = torch.Tag.nondeterministic_seeded in func.tags and target.type == "cuda" and generator is None
    if func.overloadpacket is aten._to_copy and target.type == "cpu" and not args[0]._inner.is_sparse_csr:
        inner.setdefault("memory_format", torch.preserve_format)
    with randomness_of(target) if draws else contextlib.nullcontext():
        return func(*inner_args, **inner)


def _record(func: Any, args: Any, kwargs: dict[str, Any], target: torch.device) -> None:
    """Log an operator as what it is at the device."""
    if log is None:
        return
    name, packet = func._schema.name.split("::")[1], func.overloadpacket
    if packet is aten._local_scalar_dense:
        log.add("item", name, 1)
    elif packet in (aten._to_copy, aten.copy_):
        copy_from = args[1] if packet is aten.copy_ else args[0]
        _record_copy(name, copy_from, target, bool(kwargs.get("non_blocking") or args[2:3] == (True,)))
    elif packet in INDEXED:
        _record_indexing(name, args)
    elif name in WAITS:
        log.add("sync", name)
    elif name not in VIEWS:
        log.add("kernel", name)


def is_pinned(values: Tensor) -> bool:
    return not isinstance(values, PretendTensor) and values.untyped_storage().data_ptr() in _PINNED


def _record_copy(name: str, source: Tensor, target: torch.device, non_blocking: bool) -> None:
    assert log is not None
    if source.device.type == target.type:
        log.add("kernel", name)
    elif non_blocking and is_pinned(source):
        log.add("pinned", name, source.numel())
    else:
        log.add("d2h" if target.type == "cpu" else "h2d", name, source.numel())


def _record_indexing(name: str, args: Any) -> None:
    assert log is not None
    indices = [i for i in args[1] if i is not None]
    for i in indices:
        if not on_cuda(i):
            log.add("h2d", f"{name} (CPU index)", i.numel())
    if any(i.dtype in (torch.bool, torch.uint8) for i in indices):
        value = args[2] if len(args) > 2 else None
        fills = value is not None and not on_cuda(value) and value.numel() == 1
        log.add("kernel" if fills else "sync", f"{name} (mask)")
    else:
        log.add("kernel", name)
