"""An optimisation loop that streams: ask, tell, and a journal that survives the process."""

from bo_scale.decisions.by_name import AcquisitionKind, register_acquisition
from bo_scale.decisions.setting import Setting
from bo_scale.loop.history.records import Best, Step, TradeOff
from bo_scale.loop.optimizer import Optimizer
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.parameters import Choice, Fixed, Integer, Real
from bo_scale.loop.problem.space import Space
from bo_scale.models.catalogue import ModelKind, register_model

__all__ = [
    "AcquisitionKind",
    "Best",
    "Choice",
    "Fixed",
    "Integer",
    "Linear",
    "ModelKind",
    "Optimizer",
    "Real",
    "Setting",
    "Space",
    "Step",
    "TradeOff",
    "register_acquisition",
    "register_model",
]
