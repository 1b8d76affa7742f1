"""Propose the next points of a loop: quasi-random ones first, then by its model."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.utils.transforms import is_ensemble
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from bo_scale.decisions.candidates import Admissible, already
from bo_scale.decisions.goals import Goal
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import BASELINE, Fidelity, Setting
from bo_scale.errors import JournalError
from bo_scale.loop.history.records import Step
from bo_scale.loop.insight.predict import moments
from bo_scale.loop.problem.space import Points
from bo_scale.loop.reports import Reports
from bo_scale.loop.run import Run
from bo_scale.loop.settings import LEARN
from bo_scale.loop.surrogate.builder import Surrogate
from bo_scale.loop.surrogate.costs import FidelityCost, log_cost_model
from bo_scale.loop.surrogate.success import LEVEL, success_model
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.any_units import IndependentModels
from bo_scale.random import mixed, seeded

logger = logging.getLogger("bo_scale.loop")
SURE = 0.01
"""Standard deviation of the function at a told point, relative to the spread of told values, up to which another value
there would tell little: that of the least noise which BoTorch's models learn."""


class Proposals:
    """Makes the asks of a run, one at a time.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        run.after_fit = Reports(run).after_fit
        self._choice_at: int | None = None

    def ask(self, q: int, fixed: Mapping[Any, Any]) -> Points:
        """Return the next q points, with some values fixed, and record that they were asked for."""
        run = self._run
        if run.persistence.read_only:
            raise JournalError("ask: the run was opened with mode='r', to read. Open it without, to go on.")
        run.settings.require_given("model", "acquisition")
        if q > run.kind.largest_batch:
            logger.info("q=%d: %s is meant for batches of up to %d.", q, run.kind.name, run.kind.largest_batch)
        with run.model_lock:
            held = run.history.space.held(fixed)
            with run.history.lock:
                ask, n = run.history.asks, run.history.told.count
                avoided = run.history.pending.avoided(run.history.space.dimension)
            started = time.perf_counter()
            fitted, surrogate, was_fitted, chosen = started, None, False, dict[str, Any]()
            first = self._first if n < run.settings.num_initial else self._while_equal
            unit = first(q, held, avoided)
            if unit is None:
                surrogate, was_fitted = run.chain.advance(ask, n)
                fitted, chosen = time.perf_counter(), self._new_choices(surrogate) if was_fitted else {}
                unit = self._by_model(surrogate, ask, q, avoided, fixed)
            ended = time.perf_counter()
            step = Step(ask, n, q, was_fitted, round(fitted - started, 6), round(ended - fitted, 6))
            points = run.history.space.decode(unit.cpu())
            self._record(step, points, surrogate, chosen | ({"fixed": [*map(str, fixed)]} if fixed else {}))
            logger.info("%s", step)
            if surrogate is not None and was_fitted:
                run.after_fit(surrogate)
        return points

    def _record(self, step: Step, points: Points, surrogate: Surrogate | None, more: Mapping[str, Any]) -> None:
        """Write down that points were asked for."""
        run, initial = self._run, 0 if surrogate else step.q
        rows = run.history.space.settled(points)
        with run.history.lock:
            event = {"event": "ask", **asdict(step), "initial": initial, "X": rows, **more}
            with run.persistence.written(event):
                run.history.ask(step, rows, initial)
            if surrogate is not None:
                run.chain.commit(surrogate)
            checksum = run.persistence.checksum
        run.persistence.keep(run.chain, step.ask, step.fitted, checksum)

    def _first(self, q: int, held: Mapping[int, float], avoided: Float[Tensor, "p d"] | None) -> Float[Tensor, "q d"]:
        """Return the next first points: the centre of the space if admissible, then a scrambled Sobol sequence.

        Without continuous parameters, points that were told or asked for are passed over while others are left.
        """
        history, space = self._run.history, self._run.history.space
        seed, done = mixed(self._run.settings.seed) % 2**31, history.initial_points
        allowed = (space.admissible or Admissible(space.dimension)).holding(held)
        centre = self._centre() if history.centre_first and not held else None
        if not bool(allowed.free.any()):
            taken = self._seen(avoided)
            points = allowed.sample(len(taken) + q + 1, seed)
            points = points if centre is None else torch.cat([centre, points[~already(points, centre)]])
            others = points[~already(points, taken)]
            if len(others) >= q:
                return others[:q]
        if held:
            return allowed.sample(q, seed, done)
        if centre is None:
            return self._quasi_random(q, seed, done)
        if done == 0:
            return torch.cat([centre, self._quasi_random(q - 1, seed, 0)]) if q > 1 else centre
        return self._quasi_random(q, seed, done - 1)

    def _seen(self, avoided: Float[Tensor, "p d"] | None) -> Float[Tensor, "t d"]:
        """Return the points that were told, failed, or are avoided."""
        history = self._run.history
        told = history.told.first(history.told.count)[0]
        return torch.cat([told, history.failures, *([] if avoided is None else [avoided])])

    def _while_equal(
        self, q: int, held: Mapping[int, float], avoided: Float[Tensor, "p d"] | None
    ) -> Float[Tensor, "q d"] | None:
        """Return more first points while all values are equal, which tell no model where to look.

        A model of equal values is the least sure at the corners, and would propose these again and again. None if
        values differ, if the acquisition looks for no optimum, or if points were asked for before.
        """
        run = self._run
        Y = run.history.told.first(run.history.told.count)[1]
        if len(Y) < 2 or bool((Y[0] != Y).any()) or not run.kind.optimises or run.settings.fidelity:
            return None
        unit, space = self._first(q, held, avoided), run.history.space
        unit = space.encode(space.decode(unit))
        again = bool(already(unit, self._seen(avoided)).any()) or len(unit.unique(dim=0)) < q
        return None if again else unit

    def _centre(self) -> Float[Tensor, "1 d"] | None:
        space = self._run.history.space
        centre = torch.full((1, space.dimension), 0.5, dtype=torch.float64)
        if space.admissible is None:
            return centre
        centre = space.admissible.nearest(centre)
        return centre if bool(space.admissible.feasible(centre)) else None

    def _quasi_random(self, q: int, seed: int, done: int) -> Float[Tensor, "q d"]:
        """Return points of the sequence, admissible ones only."""
        space = self._run.history.space
        if space.admissible is not None:
            return space.admissible.sample(q, seed, done)
        engine = SobolEngine(space.dimension, scramble=True, seed=seed)
        engine.fast_forward(done)
        return engine.draw(q, dtype=torch.float64)

    def _by_model(
        self, surrogate: Surrogate, ask: int, q: int, avoided: Float[Tensor, "p d"] | None, fixed: Mapping[Any, Any]
    ) -> Float[Tensor, "q d"]:
        run, outcomes = self._run, self._run.history.outcomes
        X, Y, _ = run.history.told.first(surrogate.count)
        setting = Setting(
            surrogate.model,
            X.to(run.device),
            None if avoided is None else avoided.to(run.device),
            q,
            mixed(run.settings.seed, ask, 1) % 2**31,
            run.settings.acquisition_options,
            run.history.space.admissible,
            None if outcomes.plain else outcomes.goal(Y).to(run.device),
            run.history.space.held(fixed) or None,
        )
        setting = self._knowing(setting)
        if run.settings.failures == LEARN:
            setting = self._learned(setting, outcomes.goal(Y).to(run.device))
        setting = self._costed(setting)
        if run.settings.fidelity:
            setting = self._at_fidelity(setting, fixed)
        with seeded(run.settings.seed, run.device, ask, 2):
            return propose(run.kind.make, setting)

    @staticmethod
    def _knowing(setting: Setting) -> Setting:
        """Return a setting with the told points whose values are known, if no parameter is continuous or all are held.

        Without noise the model is sure of all told points, and has no use for another value there. All are looked at
        in a small space, else the best `BASELINE`. O(n²) each.
        """
        allowed = setting.allowed
        if allowed is None or bool(allowed.free.any()):
            return setting
        points = setting.observed if allowed.points is not None else setting.best(BASELINE)
        points = points.unique(dim=0)
        spread = setting.outcomes.double().cpu().std(0, unbiased=False)
        spread = torch.where(spread > 0, spread, 1.0)
        sure = (moments(setting.model, points)[1] <= (SURE * spread).square()).all(-1)
        return replace(setting, known=points[sure.to(points.device)])

    def _costed(self, setting: Setting) -> Setting:
        """Return a setting with a model of the costs told, if proposals count them and enough are known."""
        run = self._run
        if not (run.settings.per_cost or run.settings.fidelity):
            return setting
        told = run.history.told.costs[: len(setting.observed)]
        costs = torch.tensor(told, dtype=torch.float64, device=run.device)
        return replace(setting, log_cost=log_cost_model(setting.observed, costs, run.settings.seed))

    def _at_fidelity(self, setting: Setting, fixed: Mapping[Any, Any]) -> Setting:
        """Return a setting with the fidelity. If the acquisition does not choose it, it is held at its target."""
        run, space, fidelity = self._run, self._run.history.space, self._run.settings.fidelity
        if run.kind.fidelity:
            space.held({**fixed, **fidelity})  # or no point at the target has the fixed values
            target = space.held(fidelity)
            cost = self._log_cost(setting, target)
            return replace(setting, log_cost=cost, fidelity=Fidelity(target, cost))
        target = space.held({name: fixed.get(name, value) for name, value in fidelity.items()})
        whole = Fidelity(target, self._log_cost(setting, target))
        per_cost = setting.log_cost if run.settings.per_cost else None
        held = space.held({**fidelity, **fixed}) or None
        return replace(setting, held=held, log_cost=per_cost, fidelity=whole).at_target()

    def _log_cost(self, setting: Setting, target: Mapping[int, float]) -> Model:
        """Return the model of the costs told, or without one a guess from the fidelity."""
        told = setting.log_cost
        return FidelityCost(self._run.history.space, target).to(setting.observed) if told is None else told

    def _learned(self, setting: Setting, goal: Goal) -> Setting:
        """Return a setting where success is one more outcome, with a constraint; the same without failures."""
        failures = self._run.history.failures.to(setting.observed)
        if len(failures) == 0:
            return setting
        model: Any = setting.model
        if is_ensemble(model):
            raise UnsupportedError("failures: 'learn' does not serve ensembles of models. Choose 'avoid'.")
        success = success_model(setting.observed, failures, self._run.settings.seed)
        parts = model.models if isinstance(model, ModelListGP) else [model]
        pending = setting.taken[~already(setting.taken, failures)]
        return replace(
            setting,
            model=IndependentModels(*parts, success),
            goal=goal.with_floor(LEVEL),
            pending=pending if len(pending) else None,
            failed=failures,
        )

    def _new_choices(self, surrogate: Surrogate) -> dict[str, Any]:
        """Return what the journal records of a choice; empty if an earlier ask recorded it."""
        made = surrogate.choices_made()
        if not made or self._choice_at == surrogate.count:
            return {}
        self._choice_at = surrogate.count
        return made
