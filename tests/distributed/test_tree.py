"""Sums in a tree that is fixed by numbers."""

import itertools
import random

import pytest

from bo_scale.distributed.tree import Tree


@pytest.mark.parametrize("count", range(1, 6))
def test_every_order_gives_the_same_expression(count: int) -> None:
    class Text(str):
        def __add__(self, other: str) -> "Text":
            return Text(f"({self}{other})")

    found = set()
    for order in itertools.permutations(range(count)):
        tree = Tree(count)
        for number in order:
            tree.add(number, Text(number))
        found.add(tree.total)
    (only,) = found
    assert only.replace("(", "").replace(")", "") == "".join(map(str, range(count)))


def test_few_nodes_wait_where_parts_come_in_order() -> None:
    tree, most = Tree(1000), 0
    for number in range(1000):
        tree.add(number, number)
        most = max(most, len(tree.waiting))
    assert most <= 10
    assert tree.total == sum(range(1000))
    numbers = list(range(1000))
    random.Random(0).shuffle(numbers)
    other = Tree(1000)
    for number in numbers:
        other.add(number, number)
    assert other.total == tree.total
