"""`bo-scale loop …`: the run of an Optimizer from the command line. Everything it does, `Optimizer` does."""

from bo_scale.cli.command import Tool
from bo_scale.cli.loop.abandon import ABANDON
from bo_scale.cli.loop.ask import ASK
from bo_scale.cli.loop.best import BEST
from bo_scale.cli.loop.export import EXPORT
from bo_scale.cli.loop.forget import FORGET
from bo_scale.cli.loop.observations import OBSERVATIONS
from bo_scale.cli.loop.pending import PENDING
from bo_scale.cli.loop.revise import REVISE
from bo_scale.cli.loop.status import STATUS
from bo_scale.cli.loop.suspects import SUSPECTS
from bo_scale.cli.loop.tell import TELL

LOOP = Tool(
    "loop",
    "look at the run of an Optimizer, and go on with it",
    "Look at the run of an Optimizer by its journal, and go on with it.",
    (STATUS, BEST, PENDING, OBSERVATIONS, SUSPECTS, EXPORT, ASK, TELL, REVISE, FORGET, ABANDON),
)
