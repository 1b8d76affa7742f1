"""Inference: a frozen posterior of a model, given its data and its hyperparameters.

More data or other hyperparameters give another object, so no cache can be stale. Each family has its own:
`weight_space.inference` and `function_space.inference`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import WrongTypeError
from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.moving import Movable
from bo_scale.gp.processes import PosteriorProcess


class Inference(Movable, ABC):
    """Posterior processes of a model's outputs, with its noise.

    Attributes:
        theta: Hyperparameters of the inference in one vector, which the model compares with its own.
        noise: σ² of every output, as inference uses it. An observation of relative noise D has the noise variance σ²D.
    """

    @property
    @abstractmethod
    def theta(self) -> Float[Tensor, " h"]:
        """Hyperparameters of this inference, in one vector."""

    @property
    @abstractmethod
    def noise(self) -> Float[Tensor, " m"]:
        """σ² of every output."""

    @property
    @abstractmethod
    def processes(self) -> tuple[PosteriorProcess, ...]:
        """Posterior of every output."""

    @property
    def samples_shape(self) -> torch.Size:
        """Last batch dimension of every posterior: empty, or S for S samples of the hyperparameters."""
        return torch.Size([])

    @property
    def sampled_noise(self) -> Float[Tensor, " s"] | None:
        """σ² of every sample; None if the noise is not sampled."""
        return None

    @abstractmethod
    def observe(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> "Inference":
        """Observe more rows: transformed inputs and targets, relative noise variances."""

    @abstractmethod
    def outputs(self, indices: list[int]) -> "Inference":
        """Inference of some outputs, in this order."""

    @abstractmethod
    def at_theta(self, theta: Float[Tensor, " h"]) -> "Inference":
        """The same inference for a model with another vector of hyperparameters, for example of fewer outputs."""

    def settled(self) -> "Inference":
        """The same inference without references to rows that a model keeps."""
        return self

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers, from which a model with equal hyperparameters and rows continues bit for bit."""

    def extra_variance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        """Variance of white noise e(x) that predictions add to the process, shared by equal rows; None for none."""
        return None

    def local_scale(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        """Factor s(x) that variances have at points, noise included, for errors of left-out rows; None for one."""
        return None

    @property
    def scales_locally(self) -> bool:
        """True if some output has such a factor."""
        return False

    def noise_of(self, output: int, D: Float[Tensor, "*b r"], X: Float[Tensor, "*e q d"]) -> Float[Tensor, "*c q"]:
        """Noise variances of q new observations, from a relative noise D for each or one for all."""
        noise, local = self.noise[output].detach() * D, self.local_scale(X, output)
        return noise.expand(*D.shape[:-1], X.shape[-2]) if local is None else noise * local

    def fantasised(
        self, X: Float[Tensor, "*b q d"], Y: Float[Tensor, "*f q m"], D: Float[Tensor, "*e r m"]
    ) -> "Fantasised":
        """Condition the posterior on fantasies, values not observed yet, by Schur complement."""
        processes = tuple(
            self.given(process, X, Y[..., j], self.noise_of(j, D[..., j], X))
            for j, process in enumerate(self.processes)
        )
        return Fantasised(self, processes)

    def given(
        self,
        process: PosteriorProcess,
        X: Float[Tensor, "*b q d"],
        y: Float[Tensor, "*f q"],
        noise: Float[Tensor, "*n q"],
    ) -> Conditioned:
        """Condition one process on fantasies, as a new level, since observed rows have no batch shape."""
        return condition(process, X, y, noise)


@dataclass(frozen=True)
class Fantasised(Inference):
    """An inference whose processes are conditioned on fantasies. It does not follow later changes of hyperparameters.

    Attributes:
        base: Inference before any fantasies.
        conditioned: Conditioned processes.
    """

    base: Inference
    conditioned: tuple[Conditioned, ...]

    @property
    @override
    def theta(self) -> Float[Tensor, " h"]:
        return self.base.theta

    @property
    @override
    def noise(self) -> Float[Tensor, " m"]:
        return self.base.noise

    @property
    @override
    def processes(self) -> tuple[PosteriorProcess, ...]:
        return self.conditioned

    @property
    @override
    def samples_shape(self) -> torch.Size:
        return self.base.samples_shape

    @property
    @override
    def sampled_noise(self) -> Float[Tensor, " s"] | None:
        return self.base.sampled_noise

    @override
    def extra_variance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        return self.base.extra_variance(X, output)

    @override
    def local_scale(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        return self.base.local_scale(X, output)

    @property
    @override
    def scales_locally(self) -> bool:
        return self.base.scales_locally

    @override
    def noise_of(self, output: int, D: Float[Tensor, "*b r"], X: Float[Tensor, "*e q d"]) -> Float[Tensor, "*c q"]:
        return self.base.noise_of(output, D, X)

    @override
    def given(
        self,
        process: PosteriorProcess,
        X: Float[Tensor, "*b q d"],
        y: Float[Tensor, "*f q"],
        noise: Float[Tensor, "*n q"],
    ) -> Conditioned:
        assert isinstance(process, Conditioned), "fantasies condition every process"
        return process.extended(X, y, noise)

    @override
    def fantasised(
        self, X: Float[Tensor, "*b q d"], Y: Float[Tensor, "*f q m"], D: Float[Tensor, "*e r m"]
    ) -> "Fantasised":
        return replace(super().fantasised(X, Y, D), base=self.base)

    @override
    def observe(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> "Fantasised":
        return self.fantasised(X, Y, D)

    @override
    def outputs(self, indices: list[int]) -> "Fantasised":
        return Fantasised(self.base.outputs(indices), tuple(self.conditioned[j] for j in indices))

    @override
    def at_theta(self, theta: Float[Tensor, " h"]) -> "Fantasised":
        return Fantasised(self.base.at_theta(theta), self.conditioned)

    @override
    def state(self) -> dict[str, Any]:
        raise WrongTypeError("fantasies are not saved; save the model that they were made from.")
