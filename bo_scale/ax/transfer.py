"""Move an experiment from Ax to the package's own loop, and back."""

import logging
import math
import os
from collections.abc import Mapping
from typing import Any

import pandas as pd
from ax.api.client import Client
from ax.core.arm import Arm
from ax.core.base_trial import BaseTrial
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.core.optimization_config import MultiObjectiveOptimizationConfig, OptimizationConfig
from ax.core.outcome_constraint import OutcomeConstraint
from ax.core.parameter import (
    ChoiceParameter,
    DerivedParameter,
    FixedParameter,
    Parameter,
    ParameterType,
    RangeParameter,
)
from ax.core.parameter_constraint import ParameterConstraint
from ax.core.search_space import HierarchicalSearchSpace, SearchSpace
from ax.core.trial import Trial
from ax.core.trial_status import TrialStatus
from ax.core.types import ComparisonOp

from bo_scale.ax.differences import VALUE, warn_of_differences, warn_of_forgotten
from bo_scale.ax.internals import experiment_of, save_trials
from bo_scale.errors import InvalidDataError, JournalError
from bo_scale.loop.history.ledger import Entry
from bo_scale.loop.optimizer import Optimizer
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.parameters import Choice, Fixed, Integer, Real, When, bare
from bo_scale.loop.problem.parameters import Parameter as LoopParameter
from bo_scale.loop.problem.space import Space
from bo_scale.loop.run import TOLERANCE
from bo_scale.models.errors import UnsupportedError

logger = logging.getLogger("bo_scale.ax")
PENDING = (TrialStatus.CANDIDATE, TrialStatus.STAGED, TrialStatus.RUNNING)
ABANDONED = (TrialStatus.FAILED, TrialStatus.ABANDONED, TrialStatus.STALE)
SAME = 1e-5
"""Share of a range that Ax's files may change a parameter by: they keep ten decimals."""


def optimizer_from(source: Client | Experiment | str | os.PathLike[str], **options: Any) -> Optimizer:
    """Make an optimizer that continues an Ax experiment; see `Optimizer.from_ax`.

    Args:
        source: A client, an experiment, or the JSON file of a client.
        **options: Further arguments for the constructor of the Optimizer.

    Raises:
        UnsupportedError: if the experiment has a feature that the loop lacks; the message names it.
        InvalidDataError: if trials lack outcomes; the message names the trials.
        JournalError: if the journal at `path` belongs to another experiment.
    """
    client = _client_from(source)
    experiment = experiment_of(client)
    space, goals = space_of(experiment.search_space), goals_of(experiment.optimization_config)
    event = _import_of(experiment, space, _needed(goals))
    optimizer = Optimizer(space, **{**goals, **options})
    try:
        optimizer.client = client
        if len(optimizer.history.ledger) == 0:
            optimizer.record(event)
            _fail(optimizer, _needed(goals))
        else:
            _require_same(optimizer, options.get("path"))
            _catch_up(optimizer, _needed(goals))
            warn_of_differences(optimizer)
    except BaseException:
        optimizer.close()
        raise
    return optimizer


def _client_from(source: Client | Experiment | str | os.PathLike[str]) -> Client:
    if isinstance(source, Client):
        return source
    if isinstance(source, Experiment):
        client = Client()
        client.set_experiment(source)
        return client
    return Client.load_from_json_file(os.fspath(source))


def _require_same(optimizer: Optimizer, path: Any) -> None:
    """Check that the experiment is the journal's; forget trials that `to_ax` added and that were never saved.

    Raises:
        JournalError: if the journal did not begin with this experiment.
    """
    experiment, ledger, space = experiment_of(optimizer.client), optimizer.history.ledger, optimizer.space
    trials = experiment.trials
    entries = list(ledger.entries())
    there = {place: index for place, index in ledger.trials.items() if index in trials and trials[index].arms}
    other = set(ledger.trials) - set(there)
    if there:
        try:
            points = [_point_of(experiment, trials[index]) for index in there.values()]
            placed = space.encode(points, slack=math.inf)
        except ValueError as error:
            raise JournalError(
                f"path={path!r}: its journal belongs to another experiment ({error}). Use another path."
            ) from error
        kept = space.encode([space.unpacked(entries[place].packed) for place in there], slack=math.inf)
        apart = ((placed - kept).abs() > space.tolerances(SAME)).any(-1)
        other.update(place for place, is_apart in zip(there, apart.tolist(), strict=True) if is_apart)
    if other & ledger.imported or not optimizer.history.from_ax:
        raise JournalError(f"path={path!r}: its journal belongs to another experiment. Use another path.")
    for place in other:
        del ledger.trials[place]


