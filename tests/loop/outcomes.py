"""A problem of several outcomes, and a loop that solves it cheaply."""

from typing import Any

from loops import cheap as slow

from bo_scale.loop import Optimizer

SPACE = {"x": (0.0, 1.0), "y": (0.0, 1.0)}


CONSTRAINED: dict[str, Any] = {
    "objectives": {"loss": "minimize"},
    "constraints": ["cost <= 0.5"],
    "acquisition": "qLogEI",
}


def cheap(*arguments: Any, **options: Any) -> Optimizer:
    """An Optimizer that fits hyperparameters once, or twice."""
    return slow(*arguments, **{"refit_growth": 3.0, "model_options": {"grid_size": 7}, **options})


def measured(points: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, float]]:
    """A loss that is least at (0.8, 0.3), a cost of x, and a gain that is largest at (0.2, 0.7)."""
    every = [
        {
            "loss": (p["x"] - 0.8) ** 2 + (p["y"] - 0.3) ** 2,
            "cost": p["x"],
            "gain": 5 - 30 * ((p["x"] - 0.2) ** 2 + (p["y"] - 0.7) ** 2),
        }
        for p in points
    ]
    return [{name: each[name] for name in names} for each in every]


def go(loop: Optimizer, asks: int, q: int = 2) -> list[Any]:
    """So many asks, each told at once."""
    found = []
    for _ in range(asks):
        found.append(loop.ask(q))
        loop.tell(found[-1], measured(found[-1], loop.outcomes.names or ()))
    return found
