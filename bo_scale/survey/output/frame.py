"""The frame of a panel of a picture: graticule with its labels, scale bar and north arrow."""

from math import floor, log10
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from pyproj import CRS

from bo_scale.survey.geography.curves import Box
from bo_scale.survey.geography.graticule import GridLine, meridians, parallels
from bo_scale.survey.geography.orientation import is_even, north_of
from bo_scale.survey.geography.world import is_world
from bo_scale.survey.output.labels import boxes_overlap

Rectangle = Float[np.ndarray, " 4"]

INK, LINES = "#1d2733", "#6f7b88"
MARGIN = 4.0
"""Points between the edge of a panel and what is written at it."""
LETTER, TALL = 3.9, 7.0
"""Size of a letter of a graticule's labels, points."""
BAR, ARROW = 24.0, 26.0
"""Height of the scale bar and of the arrow with what is written at them, points."""


def round_length(most: float) -> float:
    """Return the largest of 1, 2 or 5 times a power of ten that is at most `most`."""
    power = 10.0 ** floor(log10(most))
    return max(step * power for step in (1, 2, 5) if step * power <= most * (1 + 1e-9))


def length_text(metres: float) -> str:
    """Return a length in kilometres or metres."""
    return f"{metres / 1000:g} km" if metres >= 1000 else f"{metres:g} m"


def draw_frame(axes: Axes, crs: CRS, bounds: Box, marks: Float[np.ndarray, "n 2"], alone: bool) -> list[Rectangle]:
    """Draw a graticule with its labels and, on one panel of a map that has one scale, a scale bar and a north arrow.

    Args:
        axes: A panel whose limits are set.
        crs: Metric coordinate system of the map.
        bounds: Left, bottom, right and top of the region, metres.
        marks: Places that a scale bar should not hide, metres.
        alone: Whether this panel has the scale bar and the arrow.

    Returns:
        Rectangles that labels should keep away from: left, bottom, right, top, points.
    """
    taken: list[Rectangle] = []
    if alone and not is_world(crs):
        taken += _draw_scale(axes, "" if is_even(crs, bounds) else " in the middle", _in_points(axes, marks))
        north = north_of(crs, bounds)
        if north is not None:
            taken += _draw_arrow(axes, north, taken[0])
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    box = left, bottom, right, top
    apart = max(right - left, top - bottom) / 4
    for upright, lines in ((True, meridians(apart, crs, box).lines), (False, parallels(apart, crs, box).lines)):
        for number, line in enumerate(lines):
            for piece in line.pieces:
                axes.plot(*piece.T, color=LINES, linewidth=0.5, alpha=0.6, zorder=0.8)
            if not (upright and is_world(crs) and number % 2 == 0):  # there, the meridians come close at the poles
                _label(axes, line, upright, taken)
    return taken


def _label(axes: Axes, line: GridLine, upright: bool, taken: list[Rectangle]) -> None:
    """Write the label of a line where it leaves the panel: a meridian's at the top, a parallel's on the right."""
    frame, size = _frame(axes), np.array([LETTER * len(line.text), TALL])
    for place in _label_places(line, upright, axes):
        corner = np.clip(place - size / 2, frame[:2] + MARGIN, frame[2:] - MARGIN - size)
        rectangle = np.concatenate([corner, corner + size])
        if not any(boxes_overlap(rectangle, other) for other in taken):
            taken.append(rectangle + np.array([-3.0, -1.0, 3.0, 1.0]))
            _write(axes, line.text, corner + size / 2, 6.5, va="center", ha="center", color="#47525e", zorder=3.9)
            return


