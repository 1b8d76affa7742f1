"""Adam for online learning: positive parameters move by factors, whatever their constraint."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor


class RelativeAdam:
    """Adam that steps in the logarithm of positive parameters, and keeps all parameters within their bounds.

    BoTorch's noise and lengthscales are stored as they are: their constraints apply no transform. A step size that
    suits a lengthscale of 0.5 would be as large as a noise variance of 0.005 and make it erratic. GPyTorch's own
    constraints apply a softplus, under which small parameters move by factors anyway.

    Args:
        parameters: Parameters to learn, by name.
        bounds: Lower and upper bounds of some of them; None for none. A lower bound of 0 or more means positive.
        lr: Step size. For positive parameters, about the largest relative change.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], bounds: Mapping[str, tuple[Any, Any]], lr: float
    ) -> None:
        self._bounded = {name: limits for name, limits in bounds.items() if name in parameters}
        self._positive = {
            name: torch.zeros_like(parameters[name], requires_grad=True)
            for name, (lower, _) in self._bounded.items()
            if lower is not None and bool((torch.as_tensor(lower) >= 0).all())
        }
        self._parameters = dict(parameters)
        searched = [self._positive.get(name, p) for name, p in parameters.items()]
        self._on_gpu = any(p.is_cuda for p in searched)
        self._adam = torch.optim.Adam(searched, lr=lr, foreach=self._on_gpu)

    def step(self, loss: Callable[[], Sequence[Tensor]]) -> None:
        """Take one step.

        Args:
            loss: The parts of the loss at the present values. They may be on several devices.
        """
        for p in self._parameters.values():
            p.grad = None
        torch.autograd.backward(loss())
        found = [(self._parameters[name], logarithm) for name, logarithm in self._positive.items()]
        found = [(p, logarithm) for p, logarithm in found if p.grad is not None]
        with torch.no_grad():
            if found:
                positive, logarithms = ([pair[i] for pair in found] for i in (0, 1))
                torch._foreach_copy_(logarithms, torch._foreach_log(positive))
                slopes = torch._foreach_mul([p.grad for p in positive if p.grad is not None], positive)
                for logarithm, slope in zip(logarithms, slopes, strict=True):
                    logarithm.grad = slope
            self._adam.step()
            if found:
                torch._foreach_copy_(positive, torch._foreach_exp(logarithms))
            for name, (lower, upper) in self._bounded.items():
                self._parameters[name].clamp_(lower, upper)

    def state(self) -> dict[str, Any]:
        """Moments and number of steps, for saving."""
        return deepcopy(self._adam.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._adam.load_state_dict(state)
        for group in self._adam.param_groups:
            group["foreach"] = self._on_gpu  # whatever the device that it was saved on
