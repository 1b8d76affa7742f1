"""Keep the events of a loop on disk, and continue from them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bo_scale.errors import JournalError
from bo_scale.loop.history.history import History
from bo_scale.loop.history.journal import JOURNAL, Event, Journal
from bo_scale.loop.surrogate.chain import SurrogateChain


class Persistence:
    """The journal of a loop and the snapshots of its models. Without a folder it keeps nothing.

    Args:
        path: Folder of the journal, or None.

    Raises:
        JournalLockedError: if another process works on the path.
        JournalError: if a line before the last cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._journal = None if path is None else Journal(path)

    @staticmethod
    def is_new(path: str | os.PathLike[str] | None) -> bool:
        """Return whether there is no journal at a path yet."""
        return path is None or not (Path(path) / JOURNAL).exists()

    @property
    def begun(self) -> Event:
        """The first event of a journal that is resumed, by which it recognises its loop; empty for a new one."""
        return self._journal.events[0] if self._journal is not None and self._journal.events else {}

    @property
    def checksum(self) -> int:
        """The checksum of all that was written; 0 without a journal."""
        return 0 if self._journal is None else self._journal.checksum

    def resume(self, begin: Event, history: History, chain: SurrogateChain, num_initial: int) -> None:
        """Replay the journal into an empty history and the chain of its models, or begin the journal.

        Args:
            begin: The first event.
            history: A history without events.
            chain: A chain without models.
            num_initial: Asks with fewer observations had no model.

        Raises:
            JournalError: if the journal is of another loop, or holds an event that cannot be applied.
        """
        if self._journal is None:
            return
        try:
            if self._journal.events:
                checksums = self._replay(self._journal, begin, history)
                asks = [(step.ask, step.n) for step in history.steps if step.n >= num_initial]
                chain.resume(self._journal.folder, checksums, asks)
            else:
                self._journal.append({**begin, "torch": torch.__version__})
        except BaseException:
            self.close()
            raise

    def _replay(self, journal: Journal, begin: Event, history: History) -> dict[int, int]:
        """Apply the events of a journal; return its checksums after each ask."""
        self._require_same(journal, begin)
        checksums = {}
        for number, event in enumerate(journal.events[1:], start=2):
            try:
                history.replay(event)
            except (KeyError, TypeError, ValueError) as error:
                raise JournalError(
                    f"{journal.folder}: line {number} is not an event of this journal ({error!r}). Restore the "
                    f"journal from a copy."
                ) from error
            if event["event"] == "ask":
                checksums[event["ask"]] = journal.checksums[number - 1]
        journal.events.clear()
        journal.checksums.clear()
        return checksums

    def _require_same(self, journal: Journal, begin: Event) -> None:
        first = journal.events[0]
        if first.get("event") != "begin":
            raise JournalError(f"{journal.folder}: line 1 does not begin a journal. Restore the journal from a copy.")
        differing = [f"{k}: {first.get(k)!r}, now {v!r}" for k, v in begin.items() if first.get(k) != v]
        if differing:
            raise JournalError(
                f"{journal.folder}: begun with other arguments ({'; '.join(differing)}). Use those, or another path."
            )

    @contextmanager
    def written(self, event: Event) -> Iterator[None]:
        """Write an event; within the block the caller applies it.

        If the block fails the journal is closed, as it knows of more than the loop does.
        """
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