def _fail(optimizer: Optimizer, names: list[str]) -> None:
    """Record that trials completed with NaN or inf have failed."""
    experiment, ledger = experiment_of(optimizer.client), optimizer.history.ledger
    entries, numbers, broken = list(ledger.entries()), ledger.numbers(), _broken(experiment, names)
    places = [place for place, index in ledger.trials.items() if index in broken and numbers[place] is not None]
    if places:
        rows = [optimizer.space.unpacked(entries[place].packed) for place in places]
        optimizer.record({"event": "fail", "matched": [numbers[place] for place in places], "X": rows})
        trials = [ledger.trials[place] for place in places]
        logger.warning("trials %s are completed with NaN or inf: they count as failed points.", trials)


def _broken(experiment: Experiment, names: list[str]) -> set[int]:
    """Return the indices of complete trials that have NaN or inf as an outcome."""
    frame = experiment.lookup_data().full_df.drop_duplicates(["trial_index", "metric_name"], keep="last")
    frame = frame[frame["metric_name"].isin(names) & ~frame["mean"].abs().lt(math.inf)]
    return {int(index) for index in frame["trial_index"] if experiment.trials[index].status is TrialStatus.COMPLETED}


def _catch_up(optimizer: Optimizer, names: list[str]) -> None:
    """Record what changed in an experiment since its journal was last written: finished trials, and new ones."""
    experiment, ledger = experiment_of(optimizer.client), optimizer.history.ledger
    entries, statuses = list(ledger.entries()), {index: trial.status for index, trial in experiment.trials.items()}
    broken = _broken(experiment, names)
    told = [
        place
        for place, index in ledger.trials.items()
        if statuses[index] is TrialStatus.COMPLETED
        and index not in broken
        and entries[place].status not in ("told", "forgotten")
    ]
    back = [place for place in told if entries[place].status in ("abandoned", "failed")]
    if back:
        optimizer.record({"event": "recall", "entries": back})
    numbers = ledger.numbers()
    if told:
        means, sems = _data(experiment, [ledger.trials[place] for place in told], names)
        rows = [optimizer.space.unpacked(entries[place].packed) for place in told]
        event = {"event": "tell", "matched": [numbers[place] for place in told], "X": rows}
        event |= _values(means, sems, len(names) == 1)
        optimizer.record(event)
    gone = [
        place for place, index in ledger.trials.items() if statuses[index] in ABANDONED and numbers[place] is not None
    ]
    if gone:
        optimizer.record({"event": "abandon", "numbers": [numbers[place] for place in gone]})
    new = sorted(experiment.trials.keys() - set(ledger.trials.values()))
    if new:
        event = _import_of(experiment, optimizer.space, names, new)
        optimizer.record(event)
    _fail(optimizer, names)


# ---------------------------------------------------------------- spaces


def space_of(search_space: SearchSpace) -> Space:
    """Translate an Ax search space. Derived parameters are left out: they say nothing new. Dependents become `When`.

    Raises:
        UnsupportedError: naming a feature that the loop lacks.
    """
    if type(search_space) not in (SearchSpace, HierarchicalSearchSpace):
        raise UnsupportedError("search space: the loop does not support robust ones. Continue in Ax.")
    free = search_space.parameters.items()
    parameters = {name: _parameter(each) for name, each in free if not isinstance(each, DerivedParameter)}
    for name, on, value in _dependents(search_space):
        parameters[name] = _conditional(name, parameters[name], on, value)
    limits = []
    for each in search_space.parameter_constraints:
        weights: dict[str | int, float | int] = dict(each.constraint_dict.items())
        dependent = [name for name in each.constraint_dict if isinstance(parameters.get(name), When)]
        if dependent:
            raise UnsupportedError(
                f"parameter constraint {each}: the loop does not support constraints on dependents, as {dependent} are."
            )
        limits.append(Linear(weights, each.bound, each.is_equality))
    return Space.of(parameters, limits)


