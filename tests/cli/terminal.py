"""A terminal for tests: runs commands of the loop, and keeps what they print."""

import json
from typing import Any

import pytest

from bo_scale.cli import main


class Terminal:
    """Runs commands of the loop.

    Attributes:
        output: What the last one printed.
        errors: What it printed on standard error.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.output = self.errors = ""

    def __call__(self, words: str) -> str:
        """Return what a command that succeeds prints."""
        assert self.ends(words) == 0, self.errors
        return self.output

    def json(self, words: str) -> Any:
        return json.loads(self(f"{words} --json"))

    def refused(self, words: str) -> str:
        """Return why a command refuses."""
        assert self.ends(words) == 1, self.output
        assert self.errors.startswith("bo-scale: ")
        return self.errors

    def ends(self, words: str) -> int:
        self._capsys.readouterr()
        code = main(["loop", *words.split()])
        self.output, self.errors = self._capsys.readouterr()
        return code
