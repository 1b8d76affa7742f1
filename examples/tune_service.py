"""Tune a classifier with a service that may be killed: eight trainings at a time and a database.

Data: scikit-learn's handwritten digits. Time: 1 to 2 minutes on two cores.

Kill it at any moment, by Ctrl-C or `kill -9`, and run it again. Trainings that were running have gone on meanwhile,
and none runs twice. `ps` shows the workers; `demo/tune_service/runs` has their logs.

    python examples/tune_service.py --out demo/tune_service
"""

import argparse
import importlib.util
import logging
from pathlib import Path
from typing import Any

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig, StorageConfig
from ax.exceptions.core import ObjectNotFoundError
from ax.storage.sqa_store.db import create_all_tables, get_engine, init_engine_and_session_factory
from ax.utils.common.logger import set_stderr_log_level
from tune_task import train

from bo_scale.ax import LocalRunner, attach, generation_strategy, streaming

PARAMETERS = [
    RangeParameterConfig(name="C", parameter_type="float", bounds=(1e-2, 1e3), scaling="log"),
    RangeParameterConfig(name="gamma", parameter_type="float", bounds=(1e-5, 1.0), scaling="log"),
    RangeParameterConfig(name="components", parameter_type="int", bounds=(2, 48)),
    ChoiceParameterConfig(name="scaling", parameter_type="str", values=["none", "standard"]),
]
ERRORS = [1, 2, 5, 10, 20, 50, 100]
"""Ticks of plots, in %."""


def opened(folder: Path, objective: str, constraints: list[str], seed: int) -> Client:
    """The experiment in a folder's database, begun if it is not there, or not all of it.

    Its parts are saved one after the other: who was killed meanwhile left only the first ones.
    """
    url = f"sqlite:///{folder / 'ax.db'}"
    init_engine_and_session_factory(url=url)
    create_all_tables(get_engine())
    storage = StorageConfig(url=url)
    try:
        client = Client.load_from_database("tuning", storage)
    except ObjectNotFoundError:
        client = Client(storage, random_seed=seed)
        client.configure_experiment(PARAMETERS, name="tuning")
    if client._experiment.optimization_config is None:
        client.configure_optimization(objective, constraints)
    if client._maybe_generation_strategy is None:
        client.set_generation_strategy(generation_strategy(seed=seed, initialization_budget=8))
    return client


def serve(client: Client, folder: Path, trials: int, workers: int) -> list[dict[str, Any]]:
    """Go on until there are so many trials; those that were completed, in order."""
    runner = LocalRunner(train, folder / "runs", workers, timeout_seconds=300.0, retries=1, threads=1)
    attach(client, runner, tracking=["error", "size"])
    known = len(client._experiment.trials)
    print(f"{known} trials are there, {max(trials - known, 0)} are to come.")
    client.run_trials(max(trials - known, 0), parallelism=workers)
    rows = client.summarize().to_dict("records")
    return [row for row in rows if row["trial_status"] == "COMPLETED"]


def table(rows: list[dict[str, Any]]) -> None:
    """Print configurations and what they reached."""
    print(f"\n{'trial':>5}{'C':>10}{'gamma':>10}{'components':>12}{'scaling':>10}{'error':>9}{'size':>9}")
    for row in rows:
        print(
            f"{row['trial_index']:>5}{row['C']:>10.3g}{row['gamma']:>10.2g}{row['components']:>12}{row['scaling']:>10}"
            f"{row['error']:>7.2f} %{row['size']:>6.0f} kB"
        )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Errors in order and over the two parameters that matter most."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    order, errors = [row["trial_index"] for row in rows], [row["error"] for row in rows]
    best = [min(errors[: count + 1]) for count in range(len(errors))]
    axes[0].plot(order, errors, ".", color="grey", label="trials")
    axes[0].step(order, best, where="post", label="best so far")
    axes[0].set(xlabel="Trial", ylabel="Error in cross-validation (%)", yscale="log")
    axes[0].set_yticks(ERRORS, [f"{tick:g}" for tick in ERRORS])
    axes[0].minorticks_off()
    axes[0].legend()
    norm = mpl.colors.LogNorm(min(errors), max(errors))
    shown = axes[1].scatter(
        [row["gamma"] for row in rows], [row["C"] for row in rows], c=errors, norm=norm, cmap="viridis_r"
    )
    axes[1].set(xlabel="gamma", ylabel="C", xscale="log", yscale="log")
    bar = figure.colorbar(shown, ax=axes[1], label="Error (%)")
    bar.set_ticks(ERRORS, labels=[f"{tick:g}" for tick in ERRORS])
    bar.minorticks_off()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def arguments(description: str | None, out: str, trials: int) -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the database, the trials and the plot")
    parser.add_argument("--trials", type=int, default=trials, help="in total, those of earlier runs included")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.WARNING)
    set_stderr_log_level(logging.ERROR)
    return given


def main() -> None:
    """Serve, then print the best configurations and write a plot."""
    given = arguments(__doc__, "demo/tune_service", trials=40)
    client = opened(given.out, "-error", [], given.seed)
    rows = serve(client, given.out, given.trials, given.workers)
    table(sorted(rows, key=lambda row: row["error"])[:5])
    for name, stream in streaming(client).items():
        print(f"{name}: {stream}")
    if importlib.util.find_spec("matplotlib") is not None:
        plot(rows, given.out / "tune_service.png")
        print(f"Plot: {given.out / 'tune_service.png'}")


if __name__ == "__main__":
    main()