def _dependents(search_space: SearchSpace) -> list[tuple[str, str, Any]]:
    """Return each dependent of a hierarchical space, the parameter on which it depends, and the value."""
    parents = [each for each in search_space.parameters.values() if each.is_hierarchical]
    return [(name, each.name, value) for each in parents for value, names in each.dependents.items() for name in names]


def _conditional(name: str, parameter: LoopParameter, on: str, value: Any) -> When:
    if isinstance(parameter, Fixed):
        raise UnsupportedError(
            f"parameter {name!r}: it is fixed and depends on {on!r}, and the loop's conditional parameters vary. "
            f"Remove it."
        )
    return When(on, value, parameter)


def _point_of(experiment: Experiment, trial: BaseTrial) -> dict[str, Any]:
    """Return the parameters of a trial: without derived ones, and with those that were added later."""
    parameters, point = experiment.search_space.parameters, dict(trial.arms[0].parameters)
    known = {name: getattr(each, "backfill_value", None) for name, each in parameters.items()}
    earlier = {name: value for name, value in known.items() if value is not None}
    whole = {**earlier, **point}
    return {name: value for name, value in whole.items() if not isinstance(parameters.get(name), DerivedParameter)}


def _parameter(parameter: Parameter) -> LoopParameter:
    for trait in ("is_fidelity", "is_task", "logit_scale"):
        value = getattr(parameter, trait, None)
        if value is not None and value is not False:
            named = trait.removeprefix("is_").replace("_", " ")
            raise UnsupportedError(f"parameter {parameter.name!r}: the loop does not support {named}. Continue in Ax.")
    if isinstance(parameter, RangeParameter):
        if parameter.parameter_type is ParameterType.INT:
            return Integer(int(parameter.lower), int(parameter.upper), bool(parameter.log_scale))
        return Real(parameter.lower, parameter.upper, bool(parameter.log_scale), parameter.digits)
    if isinstance(parameter, ChoiceParameter):
        values: Any = tuple(parameter.values)
        return Choice(values, bool(parameter.is_ordered))
    if isinstance(parameter, FixedParameter):
        fixed: Any = parameter.value
        return Fixed(fixed)
    raise UnsupportedError(
        f"parameter {parameter.name!r}: the loop does not support {type(parameter).__name__}. Continue in Ax."
    )


# ---------------------------------------------------------------- objectives


def goals_of(config: OptimizationConfig | None) -> dict[str, Any]:
    """Translate an optimization config into arguments of an Optimizer.

    Raises:
        UnsupportedError: naming a feature that the loop lacks.
    """
    if config is None:
        raise UnsupportedError("experiment: it has no objective. Call configure_optimization first.")
    if type(config) not in (OptimizationConfig, MultiObjectiveOptimizationConfig):
        raise UnsupportedError(
            f"optimization config: the loop does not support {type(config).__name__}. Continue in Ax."
        )
    weights = config.objective.metric_weights
    if config.objective.is_scalarized_objective or len({name for name, _ in weights}) < len(weights):
        raise UnsupportedError(
            f"objective {config.objective}: the loop adds up no outcomes. Report the sum as one outcome."
        )
    thresholds = list(getattr(config, "objective_thresholds", []))
    goals: dict[str, Any] = {
        "objectives": {name: "maximize" if weight > 0 else "minimize" for name, weight in weights},
        "constraints": [_constraint(each) for each in config.outcome_constraints if each not in thresholds],
    }
    if thresholds:
        goals["reference_point"] = dict(map(_threshold, thresholds))
    return goals


