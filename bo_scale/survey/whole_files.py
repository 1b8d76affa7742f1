"""Files that are read back before they replace what was there: on a full disk the old file stays."""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from bo_scale.errors import SurveyError
from bo_scale.files import replacing

PORTION = 1 << 20
"""Bytes that are read back at once."""


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file, read it back and let it replace what was there.

    Args:
        path: The file to make or replace.
        parts: Its content, part after part.

    Raises:
        SurveyError: if it cannot be written, or not all of it is there; what was there before is unchanged.
    """
    try:
        with replacing(path) as partial:
            size, check = 0, 0
            with partial.open("wb") as file:
                for part in parts:
                    file.write(part)
                    size, check = size + len(part), zlib.crc32(part, check)
            if _read(partial) != (size, check):
                raise OSError("what was written cannot be read back; is the disk full?")
    except OSError as error:
        before = "What was there is unchanged." if Path(path).exists() else "There is no such file now."
        reason = error.strerror or str(error)
        raise SurveyError(f"{path}: the file could not be written ({reason}). {before}") from error


def _read(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes, and its CRC-32."""
    size, check = 0, 0
    with path.open("rb") as file:
        while part := file.read(PORTION):
            size, check = size + len(part), zlib.crc32(part, check)
    return size, check
