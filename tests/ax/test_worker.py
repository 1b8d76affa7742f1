import json
import subprocess
import sys
from pathlib import Path

import bo_scale

SCRIPT = Path(bo_scale.__file__).parent / "ax" / "worker.py"


def test_a_job_submitted_with_the_old_path_runs_its_trial(tmp_path: Path) -> None:
    """Without the package: the worker is a script of the standard library."""
    (tmp_path / "function.py").write_text("def train(point):\n    return {'loss': point['x'] ** 2}\n")
    attempt = tmp_path / "trial-00000" / "attempt-1"
    attempt.mkdir(parents=True)
    task = {
        "trial": 0,
        "parameters": {"x": 3.0},
        "function": f"{tmp_path / 'function.py'}:train",
        "threads": 1,
        "cwd": str(tmp_path),
        "path": [],
    }
    (attempt.parent / "task.json").write_text(json.dumps(task))
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(attempt)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((attempt.parent / "result.json").read_text())["outcomes"] == {"loss": [9.0, None]}
    assert subprocess.run(command, check=False).returncode == 1  # claimed: it is run once
