"""Rows that could not be used, on the terminal."""

LISTED = 20
"""Rejected rows that are named."""


def print_rejected(rows: list[tuple[str, str]]) -> None:
    """Print rejected rows, the first of many.

    Args:
        rows: The place of each, and the reason.
    """
    if not rows:
        return
    print(f"Rows set aside in the survey's table 'aside': {len(rows):,}.")
    for where, reason in rows[:LISTED]:
        print(f"  {where}: {reason}")
    if len(rows) > LISTED:
        print(f"  … and {len(rows) - LISTED} more.")
    print("Correct these rows in a table, then run `bo-scale survey update` with that table.")
