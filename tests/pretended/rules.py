"""What CUDA refuses: operators whose tensors are not all on one device, with its exceptions."""

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
ANY_DEVICE = {aten.copy_, aten._to_copy, aten.set_, aten._foreach_copy_}
"""Operators that take tensors of several devices."""
CPU_SCALARS = {
    aten.where, aten.masked_fill, aten.masked_fill_, aten.index_put, aten.index_put_, aten.fill, aten.fill_,
    aten._index_put_impl_, aten.index_fill, aten.index_fill_,
}  # fmt: skip
"""Operators that take 0-dimensional CPU tensors without being pointwise by tag."""
INDEXED = {
    aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index, aten._unsafe_index_put,
}  # fmt: skip
"""Operators that take CPU tensors as indices."""
WAITS = {
    "nonzero", "masked_select", "equal", "_linalg_check_errors", "_unique2", "unique_dim", "unique_consecutive",
    "unique_dim_consecutive", "repeat_interleave", "bincount", "linalg_eig", "linalg_lstsq", "_linalg_eigvals",
    "is_nonzero", "nonzero_numpy", "histc", "multinomial", "_linalg_eigh", "_linalg_svd",
}  # fmt: skip
"""Operators at which CUDA waits for its stream."""
VIEWS = {
    "detach", "alias", "view", "_unsafe_view", "expand", "permute", "transpose", "t", "select", "slice", "squeeze",
    "unsqueeze", "as_strided", "unbind", "split", "split_with_sizes", "diagonal", "_reshape_alias", "unfold",
    "lift_fresh", "lift", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "view_as_real",
    "real", "is_pinned", "squeeze_", "unsqueeze_", "t_", "transpose_", "values", "crow_indices", "col_indices", "_conj",
    "_neg_view", "resolve_conj", "_has_same_storage_numel", "is_same_size", "_sparse_compressed_tensor_unsafe",
    "broadcast_tensors",
}  # fmt: skip
"""Operators without a kernel."""


def on_cuda(value: Any) -> bool:
    """Whether it is a tensor that says so."""
    return isinstance(value, Tensor) and value.device.type == "cuda"


def refuse_what_cuda_would(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """Raise the error of CUDA if an operator may not be called with these tensors."""
    packet = func.overloadpacket
    cuda, cpu = [t for t in tensors if on_cuda(t)], [t for t in tensors if not on_cuda(t)]
    if not cuda or packet in ANY_DEVICE:
        return
    if any(t.device != cuda[0].device for t in cuda):
        raise _mixed(func, tensors)
    if not cpu:
        return
    if packet in INDEXED:
        _refuse_indices(func, args)
    elif any(t.dim() > 0 for t in cpu) or not _takes_scalars(func, args, cpu):
        raise _mixed(func, tensors)


def _refuse_indices(func: Any, args: Any) -> None:
    if not on_cuda(args[0]):
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor (cpu) (pretended: {func})"
        )
    values = args[2] if len(args) > 2 else None
    if isinstance(values, Tensor) and not on_cuda(values) and values.dim() > 0:
        raise _mixed(func, [args[0], values])


def _takes_scalars(func: Any, args: Any, cpu: list[Tensor]) -> bool:
    """Whether an operator takes these 0-dimensional CPU tensors: a pointwise one takes one, and writes to none."""
    packet = func.overloadpacket
    if packet in CPU_SCALARS:
        return on_cuda(args[0]) or packet is aten.where
    if torch.Tag.pointwise not in func.tags and "_foreach" not in func.__name__:
        return False
    written = [
        value
        for argument, value in zip(func._schema.arguments, args)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return len(cpu) == 1 and not any(isinstance(t, Tensor) and not on_cuda(t) for t in written)


def _mixed(func: Any, tensors: list[Tensor]) -> RuntimeError:
    shapes = ", ".join(f"{t.device}{tuple(t.shape)}" for t in tensors)
    found = " and ".join(sorted({str(t.device) for t in tensors}, reverse=True)[:2])
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {found}! "
        f"(pretended: {func} of {shapes})"
    )
