import ast
from pathlib import Path

import pytest

import bo_scale
from bo_scale import errors

SOURCE = Path(bo_scale.__file__).parent
BUILTIN = {"Exception", "ValueError", "TypeError", "KeyError", "RuntimeError", "ImportError"}


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.WrongTypeError, TypeError),
        (errors.MissingDependencyError, ImportError),
        (errors.MissingOutcomeError, KeyError),
    ],
)
def test_errors_are_ours_and_of_the_type_that_callers_expect(error, others):
    made = error("the remedy")
    assert isinstance(made, errors.BoScaleError)
    assert isinstance(made, others)
    assert str(made) == "the remedy"


@pytest.mark.parametrize("room", ["loop", "ax", "decisions", "models", "gp", "training", "datasets"])
def test_no_bare_builtin_is_raised(room):
    found = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        if path.name == "worker.py":  # runs without the package
            continue
        tree = ast.parse(path.read_text())
        others = BUILTIN | {name for node in ast.walk(tree) for name in _from_botorch(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                found += [f"{path}:{node.lineno}"] if node.exc.func.id in others else []
    assert found == []


def _from_botorch(node):
    if isinstance(node, ast.ImportFrom) and node.module == "botorch.exceptions.errors":
        return [name.asname or name.name for name in node.names]
    return []
