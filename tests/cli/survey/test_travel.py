from pathlib import Path

import pytest

from bo_scale.cli import main
from bo_scale.cli.program import parse
from bo_scale.cli.survey.travel import travel_of


def test_places_in_the_west_and_south_are_read() -> None:
    words = "--depot -5.74,50.98 --depot -.5,-3 --depot base=-1,-2 --start -1e1,+2 --start 3,-4 --start -5,6"
    travel = travel_of(parse(["survey", "plan", "s.gpkg", "--out", "n.csv", "--kilometres", "3", *words.split()]))
    assert travel is not None
    assert [(each.x, each.y) for each in travel.depots] == [(-5.74, 50.98), (-0.5, -3.0), (-1.0, -2.0)]
    assert [each.name for each in travel.depots] == ["depot 1", "depot 2", "base"]
    assert [(each.x, each.y) for each in travel.starts or ()] == [(-10.0, 2.0), (3.0, -4.0), (-5.0, 6.0)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--depot here --kilometres 1", "here: give a place as X,Y or NAME=X,Y"),
        ("--kilometres 1", "--depot: say where the teams start"),
        ("--one-way", "--depot: say where the teams start"),
        ("--depot 1,2", "either kilometres or hours"),
    ],
)
def test_options_of_travel_that_do_not_fit_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main(["survey", "plan", "s.gpkg", "--out", "n.csv", *words.split()]) == 1
    assert message in capsys.readouterr().err
