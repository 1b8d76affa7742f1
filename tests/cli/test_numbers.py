"""Numbers of options as people write them."""

from pathlib import Path

import pytest

from bo_scale.cli.numbers import number
from bo_scale.cli.program import main


@pytest.mark.parametrize(
    ("text", "value"),
    [("0,1", 0.1), ("30,5", 30.5), ("-2,25", -2.25), (",5", 0.5), ("0,125", 0.125), ("1500,25", 1500.25), ("1e3", 1e3)],
)
def test_a_decimal_comma_is_read(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,500", "1,500 may be 1500 or 1.500; write one of these"),
        ("10%", "10% is no number: a share of 10 % is 0.1, and 10 of a column in per cent is 10"),
        ("10 %", "10 % is no number: a share"),
        ("30d", "30d is no number: write it without units, such as 12.5"),
        ("1,2,3", "1,2,3 is no number"),
    ],
)
def test_what_is_no_number_is_refused_with_the_remedy(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["survey", "map", str(tmp_path / "s.gpkg"), "--threshold", text, "--out", "m.png"])
    assert message in capsys.readouterr().err
