"""Posteriors that tests of choices share."""

from collections.abc import Iterator

import pytest
import torch
from posteriors import GRIDS, Case, make


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    with torch.no_grad():
        return {name: make(name) for name in GRIDS}


@pytest.fixture(params=list(GRIDS))
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


@pytest.fixture
def wiski(cases: dict[str, Case]) -> Case:
    return cases["wiski"]


@pytest.fixture
def exact(cases: dict[str, Case]) -> Case:
    return cases["exact"]
