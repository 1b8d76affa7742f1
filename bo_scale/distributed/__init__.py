"""Models of more rows than one process sums: statistics of shards, made by any executor, add up exactly."""

from bo_scale.distributed.accumulate import accumulate
from bo_scale.distributed.fit import FileModel, fit_many
from bo_scale.distributed.futures import Futures, RayExecutor
from bo_scale.distributed.predict import predict_many
from bo_scale.distributed.propose import Candidate, propose_rows
from bo_scale.distributed.shards import numeric_columns
from bo_scale.distributed.tables import Columns
from bo_scale.models.decoupled_sums import DecoupledStatistics
from bo_scale.models.shell.partial_statistics import PartialStatistics

__all__ = [
    "Candidate",
    "Columns",
    "DecoupledStatistics",
    "FileModel",
    "Futures",
    "PartialStatistics",
    "RayExecutor",
    "accumulate",
    "fit_many",
    "numeric_columns",
    "predict_many",
    "propose_rows",
]
