"""The acquisitions by name: what each one is, what it can do, and how a new one is added."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bo_scale.decisions import builtin
from bo_scale.decisions.builtin import EFFORT
from bo_scale.decisions.setting import Acquisition
from bo_scale.errors import InvalidArgumentError
from bo_scale.spelling import suggestion

WHOLE = frozenset({*EFFORT, "mc_samples", "mc_points", "num_fantasies"})
"""Options that are whole numbers."""


@dataclass(frozen=True)
class AcquisitionKind:
    """A named acquisition and its capabilities.

    Attributes:
        name: Name for `Optimizer(acquisition=name)` and in journals.
        make: Function that takes a `Setting` and returns an acquisition function to maximise, or the points `q × d`.
        help: A description of the acquisition, in one sentence.
        single: Whether it serves one objective.
        several: Whether it serves several objectives.
        constraints: Whether it takes constraints on outcomes into account.
        discrete: Whether it serves spaces with integers or choices.
        pending: Whether it takes pending points into account.
        per_cost: Whether its value is the logarithm of what a point adds to the pending ones, so that the logarithm
            of a cost can be taken off.
        fidelity: Whether it chooses the fidelity itself, by `setting.fidelity`, without which it cannot be made. Others
            propose points at the target.
        largest_batch: Largest sensible batch.
        independent: Whether the points of a batch come about by themselves, so that many cost hardly more than one.
        optimises: Whether it looks for an optimum, of which equal values tell nothing.
        options: Names of the `acquisition_options` that it reads.
    """

    name: str
    make: Acquisition
    help: str = ""
    single: bool = True
    several: bool = False
    constraints: bool = False
    discrete: bool = True
    pending: bool = True
    per_cost: bool = False
    fidelity: bool = False
    largest_batch: int = 16
    independent: bool = False
    optimises: bool = False
    options: frozenset[str] = field(default_factory=lambda: frozenset(EFFORT))

    @property
    def at_once(self) -> int:
        """The largest number of points for which to ask at once, for workers that become free at the same time."""
        return self.largest_batch if self.independent else 1

    def serves(
        self,
        objectives: int,
        constraints: int,
        discrete: bool = False,
        per_cost: bool = False,
        fidelity: bool = False,
    ) -> bool:
        """Return whether it serves a problem.

        Args:
            objectives: The number of objectives.
            constraints: The number of constraints on outcomes.
            discrete: Whether the space has integers or choices.
            per_cost: Whether its value is to be divided by the cost of a point.
            fidelity: Whether there is a fidelity with a target.
        """
        enough = self.single if objectives == 1 else self.several
        wanted = (self.constraints, constraints), (self.discrete, discrete), (self.per_cost, per_cost)
        return enough and all(has or not needs for has, needs in wanted) and (fidelity or not self.fidelity)


def _reads(*options: str) -> frozenset[str]:
    return frozenset({*EFFORT, *options})


_SEVERAL: dict[str, Any] = {
    "single": False,
    "several": True,
    "constraints": True,
    "largest_batch": 8,
    "optimises": True,
}
_BUILTIN = [
    AcquisitionKind(
        "qUCB",
        builtin.upper_confidence_bound,
        "Upper confidence bound.",
        optimises=True,
        options=_reads("beta", "mc_samples"),
    ),
    AcquisitionKind(
        "qLogEI",
        builtin.expected_improvement,
        "Expected improvement over the best posterior mean.",
        optimises=True,
        constraints=True,
        options=_reads("mc_samples"),
    ),
    AcquisitionKind(
        "qLogNEI",
        builtin.noisy_expected_improvement,
        "Expected improvement over the unknown best of the told points.",
        optimises=True,
        constraints=True,
        per_cost=True,
        options=_reads("mc_samples"),
    ),
    AcquisitionKind(
        "qKG",
        builtin.knowledge_gradient,
        "Expected rise of the highest posterior mean.",
        optimises=True,
        discrete=False,
        largest_batch=4,
        options=_reads("num_fantasies"),
    ),
    AcquisitionKind(
        "qNIPV",
        builtin.integrated_variance,
        "Posterior variance left after measuring, for a good map of the whole function.",
        options=_reads("mc_points"),
    ),
    AcquisitionKind(
        "qMFKG",
        builtin.multi_fidelity_knowledge_gradient,
        "Gain in the highest posterior mean at the target of a fidelity, by unit of cost.",
        per_cost=True,
        fidelity=True,
        options=_reads("num_maximizers"),
    ),
    AcquisitionKind(
        "Thompson",
        builtin.thompson,
        "Maximisers of posterior functions, for large batches.",
        optimises=True,
        largest_batch=1000,
        independent=True,
        options=_reads("distance"),
    ),
    AcquisitionKind(
        "qLogNEHVI",
        builtin.noisy_hypervolume_improvement,
        "Hypervolume improvement over the unknown front of the told points.",
        per_cost=True,
        options=_reads("mc_samples"),
        **_SEVERAL,
    ),
    AcquisitionKind(
        "qLogEHVI",
        builtin.hypervolume_improvement,
        "Hypervolume improvement over the front of posterior means.",
        options=_reads("mc_samples"),
        **_SEVERAL,
    ),
]
ACQUISITIONS: dict[str, AcquisitionKind] = {kind.name: kind for kind in _BUILTIN}
"""Every acquisition that an Optimizer serves by name."""


def register_acquisition(kind: AcquisitionKind) -> None:
    """Register an acquisition for `Optimizer(acquisition=kind.name)` in this process.

    Args:
        kind: The acquisition. Register it before you resume a journal that names it.

    Raises:
        InvalidArgumentError: if another acquisition has the name.

    Examples:
        register_acquisition(AcquisitionKind("regret", lambda s: qSimpleRegret(s.model, X_pending=s.pending)))
        Optimizer(space, acquisition="regret")
    """
    if ACQUISITIONS.setdefault(kind.name, kind) != kind:
        raise InvalidArgumentError(f"name={kind.name!r}: already taken by another acquisition. Choose another name.")


def acquisition_kind(acquisition: str | Acquisition) -> AcquisitionKind:
    """Return the entry of a name, or one for a factory, which may do anything.

    Raises:
        InvalidArgumentError: for an unknown name.
    """
    if not isinstance(acquisition, str):
        return AcquisitionKind("factory", acquisition, several=True, constraints=True, largest_batch=1000)
    if acquisition not in ACQUISITIONS:
        raise InvalidArgumentError(
            f"acquisition={acquisition!r}: choose one of {list(ACQUISITIONS)}, or pass a factory Setting -> "
            f"AcquisitionFunction (or the points themselves).{suggestion([acquisition], ACQUISITIONS)}"
        )
    return ACQUISITIONS[acquisition]


def default_acquisition(objectives: int, fidelity: bool = False) -> str:
    """Return the name of the acquisition for so many objectives unless a user names one.

    Args:
        objectives: The number of objectives.
        fidelity: Whether there is a fidelity with a target, and no constraint on outcomes.
    """
    if objectives > 1:
        return "qLogNEHVI"
    return "qMFKG" if fidelity else "qLogNEI"


def require_served(
    kind: AcquisitionKind,
    objectives: int,
    constraints: int,
    discrete: bool = False,
    per_cost: bool = False,
    fidelity: bool = False,
) -> None:
    """Refuse an acquisition that does not serve a problem.

    Args:
        kind: The acquisition.
        objectives: The number of objectives.
        constraints: The number of constraints on outcomes.
        discrete: Whether the space has integers or choices.
        per_cost: Whether its value is to be divided by the cost of a point.
        fidelity: Whether there is a fidelity with a target.

    Raises:
        InvalidArgumentError: naming those that do.
    """
    problem = objectives, constraints, discrete, per_cost, fidelity
    if kind.serves(*problem):
        return
    served = [name for name, each in ACQUISITIONS.items() if each.serves(*problem)]
    if kind.serves(*problem[:-1], fidelity=True):
        raise InvalidArgumentError(
            f"acquisition={kind.name!r}: chooses a fidelity, and there is none. Pass fidelity={{name: target}}, or "
            f"choose one of {served}."
        )
    if kind.serves(objectives, constraints, discrete, fidelity=fidelity):
        raise InvalidArgumentError(
            f"per_cost: acquisition={kind.name!r} is not the improvement by a point; choose one of {served}."
        )
    if kind.serves(objectives, constraints, fidelity=fidelity):
        raise InvalidArgumentError(f"acquisition={kind.name!r}: needs continuous parameters; choose one of {served}.")
    what = f"{_counted(objectives, 'objective')} and {_counted(constraints, 'outcome constraint')}"
    raise InvalidArgumentError(f"acquisition={kind.name!r}: cannot handle {what}; choose one of {served}.")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def require_options(kind: AcquisitionKind, options: Mapping[str, Any] | None) -> None:
    """Refuse options that no acquisition by name reads. A factory may read any; others ignore what is not theirs.

    Raises:
        InvalidArgumentError: naming those that there are.
    """
    if ACQUISITIONS.get(kind.name) is not kind:
        return
    known = sorted({name for each in ACQUISITIONS.values() for name in each.options})
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"acquisition_options: {unknown} are unknown; choose from {known}.{suggestion(unknown, known)}"
        )
    for name, value in (options or {}).items():
        _require_value(name, value)


def unread_options(kind: AcquisitionKind, options: Mapping[str, Any]) -> list[str]:
    """Return the options that an acquisition by name does not read, though another one does."""
    return sorted(set(options) - kind.options) if ACQUISITIONS.get(kind.name) is kind else []


def _require_value(name: str, value: Any) -> None:
    """Refuse values of our options that are no numbers, before anything is evaluated."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "beta":
        if not number or not 0 <= value < math.inf:
            raise InvalidArgumentError(f"acquisition_options: beta={value!r} must be a number, not below 0.")
    elif name in WHOLE and (not number or value != int(value) or value < 1):
        raise InvalidArgumentError(f"acquisition_options: {name}={value!r} must be a whole number, at least 1.")
