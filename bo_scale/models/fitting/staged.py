"""Models that are fitted in stages of their own, behind BoTorch's `fit_gpytorch_mll`."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botorch.exceptions.errors import ModelFittingError, UnsupportedError
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError

from bo_scale.errors import FitWarning
from bo_scale.models.fitting.evidence import restored_on_failure
from bo_scale.models.shell.model import ScalableModel


class FittedInStages(ScalableModel):
    """A model that `fit_gpytorch_mll`, ModelListGP and Ax fit by `_fit_stages`. Abstract."""

    @abstractmethod
    def _fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None) -> None:
        """Fit the model, which is in train mode, in place."""

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        """What `fit_gpytorch_mll` calls: the stages of the class. If one fails, hyperparameters are as they were.

        Args:
            mll: Of this model; leaves in eval mode.
            closure: Refused: stages have losses of their own.
            closure_kwargs: Refused too.
            optimizer_kwargs: Of L-BFGS, in every stage that is fitted by it.
            **kwargs: Ignored with a warning.

        Raises:
            UnsupportedError: for a closure, or a model with fantasies.
            ModelFittingError: if a stage ends without a result.
        """
        if closure is not None or closure_kwargs:
            raise UnsupportedError(
                f"closure: {type(self).__name__} is fitted in stages; give optimizer_kwargs to L-BFGS instead."
            )
        if kwargs:
            warnings.warn(
                f"{type(self).__name__} is fitted in stages of its own; {sorted(kwargs)} ignored.",
                FitWarning,
                stacklevel=3,
            )
        self._require_fittable()
        mll.train()
        with restored_on_failure(mll.parameters()), self._undone_on_failure():
            try:
                self._fit_stages(mll, optimizer_kwargs)
            except NotPSDError as error:
                raise ModelFittingError(f"{type(self).__name__} could not be fitted: {error}") from error
        return mll.eval()

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        """Whatever is raised within passes on, and the model has the parameters and buffers of its own from before."""
        parameters = dict(self._parameters)
        buffers = {name: None if b is None else b.clone() for name, b in self._buffers.items()}
        joined = self.__dict__.get("_joined")
        try:
            yield
        except BaseException:
            self._parameters, self._buffers = parameters, buffers
            if joined is not None:
                self._joined = joined
            self._processes = None
            raise
