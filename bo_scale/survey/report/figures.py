"""Drawings of a report, as SVG: variograms, measurements by prediction, and maps of errors."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
import numpy.typing as npt
import shapely
from shapely.geometry.base import BaseGeometry

from bo_scale.survey.mapping.structure import Structure, distance_text
from bo_scale.survey.mapping.temporal import Time
from bo_scale.survey.report.validation import LeftOut
from bo_scale.survey.report.variogram import Variogram

Array = npt.NDArray[np.float64]
WIDTH, HEIGHT = 560.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 14.0, 46.0
TICKS = 5
DRAWN = 1500
"""Measurements that are drawn, at most."""
COLOURS = ("#0b6bcb", "#c2410c", "#0f766e", "#7c3aed")
LOW, MIDDLE, HIGH = np.array([33, 102, 172]), np.array([247, 247, 247]), np.array([178, 24, 43])
"""Colours of measurements below, at and above what was expected."""
MOST = 3.0
"""Score at which colours end."""
MAP = 560.0


@dataclass(frozen=True)
class _Axes:
    """Straight axes of a drawing.

    Attributes:
        x: Range across.
        y: Range upwards.
    """

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        """Return the place of a value, in pixels from the left."""
        return LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        """Return the place of a value, in pixels from the top."""
        return HEIGHT - BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - TOP - BOTTOM)

    def frame(self, x: str, y: str, unit: float = 1.0) -> list[str]:
        """Return the axes with ticks and their names; values across are shown in a unit."""
        drawn = []
        for tick in _ticks(self.x[0] / unit, self.x[1] / unit):
            at = self.across(tick * unit)
            drawn.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            drawn.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:.6g}</text>')
        for tick in _ticks(*self.y):
            at = self.down(tick)
            drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            drawn.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:.6g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        drawn.append(f'<text class="name" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x)}</text>')
        across = (TOP + HEIGHT - BOTTOM) / 2
        drawn.append(
            f'<text class="name" x="14" y="{across}" text-anchor="middle" transform="rotate(-90 14 {across})">'
            f"{html.escape(y)}</text>"
        )
        return drawn


def draw_variogram(structure: Structure, found: Sequence[Variogram], names: Sequence[str], where: str) -> str:
    """Draw empirical variograms over the fitted one.

    Args:
        structure: The fitted structure.
        found: Empirical variograms; of directions the fitted one is drawn in each.
        names: Names of these.
        where: What variances are of.
    """
    longest = max((float(each.distance.max()) for each in found if len(each.distance)), default=structure.range)
    shown = np.concatenate([each.semivariance for each in found])
    top = 1.08 * max(float(shown.max(initial=0.0)), float(structure.semivariance(np.array([longest])).max()), 1e-300)
    axes, unit = _Axes((0.0, 1.03 * longest), (0.0, top)), 1000.0 if longest > 3000 else 1.0
    drawn = axes.frame(f"distance ({'km' if unit > 1 else 'm'})", f"semivariance of {where}", unit)
    sill = structure.sill + structure.nugget
    if sill < top:
        drawn.append(_dashed(axes, (0.0, axes.x[1]), (sill, sill), "sill and nugget"))
    if structure.parts and structure.range < axes.x[1]:
        drawn.append(_dashed(axes, (structure.range,) * 2, (0.0, top), f"range {distance_text(structure.range)}"))
    steps = np.linspace(1e-6, 1, 120) ** 1.5 * axes.x[1]
    for each, name, colour in zip(found, names, COLOURS, strict=False):
        drawn += _fitted_line(axes, steps, structure.semivariance(steps, each.bearing, each.beside), colour)
        drawn += _bin_dots(axes, each, distance_text, colour, f"{name}: ")
    if len(found) > 1:
        drawn += _key(names)
    return _svg(drawn, WIDTH, HEIGHT, f"Variogram of {where}")


def draw_variogram_in_time(structure: Structure, time: Time, found: Variogram, where: str) -> str:
    """Draw the empirical variogram by the time between measurements over the fitted one."""
    longest = float(found.distance.max())
    steps = np.linspace(1e-6, 1, 120) ** 1.5 * 1.03 * longest
    heights = structure.semivariance(np.full(len(steps), found.beside), lag=steps)
    top = 1.08 * max(float(found.semivariance.max()), float(heights.max()), 1e-300)
    axes = _Axes((0.0, 1.03 * longest), (0.0, top))
    drawn = axes.frame(f"time between measurements{' (days)' * time.dates}", f"semivariance of {where}")
    drawn += _fitted_line(axes, steps, heights, COLOURS[0])
    drawn += _bin_dots(axes, found, time.duration, COLOURS[0])
    return _svg(drawn, WIDTH, HEIGHT, f"Variogram of {where} in time")


def _fitted_line(axes: _Axes, steps: Array, heights: Array, colour: str) -> list[str]:
    """Return the line of fitted semivariances."""
    line = " ".join(f"{axes.across(x):.1f},{axes.down(y):.1f}" for x, y in zip(steps, heights, strict=True))
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']


def _bin_dots(axes: _Axes, found: Variogram, told: Callable[[float], str], colour: str, name: str = "") -> list[str]:
    """Return dots of empirical semivariances, larger where there are more pairs, with how far apart these are."""
    drawn = []
    for x, y, pairs in zip(found.distance, found.semivariance, found.pairs, strict=True):
        size = 2.5 + 1.2 * log10(max(float(pairs), 1.0))
        title = f"{name}{told(float(x))}, {y:.3g}, {pairs:,} pairs"
        at = axes.across(float(x)), axes.down(max(float(y), 0.0))
        drawn.append(_dot(at, size, f'fill="{colour}" stroke="#fff"', title))
    return drawn


def draw_measured(left_out: LeftOut, quantity: str) -> str:
    """Draw measurements by what was expected of them, with 95 % intervals."""
    rows = _some(len(left_out.value))
    mean, value = left_out.mean[rows], left_out.value[rows]
    low, high = left_out.lower[rows], left_out.upper[rows]
    least, most = float(min(mean.min(), value.min())), float(max(mean.max(), value.max()))
    margin = 0.04 * (most - least) or 1.0
    axes = _Axes((least - margin, most + margin), (least - margin, most + margin))
    drawn = axes.frame(f"{quantity} expected", f"{quantity} measured")
    drawn.append(_dashed(axes, axes.x, axes.x, "as expected"))
    for m, v, a, b, score in zip(mean, value, low, high, left_out.score[rows], strict=True):
        x, (start, end) = axes.across(float(m)), (axes.down(float(each)) for each in np.clip([a, b], *axes.y))
        drawn.append(f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{start:.1f}" y2="{end:.1f}"/>')
        title = f"{v:.4g} measured, {m:.4g} expected ({a:.4g} to {b:.4g})"
        style = f'fill="{_colour(float(score))}" stroke="#39434e" stroke-width=".6"'
        drawn.append(_dot((x, axes.down(float(v))), 3.0, style, title))
    return _svg(drawn, WIDTH, HEIGHT, f"{quantity} measured and expected")


def draw_errors(left_out: LeftOut, xy: Array, region: BaseGeometry, labels: Sequence[str]) -> str:
    """Draw a map of errors, in standard deviations of what was expected.

    Args:
        left_out: Measurements and what the others let expect.
        xy: Places of all measurements of the survey, metres.
        region: The area.
        labels: Labels of all measurements.
    """
    rows = _some(len(left_out.rows))
    at = xy[left_out.rows]
    left, bottom, right, top = shapely.total_bounds([region, shapely.multipoints(at)])
    scale = MAP / max(right - left, 1.15 * (top - bottom), 1e-9)
    width, height = scale * (right - left) + 28, scale * (top - bottom) + 48
    place = np.stack([14 + scale * (at[:, 0] - left), 14 + scale * (top - at[:, 1])], -1)
    drawn = [f'<path class="area" d="{_outline(region, left, top, scale)}"/>']
    suspects = set(left_out.suspects.tolist())
    order = rows[np.argsort(np.abs(left_out.score[rows]), kind="stable")]
    size = float(np.clip(90 / max(len(order), 1) ** 0.5, 2.6, 6.0))
    for k in [*(k for k in order if k not in suspects), *reversed(left_out.suspects.tolist())]:
        (x, y), score = place[k], float(left_out.score[k])
        title = f"{labels[left_out.rows[k]]}: {left_out.value[k]:.4g} measured, {left_out.mean[k]:.4g} expected"
        rim = 'stroke="#1d2733" stroke-width="1.8"' if k in suspects else 'stroke="#6b7682" stroke-width=".6"'
        radius = size + 1.5 if k in suspects else size
        drawn.append(_dot((float(x), float(y)), radius, f'fill="{_colour(score)}" {rim}', f"{title} ({score:+.1f} sd)"))
    drawn += _scale_bar(scale, height)
    return _svg(drawn, width, height, "Map of errors")


def _scale_bar(scale: float, height: float) -> list[str]:
    """Return a bar of a round length, of about a fifth of the map."""
    raw = MAP / 5 / scale
    power = 10.0 ** floor(log10(raw))
    length = max(step * power for step in (1, 2, 5) if step * power <= raw * 1.0001)
    end, y = 14 + scale * length, height - 7
    line = f'<line x1="14" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#1d2733" stroke-width="2.5"/>'
    return [line, f'<text x="{end + 6:.1f}" y="{y + 4:.1f}">{distance_text(length)}</text>']


def colour_key() -> str:
    """Draw what colours of errors mean."""
    steps = np.linspace(-MOST, MOST, 13)
    drawn = [
        f'<rect x="{10 + 20 * k}" y="4" width="20.5" height="12" fill="{_colour(float(score))}"/>'
        for k, score in enumerate(steps)
    ]
    for score, words in ((-MOST, f"−{MOST:g} sd"), (0.0, "as expected"), (MOST, f"+{MOST:g} sd")):
        at = 20 + 240 * (score + MOST) / (2 * MOST)
        drawn.append(f'<text x="{at:.0f}" y="31" text-anchor="middle">{words}</text>')
    return _svg(drawn, 290.0, 38.0, "Colours: below and above what was expected")


def _colour(score: float) -> str:
    """Return the colour of a score."""
    share = min(abs(score) / MOST, 1.0)
    end = HIGH if score > 0 else LOW
    red, green, blue = np.rint(MIDDLE + share * (end - MIDDLE)).astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _outline(region: BaseGeometry, left: float, top: float, scale: float) -> str:
    """Return the path of an area, without detail that nobody could see."""
    parts = []
    simple = shapely.simplify(region, 0.5 / scale)
    for ring in shapely.get_parts(shapely.boundary(shapely.get_parts(simple))):
        points = shapely.get_coordinates(ring)
        pixels = (f"{14 + scale * (x - left):.1f} {14 + scale * (top - y):.1f}" for x, y in points.tolist())
        parts.append("M" + "L".join(pixels) + "Z")
    return "".join(parts)


def _some(count: int) -> npt.NDArray[np.intp]:
    return np.arange(count)[:: max(1, ceil(count / DRAWN))]


def _dashed(axes: _Axes, x: tuple[float, float], y: tuple[float, float], title: str) -> str:
    (a, b), (c, d) = (axes.across(v) for v in x), (axes.down(v) for v in y)
    place = f'x1="{a:.1f}" x2="{b:.1f}" y1="{c:.1f}" y2="{d:.1f}"'
    return f'<line class="dashed" {place}><title>{html.escape(title)}</title></line>'


def _dot(at: tuple[float, float], radius: float, style: str, title: str) -> str:
    place = f'cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}"'
    return f"<circle {place} {style}><title>{html.escape(title)}</title></circle>"


def _key(names: Sequence[str]) -> list[str]:
    """Return the names of lines with their colours, in the lower right corner."""
    drawn = []
    for k, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        y = HEIGHT - BOTTOM - 12 - 17 * (len(names) - 1 - k)
        drawn.append(f'<circle cx="{WIDTH - 190}" cy="{y - 4}" r="4.5" fill="{colour}"/>')
        drawn.append(f'<text x="{WIDTH - 180}" y="{y}">{html.escape(name)}</text>')
    return drawn


def _ticks(low: float, high: float) -> list[float]:
    """Return round values of a range."""
    raw = (high - low) / TICKS
    power = 10.0 ** floor(log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    return [round(k * step, 12) for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _svg(drawn: Sequence[str], width: float, height: float, title: str) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    return f'<svg {size} role="img" aria-label="{html.escape(title, quote=True)}">{"".join(drawn)}</svg>'
