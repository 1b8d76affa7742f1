import pytest

from bo_scale.survey.tables.records import clean_name, escaped, unescaped


@pytest.mark.parametrize("text", ["=1+1", "@cmd", "+49 30", "-a", "=HYPERLINK(1)"])
def test_texts_that_a_spreadsheet_would_run_are_escaped(text: str) -> None:
    assert escaped(text) == f"'{text}"
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", ["-5", "+1,5", "P1", "", "a=b", "'quoted'"])
def test_numbers_and_other_texts_stay(text: str) -> None:
    assert escaped(text) == unescaped(text) == text


def test_names_are_the_same_with_other_blanks_and_accents() -> None:
    assert clean_name(" La\u0308nge\u00a0 (m)") == clean_name("Länge (m)")
