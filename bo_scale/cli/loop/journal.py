"""Runs, opened by the folder of their journal: to read, or to go on."""

from pathlib import Path

from bo_scale.errors import InvalidArgumentError, JournalLockedError
from bo_scale.loop import Optimizer
from bo_scale.loop.settings import Settings


def reading(path: Path) -> Optimizer:
    """Open a run to look at it, also while another process goes on with it.

    Raises:
        JournalError: if there is no journal, or it is damaged.
    """
    return Optimizer.open(str(path), mode="r")


def writing(path: Path) -> Optimizer:
    """Open a run to go on with it.

    Raises:
        JournalLockedError: if another process holds it.
        JournalError: if there is no journal, or it is damaged.
    """
    try:
        return Optimizer.open(str(path))
    except JournalLockedError as error:
        raise JournalLockedError(
            f"path={str(path)!r}: another process holds this journal. Wait until it ends, or call close() on its "
            f"Optimizer. Meanwhile `bo-scale loop status`, `best`, `pending`, `observations`, `suspects` and `export` "
            f"work."
        ) from error


def what_is_missing(optimizer: Optimizer) -> str | None:
    """Return what a run needs that a journal cannot hold, and the remedy; None if nothing is missing."""
    try:
        Settings.read(optimizer.history.settings).require_given("model")
    except InvalidArgumentError as error:
        return str(error)
    return None
