"""Kernels of space and time: fields that change, beside a part that stays.

The changing part has a separable covariance, a Matérn one in space times one in time: what was measured loses its hold
as time goes by. In time it is exponential for fields that change abruptly, or Matérn-3/2 for fields that change
smoothly, whichever the evidence prefers. A fixed exponential one is forgetting at a given pace: the kernel of "back to
the prior" (S. Van Vaerenbergh, M. Lázaro-Gredilla, I. Santamaría. Kernel recursive least-squares tracker for time-
varying regression. IEEE Transactions on Neural Networks and Learning Systems 23, 2012).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, ScaleKernel

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping.kernels import FLOOR, about

Array = npt.NDArray[np.float64]
CHANGING, WITH_A_STAY = "changing", "changing and staying"
PARTS = (CHANGING, WITH_A_STAY)
"""Sums to choose from: all changes, or a part stays."""
ABRUPT, SMOOTH = 0.5, 1.5
"""Smoothness in time to choose from."""
SHORTEST, LONGEST = 1e-3, 20.0
"""Bounds of the lengthscale in time, in spans of the measurements."""
EPOCH = datetime(1970, 1, 1)
UNITS = ((1096.0, 365.25, "years"), (2.0, 1.0, "days"), (1 / 12, 1 / 24, "hours"), (0.0, 1 / 1440, "minutes"))
"""Durations from which a unit is used, and the length of the unit, days."""


@dataclass(frozen=True)
class Time:
    """Time as a model knows it; plain numbers, as JSON can hold them.

    Attributes:
        start: Time of the first measurement.
        span: Time from the first to the last.
        dates: Whether times are days since 1970, and shown as dates.
        parts: One of `PARTS`.
        decay: Lengthscale in time that was given; None to learn it.
        range: Range in time that was learned, beyond which nothing is forecast.
        smoothness: ν in time, `ABRUPT` or `SMOOTH`.
    """

    start: float
    span: float
    dates: bool
    parts: str = WITH_A_STAY
    decay: float | None = None
    range: float | None = None
    smoothness: float = ABRUPT

    @property
    def saved(self) -> dict[str, Any]:
        """The time as JSON can hold it."""
        return asdict(self)

    def scaled(self, times: Array) -> Array:
        """Return times in spans of the measurements."""
        return (times - self.start) / self.span

    def require(self, when: float) -> None:
        """Refuse a time farther from the measurements than the range in time.

        Raises:
            SurveyError: naming the first and the last time that can be predicted.
        """
        if self.range is None:
            return
        first, last = self.start - self.range, self.start + self.span + self.range
        if not first <= when <= last:
            raise SurveyError(
                f"date={self.shown(when)}: measurements are from {self.shown(self.start)} to "
                f"{self.shown(self.start + self.span)}, and tell nothing beyond their range in time. Give a date from "
                f"{self.shown(float(np.ceil(first)) if self.dates else first)} to "
                f"{self.shown(float(np.floor(last)) if self.dates else last)}."
            )

    def duration(self, length: float) -> str:
        """Return a length of time as a text: in years, days, hours or minutes for dates, or a number."""
        if not self.dates:
            return f"{length:.3g}"
        unit, name = next((unit, name) for least, unit, name in UNITS if length >= least)
        return f"{length / unit:.3g} {name}"

    def shown(self, when: float) -> str:
        """Return a time as a text."""
        return shown(when, self.dates)


def shown(when: float, dates: bool) -> str:
    """Return a time as a text: a date in ISO 8601, or a number."""
    if not dates:
        return f"{when:.9g}"
    try:
        date = EPOCH + timedelta(days=when)
    except OverflowError:
        return f"{when:.9g} days since 1970"
    date += timedelta(microseconds=500_000)
    return f"{date:%Y-%m-%d}" if abs(when % 1) < 1e-6 else f"{date:%Y-%m-%d %H:%M:%S}"


def time_of(text: str | None) -> tuple[float, bool]:
    """Return the time of a text, and whether it is a date: days since 1970, or the number; NaN if it is none."""
    text = (text or "").strip()
    if not text:
        return np.nan, False
    try:
        return float(text), False
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(text.upper())
    except ValueError:
        return np.nan, False
    if date.tzinfo is not None:
        date = date.astimezone(UTC).replace(tzinfo=None)
    return (date - EPOCH) / timedelta(days=1), True


def space_time_kernels(
    nu: float, isotropic: bool, places: Sequence[int], time: Time, shortest: float = SHORTEST
) -> list[ScaleKernel]:
    """Return the kernel of the changing part, and that of the staying part if there is one.

    Args:
        nu: Smoothness in space.
        isotropic: Whether there is one lengthscale for all directions.
        places: Inputs of space; that of time is the next one.
        time: The time.
        shortest: Least lengthscale in time, in spans of the measurements: on grids that of a cell.
    """
    at, width = tuple(places), len(places)
    lasting = MaternKernel(
        time.smoothness,
        ard_num_dims=1,
        active_dims=(at[-1] + 1,),
        lengthscale_prior=about(0.3) if time.decay is None else None,
        lengthscale_constraint=GreaterThan(shortest, transform=None, initial_value=0.3),
    )
    lasting.lengthscale = 0.3 if time.decay is None else max(time.decay / time.span, shortest)
    if time.decay is not None:
        lasting.raw_lengthscale.requires_grad_(False)
    stays = time.parts == WITH_A_STAY
    found = [_scaled(ProductKernel(_space(nu, isotropic, at, width), lasting), 0.5 if stays else 1.0)]
    return [*found, _scaled(_space(nu, isotropic, at, width), 0.5)] if stays else found


def _space(nu: float, isotropic: bool, places: tuple[int, ...], width: int) -> MaternKernel:
    base = MaternKernel(nu, ard_num_dims=None if isotropic else width, active_dims=places, lengthscale_prior=about(0.2))
    base.lengthscale = 0.2
    return base


def _scaled(base: Kernel, variance: float) -> ScaleKernel:
    kernel = ScaleKernel(base, outputscale_prior=about(variance), outputscale_constraint=GreaterThan(FLOOR))
    kernel.outputscale = variance
    return kernel


def lengthscale_in_time(kernels: Sequence[Any]) -> float:
    """Return the lengthscale in time of the changing part, in spans of the measurements."""
    return float(kernels[0].base_kernel.kernels[1].lengthscale.detach())
