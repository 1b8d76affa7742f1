"""Checks of paths that need no package of surveys: a refusal comes at once, and before long computations."""

import os
from collections.abc import Iterable
from pathlib import Path

from bo_scale.errors import SurveyError

MAP_ENDINGS = (".html", ".htm", ".png")
EXPORT_ENDINGS = (".tif", ".tiff", ".csv")
RASTER_ENDINGS = (".tif", ".tiff")
NAVIGATION_ENDINGS = (".gpx", ".kml")
REPORT_ENDINGS = (".html", ".htm", ".txt")
TABLE_ENDINGS = (".csv", ".txt", ".xlsx")
SURVEY_ENDINGS = (".gpkg",)
SQLITE = b"SQLite format 3\0"
"""The first bytes of a GeoPackage."""

FilePath = str | os.PathLike[str]


def require_ending(path: FilePath, endings: Iterable[str]) -> str:
    """Return the ending of a file, in lower case.

    Raises:
        SurveyError: if it is none of those given.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in endings:
        raise SurveyError(f"{path}: give a file that ends in {' or '.join(endings)}.")
    return suffix


def require_file(path: FilePath) -> None:
    """Refuse a file to read that is not there.

    Raises:
        SurveyError: if there is no such file, or it is a folder.
    """
    if Path(path).is_dir():
        raise SurveyError(f"{path}: this is a folder; give a file.")
    if not Path(path).is_file():
        raise SurveyError(f"{path}: there is no such file.")
    if not os.access(path, os.R_OK):
        raise SurveyError(f"{path}: the file cannot be read; check its permissions.")


def require_target(path: FilePath, endings: Iterable[str] | None = None, inputs: Iterable[FilePath] = ()) -> None:
    """Refuse a file to write that cannot be made, or would replace one that is read.

    Args:
        path: The file to make or replace.
        endings: Endings that it may have; None for any.
        inputs: Files that are read, which it must not replace.

    Raises:
        SurveyError: saying what to do.
    """
    at = Path(path).resolve()
    if at.is_dir():
        raise SurveyError(f"{path}: this is a folder; add the name of a file to write in it.")
    if endings is not None:
        require_ending(path, endings)
    if not at.parent.is_dir():
        raise SurveyError(f"{path}: there is no folder {at.parent}; create it first.")
    if at.exists() and not at.is_file():
        raise SurveyError(f"{path}: this is a device, which cannot be replaced; give the name of a file.")
    if not os.access(at.parent, os.W_OK):
        raise SurveyError(f"{path}: the folder {at.parent} cannot be written to; check its permissions.")
    for other in inputs:
        if at == Path(other).resolve():
            raise SurveyError(f"{path}: this file is read by the same command and would be lost; give another name.")


def require_survey(path: FilePath) -> None:
    """Refuse a file that cannot be a survey by its first bytes and its length.

    Raises:
        SurveyError: if there is none, it is no GeoPackage, or the file is cut short.
    """
    if Path(path).is_dir():
        raise SurveyError(f"{path}: this is a folder; give the survey's file in it (.gpkg).")
    if not Path(path).is_file():
        raise SurveyError(f"{path}: there is no such survey; create one with `bo-scale survey init`.")
    try:
        with Path(path).open("rb") as file:
            header, size = file.read(100), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise SurveyError(f"{path}: the file cannot be read ({error.strerror}); check its permissions.") from error
    if not header:
        raise SurveyError(f"{path}: the file is empty, so it is not a survey; restore a copy.")
    if not header.startswith(SQLITE):
        raise SurveyError(f"{path}: this is not a survey, for it is no GeoPackage; give the file that `init` wrote.")
    if (whole := _length(header)) > size:
        raise SurveyError(
            f"{path}: the file is cut short ({size:,} of {whole:,} bytes), so the survey is damaged; restore a copy."
        )


def _length(header: bytes) -> int:
    """Return the bytes that a SQLite file of this header has; 100 if the header is cut or does not say.

    The count of pages is right only if it was written with the last change.
    """
    if len(header) < 100:
        return 100
    page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    return pages * (65536 if page == 1 else page) if header[24:28] == header[92:96] else 100
