"""Results of a case: one JSON file, written unit by unit, shared by processes."""

import getpass
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

RESULTS = Path(__file__).parent / "results"
WIDTH = 120

Result = dict[str, Any]


class StoreError(Exception):
    """Results that must not be mixed."""


def environment() -> dict[str, dict[str, Any]]:
    """The machine and the versions that a case's units must share."""
    packages = {"torch": "torch", "gpytorch": "gpytorch", "botorch": "botorch", "ax": "ax-platform"}
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(package) for name, package in packages.items()},
        },
    }


class Store:
    """The results file of one case.

    Args:
        case: Its name.
        folder: Where results are kept; None means benchmarks/results.
        anywhere: Whether units may come from several machines, for results that are not times: those of another
            machine than the first one's carry it.
    """

    def __init__(self, case: str, folder: Path | None = None, anywhere: bool = False) -> None:
        self.case, self.anywhere = case, anywhere
        self.path = (folder or RESULTS) / f"{case}.json"

    def read(self) -> Result:
        """What is there; a file without units where there is nothing."""
        if not self.path.exists():
            return {"case": self.case, **environment(), "units": {}}
        return json.loads(self.path.read_text())

    def clear(self) -> None:
        """Forget all units."""
        with self._lock(""):
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse to add to results of another machine or other versions.

        Raises:
            StoreError: naming what differs, and the remedy.
        """
        there, here = self.read(), environment()
        for part, present in here.items():
            if there[part] != present and not (part == "machine" and self.anywhere):
                raise StoreError(
                    f"{self.path}: measured with {part} {there[part]}, but here it is {present}. Pass --fresh to "
                    f"forget those results and measure all units of {self.case!r} here."
                )

    def add(self, unit: str, measured: dict[str, Any]) -> None:
        """Keep the result of one unit; the file is replaced at once."""
        with self._lock(""):
            self.check()
            result = self.read()
            machine = environment()["machine"]
            result["units"][unit] = measured | ({"machine": machine} if machine != result["machine"] else {})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".partial")
            partial.write_text(encode(rounded(result)) + "\n")
            partial.replace(self.path)

    @contextmanager
    def claim(self, unit: str) -> Iterator[bool]:
        """Whether this process is the one to measure a unit: it is not there, and nobody is at it."""
        lock = self._lock(unit)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            yield False
            return
        try:
            yield unit not in self.read()["units"]
        finally:
            lock.release()

    def _lock(self, unit: str) -> FileLock:
        """A lock in the system's folder for temporary files; the empty name is for the file itself."""
        folder = Path(tempfile.gettempdir()) / f"bo_scale-benchmarks-{getpass.getuser()}"
        folder.mkdir(exist_ok=True)
        key = hashlib.sha256(f"{self.path.resolve()} {unit}".encode()).hexdigest()[:24]
        return FileLock(folder / f"{key}.lock")


def rounded(value: Any) -> Any:
    """The same with floats at 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def encode(value: Any, depth: int = 0) -> str:
    """JSON with lists of numbers, and whatever fits into a line, on one line."""
    line = json.dumps(value, ensure_ascii=False)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    flat = isinstance(value, list) and not any(isinstance(item, dict | list) for item in items)
    if not items or flat or (depth > 0 and len(line) + depth <= WIDTH):
        return line
    pad = "\n" + " " * (depth + 1)
    parts = [encode(item, depth + 1) for item in items]
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {part}" for key, part in zip(value, parts, strict=True)]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return left + pad + ("," + pad).join(parts) + "\n" + " " * depth + right


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
