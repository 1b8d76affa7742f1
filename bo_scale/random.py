"""Seeds, and randomness that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device, *numbers: int) -> Iterator[None]:
    """Seed torch's global randomness by (seed, numbers) within the block, and restore it afterwards."""
    cuda = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(mixed(seed, *numbers))
        if cuda:
            torch.cuda.default_generators[cuda[0]].manual_seed(mixed(seed, *numbers))
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
