"""Checks of shapes: the first calls in a file and some later ones; of dataclasses too."""

from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from beartype import beartype
from checked_calls import EVERY, FIRST
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.linalg.dense import cholesky


def doubled(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return 2 * x


@dataclass
class Pair:
    x: Float[Tensor, " n"]
    y: Float[Tensor, " n"]


def test_wrong_shapes_are_found_at_the_first_calls_and_at_some_later_ones() -> None:
    function = jaxtyping.jaxtyped(typechecker=beartype)(doubled)
    assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
    found = []
    for count in range(1, 3 * EVERY):
        try:
            function(torch.ones(2, 2))
        except jaxtyping.TypeCheckError:
            found.append(count)
    assert found == [*range(1, FIRST), EVERY, 2 * EVERY]


def test_dataclasses_are_checked() -> None:
    kind = jaxtyping.jaxtyped(typechecker=beartype)(Pair)
    assert kind(torch.ones(2), torch.ones(2)).x.shape == (2,)
    with pytest.raises(jaxtyping.TypeCheckError):
        kind(torch.ones(2), torch.ones(3))


def test_functions_within_functions_are_made_without_checks() -> None:
    def inner(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    assert jaxtyping.jaxtyped(typechecker=beartype)(inner) is inner


def test_this_package_is_checked() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        cholesky("no matrix", "A")  # type: ignore[arg-type]  # as it should
