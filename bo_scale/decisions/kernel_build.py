"""Clear away the lock of a killed process that was compiling BoTorch's kernel of hypervolumes."""

import logging
import os
import time
import warnings
from functools import cache
from pathlib import Path

from torch.utils.cpp_extension import get_default_build_root

from bo_scale.errors import BoScaleWarning

logger = logging.getLogger("bo_scale")
EXTENSION = "logei_fused_ext"
PATIENCE = 300.0
"""Seconds a build may take; it takes 50 on a slow core."""


@cache
def await_kernel_build() -> None:
    """Wait for another process that builds BoTorch's kernel of hypervolumes, as long as it can be alive.

    torch locks a build by a file that a killed process leaves behind, and then waits for ever. One that is older than
    `PATIENCE` is removed, with a warning. Only the first call of a process looks.
    """
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in [*root.glob(f"{EXTENSION}/lock"), *root.glob(f"*/{EXTENSION}/lock")]:
        _await(lock)


def _await(lock: Path) -> None:
    try:
        if time.time() - lock.stat().st_mtime < PATIENCE:
            logger.warning("Another process is building BoTorch's hypervolume kernel (%s). Waiting for it.", lock)
        while time.time() - lock.stat().st_mtime < PATIENCE:
            time.sleep(0.1)
        lock.unlink()
    except FileNotFoundError:
        return  # the other process is done
    except OSError as error:
        remedy = f"could not be removed ({error}); remove it yourself, or BoTorch may wait for ever."
    else:
        remedy = "was removed: the process that held it must have been killed."
    message = f"The lock {lock} of a build of BoTorch's hypervolume kernel {remedy}"
    warnings.warn(message, BoScaleWarning, stacklevel=3)
