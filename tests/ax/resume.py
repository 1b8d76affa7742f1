"""Goes on with an experiment in a process that has never heard of it.

    python resume.py FILE

Printed is one JSON object: what Ax said before `bo_scale.ax` was imported, what was pending, and what was proposed.
"""

import json
import sys
from typing import Any

import torch
from ax.api.client import Client


def refused(path: str) -> str:
    assert "bo_scale" not in sys.modules
    try:
        Client.load_from_json_file(path)
    except ValueError as error:
        return str(error)
    return ""


def resumed(path: str) -> dict[str, Any]:
    """Two more trials while others are pending, then all are completed, then two more."""
    import bo_scale.ax

    made = Client.load_from_json_file(path)
    made.save_to_json_file(path + ".again")
    trials = made._experiment.trials
    pending = [index for index, trial in trials.items() if trial.status.is_running]
    from clients import models, run, tell  # nothing of which loading needed

    new = list(made.get_next_trials(max_trials=2))
    kinds = [type(model).__name__ for model in models(made)]
    for index in [*pending, *new]:
        tell(made, index, trials[index].arm.parameters)
    run(made, 2)
    streams = {name: vars(stream) for name, stream in bo_scale.ax.streaming(made).items()}
    nodes = [trials[index].generator_runs[0]._generation_node_name for index in sorted(trials)]
    return {"pending": pending, "new": new, "models": kinds, "streams": streams, "nodes": nodes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({"refused": refused(sys.argv[1]), **resumed(sys.argv[1])}))
