"""Files that are read back before they replace what was there: on a full disk the old file stays."""

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bo_scale.errors import SurveyError
from bo_scale.files import replacing

PORTION = 1 << 20
"""Bytes that are read back at once."""


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which it replaces at the end of the block.

    Args:
        path: The file to make or replace.

    Raises:
        SurveyError: if the file cannot be written; what was there before is unchanged.
    """
    target, begun = Path(path), False
    try:
        with replacing(target) as partial:
            begun = True
            yield partial
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        what = "unchanged" if begun and target.exists() else "not made"
        reason = error.strerror or str(error)
        raise SurveyError(f"{path}: the file could not be written ({reason}). It is {what}.") from error


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file, read it back and let it replace what was there.

    Args:
        path: The file to make or replace.
        parts: Its content, part after part.

    Raises:
        SurveyError: if it cannot be written, or not all of it is there; what was there before is unchanged.
    """
    with whole_file(path) as partial:
        size, check = 0, 0
        with partial.open("wb") as file:
            for part in parts:
                file.write(part)
                size, check = size + len(part), zlib.crc32(part, check)
        require_written(_read(partial), (size, check))


def require_written(found: object, expected: object) -> None:
    """Refuse a file that does not hold what was written.

    Raises:
        OSError: if the two differ.
    """
    if found != expected:
        raise OSError("what was written cannot be read back; is the disk full?")


def _read(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes, and its CRC-32."""
    size, check = 0, 0
    with path.open("rb") as file:
        while part := file.read(PORTION):
            size, check = size + len(part), zlib.crc32(part, check)
    return size, check
