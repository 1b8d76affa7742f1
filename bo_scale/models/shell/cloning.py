"""Functions to copy and restore modules, and to select outputs from a batch of hyperparameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, TypeVar

import torch
from gpytorch.priors import Prior

from bo_scale.gp.transfer import to_host

M = TypeVar("M", bound=torch.nn.Module)


def clone_module(module: M, _memo: dict[int, Any] | None = None) -> M:
    """Copy a module with its parameters and buffers, as copy.deepcopy does but at a tenth of the cost.

    GPyTorch's kernels, likelihoods, means, priors and constraints keep their state in parameters, buffers and children.
    Only their tables of priors and constraints refer to children again, and hooks to the module itself.
    """
    memo = {} if _memo is None else _memo
    if id(module) in memo:
        found: M = memo[id(module)]
        return found
    _ = module._parameters  # a model that borrows its modules copies them at this access
    copied: M = object.__new__(type(module))
    memo[id(module)] = copied
    copied.__dict__.update(
        {name: value.copy() if isinstance(value, dict) else value for name, value in module.__dict__.items()}
    )
    copied.__dict__["_parameters"] = {
        name: None if p is None else _own(p, memo) for name, p in module._parameters.items()
    }
    copied.__dict__["_buffers"] = {
        name: None if b is None else memo[id(b)] if id(b) in memo else b.clone() for name, b in module._buffers.items()
    }
    copied.__dict__["_modules"] = {
        name: None if child is None else clone_module(child, memo) for name, child in module._modules.items()
    }
    priors = copied.__dict__.get("_priors")
    if priors is not None:
        copied.__dict__["_priors"] = {
            name: (memo.get(id(prior), prior), *closures) for name, (prior, *closures) in priors.items()
        }
    constraints = copied.__dict__.get("_constraints")
    if constraints is not None:
        copied.__dict__["_constraints"] = {name: memo.get(id(child), child) for name, child in constraints.items()}
    for name, hooks in copied.__dict__.items():
        if name.endswith("hooks") and isinstance(hooks, dict):
            copied.__dict__[name] = type(hooks)((key, _rebound(hook, module, copied)) for key, hook in hooks.items())
    return copied


def _own(p: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Copy a parameter, or a part of one as a parameter; tied parameters stay tied."""
    if id(p) not in memo:
        memo[id(p)] = torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
    found: torch.Tensor = memo[id(p)]
    return found


def _rebound(hook: Any, original: torch.nn.Module, copied: torch.nn.Module) -> Any:
    """Bind a hook that is a method of the original to the copy; torch wraps some hooks."""
    method = getattr(hook, "hook", hook)
    if getattr(method, "__self__", None) is not original:
        return hook
    bound = MethodType(method.__func__, copied)
    return bound if method is hook else type(hook)(bound, copied if hook.with_module else None)


@contextmanager
def unchanged_on_failure(module: torch.nn.Module) -> Iterator[None]:
    """Put back the attributes, children and values of a module if the context raises."""
    attributes = {part: dict(vars(part)) for part in module.modules()}
    tables = [
        (value, value.copy()) for each in attributes.values() for value in each.values() if isinstance(value, dict)
    ]
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    try:
        yield
    except BaseException:
        for part, before in attributes.items():
            vars(part).clear()
            vars(part).update(before)
        for table, kept in tables:  # in place: handles of hooks refer to theirs
            table.clear()
            table.update(kept)
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        raise


def on_host(module: M, *others: torch.Tensor) -> tuple[M, list[torch.Tensor]]:
    """Return a copy of a GPU's module on the CPU, and other tensors there. One wait; gradients flow back to it."""
    own = {id(each): each for each in (*module.parameters(), *module.buffers())}
    copies = to_host([*own.values(), *others])
    memo: dict[int, Any] = {key: there.to(each.dtype) for (key, each), there in zip(own.items(), copies)}
    return clone_module(module, memo), copies[len(own) :]


def subset_batch(module: torch.nn.Module, outputs: list[int], num_outputs: int) -> None:
    """Keep some outputs of a batch of hyperparameters, in place; a batch of one loses its dimension."""
    keep: Any = outputs if len(outputs) > 1 else outputs[0]
    for part in module.modules():
        batched = getattr(part, "batch_shape", None)
        if batched is not None and len(batched) != 1:
            continue
        for name, p in part._parameters.items():
            if p is not None and p.shape[:1] == (num_outputs,):
                part._parameters[name] = torch.nn.Parameter(p.detach()[keep].clone(), p.requires_grad)
        if batched is not None:
            part.batch_shape = torch.Size([len(outputs)] if len(outputs) > 1 else [])  # type: ignore[assignment]


def output_view(module: M, output: int, num_outputs: int) -> M:
    """Return one output's view of a kernel with batched hyperparameters: indexed, differentiable, otherwise shared."""
    if num_outputs == 1 or isinstance(module, Prior):
        return module
    view: M = object.__new__(type(module))
    view.__dict__.update(module.__dict__)
    batched = getattr(module, "batch_shape", None)
    indexed = batched is None or len(batched) == 1
    view.__dict__["_parameters"] = {
        name: p[output] if indexed and p is not None and p.shape[:1] == (num_outputs,) else p
        for name, p in module._parameters.items()
    }
    view.__dict__["_modules"] = {
        name: None if child is None else output_view(child, output, num_outputs)
        for name, child in module._modules.items()
    }
    if batched is not None:
        view.batch_shape = torch.Size([])  # type: ignore[assignment]
    return view
