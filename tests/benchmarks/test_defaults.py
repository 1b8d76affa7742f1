"""The benchmark of searches with no options: every package proposes valid points of every kind of space."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks import defaults
from benchmarks.defaults import MODELS, PROBLEMS, SEEDS, Point
from bo_scale.loop import Choice, Integer


@pytest.mark.filterwarnings("ignore")  # of the other packages
@pytest.mark.parametrize("model", MODELS)
def test_points_are_valid_and_regrets_fall(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "EVALUATIONS", 8)
    monkeypatch.setattr(defaults, "RAW", 16)
    monkeypatch.setattr(defaults, "RESTARTS", 2)
    problem, seen = PROBLEMS["Tuning"], list[Point]()

    def evaluate_all(points: list[Point]) -> list[float]:
        seen.extend(points)
        return defaults._tuning(points)

    monkeypatch.setitem(PROBLEMS, "Tuning", defaults.Problem(problem.space, evaluate_all, problem.optimum))
    run = defaults.optimise("Tuning", model, 0)
    assert len(run["regret"]) == len(seen) == 8
    assert run["regret"] == sorted(run["regret"], reverse=True)
    for point in seen:
        for name, each in problem.space.items():
            if isinstance(each, Choice):
                assert point[name] in each.values
            else:
                assert each.lower <= point[name] <= each.upper
                assert isinstance(point[name], int) or not isinstance(each, Integer)


@pytest.fixture(autouse=True)
def _small_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranges are found from few points: they are for tables."""
    monkeypatch.setattr(defaults, "SAMPLE", 32)
    defaults._span_of.cache_clear()
    yield
    defaults._span_of.cache_clear()


@pytest.mark.parametrize("name", PROBLEMS)
def test_optima_are_minima(name: str) -> None:
    problem = PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand(20, defaults._width(problem), generator=generator, dtype=torch.float64)
    points = defaults._decoded(problem, unit)
    assert min(problem.evaluate(point) for point in points) >= problem.optimum
    again = defaults._decoded(problem, defaults._valid(problem, unit))
    for point, same in zip(points, again, strict=True):
        assert {k: v for k, v in same.items() if isinstance(v, str | int)} == {
            k: v for k, v in point.items() if isinstance(v, str | int)
        }
    assert problem.span > 0


def test_the_table_compares_with_every_rival() -> None:
    units = {
        f"{name} {model} seed {seed}": {
            "problem": name,
            "model": model,
            "seed": seed,
            "regret": [1.0 + seed / 10 + 0.1 * number] * 40,
            "seconds": 4.0,
        }
        for seed in list(SEEDS)[:3]
        for name in PROBLEMS
        for number, model in enumerate(MODELS)
    }
    result = {"case": "defaults", "units": units}
    shown = defaults.table(result)
    assert "| Hartmann-6 | Optuna | 3 |" in shown
    ((_, ours, _),) = defaults.headline(result)
    assert "Optuna -0.0" in ours
