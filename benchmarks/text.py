"""Numbers and tables as Markdown."""

import statistics
from collections.abc import Sequence

Row = tuple[str, str, str]
"""A row of README.md: what, bo_scale, rival."""


def seconds(value: float) -> str:
    """Two significant digits in the unit that suits: 29 µs, 2.7 ms, 6.8 s."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, scale = next((pair for pair in units if value >= 0.995 * pair[1]), units[-1])
    return f"{digits(value / scale)} {unit}"


def digits(value: float, significant: int = 2) -> str:
    """A number at some significant digits, thousands with commas, never in powers of ten."""
    shown = float(f"{value:.{significant}g}")
    decimals = max(0, significant - len(str(int(abs(shown))))) if abs(shown) >= 1 else None
    return f"{shown:.{significant}g}" if decimals is None else f"{shown:,.{decimals}f}"


def ratio(rival: float, ours: float) -> str:
    """How many times as much the rival takes: 2,500×."""
    return f"{digits(rival / ours)}×"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    """A Markdown table; `align` is for all columns but the first, which is left-aligned."""
    lines = [header, ["---", *[align] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_and_error(values: Sequence[float], sign: str = "") -> str:
    """The mean with its standard error, 0.123 ± 0.004; `sign` as in a format."""
    if len(values) < 2:
        return "".join(f"{value:{sign}.3f}" for value in values) or "–"
    return f"{statistics.mean(values):{sign}.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"
