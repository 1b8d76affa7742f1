"""Seeds, and randomness that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device, *numbers: int) -> Iterator[None]:
    """Seed torch's global randomness by (seed, numbers) within the block, and restore it afterwards."""
    with seeded_as(mixed(seed, *numbers), device):
        yield


@contextmanager
def seeded_as(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global randomness within the block, and restore it afterwards.

    That is the randomness of the CPU and of the device; other devices keep theirs.

    Args:
        seed: The seed as it is.
        device: Where numbers will be drawn; "cuda" without a number is the current device.
    """
    cuda = []
    if device.type == "cuda":
        cuda = [torch.cuda.current_device() if device.index is None else device.index]
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        for index in cuda:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def mixed(*numbers: int) -> int:
    """Mix several numbers into one seed by splitmix64: neighbours give unrelated seeds."""
    state, mask = 0, (1 << 64) - 1
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1
