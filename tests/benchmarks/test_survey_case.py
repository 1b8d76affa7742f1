import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import survey_size
from benchmarks.harness import run_case
from benchmarks.store import Store
from bo_scale.cli import main


def in_process(folder: Path, line: list[str]) -> dict[str, float]:
    """As the case times a command, without the imports of a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["survey", *line]) == 0
    return {"seconds": float(len(line)), "megabytes": 2000.0}


def test_its_commands_make_a_plan_a_map_and_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_size, "SIZES", {30: (300, 1)})
    monkeypatch.setattr(survey_size, "LIMITS", {30: 30.0})
    monkeypatch.setattr(survey_size, "_timed", in_process)
    monkeypatch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 100)
    monkeypatch.setattr("bo_scale.survey.plan.problem.CELLS", 200)
    run_case("survey_size", None, folder=tmp_path)
    result = Store("survey_size", tmp_path).read()
    assert "| 30 | 300 | 9 s | 8 s | 6 s | 23 s | 2,000 MB |" in survey_size.table(result).replace(".0 s", " s")
    ((_, ours, _),) = survey_size.headline(result)
    assert ours == "30 sites, 300 cells: 23 s, 2.0 GB (target: 30 s)"


def test_a_command_that_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="arguments are required"):
        survey_size._timed(tmp_path, ["status"])
