from itertools import combinations, product

import pytest
from pairwise import covering, pairwise


def few(a: int, b: str) -> bool:
    return a < 3 or b == "x"


@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2), (18, 2, 2, 2), (21, 3, 2, 2), (1, 4), (3, 4, 5)], ids=str)
def test_every_pair_occurs_in_hardly_more_cases_than_the_two_longest_axes_need(sizes: tuple[int, ...]) -> None:
    cases = [case.values for case in pairwise(*map(list, map(range, sizes)))]
    for i, j in combinations(range(len(sizes)), 2):
        assert {(case[i], case[j]) for case in cases} == set(product(range(sizes[i]), range(sizes[j])))
    longest = sorted(sizes)[-2:]
    assert len(set(cases)) == len(cases) <= 1.25 * longest[0] * longest[1] + 2


def test_what_is_not_allowed_does_not_occur_and_all_else_does() -> None:
    cases = pairwise([1, 2, 3], ["x", "y"], [True, False], allowed=lambda a, b, c: few(a, b))
    assert all(few(*case.values[:2]) for case in cases)
    assert {case.values[:2] for case in cases} == {(a, b) for a in (1, 2, 3) for b in "xy" if few(a, b)}
    assert {case.values[1:] for case in cases} == set(product("xy", (True, False)))


def test_cases_carry_all_values_and_names_and_are_the_same_every_time() -> None:
    axes = [pytest.param(1, "one", id="first"), pytest.param(2, "two", id="second")], [None, 0.5]
    cases = pairwise(*axes)
    assert cases[0].values == (1, "one", None)
    assert [case.id for case in cases] == ["first-None", "first-0.5", "second-None", "second-0.5"]
    rows = list(product(range(5), range(3), range(2)))
    assert covering(rows) == covering(reversed(rows))
