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
from bo_scale.random import mixed, seeded

FORMATS = {True: 1, False: 2}
"""Formats of the journal: 1 for a box and one value, 2 for any other space and for outcomes with names."""
logger = logging.getLogger("bo_scale.loop")


class Optimizer:
    """Bayesian optimisation by ask and tell.

    Points may be told in any order, in part, late, or without having been asked for. Pending points are taken into
    account. The model is fitted when the data have grown by a factor and conditioned exactly in between,
    so that with a WISKI an ask costs the same at any number of observations.

    With a `path` every event is on disk before the call returns. An Optimizer made anew with the same arguments and
    path goes on where the last one stopped: it proposes what an uninterrupted run would have proposed, since each ask
    draws its randomness from (seed, number of the ask). Points that had been asked for are in `pending`.

    Calls from several threads are safe; tells do not wait for a running ask.

    Attributes:
        space: The parameters and their constraints.
        outcomes: Objectives and constraints on outcomes.
        history: The history so far, to be read: `told`, `pending`, `ledger`, `steps`. `ask`, `tell`, `abandon` and
            `record` change it.
        client: The Ax client that it came from, to which `to_ax` adds; None without one.

    Args:
        space: `{"x": (0.0, 1.0), "n": Integer(1, 8), …}`, whose points are dictionaries; or pairs, or a `2 × d` tensor
            of bounds, whose points are rows of a tensor. A pair stands for `Real`; `Integer`, `Choice` and `Fixed` are
            the other kinds.
        objective: "maximize" (also None) or "minimize", of a single value.
        model: "wiski" (d ≤ 4, or with a projection), "grief", "softki", "cagp", "decoupled", or a factory (X, Y, Yvar)
            -> Model, of X in the unit cube and Y that is better the larger. Of several outcomes each has a model of its
            own, made from its column.
        acquisition: "qLogEI", "qLogNEI", "qUCB", "qKG", "qNIPV", "Thompson" (for batches of 10 to 1000), or a factory
            Setting -> AcquisitionFunction, or -> the points themselves. With constraints on outcomes "qLogEI" or
            "qLogNEI"; for several objectives "qLogNEHVI" or "qLogEHVI" (over the front of posterior means). None
            stands for "qLogEI", for several objectives "qLogNEHVI".
        seed: The seed of all randomness.
        path: Folder of the journal; None to keep nothing. One process at a time.
        num_initial: Observations before the first model; until then points are quasi-random. None means 2 (d + 1).
        refit_growth: Fit again when n has grown by this factor.
        model_options: For the constructor of a model given by name.
        acquisition_options: beta (qUCB), mc_samples, num_fantasies (qKG), mc_points (qNIPV), distance (Thompson),
            num_restarts, raw_samples, max_steps.
        device: The model's device; None means the CPU.
        match_tolerance: A told point is the pending one within this share of the range in every parameter.
        parameter_constraints: `"x + 2 * n <= 3"` or `Linear`, on intervals and integers, in raw units.
        objectives: In place of `objective`: `{"loss": "minimize", "gain": "maximize"}`; values are then dictionaries.
        constraints: On outcomes, as `"cost <= 3"` or `Linear`; those that are no objectives are told along with them.
        reference_point: Values beyond which several objectives count; inferred where none is given.

    Raises:
        SpaceError: if the space cannot be used.
        JournalLockedError: if another process works on the path.
        JournalError: if the journal is damaged before its last line, or was begun with other arguments.

    Example:
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
        model: str | ModelFactory = "wiski",
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
        self._num_initial = 2 * (self.space.dimension + 1) if num_initial is None else max(1, num_initial)
        self._tolerance = match_tolerance
        self._seed = seed = int(seed)
        factory = model_factory(model, model_options, self.space.dimension)
        single = SurrogateBuilder(factory, Refit(refit_growth), seed, torch.device(device or "cpu"))
        self._builder = single if len(self.outcomes.signs) == 1 else SeveralBuilder(single)
        self.history = History(self.space, self.outcomes, match_tolerance)
        self.client: Any = None
        self._chain = SurrogateChain(self._builder, self.history.told)
        self._grid_reported = False
        self._model_lock = threading.RLock()
        if self.space.admissible is not None:
            self.space.admissible.sample(1, 0)  # or there is nothing to search
        begin = {
            "event": "begin",
            "format": FORMATS[self.space.is_box and self.outcomes.names is None],
            "space": self.space.describe(),
            "objective": self.outcomes.describe(),
            "model": model if isinstance(model, str) else "factory",
            "model_options": repr(sorted((model_options or {}).items())),
            "acquisition": acquisition if isinstance(acquisition, str) else "factory",
            "acquisition_options": repr(sorted(self._acquisition_options.items())),
            "seed": seed,
            "num_initial": self._num_initial,
            "refit_growth": refit_growth,
        }
        self._persistence = Persistence(path, begin)
        self._persistence.resume(self.history, self._chain, self._num_initial)

    # ------------------------------------------------------------------ ask, tell, abandon

    def ask(self, q: int = 1) -> Points:
        """Return the next q points to evaluate, in raw units. They are pending until told or abandoned.

        Args:
            q: The number of points; hundreds with "Thompson".
        """
        if q < 1:
            raise InvalidArgumentError(f"q={q}: ask for at least one point.")
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
                unit, was_fitted = self._initial(q), False
            else:
                surrogate, was_fitted = self._chain.advance(ask, n)
                fitted = time.perf_counter()
                unit = self._propose(surrogate, ask, n, q, avoided)
            middle = time.perf_counter()
            points = self.space.decode(unit.cpu())
            rows = self.space.settled(points)
            step = Step(ask, n, q, was_fitted, round(fitted - started, 6), round(middle - fitted, 6))
            with self.history.lock:
                initial = q if n < self._num_initial else 0
                with self._persistence.written({"event": "ask", **asdict(step), "initial": initial, "X": rows}):
                    self.history.ask(step, rows, initial)
                self._chain.commit()
                checksum = self._persistence.checksum
            self._persistence.keep(self._chain, ask, was_fitted, checksum)
        logger.info("%s", step)
        if was_fitted:
            self._report_grid(surrogate.model)
        return points

    def tell(self, X: Any, Y: Any, Yvar: Any = None) -> None:
        """Record observations; they are on disk when this returns. A point that matches a pending one replaces it.

        O(q) for q points and O(pending) each, whatever n is.

        Args:
            X: Points as `ask` gives them, or rows of numbers; in any order, any subset, also points never asked for.
            Y: A value for each; of outcomes with names a dictionary for each, or a row ordered as `outcomes.names`.
            Yvar: Noise variances, in squared units of Y, in the same form; either always or never.

        Raises:
            SpaceError: naming rows outside the space.
            InvalidDataError: naming rows with NaN or inf, shapes that do not fit, variances that are not positive.
        """
        unit = self.space.encode(X, slack=self._tolerance)
        values = self.outcomes.read("Y", Y, len(unit))
        variances = None if Yvar is None else self.outcomes.read("Yvar", Yvar, len(unit))
        if variances is not None and not (variances > 0).all():
            raise InvalidDataError(f"Yvar: not positive in rows {rows_where((variances <= 0).any(-1))[:5]}.")
        with self.history.lock:
            if self.history.told.known_noise not in (None, Yvar is not None) and len(unit) > 0:
                before = "with" if self.history.told.known_noise else "without"
                raise InvalidDataError(f"Yvar: observations came {before} variances so far; give them always or never.")
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
        """Give up pending points that will never be told, failed trials say. They are not proposed again soon.

        Raises:
            InvalidDataError: naming rows that match no pending point.
        """
        unit = self.space.encode(X, slack=self._tolerance)
        with self.history.lock:
            matched = self.history.match(unit)
            strangers = [row for row, number in enumerate(matched) if number is None]
            if strangers:
                raise InvalidDataError(f"X: rows {strangers[:5]} match no pending point; see `pending`.")
            numbers = [number for number in matched if number is not None]
            if not numbers:
                return
            with self._persistence.written({"event": "abandon", "numbers": numbers}):
                self.history.abandon(numbers)

    def run(self, evaluate: Callable[[Any], Any], batches: int, q: int = 1, *, progress: bool = True) -> Best:
        """Ask, evaluate and tell in turn. Points that a killed run left pending come first.

        Args:
            evaluate: From points, as `ask` gives them, to their values, or to a pair of values and variances.
            batches: The number of asks.
            q: Points an ask.
            progress: Whether to show a progress bar.
        """
        if len(self.history.pending.points) > 0:
            self._evaluate_and_tell(evaluate, self.pending)
        for _ in tqdm(range(batches), desc="optimise", unit="batch", disable=not progress):
            self._evaluate_and_tell(evaluate, self.ask(q))
        return self.best()

    def _evaluate_and_tell(self, evaluate: Callable[[Any], Any], points: Points) -> None:
        result = evaluate(points)
        pair = isinstance(result, tuple) and len(result) == 2 and not isinstance(result[0], int | float)
        Y, Yvar = result if pair else (result, None)
        self.tell(points, Y, Yvar)

    # ------------------------------------------------------------------ what is known

    @property
    def steps(self) -> list[Step]:
        """The record of each ask, with the time its parts took."""
        return self.history.steps

    @property
    def num_observations(self) -> int:
        """n, the number of observations."""
        return self.history.told.count

    @property
    def pending(self) -> Points:
        """Points asked for and neither told nor abandoned, oldest first, in raw units."""
        with self.history.lock:
            return self.history.pending_points

    @property
    def observations(self) -> tuple[Points, Any, Any]:
        """All that was told, in order and as `tell` takes it: points, values, and variances or None, in raw units.

        O(n). A service reads here which of its results have been told already.
        """
        with self.history.lock:
            return self.history.observations

    @property
    def model(self) -> Any:
        """The surrogate of all that has been told, over the unit cube, larger better; of several outcomes one for each.

        Fitted only if there is none.
        """
        return self._present().model

    def best(self) -> Best:
        """Return the told point of best posterior mean, feasible if there is one, with the best observed beside it.

        O(n) features, no fit (but the first).

        Raises:
            InvalidDataError: before the first tell, or of several objectives.
        """
        if self.outcomes.several:
            raise InvalidDataError("best: there are several objectives, and none is the best; see pareto().")
        with self._model_lock:
            return standing.best(self.space, self.outcomes, *self._known())

    def pareto(self) -> list[TradeOff]:
        """Return the feasible told points that no other dominates, by posterior means.

        O(n) features and O(n · points) comparisons, no fit (but the first). In the order they were told.

        Raises:
            InvalidDataError: before the first tell, or of outcomes without names.
        """
        if self.outcomes.names is None:
            raise InvalidDataError("pareto: for outcomes with names; give objectives={…}, or see best().")
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

        Completed trials are told; those that run, or may, are pending; those that failed or were
        abandoned are abandoned. With a `path` that has a journal already it goes on from there and takes up what became
        of the experiment meanwhile: trials that are over, and new ones. The experiment is that which `to_ax` adds to.

        Args:
            source: An `ax.api.client.Client`, the path of its JSON file, or an `ax.core.experiment.Experiment`.
            **options: For the constructor, in addition to what the experiment says.

        Raises:
            UnsupportedError: naming a feature of the experiment that the loop lacks.
            InvalidDataError: naming trials with outcomes missing, or with standard errors where others have none.
        """
        return import_module("bo_scale.ax").optimizer_from(source, **options)

    def to_ax(self) -> Any:
        """Return an Ax client with every point as a trial: its parameters, data and status, in the order they came up.

        The client that the optimizer came from, with what is new since added; or a new one.
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
            later = "Later fits are reported to the log 'bo_scale.loop' only."
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

    # ------------------------------------------------------------------ journal

    def record(self, event: Event) -> None:
        """Write an event to the journal and apply it, as when the journal is read again.

        Args:
            event: An event that `History.replay` takes.
        """
        with self.history.lock, self._persistence.written(event):
            self.history.replay(event)

    def close(self) -> None:
        """Let go of the journal, for another process to take up."""
        self._persistence.close()

    def __enter__(self) -> "Optimizer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
