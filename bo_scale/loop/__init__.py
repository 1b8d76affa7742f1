"""An optimisation loop that streams: ask, tell, and a journal that survives the process."""

from bo_scale.loop.acquisitions import Setting
from bo_scale.loop.linear import Linear
from bo_scale.loop.optimizer import Optimizer
from bo_scale.loop.parameters import Choice, Fixed, Integer, Real
from bo_scale.loop.records import Best, Step, TradeOff
from bo_scale.loop.space import Space

__all__ = ["Best", "Choice", "Fixed", "Integer", "Linear", "Optimizer", "Real", "Setting", "Space", "Step", "TradeOff"]
