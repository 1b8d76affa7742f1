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

    A surrogate that is looked at between asks is that of the next ask, as if it came now, and changes none.

    Args:
        builder: Makes a surrogate from the one before.
        told: The observations.
    """

    def __init__(self, builder: SurrogateBuilder | SeveralBuilder, told: Observations) -> None:
        self._builder = builder
        self._told = told
        self._asked: Surrogate | None = None
        self._made: tuple[int, int, Surrogate] | None = None
        self._kept = 0
        self._resume: tuple[Path, dict[int, int], list[tuple[int, int]]] | None = None

    def advance(self, ask: int, n: int) -> tuple[Surrogate, bool]:
        """Return the surrogate of the first n observations for ask number `ask`, and whether it was fitted.

        It counts once `commit` says that the ask was made.
        """
        self._resumed()
        return self._step(ask, n)

    def _step(self, ask: int, n: int) -> tuple[Surrogate, bool]:
        if self._made is None or self._made[:2] != (ask, n):
            self._made = ask, n, self._builder.advance(self._asked, *self._told.first(n), ask)
        made = self._made[2]
        return made, made is not self._asked and made.fitted == n

    def commit(self, surrogate: Surrogate) -> None:
        """Confirm the ask for which `advance` returned a surrogate: the next one starts from it."""
        self._asked = surrogate

    def present(self, ask: int) -> Surrogate:
        """Return the surrogate of all observations: that of ask number `ask`, the next one, if it came now.

        Raises:
            InvalidDataError: before the first tell.
        """
        n = self._told.count
        if n == 0:
            raise InvalidDataError("nothing has been told yet. Call tell() with some observations first.")
        self._resumed()
        if self._made is not None and self._made[1] == n:
            return self._made[2]
        return self._step(ask, n)[0]

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
            self._asked = self._made = None
            self._kept = 0
            raise
        self._resume = None

    def _rebuild(self, folder: Path, checksums: dict[int, int], asks: list[tuple[int, int]]) -> None:
        self._restore(folder, checksums, asks[0][0])
        missing = [(ask, n) for ask, n in asks if ask > self._kept or self._asked is None]
        for ask, n in tqdm(missing, desc="rebuild models", unit="ask", delay=2.0, leave=False):
            self.commit(self._step(ask, n)[0])

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
