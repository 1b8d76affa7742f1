"""The settings of a loop: what may change at any time without a change to what was observed."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.quasirandom import SobolEngine

from bo_scale.decisions.by_name import (
    AcquisitionKind,
    acquisition_kind,
    default_acquisition,
    require_options,
    require_served,
)
from bo_scale.decisions.setting import Acquisition, Setting
from bo_scale.errors import InvalidArgumentError
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Space
from bo_scale.loop.served import ModelFactory, model_factory
from bo_scale.models.choice.automatic import AutomaticModel
from bo_scale.models.refit import FEW, Refit
from bo_scale.models.shell.door import require_whole
from bo_scale.random import seeded

DEFAULT_MODEL = "auto"
AVOID, LEARN = "avoid", "learn"
FACTORY = "factory"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Lost:
    """An object of an earlier process, of which a journal keeps only the text.

    Attributes:
        text: Its `repr`.
    """

    text: str


@dataclass(frozen=True)
class Settings:
    """Model, acquisition, seed, number of first points and growth between fits.

    Attributes:
        model: A name or a factory; `Lost` for the factory of an earlier process.
        model_options: Options of a named model.
        acquisition: A name or a factory; `Lost` for the factory of an earlier process.
        acquisition_options: Options of the acquisition.
        seed: Seed of all randomness.
        num_initial: Number of observations before the first model.
        refit_growth: Factor between two fits; None for the default policy.
        failures: "avoid" to keep away from points that failed; "learn" to learn where points fail.
        per_cost: Whether proposals maximise the improvement by unit of cost.
        fidelity: Values at which outcomes count, by the names of parameters; empty if they count everywhere.
    """

    model: str | ModelFactory | Lost
    acquisition: str | Acquisition | Lost
    num_initial: int
    model_options: Mapping[str, Any]
    acquisition_options: Mapping[str, Any]
    seed: int = 0
    refit_growth: float | None = None
    failures: str = AVOID
    per_cost: bool = False
    fidelity: Mapping[str | int, Any] = field(default_factory=dict)

    @property
    def refit(self) -> Refit:
        """The policy for refits: by growth if it is given, else also after each of the first observations."""
        return Refit(few=FEW) if self.refit_growth is None else Refit(self.refit_growth)

    @classmethod
    def default(cls, space: Space, outcomes: Outcomes, given: Mapping[str, Any] | None = None) -> "Settings":
        """Return the settings of a run: those given, and the others by default."""
        given = given or {}
        chosen = bool(given.get("fidelity")) and not outcomes.constraints and given.get("failures") != LEARN
        acquisition = default_acquisition(outcomes.objectives, chosen)
        return cls(DEFAULT_MODEL, acquisition, space.num_initial, {}, {}).updated(given)

    def updated(self, given: Mapping[str, Any]) -> "Settings":
        """Return the settings with those given that are not None.

        The options of a model are dropped if another one takes its place, and so for the acquisition.

        Raises:
            InvalidArgumentError: for a value that cannot be.
        """
        new = {name: value for name, value in given.items() if value is not None}
        _require_flags(new)
        for kind in ("model", "acquisition"):
            if kind in new and _shown(new[kind]) != _shown(getattr(self, kind)):
                new.setdefault(f"{kind}_options", {})
        if "seed" in new:
            new["seed"] = require_whole(new["seed"], "seed")
        if "fidelity" in new:
            new["fidelity"] = _read_fidelity(new["fidelity"])
        if "refit_growth" in new:
            new["refit_growth"] = Refit(float(new["refit_growth"])).growth
        if "num_initial" in new:
            new["num_initial"] = max(1, require_whole(new["num_initial"], "num_initial"))
        return replace(self, **new)

    def describe(self) -> dict[str, Any]:
        """Return the settings as a journal keeps them."""
        return {
            "model": _shown(self.model),
            "model_options": {name: _text(value) for name, value in sorted(self.model_options.items())},
            "acquisition": _shown(self.acquisition),
            "acquisition_options": {name: _text(value) for name, value in sorted(self.acquisition_options.items())},
            "seed": self.seed,
            "num_initial": self.num_initial,
            "refit_growth": self.refit_growth,
            "failures": self.failures,
            "per_cost": self.per_cost,
            "fidelity": [[name, value] for name, value in self.fidelity.items()],
        }

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> "Settings":
        """Return settings from a journal; objects that it cannot hold are `Lost`."""
        own: dict[str, Any] = {name: described[name] for name in ("seed", "num_initial", "refit_growth")}
        own |= {name: described[name] for name in ("failures", "per_cost") if name in described}
        own["fidelity"] = {name: value for name, value in described.get("fidelity", ())}
        for kind in ("model", "acquisition"):
            own[kind] = Lost(FACTORY) if described[kind] == FACTORY else described[kind]
            own[f"{kind}_options"] = _options(described[f"{kind}_options"])
        return cls(**own)

    def require(self, space: Space, outcomes: Outcomes) -> tuple[AcquisitionKind, ModelFactory | AutomaticModel]:
        """Return the acquisition and what makes models.

        Raises:
            InvalidArgumentError: for names and options that do not exist, or do not serve the problem.
            SpaceError: if the named model does not serve so many parameters, or the space does not hold the fidelity.
        """
        space.held(self.fidelity, "fidelity")
        discrete = space.admissible is not None and space.admissible.discrete
        kind = _lost_acquisition() if isinstance(self.acquisition, Lost) else acquisition_kind(self.acquisition)
        if not _lost(self.acquisition_options):
            require_options(kind, self.acquisition_options)
        constraints = len(outcomes.constraints) + (self.failures == LEARN)
        require_served(kind, outcomes.objectives, constraints, discrete, self.per_cost, bool(self.fidelity))
        if isinstance(self.model, Lost) or _lost(self.model_options):
            return kind, _lost_model
        factory = model_factory(self.model, self.model_options, space.dimension)
        if self.model_options and isinstance(self.model, str):
            _try_options(factory, space.dimension)
        return kind, factory

    def lost(self) -> "Settings":
        """Return the settings without model and acquisition, of which this process has not heard."""
        return replace(self, model=Lost(FACTORY), acquisition=Lost(FACTORY), per_cost=False)

    def require_given(self, *kinds: str) -> None:
        """Refuse to go on without the functions and objects of an earlier process.

        Args:
            *kinds: What is needed: "model", "acquisition" or both.

        Raises:
            InvalidArgumentError: naming them.
        """
        lost = [name for name in kinds if isinstance(getattr(self, name), Lost)]
        lost += [f"{kind}_options {_lost(each)}" for kind in kinds if _lost(each := getattr(self, f"{kind}_options"))]
        if lost:
            raise InvalidArgumentError(
                f"{', '.join(lost)}: a journal holds no functions and objects. Give them again, as in "
                f"Optimizer.open(path, model=…)."
            )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the described settings that differ, as they are after."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def has_objects(value: Any) -> bool:
    """Return whether a setting is, or holds, a function or an object, of which a journal keeps only the text."""
    if isinstance(value, Mapping):
        return any(isinstance(_value(_text(each)), Lost) for each in value.values())
    return not isinstance(value, str | int | float)


def normal(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings from any format of a journal as the newest describes them."""
    return Settings.read(described).describe()


