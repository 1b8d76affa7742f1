"""Write for a terminal: numbers in six digits, tables, JSON, and commands to type."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any


def cell(value: Any) -> str:
    """Write a value: numbers in six significant digits, times to the second."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def in_words(values: Mapping[str, Any]) -> str:
    """Write values by name: `x = 0.3, kind = b`. What is None is left out."""
    return ", ".join(f"{name} = {cell(value)}" for name, value in values.items() if value is not None)


def table(columns: Mapping[str, Sequence[Any]]) -> str:
    """Write columns below their names, numbers at the right."""
    written = []
    for name, values in columns.items():
        texts = [name, *map(cell, values)]
        right = all(isinstance(value, int | float | None) for value in values)
        width = max(map(len, texts))
        written.append([text.rjust(width) if right else text.ljust(width) for text in texts])
    return "\n".join("  ".join(row).rstrip() for row in zip(*written, strict=True))


def points_table(points: Mapping[int, Mapping[str, Any]]) -> str:
    """Write points with their numbers."""
    names = next(iter(points.values()))
    return table({"number": list(points), **{f"{name}": [point[name] for point in points.values()] for name in names}})


def print_json(value: Any) -> None:
    """Print a value as JSON, numbers exactly; null for NaN."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def words(values: Mapping[str, Any]) -> str:
    """Write values exactly, as options take them: `x=0.3 kind=b`. What is None is left out."""
    return " ".join(shlex.quote(f"{name}={value}") for name, value in values.items() if value is not None)


def value_words(values: Mapping[str, float | str]) -> str:
    """Write values of outcomes exactly, as options take them; a single one without its name."""
    return words(values) if len(values) > 1 else str(next(iter(values.values())))


def command(name: str, path: Path, *rest: str) -> str:
    """Write a command of the loop, to be typed.

    Args:
        name: The command.
        path: Folder of the journal.
        *rest: Arguments, quoted where necessary.
    """
    return " ".join(["bo-scale", "loop", name, shlex.quote(str(path)), *rest])


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case datetime():
            return value.isoformat()
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value
