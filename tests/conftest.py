import gc
import inspect
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

collect_ignore_glob = ["*/conftest.py", "written_before/*"]
"""Not searched for doctests: all have the name `conftest`, and pytest refuses to import the second; a script."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, metavar="N", help="shift every seed that a test fixes")


def pytest_configure(config: pytest.Config) -> None:
    """Only where tests are run: the process that shares them out has no use of what takes seconds to import."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import seeds
    import torch
    from botorch.acquisition.multi_objective import logei

    from bo_scale.models.catalogue import MODELS

    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))  # small matrices: a second costs more than it gives
    logei._load_attempted = True  # no compiling of BoTorch's kernel, which takes a minute; its torch code does as well
    for kind in MODELS.values():  # Ax looks at a constructor's arguments, and the tests' type checks hide them
        kind.model.__signature__ = inspect.signature(kind.model.__init__)  # type: ignore[attr-defined]
    number = config.getoption("seed")
    seeds.shift(int(os.environ.get(seeds.VARIABLE, "0")) if number is None else number)


def pytest_collection_finish() -> None:
    """What is imported stays: a search for garbage, which some tests ask for, need not go through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed_and_strict_warnings() -> Iterator[None]:
    """Every test starts from one seed, and a warning of our own is an error."""
    import torch

    from bo_scale.errors import BoScaleWarning

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BoScaleWarning, append=True)  # behind the filters that a test is marked with
        yield


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of benchmarks are measured here rather than in a child, which would not see the settings of a test."""
    pool = "benchmarks.child.ProcessPoolExecutor"
    monkeypatch.setattr(pool, lambda workers, mp_context: ThreadPoolExecutor(workers))