def _constraint(constraint: OutcomeConstraint) -> Linear:
    if constraint.relative:
        raise UnsupportedError(
            f"outcome constraint {constraint}: the bound is relative to a baseline. Give it as a number."
        )
    sign = 1.0 if constraint.op is ComparisonOp.LEQ else -1.0
    return Linear({name: sign * weight for name, weight in constraint.metric_weights}, sign * constraint.bound)


def _threshold(threshold: OutcomeConstraint) -> tuple[str, float]:
    """Return the name of an objective and the value beyond which it counts."""
    read = _constraint(threshold)
    ((name, weight),) = read.weights.items()
    return str(name), read.upper / weight


def _needed(goals: Mapping[str, Any]) -> list[str]:
    """Return the outcomes that a loop needs of every trial."""
    more = [str(name) for each in goals["constraints"] for name in each.weights]
    return list(dict.fromkeys([*goals["objectives"], *more]))


# ---------------------------------------------------------------- trials


def _import_of(
    experiment: Experiment, space: Space, names: list[str], indices: list[int] | None = None
) -> dict[str, Any]:
    """Return trials (all unless indices are given) and their data as one event of a journal.

    Raises:
        UnsupportedError: for trials of several arms, curves, and statuses that the loop has not.
        InvalidDataError: for complete trials without all outcomes.
    """
    trials = [experiment.trials[index] for index in (sorted(experiment.trials) if indices is None else indices)]
    for trial in trials:
        if not isinstance(trial, Trial) or trial.arm is None:
            raise UnsupportedError(
                f"trial {trial.index}: it has several arms, or none. The loop needs one point per trial."
            )
        if trial.status not in (*PENDING, *ABANDONED, TrialStatus.COMPLETED):
            status = trial.status.name.lower()
            raise UnsupportedError(
                f"trial {trial.index}: the loop does not support the status {status!r}. Mark the trial completed or "
                f"abandoned."
            )
    points = [_point_of(experiment, trial) for trial in trials]
    rows = []
    for trial, point in zip(trials, points):
        try:
            space.encode(point, slack=TOLERANCE)
        except ValueError as error:
            raise InvalidDataError(
                f"trial {trial.index}: {error} Widen the space: it must hold every trial, abandoned ones too."
            ) from error
        rows += space.settled(point)
    broken = _broken(experiment, names)
    told = [i for i, each in enumerate(trials) if each.status is TrialStatus.COMPLETED and each.index not in broken]
    means, sems = _data(experiment, [trials[i].index for i in told], names)
    return {
        "event": "import",
        "X": rows,
        "told": told,
        **_values(means, sems, len(names) == 1),
        "abandoned": [i for i, trial in enumerate(trials) if trial.status in ABANDONED],
        "trials": [trial.index for trial in trials],
    }


def _values(means: list[list[float]], sems: list[list[float]] | None, single: bool) -> dict[str, Any]:
    """Return values and variances as a journal has them: numbers for a single outcome, rows for several."""
    squares = None if sems is None else [[None if math.isnan(sem) else sem**2 for sem in row] for row in sems]
    if single:
        return {"Y": [row[0] for row in means], "Yvar": None if squares is None else [row[0] for row in squares]}
    return {"Y": means, "Yvar": squares}


def _data(
    experiment: Experiment, indices: list[int], names: list[str]
) -> tuple[list[list[float]], list[list[float]] | None]:
    """Return means and standard errors of complete trials, a row each; None if there are no standard errors."""
    frame = experiment.lookup_data().full_df
    frame = frame[frame["trial_index"].isin(indices) & frame["metric_name"].isin(names)]
    if "step" in frame:
        steps = frame.groupby(["trial_index", "metric_name"])["step"].nunique()  # metrics of users' own have one step
        if bool((steps > 1).any()):
            trial = steps[steps > 1].index[0][0]
            raise UnsupportedError(
                f"trial {trial}: it has data of several steps. The loop needs one value per outcome."
            )
    tables = [
        frame.pivot_table(index="trial_index", columns="metric_name", values=column, aggfunc="last", dropna=False)
        .reindex(index=indices, columns=names)
        .to_numpy(dtype=float)
        for column in ("mean", "sem")
    ]
    lacking = [index for index, row in zip(indices, tables[0]) if not all(map(math.isfinite, row))]
    if lacking:
        raise InvalidDataError(
            f"trials {lacking[:5]}: they are completed, but lack some of {names}. Attach the missing data, as by "
            f"`client.attach_data({lacking[0]}, ...)`, with NaN if the evaluation failed."
        )
    known = ~pd.isna(tables[1])
    if bool((tables[1][known] <= 0).any()):
        raise InvalidDataError(
            "data: some standard errors are 0. Leave out all of them; the loop then learns the noise."
        )
    return tables[0].tolist(), tables[1].tolist() if bool(known.any()) else None