def _require_flags(given: Mapping[str, Any]) -> None:
    if given.get("failures", AVOID) not in (AVOID, LEARN):
        raise InvalidArgumentError(f"failures={given['failures']!r}: choose {AVOID!r} or {LEARN!r}.")
    if not isinstance(given.get("per_cost", False), bool):
        raise InvalidArgumentError(f"per_cost={given['per_cost']!r}: choose True or False.")


def _read_fidelity(given: Any) -> dict[str | int, Any]:
    """Return names and targets as a journal keeps them, in the order of their names."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"fidelity={given!r}: write {{name: target}}, or {{}} for none.")
    plain = {_plain(name): _plain(value) for name, value in given.items()}
    return {name: plain[name] for name in sorted(plain, key=str)}


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as a number."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _shown(named: Any) -> str:
    return named if isinstance(named, str) else FACTORY


def _text(value: Any) -> str:
    """Return an option as text, without the address of an object."""
    if isinstance(value, Lost):
        return value.text
    return _ADDRESS.sub("", repr(_plain(value)))


def _options(described: Any) -> dict[str, Any]:
    """Return options from their texts, or from the text of all of them, as formats 1 and 2 have it."""
    if isinstance(described, str):
        try:
            return dict(ast.literal_eval(described))
        except (ValueError, SyntaxError):
            return {"…": Lost(described)}
    return {name: _value(text) for name, text in described.items()}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Lost(text)


def _lost(options: Mapping[str, Any]) -> list[str]:
    return [name for name, value in options.items() if isinstance(value, Lost)]


def _lost_model(*data: Any) -> Any:
    raise InvalidArgumentError("model: the journal holds no functions.")


def _lost_acquisition() -> AcquisitionKind:
    def refuse(setting: Setting) -> Any:
        raise InvalidArgumentError("acquisition: the journal holds no functions.")

    return acquisition_kind(refuse)


def _try_options(factory: ModelFactory | AutomaticModel, dimension: int) -> None:
    """Make a model of a few points, so that options it cannot use are found before anything is evaluated."""
    if isinstance(factory, AutomaticModel):
        return
    X = SobolEngine(dimension, scramble=True, seed=0).draw(4, dtype=torch.float64)
    try:
        with seeded(0, torch.device("cpu"), 0):
            factory(X, X.sum(-1, keepdim=True), None)
    except Exception as error:
        raise InvalidArgumentError(f"model_options: no model can be made with them ({error})") from error
