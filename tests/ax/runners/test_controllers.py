"""Controllers that are killed and others that go on, in processes of their own: one run serves all tests here."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trainings


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


@pytest.mark.parametrize("kind", ["sql", "json"])
def test_killed_controllers_finish_every_trial_once(lives: dict[str, Any], kind: str) -> None:
    life = lives[kind]
    assert life["killed"] == [True] * (len(life["killed"]) - 1) + [False]
    assert len(life["killed"]) >= 4
    trials = life["trials"]
    assert [trial["status"] for trial in trials] == ["COMPLETED"] * len(trials)
    xs = [trial["x"] for trial in trials]
    assert Counter(life["begun"]) == Counter(xs)
    assert Counter(life["ended"]) == Counter(xs)
    assert [trial["loss"] for trial in trials] == pytest.approx([x**2 for x in xs], abs=1e-9)
    assert all(trial["result"].endswith(f"trial-{index:05d}/result.json") for index, trial in enumerate(trials))
    (stream,) = life["streams"]
    assert stream["refitted"] > 0


def test_killed_controllers_are_resumed_in_the_middle(lives: dict[str, Any]) -> None:
    assert any(lives["sql"]["new"]), "a trial that was started and not saved was taken up"
    assert any(lives["json"]["new"])
    assert lives["sql"]["without_data"] >= 1


def test_jobs_of_submitit_are_found_again_by_another_process(lives: dict[str, Any]) -> None:
    life = lives["submitit"]
    assert life["statuses"] == ["COMPLETED", "FAILED"]
    assert sorted(life["begun"]) == [3.0, 4.0]
    assert life["ended"] == [3.0]
    assert life["reason"] == "FloatingPointError: no convergence at x = 4.0"
    assert life["running"] == ["RUNNING", "RUNNING"]
    assert life["loss"] == 9.0
    assert all(int(job) for job in life["jobs"])
