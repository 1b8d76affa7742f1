import gc
import inspect
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import Any

import checked_calls
import pytest

checked_calls.install()  # before this package is imported

collect_ignore_glob = ["*/conftest.py", "written_before/*"]
"""Not searched for doctests: all have the name `conftest`, and pytest refuses to import the second; a script."""
FEW_STEPS = 3
"""Of a fit or a search that is cut short."""
LONG = ("test_examples.py", "test_docs.py", "test_time.py", "test_contract.py", "test_laws.py", "test_tiles.py")
"""Files that take longest."""
REAL = pytest.param("real", marks=pytest.mark.gpu)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, metavar="N", help="shift every seed that a test fixes")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the processes that run tests. The one that shares them out imports what defines warnings alone.

    It would import it when two workers send their first warnings, in two threads, which lock each other out.
    """
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        import gpytorch.utils.warnings  # noqa: F401
        import linear_operator.utils.warnings  # noqa: F401

        return
    import seeds
    import torch
    from botorch.acquisition.multi_objective import logei
    from botorch.generation import gen
    from botorch.optim.utils import timeout
    from threadpoolctl import ThreadpoolController

    from bo_scale.models.catalogue import MODELS

    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))  # small matrices: a second costs more than it gives
    if not torch.cuda.is_available():  # the first backward pass starts a thread for each device, pretended ones too:
        torch.zeros((), requires_grad=True).backward()  # a forked process could not differentiate after that
    loaded = cache(ThreadpoolController)  # BoTorch looks for libraries with threads at each search, for milliseconds
    for module in (gen, timeout):
        module.threadpool_limits = lambda **limits: loaded().limit(**limits)
    logei._load_attempted = True  # no compiling of BoTorch's kernel, which takes a minute; its torch code does as well
    for kind in MODELS.values():  # Ax looks at a constructor's arguments, and the tests' type checks hide them
        kind.model.__signature__ = inspect.signature(kind.model.__init__)  # type: ignore[attr-defined]
    number = config.getoption("seed")
    seeds.shift(int(os.environ.get(seeds.VARIABLE, "0")) if number is None else number)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that take long: a process that began one at the end would be waited for."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """What is imported stays: a search for garbage, which some tests ask for, need not go through all of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # rarer searches save a twentieth of the time


@pytest.fixture(autouse=True, scope="module")
def _checks_of_calls_begin() -> None:
    checked_calls.file += 1


@pytest.fixture(autouse=True)
def _seed_and_strict_warnings() -> Iterator[None]:
    """Every test starts from one seed, and a warning of our own is an error, unless it is of a small approximation."""
    import torch

    from bo_scale.errors import ApproximationWarning, BoScaleWarning

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning, append=True)
        warnings.simplefilter("error", BoScaleWarning, append=True)  # behind the filters that a test is marked with
        yield


@pytest.fixture(params=["pretended", REAL])
def gpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A CUDA device: one that is not there, and a real one where there is one."""
    with _cuda(request.param):
        yield _torch_device("cuda:0")


@pytest.fixture(params=["cpu", "pretended", REAL])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The CPU, a CUDA device that is not there, and a real one where there is one."""
    with nullcontext() if request.param == "cpu" else _cuda(request.param):
        yield _torch_device("cpu" if request.param == "cpu" else "cuda:0")


@pytest.fixture
def log() -> Iterator[Any]:
    """The log of kernels and waits of a CUDA device that is not there."""
    with _cuda("pretended", traced=True) as found:
        yield found


@pytest.fixture
def two_gpus() -> Iterator[Any]:
    """Two CUDA devices that are not there, and the log of what happens at them."""
    with _cuda("pretended", 2, traced=True) as found:
        yield found


def _torch_device(name: str) -> Any:
    import torch

    return torch.device(name)


def _cuda(kind: str, devices: int = 1, traced: bool = False) -> Any:
    import pretended
    import torch

    if kind == "real":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return nullcontext()
    reason = pretended.impossible()
    if reason is not None:
        pytest.skip(reason)
    return pretended.pretend_cuda(devices, traced=traced)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No types are checked but by this package itself, as for its users."""
    monkeypatch.setattr(checked_calls, "checking", False)


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits and searches end after a few steps: where they end does not matter."""
    import scipy.optimize

    from bo_scale.decisions import ascent, thompson
    from bo_scale.models import softki
    from bo_scale.models.fitting import closed_form

    whole, climb, train = scipy.optimize.minimize, ascent.climb, softki.train_on_batches

    def short(*args: Any, **kwargs: Any) -> Any:
        return whole(*args, **{**kwargs, "options": {**(kwargs.get("options") or {}), "maxiter": FEW_STEPS}})

    def short_climb(function: Any, start: Any, bounds: Any, max_steps: int, rise: float = 0.0) -> Any:
        return climb(function, start, bounds, min(max_steps, FEW_STEPS), rise)

    def short_training(loss: Any, parameters: Any, bounds: Any, rows: int, epochs: int, *args: Any) -> None:
        train(loss, parameters, bounds, rows, min(epochs, FEW_STEPS), *args)

    monkeypatch.setattr(softki, "train_on_batches", short_training)
    for module in (scipy.optimize, closed_form):
        monkeypatch.setattr(module, "minimize", short)
    for module in (ascent, thompson):
        monkeypatch.setattr(module, "climb", short_climb)


@pytest.fixture
def short_unless_whole(request: pytest.FixtureRequest) -> None:
    """Fits and searches are short in a test that does not ask for `whole_fits`."""
    if "whole_fits" not in request.fixturenames:
        request.getfixturevalue("short_fits")


@pytest.fixture
def whole_fits() -> None:
    """Fits and searches go on to their ends, which matter."""


@pytest.fixture
def short_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """BoTorch's random walks within constraints, from which searches start, are a hundredth as long."""
    import botorch.utils.sampling as sampling

    whole = sampling.sample_polytope

    def short(*args: Any, n0: int, n_thinning: int, **kwargs: Any) -> Any:
        return whole(*args, n0=n0 // 100, n_thinning=max(1, n_thinning // 100), **kwargs)

    monkeypatch.setattr(sampling, "sample_polytope", short)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of benchmarks are measured here rather than in a child, which would not see the settings of a test."""
    pool = "benchmarks.child.ProcessPoolExecutor"
    monkeypatch.setattr(pool, lambda workers, mp_context: ThreadPoolExecutor(workers))
