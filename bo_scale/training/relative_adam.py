"""Adam for learning as data come in: positive parameters move by factors, whatever their constraint."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor


class RelativeAdam:
    """Adam that steps in the logarithm of parameters that are positive themselves, and keeps all within their bounds.

    BoTorch's noise and lengthscales are such: their constraints transform nothing. A step of fixed size that suits a
    lengthscale of 0.5 would then be as large as a noise variance of 0.005 itself, and throw it about. GPyTorch's own
    constraints have a softplus, with which a small parameter moves by factors anyway.

    Args:
        parameters: What to learn, by name.
        bounds: Lower and upper bounds of some of them; None for none. A lower bound of 0 or more says positive.
        lr: Step size; of positive parameters the largest relative change, about.
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

    def step(self, loss: Callable[[], Tensor]) -> float:
        """One step, and the loss before it."""
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
        return value.item()

    def state(self) -> dict[str, Any]:
        """Moments and count of steps, for saving."""
        return deepcopy(self._adam.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue as the one that had this state."""
        self._adam.load_state_dict(state)
