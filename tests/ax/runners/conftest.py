"""Fixtures of the tests of runners."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trainings


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trainings.LOG, str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of controllers, killed again and again; by kind of storage."""
    folder = tmp_path_factory.mktemp("controllers")
    script = Path(__file__).parents[1] / "controllers.py"
    environment = {**os.environ, trainings.LOG: str(folder / "log")}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in map(json.loads, done.stdout.splitlines())}
