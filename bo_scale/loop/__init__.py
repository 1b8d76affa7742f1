"""An optimisation loop that streams: ask, tell, and a journal that survives the process."""

from bo_scale.loop.optimizer import Optimizer
from bo_scale.loop.proposals import Setting
from bo_scale.loop.records import Best, Step
from bo_scale.loop.space import Space

__all__ = ["Best", "Optimizer", "Setting", "Space", "Step"]
