"""An optimisation loop that streams: ask, tell, and a journal that survives the process."""

from bo_scale.decisions.by_name import AcquisitionKind, register_acquisition
from bo_scale.decisions.setting import Fidelity, Setting
from bo_scale.loop.history.records import Best, Step, TradeOff
from bo_scale.loop.insight import CrossValidation, Importance, Prediction, Suspect
from bo_scale.loop.optimizer import Optimizer
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.parameters import Choice, Fixed, Integer, Real, When
from bo_scale.loop.problem.space import Space
from bo_scale.models.catalogue import ModelKind, register_model

__all__ = [
    "AcquisitionKind",
    "Best",
    "Choice",
    "CrossValidation",
    "Fidelity",
    "Fixed",
    "Importance",
    "Integer",
    "Linear",
    "ModelKind",
    "Optimizer",
    "Prediction",
    "Real",
    "Setting",
    "Space",
    "Step",
    "Suspect",
    "TradeOff",
    "When",
    "register_acquisition",
    "register_model",
]
