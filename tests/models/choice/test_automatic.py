"""When a search chooses its model anew."""

import pytest

from bo_scale.models.choice.automatic import AutomaticModel


@pytest.mark.parametrize(
    ("n", "chosen", "due"),
    [(11, 6, False), (12, 6, True), (4999, 2600, False), (5000, 2501, False), (5001, 4900, True), (9000, 5001, False)],
)
def test_it_is_due_when_the_data_have_doubled_or_are_too_many_for_an_exact_gp(n: int, chosen: int, due: bool) -> None:
    assert AutomaticModel().due(n, chosen) == due
