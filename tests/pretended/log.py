"""What happened at a pretended device: kernels, copies, and everything at which the host waits."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SKIPPED = ("/checked_calls.py", "/jaxtyping/", "/beartype/", "<@beartype", "<frozen", "/contextlib.py", "<string>")


@dataclass(frozen=True)
class Event:
    """Something that happened at the device.

    Attributes:
        kind: "item" (the host reads a value), "d2h" and "h2d" (a tensor is copied), "sync" (an operator at which CUDA
            waits for its stream: it reads a size or an error code back), "pinned" (a copy from pinned memory, at which
            nobody waits) or "kernel" (any other operator that computes).
        op: The operator.
        numel: Number of entries copied or read.
        inside: Innermost line of the watched package, as file:line function.
        at: Innermost line that is not torch's.
    """

    kind: str
    op: str
    numel: int
    inside: str
    at: str


@dataclass
class Log:
    """A log of events.

    Attributes:
        watched: Part of a path by which lines of the package under test are known.
        traced: Whether events come with the line that asked for them, which is slower.
        events: What happened so far.
    """

    watched: str = "bo_scale/"
    traced: bool = True
    events: list[Event] = field(default_factory=list)

    def add(self, kind: str, op: str, numel: int = 0) -> None:
        traced = self.traced and kind not in ("kernel", "pinned")
        inside, at = _where(self.watched) if traced else ("", "")
        self.events.append(Event(kind, op, numel, inside, at))

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return sum(event.kind == "kernel" for event in self.events)

    @property
    def waits(self) -> int:
        """How often the host waits for the device."""
        return sum(event.kind not in ("kernel", "pinned") for event in self.events)

    def copied(self, kind: str) -> int:
        """Number of entries copied, by the kind of copy."""
        return sum(event.numel for event in self.events if event.kind == kind)

    def report(self) -> str:
        """Every wait with the line that asked for it, most frequent first."""
        found = Counter((e.kind, e.op, e.inside or e.at) for e in self.events if e.kind not in ("kernel", "pinned"))
        lines = [f"{n} × {kind} {op} at {line or '?'}" for (kind, op, line), n in found.most_common()]
        return "\n".join([f"{self.waits} waits, {self.kernels} kernels", *lines])

    @contextmanager
    def counting(self) -> Iterator["Log"]:
        """Count from here: the log of what happens within the block alone."""
        start, inner = len(self.events), Log(self.watched, self.traced)
        try:
            yield inner
        finally:
            inner.events = self.events[start:]


def _where(watched: str) -> tuple[str, str]:
    frame, inside, at = sys._getframe(2), "", ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_HERE) and not any(part in name for part in _SKIPPED):
            line = f"{_short(name)}:{frame.f_lineno} {frame.f_code.co_name}"
            if not at and not name.startswith(_TORCH):
                at = line
            if watched in name and "/tests/" not in name:
                return line, at
        frame = frame.f_back  # type: ignore[assignment]
    return inside, at


def _short(name: str) -> str:
    for part in ("/site-packages/", "/src/"):
        if part in name:
            return name.rsplit(part, 1)[1]
    return name