# ---------------------------------------------------------------- home


def client_of(optimizer: Optimizer) -> Client:
    """Return an Ax client with every point of an optimizer as a trial; see `Optimizer.to_ax`."""
    with optimizer.history.lock:
        client = _updated_client(optimizer)
        if client is optimizer.client:
            warn_of_differences(optimizer)
            warn_of_forgotten(optimizer)
        return client


def _updated_client(optimizer: Optimizer) -> Client:
    own, ledger = optimizer.client is not None, optimizer.history.ledger
    client = optimizer.client if own else _new_client(optimizer)
    known = ledger.trials if own else {}
    experiment, entries = experiment_of(client), list(ledger.entries())
    added: dict[int, int] = {}
    try:
        for place in range(len(entries)):
            if place not in known:
                added[place] = _attached(optimizer, experiment, entries[place])
    finally:
        if added and own:
            optimizer.record({"event": "trials", "entries": list(added), "trials": list(added.values())})
    trials = {**known, **added}
    open_ones = {place: experiment.trials[index] for place, index in trials.items()}
    open_ones = {place: trial for place, trial in open_ones.items() if not trial.status.is_terminal}
    completed = [(trial, entries[place]) for place, trial in open_ones.items() if entries[place].status == "told"]
    if completed:
        experiment.attach_data(Data(df=_frame(optimizer, experiment, completed)))
    for place, trial in open_ones.items():
        if entries[place].status == "told":
            trial.mark_completed(unsafe=trial.status is not TrialStatus.RUNNING)  # a candidate's step is left out
        elif entries[place].status in ("abandoned", "failed", "forgotten"):
            trial.mark_abandoned()
    save_trials(client, list(open_ones.values()))
    return client


def _attached(optimizer: Optimizer, experiment: Experiment, entry: Entry) -> int:
    """Add a trial and return its index. `attach_trial` would refuse points a rounding error beyond a constraint."""
    values = zip(_names(optimizer.space), optimizer.space.unpacked(entry.packed), strict=True)
    parameters = {name: value for name, value in values if value is not None}
    for name, each in experiment.search_space.parameters.items():
        if isinstance(each, DerivedParameter):
            parameters[name] = each.compute(parameters)
    trial = experiment.new_trial().add_arm(Arm(parameters=parameters))
    trial.mark_running(no_runner_required=True)
    return trial.index


def _frame(optimizer: Optimizer, experiment: Experiment, completed: list[tuple[BaseTrial, Entry]]) -> pd.DataFrame:
    """Return the data of trials in Ax's columns."""
    names = optimizer.outcomes.names or (VALUE,)
    _, Y, Yvar = optimizer.history.told.first(optimizer.history.told.count)
    observations = [entry.observation for _, entry in completed]
    means = optimizer.outcomes.inner(Y[observations]).tolist()
    sems = None if Yvar is None else Yvar[observations].sqrt().tolist()
    rows = []
    for row, (trial, _) in enumerate(completed):
        for j, name in enumerate(names):
            sem = math.nan if sems is None else sems[row][j]
            arm = trial.arms[0].name
            rows.append((trial.index, arm, name, experiment.metrics[name].signature, means[row][j], sem, math.nan))
    columns = ["trial_index", "arm_name", "metric_name", "metric_signature", "mean", "sem", "step"]
    return pd.DataFrame(rows, columns=columns)


def _names(space: Space) -> list[str]:
    return [*space.names] if space.names is not None else [f"x{i}" for i in range(len(space.parameters))]


