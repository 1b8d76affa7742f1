"""Many trials at once, told in any order; trials that fail, are given up, or are stopped early."""

from dataclasses import replace
from typing import Any

import pytest
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from clients import client, loss, models, run, tell

from bo_scale.ax import streaming
from bo_scale.ax.surrogates.stream import Stream
from bo_scale.errors import SpaceError


def values(points: Any) -> set[tuple[float, ...]]:
    return {tuple(point.values()) for point in points}


@pytest.mark.usefixtures("whole_fits")
def test_twenty_at_once() -> None:
    made = client()
    options = made._generation_strategy._nodes[-1].generator_specs[0].generator_gen_kwargs["model_gen_options"]
    options["optimizer_kwargs"] = {"num_restarts": 2, "raw_samples": 16, "options": {"maxiter": 5}}
    run(made, 6)
    known = values(trial.arm.parameters for trial in made._experiment.trials.values())
    batch = made.get_next_trials(max_trials=20)
    assert len(batch) == len(values(batch.values())) == 20
    assert not values(batch.values()) & known
    assert all(0 <= value <= 2 for point in batch.values() for value in point.values())
    assert streaming(made)["loss"] == Stream(6, 5, refitted=1, streamed=1)


def test_pending_trials_are_not_proposed_again_and_any_order_streams() -> None:
    made = client(refit_growth=10.0)
    run(made, 6)
    pending = made.get_next_trials(max_trials=4)
    proposed = list(pending.values())
    for index in (8, 6):
        tell(made, index, pending.pop(index))
        more = made.get_next_trials(max_trials=1)
        proposed += more.values()
        pending.update(more)
    assert streaming(made)["loss"] == Stream(8, 5, refitted=1, streamed=3)
    assert len(values(proposed)) == len(proposed) == 6
    for index in sorted(pending, reverse=True):
        tell(made, index, pending[index])
    made.get_next_trials(max_trials=1)
    assert streaming(made)["loss"] == Stream(12, 5, refitted=1, streamed=4)
    assert_the_models_see(made, set(range(12)))


@pytest.mark.parametrize("model", ["wiski", "cagp"])
def test_failed_and_abandoned_trials_are_left_out(model: str) -> None:
    made = client(model, refit_growth=10.0)
    run(made, 6)
    batch = made.get_next_trials(max_trials=4)
    made.mark_trial_failed(6)
    made.mark_trial_abandoned(8)
    tell(made, 9, batch[9])
    again = made.get_next_trials(max_trials=2)
    assert not values(again.values()) & values(batch.values())
    tell(made, 7, batch[7])
    tell(made, 10, again[10])
    made.get_next_trials(max_trials=1)
    stream = streaming(made)["loss"]
    assert (stream.count, stream.refitted, stream.streamed + stream.accumulated) == (9, 1, 3)
    assert model == "cagp" or stream.accumulated == 0
    assert_the_models_see(made, {0, 1, 2, 3, 4, 5, 7, 9, 10})


def test_a_trial_abandoned_after_it_was_told() -> None:
    made = client(refit_growth=10.0)
    run(made, 7)
    assert streaming(made)["loss"].streamed == 1
    running = made.get_next_trials(max_trials=1)
    made.attach_data(7, {"loss": loss(running[7])})
    made.get_next_trials(max_trials=1)
    assert streaming(made)["loss"] == Stream(8, 5, refitted=1, streamed=3)
    made.mark_trial_abandoned(7)
    made.get_next_trials(max_trials=1)
    assert streaming(made)["loss"] == Stream(7, 7, refitted=2, streamed=3)
    assert_the_models_see(made, set(range(7)))


def assert_the_models_see(made: Client, trials: set[int]) -> None:
    """Its rows are those of the trials, in their order."""
    model = models(made)[0]
    points = [made._experiment.trials[index].arm.parameters for index in sorted(trials)]
    assert model.num_observations == len(points)
    assert model._rows is not None
    assert model._rows.X.tolist() == [[point["x"], point["y"]] for point in points]


# ------------------------------------------------------------------ progressions


