"""The state of a loop: its history, its settings, and the chain of its models, kept together and on disk."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.by_name import AcquisitionKind, unread_options
from bo_scale.errors import InvalidArgumentError, JournalError
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.observations import Id
from bo_scale.loop.persistence import Persistence
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Space
from bo_scale.loop.settings import Settings, differences, has_objects
from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder, with_noise
from bo_scale.loop.surrogate.chain import SurrogateChain
from bo_scale.loop.surrogate.per_outcome import SeveralBuilder
from bo_scale.loop.tables import require_own_columns

logger = logging.getLogger("bo_scale.loop")
Served = tuple[AcquisitionKind, SurrogateBuilder | SeveralBuilder]
"""The acquisition, and the builder of models."""
TOLERANCE = 1e-6
"""Default share of a parameter's range within which a told point is the pending one."""


class Run:
    """The state of a loop, begun or resumed.

    Attributes:
        model_lock: Held while models are made. Take it before the lock of the history, never after.
        history: Everything that happened.
        settings: The settings that apply.
        kind: The acquisition.
        builder: Makes models from those before.
        chain: The models so far.
        persistence: The journal.
        after_fit: Reports on a surrogate that was just fitted; it may be called again with the same.
        suspected: Ids of the observations that the last report named as possible errors.

    Args:
        path: Folder of the journal, or None.
        space: The space, or None for that of the journal.
        outcomes: The outcomes, or None for those of the journal.
        given: Settings by name; None for those of the journal, or else the default.
        device: Device of the models.
        tolerance: Points within this share of the range of each other are the same; None for that of the journal.
        read_only: Whether to read the journal only.

    Raises:
        JournalLockedError: if another process works on the path.
        JournalError: if there is nothing to open, or the journal is damaged or of another problem.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        space: Space | None,
        outcomes: Outcomes | None,
        given: Mapping[str, Any],
        device: torch.device,
        tolerance: float | None,
        read_only: bool,
    ) -> None:
        self.model_lock = threading.RLock()
        self.device = device
        self.after_fit: Callable[[Surrogate], None] = lambda surrogate: None
        self.suspected: frozenset[Id] = frozenset()
        self._path, self._given, self._tolerance = path, given, tolerance
        if Persistence.is_new(path):
            if read_only:
                raise JournalError(f"path={path!r}: there is no journal to read. Check the path.")
            self._begin(space, outcomes, None)
            return
        self.persistence = Persistence(path, read_only)
        try:
            if self.persistence.begun:
                self._resume(space, outcomes)
            else:  # a process was killed before its first line
                self._begin(space, outcomes, self.persistence)
        except BaseException:
            self.persistence.close()
            raise

    def _begin(self, space: Space | None, outcomes: Outcomes | None, persistence: Persistence | None) -> None:
        """Check everything, then begin."""
        if space is None:
            raise JournalError(f"path={self._path!r}: there is no journal to open. Check the path, or begin a run.")
        if outcomes is None:
            logger.warning("objective: none given, so larger values are better. Pass 'maximize' or 'minimize'.")
            outcomes = Outcomes.of(None, None, (), None)
        require_own_columns(space, outcomes)
        settings = Settings.default(space, outcomes, self._given)
        self._take(settings, self._served(settings, space, outcomes))
        if space.admissible is not None:
            space.admissible.sample(1, 0)  # or there is nothing to search
        self._warn_of_options()
        self.persistence = persistence or Persistence(self._path)
        tolerance = TOLERANCE if self._tolerance is None else self._tolerance
        self.history = self.persistence.begin(space, outcomes, settings.describe(), tolerance)
        self.start_anew()

    def _resume(self, space: Space | None, outcomes: Outcomes | None) -> None:
        """Go on with the settings given, or else those there were."""
        self.history = self.persistence.resume(self._tolerance, TOLERANCE)
        self._require_same(space, outcomes)
        settings = Settings.read(self.history.settings).updated(self._given)
        problem = self.history.space, self.history.outcomes
        try:
            served = self._served(settings, *problem)
        except InvalidArgumentError:
            if not self.persistence.read_only:
                raise
            settings = settings.lost()  # of names registered elsewhere
            served = self._served(settings, *problem)
        self._take(settings, served)
        if not self.persistence.read_only:
            self._record_change(settings)
        self.start_anew()
        self.persistence.continue_chain(self.chain, self.history, settings.num_initial)

    def _require_same(self, space: Space | None, outcomes: Outcomes | None) -> None:
        """Refuse another problem than that of the journal."""
        differing = []
        for name, given, own, remedy in (
            ("space", space, self.history.space, "Optimizer.open(path).migrate(space=…) carries the run over to it"),
            ("objective", outcomes, self.history.outcomes, "begin another run for it, at another path"),
        ):
            if given is not None and given.describe() != own.describe():
                differing.append(f"{name}: {_difference(own, given)}. {remedy}")
        if differing:
            raise JournalError(f"path={self._path!r}: begun with other arguments ({'; '.join(differing)}).")

    def _served(self, settings: Settings, space: Space, outcomes: Outcomes) -> Served:
        """Return what settings stand for; refuse those that do not serve the problem."""
        kind, factory = settings.require(space, outcomes)
        single = SurrogateBuilder(factory, settings.refit, settings.seed, self.device)
        return kind, single if len(outcomes.signs) == 1 else SeveralBuilder(single)

    def _take(self, settings: Settings, served: Served) -> None:
        self.settings = settings
        self.kind, self.builder = served

    def _warn_of_options(self) -> None:
        """Say which options are not read."""
        unread = unread_options(self.kind, self.settings.acquisition_options)
        if unread:
            logger.warning("acquisition_options: %s does not read %s.", self.kind.name, unread)

    def _record_change(self, settings: Settings, anyway: bool = False) -> None:
        """Write down how settings differ from those before, if they do, or anyway: objects may differ unseen."""
        changed = differences(self.history.settings, settings.describe())
        if not changed and not anyway:
            return
        before = {name: self.history.settings[name] for name in changed}
        said = "; ".join(f"{name}: {before[name]!r}, now {value!r}" for name, value in changed.items())
        logger.warning("settings change from ask %d on (%s).", self.history.asks, said)
        with self.persistence.written({"event": "change", "settings": changed}):
            self.history.change(changed)

    def target(self, fixed: Mapping[Any, Any]) -> dict[int, float]:
        """Return the inputs of the fidelity and of other fixed values, where these override the fidelity."""
        return self.history.space.held({**self.settings.fidelity, **fixed})

    @property
    def tolerance(self) -> float:
        """Share of a parameter's range within which points are the same."""
        return self.history.share

    # ------------------------------------------------------------------ changes

    def change(self, given: Mapping[str, Any]) -> None:
        """Take other settings from the next ask on; None for what stays."""
        with self.model_lock, self.history.lock:
            settings = self.settings.updated(given)
            served = self._served(settings, self.history.space, self.history.outcomes)
            objects = [name for name, value in given.items() if value is not None and has_objects(value)]
            if not objects and not differences(self.history.settings, settings.describe()):
                return
            self._record_change(settings, bool(objects))
            self._take(settings, served)
            self._warn_of_options()
            self.start_anew()

    def require_served(self, space: Space) -> None:
        """Refuse a space that the settings do not serve, or that has no points."""
        if space.admissible is not None:
            space.admissible.sample(1, 0)
        require_own_columns(space, self.history.outcomes)
        self.settings.require(space, self.history.outcomes)

    def serve(self) -> None:
        """Make later models for the space as it is now."""
        self._take(self.settings, self._served(self.settings, self.history.space, self.history.outcomes))
        self.start_anew()

    def start_anew(self) -> None:
        """Make later models of the observations as they are now."""
        self.chain = SurrogateChain(self.builder, self.history.told)

    def record(self, event: Event) -> None:
        """Write an event and apply it, as a replay of the journal would."""
        with self.history.lock, self.persistence.written(event):
            self.history.replay(event)

    # ------------------------------------------------------------------ models

    def present(self) -> Surrogate:
        """Return the surrogate of all observations; fitted if the next ask would fit it."""
        self.settings.require_given("model")
        with self.model_lock:
            surrogate = self.chain.present(self.history.asks)
            if surrogate.fitted == surrogate.count:
                self.after_fit(surrogate)
            return surrogate

    def known(self) -> tuple[Any, Float[Tensor, "n d"], Float[Tensor, "n m"], torch.device]:
        """Return the model of all observations, their points and values, and its device."""
        surrogate = self.present()
        X, Y, _ = self.history.told.first(surrogate.count)
        return surrogate.model, X, Y, self.device

    def suspected_rows(self) -> frozenset[int]:
        """Return the rows of the suspected observations. O(n) if there are any."""
        ids = self.history.told.ids if self.suspected else []
        return frozenset(row for row, each in enumerate(ids) if each in self.suspected)

    def data(self, surrogate: Surrogate) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the points, values and variances that a surrogate was made of."""
        X, Y, Yvar = self.history.told.first(surrogate.count)
        return X, Y, with_noise(surrogate, Yvar)

    @property
    def single(self) -> SurrogateBuilder:
        """The builder of the model of one outcome."""
        return self.builder if isinstance(self.builder, SurrogateBuilder) else self.builder.single


def _difference(before: Any, after: Any) -> str:
    """Say how two spaces differ, or two sets of outcomes."""
    if not isinstance(before, Space):
        return f"{before.describe()!r}, now {after.describe()!r}"
    old = dict(zip(map(str, before.labels), map(str, before.parameters)))
    new = dict(zip(map(str, after.labels), map(str, after.parameters)))
    said = [f"{name} took {old[name]}, now {new[name]}" for name in old if new.get(name, old[name]) != old[name]]
    said += [f"{name} is missing" for name in old if name not in new] + [f"{n} is new" for n in new if n not in old]
    return "; ".join(said) or "scales, order or constraints"
