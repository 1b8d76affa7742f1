"""Places and times far from all others, which a mistyped digit or a missing position makes."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bo_scale.survey.geography.coordinates import WGS84, directions, from_metric
from bo_scale.survey.store.aside import KEEP
from bo_scale.survey.store.known import keys_of
from bo_scale.survey.tables.records import Refused
from bo_scale.survey.tables.table import Table

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SPREADS = 10.0
"""Distance of a place from the middle of the others, in root mean squares of theirs, from which it is far from them."""
FEW = 3
"""Maximum number of such places: more are another part of the survey."""
LEAST = 8
"""Number of places below which none is far."""
RADIUS = 6_371.0
"""Radius of the earth, kilometres."""


def far_set_aside(table: Table) -> Table:
    """Return a table without the rows whose places are far from all others, which are refused with the reason.

    Args:
        table: The first table of a survey that has no area: its area would reach out to these places.
    """
    frame = table.frame
    if len(frame) < LEAST:
        return table
    xy = frame[["x", "y"]].to_numpy(dtype=np.float64)
    degrees = from_metric(xy, table.crs, WGS84)
    places = RADIUS * directions(degrees[:, 0], degrees[:, 1])
    origin: Mask = (xy == 0.0).all(1)
    far = np.zeros(len(frame), dtype=np.bool_)
    if 2 * int(origin.sum()) < len(frame):
        far[~origin] = _far(places[~origin])
        far |= origin & (_spreads(places, far | origin) > SPREADS)
    if not far.any():
        return table
    middle = places[~far].mean(0)
    distance = np.linalg.norm(places - middle, axis=1)
    zero = "the place is 0/0, which looks like a missing position"
    refused = [
        Refused(
            int(row),
            text,
            f"{zero if is_origin else f'the place is {away:,.0f} km from the others'} ({KEEP})",
            key=key,
        )
        for row, text, is_origin, away, key in zip(
            frame.row[far], frame.text[far], origin[far], distance[far], keys_of(frame[far]), strict=True
        )
    ]
    refused = sorted([*table.refused, *refused], key=lambda one: one.row)
    return replace(table, frame=frame[~far].reset_index(drop=True), refused=refused)


def _far(places: Array) -> Mask:
    """Return which few places are far from all others. Several may be, each of which would hide the rest."""
    away = np.linalg.norm(places - np.median(places, axis=0), axis=1)
    order = np.argsort(away)
    for count in range(min(FEW, len(places) - LEAST + 1), 0, -1):
        far = np.zeros(len(places), dtype=np.bool_)
        far[order[-count:]] = True
        if bool((_spreads(places, far)[far] > SPREADS).all()):
            return far
    return np.zeros(len(places), dtype=np.bool_)


def _spreads(places: Array, without: Mask) -> Array:
    """Return the distance of all places from the middle of some, in root mean squares of the distances of these."""
    middle = places[~without].mean(0)
    distance = np.linalg.norm(places - middle, axis=1)
    spread = float(np.sqrt(np.mean(distance[~without] ** 2)))
    return np.asarray(distance / spread if spread > 0 else np.zeros(len(places)))


def stand_apart(times: Array) -> Mask:
    """Return which few times are far from all others: farther than these are from each other; NaN is none.

    Args:
        times: Times of measurements.
    """
    found = np.zeros(len(times), dtype=np.bool_)
    order = np.argsort(times, kind="stable")[: int(np.isfinite(times).sum())]
    for count in range(1, min(FEW, len(order) // LEAST) + 1):
        for some, others in ((order[:count], order[count:]), (order[-count:], order[:-count])):
            near, gap = np.ptp(times[others]), np.abs(times[some][:, None] - times[others]).min()
            found[some] |= near > 0 and gap > near
    return found
