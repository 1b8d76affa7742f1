"""What predictions of many cells cost, before they are made: measured at a few squares of cells."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.tiles.tile import SQUARE, Predicts, content_of
from bo_scale.threads import one_thread, scipy_on_one_thread

TRIED = 4
"""Squares that are predicted to tell the costs."""
WRITING = 3e-7
"""Seconds to write and read back a number of a band, once; measured."""
OVERVIEWS = 4 / 3
"""Numbers in a file with overviews, for one without."""


@dataclass(frozen=True)
class TileCosts:
    """TileCosts of predictions, about.

    Attributes:
        cells: Number of cells.
        size: Their width, metres.
        tiles: Number of tiles.
        seconds: Seconds of one core to predict all.
        writing: Seconds to make one file of the tiles.
        bytes: Size of the file.
        needed: Space on the disk meanwhile, with that of the tiles.
    """

    cells: int
    size: float
    tiles: int
    seconds: float
    writing: float
    bytes: float
    needed: float

    @classmethod
    def of(cls, task: Predicts, fitted: FittedSurvey, tiles: int) -> "TileCosts":
        """Predict a few squares of cells, and tell from these; there are so many tiles."""
        grid, region = task.grid, fitted.workspace.region
        cells = max(1, round(region.area / grid.size**2))
        seconds = size = count = 0.0
        for x, y in region.points(TRIED + 1, seed=0):
            row = int(np.clip((grid.top - y) / grid.size, 0, grid.rows - 1)) // SQUARE * SQUARE
            column = int(np.clip((x - grid.left) / grid.size, 0, grid.columns - 1)) // SQUARE * SQUARE
            part = (
                slice(row, min(row + SQUARE, grid.rows)),
                slice(column, min(column + SQUARE, grid.columns)),
            )
            start = time.process_time()
            with one_thread(), scipy_on_one_thread():
                image = task.image(fitted, part)
            taken = time.process_time() - start
            if image is None or not count:  # the first one imports and allocates
                count = count or 1e-9
                continue
            seconds, count = seconds + taken, count + float(np.isfinite(image[0]).sum())
            size += len(content_of(image, grid, part))
        bands = 2 + (task.threshold is not None) + 4 * task.intervals
        whole = cells * size / count if count >= 1 else 4.0 * bands * cells
        each = seconds / count if count >= 1 else 0.0
        return cls(
            cells, grid.size, tiles, each * cells, WRITING * bands * cells, OVERVIEWS * whole,
            (1 + OVERVIEWS + OVERVIEWS - 1) * whole,
        )  # fmt: skip

    def told(self, processes: int | None) -> str:
        """Return a sentence on the costs with so many processes; None if their number is not known."""
        where = "of one core" if processes is None else f"by {processes} process{'es' * (processes > 1)}"
        return (
            f"About {self.cells:,} cells of {self.size:.4g} m in {self.tiles:,} tiles, {_size(self.bytes)}: "
            f"about {_duration(self.seconds / (processes or 1) + self.writing)} {where}."
        )

    def shortage(self, folder: Path, kept: int) -> str:
        """Return a sentence on space that a disk lacks; empty if it has enough.

        Args:
            folder: A folder on the disk.
            kept: Bytes of tiles that are there already.
        """
        free, needed = float(shutil.disk_usage(folder).free), self.needed - kept
        return "" if free >= needed else f"about {_size(needed)} are needed on the disk, and {_size(free)} are free"


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 5e8 else f"{count / 1e6:,.0f} MB" if count >= 1e6 else "less than 1 MB"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
