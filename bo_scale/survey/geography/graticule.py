"""Meridians and parallels of a map, with their labels, at steps that suit its size."""

from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Transformer

from bo_scale.survey.geography.coordinates import WGS84
from bo_scale.survey.geography.curves import Box, middle_degrees, on_map
from bo_scale.survey.geography.world import is_world, middle_of

Array = npt.NDArray[np.float64]

DEGREE = 111_195.0
"""Metres of a degree along a meridian, on a sphere."""
COARSE = (30.0, 10.0, 5.0, 2.0, 1.0)
"""Steps of a degree and more; below, 5, 2 and 1 times powers of ten."""
MOST = 400
"""Lines of one step, at most."""
VERTICES = 181
"""Vertices of a line; more are added where it spans many degrees."""
FINE = 40
"""Vertices along the side of a box by which its longitudes and latitudes are found."""


@dataclass(frozen=True)
class GridLine:
    """A meridian or parallel on a map.

    Attributes:
        text: Its label, such as 5.75° E.
        pieces: Its pieces within a box, `k × 2` metres each.
    """

    text: str
    pieces: list[Array]


@dataclass(frozen=True)
class GridLines:
    """Meridians or parallels at one step.

    Attributes:
        apart: Metres between them, about.
        lines: From west to east, or from south to north.
    """

    apart: float
    lines: list[GridLine]


def step_of(degrees: float) -> float:
    """Return the largest sensible step of at most some degrees."""
    if degrees >= COARSE[-1]:
        return next(step for step in COARSE if step <= degrees * (1 + 1e-9))
    power = 10.0 ** floor(log10(degrees) + 1e-9)
    return next(factor * power for factor in (5, 2, 1) if factor * power <= degrees * (1 + 1e-9))


def meridians(apart: float, crs: CRS, box: Box) -> GridLines:
    """Return meridians within a box.

    Args:
        apart: Metres between them, at most about, in the middle of the box.
        crs: Metric coordinate system of the map.
        box: Left, bottom, right and top of what is kept, metres.
    """
    lon, lat, half = _degrees_of(crs, box)
    flat = float(np.cos(np.radians(np.clip(middle_degrees(crs, box)[1], -85.0, 85.0))))
    step = step_of(apart / (DEGREE * flat))
    numbers = _multiples(lon - half, lon + half, step)
    if half >= 180.0:
        numbers = [number for number in numbers if number > lon - half + 1e-9]  # not twice the same
    if is_world(crs):
        numbers = [number for number in numbers if number < lon + half - 1e-9]  # not its edge
    curves = [np.stack([np.full(VERTICES, number), np.linspace(*lat, VERTICES)], -1) for number in numbers]
    labels = [_label((number + 180.0) % 360.0 - 180.0, step, "EW") for number in numbers]
    return _grid_lines(step * DEGREE * flat, labels, curves, crs, box)


def parallels(apart: float, crs: CRS, box: Box) -> GridLines:
    """Return parallels within a box; arguments as those of `meridians`."""
    lon, lat, half = _degrees_of(crs, box)
    step = step_of(apart / DEGREE)
    numbers = [number for number in _multiples(*lat, step) if abs(number) < 90.0 - 1e-9]
    curves = [
        np.stack([np.linspace(lon - half, lon + half, VERTICES), np.full(VERTICES, number)], -1) for number in numbers
    ]
    return _grid_lines(step * DEGREE, [_label(number, step, "NS") for number in numbers], curves, crs, box)


def _grid_lines(apart: float, labels: list[str], curves: list[Array], crs: CRS, box: Box) -> GridLines:
    pieces = on_map(curves, crs, box)
    return GridLines(apart, [GridLine(text, found) for text, found in zip(labels, pieces, strict=True) if found])


def _degrees_of(crs: CRS, box: Box) -> tuple[float, tuple[float, float], float]:
    """Return the longitude in the middle of a box, its least and greatest latitude, and half the longitudes in it."""
    if is_world(crs):
        return middle_of(crs), (-90.0, 90.0), 180.0
    xy = _grid(box)
    back = Transformer.from_crs(crs, WGS84, always_xy=True)
    lon, lat = (part[np.isfinite(part)] for part in back.transform(xy[:, 0], xy[:, 1]))
    middle = middle_degrees(crs, box)[0]
    half = float(np.abs((lon - middle + 180.0) % 360.0 - 180.0).max())
    low, high = float(lat.min()), float(lat.max())
    for pole in (-90.0, 90.0):
        x, y = back.transform(middle, pole, direction="INVERSE")
        if box[0] <= x <= box[2] and box[1] <= y <= box[3]:
            low, high, half = min(low, pole), max(high, pole), 180.0
    room = (high - low) / FINE
    return middle, (max(low - room, -90.0), min(high + room, 90.0)), min(half * (1 + 2 / FINE), 180.0)


def _grid(box: Box) -> Array:
    x, y = np.linspace(box[0], box[2], FINE + 1), np.linspace(box[1], box[3], FINE + 1)
    return np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, min(last, first + MOST) + 1)]


def _label(degrees: float, step: float, names: str) -> str:
    """Return 5.75° E for a longitude, 3° S for a latitude; 0° and 180° have no side."""
    decimals = max(0, -floor(log10(step) + 1e-9))
    text = f"{abs(degrees):.{decimals}f}°"
    if float(text[:-1]) in (0.0, 180.0):
        return text
    return f"{text} {names[0] if degrees > 0 else names[1]}"
