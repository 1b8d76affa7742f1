"""In a process of its own, where Ax cannot be imported: one, as it takes seconds to import what is needed."""

import json
import subprocess
import sys
from typing import Any

import pytest

BLOCKED = """
import importlib.abc, json, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "ax" or name.startswith("ax."):
            wanted.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

wanted = []
sys.meta_path.insert(0, Blocked())

import bo_scale, bo_scale.loop, bo_scale.survey, bo_scale.cli
from bo_scale.errors import BoScaleError
from bo_scale.loop import Optimizer

said = {"wanted": list(wanted)}
loop = Optimizer([(0.0, 1.0)], num_initial=2, model="wiski", model_options={"grid_size": 64}, refit_growth=9.0)
loop.tell(loop.ask(2), [0.0, 1.0])
said["observations"] = loop.num_observations
try:
    import bo_scale.ax
except ImportError as error:
    said["import"] = [isinstance(error, BoScaleError), str(error)]
try:
    loop.to_ax()
except ImportError as error:
    said["method"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def without_ax() -> dict[str, Any]:
    """What is said where Ax is not installed."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_loop_and_surveys_do_not_import_ax(without_ax: dict[str, Any]) -> None:
    assert without_ax["wanted"] == []


def test_everything_else_works_without_ax_installed(without_ax: dict[str, Any]) -> None:
    assert without_ax["observations"] == 2


def test_bo_scale_ax_says_how_to_install_ax(without_ax: dict[str, Any]) -> None:
    assert without_ax["import"] == [True, 'bo_scale.ax needs ax-platform: pip install "bo_scale[ax]"']


def test_methods_of_the_optimizer_say_so_too(without_ax: dict[str, Any]) -> None:
    assert 'pip install "bo_scale[ax]"' in without_ax["method"]
