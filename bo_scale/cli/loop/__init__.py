"""`bo-scale loop …`: the run of an Optimizer from the command line. Everything it does, `Optimizer` does."""

from bo_scale.cli.command import Tool
from bo_scale.cli.loop.commands import COMMANDS

LOOP = Tool(
    "loop",
    "look at the run of an Optimizer, and go on with it",
    "Look at the run of an Optimizer by its journal, and go on with it.",
    COMMANDS,
)
