"""A journal of events: one line of JSON each, on disk before the call that wrote it returns."""

import json
import os
import warnings
import zlib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bo_scale.errors import JournalError, JournalLockedError, JournalWarning
from bo_scale.files import sync_folder

Event = dict[str, Any]

JOURNAL = "journal.jsonl"
"""Name of the file in its folder."""
FORMAT = 3
"""Format of new journals. In formats 1 and 2 lines had no time, version and checksum."""
_VERSION = version("bo_scale")
_MARK = b',"crc":"'
_SEALED = ("version", "crc")
_TAIL = len(_MARK) + len('00000000"}\n')


class Journal:
    """Append-only lines in `folder/journal.jsonl`, held by one process at a time.

    A process killed while writing leaves a torn last line, of an event that nobody was told had happened. When the
    journal is opened again, it is moved to a file of its own, with a warning.

    Each line ends with a checksum of all that was written up to it, so a line that was edited, doubled, swapped or left
    out is found. A last line whose checksum fits is whole, also without its newline.

    A file that is no longer the one that was opened, or has another size than was written, is found before the next
    event is written: that would be lost.

    Attributes:
        events: The events that were there when it was opened.
        checksums: The checksum of the lines up to each of them.
        checksum: The checksum of all lines.

    Args:
        folder: Made if absent.
        read_only: Whether to read only, while another process may write. A torn last line is then ignored.

    Raises:
        JournalLockedError: if somebody else holds it.
        JournalError: if a line before the last cannot be read or does not fit, or there is nothing to read.
    """

    def __init__(self, folder: str | os.PathLike[str], read_only: bool = False) -> None:
        self.folder, self._owner, self._lock = Path(folder), os.getpid(), None
        if self.folder.is_file():
            raise JournalError(f"path={str(folder)!r} is a file. Give a folder; it is made if absent.")
        self.checksum, self._sealed = 0, False
        self.checksums: list[int] = []
        if read_only:
            if not self._path.exists():
                raise JournalError(f"path={str(folder)!r}: there is no journal to read.")
            self.events = self._read()
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._acquired()
        try:
            self.events = self._read()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._end_last_line()
            self._set_torn_tail_aside()
            sync_folder(self.folder)
        except BaseException:
            self._lock.release()
            raise

    def _acquired(self) -> FileLock:
        lock = FileLock(self.folder / "lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise JournalLockedError(
                f"path={str(self.folder)!r}: another Optimizer holds this journal. Stop it or call its close() first, "
                f"or use another path. To look at it, Optimizer.open(path, mode='r') reads it meanwhile. The lock ends "
                f"with its process; there is no file to remove."
            ) from error
        return lock

    @property
    def _path(self) -> Path:
        return self.folder / JOURNAL

    def _read(self) -> list[Event]:
        content = self._path.read_bytes() if self._path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        self._torn = content[self._end :]
        lines = content[: self._end].splitlines(keepends=True)
        if lines:
            self._require_readable(lines[0])
        for number, line in enumerate(lines, start=1):
            self._require_seal(number, line)
            self._count(line)
        last = self._torn + b"\n"
        self._unended = _is_sealed(last) and _fits(last, self.checksum)
        if self._unended:
            self._count(last)
            self._torn = b""
            lines.append(last)
        return self._parsed(lines)

    def _count(self, line: bytes) -> None:
        self.checksum = zlib.crc32(line, self.checksum)
        self.checksums.append(self.checksum)

    def _parsed(self, lines: list[bytes]) -> list[Event]:
        """Return the events of lines."""
        try:
            events = json.loads(b"[" + b",".join(lines) + b"]")  # in a third of the time of one by one
        except ValueError:
            events = []
        if len(events) != len(lines):
            events = [self._event(number, line) for number, line in enumerate(lines, start=1)]
        for number, event in enumerate(events, start=1):
            if not isinstance(event, dict):
                raise self._damaged(number, "is damaged")
            for name in _SEALED:
                event.pop(name, None)
        return events

    def _event(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise self._damaged(number, "is damaged") from error

    def _require_seal(self, number: int, line: bytes) -> None:
        """Refuse a line whose checksum is not that of all lines up to it."""
        if not _is_sealed(line):
            if self._sealed:
                raise self._damaged(number, "has lost its checksum")
            return
        self._sealed = True
        if not _fits(line, self.checksum):
            raise self._damaged(number, "was edited, doubled or moved, or lines before it are missing")

    def _require_readable(self, line: bytes) -> None:
        event = self._event(1, line)
        newer = event.get("format") if isinstance(event, dict) else None
        if isinstance(newer, int) and newer > FORMAT:
            raise JournalError(
                f"{self._path}: written in format {newer} by bo_scale {event.get('version', '(unknown)')}; this is "
                f"{_VERSION}, which reads formats up to {FORMAT}. Upgrade bo_scale."
            )

    def _damaged(self, number: int, what: str) -> JournalError:
        return JournalError(
            f"{self._path}: line {number} {what}. Restore the file from a copy. Or cut it before that line, which "
            f"loses all later events. Observations are corrected by revise() and forget(), not in the file."
        )

    def _end_last_line(self) -> None:
        """Write the newline that a last line has lost."""
        if self._unended:
            self._end = os.lseek(self._file, 0, os.SEEK_END) + os.write(self._file, b"\n")
            os.fsync(self._file)

    def _set_torn_tail_aside(self) -> None:
        """Move bytes after the last newline to a file of their own."""
        if not self._torn:
            return
        aside = self.folder / f"torn-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.txt"
        aside.write_bytes(self._torn)
        os.ftruncate(self._file, self._end)
        warnings.warn(
            f"{self._path}: a crash tore off the last line after {len(self._torn)} bytes, now in {aside.name}. Their "
            f"event was never acknowledged: {self._torn[:80]!r}",
            JournalWarning,
            stacklevel=5,
        )

    def append(self, event: Event) -> None:
        """Write one event, and return when it is on disk. O(size of the event).

        Raises:
            OSError: of the disk; then nothing of the event is kept.
            JournalError: if the journal was closed, or is only read, or somebody else changed its file.
        """
        if self._lock is None:
            raise JournalError(f"{self._path}: opened with mode='r', to read. Open it without, to change it.")
        if os.getpid() != self._owner:
            raise JournalLockedError(
                f"{self._path}: the Optimizer belongs to process {self._owner}, and this is a fork of it. Call the "
                f"Optimizer in its own process."
            )
        if not self._lock.is_locked:
            raise JournalError(
                f"{self._path}: closed. To continue, call Optimizer.open(path), or make it with the same arguments."
            )
        self._require_unchanged()
        whole = {**event, "version": _VERSION}
        body = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()[:-1]
        line = body + _MARK + _seal(body, self.checksum) + b'"}\n'
        try:
            os.lseek(self._file, self._end, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except BaseException as error:
            try:
                os.ftruncate(self._file, self._end)
            except OSError:
                self.close()
                raise JournalError(
                    f"{self._path}: the disk failed ({error}), and whether it kept the last event is not known. Open "
                    f"the run again to see."
                ) from error
            raise
        self._end += len(line)
        self.checksum = zlib.crc32(line, self.checksum)

    def _require_unchanged(self) -> None:
        """Refuse to write into a file that is not the one at the path, or not as it was left.

        Raises:
            JournalError: saying what became of it.
        """
        own, changed = os.fstat(self._file), None
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            changed = "was deleted or moved"
        else:
            if (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
                changed = "was replaced by another file"
            elif there.st_size != self._end:
                changed = f"has {there.st_size:,} bytes and not {self._end:,}: another program wrote to it"
        if changed:
            raise JournalError(
                f"{self._path}: the file {changed} since it was opened. Nothing was recorded by this call; all before "
                f"it is still in memory: save it by to_csv('rescued.csv'), then call close(). Stop what changes the "
                f"file, and go on with Optimizer.open(path), which says what it has; if the file is gone or damaged, "
                f"restore it from a copy, or begin another run by Optimizer.from_csv('rescued.csv', …)."
            )

    def close(self) -> None:
        """Let go of the file and the lock."""
        if self._lock is not None and self._lock.is_locked:
            os.close(self._file)
            self._lock.release()


def now() -> str:
    """Return the time, in UTC, as a journal keeps it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _is_sealed(line: bytes) -> bool:
    """Return whether a line ends with a checksum."""
    return line[-_TAIL : len(_MARK) - _TAIL] == _MARK


def _fits(line: bytes, before: int) -> bool:
    """Return whether the checksum of a line is its own, given that of all lines before."""
    return line[len(_MARK) - _TAIL : -3] == _seal(line[:-_TAIL], before)


def _seal(body: bytes, before: int) -> bytes:
    """Return the checksum of a line without it, given that of all lines before."""
    return b"%08x" % zlib.crc32(body, before)
