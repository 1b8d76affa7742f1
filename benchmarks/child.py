"""A measurement in a process of its own, so that its peak memory is its own."""

import resource
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

GRACE = 10.0
"""Seconds that a child may take to end once it has answered."""


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, called in a fresh process: spawned, not forked, so that it starts without our memory.

    It starts as a unit does: after `torch.manual_seed(0)`, with warnings off. Constants of modules that were changed in
    this process have their old values there. Whatever it raises is raised here.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_call, function, torch.get_num_threads(), arguments).result()


def in_child_or_error(described: dict[str, Any], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What a function returns in a child, added to what describes the unit; of one that fails, its error.

    A result like any other: that a rival cannot be fitted is worth knowing.

    Raises:
        ImportError: of a model that is not there: no result to keep.
    """
    try:
        return described | in_child(function, *arguments)
    except ImportError:
        raise
    except Exception as error:
        return described | {"error": f"{type(error).__name__}: {error}"[:300]}


def in_child_within(seconds: float, megabytes: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """As `in_child`, with limits: the child is ended when its time is over, and may not reserve more memory.

    Raises:
        TimeoutError: after so many seconds, starting and imports included.
        MemoryError: of a child that asked for more memory than was left.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, megabytes, function, torch.get_num_threads(), arguments))
    child.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise TimeoutError(f"not done in {seconds:g} s")
        answer = receiver.recv()
        child.join(GRACE)
    except EOFError:
        child.join()
        raise MemoryError(f"the process ended with code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(
    sender: Any, megabytes: int, function: Callable[..., Any], threads: int, arguments: tuple[Any, ...]
) -> None:
    """Send what a function returns, or its exception, within a limit of memory that counts from here."""
    pages = Path("/proc/self/statm")  # of Linux; elsewhere the limit counts what the child begins with
    reserved = resource.getpagesize() * int(pages.read_text().split()[0]) if pages.exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (reserved + megabytes * 10**6,) * 2)
    try:
        sender.send(_call(function, threads, arguments))
    except Exception as error:  # whatever it is, the parent raises it
        sender.send(error)


def _call(function: Callable[..., Any], threads: int, arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def peak_megabytes() -> float:
    """The largest memory this process has had resident so far, libraries and data included.

    The kernel's VmHWM where there is one: `ru_maxrss` of a process just started may still be that of its parent. Linux
    sums its pages approximately: a later call may find some 100 kB less.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1]) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def gpu_megabytes() -> float | None:
    """The largest memory of this process's tensors on the GPU so far; None where there is none."""
    return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else None
