"""The model of a loop: fitted when the data have grown by a factor, conditioned in between."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InterpolationWarning, InvalidArgumentError
from bo_scale.models.catalogue import MODELS, preset, require_dimension, unit_cube
from bo_scale.models.grief.bayes import GRIEFBayes
from bo_scale.models.refit import _fit, best_fit, with_hyperparameters
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.storage import model_content, restore_model
from bo_scale.models.shell.weight_space import WeightSpaceModel
from bo_scale.random import seeded

ModelFactory = Callable[[Tensor, Tensor, Tensor | None], Model]
"""From inputs `n × d` in the unit cube, values `n × 1` (larger is better) and noise variances or None, to a model."""


SERVED = {name: model for name, model in MODELS.items() if not issubclass(model, GRIEFBayes)}
"""Models by name; ensembles, whose posteriors are several, are not among them."""


def model_factory(model: str | ModelFactory, options: Mapping[str, Any] | None, dimension: int) -> ModelFactory:
    """A factory from a name and options for the constructor, or the factory given.

    Raises:
        SpaceError: if the named model does not serve so many parameters.
    """
    if not isinstance(model, str):
        if options:
            raise InvalidArgumentError("model_options: only for a model given by name; put them into the factory.")
        return model
    if model not in SERVED:
        raise InvalidArgumentError(
            f"model={model!r}: choose one of {sorted(SERVED)}, or pass a factory (X, Y, Yvar) -> Model."
        )
    make: Any = SERVED[model]
    factory = ", or pass a factory, as in model=lambda X, Y, Yvar: SingleTaskGP(X, Y, Yvar)"
    require_dimension(make, dimension, options, otherwise=factory)
    return lambda X, Y, Yvar: make(X, Y, Yvar, **preset(make, X, Yvar is not None, unit_cube(X), options or {}))


@dataclass(frozen=True)
class Surrogate:
    """A model after `count` observations, with the hyperparameters of the first `fitted` of them."""

    model: Model
    count: int
    fitted: int


@dataclass(frozen=True)
class SurrogateBuilder:
    """How a loop's model follows its data: a pure function of the model before, the data, and the number of the ask.

    Attributes:
        factory: Makes a model of data.
        growth: Refit when n has grown by this factor.
        seed: Of the whole run.
        device: Where models live.
    """

    factory: ModelFactory
    growth: float
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
        """The surrogate of all n observations, of which it has seen the first ones; refitted where that is due."""
        n = len(X)
        if before is not None and n < self.growth * before.fitted:
            return self.conditioned(before, X, Y, Yvar)
        X, Y, Yvar = self._on_device(X, Y, Yvar)
        with seeded(self.seed, self.device, ask, 0), warnings.catch_warnings():
            warnings.simplefilter("ignore", InterpolationWarning)  # of two fits, one is not used: the loop reports
            return Surrogate(self._fitted(before, X, Y, Yvar).eval(), n, n)

    def conditioned(
        self,
        before: Surrogate,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n 1"],
        Yvar: Float[Tensor, "n 1"] | None,
    ) -> Surrogate:
        """The surrogate of all n observations at the same hyperparameters: exact, and for ours flat in n."""
        if len(X) == before.count:
            return before
        X, Y, Yvar = self._on_device(X, Y, Yvar)
        if isinstance(before.model, ScalableModel):
            model: Model = _observe(before, X, Y, Yvar)
        else:
            model = with_hyperparameters(self._made(X, Y, Yvar), dict(before.model.named_parameters()))
        return Surrogate(model.eval(), len(X), before.fitted)

    def _made(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"] | None) -> Model:
        """A model of the factory, which may draw random numbers."""
        with seeded(self.seed, self.device, 3):
            return self.factory(X, Y, Yvar)

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
    ) -> Model:
        """The better by evidence of two fits, one from the hyperparameters there are and one from the prior's.

        A fit that fails is given up with a warning; if both do, the hyperparameters stay as they were.
        """
        if before is None:
            return _fit(self.factory(X, Y, Yvar), len(X))[0]
        if _goes_on(before.model):
            seen = _observe(before, X, Y, Yvar).restandardised(Y.mean(0, keepdim=True), _scale(Y))
            starts: list[Model] = [seen, self.factory(X, Y, Yvar)]
        elif _keeps_features(before.model):
            seen = _observe(before, X, Y, Yvar).restandardised(Y.mean(0, keepdim=True), _scale(Y))
            prior = self.factory(X[:1], Y[:1], Yvar if Yvar is None else Yvar[:1])
            starts = [seen, with_hyperparameters(clone_module(seen), dict(prior.named_parameters()))]
        else:
            cold, warm = self.factory(X, Y, Yvar), self.factory(X, Y, Yvar)
            starts = [cold, with_hyperparameters(warm, dict(before.model.named_parameters()))]
        best = best_fit(starts, len(X))
        return self.conditioned(before, X, Y, Yvar).model if best is None else best

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, surrogate: Surrogate) -> dict[str, Any]:
        """All that `restored` needs beside the data, in plain tensors and numbers."""
        model, numbers = surrogate.model, {"count": surrogate.count, "fitted": surrogate.fitted}
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
        """The very surrogate of which a snapshot was taken, to the last bit."""
        n = state["count"]
        X, Y, Yvar = self._on_device(X[:n], Y[:n], None if Yvar is None else Yvar[:n])
        if state["ours"]:
            first = self._made(X[:1], Y[:1], None if Yvar is None else Yvar[:1])
            model: Model = restore_model(first, state["model"])
        else:
            model = with_hyperparameters(self._made(X, Y, Yvar), state["model"])
        return Surrogate(model.eval(), n, state["fitted"])


def _observe(
    before: Surrogate, X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"] | None
) -> Any:
    """A model of ours conditioned on the rows it has not seen. Variances go in in units of its targets."""
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
    """Whether a model can go on from its statistics: features without parameters, targets in a plain Standardize."""
    return isinstance(model, WeightSpaceModel) and not model._feature_parameters() and _standardises(model)


def _goes_on(model: Model) -> bool:
    """Whether a model's fit goes on from what it learned of its rows, beside hyperparameters."""
    return isinstance(model, FunctionSpaceModel) and _standardises(model)


def _standardises(model: Model) -> bool:
    return type(getattr(model, "outcome_transform", None)) is Standardize


def _scale(Y: Float[Tensor, "n 1"]) -> Float[Tensor, "1 1"]:
    """The standard deviation as Standardize takes it: 1 where there is none."""
    stdvs = Y.std(0, keepdim=True) if len(Y) > 1 else torch.ones_like(Y[:1])
    return torch.where(stdvs >= 1e-8, stdvs, torch.ones_like(stdvs))
