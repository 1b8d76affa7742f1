"""The base of the runners: the state of each trial is a folder, and each trial is finished once."""

import json
import logging
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ax.api.protocols.runner import IRunner
from ax.core.base_trial import BaseTrial
from ax.core.trial_status import TrialStatus
from typing_extensions import override

from bo_scale.ax.runners import worker
from bo_scale.ax.runners.processes import Record
from bo_scale.ax.runners.worker import CLAIM, FAILURE, RESULT, STOPPED, TASK, read, write_once
from bo_scale.errors import InvalidArgumentError, RunnerError
from bo_scale.files import replacing

logger = logging.getLogger("bo_scale.ax")
LAUNCH = "launch.json"
"""File in the folder of an attempt that names the process or job last started for it."""
LOST = "the process that submitted it is gone"
"""Reason of an attempt that nobody can wait for any more, through no fault of its own."""
REASON_LENGTH = 100
"""Maximum length of a reason in Ax's tables; the whole reason is in the folder."""
POLLED_SECONDS = 3600.0
"""Ax polls what it runs every few minutes: a trial that was not polled for so long is not waited for any more."""
Function = Callable[[dict[str, Any]], Any]


class FolderRunner(IRunner, ABC):
    """Trials whose whole state is in a folder, `folder/trial-00000/attempt-1` and so on.

    Every trial is finished once, whatever is killed and whenever:

    - Of all processes started for an attempt one gets its claim, and the others end at once. So whoever comes after a
      controller that was killed as it started one, and cannot know about it, may start another.
    - An attempt is given up by who gets its claim, or has seen the claimant dead or killed it; only then is there the
      next. With a result there is no further attempt, and the first result stays.
    - Polling reads the folder and not Ax's record of the trial. `attach` tells Ax of trials it has no record of.

    What is left to chance: a process that ends between the last line of the function and the file of its result is
    lost, and is run again where attempts are left. Two controllers at a time are one too many, but spoil nothing.
    """

    def __init__(
        self,
        function: Function | str,
        folder: str | os.PathLike[str],
        workers: int | None,
        timeout_seconds: float | None,
        retries: int,
        threads: int | None,
    ) -> None:
        if workers is not None and workers < 1:
            raise InvalidArgumentError(
                f"workers={workers}: must be at least 1, or None for as many as run_trials asks for."
            )
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise InvalidArgumentError(f"timeout_seconds={timeout_seconds}: must be above 0, or None for no limit.")
        if retries < 0:
            raise InvalidArgumentError(f"retries={retries}: must be at least 0.")
        if threads is not None and threads < 1:
            raise InvalidArgumentError(f"threads={threads}: must be at least 1, or None to leave the setting alone.")
        self.function = reference(function)
        self.folder = str(Path(folder).absolute())
        self.workers = workers
        self.timeout_seconds = timeout_seconds
        self.retries = retries
        self.threads = threads
        self._open: dict[int, float] | None = None

    @abstractmethod
    def _launch(self, attempt: Path) -> Record:
        """Start a worker and return its record."""

    @abstractmethod
    def _ended(self, claim: Record | None, launch: Record | None) -> str | None:
        """Return why no worker can finish any more; None while one may."""

    @abstractmethod
    def _kill(self, claim: Record | None, launch: Record | None) -> bool:
        """Kill whatever was started; return whether it is gone."""

    def _since(self, claim: Record | None, launch: Record | None) -> float | None:
        """Return when the time limit began to run, by the clock; None before."""
        return claim["time"] if claim is not None else None

    @override
    def poll_available_capacity(self) -> int:
        """Return the number of free workers, −1 for any number.

        One is taken by each trial that is not over and either has a worker that lives, or was started or polled by this
        runner of late, and so is started again if its worker has died. O(trials that were so at the last call).
        """
        if self.workers is None:
            return -1
        self._open = {index: last for index, last in self._known().items() if self._takes_worker(index, last)}
        return max(self.workers - len(self._open), 0)

    @override
    def run_trial(self, trial_index: int, parameterization: Mapping[str, Any]) -> dict[str, Any]:
        """Start a trial, unless it was started already.

        Raises:
            RunnerError: if the folder has a trial of this index with other parameters, or no process can be started.
        """
        trial, parameters = self._trial(trial_index), json.loads(json.dumps(parameterization))
        trial.mkdir(parents=True, exist_ok=True)
        path = [os.path.abspath(each) for each in sys.path]
        task = {"function": self.function, "threads": self.threads, "cwd": os.getcwd(), "path": path}
        write_once(trial / TASK, {"trial": trial_index, "parameters": parameters, **task})
        self.require_same(trial_index, parameters)
        self._note(trial_index)
        self._step(trial)
        return self.metadata(trial_index)

    @override
    def poll_trial(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> TrialStatus:
        """Return the status of a trial; start the next attempt if one is needed and left."""
        self._note(trial_index)
        return self._step(self._trial(trial_index))

    @override
    def poll_trial_status(self, trials: Iterable[BaseTrial]) -> dict[TrialStatus, set[int]]:
        """Return trials by status, as Ax does; note the current or last attempt in each trial's metadata.

        Trials that run in Ax without ever having been started by a runner, such as points that came home from a loop,
        are started as workers are free, and run until then.
        """
        trials = list(trials)
        waiting = {trial.index for trial in trials if self._waits(trial)}
        started = [trial for trial in trials if trial.index not in waiting]
        statuses = super().poll_trial_status(started)
        if waiting:
            statuses.setdefault(TrialStatus.RUNNING, set()).update(waiting)
        for trial in started:
            trial.update_run_metadata(self.metadata(trial.index))
        return statuses

    def _waits(self, trial: BaseTrial) -> bool:
        """Start a trial that no runner has started, if a worker is free; return whether it waits for one."""
        arms = trial.arms
        if len(arms) != 1 or "result" in trial.run_metadata or self.task(trial.index) is not None:
            return False
        if self.poll_available_capacity() == 0:
            return True
        logger.warning("Trial %d was running in Ax, but never started. It was started now.", trial.index)
        self.run_trial(trial.index, arms[0].parameters)
        return False

    @override
    def poll_exception(self, trial: BaseTrial) -> str:
        """Return why a trial failed, in at most 100 characters; tracebacks are in its folder."""
        folder = self._trial(trial.index)
        attempts = _attempts(folder)
        if (folder / STOPPED).exists():
            return "stopped"
        if not attempts:
            return "the runner's folder has no file of this trial"
        reason = (read(attempts[-1] / FAILURE) or {}).get("reason", "")
        return reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 1] + "…"

    @override
    def stop_trial(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Kill a trial with all processes it has started, for good. One that has a result stays completed."""
        trial = self._trial(trial_index)
        if trial.exists():
            write_once(trial / STOPPED, {"time": time.time()})
        self._step(trial)
        return self.metadata(trial_index)

    def task(self, trial_index: int) -> Record | None:
        """Return a trial's `parameters` and `function` as its folder has them; None if it was never started."""
        return read(self._trial(trial_index) / TASK)

    def require_same(self, trial_index: int, parameters: Mapping[str, Any]) -> None:
        """Raise if the folder has the trial with other parameters.

        Raises:
            RunnerError: if not.
        """
        known = self.task(trial_index)
        if known is not None and known["parameters"] != json.loads(json.dumps(parameters)):
            raise RunnerError(
                f"folder={self.folder!r}: trial {trial_index} was started there with {known['parameters']}, but "
                f"now has {dict(parameters)}. After a crash, call attach(client, runner) before anything else. For "
                f"another experiment, give another folder."
            )

    def metadata(self, trial_index: int) -> dict[str, Any]:
        """Return the folder of a started trial, the file of its result, its attempt, and its process or job."""
        trial = self._trial(trial_index)
        attempts = _attempts(trial)
        known: Record = {"folder": str(trial), "result": str(trial / RESULT), "attempt": len(attempts)}
        if attempts:
            record = {**(read(attempts[-1] / LAUNCH) or {}), **(read(attempts[-1] / CLAIM) or {})}
            known.update({name: record[name] for name in ("pid", "start", "job_id") if record.get(name) is not None})
        return known

    def _trial(self, trial_index: int) -> Path:
        return Path(self.folder) / f"trial-{trial_index:05d}"

    def _known(self) -> dict[int, float]:
        """Return the trials that may need a worker, with the `time.monotonic` of their last start or poll here."""
        if self._open is None:
            names = (path.name for path in Path(self.folder).glob("trial-*"))
            self._open = {int(name.removeprefix("trial-")): -math.inf for name in names}
        return self._open

    def _note(self, trial_index: int) -> None:
        if self.workers is not None:
            self._known()[trial_index] = time.monotonic()

    def _takes_worker(self, trial_index: int, last: float) -> bool:
        if self._over(trial_index):
            return False
        attempts = _attempts(self._trial(trial_index))
        return time.monotonic() - last < POLLED_SECONDS or (bool(attempts) and self._alive(attempts[-1]))

    def _alive(self, attempt: Path) -> bool:
        """Return whether an attempt has a worker, or may have one that is not recorded yet."""
        claim, launch = read(attempt / CLAIM), read(attempt / LAUNCH)
        unknown = claim is None and launch is None
        return not (attempt / FAILURE).exists() and (unknown or self._ended(claim, launch) is None)

    def _over(self, trial_index: int) -> bool:
        """Return whether a trial needs nothing more."""
        trial = self._trial(trial_index)
        attempts = _attempts(trial)
        failed = self._used_up(attempts) and (attempts[-1] / FAILURE).exists()
        return failed or not (trial / TASK).exists() or (trial / RESULT).exists() or (trial / STOPPED).exists()

    def _step(self, trial: Path) -> TrialStatus:
        """Return the status; start the next attempt if one is needed."""
        attempts = _attempts(trial)
        if (trial / RESULT).exists():
            return TrialStatus.COMPLETED
        if (trial / STOPPED).exists():
            return TrialStatus.ABANDONED if self._killed(attempts) else TrialStatus.RUNNING
        if not (trial / TASK).exists():
            logger.error("%s: the folder has no file of this trial, so the trial is lost.", trial)
            return TrialStatus.FAILED
        if attempts and not (attempts[-1] / FAILURE).exists() and not self._give_up(attempts[-1]):
            return TrialStatus.RUNNING
        if (trial / RESULT).exists():  # it came while the attempt was looked at
            return TrialStatus.COMPLETED
        return self._next(trial, attempts)

    def _next(self, trial: Path, attempts: list[Path]) -> TrialStatus:
        """Start another attempt after these, which failed, if any is left."""
        if not self._killed(attempts):  # a worker that has written down its failure may not have ended
            return TrialStatus.RUNNING
        if attempts:
            reason = (read(attempts[-1] / FAILURE) or {})["reason"]
            logger.warning("%s, attempt %d of %d failed: %s", trial, len(attempts), self.retries + 1, reason)
        if self._used_up(attempts):
            return TrialStatus.FAILED
        self._start(trial / f"attempt-{len(attempts) + 1}")
        return TrialStatus.RUNNING

    def _give_up(self, attempt: Path) -> bool:
        """End an attempt that cannot finish or is out of time, and record why; return whether it has ended."""
        claim, launch = read(attempt / CLAIM), read(attempt / LAUNCH)
        if claim is None and launch is None:  # who was to start it was killed
            self._start(attempt)
            return False
        reason, since = self._ended(claim, launch), self._since(claim, launch)
        if reason is None and self.timeout_seconds is not None and since is not None:
            seconds = time.time() - since
            reason = f"time limit of {self.timeout_seconds:g} s exceeded" if seconds > self.timeout_seconds else None
        if reason is None or not self._kill(claim, launch):
            return False
        if claim is None and not write_once(attempt / CLAIM, {"given_up": reason, "time": time.time()}):
            return False  # a worker has come after all
        if (attempt.parent / RESULT).exists():
            return True
        write_once(attempt / FAILURE, {"reason": reason, "lost": reason == LOST})
        return True

    def _used_up(self, attempts: list[Path]) -> bool:
        """Return whether no attempt is left, if the last of these has failed. Lost ones do not count."""
        if len(attempts) <= self.retries:
            return False
        return sum(not (read(each / FAILURE) or {}).get("lost", False) for each in attempts) > self.retries

    def _killed(self, attempts: list[Path]) -> bool:
        return not attempts or self._kill(read(attempts[-1] / CLAIM), read(attempts[-1] / LAUNCH))

    def _start(self, attempt: Path) -> None:
        attempt.mkdir(exist_ok=True)
        try:
            launch = self._launch(attempt)
        except OSError as error:
            raise RunnerError(f"{attempt}: the process could not be started: {error}") from error
        with replacing(attempt / LAUNCH) as partial:
            partial.write_text(json.dumps(launch))


def worker_command(attempt: Path) -> list[str]:
    """Return the command that runs an attempt; -P keeps the script's folder, which would hide modules, off the path."""
    return [sys.executable, "-P", worker.__file__, str(attempt)]


def reference(function: Function | str) -> str:
    """Return the name by which a worker imports a function, "module:function" or "/folder/file.py:function".

    Raises:
        InvalidArgumentError: for a function that is not at the top of a module or script.
    """
    if isinstance(function, str):
        place, _, name = function.rpartition(":")
        if not place or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidArgumentError(f"function={function!r}: give 'module:function' or 'file.py:function'.")
        return f"{Path(place).absolute()}:{name}" if place.endswith(".py") else function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    if module == "__main__":
        script = getattr(sys.modules["__main__"], "__file__", None)
        module = None if script is None else Path(script).absolute()
    if module is None or "<" in name:
        raise InvalidArgumentError(
            f"function={function!r}: a worker cannot import it. Define the function at the top of a module."
        )
    return f"{module}:{name}"


def _attempts(trial: Path) -> list[Path]:
    attempts: list[Path] = []
    while (attempt := trial / f"attempt-{len(attempts) + 1}").is_dir():
        attempts.append(attempt)
    return attempts
