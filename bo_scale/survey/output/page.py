"""A map as one HTML file that needs nothing else: no network, no library."""

import base64
import hashlib
import html
import io
import json
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import shapely
from jaxtyping import Float
from PIL import Image
from shapely.geometry.base import BaseGeometry

from bo_scale.survey.geography.graticule import meridians, parallels
from bo_scale.survey.geography.orientation import is_even, north_of
from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.geography.region import polygons
from bo_scale.survey.geography.world import is_world, rows
from bo_scale.survey.output.inverse_projection import degrees, inverse
from bo_scale.survey.output.layers import Layer, blocks, coarsening, grown, layers
from bo_scale.survey.output.png import Picture
from bo_scale.survey.output.route_style import colour, dash
from bo_scale.survey.whole_files import write_whole

PIXELS = 1_500_000
"""Pixels of an image, at most."""

READ = 200_000
"""Blocks whose values can be read, at most."""

FINE = 20_000
"""Steps along the region's longer side that coordinates are told apart by."""

PARTS = {4: 8, 16: 3, 60: 2}
"""Parts of the map's longer side between meridians, and parallels, at several zooms, and the steps they may be off.

These are less than two pixels.
"""

NEAR, BEYOND = 4, 40
"""Steps that coasts may be off, up to half the longer side beyond the map and farther away."""

SHORT = {
    "mean": "Mean",
    "sd": "Sd",
    "exceedance": "Exceedance",
    "lower": "95 % of the quantity",
    "new_lower": "95 % of new measurements",
}
"""Names of values for a point; an upper end is shown behind the lower one."""

Content = dict[str, Any]


