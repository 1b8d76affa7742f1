import math
from typing import Any

import pytest

from bo_scale.errors import SurveyError
from bo_scale.survey import Depot, Travel

CENTRE = Depot(500_500.0, 5_000_400.0, "base")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either kilometres or hours"),
        ({"kilometres": 1.0, "hours": 1.0}, "either kilometres or hours"),
        ({"kilometres": 0.0}, "kilometres=0.0: give a positive number"),
        ({"kilometres": math.nan}, "kilometres=nan"),
        ({"hours": 1.0}, "needs either a speed"),
        ({"hours": 1.0, "speed": -3.0}, "speed=-3.0"),
        ({"hours": 1.0, "speed": 3.0, "stay": -1.0}, "stay=-1.0"),
        ({"kilometres": 1.0, "stay": 5.0}, "need a budget in hours"),
        ({"kilometres": 1.0, "speed": 5.0}, "need a budget in hours"),
        ({"hours": 1.0, "speed": 3.0, "matrix": "m.csv", "unit": "minutes"}, "not both"),
        ({"kilometres": 1.0, "unit": "miles"}, "unit='miles'"),
        ({"hours": 1.0, "speed": 3.0, "unit": "minutes"}, "is the unit of a matrix"),
        ({"kilometres": 1.0, "matrix": "m.csv", "around_forbidden": True}, "leave out barriers"),
        ({"kilometres": 1.0, "depots": []}, "say where the teams start"),
        ({"kilometres": 1.0, "teams": 0}, "teams=0: give at least 1"),
        ({"kilometres": 1.0, "depots": [CENTRE, CENTRE], "teams": 3}, "depots: 2 for 3 teams"),
        ({"kilometres": 1.0, "teams": 2, "starts": [CENTRE]}, "starts: 1 for 2 teams"),
        ({"kilometres": 1.0, "depots": [Depot(math.inf, 0.0, "far")]}, "far: its coordinates are inf"),
    ],
)
def test_travel_that_does_not_fit_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SurveyError, match=message):
        Travel(**{"depots": [CENTRE], **options})
