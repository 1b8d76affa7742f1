"""Models that keep the exact kernel and see the data through functionals of f."""

from abc import abstractmethod
from typing import Any

from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.gp.function_space.observations import Observations
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.models.shell.kernels import OutputKernel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows


class FunctionSpaceModel(ScalableModel):
    """A model with mean μ + b_μ(x)ᵀα and covariance k − b_Σ(x)ᵀ C b_Σ(x'), for any kernel. Abstract.

    The base process holds the first rows: those of the constructor or of the last fit. Later rows condition it one by
    one, exactly.
    """

    covar_module: Kernel
    _joined: int
    """Number of rows in the base process."""
    rows_digest: Int[Tensor, ""]
    """Digest of these rows: a buffer that reveals whether a loaded state was made for other rows."""

    @abstractmethod
    def _base_process(self, output: int) -> FunctionSpacePosterior:
        """Return the process of one output given the first `_joined` rows. Called without gradients."""

    @abstractmethod
    def _restored_process(self, output: int, saved: dict[str, Tensor]) -> FunctionSpacePosterior:
        """Return the same process from the tensors of its `state()`."""

    def _kernel(self, output: int, frozen: bool = False) -> OutputKernel:
        return OutputKernel.of(self.covar_module, output, self._num_outputs, frozen)

    @property
    @override
    def num_observations(self) -> int:
        """The number of observations in the model."""
        return self._kept_rows.count

    @property
    def _kept_rows(self) -> Rows:
        assert self._rows is not None, "function-space models keep their rows"
        return self._rows

    @override
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q q"]:
        return self._kernel(output)(X, X)

    def _observations(self, output: int, frozen: bool = False) -> Observations:
        """Return all rows as one output sees them, at the current hyperparameters."""
        X, Y, D = self._transformed_rows()
        residual, scale = Y[:, output] - self._constants()[output], self._noise_scale()[output]
        return Observations(self._kernel(output, frozen), X, residual, D[:, output], scale)

    def _all_observations(self) -> list[Observations]:
        return [self._observations(j) for j in range(self._num_outputs)]

    @override
    def _infer(self, theta: Float[Tensor, " h"]) -> FunctionSpaceInference:
        bases = tuple(self._base_process(j) for j in range(self._num_outputs))
        base = FunctionSpaceInference(theta, self._noise_scale().detach().clone(), bases)
        return base.observe(*(values[self._joined :] for values in self._transformed_rows()))

    def _joined_digest(self) -> Int[Tensor, ""]:
        """Return what `rows_digest` is if what was made from the first `_joined` rows was made from their inputs."""
        return self._kept_rows.digest(self._joined).to(self._device)

    @override
    def _saved_inference(self) -> dict[str, Any]:
        return {**self.inference.state(), "joined": self._joined}

    @override
    def _restored_inference(self, saved: dict[str, Any]) -> FunctionSpaceInference:
        self._joined = saved["joined"]
        bases = tuple(self._restored_process(j, state["base"]) for j, state in enumerate(saved["processes"]))
        found = FunctionSpaceInference(self._hyperparameters(), self._noise_scale().detach().clone(), bases)
        return found.with_observed([state["observed"] for state in saved["processes"]])
