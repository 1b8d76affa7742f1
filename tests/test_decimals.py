import pytest

from bo_scale.decimals import Mark, decimal_mark, evidence, read_number


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["1.5", "2"], "point"),
        (["1,5", "2"], "comma"),
        (["0,123", "1,234"], "comma"),  # thousands do not begin with 0
        (["1234,567", "1,234"], "comma"),
        (["1.234,5", "1.234"], "comma"),
        (["1,234.5", "1,234"], "point"),
        (["1,234,567", "1,234"], "point"),
        (["1.234.567", "1.234"], "comma"),
        (["1.234", "2.345"], "point"),  # as programs write
        (["1,234", "2,345"], None),
        (["1,234", "0.5"], None),
        (["1.234", "0,5"], None),
        (["1,234", "2.345"], None),
    ],
)
def test_a_column_shows_its_mark_or_nothing_tells(cells: list[str], mark: Mark | None) -> None:
    assert decimal_mark(evidence(cells), [], None, degrees=False) == mark


def test_other_columns_then_earlier_tables_then_degrees_tell() -> None:
    open_, commas, points = (evidence([cell]) for cell in ("1,234", "0,5", "0.5"))
    assert decimal_mark(open_, [commas], None, degrees=False) == "comma"
    assert decimal_mark(open_, [points], None, degrees=False) is None
    assert decimal_mark(open_, [points], "comma", degrees=False) is None  # this table is another program's
    assert decimal_mark(open_, [], "comma", degrees=False) == "comma"
    assert decimal_mark(open_, [points], None, degrees=True) == "comma"  # no degree is a thousand
    thousands = evidence(["1,234,567"])
    assert decimal_mark(open_, [thousands], None, degrees=False) == "point"
    assert decimal_mark(evidence(["1.234"]), [points], "comma", degrees=False) == "point"


@pytest.mark.parametrize(
    ("cell", "comma", "point"),
    [
        ("1,234", 1.234, 1234.0),
        ("1.234", 1234.0, 1.234),
        ("-1,5", -1.5, -1.5),
        ("1.5e-3", 1.5e-3, 1.5e-3),
        ("1.234,5", 1234.5, 1234.5),
        ("1,234.5", 1234.5, 1234.5),
        ("1 234,5", 1234.5, 1234.5),
        ("1\u202f234", 1234.0, 1234.0),
        ("1'234.5", 1234.5, 1234.5),
        ("\u22125", -5.0, -5.0),
        ("1.234.567", 1234567.0, 1234567.0),
        ("1,2,3", None, None),
        ("12,34,567", None, None),
        ("1_000", None, None),
        ("1 23", None, None),
        ("01.05.2024", None, None),
        ("", None, None),
    ],
)
def test_cells_that_can_be_read_in_one_way_are(cell: str, comma: float | None, point: float | None) -> None:
    assert read_number(cell, "comma") == comma
    assert read_number(cell, "point") == point
