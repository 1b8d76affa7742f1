"""Layers of a map: name, colours, limits and values of each part of a prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

import matplotlib
import numpy as np
import numpy.typing as npt
from jaxtyping import Float, UInt8

from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.mapping.prediction import Intervals, Prediction

SHADES = 255
"""Colours of a colour map; an image has one more entry, for nothing."""

TAIL = 0.5
"""Percentage of cells at either end that may lie beyond the colours, where a few would take most of them."""


@dataclass(frozen=True)
class Layer:
    """One quantity over the cells of a raster.

    Attributes:
        key: mean, sd, exceedance, or an end of an interval: lower, upper, new_lower or new_upper.
        title: Title for people.
        label: Name of the numbers.
        values: Values as in `Prediction`.
        colours: Name of a perceptually uniform colour map.
        low: Value of the first colour.
        high: Value of the last colour.
    """

    key: str
    title: str
    label: str
    values: Float[np.ndarray, " n"]
    colours: str
    low: float
    high: float

    @property
    def beyond(self) -> str:
        """Range of values beyond the colours; empty if the colours reach all."""
        least, greatest = (
            (np.nanmin(self.values), np.nanmax(self.values)) if self.values.size else (self.low, self.high)
        )
        ends = [f"down to {least:.4g}"] if least < self.low else []
        ends += [f"up to {greatest:.4g}"] if greatest > self.high else []
        return f"values go {' and '.join(ends)}" if ends else ""

    @property
    def palette(self) -> UInt8[np.ndarray, "shades 3"]:
        """Red, green and blue from `low` to `high`."""
        shades = matplotlib.colormaps[self.colours](np.linspace(0, 1, SHADES))
        return np.rint(255 * shades[:, :3]).astype(np.uint8)

    def shade(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
        """Number of the colour of each value, from 1; 0 for NaN."""
        place = np.clip((values - self.low) / (self.high - self.low), 0, 1)
        return np.where(np.isnan(place), 0, 1 + np.rint(place * (SHADES - 1))).astype(np.uint8)


def layers(prediction: Prediction) -> list[Layer]:
    """Mean, sd, exceedance where there is a threshold, and ends of intervals if they were asked for."""
    name = prediction.quantity
    found = [
        Layer("mean", "Mean", name, prediction.mean, "viridis", *_limits(prediction, "mean")),
        Layer("sd", "Standard deviation", name, prediction.sd, "magma", *_limits(prediction, "sd")),
    ]
    if prediction.exceedance is not None:
        above = "the threshold" if prediction.threshold is None else f"{prediction.threshold:g}"
        label = f"probability that {name} is above {above}"
        found.append(Layer("exceedance", "Exceedance", label, prediction.exceedance, "cividis", 0.0, 1.0))
    if prediction.intervals is not None:
        found += _ends(prediction.intervals, name)
    return found


def _limits(prediction: Prediction, key: str) -> tuple[float, float]:
    """Return the limits of the colours of the mean or the sd."""
    return prediction.limits[key] if key in prediction.limits else limits(getattr(prediction, key))


def with_same_colours(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return predictions whose maps have the same colours for the same values."""
    same = {key: limits(np.concatenate([getattr(each, key) for each in predictions])) for key in ("mean", "sd")}
    return [replace(each, limits=same) for each in predictions]


def _ends(intervals: Intervals, name: str) -> list[Layer]:
    """Return the ends of intervals; both of one have the same colours."""
    found, sides = [], (("lower", "below"), ("upper", "above"))
    for before, what, ends in (("", "quantity", intervals.quantity), ("new_", "new measurement", intervals.measured)):
        same = limits(np.concatenate(ends))
        for (end, side), values in zip(sides, ends, strict=True):
            label = f"{'new measurement of ' if before else ''}{name}: {side} this with probability 2.5 %"
            found.append(Layer(before + end, f"{end.capitalize()} end, {what}", label, values, "viridis", *same))
    return found


def limits(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return limits of the colours: of all values, or without tails that would leave few colours to the rest."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    inner = np.percentile(finite, [TAIL, 100 - TAIL])
    if high - low > 1.5 * (inner[1] - inner[0]) > 0:
        low, high = float(inner[0]), float(inner[1])
    margin = 1e-6 * max(abs(low), abs(high)) or 1e-6
    return (low, high) if high - low > margin else (low - margin, high + margin)


def coarsening(raster: Raster, most: int) -> int:
    """Cells along the side of a block such that no more than about `most` blocks cover the raster."""
    return max(1, ceil(sqrt(raster.inside.size / most)))


def blocks(raster: Raster, values: Float[np.ndarray, " n"], side: int) -> Float[np.ndarray, "rows columns"]:
    """Means over blocks of side × side cells, from the north-west corner; NaN where no cell is inside."""
    height, width = (ceil(extent / side) for extent in raster.inside.shape)
    rows, columns = np.nonzero(raster.inside)
    block = rows // side * width + columns // side
    count = np.bincount(block, minlength=height * width)
    total = np.bincount(block, weights=values, minlength=height * width)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(height, width)


def grown(image: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
    """An image whose empty cells beside others have the mean of those, so that it reaches the outline and beyond."""
    rows, columns = image.shape
    padded = np.pad(image, 1, constant_values=np.nan)
    known = np.where(np.isnan(padded), 0.0, padded)
    windows = [(slice(i, i + rows), slice(j, j + columns)) for i in range(3) for j in range(3)]
    total = sum((known[window] for window in windows), np.zeros(image.shape))
    count = sum((~np.isnan(padded[window]) for window in windows), np.zeros(image.shape))
    return np.where(np.isnan(image) & (count > 0), total / np.maximum(count, 1), image)
