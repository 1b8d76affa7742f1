"""Reports of fits: stages, the evidence before and after, and notes on what was given up and why."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override


@dataclass(frozen=True)
class Stage:
    """One part of a fit.

    Attributes:
        name: A description of the stage.
        seconds: Its duration.
        evaluations: Number of evaluations of the evidence of all rows, or of a bound on it.
        before: The first of these values, summed over outputs; None without any.
        after: The best of these values.
    """

    name: str
    seconds: float
    evaluations: int
    before: float | None
    after: float | None

    @override
    def __str__(self) -> str:
        evidence = "" if self.before is None else f", evidence {self.before:.5g} → {self.after:.5g}"
        return f"{self.name}: {self.evaluations} evaluations, {self.seconds:.2g} s{evidence}"


@dataclass(frozen=True)
class FitReport:
    """Report of a fit. `str()` shows it in a few lines.

    Attributes:
        model: Name of the model's class.
        stages: Stages of the fit, in order.
        noise: Noise variance of every output after the fit, in squared units of the transformed targets.
        lengthscales: Lengthscales of every kernel part, outputs first, as nested lists.
        notes: Notes on what was chosen, and on what was given up and why.
        warnings: Warnings given during the fit.
        seconds: Duration of the whole fit.
    """

    model: str
    stages: tuple[Stage, ...]
    noise: tuple[float, ...]
    lengthscales: tuple[Any, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the evidence in all stages."""
        return sum(stage.evaluations for stage in self.stages)

    @property
    def evidence_before(self) -> float | None:
        """The first evidence evaluated, summed over outputs; None without any."""
        return next((stage.before for stage in self.stages if stage.before is not None), None)

    @property
    def evidence_after(self) -> float | None:
        """The best evidence of the last stage with any evaluation."""
        return next((stage.after for stage in reversed(self.stages) if stage.after is not None), None)

    @override
    def __str__(self) -> str:
        lines = [f"{self.model}: fitted in {self.seconds:.2g} s, {self.evaluations} evaluations of the evidence"]
        lines += [f"  {stage}" for stage in self.stages]
        lines += [f"  noise variance {_listed(self.noise)}"]
        lines += [f"  lengthscales {_listed(scales)}" for scales in self.lengthscales]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _listed(values: Any) -> str:
    if isinstance(values, float):
        return f"{values:.4g}"
    return "[" + ", ".join(_listed(value) for value in values) + "]"


@dataclass
class Recorder:
    """A recorder that gathers a report during a fit."""

    started: float = field(default_factory=time.perf_counter)
    stages: list[Stage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    _evidence: list[Tensor] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record a stage of the fit, even if it fails."""
        started, self._evidence = time.perf_counter(), []
        try:
            yield
        finally:
            values = torch.stack(self._evidence).tolist() if self._evidence else []
            finite = [value for value in values if value == value] or [None]
            seconds, count = time.perf_counter() - started, len(values)
            best = max(finite) if values and finite[0] is not None else None
            self.stages.append(Stage(name, seconds, count, finite[0], best))
            self._evidence = []

    def evaluated(self, evidence: Float[Tensor, " m"]) -> None:
        """Record one evaluation of the evidence of every output."""
        self._evidence.append(evidence.detach().sum())

    def note(self, text: str) -> None:
        """Add a note on something chosen or given up."""
        self.notes.append(text)

    def warn(self, message: str, category: type[Warning]) -> None:
        """Warn the caller of the fit, and add the warning to the report."""
        self.warned.append(message)
        warnings.warn(message, category, stacklevel=6)

    def report(self, model: Any) -> FitReport:
        """Return the report of a finished fit."""
        with torch.no_grad():
            count = 0 if model.knows_noise and model.num_observations == 0 else 1
            noise = tuple(model.mean_noise.double().tolist()) if count else ()
            scales = tuple(
                kernel.lengthscale.double().squeeze(-2).tolist()
                for kernel in model.covar_module.modules()
                if isinstance(kernel, Kernel) and kernel.has_lengthscale
            )
        seconds = time.perf_counter() - self.started
        parts = tuple(self.stages), noise, scales, tuple(self.notes), tuple(self.warned)
        return FitReport(type(model).__name__, *parts, seconds)
