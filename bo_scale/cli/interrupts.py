"""Ctrl-C, which libraries may turn into another error while they are imported."""

import signal
import threading
from types import FrameType


class Interrupts:
    """A context in which Ctrl-C raises KeyboardInterrupt, as ever, and is remembered.

    Attributes:
        seen: Whether there was one.
    """

    def __init__(self) -> None:
        self.seen = False
        self._before: object = None

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._before) or isinstance(self._before, signal.Handlers):
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt
