"""The README's example does what it says."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs_and_finds_the_optimum() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["model"].num_observations == 1015
    assert (names["x"] - 0.3).abs().amax(-1).min() < 0.1


def test_files_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
