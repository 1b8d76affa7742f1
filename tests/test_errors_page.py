"""The page of errors has every error and warning of the package, with its bases."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import bo_scale
from bo_scale import errors, positive_definite
from bo_scale.models import errors as model_errors

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "errors.md").read_text()
ROWS = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}
PUBLIC = [
    each
    for module in (errors, positive_definite, model_errors)
    for _, each in inspect.getmembers(module, inspect.isclass)
    if each.__module__ == module.__name__ and not each.__name__.startswith("_")
]


def test_it_has_every_class_and_no_other() -> None:
    assert sorted(ROWS) == sorted(each.__name__ for each in PUBLIC)


@pytest.mark.parametrize("error", [each for each in PUBLIC if not issubclass(each, Warning)], ids=lambda e: e.__name__)
def test_it_says_what_else_an_error_is(error: type[Exception]) -> None:
    told = set(re.findall(r"`(\w+)`", ROWS[error.__name__].split("|")[2]))
    assert told == {base.__name__ for base in error.__bases__ if base is not errors.BoScaleError}


def test_there_are_no_others_in_the_package() -> None:
    found = []
    for path in sorted(Path(bo_scale.__file__).parent.rglob("*.py")):
        made = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        found += [
            each.name
            for each in made
            if any(re.search(r"(Error|Warning|Exception)$", ast.unparse(base)) for base in each.bases)
            and not each.name.startswith("_")  # which never leave the module
        ]
    assert sorted(found) == sorted(ROWS)
