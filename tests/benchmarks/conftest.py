"""What the tests of benchmarks share."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import child


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are measured here rather than in a child, which would not see the settings of a test."""
    monkeypatch.setattr(child, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))
