"""Processes forked after a test on a pretended device may differentiate."""

import os

import pytest
import torch


def test_a_forked_process_may_differentiate_after_a_pretended_device(gpu: torch.device) -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a process with a CUDA device must not be forked")
    torch.zeros((), device=gpu, requires_grad=True).backward()
    child = os.fork()
    if child == 0:
        try:
            torch.zeros((), requires_grad=True).backward()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
