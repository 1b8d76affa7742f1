"""Fixtures of the tests of runners."""

from pathlib import Path

import pytest
import trainings


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trainings.LOG, str(tmp_path / "log"))
    return tmp_path / "log"
