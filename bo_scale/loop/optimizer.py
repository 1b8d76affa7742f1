"""Ask and tell: Bayesian optimisation whose step costs the same at any number of observations, and which resumes."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any, Literal

import torch
from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import override

from bo_scale.decisions.candidates import Admissible
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Acquisition, Setting
from bo_scale.errors import (
    InterpolationWarning,
    InvalidArgumentError,
    InvalidDataError,
    JournalError,
    NotPositiveDefiniteError,
)
from bo_scale.loop import best as standing
from bo_scale.loop import insight, tables, telling
from bo_scale.loop.history.history import History
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.migration import Migration
from bo_scale.loop.history.observations import Id
from bo_scale.loop.history.records import Best, Step, TradeOff
from bo_scale.loop.persistence import Persistence
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.outcomes import Direction, Outcomes
from bo_scale.loop.problem.space import Points, Space
from bo_scale.loop.served import ModelFactory
from bo_scale.loop.settings import Settings, differences
from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder
from bo_scale.loop.surrogate.chain import SurrogateChain
from bo_scale.loop.surrogate.per_outcome import SeveralBuilder
from bo_scale.loop.surrogate.resolution import coarse_grid
from bo_scale.loop.workers import run_loop
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.door import require_whole
from bo_scale.random import mixed, seeded

logger = logging.getLogger("bo_scale.loop")
SUSPECTS_LOOKED_FOR = 2000
"""Up to so many observations each fit looks for suspicious ones."""


class Optimizer:
    """Bayesian optimisation by ask and tell.

    You may tell points in any order, in part, late, or without having asked for them. Proposals take pending points
    into account. The model is fitted each time the data have grown by a factor. In between it is conditioned exactly,
    so with a WISKI an ask costs the same at any number of observations.

    With a `path`, every event is on disk before the call returns. To resume, make an Optimizer with the same arguments
    and path. It proposes what an uninterrupted run would have proposed, since the randomness of each ask comes from the
    seed and the number of the ask. Points asked for but not told are in `pending`.

    Calls from several threads are safe. A tell does not wait for a running ask.

    Attributes:
        space: The parameters and their constraints.
        outcomes: Objectives and constraints on outcomes.
        history: The history so far: `told`, `pending`, `ledger`, `steps`. Read it only; `ask`, `tell`, `abandon` and
            `record` change it.
        client: The Ax client that the optimizer came from, to which `to_ax` adds trials. None without one.

    Args:
        space: The parameters. With names, `{"x": (0.0, 1.0), "n": Integer(1, 8), …}`, points are dictionaries. With
            a list, or a `2 × d` tensor of bounds, points are rows of a tensor. A pair of bounds means `Real`; the other
            kinds are `Integer`, `Choice` and `Fixed`.
        objective: "maximize" or "minimize", for a single value. None means "maximize".
        model: "auto" (None), which chooses by evidence, anew whenever the data have doubled (see `choice`): up to 5000
            observations an exact GP, then the model that predicts unseen observations best. Or "wiski" (up to 4 inputs,
            or with a projection), "grief", "softki", "cagp", "decoupled", or a factory (X, Y, Yvar) -> Model. A factory
            gets X in the unit cube and Y of which larger is better. With several outcomes, each has a model of its own,
            and the factory gets one column of Y.
        acquisition: "qLogEI", "qLogNEI", "qUCB", "qKG", "qNIPV" or "Thompson" (for batches of 10 to 1000); or a factory
            that makes an AcquisitionFunction, or the points themselves, from a `Setting`. Constraints on outcomes need
            "qLogEI" or "qLogNEI". Several objectives need "qLogNEHVI" or "qLogEHVI" (over the front of posterior
            means). None means "qLogEI", or "qLogNEHVI" for several objectives.
        seed: Seed of all randomness.
        path: Folder of the journal, used by one process at a time. None to keep nothing on disk.
        num_initial: Number of observations before the first model. Until then points are quasi-random. None means one
            more than parameters, from 4 to 8. If `path` holds a journal, None means as it was begun; so it does for
            `model`.
        refit_growth: Factor by which the number of observations grows between two fits. None means 1.25, not counting
            the first 64, after each of which the model is fitted.
        model_options: Options for the constructor of a model given by name.
        acquisition_options: Options of the acquisition: beta (qUCB), mc_samples, num_fantasies (qKG), mc_points
            (qNIPV), distance (Thompson), num_restarts, raw_samples, max_steps.
        device: Device of the model. None means the CPU.
        match_tolerance: Largest difference, in each parameter, between a told point and the pending point that it
            matches, as a share of the parameter's range.
        parameter_constraints: Constraints on Real and Integer parameters, in raw units: `"x + 2 * n <= 3"` or `Linear`.
        objectives: Directions of one or more objectives by name, instead of `objective`:
            `{"loss": "minimize", "gain": "maximize"}`. Values are then told as dictionaries.
        constraints: Constraints on outcomes, `"cost <= 3"` or `Linear`. Outcomes that are not objectives are told along
            with them.
        reference_point: Value of each objective beyond which it counts, for several objectives. Inferred for those
            not given.

    Raises:
        SpaceError: if the space cannot be used.
        JournalLockedError: if another process works on the path.
        JournalError: if the journal is damaged before its last line, or was begun with other arguments.

    Examples:
        >>> from bo_scale.loop import Optimizer
        >>> optimizer = Optimizer({"x": (-1.0, 2.0), "y": (0.0, 1.0)}, objective="minimize", num_initial=4)
        >>> for _ in range(3):
        ...     points = optimizer.ask(2)
        ...     ids = optimizer.tell(points, [p["x"] ** 2 + p["y"] for p in points])
        >>> sorted(optimizer.best().x)
        ['x', 'y']
    """

    def __init__(
        self,
        space: Any,
        *,
        objective: Direction | None = None,
        model: str | ModelFactory | None = None,
        acquisition: str | Acquisition | None = None,
        seed: int | None = None,
        path: str | os.PathLike[str] | None = None,
        num_initial: int | None = None,
        refit_growth: float | None = None,
        model_options: Mapping[str, Any] | None = None,
        acquisition_options: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        match_tolerance: float | None = None,
        parameter_constraints: Sequence[str | Linear] = (),
        objectives: Mapping[str, Direction] | None = None,
        constraints: Sequence[str | Linear] = (),
        reference_point: Mapping[str, float | int] | None = None,
        mode: Literal["a", "r"] = "a",
    ) -> None:
        self._tolerance = 1e-6 if match_tolerance is None else match_tolerance
        self._device = torch.device(device or "cpu")
        self.client: Any = None
        self._grid_reported = False
        self._reported: set[Any] = set()
        self._choice_at: int | None = None
        self._model_lock = threading.RLock()
        given = {
            "model": model,
            "model_options": model_options,
            "acquisition": acquisition,
            "acquisition_options": acquisition_options,
            "seed": seed,
            "num_initial": num_initial,
            "refit_growth": refit_growth,
        }
        wanted = None if space is None else Space.of(space, parameter_constraints)
        told = any(each is not None for each in (objective, objectives, reference_point)) or len(constraints) > 0
        outcomes = Outcomes.of(objective, objectives, constraints, reference_point) if told else None
        if Persistence.is_new(path):
            self._begin(path, wanted, outcomes, given)
        else:
            self._resume(path, wanted, outcomes, given, mode)

    def _begin(
        self,
        path: str | os.PathLike[str] | None,
        space: Space | None,
        outcomes: Outcomes | None,
        given: Mapping[str, Any],
        persistence: Persistence | None = None,
    ) -> None:
        """Check everything, then begin a run."""
        if space is None:
            raise JournalError(f"path={path!r}: there is no journal to open. Check the path, or begin a run.")
        if outcomes is None:
            logger.warning("objective: none given, so larger values are better. Pass 'maximize' or 'minimize'.")
            outcomes = Outcomes.of(None, None, (), None)
        settings = Settings.default(space, outcomes).updated(given)
        self._take(settings, space, outcomes)
        if space.admissible is not None:
            space.admissible.sample(1, 0)  # or there is nothing to search
        self._persistence = persistence or Persistence(path)
        self.history = self._persistence.begin(space, outcomes, settings.describe(), self._tolerance)
        self._chain = SurrogateChain(self._builder, self.history.told)

    def _resume(
        self,
        path: Any,
        space: Space | None,
        outcomes: Outcomes | None,
        given: Mapping[str, Any],
        mode: Literal["a", "r"],
    ) -> None:
        """Go on with the run of a journal, with the settings given, or else as it was."""
        self._persistence = Persistence(path, read_only=mode == "r")
        try:
            if not self._persistence.begun:  # a process was killed before its first line
                return self._begin(path, space, outcomes, given, self._persistence)
            self.history = self._persistence.resume(self._tolerance)
            _require_same(path, self.history, space, outcomes)
            settings = Settings.read(self.history.settings).updated(given)
            self._take(settings, self.space, self.outcomes)
            changed = differences(self.history.settings, settings.describe())
            if changed and mode == "a":
                self._record_change(changed)
            self._chain = SurrogateChain(self._builder, self.history.told)
            self._persistence.continue_chain(self._chain, self.history, settings.num_initial)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: Literal["a", "r"] = "a",
        model: str | ModelFactory | None = None,
        acquisition: str | Acquisition | None = None,
        model_options: Mapping[str, Any] | None = None,
        acquisition_options: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> "Optimizer":
        """Open the run of a journal: its space, objectives and settings are there.

        Nothing is fitted before a model is needed. Then it comes from the snapshot, or is rebuilt, with a progress bar.

        Args:
            path: Folder of the journal.
            mode: "a" to go on with the run; "r" to look at it, also while another process writes. What that process
                writes later is not seen: open it again.
            model: The factory of the model, if the run was begun with one, which a journal cannot hold. A name changes
                the model, as `change` does.
            acquisition: The same for the acquisition.
            model_options: Objects among the options of the model, which a journal cannot hold either.
            acquisition_options: The same for the acquisition.
            device: Device of the model.

        Raises:
            JournalError: if there is no journal, or it is damaged.
            JournalLockedError: if another process works on the path, and mode is not "r".
        """
        if mode not in ("a", "r"):
            raise InvalidArgumentError(f"mode={mode!r}: choose 'a', to go on, or 'r', to read.")
        return cls(
            None,
            model=model,
            acquisition=acquisition,
            path=path,
            model_options=model_options,
            acquisition_options=acquisition_options,
            device=device,
            mode=mode,
        )

    def _take(self, settings: Settings, space: Space, outcomes: Outcomes) -> None:
        """Make the builder of models from settings; refused before anything is written."""
        self._kind, factory = settings.require(space, outcomes)
        self._settings = settings
        single = SurrogateBuilder(factory, settings.refit, settings.seed, self._device)
        self._builder = single if len(outcomes.signs) == 1 else SeveralBuilder(single)

    @property
    def space(self) -> Space:
        """The parameters and their constraints."""
        return self.history.space

    @property
    def outcomes(self) -> Outcomes:
        """Objectives and constraints on outcomes."""
        return self.history.outcomes

    # ------------------------------------------------------------------ ask, tell, abandon

    @override
    def __repr__(self) -> str:
        """Return the sizes of the run and what it is asked with."""
        told, open_points = self.history.told.count, len(self.pending)
        of = f"{len(self.space.parameters)} parameters, {told} observations, {open_points} pending"
        return f"Optimizer({of}, acquisition {self._kind.name})"

    def ask(self, q: int = 1, *, fixed: Mapping[Any, Any] | None = None) -> Points:
        """Return the next q points to evaluate, in raw units. They are pending until told or abandoned.

        Args:
            q: Number of points. "Thompson" serves hundreds.
            fixed: Values of parameters that cannot be chosen this time, such as the weather: `{"temperature": 21}`. By
                name, or by column in a space without names.

        Raises:
            InvalidArgumentError: if q is no whole number, or below 1.
            SpaceError: for fixed values that the space does not hold.
        """
        q = require_whole(q, "q")
        if q < 1:
            raise InvalidArgumentError(f"q={q}: must be at least 1.")
        held = self.space.held(fixed or {})
        if q > self._kind.largest_batch:
            logger.info("q=%d: %s is meant for batches of up to %d.", q, self._kind.name, self._kind.largest_batch)
        self._require_writable()
        self._settings.require_given()
        with self._model_lock:
            chain = self._chain
            with self.history.lock:
                ask, n, avoided = (
                    self.history.asks,
                    self.history.told.count,
                    self.history.pending.avoided(self.space.dimension),
                )
            started = time.perf_counter()
            fitted = middle = started
            if n < self._settings.num_initial:
                unit, was_fitted, chosen = self._initial(q, held), False, dict[str, Any]()
            else:
                surrogate, was_fitted = chain.advance(ask, n)
                fitted, chosen = time.perf_counter(), self._new_choices(surrogate) if was_fitted else {}
                unit = self._propose(surrogate, ask, n, q, avoided, held)
            middle = time.perf_counter()
            points = self.space.decode(unit.cpu())
            rows = self.space.settled(points)
            step = Step(ask, n, q, was_fitted, round(fitted - started, 6), round(middle - fitted, 6))
            with self.history.lock:
                initial = q if n < self._settings.num_initial else 0
                event = {"event": "ask", **asdict(step), "initial": initial, "X": rows, **chosen}
                if held:
                    event["fixed"] = [str(name) for name in fixed or ()]
                with self._persistence.written(event):
                    self.history.ask(step, rows, initial)
                chain.commit()
                checksum = self._persistence.checksum
            self._persistence.keep(chain, ask, was_fitted, checksum)
        logger.info("%s", step)
        if was_fitted:
            self._report_grid(surrogate.model)
            self._report_suspects(surrogate)
        return points

    def tell(
        self,
        X: Any,
        Y: Any = None,
        Yvar: Any = None,
        *,
        id: Any = None,
        failed: bool = False,
        attributes: Any = None,
    ) -> list[Id]:
        """Record observations; with a `path` they are on disk when this returns. Matching points are no longer pending.

        q points cost O(q · pending), whatever n is.

        Args:
            X: Points as `ask` returns them, rows of numbers, or a pandas DataFrame with a column for each parameter.
                Any order and any subset will do, and so will points never asked for.
            Y: One value for each point, or a Series. For outcomes with names, one dictionary for each, one row in the
                order of `outcomes.names`, or a DataFrame.
            Yvar: Noise variances in the form of Y, in its squared units. Give them always or never.
            id: A string or whole number for each point. Without ids they are numbered. Telling the same observation
                under the same id again changes nothing, so a call may be repeated when its answer was lost.
            failed: Whether the points were tried and gave no value. Then leave Y out. They are no longer pending, and
                proposals avoid the latest of them.
            attributes: The user's notes: a dictionary for all points or one for each, of what JSON holds.

        Returns:
            The ids of the observations, by which `revise` and `forget` know them; empty for failed points.

        Raises:
            SpaceError: if points lie outside the space; the message names the rows.
            InvalidDataError: for NaN or inf, a shape that does not fit, variances that are not positive, or an id of
                another observation.
            InvalidArgumentError: for ids and attributes that do not fit.
        """
        if failed:
            return self._tell_failed(X)
        if Y is None:
            raise InvalidDataError("Y: no values. Give one for each point, or failed=True for points without one.")
        report = telling.read(self.history, X, Y, Yvar, id, attributes, self._tolerance)
        with self.history.lock:
            self._require_noise(report.variances is not None, len(report.rows))
            new = report.without(report.told_before(self.history))
            if not new.rows:
                return report.ids or []
            matched = self.history.match(new.unit)
            event = new.event(self.outcomes, matched)
            with self._persistence.written(event):
                made = self.history.tell(new.unit, new.rows, new.values, new.variances, matched, event)
        logger.info("told %d observations, n = %d", len(made), self.num_observations)
        return report.ids or made

    def _require_noise(self, known: bool, n: int) -> None:
        if self.history.told.known_noise not in (None, known) and n > 0:
            before = "with" if self.history.told.known_noise else "without"
            raise InvalidDataError(f"Yvar: earlier observations came {before} variances. Give them always or never.")

    def _tell_failed(self, X: Any) -> list[Id]:
        unit, rows = self.space.encode(X, slack=self._tolerance), self.space.settled(X)
        with self.history.lock:
            matched = self.history.match(unit)
            if rows:
                with self._persistence.written({"event": "fail", "matched": matched, "X": rows}):
                    self.history.fail(unit, rows, matched)
        return []

    def abandon(self, X: Any) -> None:
        """Give up pending points that will never be told, such as failed trials. Proposals avoid the latest of them.

        Args:
            X: Pending points, as for `tell`.

        Raises:
            InvalidDataError: if rows match no pending point; the message names them.
        """
        unit = self.space.encode(X, slack=self._tolerance)
        with self.history.lock:
            matched = self.history.match(unit)
            strangers = [row for row, number in enumerate(matched) if number is None]
            if strangers:
                raise InvalidDataError(f"X: rows {strangers[:5]} match no pending point. `pending` lists them.")
            numbers = [number for number in matched if number is not None]
            if not numbers:
                return
            with self._persistence.written({"event": "abandon", "numbers": numbers}):
                self.history.abandon(numbers)

    # ------------------------------------------------------------------ correct, change

    def revise(self, id: Any, Y: Any, Yvar: Any = None) -> None:
        """Correct the values of observations. The next model is fitted anew. O(n).

        Args:
            id: The id of an observation, or several.
            Y: Their values, as for `tell`.
            Yvar: Their noise variances. None leaves them as they are.

        Raises:
            InvalidArgumentError: if no observation has the id.
            InvalidDataError: for values that do not fit.
        """
        names = telling.read_ids(id)
        self._reported -= set(names)
        values = self.outcomes.read("Y", Y, len(names))
        variances = telling.read_variances(self.history, Yvar, len(names))
        with self._model_lock, self.history.lock:
            telling.require_ids(self.history, names)
            if variances is not None:
                self._require_noise(True, len(names))
            event = {
                "event": "revise",
                "ids": names,
                "Y": self.outcomes.shown(values),
                "Yvar": None if variances is None else self.outcomes.shown(variances),
            }
            with self._persistence.written(event):
                self.history.revise(names, values, variances)
            self._start_anew()

    def forget(self, id: Any) -> None:
        """Take observations out of the run, such as those of a broken instrument. The next model is fitted anew. O(n).

        The journal keeps them; to undo it, tell them again.

        Args:
            id: The id of an observation, or several.

        Raises:
            InvalidArgumentError: if no observation has the id.
        """
        names = telling.read_ids(id)
        with self._model_lock, self.history.lock:
            telling.require_ids(self.history, names)
            if not names:
                return
            with self._persistence.written({"event": "forget", "ids": names}):
                self.history.forget(names)
            self._start_anew()

    def change(
        self,
        *,
        model: str | ModelFactory | None = None,
        model_options: Mapping[str, Any] | None = None,
        acquisition: str | Acquisition | None = None,
        acquisition_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        num_initial: int | None = None,
        refit_growth: float | None = None,
    ) -> None:
        """Change settings from the next ask on; arguments as for the constructor, None for what stays.

        The options of a model or an acquisition that is replaced are dropped. The next model is fitted anew.

        Raises:
            InvalidArgumentError: for names and options that do not exist, or do not serve the problem.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        with self._model_lock, self.history.lock:
            settings = self._settings.updated(given)
            settings.require(self.space, self.outcomes)
            changed = differences(self.history.settings, settings.describe())
            if changed:
                self._record_change(changed)
            self._take(settings, self.space, self.outcomes)
            self._start_anew()

    def _record_change(self, changed: Mapping[str, Any]) -> None:
        before = {name: self.history.settings[name] for name in changed}
        said = "; ".join(f"{name}: {before[name]!r}, now {value!r}" for name, value in changed.items())
        logger.warning("settings change from ask %d on (%s).", self.history.asks, said)
        with self._persistence.written({"event": "change", "settings": dict(changed)}):
            self.history.change(changed)

    def migrate(
        self,
        space: Any,
        *,
        values: Mapping[str, Any] | None = None,
        parameter_constraints: Sequence[str | Linear] = (),
    ) -> None:
        """Continue over another space: wider, narrower, on another scale, or with more parameters.

        Observations and pending points are carried over. Observations outside the new space are set aside, and come
        back if a later space holds them; pending points outside are given up. The next model is fitted anew. O(n).

        Args:
            space: The new space, as for the constructor. It has every parameter of the old one; one that no longer
                varies is `Fixed`.
            values: The value that each new parameter had in the past.
            parameter_constraints: All constraints on parameters in the new space.

        Raises:
            SpaceError: if a parameter is missing, or a new one has no value for the past.
            InvalidArgumentError: if the model or the acquisition does not serve the new space.
        """
        if self.client is not None:
            raise UnsupportedError("migrate: the space is that of an Ax experiment. Change it there.")
        wanted = Space.of(space, parameter_constraints)
        with self._model_lock, self.history.lock:
            migration = Migration(self.space, wanted, dict(values or {}))
            if wanted.admissible is not None:
                wanted.admissible.sample(1, 0)
            self._settings.require(wanted, self.outcomes)
            outside, given_up = migration.counts(self.history.told, self.history.ledger, self.history.aside)
            event = {"event": "migrate", "space": wanted.describe(), "values": dict(migration.values)}
            with self._persistence.written(event):
                self.history.migrate(migration)
            self._take(self._settings, wanted, self.outcomes)
            self._start_anew()
        if outside or given_up:
            said = "%d observations are outside the space and set aside, %d pending points outside are given up."
            logger.warning(said, outside, given_up)

    def _start_anew(self) -> None:
        """Make later models of the observations as they are now."""
        self._chain = SurrogateChain(self._builder, self.history.told)
        self._choice_at = None

    def run(
        self,
        evaluate: Callable[[Any], Any],
        batches: int | None = None,
        q: int = 1,
        *,
        total: int | None = None,
        workers: int | None = None,
        executor: Executor | None = None,
        on_error: str = "raise",
        progress: bool = True,
    ) -> Any:
        """Ask, evaluate and tell, then return the result. Points that a killed run left pending come first.

        With several workers a result is told as soon as it comes home, and the next points are asked for with the
        others pending. The search then depends on the order of arrival. With one, the seed determines it.

        Args:
            evaluate: Function from points, as `ask` returns them, to their values, or to a pair of values and
                variances. It gets q points per call, or fewer at the end.
            batches: Number of asks.
            q: Number of points per ask.
            total: Number of observations at which the run ends, instead of `batches`. It counts those told before, so
                that the same call finishes a run that was killed. It is never exceeded.
            workers: Number of evaluations at a time. None means 1, in the calling thread.
            executor: A `concurrent.futures.Executor` where evaluations run, such as a ProcessPoolExecutor or one of
                dask's; it stays open. It needs `workers`. None means threads.
            on_error: What to do if `evaluate` fails, or returns what cannot be told. "raise" awaits and tells the other
                evaluations under way, then raises the error; the failed points stay pending. "abandon" gives the points
                up, logs a warning, and goes on, but raises if 10 evaluations in a row fail.
            progress: Whether to show a progress bar.

        Returns:
            `best()`, a `Best`. For several objectives `pareto()`, a list of `TradeOff`.

        Raises:
            InvalidArgumentError: for arguments that do not go together, or a function that cannot be sent to a process.
        """
        run_loop(
            self,
            evaluate,
            batches,
            q,
            total=total,
            workers=workers,
            executor=executor,
            on_error=on_error,
            progress=progress,
        )
        return self.pareto() if self.outcomes.several else self.best()

    # ------------------------------------------------------------------ what is known

    @property
    def steps(self) -> list[Step]:
        """The record of each ask, with the times that its parts took."""
        return self.history.steps

    @property
    def num_observations(self) -> int:
        """Number of observations n."""
        return self.history.told.count

    @property
    def pending(self) -> Points:
        """Points asked for but neither told nor abandoned, oldest first, in raw units."""
        with self.history.lock:
            return self.history.pending_points

    @property
    def observations(self) -> tuple[Points, Any, Any]:
        """All observations in the order they were told: points, values, and variances or None, in raw units.

        They have the form that `tell` takes. After a restart, this shows which results were told already. O(n).
        """
        with self.history.lock:
            return self.history.observations

    @property
    def model(self) -> Any:
        """The surrogate of all observations, over the unit cube; larger values are better.

        With several outcomes it is a ModelListGP of one model for each. It is fitted only if no ask has fitted one yet.
        """
        return self._present().model

    @property
    def choice(self) -> Any:
        """The report on the choice of the model, or a list of one for each outcome; None if it is not automatic."""
        surrogate = self._present()
        return [part.choice for part in surrogate.parts] if surrogate.parts else surrogate.choice

    def best(self, *, fixed: Mapping[Any, Any] | None = None) -> Best:
        """Return the told point with the best posterior mean, and the one with the best observation.

        Feasible points come before others. O(n) features; a fit only if no ask has fitted a model yet.

        Args:
            fixed: Values that some parameters have, as for `ask`. Then x is the point of best posterior mean among all
                with these values, told or not; `observed_x` is None if none was told.

        Raises:
            InvalidDataError: before the first tell, or for several objectives.
            SpaceError: for fixed values that the space does not hold.
        """
        if self.outcomes.several:
            raise InvalidDataError("best: with several objectives no single point is best. Call pareto().")
        held = self.space.held(fixed or {})
        with self._model_lock:
            if held:
                return standing.best_at(self.space, self.outcomes, *self._known(), held, self._settings.seed)
            return standing.best(self.space, self.outcomes, *self._known())

    def pareto(self) -> list[TradeOff]:
        """Return the feasible told points that no other dominates, by posterior means, in the order they were told.

        O(n) features and O(n · points returned) comparisons; a fit only if no ask has fitted a model yet.

        Raises:
            InvalidDataError: before the first tell, or for an outcome without a name.
        """
        if self.outcomes.names is None:
            raise InvalidDataError("pareto: it needs outcomes with names. Pass objectives={…}, or call best().")
        with self._model_lock:
            return standing.trade_offs(self.space, self.outcomes, *self._known())

    def _known(self) -> tuple[Any, Float[Tensor, "n d"], Float[Tensor, "n m"], torch.device]:
        """Return the model of all observations, their points and values, and its device."""
        surrogate = self._present()
        X, Y, _ = self.history.told.first(surrogate.count)
        return surrogate.model, X, Y, self._builder.device

    def _present(self) -> Surrogate:
        self._settings.require_given()
        with self._model_lock:
            return self._chain.present(self.history.asks)

    # ------------------------------------------------------------------ insight

    def predict(
        self, points: Any, *, observation: bool = False, probability: float | int = 0.95
    ) -> list[insight.Prediction]:
        """Predict outcomes at points, in raw units.

        Args:
            points: Points as for `tell`.
            observation: Whether intervals are those of an observation, noise included; otherwise of the function.
            probability: Probability of the intervals.

        Raises:
            SpaceError: for points outside the space.
            InvalidDataError: before the first tell.
        """
        model = self._present().model
        return insight.predict(
            self.space, self.outcomes, model, points, observation=observation, probability=probability
        )

    def suspects(self, *, threshold: float | None = None) -> list[insight.Suspect]:
        """Return the observations far from what all others predict, such as typing errors, the farthest first.

        Each has an `id`: correct it by `revise`, or take it out by `forget`. The loop itself never does. O(n³) for
        exact GPs, and a few fits if there are any.

        Args:
            threshold: Smallest distance in standard deviations. None for one by the number of observations, 4.3 for 20
                and 5.1 for 1000, that one of 3000 sets without errors exceeds.

        Raises:
            InvalidDataError: before the first tell.
            UnsupportedError: for a model without leave-one-out in closed form.
        """
        with self._model_lock:
            surrogate = self._present()
            again = self._builder.refitted(surrogate) if isinstance(self._builder, SurrogateBuilder) else None
            return self._suspects(surrogate, threshold, again)

    def _suspects(
        self, surrogate: Surrogate, threshold: float | None = None, again: ModelFactory | None = None
    ) -> list[insight.Suspect]:
        told = self.history.told
        data = told.first(surrogate.count)
        found = insight.suspects(self.space, self.outcomes, surrogate.model, *data, threshold=threshold, fitted=again)
        return [replace(each, id=told.ids[each.row]) for each in found]

    def cross_validate(self, folds: int = 10, *, refit: bool = False) -> insight.CrossValidation:
        """Cross-validate the model: predict each fold of the observations from the others.

        Args:
            folds: Number of folds; n leaves out one at a time.
            refit: Whether to fit a model for each fold, which costs as many fits. Otherwise hyperparameters are those
                of all observations, which is optimistic where these are few.

        Returns:
            For each outcome RMSE, R², log density, correlation and the shares of values within intervals; a table if
            printed.

        Raises:
            InvalidDataError: for fewer than three observations.
        """
        with self._model_lock:
            surrogate = self._present()
            data = self.history.told.first(surrogate.count)
            single = self._builder if isinstance(self._builder, SurrogateBuilder) else self._builder.single
            part = surrogate.parts[0] if surrogate.parts else surrogate
            options: dict[str, Any] = {"folds": folds, "seed": self._settings.seed}
            try:
                fitted = single.refitted(part) if refit else None
                return insight.cross_validate(self.outcomes, surrogate.model, *data, fitted=fitted, **options)
            except UnsupportedError:
                fitted = insight.at_hyperparameters(part.model, single.maker(part))
                return insight.cross_validate(self.outcomes, surrogate.model, *data, fitted=fitted, **options)

    def importance(self) -> list[insight.Importance]:
        """Return how much each parameter matters, for every outcome: Sobol' indices of the posterior mean.

        Raises:
            InvalidDataError: before the first tell.
            SpaceError: with constraints on parameters, which make them depend on each other.
        """
        return insight.importance(self.space, self.outcomes, self._present().model)

    def _report_suspects(self, surrogate: Surrogate) -> None:
        """Say in the log which observations stand apart, each once."""
        if surrogate.count > SUSPECTS_LOOKED_FOR:
            return
        try:
            found = self._suspects(surrogate)
            if found and isinstance(self._builder, SurrogateBuilder):
                found = self._suspects(surrogate, None, self._builder.refitted(surrogate))
        except (UnsupportedError, NotPositiveDefiniteError):
            return
        for each in found:
            if each.id in self._reported:
                continue
            self._reported.add(each.id)
            logger.warning(
                "observation %r is far from what the others predict: %.6g, %.3g standard deviations from %.6g. If it "
                "is an error, revise(%r, value) or forget(%r).",
                each.id,
                each.value,
                abs(each.z),
                each.predicted,
                each.id,
                each.id,
            )

    # ------------------------------------------------------------------ tables

    def observations_frame(self) -> Any:
        """Return the observations as a pandas DataFrame: id, parameters, outcomes, variances, time, notes. O(n).

        Raises:
            MissingDependencyError: without pandas.
        """
        return tables.frame_of(self.history)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the observations to a CSV file, with the columns of `observations_frame`. `from_csv` reads it. O(n).

        Args:
            path: The file, replaced completely or not at all.
        """
        tables.write_csv(self.history, path)

    @classmethod
    def from_csv(
        cls,
        source: str | os.PathLike[str],
        space: Any,
        *,
        value: str | None = None,
        outside: Literal["refuse", "skip"] = "refuse",
        **options: Any,
    ) -> "Optimizer":
        """Make an optimizer that knows the results of the past.

        Each row is an observation, under the id in its column "id", or else under the name of the file and its line.
        So the same call resumes the run of a `path`: rows told before are not told again, and new rows are added.

        Args:
            source: A CSV file with a header: a column for each parameter, and one for each outcome. Rows without a
                value are left out. Noise variances are read from a column such as "value_variance".
            space: The parameters.
            value: The column of the only outcome. None means "value", or the only column that is left.
            outside: What becomes of rows outside the space: "refuse" raises an error that names their lines, "skip"
                leaves them out.
            **options: Further arguments for the constructor: `objective`, `path`, …

        Raises:
            InvalidDataError: for columns that are missing, cells that cannot be read, or a row that has changed since
                it was told; the message names the line.
            SpaceError: for rows outside the space.
        """
        if outside not in ("refuse", "skip"):
            raise InvalidArgumentError(f"outside={outside!r}: choose 'refuse' or 'skip'.")
        optimizer = cls(space, **options)
        try:
            tables.tell_past(optimizer, source, value, outside == "skip")
        except BaseException:
            optimizer.close()
            raise
        return optimizer

    # ------------------------------------------------------------------ Ax

    @classmethod
    def from_ax(cls, source: Any, **options: Any) -> "Optimizer":
        """Make an optimizer from an Ax experiment: its space, objectives, constraints, data and trials.

        Completed trials become observations. Running trials and candidates become pending points. Failed, stale and
        abandoned trials become abandoned points. If `path` has the journal of an earlier call, the optimizer resumes
        from it and adds what has happened in Ax since: trials that ended, and new ones. `to_ax` adds to this
        experiment.

        Args:
            source: An `ax.api.client.Client`, the path of its JSON file, or an `ax.core.experiment.Experiment`.
            **options: Further arguments for the constructor.

        Raises:
            UnsupportedError: if the experiment has a feature that the loop lacks; the message names it.
            InvalidDataError: if trials lack outcomes, or only some have standard errors; the message names the trials.
            JournalError: if the journal at `path` belongs to another experiment.
        """
        return import_module("bo_scale.ax").optimizer_from(source, **options)

    def to_ax(self) -> Any:
        """Return an Ax client with every point as a trial: its parameters, data and status, in order of arrival.

        It is the client that the optimizer came from, with new trials and data added. Without one it is a new client.
        """
        return import_module("bo_scale.ax").client_of(self)

    # ------------------------------------------------------------------ proposals

    def _report_grid(self, model: Model) -> None:
        """Report a coarse grid: to the log after every fit, as a warning once."""
        message = coarse_grid(model)
        if message is None:
            return
        logger.info("%s", message)
        if not self._grid_reported:
            self._grid_reported = True
            later = "For later fits see the log 'bo_scale.loop'."
            warnings.warn(f"{message} {later}", InterpolationWarning, 3)

    def _initial(self, q: int, held: Mapping[int, float]) -> Float[Tensor, "q d"]:
        """Return the next first points: the centre of the space if admissible, then a scrambled Sobol sequence."""
        seed, done = mixed(self._settings.seed) % 2**31, self.history.initial_points
        if held:
            return (self.space.admissible or Admissible(self.space.dimension)).holding(held).sample(q, seed, done)
        centre = self._centre() if self.history.centre_first else None
        if centre is None:
            return self._quasi_random(q, seed, done)
        if done == 0:
            return torch.cat([centre, self._quasi_random(q - 1, seed, 0)]) if q > 1 else centre
        return self._quasi_random(q, seed, done - 1)

    def _centre(self) -> Float[Tensor, "1 d"] | None:
        centre = torch.full((1, self.space.dimension), 0.5, dtype=torch.float64)
        if self.space.admissible is None:
            return centre
        centre = self.space.admissible.snap(centre)
        return centre if bool(self.space.admissible.feasible(centre)) else None

    def _quasi_random(self, q: int, seed: int, done: int) -> Float[Tensor, "q d"]:
        """Return points of the sequence, admissible ones only."""
        if self.space.admissible is not None:
            return self.space.admissible.sample(q, seed, done)
        engine = SobolEngine(self.space.dimension, scramble=True, seed=seed)
        engine.fast_forward(done)
        return engine.draw(q, dtype=torch.float64)

    def _propose(
        self,
        surrogate: Surrogate,
        ask: int,
        n: int,
        q: int,
        avoided: Float[Tensor, "p d"] | None,
        held: Mapping[int, float],
    ) -> Float[Tensor, "q d"]:
        device = self._builder.device
        setting = Setting(
            surrogate.model,
            self.history.told.first(n)[0].to(device),
            None if avoided is None else avoided.to(device),
            q,
            mixed(self._settings.seed, ask, 1) % 2**31,
            self._settings.acquisition_options,
            self.space.admissible,
            None if self.outcomes.plain else self.outcomes.goal(self.history.told.first(n)[1]).to(device),
            held or None,
        )
        with seeded(self._settings.seed, device, ask, 2):
            return propose(self._kind.make, setting)

    def _new_choices(self, surrogate: Surrogate) -> dict[str, Any]:
        """Return what the journal records of a choice; empty if an earlier ask recorded it."""
        made = surrogate.choices_made()
        if not made or self._choice_at == surrogate.count:
            return {}
        self._choice_at = surrogate.count
        return made

    # ------------------------------------------------------------------ journal

    def record(self, event: Event) -> None:
        """Write an event to the journal and apply it, as a replay of the journal would.

        Args:
            event: An event that `History.replay` takes.
        """
        with self.history.lock, self._persistence.written(event):
            self.history.replay(event)

    def _require_writable(self) -> None:
        """Refuse to propose points that cannot be recorded."""
        if self._persistence.read_only:
            raise JournalError("ask: the run was opened with mode='r', to read. Open it without, to go on.")

    def close(self) -> None:
        """Release the journal, so that another process can use it."""
        if hasattr(self, "_persistence"):
            self._persistence.close()

    def __enter__(self) -> "Optimizer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_same(path: Any, history: History, space: Space | None, outcomes: Outcomes | None) -> None:
    """Refuse another problem than that of a journal."""
    differing = []
    for name, given, own, remedy in (
        ("space", space, history.space, "Optimizer.open(path).migrate(space=…) carries the run over to it"),
        ("objective", outcomes, history.outcomes, "begin another run for it, at another path"),
    ):
        if given is not None and given.describe() != own.describe():
            differing.append(f"{name}: {own.describe()!r}, now {given.describe()!r}. {remedy}")
    if differing:
        raise JournalError(f"path={path!r}: begun with other arguments ({'; '.join(differing)}).")
