"""Inference of a function-space model: a base process, conditioned on the rows that arrived later."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.function_space.local_scale import LocalScale
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.inference import Inference
from bo_scale.gp.processes import PosteriorProcess


@dataclass(frozen=True)
class FunctionSpaceInference(Inference):
    """Posterior processes of every output at some hyperparameters.

    Attributes:
        hyperparameters: Their values in one vector.
        scale: σ² of every output.
        every: Posterior processes of all outputs.
    """

    hyperparameters: Float[Tensor, " h"]
    scale: Float[Tensor, " m"]
    every: tuple[PosteriorProcess, ...]

    @property
    @override
    def theta(self) -> Float[Tensor, " h"]:
        return self.hyperparameters

    @property
    @override
    def noise(self) -> Float[Tensor, " m"]:
        return self.scale

    @property
    @override
    def processes(self) -> tuple[PosteriorProcess, ...]:
        return self.every

    @override
    def observe(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]
    ) -> "FunctionSpaceInference":
        """Observe rows, each as one more unit action: O(r q) for rank r, which grows by q."""
        if len(X) == 0:
            return self
        noise = [self.noise_of(j, D[:, j], X) for j in range(len(self.every))]
        return replace(
            self,
            every=tuple(
                process.extended(X, Y[:, j], noise[j])
                if isinstance(process, Conditioned)
                else condition(process, X, Y[:, j], noise[j])
                for j, process in enumerate(self.every)
            ),
        )

    @override
    def local_scale(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        local = self.local(output)
        return None if local is None else local(X)

    def local(self, output: int) -> LocalScale | None:
        """Factor of the variances of an output, as a function; None for one."""
        return self._base(output).local

    @property
    @override
    def scales_locally(self) -> bool:
        return any(self.local(j) is not None for j in range(len(self.every)))

    def _base(self, output: int) -> FunctionSpacePosterior:
        process = self.every[output]
        base = process.base if isinstance(process, Conditioned) else process
        assert isinstance(base, FunctionSpacePosterior), "observed rows are one level above the base"
        return base

    @override
    def outputs(self, indices: list[int]) -> "FunctionSpaceInference":
        return replace(self, scale=self.scale[indices], every=tuple(self.every[j] for j in indices))

    @override
    def at_theta(self, theta: Float[Tensor, " h"]) -> "FunctionSpaceInference":
        return replace(self, hyperparameters=theta)

    @override
    def state(self) -> dict[str, Any]:
        saved = []
        for j, process in enumerate(self.every):
            observed = process.state() if isinstance(process, Conditioned) else {}
            saved.append({"base": self._base(j).state(), "observed": observed})
        return {"processes": saved}

    def with_observed(self, states: Sequence[dict[str, Tensor]]) -> "FunctionSpaceInference":
        """Condition the base processes by saved states. An empty state leaves its process unchanged."""
        every: list[PosteriorProcess] = []
        for base, observed in zip(self.every, states, strict=True):
            assert isinstance(base, FunctionSpacePosterior), "a base process"
            every.append(Conditioned.restored(base, observed) if observed else base)
        return replace(self, every=tuple(every))
