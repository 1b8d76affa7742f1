"""The structure of a fitted model in a geostatistician's words: range, sill, nugget, anisotropy, and change in time."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel

from bo_scale.survey.geography.globe import EQUATOR
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import SMOOTHNESS, map_kernel, noise_likelihood
from bo_scale.survey.mapping.matern import LEFT, matern, practical
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.temporal import ABRUPT, Time, space_time_kernels

Array = npt.NDArray[np.float64]
DIRECTIONS = 12
"""Directions over which variograms are averaged."""
ALIKE = 1.05
"""Ratio of the ranges of two directions up to which they count as the same."""
STAYS = 5.0
"""Lengthscale in time, in times from the first to the last measurement, beyond which a part is said to stay."""
WORDS = {0.5: "rough (Matérn 1/2, exponential)", 1.5: "Matérn 3/2", 2.5: "smooth (Matérn 5/2)"}
COMPASS = ("north to south", "north-east to south-west", "east to west", "south-east to north-west")


@dataclass(frozen=True)
class Part:
    """A summand of the process.

    Attributes:
        smoothness: ν of Matérn's function.
        sill: Its variance, in squared units of the model's scale.
        lengths: Lengthscales along the axis of the longest range and across it, metres.
        angle: Bearing of that axis, degrees clockwise from north, 0 to 180.
        lasting: Lengthscale in time; infinite for a part that stays.
        abruptness: ν in time.
    """

    smoothness: float
    sill: float
    lengths: tuple[float, float]
    angle: float = 0.0
    lasting: float = inf
    abruptness: float = ABRUPT

    @property
    def ranges(self) -> tuple[float, float]:
        """Practical ranges along the axis and across it, metres: correlation has fallen to 5 % there."""
        reach = practical(self.smoothness)
        return reach * self.lengths[0], reach * self.lengths[1]

    @property
    def range_in_time(self) -> float:
        """Practical range in time, in units of the times; infinite for a part that stays."""
        return practical(self.abruptness) * self.lasting

    @property
    def ratio(self) -> float:
        """The range along the axis by that across it."""
        return self.lengths[0] / self.lengths[1]

    def correlation(self, distance: Array, bearing: float) -> Array:
        """Return the correlation at distances, metres, in a direction, degrees clockwise from north."""
        turn = np.radians(bearing - self.angle)
        stretched = np.hypot(np.cos(turn) / self.lengths[0], np.sin(turn) / self.lengths[1])
        return matern(self.smoothness, distance * stretched)

    def held(self, lag: "float | Array") -> Array:
        """Return the correlation in time at lags."""
        return matern(self.abruptness, np.atleast_1d(lag) / self.lasting)


@dataclass(frozen=True)
class Structure:
    """The structure of a quantity on the model's scale.

    Attributes:
        parts: Summands, the one of the shorter range first.
        nugget: Variance of measurements at one place, beyond errors that are known.
        known_errors: Whether there are errors that are known.
        nearest: Whether maps are made from the nearest sites, whose process this is then.
        time: The time; None for a field without.
    """

    parts: tuple[Part, ...]
    nugget: float
    known_errors: bool
    nearest: bool
    time: Time | None = None

    @classmethod
    def of(cls, fit: Fit, known_errors: bool) -> "Structure":
        """Return the structure of the process that maps are made with.

        Args:
            fit: Hyperparameters.
            known_errors: Whether measurements have variances that are known.
        """
        time = None if fit.time is None else Time(**fit.time)
        if fit.nearest is not None:
            near = Nearest(**fit.nearest)
            ratio, angle = fit.stretch or (1.0, 0.0)
            times = [inf] * len(near.smoothness) if time is None or near.times is None else near.times
            numbers = zip(near.smoothness, near.variances, near.lengthscales, times, strict=True)
            parts = [
                Part(nu, variance, (length, length / ratio), angle, _lasting(lasting, time), near.lasting)
                for nu, variance, length, lasting in numbers
            ]
            return cls(_sorted(parts), near.noise, known_errors, nearest=True, time=time)
        parts = _fitted_parts(fit)
        nugget = fit.nugget * fit.unit**2 if known_errors else _learned_noise(fit) * fit.unit**2
        return cls(_sorted(parts), nugget, known_errors, nearest=False, time=time)

    @property
    def sill(self) -> float:
        """Variance of the quantity, without the nugget."""
        return sum(part.sill for part in self.parts)

    @property
    def range(self) -> float:
        """The longest practical range of the parts, metres."""
        return max(part.ranges[0] for part in self.parts)

    @property
    def anisotropic(self) -> bool:
        """Whether ranges differ between directions."""
        return any(part.ratio > ALIKE for part in self.parts)

    def semivariance(self, distance: Array, bearing: float | None = None, lag: "float | Array" = 0.0) -> Array:
        """Return half the mean square of differences between measurements, the nugget included.

        Args:
            distance: Distances, metres.
            bearing: Direction, degrees clockwise from north; None for the mean over all.
            lag: Times between the measurements.
        """
        bearings = np.arange(DIRECTIONS) * 180 / DIRECTIONS if bearing is None else np.array([bearing])
        means = [
            part.sill * (1 - part.held(lag) * np.mean([part.correlation(distance, b) for b in bearings], 0))
            for part in self.parts
        ]
        return np.asarray(self.nugget * ((distance > 0) | (np.asarray(lag) > 0)) + sum(means))

    @property
    def range_in_time(self) -> float | None:
        """The longest practical range in time of the parts that change; None if none does."""
        return max((part.range_in_time for part in self.parts if part.lasting < inf), default=None)

    @property
    def reach(self) -> str:
        """The longest ranges in space and in time, as a text."""
        text = distance_text(self.range)
        if self.time is None or self.range_in_time is None:
            return text
        return f"{text}, {self.time.duration(self.range_in_time)} in time"

    def sentences(self, where: str) -> list[str]:
        """Describe the structure.

        Args:
            where: What variances are of, such as "zinc" or "log zinc".
        """
        said = []
        for part in self.parts:
            along, across = part.ranges
            which = "" if len(self.parts) == 1 else "short " if part is self.parts[0] else "long "
            what = f"{which}range {distance_text(along)}"
            if part.ratio > ALIKE:
                axis = compass(part.angle)
                axis = f"along {axis}" if axis[0].isdigit() else f"from {axis}"
                what += f" {axis} and {distance_text(across)} across (ratio {part.ratio:.2g})"
            said.append(f"{what}, sill {part.sill:.3g} (sd {part.sill**0.5:.3g}), {WORDS[part.smoothness]}")
        share = self.nugget / max(self.nugget + self.sill, 1e-300)
        beyond = " beyond known errors" if self.known_errors else ""
        nugget = f"nugget {self.nugget:.3g} (sd {self.nugget**0.5:.3g}){beyond}, {100 * share:.0f} % of the variance"
        text = "; ".join([*said, nugget])
        left = f"at the range {100 * LEFT:.0f} % of the correlation is left"
        spatial = f"{text[0].upper()}{text[1:]}. Variances are of {where}; {left}."
        return [spatial] if self.time is None else [spatial, self._change(self.time)]

    def _change(self, time: Time) -> str:
        """Return how much of the quantity changes in time, how fast and how, as a sentence."""
        changing = sorted((part for part in self.parts if part.lasting < inf), key=lambda part: part.lasting)
        if not changing:
            return "In time: nothing is seen to change."
        shares = [100 * part.sill / max(self.sill, 1e-300) for part in changing]
        said = [
            f"{share:.0f} % of the variance with a range of {time.duration(part.range_in_time)}"
            for share, part in zip(shares, changing, strict=True)
        ]
        how = "abruptly (exponential)" if changing[0].abruptness == ABRUPT else "smoothly (Matérn 3/2)"
        text = f"In time the quantity changes {how}, {' and '.join(said)}"
        return f"{text}; the rest stays." if len(changing) < len(self.parts) else f"{text}; nothing stays."


def _lasting(lengthscale: float, time: Time | None) -> float:
    """Return a lengthscale in time; infinity for one that is so long that the part stays while it is measured."""
    return inf if time is None or lengthscale > STAYS * time.span else lengthscale


def _sorted(parts: list[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=lambda part: part.ranges[0]))


def _fitted_parts(fit: Fit) -> list[Part]:
    """Return the summands of a fitted kernel, in space."""
    kernel, before = _kernel_in_space(fit)
    values = {name.removeprefix("covar_module."): value for name, value in fit.values.items()}
    with torch.no_grad():
        for name, parameter in kernel.named_parameters():
            parameter.copy_(torch.tensor(values[before + name], dtype=torch.float64).reshape(parameter.shape))
    west, south, east, north = fit.within
    side = 2 * EQUATOR if fit.globe is not None else max(east - west, north - south)
    summands = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    found = []
    for one in summands:
        base = one.base_kernel.kernels[0] if isinstance(one.base_kernel, ProductKernel) else one.base_kernel
        lengths = (side * base.lengthscale.detach().double().flatten()).tolist()
        longer, shorter = max(lengths), min(lengths)
        angle = 90.0 if len(lengths) == 2 and lengths[0] > lengths[1] else 0.0
        if fit.stretch is not None:
            shorter, angle = longer / fit.stretch[0], fit.stretch[1]
        found.append(Part(float(base.nu), one.outputscale.item() * fit.unit**2, (longer, shorter), angle))
        if fit.time is not None and isinstance(one.base_kernel, ProductKernel):
            time = Time(**fit.time)
            lasting = time.span * float(one.base_kernel.kernels[1].lengthscale.detach())
            found[-1] = replace(found[-1], lasting=_lasting(lasting, time), abruptness=time.smoothness)
    return found


def _kernel_in_space(fit: Fit) -> tuple[Kernel, str]:
    """Return a kernel for the values of a fit, without those of its trend, and what is before their names."""
    if fit.time is not None:
        parts = space_time_kernels(SMOOTHNESS[fit.kernel], fit.isotropic, range(fit.width), Time(**fit.time))
        return AdditiveKernel(*parts), ""
    kernel = map_kernel(fit.kernel, [] if fit.lies_in_space else fit.grids, fit.isotropic)
    alone = not isinstance(kernel, AdditiveKernel)
    return kernel, "kernels.0." if alone and fit.trend is not None and not fit.grids else ""


def _learned_noise(fit: Fit) -> float:
    """Return the noise variance that was learned, in squared units of the fit."""
    likelihood = noise_likelihood()
    raw = next((value for name, value in fit.values.items() if name.endswith("raw_noise")), None)
    if raw is None:
        return 0.0
    with torch.no_grad():
        likelihood.noise_covar.raw_noise.copy_(torch.tensor(raw).reshape(1))
        return float(likelihood.noise)


def distance_text(metres: float) -> str:
    """Return a distance in metres or kilometres, to three digits."""
    rounded = float(f"{metres:.3g}")
    return f"{rounded:,.6g} m" if rounded < 1000 else f"{rounded / 1000:,.6g} km"


def compass(angle: float) -> str:
    """Return the words for an axis of a bearing, with the number unless it is nearly that of the words."""
    turn = angle % 180
    nearest = round(turn / 45) % 4
    off = abs((turn - 45 * nearest + 90) % 180 - 90)
    return COMPASS[nearest] if off < 2 else f"{turn:.0f}° (about {COMPASS[nearest]})"


def measured_on(quantity: str, scale: str) -> str:
    """Return a quantity on a scale in words."""
    words = {"none": "{}", "log1p": "log({} + 1)", "logit": "the logit of {}", "two-part": "log {} where it is present"}
    return words.get(scale, "log {}").format(quantity)