def _label_places(line: GridLine, upright: bool, axes: Axes) -> Float[np.ndarray, "k 2"]:
    """Return where a label may be: at the preferred edge, at the other edges, or else at the line's far end."""
    frame, along = _frame(axes), 1 if upright else 0
    ends = np.concatenate([_in_points(axes, piece[[0, -1]]) for piece in line.pieces])
    at_edge = np.abs(np.concatenate([ends - frame[:2], ends - frame[2:]], -1)).min(-1) < 1.0
    if at_edge.any():
        ends = ends[at_edge]
        return ends[np.argsort(np.abs(ends[:, along] - frame[2 + along]), kind="stable")]
    every = np.concatenate([_in_points(axes, piece) for piece in line.pieces])
    return every[[every[:, along].argmax()]]


def _draw_scale(axes: Axes, where: str, marks: Float[np.ndarray, "n 2"]) -> list[Rectangle]:
    """Draw a scale bar in the lower corner with fewer marks."""
    (left, right), frame = axes.get_xlim(), _frame(axes)
    length = round_length((right - left) / 4)
    text = length_text(length) + where
    long = length / (right - left) * (frame[2] - frame[0])
    wide = max(long, 4.6 * len(text))
    corners = frame[0] + 2 * MARGIN, frame[2] - 2 * MARGIN - wide
    rectangles = [np.array([x, frame[1] + MARGIN, x + wide, frame[1] + MARGIN + BAR]) for x in corners]
    best = min(rectangles, key=lambda each: int(((marks > each[:2] - 6) & (marks < each[2:] + 6)).all(-1).sum()))
    x, y = (best[0] + best[2]) / 2, best[1] + MARGIN
    halo = [withStroke(linewidth=3.5, foreground="white")]
    ends = _from_points(axes, np.array([[x - long / 2, y], [x + long / 2, y]]))
    axes.plot(*ends.T, color=INK, linewidth=2.2, solid_capstyle="butt", path_effects=halo, zorder=6)
    _write(axes, text, np.array([x, y + 4]), 8.0, va="bottom", ha="center", color=INK, zorder=6)
    return [best]


def _draw_arrow(axes: Axes, north: float, scale: Rectangle) -> list[Rectangle]:
    """Draw a north arrow in the lower corner without the scale bar; `north` in degrees clockwise from up."""
    frame, half = _frame(axes), ARROW / 2
    on_left = scale[0] + scale[2] > frame[0] + frame[2]
    middle = np.array(
        [frame[0] + half + 2 * MARGIN if on_left else frame[2] - half - 2 * MARGIN, frame[1] + half + MARGIN]
    )
    up = np.array([np.sin(np.radians(north)), np.cos(np.radians(north))])
    tail, head = _from_points(axes, np.stack([middle - half * up, middle + 2 * up]))
    style: dict[str, Any] = {"arrowstyle": "-|>,head_width=0.25,head_length=0.5", "shrinkA": 0, "shrinkB": 0}
    halo = [withStroke(linewidth=3, foreground="white")]
    drawn = axes.annotate("", head, tail, arrowprops={"color": INK, "linewidth": 1.4, "path_effects": halo, **style})
    drawn.set_zorder(6)
    _write(axes, "N", middle + 9 * up, 8.0, va="center", ha="center", color=INK, zorder=6, fontweight="bold")
    return [np.concatenate([middle - half, middle + half])]


def _write(axes: Axes, text: str, place: Float[np.ndarray, " 2"], size: float, **style: Any) -> None:
    halo = [withStroke(linewidth=2.5, foreground="white")]
    at = _from_points(axes, place[None])[0]
    axes.text(at[0], at[1], text, fontsize=size, path_effects=halo, parse_math=False, clip_on=True, **style)


def _frame(axes: Axes) -> Rectangle:
    """Return left, bottom, right and top of a panel, points."""
    left, bottom, right, top = axes.bbox.extents
    return np.array([left, bottom, right, top]) * 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]


def _in_points(axes: Axes, xy: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    return axes.transData.transform(xy) * 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]


def _from_points(axes: Axes, points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    return axes.transData.inverted().transform(points * axes.get_figure(root=True).dpi / 72)  # type: ignore[union-attr]
