"""The README's examples do what it says, and its numbers are the measured ones."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent))
from benchmarks import report

README = report.README


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_botorch_example_runs_and_finds_the_optimum() -> None:
    names: dict[str, Any] = {}
    exec(examples()[0], names)
    assert names["model"].num_observations == 1015
    assert (names["x"] - 0.3).abs().amax(-1).min() < 0.1


def test_the_loop_example_runs_and_finds_the_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(examples()[1], names)
    assert names["optimizer"].num_observations == 60
    assert abs(names["optimizer"].best().x["x"] - 0.3) < 0.15


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning", "ignore::UserWarning")
def test_the_ax_example_streams() -> None:
    names: dict[str, Any] = {}
    exec(examples()[2], names)
    stream = names["streaming"](names["client"])["loss"]
    assert stream.streamed > 0
    assert stream.accumulated == 0
    point, *_ = names["client"].get_best_parameterization()
    assert (point["x"] - 0.3) ** 2 + point["y"] < 0.15


def test_tables_are_what_the_report_makes_of_the_results() -> None:
    results = report.load_results()
    remedy = "run python -m benchmarks report"
    assert README.read_text() == report.render_readme(results, README.read_text()), remedy
    pages = report.render_pages(results)
    assert {name: (report.PAGES / name).read_text() for name in pages} == pages, remedy
    assert {page.name for page in report.PAGES.glob("*.md")} == set(pages), "a page of no question"


def test_files_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
