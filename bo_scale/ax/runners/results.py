"""Read the results of trials into an Ax experiment, and continue an experiment after a crash."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from ax.api.client import Client
from ax.api.protocols.metric import IMetric
from ax.core.experiment import Experiment
from ax.core.map_metric import MapMetric
from ax.core.metric import Metric
from ax.core.trial import Trial
from typing_extensions import override

from bo_scale.ax.internals import experiment_of, properties_of, save_trials
from bo_scale.ax.runners.folder_runner import FolderRunner
from bo_scale.ax.runners.worker import read, write_once
from bo_scale.errors import MissingOutcomeError, RunnerError

logger = logging.getLogger("bo_scale.ax")
TOKEN = "bo_scale_runs"
"""The property of an experiment, and the record in a folder, by which they know each other."""


class ResultMetric(IMetric):
    """An Ax metric that reads an outcome from a trial's result file. The runner puts its path in the trial's metadata.

    Args:
        name: Name of the outcome, as the function returns it.
        lower_is_better: As for Ax's metrics.
    """

    def __init__(self, name: str, lower_is_better: bool | None = None) -> None:
        super().__init__(name=name)
        self.lower_is_better = lower_is_better

    @override
    def fetch(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> tuple[int, tuple[float, float]]:
        """Return the mean and its standard error, NaN if unknown.

        Raises:
            MissingOutcomeError: if the function returned no such outcome.
            RunnerError: if there is no result.
        """
        found = outcomes(trial_metadata.get("result", ""))
        if self.name not in found:
            raise MissingOutcomeError(
                f"outcome {self.name!r}: the function returned only {sorted(found)}. Return this outcome too."
            )
        return 0, found[self.name]


def outcomes(path: str) -> dict[str, tuple[float, float]]:
    """Return the outcomes of a trial by name: means, and standard errors or NaN.

    Args:
        path: The file of the trial's result.

    Raises:
        RunnerError: if there is none.
    """
    result = read(Path(path)) if path else None
    if result is None:
        raise RunnerError(f"{path!r}: there is no result. If you moved its folder, call attach(client, runner) again.")
    return {name: (mean, math.nan if sem is None else sem) for name, (mean, sem) in result["outcomes"].items()}


def attach(client: Client, runner: FolderRunner, tracking: Sequence[str] = ()) -> list[int]:
    """Prepare an experiment for `Client.run_trials`, whether it is new or loaded from a database or a file.

    This configures the runner, and a `ResultMetric` for every outcome of the objective, the constraints and `tracking`.
    It then gives Ax what only the runner's folder has: trials that started after the experiment was last saved, and
    data lost in a crash. `run_trials` polls running trials again:

        client = Client.load_from_database("tuning", storage)  # after `import bo_scale.ax`
        attach(client, LocalRunner(train, "runs", workers=8))  # the same folder
        client.run_trials(max_trials=100 - len(client.summarize()), parallelism=8)

    An experiment from a JSON file continues in the same way if it was saved at least once after `attach`.

    Args:
        client: A client with an experiment and an optimization configured.
        runner: The runner. No other experiment may use its folder.
        tracking: Names of further outcomes to keep.

    Returns:
        Indices of the trials that Ax did not know.

    Raises:
        RunnerError: if there is nothing to optimise, or the folder belongs to another experiment.
    """
    experiment = experiment_of(client)
    if experiment.optimization_config is None:
        raise RunnerError("client: it has nothing to optimise. Call configure_optimization first.")
    _require_own(experiment, Path(runner.folder))
    for index, trial in experiment.trials.items():
        if not trial.status.is_terminal and isinstance(trial, Trial) and trial.arm is not None:
            runner.require_same(index, trial.arm.parameters)
    token = properties_of(experiment).setdefault(TOKEN, uuid4().hex)
    client.configure_runner(runner)
    client.configure_metrics(_metrics(experiment, tracking))  # this saves the token too
    Path(runner.folder).mkdir(parents=True, exist_ok=True)
    write_once(Path(runner.folder) / "experiment.json", {TOKEN: token})
    _require_own(experiment, Path(runner.folder))
    new = _take_up(client, runner)
    _complete(client, runner)
    return new


def _require_own(experiment: Experiment, folder: Path) -> None:
    known = read(folder / "experiment.json")
    if known is not None and known[TOKEN] != properties_of(experiment).get(TOKEN):
        raise RunnerError(
            f"folder={str(folder)!r}: it holds trials of another experiment. To continue that one, load it; this works "
            f"if it was saved after attach. Otherwise give another folder."
        )


def _metrics(experiment: Experiment, tracking: Sequence[str]) -> list[ResultMetric]:
    """Return a metric for each outcome that has none of the user's own."""
    known = {name: metric for name, metric in experiment.metrics.items() if type(metric) in (Metric, MapMetric)}
    made = [ResultMetric(name, metric.lower_is_better) for name, metric in known.items()]
    return made + [ResultMetric(name) for name in tracking if name not in experiment.metrics]


def _take_up(client: Client, runner: FolderRunner) -> list[int]:
    """Attach the trials that follow on the last one that Ax knows."""
    new: list[int] = []
    while (task := runner.task(max(experiment_of(client).trials, default=-1) + 1)) is not None:
        new.append(client.attach_trial(task["parameters"]))
    if new:
        logger.warning(
            "Ax did not know trials %s, which were started but not saved. They were restored from %s.",
            new,
            runner.folder,
        )
    return new


def _complete(client: Client, runner: FolderRunner) -> None:
    """Tell Ax what it may have lost between two writes: metadata of trials, and data of completed ones."""
    experiment = experiment_of(client)
    data = experiment.lookup_data().df
    kept = set(zip(data["trial_index"], data["metric_name"]))
    ours = {name for name, metric in experiment.metrics.items() if isinstance(metric, ResultMetric)}
    for index, trial in experiment.trials.items():
        if runner.task(index) is None:
            continue
        metadata = runner.metadata(index)
        if trial.run_metadata.get("result") != metadata["result"]:
            trial.update_run_metadata(metadata)
            save_trials(client, [trial])
        lost = {name for name in ours if (index, name) not in kept}
        if lost and trial.status.is_completed and Path(metadata["result"]).exists():
            found = {name: outcome for name, outcome in outcomes(metadata["result"]).items() if name in lost}
            if found:
                client.attach_data(index, found, progression=0)
