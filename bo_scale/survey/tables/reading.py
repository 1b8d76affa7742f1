"""Tables of any kind of file, told by its content: delimited text, or a workbook."""

from os import PathLike
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.delimited import read_delimited
from bo_scale.survey.tables.records import Records
from bo_scale.survey.tables.workbook import read_workbook

OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The beginning of workbooks of Excel up to 2003, and of encrypted ones."""


def read_records(path: str | PathLike[str], sheet: str | None = None) -> Records:
    """Read a table: text separated by commas, semicolons or tabs, or a sheet of a workbook (.xlsx).

    Args:
        path: The file. Its content counts, not its name.
        sheet: Name of the sheet of a workbook; None for the first.

    Raises:
        SurveyError: no such file, no table, or no rows below a header.
        MissingDependencyError: for a workbook without openpyxl.
    """
    file = Path(path)
    if not file.is_file():
        raise SurveyError(f"{path}: there is no such file.")
    with file.open("rb") as opened:
        start = opened.read(len(OLD))
    if start == OLD:
        raise SurveyError(
            f"{path}: this is a workbook of an old kind (.xls) or one with a password; save it as .xlsx or CSV."
        )
    if start.startswith(b"PK"):
        _require_workbook(file)
        return read_workbook(path, sheet)
    if sheet is not None:
        raise SurveyError(f"{path}: sheet={sheet!r}: this file is not a workbook, so it has no sheets; leave it out.")
    return read_delimited(path)


def _require_workbook(file: Path) -> None:
    """Refuse packed files that are not workbooks of this kind."""
    try:
        with ZipFile(file) as packed:
            names = set(packed.namelist())
            kind = packed.read("mimetype").decode("ascii", "replace") if "mimetype" in names else ""
    except BadZipFile as error:
        raise SurveyError(f"{file}: this is a damaged workbook; save the table as CSV or .xlsx.") from error
    if "opendocument" in kind:
        raise SurveyError(f"{file}: this is an OpenDocument file; save the table as CSV or .xlsx.")
    if "[Content_Types].xml" not in names or "xl/workbook.bin" in names:
        raise SurveyError(f"{file}: this is not a workbook of the kind .xlsx; save the table as CSV or .xlsx.")
