"""Styles of routes on a map, and the routes that sites belong to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.path import Path

from bo_scale.survey.routes.route import Route

COLOURS = ("#e8590c", "#1c5fc9", "#111111", "#d6409f", "#4cc3f0", "#f2b90c")
"""Apart from each other for the colour-blind too, and with a white rim from the layers."""

DASHES: tuple[tuple[int, ...], ...] = ((), (7, 3), (2, 2))
"""Lengths of lines and gaps, in widths of about a point; each serves all colours before the next does."""

NONE = -1

HOUSE = Path([(-1, -1), (1, -1), (1, 0.25), (0, 1.15), (-1, 0.25), (-1, -1)], closed=True)

Style = dict[str, Any]


def colour(number: int) -> str:
    """Return the colour of a route, from 0."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> tuple[int, ...]:
    """Return the dashes of a route, from 0; empty for a line without gaps."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def visited_by(routes: Sequence[Route], labels: Sequence[str]) -> list[int]:
    """Return the number of the route that each site is on, from 0; -1 for none."""
    owner = {site: number for number, route in enumerate(routes) for site in route.sites}
    return [owner.get(label, NONE) for label in labels]


def draw_routes(axes: Axes, routes: Sequence[Route]) -> None:
    """Draw lines over the measured sites and under those proposed, all rims below all lines."""
    for number, route in enumerate(routes):
        x, y = route.line.T
        axes.plot(x, y, color="white", linewidth=4.2, solid_joinstyle="round", zorder=2.5)
        axes.plot(x, y, **_line(number), zorder=3)


def draw_depots(axes: Axes, depots: Float[np.ndarray, "d 2"]) -> None:
    """Draw a house for each depot."""
    x, y = depots.T
    axes.scatter(x, y, marker=HOUSE, s=95, c="white", edgecolors="#1d2733", linewidths=1.5, zorder=3.5)


def legend(routes: Sequence[Route], depots: bool, left_out: bool) -> list[tuple[str, Style]]:
    """Return texts, and the style of the line before each."""
    found = [
        (f"{route.name}: {route.cost}", _line(number) | _marker(colour(number))) for number, route in enumerate(routes)
    ]
    house: Style = {"marker": HOUSE, "markersize": 8, "markerfacecolor": "white", "markeredgecolor": "#1d2733"}
    found += [("Depot", {"linestyle": "none", **house})] * depots
    hollow = _marker("white") | {"linestyle": "none", "markeredgecolor": "#1d2733"}
    return found + [("Proposed, not on a route", hollow)] * left_out


def _line(number: int) -> Style:
    pattern = dash(number)
    return {
        "color": colour(number),
        "linewidth": 2.0,
        "linestyle": (0, pattern) if pattern else "-",
        "solid_joinstyle": "round",
    }


def _marker(face: str) -> Style:
    return {"marker": "o", "markersize": 6.5, "markerfacecolor": face, "markeredgecolor": "white"}
