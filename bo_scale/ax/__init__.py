"""Models and runners for Ax experiments. Import this before loading a saved one: it registers them with Ax."""

from bo_scale.errors import MissingDependencyError

try:
    import ax  # noqa: F401
except ImportError as error:
    raise MissingDependencyError('bo_scale.ax needs ax-platform: pip install "bo_scale[ax]"') from error

from bo_scale.ax.registry import register
from bo_scale.ax.runners.executor import ExecutorRunner
from bo_scale.ax.runners.local import LocalRunner
from bo_scale.ax.runners.results import ResultMetric, attach
from bo_scale.ax.runners.slurm import SlurmRunner
from bo_scale.ax.surrogates.automatic import Automatic
from bo_scale.ax.surrogates.strategy import TRANSFORMS, generation_strategy, model_config, streaming
from bo_scale.ax.surrogates.stream import Stream
from bo_scale.ax.transfer import client_of, optimizer_from

register()

__all__ = [
    "TRANSFORMS",
    "Automatic",
    "ExecutorRunner",
    "LocalRunner",
    "ResultMetric",
    "SlurmRunner",
    "Stream",
    "attach",
    "client_of",
    "generation_strategy",
    "model_config",
    "optimizer_from",
    "streaming",
]
