"""Models of more rows than one process sums: statistics of shards, made by any executor, add up exactly."""

from bo_scale.distributed.accumulate import accumulate
from bo_scale.distributed.futures import Futures, RayExecutor
from bo_scale.distributed.predict import predict_many
from bo_scale.distributed.shards import Columns
from bo_scale.models.shell.partial_statistics import PartialStatistics

__all__ = ["Columns", "Futures", "PartialStatistics", "RayExecutor", "accumulate", "predict_many"]
