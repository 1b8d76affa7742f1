"""Writes the fixtures: `PYTHONPATH=. python tests/written_before/make.py`.

Run with the code of version 0.1.0 before its modules were moved, and never with later code: what matters of the files
is that old code wrote them.
"""

import json
import re
import shutil
import sqlite3
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ax.api.client import Client
from botorch.acquisition.multi_objective import logei
from botorch.fit import fit_gpytorch_mll
from builders import (
    FOLDER,
    LOOPS,
    MODELS,
    STATE_DICTS,
    UNASKED,
    classes,
    classifier,
    experiment,
    learner,
    loop,
    loop_from_ax,
    online_classifier,
    outcomes,
    points,
    runner,
    tell,
    values,
)
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import AveragedEnsemble, save_model
from bo_scale.ax import attach
from bo_scale.survey import Depot, Survey, Travel

Said = dict[str, Any]


def plain(found: Any) -> Any:
    """As JSON has it."""
    return found.tolist() if isinstance(found, torch.Tensor) else found


def said_by(model: Any, d: int) -> Said:
    """The posterior at some points."""
    posterior = model.posterior(points(5, d, 500))
    return {"mean": plain(posterior.mean.detach()), "variance": plain(posterior.variance.detach())}


def fit(model: Any) -> None:
    """A few steps, for hyperparameters that are none that one starts from."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    try:
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 4}})
    except TypeError:
        fit_gpytorch_mll(mll)  # in stages


def models() -> dict[str, Said]:
    expected = {}
    for name, case in MODELS.items():
        model = case.make(points(24, case.d))
        fit(model.train())
        model = case.told(model.eval(), points(3, case.d, 100))
        said = said_by(model, case.d)
        save_model(model, FOLDER / f"{name}.pt")
        after = said_by(case.told(model, points(2, case.d, 200)), case.d)
        expected[name] = {"now": said, "after": after, "count": model.num_observations}
        if name in STATE_DICTS:
            first = case.make(points(24, case.d))
            fit(first.train())
            torch.save(first.state_dict(), FOLDER / f"{name}_state_dict.pt")
            again = case.make(points(24, case.d))
            again.load_state_dict(first.state_dict())
            expected[f"{name}_state_dict"] = {"now": said_by(again.eval(), case.d)}
        if name == "grief_bayes":
            expected[name]["averaged"] = said_by(AveragedEnsemble(model), case.d)
    return expected


def classifiers() -> dict[str, Said]:
    made, probes = classifier(points(24, 1)), points(5, 1, 500)
    fit(made.model.train())
    made = made.condition_on_observations(points(3, 1, 100), classes(points(3, 1, 100)))
    save_model(made.eval().model, FOLDER / "classifier.pt")
    return {"classifier": {"now": said_by(made, 1), "probabilities": plain(made.probabilities(probes).detach())}}


def online() -> dict[str, Said]:
    """After some steps, and after one more."""
    one, other = learner(points(20, 4)), online_classifier(points(20, 1))
    for x, y in zip(points(6, 4, 100).split(2), points(6, 1, 100).split(2), strict=True):
        one.step(x, values(x))
        other.step(y, classes(y))
    one.save(FOLDER / "learner.pt")
    other.save(FOLDER / "online_classifier.pt")
    expected = {
        "learner": {"now": said_by(one, 4), "rmse": plain(one.scores.rmse), "nll": plain(one.scores.nll)},
        "online_classifier": {
            "probabilities": plain(other.probabilities(points(5, 1, 500)).detach()),
            "scores": [other.scores.count, other.scores.correct, other.scores.log_loss],
        },
    }
    x, y = points(2, 4, 200), points(2, 1, 200)
    one.step(x, values(x))
    other.step(y, classes(y))
    expected["learner"]["after"] = said_by(one, 4)
    expected["online_classifier"]["after"] = plain(other.probabilities(points(5, 1, 500)).detach())
    return expected


def state_of(made: Any) -> Said:
    """What a loop says of itself."""
    X, Y, Yvar = made.observations
    said = {"X": plain(X), "Y": plain(Y), "Yvar": plain(Yvar), "pending": plain(made.pending)}
    said["steps"] = [[step.ask, step.n, step.q, step.fitted] for step in made.steps]
    if made.outcomes.several:
        said["pareto"] = [[plain(one.x), one.outcomes] for one in made.pareto()]
    else:
        best = made.best()
        said["best"] = [plain(best.x), best.mean, best.sd, plain(best.observed_x), best.observed_y, best.outcomes]
    return said


def loops() -> dict[str, Said]:
    """Asked for more than told of, one point given up, and one told of that was never asked for."""
    expected = {}
    for name in LOOPS:
        with loop(name, FOLDER / name) as made:
            for _ in range(5):
                asked = made.ask(2)
                tell(made, name, asked)
            asked = made.ask(4)
            made.abandon(asked[1:2])
            tell(made, name, asked[2:3])
            tell(made, name, [UNASKED[name]])
            made.ask(1)
            expected[name] = state_of(made)
    return expected


def ax() -> dict[str, Said]:
    """An experiment with trials of all kinds; and one that became a loop and went on there."""
    client = experiment()
    for _ in range(4):
        for index, point in client.get_next_trials(max_trials=1).items():
            client.complete_trial(index, outcomes(point))
    failed, abandoned = (client.attach_trial({"x": x, "y": 1.5}) for x in (0.5, 1.5))
    client.mark_trial_failed(failed)
    client.mark_trial_abandoned(abandoned)
    client.attach_trial({"x": 0.25, "y": 0.75})
    client.save_to_json_file(str(FOLDER / "ax.json"))
    expected = {"ax": trials_of(client)}
    client = experiment(strategy=False)
    for k, row in enumerate((2 * points(8, 2)).tolist()):
        point = dict(zip("xy", row, strict=True))
        index = client.attach_trial(point)
        if k < 6:
            client.complete_trial(index, outcomes(point))
    client.mark_trial_abandoned(6)
    with loop_from_ax(client, FOLDER / "loop_from_ax") as made:
        for point in made.ask(3)[:2]:
            made.tell(point, [outcomes(point)])
        client = made.to_ax()
        made.ask(1)
        expected["loop_from_ax"] = state_of(made)
    client.save_to_json_file(str(FOLDER / "loop_from_ax.json"))
    return {**expected, "loop_from_ax_client": trials_of(client)}


def trials_of(client: Client) -> Said:
    trials = client._experiment.trials.values()
    data = client._experiment.lookup_data().df.sort_values(["metric_name", "trial_index"])
    return {
        "statuses": [trial.status.name for trial in trials],
        "parameters": [trial.arms[0].parameters for trial in trials],
        "data": data[["trial_index", "metric_name", "mean"]].to_numpy().tolist(),
    }


def runs() -> dict[str, Said]:
    """Trials as processes: two have a result, one was stopped, and the process of one is gone without a word."""
    folder = FOLDER / "runs"
    client, made = experiment(strategy=False, objective="-x", limits=()), runner(folder)
    attach(client, made)
    for x, y in (2 * points(4, 2)).tolist():
        point = {"x": x, "y": y}
        index = client.attach_trial(point)
        made.run_trial(index, point)
        while not (folder / f"trial-{index:05d}" / "result.json").exists():
            time.sleep(0.05)
    for index in (0, 1):
        client.complete_trial(index, client._experiment.trials[index].arms[0].parameters)
    for index in (2, 3):
        (folder / f"trial-{index:05d}" / "result.json").unlink()
    made.stop_trial(2, {})
    client.mark_trial_abandoned(2)
    client.save_to_json_file(str(FOLDER / "runs.json"))
    _impersonal(FOLDER / "runs.json", *folder.rglob("*.json"))
    return {"runs": trials_of(client)}


def _impersonal(*paths: Path) -> None:
    """Nothing of the machine is kept."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for path in paths:
        text = path.read_text().replace(boot, "0" * 8).replace(str(FOLDER), "/written/before")
        text = re.sub(r'"pid": \d+', '"pid": 4194304', text)  # a number that no process has
        if path.name == "task.json":
            text = json.dumps({**json.loads(text), "path": [], "cwd": "/written"})
        path.write_text(text)


