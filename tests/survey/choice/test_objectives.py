import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from posteriors import Case

from bo_scale.errors import SurveyError, SurveyWarning
from bo_scale.survey.choice import objectives
from bo_scale.survey.choice.greedy import choose
from bo_scale.survey.choice.objectives import (
    DESIGNS,
    OBJECTIVES,
    Objective,
    current_name,
    objective_named,
    register_objective,
)

HIGHEST = Objective("highest", "the prediction is highest", lambda state, _: state.means(), additive=False)


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(OBJECTIVES))


def test_an_objective_is_registered_by_one_call(exact: Case) -> None:
    register_objective(HIGHEST)
    register_objective(HIGHEST)  # twice does nothing more
    objective = objective_named("highest")
    (found,) = choose(exact.state(), exact.places(), 1, objective, None, 0)
    assert found.candidate == int(exact.state().means().argmax())


def test_another_objective_of_the_same_name_is_refused() -> None:
    register_objective(HIGHEST)
    with pytest.raises(SurveyError, match="'highest': this name is taken"):
        register_objective(replace(HIGHEST, help="it is another"))


@pytest.mark.parametrize("name", ["variance", "maximum", "random"])
def test_names_that_are_taken_are_refused(name: str) -> None:
    with pytest.raises(SurveyError, match=f"'{name}': this name is taken"):
        register_objective(replace(HIGHEST, name=name))
    with pytest.raises(SurveyError, match=f"'{name}': this name is taken"):
        register_objective(replace(HIGHEST, former=(name,)))


def test_an_objective_has_one_way_to_score() -> None:
    with pytest.raises(SurveyError, match="either score or draw"):
        Objective("none", "nothing is sought")
    with pytest.raises(SurveyError, match="either score or draw"):
        replace(HIGHEST, draw=lambda state, count, generator: state.draw(count, generator))


def test_a_former_name_works_and_warns() -> None:
    with pytest.warns(SurveyWarning, match="'maximum' is now called 'uncertainty': write objective='uncertainty'"):
        assert objective_named("maximum") is OBJECTIVES["uncertainty"]
    assert current_name("maximum") == "uncertainty"
    assert current_name("random") == "random"


def test_other_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(SurveyError, match=f"choose one of {', '.join([*OBJECTIVES, *DESIGNS])}"):
        objective_named("entropy")


def test_draws_begin_again_after_the_last(exact: Case) -> None:
    state = exact.state()
    scorer = OBJECTIVES["thompson"].scorer(state, None, 3, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(scorer(state, 1), scorer(state.after(2), 4))
    assert not torch.equal(scorer(state, 1), scorer(state, 2))


def test_names_are_known_without_packages_of_surveys() -> None:
    """The help of the command line needs nothing but them."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['geopandas', 'ortools', 'rasterio', 'matplotlib', 'gpxpy']));"
        "from bo_scale.cli import main; main(['survey', 'plan', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in (*OBJECTIVES, *DESIGNS):
        assert name in done.stdout
    assert "maximum" not in done.stdout
