"""Conditional parameters of a space: on which others they depend, and at which points they exist."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bo_scale.decisions.conditions import Condition, Places, on_places
from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop.problem.parameters import NEAR, Column, Fixed, Parameter, Real, When, bare, is_missing
from bo_scale.spelling import suggestion

Links = Mapping[int, tuple[int, Places]]
"""For the column of each conditional parameter, that of the one on which it depends, and the places of that one."""


def links_of(parameters: Sequence[Parameter], labels: Sequence[str | int]) -> Links:
    """Return which parameters depend on which, a parameter after those on which it depends.

    Args:
        parameters: The parameters of a space.
        labels: Their names, or their columns.

    Raises:
        SpaceError: naming a parameter whose condition is on no other parameter, on a continuous one, on a value that is
            not taken, or on itself by way of others.
    """
    found, depths = dict[int, tuple[int, Places]](), dict[int, int]()
    for i, each in enumerate(parameters):
        if isinstance(each, When):
            if each.on not in labels:
                meant = suggestion([each.on], labels)
                raise SpaceError(f"space: {labels[i]!r} depends on {each.on!r}, which is no parameter.{meant}")
            j = labels.index(each.on)
            found[i], depths[i] = (j, _places_of(labels[i], each, parameters[j])), _depth(i, parameters, labels)
    return {i: found[i] for i in sorted(found, key=lambda i: depths[i])}


def _depth(i: int, parameters: Sequence[Parameter], labels: Sequence[str | int]) -> int:
    """Return on how many others a parameter depends, one by way of the other."""
    chain, each = [labels[i]], parameters[i]
    while isinstance(each, When) and each.on in labels:
        if each.on in chain:
            raise SpaceError(f"space: conditions go round in a circle: {' on '.join(map(repr, [*chain, each.on]))}.")
        chain.append(each.on)
        each = parameters[labels.index(each.on)]
    return len(chain)


def _places_of(label: str | int, when: When, other: Parameter) -> Places:
    """Return the places of another parameter at which one exists; of a fixed one that without inputs, or none."""
    other = bare(other)
    if isinstance(other, Real):
        raise SpaceError(
            f"space: {label!r} depends on {when.on!r}, which takes {other}. It must be a Choice or an Integer."
        )
    places = [place_of(other, value) for value in when.value]
    if isinstance(other, Fixed):  # the one that it depends on may vary no longer
        return () if all(each is None for each in places) else ((),)
    for value, place in zip(when.value, places, strict=True):
        if place is None:
            raise SpaceError(f"space: {label!r} depends on {when.on!r} being {value!r}, but that takes {other}.")
    return tuple(place for place in places if place is not None)


def place_of(parameter: Parameter, value: Any) -> tuple[float, ...] | None:
    """Return the inputs of a value; None if the parameter does not take it."""
    try:
        places, outside = parameter.encode([value])
    except InvalidDataError:
        return None
    return tuple(places[0].clamp(0.0, 1.0).tolist()) if bool(outside[0] <= NEAR) else None  # nor for NaN


def conditions_of(parameters: Sequence[Parameter], links: Links) -> tuple[Condition, ...]:
    """Return the conditions of a space in the unit cube, in the order of its links."""
    inputs, start = list[tuple[int, ...]](), 0
    for each in parameters:
        inputs.append(tuple(range(start, start + each.inputs)))
        start += each.inputs
    tests = dict[int, tuple[tuple[tuple[int, ...], Places], ...]]()
    for i, (j, places) in links.items():
        tests[i] = ((inputs[j], places), *tests.get(j, ()))
    idle = {i: each.idle for i, each in enumerate(parameters) if isinstance(each, When)}
    return tuple(Condition(inputs[i], idle[i], tests[i]) for i in links)


def existing(columns: list[Column], parameters: Sequence[Parameter], links: Links) -> list[Column]:
    """Return the values of each parameter: None where it does not exist, NaN where it does and has none."""
    found, exists = list(columns), dict[int, Tensor]()
    for i, (j, places) in links.items():
        unit, outside = parameters[j].encode(found[j])
        exists[i] = on_places(unit, places) & outside.isfinite() & exists.get(j, torch.tensor(True))
        values = _listed(columns[i])
        found[i] = [
            None if not here else math.nan if is_missing(value) else value
            for here, value in zip(exists[i].tolist(), values, strict=True)
        ]
    return found


def lacking(columns: list[Column], links: Links) -> dict[int, list[int]]:
    """Return the rows in which a conditional parameter has no value although it exists, by its column."""
    rows = {i: [row for row, value in enumerate(columns[i]) if _is_nan(value)] for i in links}
    return {i: each for i, each in rows.items() if each}


def _listed(column: Column) -> list[Any]:
    return column.tolist() if isinstance(column, Tensor) else list(column)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
