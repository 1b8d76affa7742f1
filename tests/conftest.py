import gc
import inspect
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import seeds
import torch
from botorch.acquisition.multi_objective import logei

from bo_scale.errors import BoScaleWarning
from bo_scale.models.catalogue import MODELS

THREADS = int(os.environ.get("TEST_THREADS", "1"))
torch.set_num_threads(THREADS)  # the matrices are small: a second thread costs more than it gives
logei._load_attempted = True  # no compiling of BoTorch's kernel, which takes a minute; its torch code does as well
for _kind in MODELS.values():  # Ax looks at a constructor's arguments, and the tests' type checks hide them
    _kind.model.__signature__ = inspect.signature(_kind.model.__init__)  # type: ignore[attr-defined]

collect_ignore_glob = ["*/conftest.py", "written_before/*"]
"""Not searched for doctests: all have the name `conftest`, and pytest refuses to import the second; a script."""


def pytest_addoption(parser: pytest.Parser) -> None:
    number = int(os.environ.get(seeds.VARIABLE, "0"))
    parser.addoption("--seed", type=int, default=number, metavar="N", help="shift every seed that a test fixes")


def pytest_configure(config: pytest.Config) -> None:
    seeds.shift(config.getoption("seed"))


def pytest_collection_finish() -> None:
    """What is imported stays: a search for garbage, which some tests ask for, need not go through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed_and_strict_warnings() -> Iterator[None]:
    """Every test starts from one seed, and a warning of our own is an error."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BoScaleWarning, append=True)  # behind the filters that a test is marked with
        yield


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of benchmarks are measured here rather than in a child, which would not see the settings of a test."""
    pool = "benchmarks.child.ProcessPoolExecutor"
    monkeypatch.setattr(pool, lambda workers, mp_context: ThreadPoolExecutor(workers))
