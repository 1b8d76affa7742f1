"""Experiments kept in a database or a file, killed by SIGKILL while they generate, and taken up again each time.

    python stores.py FOLDER MORE KINDS…

Of each kind, sql or json, every life is a process of its own that finds the experiment in FOLDER and keeps three trials
under way: it asks for one, or tells of the oldest. It is killed a random part of a proposal's time after it began one;
the last asks for so many MORE and ends. Printed is one line of JSON a life: its kind and what it said, in order.
"""

import json
import logging
import math
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig, StorageConfig
from ax.core.data import Data
from clients import CHEAP, loss, models, tell

from bo_scale.ax import generation_strategy, streaming
from bo_scale.errors import BoScaleWarning

NAME = "kept"
PENDING = 3
MOMENTS = {"sql": [4, 1, "between", "within"], "json": [5, 1]}
"""Of kills: while the so manieth proposal of a life is made; when the strategy is written and its trial is not; or when
a trial is completed in the database and its data, which Ax replaces in further transactions, are not there."""
Say = Callable[..., object]


def experiment(model: str = "wiski", config: StorageConfig | None = None, name: str = NAME, **options: Any) -> Client:
    """A new one, kept in a database if there is one."""
    made = Client(storage_config=config)
    floats = [RangeParameterConfig(name=each, parameter_type="float", bounds=(0.0, 2.0)) for each in ("x", "y")]
    made.configure_experiment(parameters=floats, name=name)
    made.configure_optimization(objective="-loss")
    made.set_generation_strategy(generation_strategy(model, seed=0, **{**CHEAP.get(model, {}), **options}))
    return made


def tables(url: str) -> StorageConfig:
    """A database with Ax's tables, as a user makes one."""
    from ax.storage.sqa_store.db import create_all_tables, get_engine, init_engine_and_session_factory

    init_engine_and_session_factory(url=url)
    create_all_tables(get_engine())
    return StorageConfig(url=url)


def save(made: Client, path: Path) -> None:
    """As a file that is never half written: Ax empties the old one before it writes."""
    new = path.with_suffix(".new")
    made.save_to_json_file(str(new))
    os.replace(new, path)


def find(kind: str, folder: Path) -> tuple[Client, Callable[[], None]]:
    """The experiment, begun if it is not there, and what keeps it after every step."""
    if kind == "sql":
        there = (folder / "ax.db").exists()
        config = tables(f"sqlite:///{folder / 'ax.db'}")
        return Client.load_from_database(NAME, config) if there else begun(config), lambda: None
    path = folder / "ax.json"
    made = Client.load_from_json_file(str(path)) if path.exists() else begun()
    return made, lambda: save(made, path)


def begun(config: StorageConfig | None = None) -> Client:
    return experiment(config=config, initialization_budget=4)


def statuses(made: Client) -> dict[int, str]:
    return {index: trial.status.name for index, trial in made._experiment.trials.items()}


def without_data(made: Client) -> list[int]:
    """Trials that were completed when a crash took their data."""
    kept = set(made._experiment.lookup_data().df["trial_index"])
    return [index for index, status in statuses(made).items() if status == "COMPLETED" and index not in kept]


def kill_before_data(made: Client) -> None:
    """Once a trial is kept as completed."""
    from ax.storage.sqa_store import save as database

    write, trials = database._bulk_merge_into_session, made._experiment.trials

    def merge(objs: Any, *rest: Any, **options: Any) -> Any:
        if any(isinstance(each, Data) for each in objs):
            indices = [arguments["trial_index"] for arguments in options["encode_args_list"]]
            if any(trials[index].status.is_completed for index in indices):
                os.kill(os.getpid(), signal.SIGKILL)
        return write(objs, *rest, **options)

    database._bulk_merge_into_session = merge


def live(kind: str, folder: Path, more: float, moment: Any, say: Say) -> None:
    """Say what is done once it is done and kept."""
    made, keep = find(kind, folder)
    say("found", statuses(made))
    for index in without_data(made):
        made.attach_data(index, {"loss": loss(made._experiment.trials[index].arm.parameters)})
    trials = len(statuses(made)) + more
    if moment == "within":
        kill_before_data(made)
    while True:
        pending = [index for index, status in statuses(made).items() if status == "RUNNING"]
        if len(pending) < PENDING and len(statuses(made)) < trials:
            say("asking")
            if moment == "between":
                made._save_or_update_trials_in_db_if_possible = lambda **_: os.kill(os.getpid(), signal.SIGKILL)
            (index,) = made.get_next_trials(max_trials=1)
            keep()
            say("asked", index, [type(model).__name__ for model in models(made)] if streaming(made) else [])
        elif pending:
            say("telling", pending[0])
            tell(made, pending[0], made._experiment.trials[pending[0]].arm.parameters)
            keep()
            say("told", pending[0])
        else:
            say("over", asdict(streaming(made)["loss"]))
            return


def watch(reader: int, child: int, moment: Any, delay: float) -> tuple[list[Any], float]:
    """What a life says until its end, which comes so long after it began the so manieth proposal; what one took."""
    said, asked, began, took = [], 0, 0.0, 0.0
    with os.fdopen(reader) as lines:
        for line in lines:
            said.append(json.loads(line))
            if said[-1][0] == "asking":
                asked, began = asked + 1, time.monotonic()
                if asked == moment:
                    time.sleep(delay)
                    os.kill(child, signal.SIGKILL)
            elif said[-1][0] == "asked":
                took = time.monotonic() - began
    return said, took


def main(folder: Path, more: int, kinds: list[str]) -> None:
    chance, took = random.Random(0), 0.0
    for kind in kinds:
        for moment in [*MOMENTS[kind], None]:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    live(kind, folder, math.inf if moment else more, moment, speaker(writer))
                    os._exit(0)
                finally:
                    os._exit(1)  # nothing that is raised may go on with the tests of the parent
            os.close(writer)
            said, took = watch(reader, child, moment, chance.random() * min(max(took, 0.2), 1.0))
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            life = {"kind": kind, "killed": killed, "status": status, "said": said}
            sys.stdout.write(json.dumps(life) + "\n")
            sys.stdout.flush()


def speaker(writer: int) -> Say:
    return lambda *words: os.write(writer, (json.dumps(words) + "\n").encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BoScaleWarning)
    logging.getLogger("ax").setLevel(logging.WARNING)
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
