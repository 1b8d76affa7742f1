"""Register the package's classes with Ax's storage, so that experiments that use them can be saved and loaded."""

from ax.storage.botorch_modular_registry import (
    register_acquisition,
    register_acquisition_function,
    register_kernel,
    register_model,
)
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
from ax.storage.metric_registry import CORE_METRIC_REGISTRY, register_metrics
from ax.storage.runner_registry import CORE_RUNNER_REGISTRY, register_runners
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
    construct_inputs_NIPV,
)

import bo_scale.ax.surrogates.dispatch  # noqa: F401  (tells Ax's dispatchers)
from bo_scale.ax.runners.executor import ExecutorRunner
from bo_scale.ax.runners.local import LocalRunner
from bo_scale.ax.runners.results import ResultMetric
from bo_scale.ax.runners.slurm import SlurmRunner
from bo_scale.ax.surrogates.acquisition import StreamingAcquisition
from bo_scale.ax.surrogates.automatic import Automatic
from bo_scale.decisions.acquisition import qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance
from bo_scale.models.catalogue import MODELS
from bo_scale.models.shell.kernels import ProductMaternKernel


def register() -> None:
    """Register every model, kernel, acquisition function, runner and metric by its class's name; twice is once."""
    for kind in MODELS.values():
        register_model(kind.model)
    register_model(Automatic)  # type: ignore[type-abstract]
    register_kernel(ProductMaternKernel)
    register_acquisition(StreamingAcquisition)
    if qNegIntegratedPosteriorVariance not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
        acqf_input_constructor(qNegIntegratedPosteriorVariance)(construct_inputs_NIPV)
    for acquisition in (qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance):
        register_acquisition_function(acquisition)
    _register_runs()


def _register_runs() -> None:
    """Add runners and metrics to the registries that Ax's clients use; Ax's own calls only return copies."""
    runners, encoders, decoders = register_runners({each: None for each in (ExecutorRunner, LocalRunner, SlurmRunner)})
    metrics, encoders, decoders = register_metrics({ResultMetric: None}, encoders, decoders)
    CORE_RUNNER_REGISTRY.update(runners)
    CORE_METRIC_REGISTRY.update(metrics)
    CORE_ENCODER_REGISTRY.update(encoders)
    CORE_DECODER_REGISTRY.update(decoders)
