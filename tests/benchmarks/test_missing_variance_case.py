"""The case of missing variance: what its table says of made-up runs."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import missing_variance


def run(model: str, seed: int, last: float, option: str | None = None) -> dict[str, Any]:
    described = {"function": "Hartmann-6", "model": model, "seed": seed, "regret": [3.0, last]}
    return described if option is None else {**described, "option": option, "seconds": 1.0}


def test_differences_are_paired_and_ties_are_not_ahead(tmp_path: Path) -> None:
    last = {"off": (1.0, 2.0, 3.0), "on": (0.5, 1.5, 2.5)}
    runs = [run("random", seed, 2.0) for seed in range(3)]
    runs += [run("GRIEF", seed, last[option][seed], option) for option in last for seed in range(3)]
    result: Any = {"units": {str(i): each for i, each in enumerate(runs)}}
    row = "| Hartmann-6, 100 | GRIEF | 3 | 2.000 ± 0.577 | 1.500 ± 0.577 | -0.500 ± 0.000 | 2.000 ± 0.000 |"
    assert f"{row} 1 of 3 | 2 of 3 |" in missing_variance.table(result)
    ((_, counts, _),) = missing_variance.headline(result)
    assert counts == "GRIEF Hartmann-6 1 of 3"
    missing_variance.plot(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(missing_variance.PLOTS)


def test_a_failed_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no fit")

    monkeypatch.setattr(missing_variance, "fit", fails)
    failed = missing_variance.optimise("Hartmann-6", "GRIEF", "on", 0)
    assert failed["error"] == "RuntimeError at n = 10: no fit"
    assert "- x: RuntimeError" in missing_variance.table({"units": {"x": failed}})


def test_all_start_from_the_same_points() -> None:
    random = missing_variance.random_search("Ackley-5", 3)
    Y = missing_variance.evaluate(missing_variance.FUNCTIONS["Ackley-5"](), missing_variance.first_points(5, 3))
    assert random["regret"][0] == pytest.approx(-Y.max().item())
    assert len(random["regret"]) == 51
