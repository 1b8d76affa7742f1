import subprocess
import sys

BLOCKED = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "ax" or name.startswith("ax."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_loop_and_surveys_do_not_import_ax() -> None:
    code = "import bo_scale.loop, bo_scale.survey, bo_scale.cli, sys; print([n for n in sys.modules if n == 'ax'])"
    assert python(code).stdout == "[]\n"


def test_everything_else_works_without_ax_installed() -> None:
    done = python(
        BLOCKED
        + """
import bo_scale, bo_scale.survey, bo_scale.cli
from bo_scale.loop import Optimizer
loop = Optimizer([(0.0, 1.0)], num_initial=2, model_options={"grid_size": 64}, refit_growth=9.0)
loop.tell(loop.ask(2), [0.0, 1.0])
print(loop.num_observations)
"""
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_bo_scale_ax_says_how_to_install_ax() -> None:
    code = """
from bo_scale.errors import BoScaleError
try:
    import bo_scale.ax
except ImportError as error:
    print(isinstance(error, BoScaleError), error)
"""
    assert python(BLOCKED + code).stdout == 'True bo_scale.ax needs ax-platform: pip install "bo_scale[ax]"\n'


def test_methods_of_the_optimizer_say_so_too() -> None:
    code = """
from bo_scale.loop import Optimizer
try:
    Optimizer([(0.0, 1.0)]).to_ax()
except ImportError as error:
    print(error)
"""
    assert 'pip install "bo_scale[ax]"' in python(BLOCKED + code).stdout
