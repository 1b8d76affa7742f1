"""Adam for online learning: positive parameters move by factors, whatever their constraint."""

from collections.abc import Callable, Mapping
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
        self._adam = torch.optim.Adam([self._positive.get(name, p) for name, p in parameters.items()], lr=lr)

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """Take one step and return the loss before it."""
        for p in self._parameters.values():
            p.grad = None
        value = loss()
        value.backward()
        with torch.no_grad():
            for name, logarithm in self._positive.items():
                p = self._parameters[name]
                logarithm.copy_(p.log())
                logarithm.grad = None if p.grad is None else p.grad * p
        self._adam.step()
        with torch.no_grad():
            for name, logarithm in self._positive.items():
                self._parameters[name].copy_(logarithm.exp())
            for name, (lower, upper) in self._bounded.items():
                self._parameters[name].clamp_(lower, upper)
        return value.detach()

    def state(self) -> dict[str, Any]:
        """Moments and number of steps, for saving."""
        return deepcopy(self._adam.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._adam.load_state_dict(state)