def curve(point: Any, step: int) -> float:
    """A loss that falls as training goes on."""
    return loss(point) + 2.0 / step


def train(made: Client, index: int, point: Any, steps: tuple[int, ...]) -> bool:
    """Tell of a trial step by step, whether or not it is stopped early."""
    for step in steps:
        made.attach_data(index, {"loss": curve(point, step)}, progression=step)
        if made.should_stop_trial_early(index):
            made.mark_trial_early_stopped(index)
            return True
    made.complete_trial(index)
    return False


def features(made: Client) -> list[str]:
    return list(made._generation_strategy.adapter.generator.search_space_digest.feature_names)


def test_trials_of_equal_length_count_with_their_last_values() -> None:
    made = client(refit_growth=10.0)
    for _ in range(7):
        for index, point in made.get_next_trials(max_trials=1).items():
            assert not train(made, index, point, (5, 9))
    assert features(made) == ["x", "y"]
    assert streaming(made)["loss"] == Stream(6, 5, refitted=1, streamed=1)
    prediction = made.predict([{"x": 1.0, "y": 1.0}])[0]["loss"][0]
    assert prediction == pytest.approx(curve({"x": 1.0, "y": 1.0}, 9), abs=0.3)


def test_a_running_trial_is_revised() -> None:
    """Ax adds the step as an input once trials have come to different ones, and scales it by what there is."""
    made = client(refit_growth=10.0)
    for _ in range(6):
        for index, point in made.get_next_trials(max_trials=1).items():
            train(made, index, point, (5, 10))
    assert features(made) == ["x", "y"]
    ((index, point),) = made.get_next_trials(max_trials=1).items()
    events = []
    for step in (2, 5, 8):
        made.attach_data(index, {"loss": curve(point, step)}, progression=step)
        made.get_next_trials(max_trials=1)
        assert features(made) == ["x", "y", "step"]
        rows = models(made)[0]._rows
        assert rows is not None
        assert rows.X[-1, 2] == 0  # of steps from this one to 10
        assert rows.X[:-1, 2].tolist() == [1] * 6
        events.append(streaming(made)["loss"])
    assert events == [Stream(7, 7, changed=revised, refitted=1, accumulated=revised) for revised in range(3)]
    made.complete_trial(index, {"loss": curve(point, 10)}, progression=10)
    made.get_next_trials(max_trials=1)
    assert features(made) == ["x", "y"]
    assert streaming(made)["loss"] == Stream(7, 7, refitted=1)


def test_trials_stopped_early() -> None:
    made = client(refit_growth=4.0)
    for _ in range(7):
        for index, point in made.get_next_trials(max_trials=1).items():
            train(made, index, point, (5, 11, 20))
            assert all(0 <= value <= 2 for value in point.values())
    bad = made.attach_trial({"x": 0.0, "y": 0.5})
    assert train(made, bad, {"x": 0.0, "y": 0.5}, (5, 11, 20))
    good = made.get_next_trials(max_trials=1)
    assert features(made) == ["x", "y", "step"]
    stream = streaming(made)["loss"]
    assert stream.count == 8
    train(made, max(good), good[max(good)], (5, 11, 20))
    made.get_next_trials(max_trials=1)
    assert streaming(made)["loss"] == replace(stream, count=9, streamed=stream.streamed + 1)
    assert made.predict([{"x": 0.0, "y": 0.5}])[0]["loss"][0] > made.predict([{"x": 1.2, "y": 1.5}])[0]["loss"][0]


def test_the_step_may_be_one_input_too_many_for_a_grid() -> None:
    parameters = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0)) for name in "xyzw"]
    made = client(parameters=parameters, grid_size=4)
    for _ in range(6):
        for index, point in made.get_next_trials(max_trials=1).items():
            train(made, index, point, (5, 10))
    ((index, point),) = made.get_next_trials(max_trials=1).items()
    made.attach_data(index, {"loss": curve(point, 5)}, progression=5)
    with pytest.raises(SpaceError, match="5 parameters after Ax's transforms"):
        made.get_next_trials(max_trials=1)
