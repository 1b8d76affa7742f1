"""Ask and tell: Bayesian optimisation whose step costs the same at any number of observations, and which resumes."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch
from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine
from tqdm.auto import tqdm
from typing_extensions import override

from bo_scale.decisions.by_name import acquisition_kind, default_acquisition, require_options, require_served
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Acquisition, Setting
from bo_scale.errors import InterpolationWarning, InvalidArgumentError, InvalidDataError
from bo_scale.loop import best as standing
from bo_scale.loop.history.history import History
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.observations import rows_where
from bo_scale.loop.history.records import Best, Step, TradeOff
from bo_scale.loop.persistence import Persistence
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.outcomes import Direction, Outcomes
from bo_scale.loop.problem.space import Points, Space
from bo_scale.loop.served import ModelFactory, model_factory
from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder
from bo_scale.loop.surrogate.chain import SurrogateChain
from bo_scale.loop.surrogate.per_outcome import SeveralBuilder
from bo_scale.loop.surrogate.resolution import coarse_grid
from bo_scale.models.refit import GROWTH, Refit
from bo_scale.models.shell.door import require_whole
from bo_scale.random import mixed, seeded

FORMATS = {True: 1, False: 2}
"""Formats of the journal: 1 for a box and one value, 2 for any other space and for outcomes with names."""
DEFAULT_MODEL = "auto"
logger = logging.getLogger("bo_scale.loop")


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
        refit_growth: Factor by which the number of observations grows between two fits.
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
        ...     optimizer.tell(points, [p["x"] ** 2 + p["y"] for p in points])
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
        seed: int = 0,
        path: str | os.PathLike[str] | None = None,
        num_initial: int | None = None,
        refit_growth: float = GROWTH,
        model_options: Mapping[str, Any] | None = None,
        acquisition_options: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        match_tolerance: float = 1e-6,
        parameter_constraints: Sequence[str | Linear] = (),
        objectives: Mapping[str, Direction] | None = None,
        constraints: Sequence[str | Linear] = (),
        reference_point: Mapping[str, float | int] | None = None,
    ) -> None:
        self.space = Space.of(space, parameter_constraints)
        self.outcomes = Outcomes.of(objective, objectives, constraints, reference_point)
        acquisition = acquisition or default_acquisition(self.outcomes.objectives)
        self._kind = acquisition_kind(acquisition)
        require_options(self._kind, acquisition_options)
        discrete = self.space.admissible is not None and self.space.admissible.discrete
        require_served(self._kind, self.outcomes.objectives, len(self.outcomes.constraints), discrete)
        self._acquisition_options = dict(acquisition_options or {})
        self._tolerance = match_tolerance
        self._seed = require_whole(seed, "seed")
        self._refit, self._device = Refit(refit_growth), torch.device(device or "cpu")
        self.history = History(self.space, self.outcomes, match_tolerance)
        self.client: Any = None
        self._grid_reported = False
        self._choice_at: int | None = None
        self._model_lock = threading.RLock()
        if self.space.admissible is not None:
            self.space.admissible.sample(1, 0)  # or there is nothing to search
        model = DEFAULT_MODEL if model is None and Persistence.is_new(path) else model
        if model is not None:
            model_factory(model, model_options, self.space.dimension)  # refused before anything is written
        self._persistence = Persistence(path)
        try:
            self._begin(model, model_options, acquisition, num_initial)
        except BaseException:
            self._persistence.close()
            raise

    def _begin(
        self,
        model: str | ModelFactory | None,
        model_options: Mapping[str, Any] | None,
        acquisition: str | Acquisition,
        num_initial: int | None,
    ) -> None:
        """Make the builder of models, and begin or resume the journal, which knows the defaults it was begun with."""
        begun = self._persistence.begun
        if model is None:
            model = begun.get("model", DEFAULT_MODEL)
            model = DEFAULT_MODEL if model == "factory" else model
        if num_initial is None:
            num_initial = begun.get("num_initial", self.space.num_initial)
        self._num_initial = max(1, num_initial)
        factory = model_factory(model, model_options, self.space.dimension)
        single = SurrogateBuilder(factory, self._refit, self._seed, self._device)
        self._builder = single if len(self.outcomes.signs) == 1 else SeveralBuilder(single)
        self._chain = SurrogateChain(self._builder, self.history.told)
        begin = {
            "event": "begin",
            "format": FORMATS[self.space.is_box and self.outcomes.names is None],
            "space": self.space.describe(),
            "objective": self.outcomes.describe(),
            "model": model if isinstance(model, str) else "factory",
            "model_options": repr(sorted((model_options or {}).items())),
            "acquisition": acquisition if isinstance(acquisition, str) else "factory",
            "acquisition_options": repr(sorted(self._acquisition_options.items())),
            "seed": self._seed,
            "num_initial": self._num_initial,
            "refit_growth": self._refit.growth,
        }
        self._persistence.resume(begin, self.history, self._chain, self._num_initial)

    # ------------------------------------------------------------------ ask, tell, abandon

    @override
    def __repr__(self) -> str:
        """Return the sizes of the run and what it is asked with."""
        told, open_points = self.history.told.count, len(self.pending)
        of = f"{len(self.space.parameters)} parameters, {told} observations, {open_points} pending"
        return f"Optimizer({of}, acquisition {self._kind.name})"

    def ask(self, q: int = 1) -> Points:
        """Return the next q points to evaluate, in raw units. They are pending until told or abandoned.

        Args:
            q: Number of points. "Thompson" serves hundreds.

        Raises:
            InvalidArgumentError: if q is no whole number, or below 1.
        """
        q = require_whole(q, "q")
        if q < 1:
            raise InvalidArgumentError(f"q={q}: must be at least 1.")
        if q > self._kind.largest_batch:
            logger.info("q=%d: %s is meant for batches of up to %d.", q, self._kind.name, self._kind.largest_batch)
        with self._model_lock:
            with self.history.lock:
                ask, n, avoided = (
                    self.history.asks,
                    self.history.told.count,
                    self.history.pending.avoided(self.space.dimension),
                )
            started = time.perf_counter()
            fitted = middle = started
            if n < self._num_initial:
                unit, was_fitted, chosen = self._initial(q), False, dict[str, Any]()
            else:
                surrogate, was_fitted = self._chain.advance(ask, n)
                fitted, chosen = time.perf_counter(), self._new_choices(surrogate) if was_fitted else {}
                unit = self._propose(surrogate, ask, n, q, avoided)
            middle = time.perf_counter()
            points = self.space.decode(unit.cpu())
            rows = self.space.settled(points)
            step = Step(ask, n, q, was_fitted, round(fitted - started, 6), round(middle - fitted, 6))
            with self.history.lock:
                initial = q if n < self._num_initial else 0
                event = {"event": "ask", **asdict(step), "initial": initial, "X": rows, **chosen}
                with self._persistence.written(event):
                    self.history.ask(step, rows, initial)
                self._chain.commit()
                checksum = self._persistence.checksum
            self._persistence.keep(self._chain, ask, was_fitted, checksum)
        logger.info("%s", step)
        if was_fitted:
            self._report_grid(surrogate.model)
        return points

    def tell(self, X: Any, Y: Any, Yvar: Any = None) -> None:
        """Record observations; with a `path` they are on disk when this returns. Matching points are no longer pending.

        q points cost O(q · pending), whatever n is.

        Args:
            X: Points as `ask` returns them, rows of numbers, or a pandas DataFrame with a column for each parameter.
                Any order and any subset will do, and so will points never asked for.
            Y: One value for each point, or a Series. For outcomes with names, one dictionary for each, one row in the
                order of `outcomes.names`, or a DataFrame.
            Yvar: Noise variances in the form of Y, in its squared units. Give them always or never.

        Raises:
            SpaceError: if points lie outside the space; the message names the rows.
            InvalidDataError: for NaN or inf, a shape that does not fit, or variances that are not positive.
        """
        unit = self.space.encode(X, slack=self._tolerance)
        values = self.outcomes.read("Y", Y, len(unit))
        variances = None if Yvar is None else self.outcomes.read("Yvar", Yvar, len(unit))
        if variances is not None and not (variances > 0).all():
            raise InvalidDataError(
                f"Yvar: variances in rows {rows_where((variances <= 0).any(-1))[:5]} are not positive."
            )
        with self.history.lock:
            if self.history.told.known_noise not in (None, Yvar is not None) and len(unit) > 0:
                before = "with" if self.history.told.known_noise else "without"
                raise InvalidDataError(
                    f"Yvar: earlier observations came {before} variances. Give them always or never."
                )
            if len(unit) == 0:
                return
            matched = self.history.match(unit)
            event = {
                "event": "tell",
                "matched": matched,
                "X": (rows := self.space.settled(X)),
                "Y": self.outcomes.shown(values),
                "Yvar": None if variances is None else self.outcomes.shown(variances),
            }
            with self._persistence.written(event):
                self.history.tell(unit, rows, values, variances, matched)

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

    def run(self, evaluate: Callable[[Any], Any], batches: int, q: int = 1, *, progress: bool = True) -> Any:
        """Ask, evaluate and tell in turn, then return the result. Points that a killed run left pending come first.

        Args:
            evaluate: Function from points, as `ask` returns them, to their values, or to a pair of values and
                variances.
            batches: Number of asks.
            q: Number of points per ask.
            progress: Whether to show a progress bar.

        Returns:
            `best()`, a `Best`. For several objectives `pareto()`, a list of `TradeOff`.
        """
        if len(self.history.pending.points) > 0:
            self._evaluate_and_tell(evaluate, self.pending)
        for _ in tqdm(range(batches), desc="optimise", unit="batch", disable=not progress):
            self._evaluate_and_tell(evaluate, self.ask(q))
        return self.pareto() if self.outcomes.several else self.best()

    def _evaluate_and_tell(self, evaluate: Callable[[Any], Any], points: Points) -> None:
        result = evaluate(points)
        pair = isinstance(result, tuple) and len(result) == 2 and not isinstance(result[0], int | float)
        Y, Yvar = result if pair else (result, None)
        self.tell(points, Y, Yvar)

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

    def best(self) -> Best:
        """Return the told point with the best posterior mean, and the one with the best observation.

        Feasible points come before others. O(n) features; a fit only if no ask has fitted a model yet.

        Raises:
            InvalidDataError: before the first tell, or for several objectives.
        """
        if self.outcomes.several:
            raise InvalidDataError("best: with several objectives no single point is best. Call pareto().")
        with self._model_lock:
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
        with self._model_lock:
            return self._chain.present(self.history.asks)

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

    def _initial(self, q: int) -> Float[Tensor, "q d"]:
        """Return the next points of a scrambled Sobol sequence, admissible ones only."""
        if self.space.admissible is not None:
            return self.space.admissible.sample(q, mixed(self._seed) % 2**31, self.history.initial_points)
        engine = SobolEngine(self.space.dimension, scramble=True, seed=mixed(self._seed) % 2**31)
        engine.fast_forward(self.history.initial_points)
        return engine.draw(q, dtype=torch.float64)

    def _propose(
        self, surrogate: Surrogate, ask: int, n: int, q: int, avoided: Float[Tensor, "p d"] | None
    ) -> Float[Tensor, "q d"]:
        device = self._builder.device
        setting = Setting(
            surrogate.model,
            self.history.told.first(n)[0].to(device),
            None if avoided is None else avoided.to(device),
            q,
            mixed(self._seed, ask, 1) % 2**31,
            self._acquisition_options,
            self.space.admissible,
            None if self.outcomes.plain else self.outcomes.goal(self.history.told.first(n)[1]).to(device),
        )
        with seeded(self._seed, device, ask, 2):
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

    def close(self) -> None:
        """Release the journal, so that another process can use it."""
        self._persistence.close()

    def __enter__(self) -> "Optimizer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
