"""Every table and plot from the results alone: the pages of docs/measured and a section of README.md."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import text
from benchmarks.questions import ON_README, QUESTIONS, Question
from benchmarks.store import RESULTS, Result

ROOT = Path(__file__).parent.parent
README, PAGES = ROOT / "README.md", ROOT / "docs/measured"
_MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)

Results = dict[str, Result]

_MADE = "<!-- Made from benchmarks/results by `python -m benchmarks report`; do not edit. -->"


def load_results(folder: Path = RESULTS) -> Results:
    """The results there are, in the order of the questions."""
    paths = {case: folder / f"{case}.json" for question in QUESTIONS for case in question.cases}
    loaded = {case: json.loads(path.read_text()) for case, path in paths.items() if path.exists()}
    return {case: result for case, result in loaded.items() if result["units"]}


def render_pages(results: Results) -> dict[str, str]:
    """The texts of docs/measured by file name: a page for each question, and one with all headlines."""
    pages = {f"{question.page}.md": _page(question, results) for question in QUESTIONS}
    return {"index.md": _index(results), **pages}


def render_tables(results: Results) -> str:
    """The sections of all cases in one text."""
    return "\n\n".join(_section(result) for result in results.values())


def render_readme(results: Results, readme: str) -> str:
    """README.md with the text between its markers made from the results.

    Raises:
        ValueError: if the markers are not there.
    """
    if not _MARKED.search(readme):
        raise ValueError("README.md: no <!-- measured --> … <!-- /measured --> to write between.")
    rows = [_headline(results[case])[0] for case in ON_README if case in results]
    body = text.table(["what", "`bo_scale`", "rival"], rows, align="---")
    return _MARKED.sub(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", readme)


def write_report(folder: Path = RESULTS) -> None:
    """Write all tables and plots."""
    results = load_results(folder)
    for name, page in render_pages(results).items():
        (PAGES / name).write_text(page)
    README.write_text(render_readme(results, README.read_text()))
    for case, result in results.items():
        module = import_module(f"benchmarks.{case}")
        if hasattr(module, "plot"):
            module.plot(result, PAGES)
    print(f"Written: {README}, pages and plots in {PAGES}, of {', '.join(results)}.")


def _page(question: Question, results: Results) -> str:
    parts = [
        _MADE,
        f"# {question.title}",
        f"**What was measured.** {question.asked}",
        f"**Weaker than hoped.** {question.weaker}",
        render_tables({case: results[case] for case in question.cases if case in results}),
    ]
    return "\n\n".join(parts) + "\n"


def _index(results: Results) -> str:
    parts = [_MADE, _INTRODUCTION]
    for question in QUESTIONS:
        rows = [row for case in question.cases if case in results for row in _headline(results[case])]
        body = text.table(["what", "`bo_scale`", "rival"], rows, align="---") if rows else ""
        parts += [f"## [{question.title}]({question.page}.md)", body]
    return "\n\n".join(part for part in parts if part) + "\n"


_INTRODUCTION = """\
# Measured

Look up how fast and how accurate the package is, and where it is weaker than hoped.

Every claim of speed or quality is measured, with its rival in the same run. Each page says what was asked, on
which data, and against which rival. The small print below each table names the machine and the versions.

Times are medians of wall time, unless a page says otherwise. Models take turns in one process. To repeat a case, run
`python -m benchmarks NAME`; see [benchmarks](../develop/benchmarks.md)."""


def _section(result: Result) -> str:
    module = import_module(f"benchmarks.{result['case']}")
    pictures = [f"![{caption}]({name})" for name, caption in getattr(module, "PLOTS", {}).items()]
    return "\n\n".join([f"## {module.TITLE}", module.table(result).strip(), *pictures, _provenance(result)])


def _headline(result: Result) -> list[text.Row]:
    module = import_module(f"benchmarks.{result['case']}")
    return module.headline(result) if hasattr(module, "headline") else []


def _provenance(result: Result) -> str:
    """Case, machine and versions in a line."""
    machines = [result["machine"], *(unit["machine"] for unit in result["units"].values() if "machine" in unit)]
    threads = sorted({unit["threads"] for unit in result["units"].values()})
    return (
        f"<sub>`{result['case']}`: {' or '.join(dict.fromkeys(map(_described, machines)))}, "
        f"{' or '.join(map(str, threads))} thread{'' if threads == [1] else 's'}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + "</sub>"
    )


def _described(machine: dict[str, Any]) -> str:
    return ", ".join([machine["processor"], f"{machine['cores']} cores", *([machine["gpu"]] if machine["gpu"] else [])])
