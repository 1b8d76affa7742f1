"""What Ax's storage must know to save and load an experiment that uses our classes."""

from ax.storage.botorch_modular_registry import (
    register_acquisition,
    register_acquisition_function,
    register_kernel,
    register_model,
)
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
    construct_inputs_NIPV,
)

import bo_scale.ax.dispatch  # noqa: F401  (tells Ax's dispatchers)
from bo_scale.acquisition import qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance
from bo_scale.ax.acquisition import StreamingAcquisition
from bo_scale.ax.automatic import Automatic
from bo_scale.models.kernels import ProductMaternKernel
from bo_scale.models.presets import MODELS


def register() -> None:
    """Every model, kernel and acquisition function, under its class's name. Doing so twice does nothing more."""
    for model in MODELS.values():
        register_model(model)
    register_model(Automatic)  # type: ignore[type-abstract]
    register_kernel(ProductMaternKernel)
    register_acquisition(StreamingAcquisition)
    if qNegIntegratedPosteriorVariance not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
        acqf_input_constructor(qNegIntegratedPosteriorVariance)(construct_inputs_NIPV)
    for acquisition in (qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance):
        register_acquisition_function(acquisition)
