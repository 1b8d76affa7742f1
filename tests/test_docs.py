"""Every code block of README and of the documentation runs, in the order of its page and in one namespace.

Blocks within HTML comments prepare what a page takes for granted. A block that cannot run here stands below a comment
`<!-- not run: reason -->`; it must compile, or be known to the shell.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from bo_scale.cli.program import main
from bo_scale.decisions.by_name import ACQUISITIONS
from bo_scale.models.catalogue import MODELS
from bo_scale.survey.choice.objectives import OBJECTIVES

mpl.use("Agg")

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE)
SCRIPT = "{.python .script}"
"""Blocks that show sections of an example by `--8<-- "file:section"`; the example itself has a test."""
SKIPPED = re.compile(r"<!-- not run: [^>]+ -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    code: str
    line: int
    runs: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        before = text[: found.start()]
        kind = "script" if found["info"].strip() == SCRIPT else found["info"].split(" ")[0]
        yield Block(kind, code, before.count("\n") + 2, SKIPPED.search(before) is None)


KINDS = ("python", "console", "script", "text", "json", "csv", "toml")
TESTS = [*(ROOT / "tests").glob("test_*tutorial*.py"), ROOT / "tests/test_examples.py", ROOT / "tests/test_recipes.py"]
SMALL = {
    "survey.MAP_CELLS": 1000,
    "plan.problem.CANDIDATES": 200,
    "plan.problem.CELLS": 500,
    "plan.teams.REACHED": 100,
    "fitted.CELLS": 400,
    "mapping.exceedance.CELLS": 400,
    "routes.orienteering.RESTARTS": 1,
    "mapping.scored.SCORED": 60,
    "mapping.scored.SPARSE": 60,
    "mapping.scored.HOLLOW": 60,
    "mapping.scored.STEPS": 15,
}
TESTED = [page for page in PAGES if any(block.kind in ("python", "console") for block in blocks(page))]


def commands(code: str) -> list[str]:
    """Commands of a console block: lines that begin with `$ `, continued by a backslash. The others are output."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


def run(command: str, folder: Path) -> None:
    """Run a command by the shell; `bo-scale` alone within this process, which has all imports."""
    words = shlex.split(command, comments=True)
    if words[0] == "bo-scale" and not set(words) & set("|><&;"):
        assert main(words[1:]) in (0, None), command
        return
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture
def registries() -> Iterator[None]:
    """Forget what a page registers."""
    registered = (MODELS, ACQUISITIONS, OBJECTIVES)
    before = [dict(each) for each in registered]
    yield
    for each, kept in zip(registered, before, strict=True):
        each.clear()
        each.update(kept)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of few cells, and plans that look at few places: what a page says is shown, not how good it is."""
    for name, value in SMALL.items():
        monkeypatch.setattr(f"bo_scale.survey.{name}", value)


@pytest.mark.usefixtures("registries", "small", "short_fits", "short_walks")
@pytest.mark.parametrize("page", TESTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.kind == "python":
            compiled = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
            if block.runs:
                exec(compiled, names)
        if block.kind == "console":
            assert commands(block.code), f"{page}:{block.line}: commands begin with '$ '"
            for command in commands(block.code) if block.runs else []:
                run(command, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in KINDS, f"{page}:{block.line}: {block.kind!r}"
        if block.kind == "script":
            shown = re.fullmatch(r'--8<-- "(examples/[\w/]+\.py)(?::(\w+))?"\n', block.code)
            assert shown, f"{page}:{block.line}"
            assert shown[2] is None or f"# --8<-- [start:{shown[2]}]" in (ROOT / shown[1]).read_text(), block
            assert f"{Path(shown[1]).stem}" in "".join(test.read_text() for test in TESTS), f"no test runs {shown[1]}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
