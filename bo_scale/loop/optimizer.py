"""Ask and tell: Bayesian optimisation whose step costs the same at any number of observations, and which resumes."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from typing_extensions import override

from bo_scale.decimals import Mark
from bo_scale.decisions.setting import Acquisition
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop import best as standing
from bo_scale.loop import corrections, insight, tables, telling
from bo_scale.loop.history.history import History
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.observations import Id
from bo_scale.loop.history.records import Best, Step, TradeOff
from bo_scale.loop.persistence import Persistence
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.outcomes import Direction, Outcomes
from bo_scale.loop.problem.space import Points, Space
from bo_scale.loop.proposals import Proposals
from bo_scale.loop.reports import suspects_of
from bo_scale.loop.run import TOLERANCE, Run
from bo_scale.loop.served import ModelFactory
from bo_scale.loop.settings import Settings
from bo_scale.loop.workers import run_loop
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.door import require_whole


class Optimizer:
    """Bayesian optimisation by ask and tell.

    You may tell points in any order, in part, late, or without having asked for them. Proposals take pending points
    into account. The model is fitted each time the data have grown by a factor, and after a value far from what it
    predicted. In between it is conditioned exactly, so with a WISKI an ask costs the same at any number of
    observations.

    With a `path`, every event is on disk before the call returns. To resume, call `Optimizer.open(path)`, or make an
    Optimizer with the same arguments and path. It proposes what an uninterrupted run would have proposed, since the
    randomness of each ask comes from the seed and the number of the ask. Points asked for but not told are in
    `pending`. What you leave out on resuming is as it was; other settings apply from the next ask on, as with `change`.

    Calls from several threads are safe. A tell does not wait for a running ask.

    Attributes:
        client: The Ax client that the optimizer came from, to which `to_ax` adds trials. None without one.

    Args:
        space: The parameters. With names, `{"x": (0.0, 1.0), "n": Integer(1, 8), …}`, points are dictionaries. With
            a list, or a `2 × d` tensor of bounds, points are rows of a tensor. A pair of bounds means `Real`; the other
            kinds are `Integer`, `Choice` and `Fixed`. `When("solver", "sgd", (0.0, 0.99))` exists only where the solver
            is "sgd"; points lack it elsewhere.
        objective: "maximize" or "minimize", for a single value. None means "maximize", and the log says so.
        model: "auto" (None), which chooses by evidence, anew whenever the data have doubled (see `choice`): up to 5000
            observations an exact GP, then the model that predicts unseen observations best. Or "wiski" (up to 4 inputs,
            or with a projection), "grief", "softki", "cagp", "decoupled", or a factory (X, Y, Yvar) -> Model. A factory
            gets X in the unit cube and Y of which larger is better. With several outcomes, each has a model of its own,
            and the factory gets one column of Y.
        acquisition: "qLogNEI", "qLogEI", "qUCB", "qKG", "qNIPV" or "Thompson" (for batches of 10 to 1000); or a factory
            that makes an AcquisitionFunction, or the points themselves, from a `Setting`. Constraints on outcomes need
            "qLogEI" or "qLogNEI". Several objectives need "qLogNEHVI" or "qLogEHVI" (over the front of posterior
            means). "qMFKG" needs a `fidelity`. None means "qLogNEI", "qLogNEHVI" for several objectives, or "qMFKG"
            with a fidelity.
        seed: Seed of all randomness.
        path: Folder of the journal, used by one process at a time; `~` is the user's home. None to keep nothing on
            disk.
        num_initial: Number of observations before the first model. Until then points are the centre of the space and
            quasi-random ones; so they are as long as all values are equal. None means one more than parameters, 4 to 8.
        refit_growth: Factor by which the number of observations grows between two fits. None means 1.25, not counting
            the first 64, after each of which the model is fitted.
        model_options: Options for the constructor of a model given by name.
        acquisition_options: Options of the acquisition: beta (qUCB), mc_samples, num_fantasies (qKG), mc_points
            (qNIPV), num_maximizers (qMFKG), distance (Thompson), num_restarts, raw_samples, max_steps.
        failures: "avoid" (None) keeps proposals away from the latest points that failed. "learn" learns where points
            fail, from all failures, as a constraint on one more outcome. It needs an acquisition that serves
            constraints; a factory gets a model with one more output, and a goal. A failure counts no more once the
            point is told a value. See `success`.
        per_cost: Whether to maximise the improvement by unit of cost, once four observations came with a `cost`. It
            needs "qLogNEI", "qLogNEHVI" or "qMFKG".
        fidelity: Values of parameters at which outcomes count, such as `{"epochs": 50}`. Observations with other values
            are learned from. "qMFKG", then the default for one objective without constraints, chooses these values
            itself, by unit of cost; other acquisitions propose at the target. The cost is that told, once four
            observations have one; else it is taken as proportional to the values. `best` is at the target.
        device: Device of the model. None means the CPU.
        match_tolerance: Largest difference, in each parameter, between a told point and the pending point that it
            matches, as a share of the parameter's range.
        parameter_constraints: Constraints on Real and Integer parameters, in raw units: `"x + 2 * n <= 3"` or `Linear`.
            Mixtures have equalities: `"a + b + c == 1"`.
        objectives: Directions of one or more objectives by name, instead of `objective`:
            `{"loss": "minimize", "gain": "maximize"}`. Values are then told as dictionaries.
        constraints: Constraints on outcomes, `"cost <= 3"` or `Linear`. Outcomes that are not objectives are told along
            with them.
        reference_point: Value of each objective beyond which it counts, for several objectives. Inferred for those
            not given.
        mode: "a" to go on with the run of a path; "r" to look at it, also while another process writes.

    Raises:
        SpaceError: if the space cannot be used.
        InvalidArgumentError: for names and options that do not exist, or do not serve the problem.
        JournalLockedError: if another process works on the path.
        JournalError: if the journal is damaged before its last line, or is of another space or objective.

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
        failures: Literal["avoid", "learn"] | None = None,
        per_cost: bool | None = None,
        fidelity: Mapping[Any, Any] | None = None,
        device: torch.device | str | None = None,
        match_tolerance: float | None = None,
        parameter_constraints: Sequence[str | Linear] = (),
        objectives: Mapping[str, Direction] | None = None,
        constraints: Sequence[str | Linear] = (),
        reference_point: Mapping[str, float | int] | None = None,
        mode: Literal["a", "r"] = "a",
    ) -> None:
        if mode not in ("a", "r"):
            raise InvalidArgumentError(f"mode={mode!r}: choose 'a', to go on, or 'r', to read.")
        given = {
            "model": model,
            "model_options": model_options,
            "acquisition": acquisition,
            "acquisition_options": acquisition_options,
            "seed": seed,
            "num_initial": num_initial,
            "refit_growth": refit_growth,
            "failures": failures,
            "per_cost": per_cost,
            "fidelity": fidelity,
        }
        wanted = None if space is None else Space.of(space, parameter_constraints)
        told = any(each is not None for each in (objective, objectives, reference_point)) or len(constraints) > 0
        outcomes = Outcomes.of(objective, objectives, constraints, reference_point) if told else None
        on = torch.device(device or "cpu")
        self._run = Run(path, wanted, outcomes, given, on, match_tolerance, mode == "r")
        self._proposals = Proposals(self._run)
        self.client: Any = None

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
        match_tolerance: float | None = None,
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
            match_tolerance: As for the constructor; None for that of the run.

        Raises:
            JournalError: if there is no journal, or it is damaged.
            JournalLockedError: if another process works on the path, and mode is not "r".
        """
        return cls(
            None,
            model=model,
            acquisition=acquisition,
            path=path,
            model_options=model_options,
            acquisition_options=acquisition_options,
            device=device,
            match_tolerance=match_tolerance,
            mode=mode,
        )

    @property
    def history(self) -> History:
        """The history so far. Read it only."""
        return self._run.history

    @property
    def space(self) -> Space:
        """The parameters and their constraints."""
        return self._run.history.space

    @property
    def outcomes(self) -> Outcomes:
        """Objectives and constraints on outcomes."""
        return self._run.history.outcomes

    @property
    def settings(self) -> Settings:
        """Model, acquisition, seed and the like, as they apply to the next ask."""
        return self._run.settings

    # ------------------------------------------------------------------ ask, tell, abandon

    @override
    def __repr__(self) -> str:
        """Return the sizes of the run and what it is asked with."""
        told, open_points = self.history.told.count, len(self.pending)
        of = f"{len(self.space.parameters)} parameters, {told} observations, {open_points} pending"
        return f"Optimizer({of}, acquisition {self._run.kind.name})"

    def ask(self, q: int = 1, *, fixed: Mapping[Any, Any] | None = None) -> Points:
        """Return the next q points to evaluate, in raw units. They are pending until told or abandoned.

        Args:
            q: Number of points. "Thompson" serves hundreds.
            fixed: Values of parameters that cannot be chosen this time, such as the weather: `{"temperature": 21}`. By
                name, or by column in a space without names. Points have all of these parameters: with a conditional
                one, those on which it depends are chosen so that it exists. They come before the `fidelity` of the
                run.

        Raises:
            InvalidArgumentError: if q is no whole number, or below 1.
            SpaceError: for fixed values that the space does not hold.
        """
        q = require_whole(q, "q")
        if q < 1:
            raise InvalidArgumentError(f"q={q}: must be at least 1.")
        return self._proposals.ask(q, fixed or {})

    def tell(
        self,
        X: Any,
        Y: Any = None,
        Yvar: Any = None,
        *,
        id: Any = None,
        failed: bool = False,
        attributes: Any = None,
        cost: Any = None,
    ) -> list[Id]:
        """Record observations; with a `path` they are on disk when this returns. Matching points are no longer pending.

        q points cost O(q · pending), whatever n is.

        Args:
            X: Points as `ask` returns them, rows of numbers, or a pandas DataFrame with a column for each parameter.
                Any order and any subset will do, and so will points never asked for. Conditional parameters may be
                left out, None or NaN where they do not exist; values given there are ignored.
            Y: One value for each point, or a Series. For outcomes with names, one dictionary for each, one row in the
                order of `outcomes.names`, or a DataFrame.
            Yvar: Noise variances in the form of Y, in its squared units; None or NaN where they are not known. If only
                some are, the variance of the others is estimated.
            id: A string or whole number for each point. Without ids they are numbered. Telling the same observation
                under the same id again changes nothing, so a call may be repeated when its answer was lost.
            failed: Whether the points were tried and gave no value. Then leave Y out. They are no longer pending, and
                proposals avoid the latest of them. Telling it again changes nothing. Ids are not kept.
            attributes: The user's notes: a dictionary for all points or one for each, of what JSON holds.
            cost: What each point cost, in any unit, such as seconds; None where that is not known. It counts if the run
                has `per_cost=True`.

        Returns:
            The ids of the observations, by which `revise` and `forget` know them; empty for failed points.

        Raises:
            SpaceError: if points lie outside the space; the message names the rows.
            InvalidDataError: for NaN or inf, a shape that does not fit, variances that are not positive, or an id of
                another observation.
            InvalidArgumentError: for ids and attributes that do not fit, and values of failed points.
        """
        if not isinstance(failed, bool):
            raise InvalidArgumentError("failed: True or False, for all points. Tell failed points by themselves.")
        if failed:
            if attributes is not None or cost is not None:
                raise InvalidArgumentError("attributes, cost: failed points are no observations. Leave them out.")
            telling.tell_failed(self._run, X, {"Y": Y, "Yvar": Yvar})
            return []
        if Y is None:
            raise InvalidDataError("Y: no values. Give one for each point, or failed=True for points without one.")
        return telling.tell(self._run, X, Y, Yvar, id, attributes, cost)

    def abandon(self, X: Any) -> None:
        """Give up pending points that will never be told, such as failed trials. Proposals avoid the latest of them.

        Args:
            X: Pending points, as for `tell`.

        Raises:
            InvalidDataError: if rows match no pending point; the message names them.
        """
        history = self.history
        with history.lock:
            matched = history.match(self.space.encode(X, slack=self._run.tolerance))
            strangers = [row for row, number in enumerate(matched) if number is None]
            if strangers:
                raise InvalidDataError(f"X: rows {strangers[:5]} match no pending point. `pending` lists them.")
            numbers = [number for number in matched if number is not None]
            if not numbers:
                return
            with self._run.persistence.written({"event": "abandon", "numbers": numbers}):
                history.abandon(numbers)

    # ------------------------------------------------------------------ correct, change

    def revise(self, id: Any, Y: Any = None, Yvar: Any = None, *, X: Any = None, cost: Any = None) -> None:
        """Correct the values of observations, or their points. The next model is fitted anew. O(n).

        Args:
            id: The id of an observation, or several.
            Y: Their values, as for `tell`. None leaves them as they are.
            Yvar: Their noise variances. None leaves them as they are.
            X: Their points, as for `tell`: where they were measured in truth. None leaves them as they are.
            cost: Their costs. None leaves them as they are.

        Raises:
            InvalidArgumentError: if no observation has the id.
            InvalidDataError: for values that do not fit, or nothing to correct.
            SpaceError: if points lie outside the space, or are to be those of observations that were set aside.
            UnsupportedError: for points of Ax trials.
        """
        if isinstance(id, set | frozenset):
            raise InvalidArgumentError("id: a set has no order, in which ids would belong to values. Give a list.")
        if X is not None and (self.client is not None or self.history.from_ax):
            raise UnsupportedError("X: the points are those of Ax trials. Forget the observation, and tell another.")
        corrections.revise(self._run, telling.read_ids(id), Y, Yvar, X, cost)

    def forget(self, id: Any) -> None:
        """Take observations out of the run, such as those of a broken instrument. The next model is fitted anew. O(n).

        `restore` takes them back.

        Args:
            id: The id of an observation, or several.

        Raises:
            InvalidArgumentError: if no observation has the id.
        """
        corrections.forget(self._run, telling.read_ids(id))

    def restore(self, id: Any) -> None:
        """Take observations back that were forgotten, with all that is known of them. O(n).

        The next model is fitted anew. Observations outside the space are set aside.

        Args:
            id: The id of an observation, or several.

        Raises:
            InvalidArgumentError: if none was forgotten under the id.
        """
        corrections.restore(self._run, telling.read_ids(id))

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
        failures: Literal["avoid", "learn"] | None = None,
        per_cost: bool | None = None,
        fidelity: Mapping[Any, Any] | None = None,
    ) -> None:
        """Change settings from the next ask on; arguments as for the constructor, None for what stays.

        The options of a model or an acquisition that is replaced are dropped. `fidelity={}` ends it. It changes no
        acquisition: name one along with it. The next model is fitted anew.

        Raises:
            InvalidArgumentError: for names and options that do not exist, or do not serve the problem.
            SpaceError: for a fidelity that the space does not hold.
        """
        self._run.change({name: value for name, value in locals().items() if name != "self"})

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
            values: The value that each new parameter had in the past. Also that of a conditional one where it did not
                exist, and now does.
            parameter_constraints: All constraints on parameters in the new space.

        Raises:
            SpaceError: if a parameter is missing, or a new one has no value for the past.
            InvalidArgumentError: if the model or the acquisition does not serve the new space.
        """
        if self.client is not None or self.history.from_ax:
            raise UnsupportedError("migrate: the space is that of an Ax experiment. Change it there.")
        corrections.migrate(self._run, Space.of(space, parameter_constraints), dict(values or {}))

    def run(
        self,
        evaluate: Callable[[Any], Any],
        batches: int | None = None,
        q: int = 1,
        *,
        total: int | None = None,
        workers: int | None = None,
        executor: Executor | Callable[[], Executor] | None = None,
        on_error: str = "raise",
        retries: int = 0,
        timeout_seconds: float | None = None,
        progress: bool = True,
    ) -> Any:
        """Ask, evaluate and tell, then return the result. Points that a killed run left pending come first.

        With several workers a result is told as soon as it comes home, and the next points are asked for with the
        others pending: those of all free workers at once with "Thompson", else one after the other. The search then
        depends on the order of arrival. With one, the seed determines it.

        Args:
            evaluate: Function from points, as `ask` returns them, to their values, or to a pair of values and
                variances. It gets q points per call, or fewer at the end.
            batches: Number of asks.
            q: Number of points per ask.
            total: Number of observations at which the run ends, instead of `batches`. It counts those told before, so
                that the same call finishes a run that was killed. It is never exceeded.
            workers: Number of evaluations at a time. None means 1, in the calling thread.
            executor: A `concurrent.futures.Executor` where evaluations run, such as a ProcessPoolExecutor or one of
                dask's; it stays open. Or a function that makes one, `lambda: ProcessPoolExecutor(8)`: if a process
                dies, another one is made, and what was under way begins again, at most three times. It needs
                `workers`. None means threads.
            on_error: What to do if `evaluate` fails, or returns what cannot be told. "raise" awaits and tells the other
                evaluations under way, then raises the error; the failed points stay pending. "abandon" gives the points
                up, logs a warning, and goes on, but raises if 10 evaluations in a row fail. "fail" does so too, and
                tells them with `failed=True`.
            retries: Number of times that an evaluation that failed is tried again before that. The journal has each
                failure, with its reason, and `history.attempts` lists them.
            timeout_seconds: Time after which an evaluation counts as failed, from its start on a free worker. What it
                still does is cancelled where the executor can, as Dask's does; a thread or a process goes on unheard.
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
            retries=retries,
            timeout_seconds=timeout_seconds,
            progress=progress,
            at_once=self._run.kind.at_once,
            note=partial(telling.note_attempt, self._run),
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

        With several outcomes it is a ModelListGP of one model for each. It is that of the next ask, if it came now:
        fitted if that is due, and then kept for that ask.
        """
        return self._run.present().model

    @property
    def choice(self) -> Any:
        """The report on the choice of the model, or a list of one for each outcome; None if it is not automatic."""
        surrogate = self._run.present()
        return [part.choice for part in surrogate.parts] if surrogate.parts else surrogate.choice

    def best(self, *, fixed: Mapping[Any, Any] | None = None) -> Best:
        """Return the told point with the best posterior mean, and the one with the best observation.

        Feasible points come before others. O(n) features, and a fit if one is due at the next ask, which takes it over.

        Args:
            fixed: Values that some parameters have, as for `ask`. Then x is the point of best posterior mean among all
                with these values, told or not; `observed_x` is None if none was told. A `fidelity` of the run is fixed
                at its target, unless another value is given.

        Raises:
            InvalidDataError: before the first tell, or for several objectives.
            SpaceError: for fixed values that the space does not hold.
        """
        if self.outcomes.several:
            raise InvalidDataError("best: with several objectives no single point is best. Call pareto().")
        with self._run.model_lock:
            held, known = self._run.target(fixed or {}), self._run.known()
            suspected = self._run.suspected_rows()
            if held:
                seed = self._run.settings.seed
                return standing.best_at(self.space, self.outcomes, *known, held, seed, suspected)
            return standing.best(self.space, self.outcomes, *known, suspected)

    def pareto(self) -> list[TradeOff]:
        """Return the feasible told points that no other dominates, by posterior means, in the order they were told.

        O(n) features and O(n · points returned) comparisons, and a fit as for `best`. With a `fidelity`, told points
        are moved to its target, and some may not have been told there: see their sd.

        Raises:
            InvalidDataError: before the first tell, or for an outcome without a name.
        """
        if self.outcomes.names is None:
            raise InvalidDataError("pareto: it needs outcomes with names. Pass objectives={…}, or call best().")
        with self._run.model_lock:
            return standing.trade_offs(self.space, self.outcomes, *self._run.known(), self._run.target({}))

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
        with self._run.model_lock:
            model = self._run.present().model
            return insight.predict(
                self.space,
                self.outcomes,
                model,
                points,
                observation=observation,
                probability=probability,
                slack=self._run.tolerance,
            )

    def success(self, points: Any) -> list[float]:
        """Return the probability that each point gives a value, learned from those that did and those that failed.

        It is 1 without failures. `failures="learn"` makes proposals by it.

        Args:
            points: Points as for `tell`.

        Raises:
            SpaceError: for points outside the space.
        """
        return insight.success(self.history, points, self._run.settings.seed)

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
        with self._run.model_lock:
            return suspects_of(self._run, self._run.present(), threshold)

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
        with self._run.model_lock:
            surrogate = self._run.present()
            data = self._run.data(surrogate)
            single = self._run.single
            part = surrogate.parts[0] if surrogate.parts else surrogate
            options: dict[str, Any] = {"folds": folds, "seed": self._run.settings.seed}
            try:
                fitted = single.refitted(part) if refit else None
                return insight.cross_validate(self.outcomes, surrogate.model, *data, fitted=fitted, **options)
            except UnsupportedError:
                fitted = insight.at_hyperparameters(part.model, single.maker(part))
                return insight.cross_validate(self.outcomes, surrogate.model, *data, fitted=fitted, **options)

    def importance(self) -> insight.Importances:
        """Return how much each parameter matters, for every outcome: Sobol' indices of the posterior mean.

        Raises:
            InvalidDataError: before the first tell.
            SpaceError: with constraints on parameters, or conditional ones: they depend on each other.
        """
        with self._run.model_lock:
            return insight.importance(self.space, self.outcomes, self._run.present().model)

    # ------------------------------------------------------------------ tables

    def observations_frame(self, *, every: bool = False) -> Any:
        """Return the observations as a pandas DataFrame: id, parameters, outcomes, variances, time, notes. O(n).

        Args:
            every: Whether to add observations that do not count: those outside the space, and those forgotten. A column
                "status" says which is "told", "set aside" or "forgotten".

        Raises:
            MissingDependencyError: without pandas.
        """
        return tables.frame_of(self.history, every)

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
        decimal: Mark | None = None,
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
            decimal: The decimal mark, "comma" or "point", of numbers such as 1,234, which may be read in two ways. None
                means what the other numbers of a column show.
            **options: Further arguments for the constructor: `objective`, `path`, …

        Raises:
            InvalidDataError: for columns that are missing or there twice, rows longer than the header, cells that
                cannot be read or may be read in two ways, or a row that has changed since it was told; the message
                names the line.
            SpaceError: for rows outside the space.
        """
        if outside not in ("refuse", "skip"):
            raise InvalidArgumentError(f"outside={outside!r}: choose 'refuse' or 'skip'.")
        if Persistence.is_new(options.get("path")):  # nothing is begun with a table that cannot be read
            wanted = Space.of(space, options.get("parameter_constraints", ()))
            directions = options.get("objective"), options.get("objectives")
            goals = Outcomes.of(*directions, options.get("constraints", ()), options.get("reference_point"))
            past = tables.read_csv(source, wanted, goals, value, decimal)
            slack = options.get("match_tolerance")
            tables.require_inside(source, past, wanted, outside == "skip", TOLERANCE if slack is None else slack)
        optimizer = cls(space, **options)
        try:
            tables.tell_past(optimizer, source, value, outside == "skip", decimal)
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
        from it and adds what has happened in Ax since: trials that ended, and new ones. A `TransferWarning` names
        trials whose data differ. Trials completed with NaN become failed points. `to_ax` adds to this experiment.

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
        A `TransferWarning` names trials that the loop has revised or forgotten: Ax's data stay as they are.
        """
        return import_module("bo_scale.ax").client_of(self)

    # ------------------------------------------------------------------ journal

    def record(self, event: Event) -> None:
        """Write an event to the journal and apply it, as a replay of the journal would.

        Args:
            event: An event that `History.replay` takes.
        """
        self._run.record(event)

    def close(self) -> None:
        """Release the journal, so that another process can use it."""
        self._run.persistence.close()

    def __enter__(self) -> "Optimizer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
