"""Suggest what a misspelt name may have meant."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def suggestion(names: Iterable[object], known: Iterable[object]) -> str:
    """Return " Did you mean 'x'?" for the known names nearest to misspelt ones; empty if none is near.

    Args:
        names: Names that are not known.
        known: All that are.
    """
    there = [str(each) for each in known]
    folded = {each.casefold(): each for each in reversed(there)}
    near = [match for name in names for match in _near(str(name).casefold(), folded)]
    return f" Did you mean {' and '.join(map(repr, dict.fromkeys(near)))}?" if near else ""


def _near(name: str, folded: Mapping[str, str]) -> list[str]:
    """Return the known name that is nearest, or else ends with the misspelt one."""
    near = get_close_matches(name, folded, 1) or [each for each in folded if len(name) > 1 and each.endswith(name)][:1]
    return [folded[each] for each in near]
