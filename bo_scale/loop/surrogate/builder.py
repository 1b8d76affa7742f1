"""Build the model of a loop: fitted when the data have grown by a factor or are far off, conditioned in between."""

import logging
import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import FitWarning
from bo_scale.loop.served import ModelFactory
from bo_scale.loop.surrogate.surprise import far_off
from bo_scale.loop.surrogate.unknown_noise import unknown_variance
from bo_scale.models.choice.automatic import AutomaticModel
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import ChoiceReport
from bo_scale.models.refit import Refit, with_hyperparameters
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.data import least_stdv
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.storage import model_content, restore_model
from bo_scale.models.shell.weight_space import WeightSpaceModel
from bo_scale.random import seeded

logger = logging.getLogger("bo_scale.loop")


@dataclass(frozen=True)
class Surrogate:
    """A model after `count` observations, with the hyperparameters of the first `fitted` of them.

    Attributes:
        model: The model.
        count: Number of observations.
        fitted: Number of observations at the last fit.
        choice: The choice of the model, if it is automatic.
        chosen: Number of observations at that choice.
        parts: The surrogates of several outcomes.
        noise: The noise variance of observations without one, if others have one; see `unknown_variance`.
    """

    model: Model
    count: int
    fitted: int
    choice: ChoiceReport | None = None
    chosen: int = 0
    parts: tuple["Surrogate", ...] = ()
    noise: float | None = None

    def choices_made(self) -> dict[str, Any]:
        """Return what a journal records of a choice that this surrogate was made with; empty if it was made before."""
        made = [part.choice for part in self.parts or (self,) if part.choice is not None and part.chosen == part.count]
        return {"choice": [{**each.plan.describe(), "reason": each.reason} for each in made]} if made else {}


