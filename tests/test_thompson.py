from bo_scale import thompson
from bo_scale.decisions.thompson import thompson_batch


def test_the_public_name_is_that_of_the_decisions() -> None:
    assert thompson.thompson_batch is thompson_batch
    assert thompson.__all__ == ["thompson_batch"]
