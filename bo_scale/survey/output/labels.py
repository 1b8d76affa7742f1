"""Places of the labels of a map."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

Box = Float[np.ndarray, " 4"]

WIDE, TALL = 6.2, 8.0
"""Width of a letter, points."""

STEP = 3.0
"""Points along a line that a label should not cover."""


def label_places(
    points: Float[np.ndarray, "m 2"],
    labels: Sequence[str],
    others: Float[np.ndarray, "k 2"],
    lines: Sequence[Float[np.ndarray, "_ 2"]] = (),
    reserved: Sequence[Box] = (),
) -> list[Float[np.ndarray, " 2"]]:
    """Lower left corners: the first place about each marker where a label covers nothing, or no more than a line.

    Where there is none of these either, it is the first of all.

    Args:
        points: The markers, in points as all lengths here.
        labels: Their labels.
        others: Markers without a label.
        lines: Better not covered.
        reserved: Left, bottom, right and top of what is written already.
    """
    taken = [np.array([x - 4, y - 4, x + 4, y + 4]) for x, y in np.concatenate([points, others])]
    taken += reserved
    along = np.concatenate([np.zeros((0, 2)), *(_sampled(line) for line in lines if len(line))])
    found = []
    for point, label in zip(points, labels):
        boxes = _boxes(point, WIDE * len(label))
        free = [box for box in boxes if not any(boxes_overlap(box, other) for other in taken)]
        best = next((box for box in free if not _covers(box, along)), (free or boxes)[0])
        taken.append(best)
        found.append(best[:2])
    return found


def _boxes(point: Float[np.ndarray, " 2"], long: float) -> list[Box]:
    x, y = point
    beside, above = (x + 6, x - 6 - long), (y - 3, y + 5, y - 5 - TALL)
    places = [(left, low) for low in above for left in beside]
    places += [(x - long / 2, y + 7), (x - long / 2, y - 7 - TALL)]
    return [np.array([left, low, left + long, low + TALL]) for left, low in places]


def boxes_overlap(a: Box, b: Box) -> bool:
    """Whether two boxes (left, bottom, right, top) have a part in common."""
    return bool((a[:2] < b[2:]).all() and (b[:2] < a[2:]).all())


def _covers(box: Box, along: Float[np.ndarray, "k 2"]) -> bool:
    return bool(((along > box[:2] - 1.0) & (along < box[2:] + 1.0)).all(-1).any())


def _sampled(line: Float[np.ndarray, "_ 2"]) -> Float[np.ndarray, "_ 2"]:
    """Points of a line, close enough together that none passes a label unseen."""
    length = np.concatenate([[0.0], np.linalg.norm(np.diff(line, axis=0), axis=-1).cumsum()])
    at = np.arange(0.0, length[-1], STEP)
    return np.stack([np.interp(at, length, line[:, k]) for k in (0, 1)], -1)