def write_page(picture: Picture, path: str | os.PathLike[str]) -> None:
    """One file of at most a few megabytes, whatever the size of the survey. Atomic.

    Args:
        picture: The map.
        path: The file to make or replace.
    """
    template = (files("bo_scale.survey.output") / "page.html").read_text(encoding="utf-8")
    filled = {
        "policy": _policy(template),
        "title": html.escape(picture.title),
        "data": json.dumps(_content(picture), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = re.sub(r"\{\{(policy|title|data)\}\}", lambda found: filled[found[1]], template)
    write_whole(path, [page.encode("utf-8", errors="replace")])


def _policy(template: str) -> str:
    """Return the policy of the page: its own images, its own script and its own style only."""
    allowed = {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "img-src": "data:"}
    for tag in ("script", "style"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[-1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[f"{tag}-src"] = f"'sha256-{digest}'"
    return "; ".join(f"{what} {source}" for what, source in allowed.items())


def _content(picture: Picture) -> Content:
    raster = picture.prediction.raster
    fine, read = coarsening(raster, PIXELS), coarsening(raster, READ)
    left, bottom, right, top = picture.bounds
    step = max(right - left, top - bottom) / FINE
    decimals = int(np.ceil(-np.log10(step)))
    return {
        "bounds": picture.bounds,
        "rings": _rings(picture.region, step, decimals),
        "barriers": _rings(_near(picture), step, decimals),
        "raster": _grid(raster, fine),
        "readout": _grid(raster, read),
        "layers": [_layer(layer, raster, fine, read) for layer in layers(picture.prediction)],
        "sites": _sites(picture, decimals),
        "proposed": _labelled(picture, picture.proposed, picture.labels),
        "removed": _labelled(picture, picture.removed, picture.removed_labels),
        "routes": _routes(picture, step, decimals),
        "depots": np.round(picture.depots, decimals).tolist(),
        "coasts": _far_and_wide(picture.coasts.coasts, picture, step, decimals),
        "borders": _far_and_wide(picture.coasts.borders, picture, step, decimals),
        "graticule": _graticule(picture, step, decimals),
        "north": north_of(picture.crs, picture.bounds),
        "scale": _scale(picture),
        "anisotropy": picture.prediction.anisotropy,
        "inverse": _inverse(picture),
        "notes": _notes(picture, read),
    }


def _graticule(picture: Picture, step: float, decimals: int) -> Content:
    """Return meridians and parallels for several zooms; the finer, the less far beyond the map."""
    left, bottom, right, top = picture.bounds
    size = max(right - left, top - bottom)
    found: Content = {}
    for name, lines_of in (("meridians", meridians), ("parallels", parallels)):
        levels = {}
        for parts, off in PARTS.items():
            beyond = 8 * size / parts
            box = left - beyond, bottom - beyond, right + beyond, top + beyond
            level = lines_of(size / parts, picture.crs, box)
            levels[level.apart] = [
                {"text": line.text, "pieces": [_line(piece, off * step, decimals) for piece in line.pieces]}
                for line in level.lines
            ]
        found[name] = [{"apart": apart, "lines": lines} for apart, lines in levels.items()]
    return found


def _far_and_wide(
    lines: list[Float[np.ndarray, "_ 2"]], picture: Picture, step: float, decimals: int
) -> list[list[list[float]]]:
    """Return coasts: fine on the map and about it, coarse as far as a reader can look around."""
    if not lines:
        return []
    (left, bottom, right, top), (west, south, east, north) = picture.bounds, picture.reach
    half = max(right - left, top - bottom) / 2
    left, bottom, right, top = left - half, bottom - half, right + half, top + half
    around = (
        (west, south, east, bottom),
        (west, top, east, north),
        (west, bottom, left, top),
        (right, bottom, east, top),
    )
    drawn, found = np.array([shapely.linestrings(line) for line in lines]), []
    for off, box in [(NEAR, (left, bottom, right, top)), *((BEYOND, each) for each in around)]:
        parts = shapely.get_parts(shapely.clip_by_rect(drawn, *box))
        simple = shapely.simplify(parts[shapely.length(parts) > off * step], off * step)
        found += [np.round(shapely.get_coordinates(part), decimals).tolist() for part in simple]
    return found


def _scale(picture: Picture) -> str | None:
    """Return where the scale bar holds, empty for everywhere; None for a map of the world, which has no one scale."""
    if is_world(picture.crs):
        return None
    return "" if is_even(picture.crs, picture.bounds) else "in the middle"


def _inverse(picture: Picture) -> Content:
    """Return what tells longitude and latitude: rows of a map of the world, else polynomials."""
    if is_world(picture.crs):
        middle, table = rows(picture.crs)
        return {"middle": middle, "rows": np.round(table, 1).tolist(), "decimals": 2}
    found = inverse(picture.bounds, picture.crs)
    return {
        "centre": found.centre,
        "half": found.half,
        "coefficients": found.coefficients.tolist(),
        "decimals": found.decimals,
    }


def _grid(raster: Raster, side: int) -> Content:
    rows, columns = (-(-extent // side) for extent in raster.inside.shape)
    return {"left": raster.left, "top": raster.top, "size": raster.size * side, "width": columns, "height": rows}


def _layer(layer: Layer, raster: Raster, fine: int, read: int) -> Content:
    values = grown(blocks(raster, layer.values, read)).astype("<f4")
    return {
        "key": layer.key,
        "title": layer.title,
        "short": SHORT.get(layer.key, ""),
        "label": layer.label,
        "low": layer.low,
        "high": layer.high,
        "beyond": layer.beyond,
        "palette": layer.palette.tobytes().hex(),
        "image": "data:image/png;base64," + _base64(_png(layer, grown(blocks(raster, layer.values, fine)))),
        "values": _base64(values.tobytes()),
    }


def _png(layer: Layer, values: Float[np.ndarray, "rows columns"]) -> bytes:
    """An image with a palette, whose first colour is none."""
    image = Image.fromarray(layer.shade(values))
    image.putpalette(b"\xff\xff\xff" + layer.palette.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=0, compress_level=6)
    return buffer.getvalue()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _rings(region: BaseGeometry, step: float, decimals: int) -> list[list[list[float]]]:
    """Outer and inner boundaries, without what nobody could see."""
    polygons = shapely.get_parts(shapely.simplify(region, step))
    lines = shapely.get_parts(shapely.boundary(polygons))
    return [np.round(shapely.get_coordinates(line)[:-1], decimals).tolist() for line in lines]


def _near(picture: Picture) -> BaseGeometry:
    """Barriers and divides, as far as a reader can look around."""
    left, bottom, right, top = picture.bounds
    reach = 2 * max(right - left, top - bottom)
    return polygons(picture.walls & shapely.box(left - reach, bottom - reach, right + reach, top + reach))


def _sites(picture: Picture, decimals: int) -> list[list[float | None]]:
    places = np.round(picture.sites[picture.drawn], decimals).tolist()
    values = picture.values[picture.drawn].tolist()
    return [[*place, value if np.isfinite(value) else None] for place, value in zip(places, values)]


def _labelled(picture: Picture, places: Float[np.ndarray, "n 2"], labels: Sequence[str]) -> list[Content]:
    known = degrees(places, picture.crs).tolist()
    return [
        {"label": label, "x": x, "y": y, "longitude": longitude, "latitude": latitude}
        for label, (x, y), (longitude, latitude) in zip(labels, places.tolist(), known, strict=True)
    ]


def _routes(picture: Picture, step: float, decimals: int) -> list[Content]:
    """Return routes: sites by their numbers in the batch, in order of visit, and lines without invisible detail."""
    place = {label: number for number, label in enumerate(picture.labels)}
    return [
        {
            "name": route.name,
            "cost": route.cost,
            "colour": colour(number),
            "dash": dash(number),
            "sites": [place[site] for site in route.sites if site in place],
            "line": _line(route.line, step, decimals),
        }
        for number, route in enumerate(picture.routes)
    ]


def _line(line: Float[np.ndarray, "_ 2"], step: float, decimals: int) -> list[list[float]]:
    if len(line) > 2:  # it may cross itself, or come back as it went
        line = shapely.get_coordinates(shapely.simplify(shapely.linestrings(line), step, preserve_topology=False))
    return np.round(line, decimals).tolist()


def _notes(picture: Picture, read: int) -> list[str]:
    size = picture.prediction.raster.size
    cells = f"Cells are {size:,.4g} m wide."
    if read > 1:
        cells += f" Values shown for a point are means of {read} × {read} cells."
    return [*picture.notes, cells]
