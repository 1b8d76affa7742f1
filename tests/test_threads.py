"""Threads of torch and of the libraries that SciPy calls."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.settings import lazily_evaluate_kernels
from threadpoolctl import threadpool_info

from bo_scale import choose, threads
from bo_scale.loop import Optimizer
from bo_scale.models.shell.kernels import OutputKernel
from bo_scale.threads import ROWS_A_THREAD, Together, one_thread, scipy_on_one_thread, threads_at_most, threads_for


@pytest.fixture
def sixteen() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    yield
    torch.set_num_threads(before)


def of_openblas() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["internal_api"] == "openblas"]


def test_within_the_context_scipy_has_one_thread_and_torch_keeps_its_own() -> None:
    before, own = of_openblas(), torch.get_num_threads()
    with scipy_on_one_thread(), scipy_on_one_thread():
        assert of_openblas() == [1] * len(before)
        assert torch.get_num_threads() == own
    assert of_openblas() == before


@pytest.mark.usefixtures("sixteen")
def test_contexts_of_torch_nest_and_the_smallest_limit_counts() -> None:
    with threads_at_most(4):
        assert torch.get_num_threads() == 4
        with one_thread(), threads_at_most(8):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 4
        with threads_at_most(32):
            assert torch.get_num_threads() == 4
    assert torch.get_num_threads() == 16


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize(
    ("rows", "threads"), [(1, 1), (ROWS_A_THREAD, 1), (4 * ROWS_A_THREAD, 4), (10**6, 16), (0, 16)]
)
def test_small_matrices_are_work_for_few_threads(rows: int, threads: int) -> None:
    with threads_for(rows):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 16


@pytest.mark.usefixtures("sixteen")
def test_contexts_of_two_threads_overlap_and_none_keeps_the_limit_of_the_other() -> None:
    """Whoever enters while another is within finds that one's limit, and would restore it for good."""
    entered, left, seen = Barrier(2, timeout=60), Barrier(2, timeout=60), list[int]()

    def other() -> None:
        with threads_for(1):
            entered.wait()
            left.wait()
        seen.append(torch.get_num_threads())

    thread = Thread(target=other)
    with threads_for(1):
        thread.start()
        entered.wait()
    assert torch.get_num_threads() == 16
    left.wait()
    thread.join()
    assert [torch.get_num_threads(), *seen] == [16, 16]


@pytest.mark.usefixtures("sixteen")
def test_one_thread_for_the_same_bits_holds_until_the_last_leaves() -> None:
    entered, leave = Barrier(2, timeout=60), Barrier(2, timeout=60)

    def other() -> None:
        with one_thread():
            entered.wait()
            leave.wait()

    thread = Thread(target=other)
    thread.start()
    entered.wait()
    with threads_for(10**6):
        assert torch.get_num_threads() == 1
    leave.wait()
    thread.join()
    with threads_for(10**6):
        assert torch.get_num_threads() == 16


@pytest.mark.usefixtures("sixteen")
def test_few_rows_are_searched_and_chosen_with_few_threads() -> None:
    seen: set[int] = set()

    class Watched(SingleTaskGP):
        def posterior(self, *args: object, **kwargs: object) -> object:
            seen.add(torch.get_num_threads())
            return super().posterior(*args, **kwargs)  # type: ignore[arg-type]

    loop = Optimizer([(0.0, 1.0)] * 2, model=lambda X, Y, Yvar: Watched(X, Y), objective="maximize", seed=0)
    X = torch.rand(6, 2, dtype=torch.float64)
    loop.tell(X, X.sum(-1))
    loop.ask(1)
    assert 1 in seen
    assert torch.get_num_threads() == 16
    choose(X, X.sum(-1, keepdim=True))
    assert torch.get_num_threads() == 16


def test_a_folder_named_torch_is_not_torch() -> None:
    """An environment at `/opt/torch` had threads of SciPy that spun, 16 of them."""
    assert not threads._of_torch("/opt/torch/.venv/lib/python3.12/site-packages/scipy.libs/libscipy_openblas.so")
    assert threads._of_torch(str(Path(torch.__file__).parent / "lib" / "libopenblas.so"))


def test_the_last_thread_restores_a_setting_that_the_first_has_changed() -> None:
    """GPyTorch's own context, left in the order in which it was entered, stays."""
    together = Together(partial(lazily_evaluate_kernels, False))
    together.__enter__()
    together.__enter__()  # in another thread
    together.__exit__()
    assert lazily_evaluate_kernels.off()
    together.__exit__()
    assert lazily_evaluate_kernels.on()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_process_forked_while_another_thread_is_in_a_context_is_not_in_it() -> None:
    together = Together(partial(lazily_evaluate_kernels, False))
    entered, leave = Event(), Event()

    def stay() -> None:
        with together:
            entered.set()
            leave.wait(60)

    thread = Thread(target=stay)
    thread.start()
    entered.wait(60)
    if not (child := os.fork()):
        with together:
            inside = lazily_evaluate_kernels.off()
        os._exit(0 if inside and lazily_evaluate_kernels.on() else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert lazily_evaluate_kernels.on()


@pytest.mark.parametrize(
    ("kernel", "untouched"),
    [
        (RBFKernel(ard_num_dims=2), True),
        (ScaleKernel(MaternKernel(active_dims=[1])), True),
        (ScaleKernel(LinearKernel()), True),
        (RBFKernel() + PeriodicKernel(), False),
        (ScaleKernel(RBFKernel(active_dims=[0]) * MaternKernel(active_dims=[1])), False),
    ],
    ids=["RBF", "scaled, of one input", "linear", "sum", "product"],
)
def test_kernels_leave_the_settings_of_all_threads(
    kernel: Any, untouched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = torch.rand(5, 2, dtype=torch.float64)
    kernel = kernel.double()
    expected, changes = kernel(X, X[:3]).to_dense(), list[bool]()
    change = lazily_evaluate_kernels._set_state

    def noted(state: bool) -> None:
        changes.append(state)
        change(state)

    monkeypatch.setattr(lazily_evaluate_kernels, "_set_state", noted)
    torch.testing.assert_close(OutputKernel(kernel)(X, X[:3]), expected)
    assert lazily_evaluate_kernels.on()
    assert (not changes) == untouched
