from itertools import pairwise

import torch

from bo_scale.random import mixed, seeded

CPU = torch.device("cpu")


# ---------------------------------------------------------------- randomness


def test_neighbouring_numbers_mix_to_unrelated_seeds() -> None:
    seeds = [mixed(seed, ask, part) for seed in range(-2, 5) for ask in range(30) for part in range(3)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = [bin(a ^ b).count("1") for a, b in pairwise(seeds)]
    assert 28 < sum(bits) / len(bits) < 35  # half of 63
    assert mixed(1, 2) != mixed(2, 1)


def test_seeded_gives_one_stream_whatever_was_drawn_before_and_leaves_the_global_one() -> None:
    drawn = []
    for outer in (1, 2):
        torch.manual_seed(outer)
        before = torch.random.get_rng_state()
        with seeded(7, CPU, 3, 0):
            drawn.append(torch.rand(3))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*drawn)


def test_seeded_leaves_every_device_as_it_was(device: torch.device) -> None:
    def states() -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]

    before = states()
    with seeded(7, device, 3, 0):
        torch.rand(3, device=device)
    assert all(torch.equal(a, b) for a, b in zip(before, states(), strict=True))