def survey() -> dict[str, Said]:
    """Measured, planned, measured in part, and planned again for two teams."""
    path, table = FOLDER / "survey.gpkg", FOLDER / "sites.csv"
    rows = points(40, 2).numpy() * [0.08, 0.05] + [5.7, 50.95]
    zinc = np.exp(2 + np.sin((rows[:, 0] - 5.7) * 60) + np.cos((rows[:, 1] - 50.95) * 80) / 2).round(3)
    frame = pd.DataFrame({"lon": rows[:, 0].round(6), "lat": rows[:, 1].round(6), "zinc": zinc.astype(object)})
    frame.loc[7, "zinc"] = "none"
    frame.to_csv(table, index=False)
    made = Survey.create(path, table, "zinc", transform="log", threshold=10.0, kernel="matern32")
    plan = made.plan(batch=4, spacing=300.0).table
    plan["zinc"] = plan["zinc"].astype(object)
    plan.loc[:1, "zinc"] = [8.25, 11.5]
    plan.to_csv(table, index=False)
    made.update(table)
    travel = Travel((Depot(5.71, 50.96, "south"), Depot(5.77, 50.99, "north")), kilometres=9.0)
    made.plan(batch=2, add=True, travel=travel)
    table.unlink()
    Path(f"{path}.lock").unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA page_size = 1024")  # a third of the size
        file.execute("VACUUM")
    said, east, north = Survey(path), 5.7 + 0.01 * np.arange(1, 6), 50.95 + 0.008 * np.arange(1, 6)
    return {
        "survey": {
            "status": said.status().splitlines()[1:],
            "settings": said.settings,
            "sites": [[*xy, *rest] for *rest, xy in _rows(said.sites, ["value", "site", "file", "row", "batch"])],
            "planned": [[*xy, *rest] for *rest, xy in _rows(said.planned, ["site", "batch", "status", "score"])],
            "aside": said.aside.to_numpy().tolist(),
            "routes": [[route.team, list(route.sites), route.kilometres] for route in said.routes],
            "predicted": said.predict_at(east, north).to_numpy().tolist(),
        }
    }


def _rows(frame: Any, columns: list[str]) -> list[list[Any]]:
    kept = frame[columns].astype(object).to_numpy().tolist()
    return [[*row, [shape.x, shape.y]] for row, shape in zip(kept, frame.geometry, strict=True)]


def main() -> None:
    for old in FOLDER.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.suffix in (".pt", ".json", ".gpkg"):
            old.unlink()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logei._load_attempted = True  # no compiling of BoTorch's kernel
    expected = {}
    for part in (models, classifiers, online, loops, ax, runs, survey):
        expected |= part()
    for lock in FOLDER.rglob("*lock"):
        lock.unlink()
    text = json.dumps(expected, indent=1)
    (FOLDER / "expected.json").write_text(re.sub(r"\s*\n\s*(?=[^\s\"{}])|(?<=[\[,])\s*\n\s*", " ", text))


if __name__ == "__main__":
    main()
