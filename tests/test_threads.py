"""Threads of the libraries that SciPy calls."""

import torch
from threadpoolctl import threadpool_info

from bo_scale.threads import scipy_on_one_thread


def threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["internal_api"] == "openblas"]


def test_within_the_context_scipy_has_one_thread_and_torch_keeps_its_own() -> None:
    before, own = threads(), torch.get_num_threads()
    with scipy_on_one_thread(), scipy_on_one_thread():
        assert threads() == [1] * len(before)
        assert torch.get_num_threads() == own
    assert threads() == before
