import pytest
from ax.adapter.cross_validation import cross_validate
from ax.api.configs import RangeParameterConfig
from chosen_rows import limits
from clients import client, models, run
from torch import Tensor

from bo_scale import CaGP, SoftKI
from bo_scale.ax import streaming
from bo_scale.models.choice import choose as module
from bo_scale.models.choice.automatic import AutomaticModel
from bo_scale.models.choice.report import ChoiceReport

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")


def test_automatic_says_what_and_why() -> None:
    made = client("auto")
    run(made, 11)
    assert type(models(made)[0]) is CaGP
    stream = streaming(made)["loss"]
    assert stream.chosen.startswith("auto: exact GP, ")
    assert "few enough for an exact GP" in stream.chosen
    five = [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0.0, 2.0)) for j in range(5)]
    made = client("auto", parameters=five)
    for _ in range(7):
        for index, point in made.get_next_trials(max_trials=1).items():
            made.complete_trial(index, {"loss": sum((value - 1.2) ** 2 for value in point.values())})
    assert type(models(made)[0]) is CaGP
    assert "too few to compare anything" in streaming(made)["loss"].chosen


def test_cross_validation_has_the_class_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds of fewer rows than where the choice changes load the state of the model that all rows chose."""
    five = [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0.0, 2.0)) for j in range(4)]
    limits(monkeypatch, FEWEST_ROWS=3, EXACT_ROWS=4, UNSEEN_ROWS=2)
    monkeypatch.setattr(module, "candidates", lambda *_: [module.Plan("softki", "rbf")])
    made = client("auto", parameters=five)
    for _ in range(7):
        for index, point in made.get_next_trials(max_trials=1).items():
            made.complete_trial(index, {"loss": sum((value - 1.2) ** 2 for value in point.values())})
    assert streaming(made)["loss"].chosen.startswith("auto: SoftKI")
    assert type(models(made)[0]) is SoftKI
    results = cross_validate(made._generation_strategy.adapter, folds=3)
    assert len(results) == 6


def test_a_correction_chooses_and_fits_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that the choice saw; new trials leave the choice."""
    seen: list[int] = []
    choose = AutomaticModel.choose

    def counted(self: AutomaticModel, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> ChoiceReport:
        seen.append(len(X))
        return choose(self, X, Y, Yvar)

    monkeypatch.setattr(AutomaticModel, "choose", counted)
    made = client("auto", refit_growth=10.0)
    run(made, 8)
    assert seen == [5]
    made.attach_data(2, {"loss": 1e4})
    run(made, 2)
    assert seen == [5, 8]
    assert streaming(made)["loss"].fitted == 8
    made.attach_data(8, {"loss": 2.0})  # the choice did not see it
    run(made, 1)
    assert seen == [5, 8]
    assert streaming(made)["loss"].fitted == 10
