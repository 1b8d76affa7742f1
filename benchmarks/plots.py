"""Plots of one look. Only imported when plotting, since matplotlib is of the demonstration's extra."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image

Line = tuple[Sequence[float], Sequence[float]]


@contextmanager
def figure(path: Path, panels: int = 1, rows: int = 1, shared: bool = False) -> Iterator[list[Axes]]:
    """Panels side by side in rows, saved as a picture at the end.

    Every panel with lines has a legend; with `shared` that of the first is below all.
    """
    size = (1 + 4.6 * panels, 3.8 * rows)
    drawn, axes = plt.subplots(rows, panels, figsize=size, constrained_layout=True, squeeze=False)
    yield list(axes.flat)
    for axis in axes.flat:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines and not shared:
            axis.legend(frameon=False, fontsize=9)
    if shared:
        drawn.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
    path.parent.mkdir(exist_ok=True)
    drawn.savefig(path, dpi=110)
    plt.close(drawn)
    with Image.open(path) as picture:  # 256 colours take a third of the bytes
        picture.convert("RGB").quantize(256).save(path, optimize=True)


def against_n(axis: Axes, lines: Mapping[str, Line], ylabel: str, xlabel: str = "Observations") -> None:
    """Costs against the number of observations, both logarithmic."""
    for label, (n, cost) in lines.items():
        axis.plot(n, cost, "o-", markersize=4, label=label)
    axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)


def band(axis: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], label: str, style: str = "-") -> None:
    """The median of runs with the range between their quartiles; `runs` are as long as `x`, one for each seed."""
    low, middle, high = np.quantile(np.asarray(runs, dtype=float), [0.25, 0.5, 0.75], axis=0)
    (line,) = axis.plot(x, middle, style, linewidth=1.6, label=label)
    axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
