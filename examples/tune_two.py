"""Tune a classifier for two objectives, error and size: eight trainings at a time, resumed when killed.

Data: scikit-learn's handwritten digits. Time: about 3 minutes on two cores.

`tune_service.py` explains what runs and how it goes on after a kill.

    python examples/tune_two.py --out demo/tune_two
"""

import importlib.util
from pathlib import Path
from typing import Any

from tune_service import ERRORS, arguments, opened, serve, table

from bo_scale.ax import streaming

INTEREST = {"error": 20.0, "size": 800.0}
"""What is worse than this in % or in kB is of no use."""
SIZES = [50, 100, 200, 400, 800]


def front(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials than which no other one is better in both, by size."""
    best: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["size"], row["error"])):
        if not best or row["error"] < best[-1]["error"]:
            best.append(row)
    return best


def plot(rows: list[dict[str, Any]], best: list[dict[str, Any]], path: Path) -> None:
    """Errors over sizes, by trial, and the front."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4.4), constrained_layout=True)
    sizes, errors = ([row[name] for row in rows] for name in ("size", "error"))
    shown = axis.scatter(sizes, errors, c=[row["trial_index"] for row in rows], s=24, cmap="viridis")
    axis.step([row["size"] for row in best], [row["error"] for row in best], where="post", color="red", label="front")
    axis.axhline(INTEREST["error"], color="black", linewidth=0.8, linestyle=":", label="of interest")
    axis.axvline(INTEREST["size"], color="black", linewidth=0.8, linestyle=":")
    axis.set(xlabel="Size (kB)", ylabel="Error in cross-validation (%)", xscale="log", yscale="log")
    axis.set_xticks(SIZES, [f"{tick:g}" for tick in SIZES])
    axis.set_yticks(ERRORS, [f"{tick:g}" for tick in ERRORS])
    axis.minorticks_off()
    axis.legend()
    figure.colorbar(shown, ax=axis, label="Trial")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Serve, then print the front of what was observed and write a plot."""
    given = arguments(__doc__, "demo/tune_two", trials=60)
    constraints = [f"{name} <= {bound}" for name, bound in INTEREST.items()]
    client = opened(given.out, "-error, -size", constraints, given.seed)
    rows = serve(client, given.out, given.trials, given.workers)
    best = front(rows)
    table(best)
    for name, stream in streaming(client).items():
        print(f"{name}: {stream}")
    if importlib.util.find_spec("matplotlib") is not None:
        plot(rows, best, given.out / "tune_two.png")
        print(f"Plot: {given.out / 'tune_two.png'}")


if __name__ == "__main__":
    main()
