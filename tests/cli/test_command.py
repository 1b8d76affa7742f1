import pytest

from bo_scale.cli import main


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("plan s.gpkg --hours 4 --hours 8 --out n.csv", "--hours"),
        ("plan s.gpkg --kilometres 4 --kilometres 4 --out n.csv", "--kilometres"),
        ("plan s.gpkg --out n.csv --seed 1 --out m.csv", "--out"),
        ("map s.gpkg --out n.html --out m.html", "--out"),
        ("init a.csv --value pb --area a.geojson --area b.geojson --out s.gpkg", "--area"),
    ],
)
def test_an_option_that_is_there_twice_is_refused(words: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["survey", *words.split()])
    assert end.value.code == 2
    assert f"argument {option}: was given twice; give it once" in capsys.readouterr().err
