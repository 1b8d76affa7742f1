"""Keep the events of a loop on disk, and continue from them."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bo_scale.errors import JournalError
from bo_scale.files import at_home, leftovers
from bo_scale.loop.history.history import History
from bo_scale.loop.history.journal import FORMAT, JOURNAL, Event, Journal, now
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Space
from bo_scale.loop.settings import normal
from bo_scale.loop.surrogate.chain import SNAPSHOT, SurrogateChain

CENTRE = "centre"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the search for circles of objects: events are many objects without any, and it takes half of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class Persistence:
    """The journal of a loop and the snapshots of its models. Without a folder it keeps nothing.

    Args:
        path: Folder of the journal, or None.
        read_only: Whether to read it only, while another process may write.

    Raises:
        JournalLockedError: if another process works on the path.
        JournalError: if a line before the last cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None, read_only: bool = False) -> None:
        with _uncollected():
            self._journal = None if path is None else Journal(at_home(path), read_only)
        self._checksums: dict[int, int] = {}
        self.read_only = read_only
        if self._journal is not None and not read_only:
            for partial in leftovers(self._journal.folder / SNAPSHOT):
                partial.unlink()

    @staticmethod
    def is_new(path: str | os.PathLike[str] | None) -> bool:
        """Return whether there is no journal at a path yet."""
        return path is None or not (at_home(path) / JOURNAL).exists()

    @property
    def begun(self) -> bool:
        """True if there are events to resume."""
        return self._journal is not None and len(self._journal.events) > 0

    @property
    def folder(self) -> Path | None:
        """The folder, or None."""
        return None if self._journal is None else self._journal.folder

    @property
    def checksum(self) -> int:
        """The checksum of all that was written; 0 without a journal."""
        return 0 if self._journal is None else self._journal.checksum

    def begin(self, space: Space, outcomes: Outcomes, settings: Mapping[str, Any], tolerance: float) -> History:
        """Return an empty history, and begin the journal."""
        event: Event = {"event": "begin", "format": FORMAT, "time": now(), "torch": torch.__version__}
        event |= {"space": space.describe(), "objective": outcomes.describe(), **settings, "first": CENTRE}
        event["match_tolerance"] = tolerance
        if self._journal is not None:
            try:
                self._journal.append(event)
            except BaseException:
                self.close()
                raise
        return History(space, outcomes, tolerance, settings, centre_first=True)

    def resume(self, tolerance: float | None, default: float) -> History:
        """Return the history of all events of the journal.

        Args:
            tolerance: Points within this share of the range of each other are the same; None for that of the journal.
            default: That of a journal that has none.

        Raises:
            JournalError: if it holds an event that cannot be applied.
        """
        assert self._journal is not None, "there is a journal"
        journal = self._journal
        first = journal.events[0]
        if first.get("event") != "begin":
            raise JournalError(f"{journal.folder}: line 1 does not begin a journal. Restore the journal from a copy.")
        line = 1
        try:
            space, outcomes = Space.described(first["space"]), Outcomes.described(first["objective"])
            share = first.get("match_tolerance", default) if tolerance is None else tolerance
            history = History(space, outcomes, share, normal(first), first.get("first") == CENTRE)
            line = 2
            with _uncollected():
                for event in history.replay_all(journal.events[1:]):
                    if event["event"] == "ask":
                        self._checksums[event["ask"]] = journal.checksums[line - 1]
                    line += 1
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(
                f"{journal.folder}: line {line} is not an event of this journal ({error!r}). Restore the journal from "
                f"a copy. Or it was written by a newer bo_scale: upgrade."
            ) from error
        journal.events.clear()
        journal.checksums.clear()
        return history

    def continue_chain(self, chain: SurrogateChain, history: History, num_initial: int) -> None:
        """Let a chain go on from the models of the asks since the last correction or change."""
        if self._journal is not None:
            asks = [(step.ask, step.n) for step in history.steps[history.epoch :] if step.n >= num_initial]
            chain.resume(self._journal.folder, self._checksums, asks)

    @contextmanager
    def written(self, event: Event) -> Iterator[None]:
        """Write an event, with its time; within the block the caller applies it.

        If the block fails the journal is closed, as it knows of more than the loop does.
        """
        event["time"] = now()
        if self._journal is not None:
            self._journal.append(event)
        try:
            yield
        except BaseException:
            self.close()
            raise

    def keep(self, chain: SurrogateChain, ask: int, fitted: bool, checksum: int) -> None:
        """Write a snapshot of the model after a fit, and now and then; see `SurrogateChain.keep`."""
        if self._journal is not None:
            chain.keep(self._journal.folder, ask, fitted, checksum)

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()
