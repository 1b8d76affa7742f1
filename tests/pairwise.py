"""Cases in which all pairs of values meet, instead of all combinations."""

from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import Any

import pytest

Pair = tuple[int, int, int, int]


def pairs(row: tuple[int, ...]) -> set[Pair]:
    """Two axes, and which value each has in a row."""
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def covering(rows: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Few of the rows, in which every pair occurs that occurs in any: greedily, and the same ones every time."""
    rest = sorted(rows)
    missing = set().union(*map(pairs, rest))
    chosen = []
    while missing:
        chosen.append(max(rest, key=lambda row: len(missing & pairs(row))))
        missing -= pairs(chosen[-1])
    return sorted(chosen)


def pairwise(*axes: list[Any], allowed: Callable[..., bool] = lambda *values: True) -> list[Any]:
    """For `parametrize`: few combinations of one value per axis, in which any two values of two axes meet.

    For axes that are independent in the code, where an error shows in one value or in two that meet. What is not
    `allowed`, which is asked with the values of each axis, does not occur.
    """
    values = [[v if hasattr(v, "values") else pytest.param(v, id=str(v)) for v in axis] for axis in axes]
    rows = product(*(range(len(axis)) for axis in axes))
    cases = covering(row for row in rows if allowed(*(axis[i] for axis, i in zip(axes, row))))
    return [
        pytest.param(*(v for part in case for v in part.values), id="-".join(str(part.id) for part in case))
        for case in ([axis[i] for axis, i in zip(values, row)] for row in cases)
    ]
