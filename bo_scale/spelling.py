"""Suggest what a misspelt name may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(names: Iterable[object], known: Iterable[object]) -> str:
    """Return " Did you mean 'x'?" for the known names nearest to misspelt ones; empty if none is near.

    Args:
        names: Names that are not known.
        known: All that are.
    """
    there = [str(each) for each in known]
    near = [match for name in names for match in get_close_matches(str(name), there, 1)]
    return f" Did you mean {' and '.join(map(repr, dict.fromkeys(near)))}?" if near else ""
