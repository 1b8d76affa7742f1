"""The content of a map, and the map as a PNG."""

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from math import ceil
from typing import Any

import numpy as np
import shapely
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.patheffects import withStroke
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from bo_scale.survey.geography.coasts import Coasts, coasts_of
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.exports import write_csv, write_geotiff
from bo_scale.survey.output.frame import Rectangle, draw_frame
from bo_scale.survey.output.labels import label_places
from bo_scale.survey.output.layers import SHADES, Layer, blocks, coarsening, grown, layers
from bo_scale.survey.output.route_style import NONE, Style, colour, draw_depots, draw_routes, legend, visited_by
from bo_scale.survey.routes.route import Route
from bo_scale.survey.whole_files import write_whole

__all__ = ["Picture", "write_csv", "write_geotiff", "write_png"]

PIXELS = 1_000_000
"""Pixels of a panel, at most."""

SITES = 5_000
"""Sites that are drawn, at most."""

LABELLED = 30
"""Stations to give up whose labels are drawn, at most."""

PANELS = 4
"""Panels beside one another, at most."""

INK, MUTED, GROUND, ACCENT, COAST = "#1d2733", "#5b6775", "#eef1f4", "#e3202b", "#59636e"


@dataclass(frozen=True)
class Picture:
    """The content of a map; coordinates are metric, in `crs`.

    Attributes:
        prediction: Prediction over the region.
        region: The area where sampling is allowed.
        sites: Measured sites.
        values: Measured values, in the user's units.
        proposed: The batch, in its order.
        labels: Labels of the batch, such as P12.
        crs: Coordinate system of all coordinates.
        title: Title of the map.
        remarks: Notes that come before those of the prediction, a sentence each.
        routes: Routes past proposed sites, by their labels.
        depots: Places where routes start and end.
        barriers: Barriers that routes lead around.
        divides: Polygons that correlation goes around.
        outline: Lines to draw instead of coasts and borders, `k × 2` each, degrees; None for those that ship.
        removed: Stations to give up, in their order.
        removed_labels: Labels of these.
    """

    prediction: Prediction
    region: BaseGeometry
    sites: Float[np.ndarray, "n 2"]
    values: Float[np.ndarray, " n"]
    proposed: Float[np.ndarray, "m 2"]
    labels: Sequence[str]
    crs: CRS
    title: str
    remarks: Sequence[str] = field(default_factory=list)
    routes: Sequence[Route] = ()
    depots: Float[np.ndarray, "d 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    barriers: BaseGeometry = field(default_factory=shapely.MultiPolygon)
    divides: BaseGeometry = field(default_factory=shapely.MultiPolygon)
    outline: list[Float[np.ndarray, "_ 2"]] | None = None
    removed: Float[np.ndarray, "r 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    removed_labels: Sequence[str] = ()

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of the region, routes and depots."""
        ways = np.concatenate([self.depots, *(route.line for route in self.routes)])
        left, bottom, right, top = shapely.total_bounds([self.region, shapely.multipoints(ways)])
        return float(left), float(bottom), float(right), float(top)

    @property
    def reach(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of what a reader can look around in."""
        left, bottom, right, top = self.bounds
        beyond = 2 * max(right - left, top - bottom)
        return left - beyond, bottom - beyond, right + beyond, top + beyond

    @cached_property
    def coasts(self) -> Coasts:
        """Coasts and borders, or the user's own outline, as far as a reader can look around."""
        return coasts_of(self.bounds, self.crs, self.reach, self.outline)

    @property
    def visited_by(self) -> list[int]:
        """Number of the route that each proposed site is on, from 0; -1 for none."""
        return visited_by(self.routes, self.labels)

    @property
    def drawn(self) -> slice:
        """Sites that are drawn: all, or evenly some of more than `SITES`."""
        return slice(None, None, max(1, -(-len(self.sites) // SITES)))

    @property
    def walls(self) -> BaseGeometry:
        """Barriers and divides."""
        return self.barriers | self.divides

    @property
    def notes(self) -> list[str]:
        """All notes, once each."""
        drawn = len(self.sites[self.drawn])
        thinned = (
            [f"Only {drawn:,} of {len(self.sites):,} measured sites are drawn."] if drawn < len(self.sites) else []
        )
        whom = [("routes", self.barriers), ("correlation", self.divides)]
        around = " and ".join(what for what, shape in whom if not shape.is_empty)
        ends = "" if " and " in around or around == "routes" else "es"
        hatched = [f"Hatched areas are barriers that {around} go{ends} around."] if around else []
        coasts = [self.coasts.note] if self.coasts.note else []
        crossed = ["Stations with a cross are those to give up."] if len(self.removed) else []
        return list(dict.fromkeys([*self.remarks, *self.prediction.notes, *thinned, *hatched, *crossed, *coasts]))


def write_png(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Draw a panel for each layer; the mean's shows the measured values. Atomic.

    Args:
        picture: The map.
        path: The file to make or replace.
    """
    page = _Page(picture)
    for number, layer in enumerate(page.shown):
        axes = page.panel(number)
        _draw_layer(axes, picture, layer)
        _draw_coasts(axes, picture)
        _draw_barriers(axes, picture)
        marks = np.concatenate([picture.sites[picture.drawn], picture.proposed, picture.depots])
        taken = draw_frame(axes, picture.crs, picture.bounds, marks, alone=number == 0)
        _draw_sites(axes, picture, layer)
        _draw_removed(axes, picture)
        draw_routes(axes, picture.routes)
        draw_depots(axes, picture.depots)
        _draw_proposed(axes, picture, taken)
        page.bar(number, layer)
    drawn = BytesIO()
    page.figure.savefig(drawn, format="png", dpi=160)
    write_whole(path, [drawn.getvalue()])


class _Page:
    """Panels beside one another where the region is tall, else one below another; lengths in inches.

    Args:
        picture: The map.
    """

    def __init__(self, picture: Picture) -> None:
        self.shown = layers(picture.prediction)
        left, bottom, right, top = picture.bounds
        slope = (top - bottom) / (right - left)
        count = len(self.shown)
        self._columns = min(count, PANELS) if slope > 0.55 else 1
        self._width = float(np.clip(7.0 / slope, 2.8, 4.6 if self._columns > 1 else 7.5))
        self._height = float(np.clip(self._width * slope, 1.6, 7.0))
        across = self._columns * (self._width + 0.3) + 0.3
        notes = [line for note in picture.notes for line in textwrap.wrap(note, int(across * 15))]
        heading = textwrap.wrap(picture.title, int(across * 8.5)) or [""]
        entries = legend(picture.routes, len(picture.depots) > 0, bool(picture.routes) and NONE in picture.visited_by)
        beside = max(1, int((across - 0.6) / (0.95 + max((len(text) for text, _ in entries), default=0) / 13)))
        key = 0.22 * ceil(len(entries) / beside) + 0.1 * bool(entries)
        self._top = 0.25 + 0.26 * len(heading)
        below = self._top + ceil(count / self._columns) * (self._height + 1.15)
        self._size = across, below + key + 0.17 * len(notes) + 0.15
        self.figure = Figure(figsize=self._size, facecolor="white")
        FigureCanvasAgg(self.figure)
        self._write(0.3, 0.2, "\n".join(heading), fontsize=14, fontweight="bold", color=INK)
        self._write(0.3, self._size[1] - 0.17 * len(notes) - 0.12, "\n".join(notes), fontsize=8, color=MUTED)
        for number, (text, style) in enumerate(entries):
            row, column = divmod(number, beside)
            self._enter(0.3 + column * (across - 0.6) / beside, below + 0.22 * row, text, style)

    def panel(self, number: int) -> Axes:
        """Return the empty panel of a layer."""
        left, top = self._corner(number)
        self._write(left, top + 0.06, self.shown[number].title, fontsize=11, color=INK)
        axes = self._axes(left, top + 0.3, self._height)
        axes.set_facecolor(GROUND)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color("#c9d1da")
        return axes

    def bar(self, number: int, layer: Layer) -> None:
        """Draw the colours of a layer, with numbers."""
        left, top = self._corner(number)
        axes = self._axes(left, top + self._height + 0.4, 0.12)
        ramp = np.linspace(layer.low, layer.high, SHADES)[None]
        axes.imshow(ramp, cmap=_colours(layer), aspect="auto", extent=(layer.low, layer.high, 0, 1))
        axes.set_yticks([])
        axes.tick_params(labelsize=8, colors=INK, length=3)
        axes.locator_params(axis="x", nbins=6)
        for spine in axes.spines.values():
            spine.set_visible(False)
        label = f"{layer.label} ({layer.beyond})" if layer.beyond else layer.label
        label = "\n".join(textwrap.wrap(label, int(self._width * 13), max_lines=2, placeholder=" …"))
        axes.set_xlabel(label, fontsize=8, color=INK, labelpad=2, parse_math=False)

    def _enter(self, left: float, top: float, text: str, style: Style) -> None:
        """Write a line and its meaning into the legend."""
        across, down = self._size
        x, y = np.array([left, left + 0.35, left + 0.7]) / across, np.full(3, 1 - (top + 0.07) / down)
        self.figure.add_artist(Line2D(x, y, transform=self.figure.transFigure, markevery=[1], **style))
        self._write(left + 0.8, top, text, fontsize=8, color=INK)

    def _corner(self, number: int) -> tuple[float, float]:
        row, column = divmod(number, self._columns)
        return 0.3 + column * (self._width + 0.3), self._top + row * (self._height + 1.15)

    def _axes(self, left: float, top: float, height: float) -> Axes:
        across, down = self._size
        return self.figure.add_axes((left / across, 1 - (top + height) / down, self._width / across, height / down))

    def _write(self, left: float, top: float, text: str, **style: Any) -> None:
        across, down = self._size
        self.figure.text(left / across, 1 - top / down, text, va="top", parse_math=False, linespacing=1.3, **style)


def _colours(layer: Layer) -> ListedColormap:
    return ListedColormap(layer.palette / 255)


def _draw_layer(axes: Axes, picture: Picture, layer: Layer) -> None:
    raster = picture.prediction.raster
    side = coarsening(raster, PIXELS)
    image = grown(blocks(raster, layer.values, side))
    rows, columns = image.shape
    right, bottom = raster.left + columns * side * raster.size, raster.top - rows * side * raster.size
    outline = PathPatch(_outline(picture.region), facecolor="none", edgecolor=INK, linewidth=0.9)
    axes.add_patch(outline)
    axes.imshow(
        image,
        cmap=_colours(layer),
        vmin=layer.low,
        vmax=layer.high,
        extent=(raster.left, right, bottom, raster.top),
        interpolation="nearest",
    ).set_clip_path(outline)
    left, bottom, right, top = picture.bounds
    tall = axes.bbox.height / axes.bbox.width
    half = 0.54 * max(right - left, (top - bottom) / tall)
    axes.set_xlim((left + right) / 2 - half, (left + right) / 2 + half)
    axes.set_ylim((bottom + top) / 2 - half * tall, (bottom + top) / 2 + half * tall)
    axes.set_aspect("auto")
    axes.set_autoscale_on(False)


def _draw_coasts(axes: Axes, picture: Picture) -> None:
    """Draw coasts and borders over the layer and under the rest."""
    for lines, width, dashes in ((picture.coasts.borders, 0.6, (0, (5, 3))), (picture.coasts.coasts, 0.7, "-")):
        style: dict[str, Any] = {"autolim": False}
        rims = LineCollection(lines, colors="white", linewidths=width + 0.9, alpha=0.5, zorder=0.7)
        axes.add_collection(rims, **style)
        axes.add_collection(
            LineCollection(lines, colors=COAST, linewidths=width, linestyles=dashes, zorder=0.7), **style
        )


def _draw_barriers(axes: Axes, picture: Picture) -> None:
    """Draw barriers and divides over the layer and under all sites and routes."""
    if not picture.walls.is_empty:
        style = {"facecolor": "none", "edgecolor": MUTED, "hatch": "////", "linewidth": 0.9}
        axes.add_patch(PathPatch(_outline(picture.walls), zorder=0.9, **style))


def _outline(region: BaseGeometry) -> Outline:
    rings = shapely.get_parts(shapely.boundary(shapely.get_parts(region)))
    return Outline.make_compound_path(*(Outline(shapely.get_coordinates(ring), closed=True) for ring in rings))


def _draw_sites(axes: Axes, picture: Picture, layer: Layer) -> None:
    x, y = picture.sites[picture.drawn].T
    size = float(np.clip(4000 / max(len(x), 1), 2, 26))
    if layer.key == "mean":
        style: dict[str, Any] = {
            "c": picture.values[picture.drawn],
            "cmap": _colours(layer),
            "vmin": layer.low,
            "vmax": layer.high,
        }
        axes.scatter(x, y, s=size, edgecolors="white", linewidths=0.05 * size**0.8, **style)
    else:
        axes.scatter(x, y, s=size / 4, c=INK, edgecolors="white", linewidths=0.2)


def _draw_removed(axes: Axes, picture: Picture) -> None:
    """Cross stations out; some labels would hide the map where there are many."""
    if not len(picture.removed):
        return
    x, y = picture.removed.T
    for colour_, width in (("white", 3.4), (ACCENT, 1.8)):
        axes.scatter(x, y, s=52, marker="x", c=colour_, linewidths=width, zorder=3.5)
    if len(picture.removed) > LABELLED:
        return
    for label, place in zip(picture.removed_labels, picture.removed, strict=True):
        text = axes.annotate(label, place, (6, 3), textcoords="offset points", fontsize=7.5)
        text.set(parse_math=False, color=ACCENT, zorder=5, path_effects=[withStroke(linewidth=2.2, foreground="white")])


def _draw_proposed(axes: Axes, picture: Picture, taken: list[Rectangle]) -> None:
    x, y = picture.proposed.T
    on = picture.visited_by
    alone = ("white", INK) if picture.routes else (ACCENT, "white")
    faces, rims = zip(*(alone if number == NONE else (colour(number), "white") for number in on)) if on else ([], [])
    axes.scatter(x, y, s=46, c=faces, edgecolors=rims, linewidths=1.4, zorder=4)
    points, depots, *lines = (
        _in_points(axes, xy) for xy in (picture.proposed, picture.depots, *(route.line for route in picture.routes))
    )
    places = label_places(points, picture.labels, depots, lines, taken)
    for label, place, at, start in zip(picture.labels, picture.proposed, points, places):
        text = axes.annotate(label, place, start - at, textcoords="offset points", fontsize=8.5, fontweight="bold")
        text.set(parse_math=False, color=INK, zorder=5, path_effects=[withStroke(linewidth=2.5, foreground="white")])


def _in_points(axes: Axes, xy: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    return axes.transData.transform(xy) * 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
