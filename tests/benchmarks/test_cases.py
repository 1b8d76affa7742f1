"""Every quick case with tiny settings: it measures, and the report shows what it measured."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from botorch.test_functions import Hartmann, Levy

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import report, text
from benchmarks.harness import run_case
from benchmarks.questions import ON_README

Hartmann6 = partial(Hartmann, dim=6, negate=True)


TINY: dict[str, dict[str, Any]] = {
    "streaming": {"SIZES": (100, 200), "RIVAL_SIZES": (20, 30), "ROUNDS": 1, "RIVAL_ROUNDS": 1},
    "evidence": {"SIZES": (100, 200), "RIVAL_SIZES": (20, 30), "REPEATS": 1},
    "exact_evidence": {"SIZES": (10, 20), "POSTERIOR": 30, "POINTS": 5, "REPEATS": 1},
    "nipv": {"SIZES": ((50, 100), (50, 200)), "RIVAL_SIZE": (20, 30), "BATCHES": 2},
    "kg": {"SIZE": 30, "REPEATS": {"WISKI": 1, "SingleTaskGP": 1}},
    "batches": {"PROBLEMS": {"Levy-3": (Levy(3), "wiski")}, "SEEDS": 1, "BATCHES": 1, "INITIAL": 5},
    "malaria_seeds": {"SEEDS": range(1), "BATCHES": 1},
    "softki_step": {"POINTS": 10, "BATCH": 30, "ROWS": 60, "REPEATS": 1},
    "grief_eigenfunctions": {"POINTS": 60, "FEATURES": (4, 10), "GRID_POINTS": 5, "SEEDS": range(2)},
    "million": {
        "SIZES": (100, 200),
        "EPOCHS": {100: 2},
        "POINTS": 10,
        "EIGENFUNCTIONS": 20,
        "TEST": 50,
    },
    "missing_variance": {"FUNCTIONS": {"Hartmann-6": Hartmann6}, "SEEDS": range(1), "EVALUATIONS": {"Hartmann-6": 12}},
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("case", TINY)
def test_a_case_measures_and_is_shown(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"benchmarks.{case}")
    for name, value in TINY[case].items():
        monkeypatch.setattr(module, name, value)
    run_case(case, None, folder=tmp_path)
    results = report.load_results(tmp_path)
    assert f"## {module.TITLE}" in report.render_tables(results)
    readme = report.render_readme(results, "a\n<!-- measured -->\nold\n<!-- /measured -->\nb")
    assert "old" not in readme
    assert readme.count("\n| ") == 2 + (case in ON_README)
    rows = module.headline(results[case]) if hasattr(module, "headline") else []
    assert all(what in report.render_pages(results)["index.md"] for what, *_ in rows)
    if hasattr(module, "plot"):
        module.plot(results[case], tmp_path / "docs")
        assert {path.name for path in (tmp_path / "docs").iterdir()} == set(module.PLOTS)


@pytest.mark.parametrize(
    ("value", "shown"), [(6.764, "6.8 s"), (0.00266, "2.7 ms"), (0.0409, "41 ms"), (29.3e-6, "29 µs"), (163.2, "160 s")]
)
def test_seconds(value: float, shown: str) -> None:
    assert text.seconds(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(2539.0, "2,500"), (0.0123, "0.012"), (1.0, "1.0"), (99.7, "100")])
def test_two_digits(value: float, shown: str) -> None:
    assert text.digits(value) == shown
