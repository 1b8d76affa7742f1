"""Run an attempt at a trial: the path at which jobs that wait in a queue since an earlier version look for the worker.

A script of the standard library alone, as the worker itself is.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("runners") / "worker.py"), run_name="__main__")
