"""Models that keep the kernel as it is, and see the data through functionals of f."""

from abc import abstractmethod
from typing import Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.models.shell.kernels import OutputKernel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows


class FunctionSpaceModel(ScalableModel):
    """Mean μ + b_μ(x)ᵀα and covariance k − b_Σ(x)ᵀ C b_Σ(x'), with any kernel. Abstract.

    The first rows, those of the constructor or of the last fit, are in the base process; rows that came after them
    condition it one by one, exactly.
    """

    covar_module: Kernel
    _joined: int
    """How many rows the base process has seen."""
    rows_digest: Int[Tensor, ""]
    """Of these rows: a buffer, by which a state that was made for others is recognised."""

    @abstractmethod
    def _base_process(self, output: int) -> FunctionSpacePosterior:
        """The process of one output given the first `_joined` rows. Called without gradients."""

    @abstractmethod
    def _restored_process(self, output: int, saved: dict[str, Tensor]) -> FunctionSpacePosterior:
        """The same from the tensors of its `state()`."""

    def _kernel(self, output: int, frozen: bool = False) -> OutputKernel:
        return OutputKernel.of(self.covar_module, output, self._num_outputs, frozen)

    @property
    @override
    def num_observations(self) -> int:
        """Observations in the model."""
        assert self._rows is not None, "function-space models keep their rows"
        return self._rows.count

    @override
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q q"]:
        return self._kernel(output)(X, X)

    def _transformed_rows(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Inputs after their transform, targets and D."""
        rows = self._rows
        assert rows is not None, "function-space models keep their rows"
        X = rows.X if not hasattr(self, "input_transform") else self.input_transform.preprocess_transform(rows.X)
        return X.to(torch.float64), rows.Y.to(torch.float64), rows.D.to(torch.float64)

    @override
    def _build_processes(self) -> list[PosteriorProcess]:
        processes: list[PosteriorProcess] = [self._base_process(j) for j in range(self._num_outputs)]
        X, Y, D = (values[self._joined :] for values in self._transformed_rows())
        return self._with_units(processes, X, Y, D)

    def _with_units(
        self,
        processes: list[PosteriorProcess],
        X: Float[Tensor, "q d"],
        Y: Float[Tensor, "q m"],
        D: Float[Tensor, "q m"],
    ) -> list[PosteriorProcess]:
        """Processes that have also seen these rows: O(r q) for rank r, which grows by q."""
        if len(X) == 0:
            return processes
        noise = self._noise_scale() * D
        return [
            process.extended(X, Y[:, j], noise[:, j])
            if isinstance(process, Conditioned)
            else condition(process, X, Y[:, j], noise[:, j])
            for j, process in enumerate(processes)
        ]

    @override
    def _absorb(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> None:
        if self._processes is not None:
            self._processes = self._with_units(self._processes, X, Y, D)

    @override
    def _forget_data(self) -> None:
        self._joined = self.num_observations
        self._processes = None

    @override
    def _move(self, device: torch.device) -> None:
        """Nothing but rows, parameters and processes."""

    @override
    def _subset_derived(self, outputs: list[int]) -> None:
        """Nothing but rows, parameters and processes."""

    @override
    def _derived(self) -> dict[str, Any]:
        saved = []
        for process in self._current_processes():
            base = process.base if isinstance(process, Conditioned) else process
            assert isinstance(base, FunctionSpacePosterior)
            observed = process.state() if isinstance(process, Conditioned) else {}
            saved.append({"base": base.state(), "observed": observed})
        return {"joined": self._joined, "processes": saved}

    @override
    def _restore(self, state: dict[str, Tensor], rows: Rows | None, derived: dict[str, Any]) -> None:
        self.rows_digest = state["rows_digest"].clone()  # what was made for the rows in the state comes with them
        super()._restore(state, rows, derived)

    @override
    def _restore_derived(self, saved: dict[str, Any]) -> None:
        self._joined = saved["joined"]
        self._processes = []
        for j, state in enumerate(saved["processes"]):
            base = self._restored_process(j, state["base"])
            observed = state["observed"]
            self._processes.append(Conditioned.restored(base, observed) if observed else base)
