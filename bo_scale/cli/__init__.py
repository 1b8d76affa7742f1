"""The command line: `bo-scale`."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code, 130 after Ctrl-C also while packages are still imported."""
    try:
        from bo_scale.cli.program import main as run

        return run(arguments)
    except KeyboardInterrupt:
        print("Interrupted before anything was written.", file=sys.stderr)
        return 130
