"""The command line: `bo-scale`."""

from bo_scale.cli.program import main

__all__ = ["main"]
