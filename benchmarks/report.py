"""Every table and plot from the results alone: benchmarks/README.md, docs/*.png and a section of README.md."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import CASES, text
from benchmarks.store import RESULTS, Result

ROOT = Path(__file__).parent.parent
README, TABLES, DOCS = ROOT / "README.md", ROOT / "benchmarks/README.md", ROOT / "docs"
_MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)

Results = dict[str, Result]

_INTRODUCTION = """\
# Measured

Made from [results](results) by `python -m benchmarks report`; do not edit. `python -m benchmarks NAME` measures a case,
unit by unit: it may be interrupted and resumed, and two processes may share it. `--fresh` starts it anew, as another
machine or other versions require. Cases that read data sets need `--data FOLDER`. Times are medians of wall time, of
models taken in turns in one process."""


def load_results(folder: Path = RESULTS) -> Results:
    """The results there are, in the order of CASES."""
    paths = {case: folder / f"{case}.json" for case in CASES}
    loaded = {case: json.loads(path.read_text()) for case, path in paths.items() if path.exists()}
    return {case: result for case, result in loaded.items() if result["units"]}


def render_tables(results: Results) -> str:
    """The text of benchmarks/README.md."""
    return "\n\n".join([_INTRODUCTION, *(_section(result) for result in results.values())]) + "\n"


def render_readme(results: Results, readme: str) -> str:
    """README.md with the text between its markers made from the results.

    Raises:
        ValueError: if the markers are not there.
    """
    if not _MARKED.search(readme):
        raise ValueError("README.md: no <!-- measured --> … <!-- /measured --> to write between.")
    rows = [row for result in results.values() for row in _headline(result)]
    body = text.table(["what", "`bo_scale`", "rival"], rows, align="---")
    return _MARKED.sub(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", readme)


def write_report(folder: Path = RESULTS) -> None:
    """Write all tables and plots."""
    results = load_results(folder)
    TABLES.write_text(render_tables(results))
    README.write_text(render_readme(results, README.read_text()))
    for case, result in results.items():
        module = import_module(f"benchmarks.{case}")
        if hasattr(module, "plot"):
            module.plot(result, DOCS)
    print(f"Written: {TABLES}, {README} and plots in {DOCS}, of {', '.join(results)}.")


def _section(result: Result) -> str:
    module = import_module(f"benchmarks.{result['case']}")
    pictures = [f"![{caption}](../docs/{name})" for name, caption in getattr(module, "PLOTS", {}).items()]
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
