"""The surrogates of successive asks, each made from the one before, and their snapshots on disk."""

import warnings
from pathlib import Path

import torch
from tqdm.auto import tqdm

from bo_scale.errors import InvalidDataError, JournalError, JournalWarning
from bo_scale.loop.history.observations import Observations
from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder
from bo_scale.loop.surrogate.per_outcome import SeveralBuilder
from bo_scale.models.shell.storage import write_atomically

SNAPSHOT = "snapshot.pt"
SNAPSHOT_ASKS = 256
"""A snapshot is taken after each fit, and after so many asks without one."""


class SurrogateChain:
    """The surrogate of each ask: a function of that of the ask before, the data and the number of the ask.

    A surrogate that is looked at between asks branches off; the next ask uses it if it would make the same.

    Args:
        builder: Makes a surrogate from the one before.
        told: The observations.
    """

    def __init__(self, builder: SurrogateBuilder | SeveralBuilder, told: Observations) -> None:
        self._builder = builder
        self._told = told
        self._asked: Surrogate | None = None
        self._latest: Surrogate | None = None
        self._draft: tuple[int, int, Surrogate] | None = None
        self._kept = 0
        self._resume: tuple[Path, dict[int, int], list[tuple[int, int]]] | None = None

    def advance(self, ask: int, n: int) -> tuple[Surrogate, bool]:
        """Return the surrogate of the first n observations for ask number `ask`, and whether it was fitted.

        It counts once `commit` says that the ask was made.
        """
        self._resumed()
        return self._step(ask, n)

    def _step(self, ask: int, n: int) -> tuple[Surrogate, bool]:
        before, latest = self._asked, self._latest
        due = self._builder.due(before, n, self._told.first(n)[2])
        if not due and latest is not None and latest.count == n:
            self._draft = ask, n, latest
        elif self._draft is None or self._draft[:2] != (ask, n):
            self._draft = ask, n, self._builder.advance(before, *self._told.first(n), ask)
        return self._draft[2], due

    def commit(self) -> None:
        """Confirm the ask that `advance` was called for: the next one starts from its surrogate."""
        if self._draft is not None:
            self._asked = self._latest = self._draft[2]
            self._draft = None

    def present(self, ask: int) -> Surrogate:
        """Return the surrogate of all observations, from that of the last ask; fitted only if there is none.

        Raises:
            InvalidDataError: before the first tell.
        """
        n = self._told.count
        if n == 0:
            raise InvalidDataError("nothing has been told yet. Call tell() with some observations first.")
        self._resumed()
        if self._latest is None or self._latest.count != n:
            data = self._told.first(n)
            if self._asked is None:
                self._latest = self._builder.advance(None, *data, ask)
            else:
                self._latest = self._builder.conditioned(self._asked, *data)
        return self._latest

    def keep(self, folder: Path, ask: int, fitted: bool, checksum: int) -> None:
        """Write a snapshot after a fit, and now and then. It only saves time when a run is resumed.

        Args:
            folder: The journal's folder.
            ask: The number of the last ask.
            fitted: Whether it came with a fit.
            checksum: The checksum of the journal up to that ask.
        """
        if self._asked is None or not (fitted or ask - self._kept >= SNAPSHOT_ASKS):
            return
        content = {"ask": ask, "checksum": checksum, "surrogate": self._builder.snapshot(self._asked)}
        try:
            write_atomically(content, folder / SNAPSHOT)
        except OSError as error:
            message = f"{folder / SNAPSHOT}: not written ({error}). Nothing is lost, but resuming will take longer."
            warnings.warn(message, JournalWarning, stacklevel=4)
            return
        self._kept = ask

    def resume(self, folder: Path, checksums: dict[int, int], asks: list[tuple[int, int]]) -> None:
        """Prepare to rebuild the surrogate of the last ask, once one is needed.

        Args:
            folder: The journal's folder.
            checksums: The checksum of the journal up to each ask.
            asks: Number and n of each ask that had a surrogate since models were last made anew.
        """
        self._resume = folder, checksums, asks

    def _resumed(self) -> None:
        """Rebuild the surrogate of the last ask by the steps that made it, from a snapshot or else from the start."""
        if self._resume is None:
            return
        folder, checksums, asks = self._resume
        try:
            if asks:
                self._rebuild(folder, checksums, asks)
        except BaseException:  # whoever comes next begins anew
            self._asked = self._latest = self._draft = None
            self._kept = 0
            raise
        self._resume = None

    def _rebuild(self, folder: Path, checksums: dict[int, int], asks: list[tuple[int, int]]) -> None:
        self._restore(folder, checksums, asks[0][0])
        missing = [(ask, n) for ask, n in asks if ask > self._kept or self._asked is None]
        for ask, n in tqdm(missing, desc="rebuild models", unit="ask", delay=2.0, leave=False):
            self._draft = None
            self._step(ask, n)
            self.commit()

    def _restore(self, folder: Path, checksums: dict[int, int], first: int) -> None:
        """Start from the snapshot, if there is one of an ask from `first` on."""
        path = folder / SNAPSHOT
        if not path.exists():
            return
        try:
            state = torch.load(path, weights_only=True, map_location=self._builder.device)
            if checksums.get(state["ask"]) != state["checksum"]:
                raise JournalError("it belongs to another journal")
            if state["ask"] < first:
                return  # of before a correction or a change
            self._asked = self._builder.restored(state["surrogate"], *self._told.first(state["surrogate"]["count"]))
            self._kept = state["ask"]
        except Exception as error:  # whatever is wrong with it, the journal has everything
            warnings.warn(
                f"{path}: ignored ({error}). Models are rebuilt from the data; nothing is lost.",
                JournalWarning,
                stacklevel=5,
            )
