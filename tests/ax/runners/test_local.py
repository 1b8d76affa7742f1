import json
import math
import os
import time
from pathlib import Path

import pytest
from trainings import said
from trials import alive, local, wait

from bo_scale.ax import ResultMetric
from bo_scale.ax.runners import worker


def test_a_trial_runs_in_a_session_of_its_own_and_leaves_its_outcomes(tmp_path: Path) -> None:
    runner = local(tmp_path, "good", threads=3)
    metadata = runner.run_trial(7, {"x": 3.0})
    assert metadata["attempt"] == 1
    assert metadata["start"] == worker.started(metadata["pid"])
    assert os.getsid(metadata["pid"]) == metadata["pid"] != os.getsid(0)
    assert json.loads(json.dumps(metadata)) == metadata
    assert wait(runner, 7) == "COMPLETED"
    assert said("ended") == [3.0]
    assert ResultMetric("loss").fetch(7, metadata)[1][0] == 9.0
    assert math.isnan(ResultMetric("loss").fetch(7, metadata)[1][1])
    assert ResultMetric("cost").fetch(7, metadata) == (0, (6.0, 0.5))
    assert ResultMetric("threads").fetch(7, metadata)[1][0] == 3.0
    with pytest.raises(KeyError, match=r"outcome 'speed': the function returned only \['cost', 'loss', 'threads'\]"):
        ResultMetric("speed").fetch(7, metadata)


def test_no_zombies_stay_of_completed_trials(tmp_path: Path) -> None:
    runner = local(tmp_path, "good")
    pids = []
    for index in range(3):
        pids.append(runner.run_trial(index, {"x": 1.0})["pid"])
        wait(runner, index)
        while alive(pids[-1]):
            time.sleep(0.01)
    assert not Path(f"/proc/{pids[0]}").exists()
    assert not Path(f"/proc/{pids[1]}").exists()