@dataclass(frozen=True)
class SurrogateBuilder:
    """Updates a loop's model: a pure function of the model before, the data, and the number of the ask.

    Attributes:
        factory: Makes a model of data, or chooses it.
        refit: When to fit again.
        seed: The seed of the run.
        device: The device of the models.
    """

    factory: ModelFactory | AutomaticModel
    refit: Refit
    seed: int
    device: torch.device

    def advance(
        self,
        before: Surrogate | None,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n 1"],
        Yvar: Float[Tensor, "n 1"] | None,
        ask: int,
    ) -> Surrogate:
        """Return the surrogate of all n observations, the first of which it has seen; refitted if that is due.

        Variances may be NaN where they are not known.
        """
        n = len(X)
        if before is not None and not self._due(before, X, Y, Yvar):
            return self.conditioned(before, X, Y, Yvar)
        if before is not None and _knows_more(before, Yvar):
            before = None  # its noise was learned
        X, Y, Yvar = self._on_device(X, Y, Yvar)
        with seeded(self.seed, self.device, ask, 0):
            noise, Yvar = _completed(None, X, Y, Yvar)
            choice, chosen = self._choice(before, X, Y, Yvar)
            if before is not None and _plan(before.choice) != _plan(choice):
                before = None  # a model of another kind starts anew
            model = self._fitted(before, X, Y, Yvar, choice, noise is None)
            return Surrogate(model.eval(), n, n, choice, chosen, noise=noise)

    def _due(self, before: Surrogate, X: Tensor, Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"] | None) -> bool:
        """Return whether n observations call for a fit: they are many more, the first to have variances, or far off."""
        if self.refit.due(len(X), before.fitted) or _knows_more(before, Yvar):
            return True
        new, noise = slice(before.count, len(X)), None
        if Yvar is not None and not bool(Yvar.isnan().all()):
            unknown = math.inf if before.noise is None else before.noise  # of the first value without one
            noise = Yvar[new].where(~Yvar[new].isnan(), unknown)
        return far_off(before.model, X[new], Y[new], noise, Y[: before.count])

    def _choice(
        self, before: Surrogate | None, X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Tensor | None
    ) -> tuple[ChoiceReport | None, int]:
        """Return the choice of an automatic model and the number of observations it saw; made anew if that is due."""
        if not isinstance(self.factory, AutomaticModel):
            return None, 0
        if before is not None and before.choice is not None and not self.factory.due(len(X), before.chosen):
            return before.choice, before.chosen
        try:
            choice = self.factory.choose(X, Y, Yvar)
        except ModelFittingError as error:
            if before is None or before.choice is None:
                raise
            warnings.warn(f"the model stays as chosen at n = {before.chosen}: {error}", FitWarning, stacklevel=2)
            return before.choice, before.chosen
        logger.info("%s", choice)
        return choice, len(X)

    def conditioned(
        self,
        before: Surrogate,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n 1"],
        Yvar: Float[Tensor, "n 1"] | None,
    ) -> Surrogate:
        """Return the surrogate of all n observations at the same hyperparameters: exact, and for ours flat in n."""
        if len(X) == before.count:
            return before
        if _knows_more(before, Yvar):
            return self.advance(None, X, Y, Yvar, len(X))
        X, Y, Yvar = self._on_device(X, Y, Yvar)
        with seeded(self.seed, self.device, 7):
            noise, Yvar = _completed(before.noise, X, Y, Yvar)
        before = replace(before, noise=noise)
        if isinstance(before.model, ScalableModel):
            model: Model = _observe(before, X, Y, Yvar)
        else:
            model = with_hyperparameters(self._made(before.choice, X, Y, Yvar), dict(before.model.named_parameters()))
        return replace(before, model=model.eval(), count=len(X))

    def _factory(self, choice: ChoiceReport | None) -> ModelFactory:
        """Return what makes the model of a choice."""
        if not isinstance(self.factory, AutomaticModel):
            return self.factory
        assert choice is not None, "an automatic model was chosen"
        return partial(self.factory.build, choice.plan)

    def _made(self, choice: ChoiceReport | None, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
        """Make a model by the factory, which may draw random numbers."""
        with seeded(self.seed, self.device, 3):
            return self._factory(choice)(X, Y, Yvar)

    def _on_device(
        self, X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"] | None
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n 1"], Float[Tensor, "n 1"] | None]:
        return X.to(self.device), Y.to(self.device), None if Yvar is None else Yvar.to(self.device)

    def _fitted(
        self,
        before: Surrogate | None,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n 1"],
        Yvar: Float[Tensor, "n 1"] | None,
        choice: ChoiceReport | None,
        goes_on: bool = True,
    ) -> Model:
        """Return the better of two fits by evidence, from the current hyperparameters and from the prior's.

        A fit that fails is given up with a warning; if both do, the hyperparameters stay as they were. `goes_on` says
        whether the noise variances of rows seen before are what they were.
        """
        if before is None:
            return self.refit.first(self._factory(choice)(X, Y, Yvar), len(X))
        if goes_on and _goes_on(before.model):
            seen = _observe(before, X, Y, Yvar).restandardised(Y.mean(0, keepdim=True), _scale(Y))
            starts: list[Model] = [seen, self._factory(choice)(X, Y, Yvar)]
        elif goes_on and _keeps_features(before.model):
            seen = _observe(before, X, Y, Yvar).restandardised(Y.mean(0, keepdim=True), _scale(Y))
            prior = self._factory(choice)(X[:1], Y[:1], Yvar if Yvar is None else Yvar[:1])
            starts = [seen, with_hyperparameters(clone_module(seen), dict(prior.named_parameters()))]
        else:
            cold, warm = self._factory(choice)(X, Y, Yvar), self._factory(choice)(X, Y, Yvar)
            starts = [cold, with_hyperparameters(warm, dict(before.model.named_parameters()))]
        best = self.refit.better(starts, len(X))
        return self.conditioned(before, X, Y, Yvar).model if best is None else best

    def refitted(self, surrogate: Surrogate) -> ModelFactory:
        """Return a function that makes a model of a surrogate's kind from other rows, and fits it."""

        def make(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
            with seeded(self.seed, self.device, 4):
                X, Y, Yvar = self._on_device(X, Y, Yvar)
                return self._fitted(None, X, Y, _completed(None, X, Y, Yvar)[1], surrogate.choice).eval()

        return make

    def maker(self, surrogate: Surrogate) -> ModelFactory:
        """Return what makes models of a surrogate's kind."""
        return self._factory(surrogate.choice)

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, surrogate: Surrogate) -> dict[str, Any]:
        """Return what `restored` needs beside the data, in plain tensors and numbers."""
        model = surrogate.model
        numbers: dict[str, Any] = {"count": surrogate.count, "fitted": surrogate.fitted, "noise": surrogate.noise}
        if surrogate.choice is not None:
            numbers |= {"chosen": surrogate.chosen, "plan": surrogate.choice.plan.describe()}
        if isinstance(model, ScalableModel):
            return {**numbers, "ours": True, "model": model_content(model)}
        hyperparameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        return {**numbers, "ours": False, "model": hyperparameters}

    def restored(
        self,
        state: dict[str, Any],
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n 1"],
        Yvar: Float[Tensor, "n 1"] | None,
    ) -> Surrogate:
        """Return the surrogate of a snapshot, to the last bit."""
        n, plan = state["count"], state.get("plan")
        choice = None if plan is None else ChoiceReport(Plan(**plan), "restored from a snapshot")
        X, Y, Yvar = self._on_device(X[:n], Y[:n], None if Yvar is None else Yvar[:n])
        noise, Yvar = _completed(state.get("noise"), X, Y, Yvar)
        if state["ours"]:
            first = self._made(choice, X[:1], Y[:1], None if Yvar is None else Yvar[:1])
            model: Model = restore_model(first, state["model"])
        else:
            model = with_hyperparameters(self._made(choice, X, Y, Yvar), state["model"])
        return Surrogate(model.eval(), n, state["fitted"], choice, state.get("chosen", 0), noise=noise)


def _knows_more(before: Surrogate, Yvar: Float[Tensor, "n m"] | None) -> bool:
    """Return whether there are variances, and none among the observations that a surrogate saw."""
    known = None if Yvar is None else ~Yvar.isnan()
    return known is not None and bool(known.any()) and not bool(known[: before.count].any())


def _completed(
    noise: float | None, X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"] | None
) -> tuple[float | None, Float[Tensor, "n 1"] | None]:
    """Return the variance of observations without one, estimated unless given, and all variances.

    None if no observation has a variance; then the noise is learned with the model.
    """
    if Yvar is None or bool(Yvar.isnan().all()):
        return None, None
    if not bool(Yvar.isnan().any()):
        return None, Yvar
    noise = unknown_variance(X, Y, Yvar) if noise is None else noise
    return noise, Yvar.nan_to_num(noise)


def with_noise(surrogate: Surrogate, Yvar: Float[Tensor, "n m"] | None) -> Float[Tensor, "n m"] | None:
    """Return the variances with which a surrogate of any number of outcomes saw its observations.

    NaN remains for an outcome without any variance, whose noise is learned.
    """
    if Yvar is None:
        return None
    columns = zip(surrogate.parts or (surrogate,), Yvar.split(1, -1), strict=True)
    return torch.cat([each if part.noise is None else each.nan_to_num(part.noise) for part, each in columns], -1)


def _plan(choice: ChoiceReport | None) -> Plan | None:
    return None if choice is None else choice.plan


def _observe(
    before: Surrogate, X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"] | None
) -> Any:
    """Condition a model of ours on the rows it has not seen. Variances are passed in units of its targets."""
    model: Any = before.model
    new = slice(before.count, None)
    with torch.no_grad():
        model.posterior(X[:1])  # derived here and now, so that what follows does not depend on who asked before
        noise = Yvar
        if noise is not None:
            noise = noise[new]
            if hasattr(model, "outcome_transform"):
                noise = model.outcome_transform(Y=Y[new], Yvar=noise)[1]
        return model.condition_on_observations(X[new], Y[new], noise=noise) if len(X) > before.count else model


def _keeps_features(model: Model) -> bool:
    """Return whether a fit can go on from statistics: features without parameters, standardised targets."""
    return isinstance(model, WeightSpaceModel) and not model.learns_features and _standardises(model)


def _goes_on(model: Model) -> bool:
    """Return whether a fit goes on from what the model learned of its rows, beside hyperparameters."""
    return isinstance(model, FunctionSpaceModel) and _standardises(model)


def _standardises(model: Model) -> bool:
    return type(getattr(model, "outcome_transform", None)) is Standardize


def _scale(Y: Float[Tensor, "n 1"]) -> Float[Tensor, "1 1"]:
    """Return the standard deviation as Standardize takes it: 1 if there is none."""
    stdvs = Y.std(0, keepdim=True) if len(Y) > 1 else torch.ones_like(Y[:1])
    return torch.where(stdvs >= least_stdv(Y), stdvs, torch.ones_like(stdvs))
