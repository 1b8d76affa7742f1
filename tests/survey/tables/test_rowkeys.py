import pytest

from bo_scale.survey.tables.rowkeys import cells_of, plain_cell


@pytest.mark.parametrize(
    ("cells", "plain"),
    [
        (["1.50", "1.5", "1,5"], "1.5"),
        (["2024-05-03", "03.05.2024", "3.5.2024", "2024-05-03 00:00:00", "03.05.24", "2024-05-03T00:00"], "2024-05-03"),
        (["13/05/2024", "05/13/2024"], "2024-05-13"),
        (["03/05/2024"], "03/05/2024"),  # May or March
        (["2024-05-03 09:30", "03.05.2024 9:30:00"], "2024-05-03 09:30:00"),
        (["Well  3", "well 3"], "well 3"),
        (["", "n/a", "-"], ""),
        (["31.02.2024"], "31.02.2024"),
    ],
)
def test_cells_have_one_form(cells: list[str], plain: str) -> None:
    assert {plain_cell(cell) for cell in cells} == {plain}


def test_rows_have_one_form_whatever_separates() -> None:
    assert cells_of('1,2,"a b",3.50') == cells_of("3,5;1;A b;2;") == cells_of("2\t1\ta b\t3.5")
