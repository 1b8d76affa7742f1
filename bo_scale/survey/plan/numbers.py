"""Numbers of a plan: those that a request may have."""

import math

from bo_scale.errors import SurveyError

BATCH = 6
"""Sites a day by default, if nobody travels."""
MOST = 1000
"""Sites of a plan, at most."""
SEEDS = 2**62
"""Seeds are below this number, so that those made from them are of 64 bits too."""


def require_plan_numbers(
    batch: int | None, days: int, repeats: int, spacing: float, clearance: float | None, seed: int
) -> None:
    """Refuse numbers that a plan cannot have; arguments are those of `Survey.plan`.

    Raises:
        SurveyError: naming the argument at fault.
    """
    for key, value in (("days", days), ("repeats", repeats)):
        if value < 1:
            raise SurveyError(f"{key}={value}: give at least 1 (--{key}).")
    if (batch is not None and batch < 1) or (batch or BATCH) * days > MOST:
        raise SurveyError(f"batch={batch}, days={days}: plan 1 to {MOST} sites in all (--batch, --days).")
    for name, distance in (("spacing", spacing), ("clearance", clearance)):
        if distance is not None and not (math.isfinite(distance) and distance >= 0.0):
            raise SurveyError(f"{name}={distance}: give a number of metres that is not negative (--{name}).")
    if not 0 <= seed < SEEDS:
        raise SurveyError(f"seed={seed}: give a number that is not negative, and below {SEEDS} (--seed).")