def _new_client(optimizer: Optimizer) -> Client:
    """Make a client of the same problem, without trials."""
    client, space, outcomes = Client(), optimizer.space, optimizer.outcomes
    names = _names(space)
    parameters = [_ax_parameter(name, bare(each)) for name, each in zip(names, space.parameters)]
    _make_dependent(space, dict(zip(names, parameters)))
    limits = [ParameterConstraint(**{_KINDS[each.equal]: _text(each, names)}) for each in space.constraints]
    client.set_experiment(Experiment(search_space=SearchSpace(parameters, limits)))
    labels = outcomes.names or (VALUE,)
    signed = [label if sign > 0 else f"-{label}" for label, sign in zip(labels[: outcomes.objectives], outcomes.signs)]
    reference = outcomes.reference or (None,) * outcomes.objectives
    thresholds = [
        f"{label} {'>=' if sign > 0 else '<='} {value!r}"
        for label, sign, value in zip(labels, outcomes.signs, reference)
        if value is not None
    ]
    limits_on = [_text(each, labels) for each in outcomes.constraints]
    client.configure_optimization(", ".join(signed), outcome_constraints=[*thresholds, *limits_on] or None)
    return client


def _text(constraint: Linear, names: Any) -> str:
    """Write a constraint as Ax reads it, with every digit."""
    terms = [f"{weight!r} * {names[k] if isinstance(k, int) else k}" for k, weight in constraint.weights.items()]
    return " + ".join(terms) + f" {'==' if constraint.equal else '<='} {constraint.upper!r}"


_KINDS = {True: "equality", False: "inequality"}
"""Arguments of Ax's constraints."""


def _ax_parameter(name: str, parameter: LoopParameter) -> Parameter:
    if isinstance(parameter, Real | Integer):
        kind = ParameterType.INT if isinstance(parameter, Integer) else ParameterType.FLOAT
        digits = getattr(parameter, "digits", None)
        return RangeParameter(name, kind, parameter.lower, parameter.upper, log_scale=parameter.log, digits=digits)
    if isinstance(parameter, Choice):
        return _ax_choice(name, parameter)
    assert isinstance(parameter, Fixed)
    value = parameter.value
    return FixedParameter(name, _TYPES[type(value)], value)


def _make_dependent(space: Space, parameters: Mapping[str, Parameter]) -> None:
    """Make the conditional parameters of a space dependents.

    Raises:
        UnsupportedError: for a condition on an integer, several values, or a value that a fixed parameter has not.
    """
    loop_parameters = dict(zip(space.labels, space.parameters))
    for name, each in loop_parameters.items():
        if isinstance(each, When):
            other: Any = bare(loop_parameters[each.on])
            parent: Any = parameters[each.on]
            taken = other.values if isinstance(other, Choice) else [getattr(other, "value", None)]
            values = [value for value in taken if value in each.value]
            if not isinstance(other, Choice | Fixed) or len(values) != 1:
                raise UnsupportedError(
                    f"parameter {name!r}: Ax needs a condition on one value of a choice, but it takes {each}."
                )
            before = parent.dependents if parent.is_hierarchical else {}
            parent.dependents = {**before, values[0]: [*before.get(values[0], []), str(name)]}


def _ax_choice(name: str, choice: Choice) -> ChoiceParameter:
    kinds, ordered, values = {type(value) for value in choice.values}, choice.inputs == 1, list[Any](choice.values)
    if len(kinds) > 1:
        raise UnsupportedError(
            f"parameter {name!r}: Ax needs values of one type, but {values} have several. Use strings."
        )
    ascending = choice.numeric and ordered  # Ax sorts them; of two no order is lost
    if ascending and len(values) > 2 and values != sorted(values):
        raise UnsupportedError(
            f"parameter {name!r}: Ax needs ordered numbers to ascend, but {values} do not. Sort them."
        )
    return ChoiceParameter(name, _TYPES[kinds.pop()], values, is_ordered=ordered, sort_values=ascending)


_TYPES = {bool: ParameterType.BOOL, int: ParameterType.INT, float: ParameterType.FLOAT, str: ParameterType.STRING}
