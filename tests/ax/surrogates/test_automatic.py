import pytest
from ax.adapter.cross_validation import cross_validate
from ax.api.configs import RangeParameterConfig
from clients import client, models, run

from bo_scale import WISKI, CaGP
from bo_scale.ax import choose, streaming

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")


def test_automatic_says_what_and_why() -> None:
    made = client("auto")
    run(made, 7)
    assert type(models(made)[0]) is WISKI
    assert streaming(made)["loss"].chosen.startswith("auto: wiski, 2 inputs, few enough for a grid")
    five = [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0.0, 2.0)) for j in range(5)]
    made = client("auto", parameters=five)
    for _ in range(7):
        for index, point in made.get_next_trials(max_trials=1).items():
            made.complete_trial(index, {"loss": sum((value - 1.2) ** 2 for value in point.values())})
    assert type(models(made)[0]) is CaGP
    assert "6 observations, few enough for it to be the exact GP" in streaming(made)["loss"].chosen


@pytest.mark.parametrize(
    ("dimension", "n", "model"), [(3, 10**6, "wiski"), (4, 512, "cagp"), (4, 513, "grief"), (20, 5001, "softki")]
)
def test_choices(dimension: int, n: int, model: str) -> None:
    assert choose(dimension, n).model == model


def test_cross_validation_has_the_class_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds of fewer rows than where the choice changes load the state of the model that all rows chose."""
    five = [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0.0, 2.0)) for j in range(4)]
    monkeypatch.setattr("bo_scale.ax.surrogates.automatic.EXACT_ROWS", 5)
    made = client("auto", parameters=five, num_eigenfunctions=20, grid_points=4)
    for _ in range(7):
        for index, point in made.get_next_trials(max_trials=1).items():
            made.complete_trial(index, {"loss": sum((value - 1.2) ** 2 for value in point.values())})
    assert streaming(made)["loss"].chosen.startswith("auto: grief")
    results = cross_validate(made._generation_strategy.adapter, folds=3)
    assert len(results) == 6
