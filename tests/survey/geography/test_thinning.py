import numpy as np
import pytest
import torch

from bo_scale.survey.geography.thinning import gathered, thinned

RNG = np.random.default_rng(0)


def test_few_places_stay_as_they_are() -> None:
    xy, weights = RNG.random((20, 2)), RNG.random(20)
    assert thinned(xy, weights, 20, torch.Generator())[0] is xy


def test_of_many_places_some_stand_for_all() -> None:
    xy, weights = RNG.random((5000, 2)), RNG.random(5000)
    kept, counted = thinned(xy, weights, 200, torch.Generator().manual_seed(1))
    assert len(kept) == len(counted) <= 200
    assert counted.sum() == pytest.approx(weights.sum())
    np.testing.assert_allclose(counted @ kept / counted.sum(), weights @ xy / weights.sum(), atol=0.02)
    for west in (0.0, 0.25, 0.5, 0.75):  # evenly: each quarter has its share
        share = counted[(kept[:, 0] >= west) & (kept[:, 0] < west + 0.25)].sum() / counted.sum()
        assert share == pytest.approx(0.25, abs=0.04)


def test_cells_stand_for_all_places_with_their_number() -> None:
    xy = RNG.random((500, 2)) * [4.0, 1.0]
    centres, weights = gathered(xy, 100)
    assert weights.sum() == 500
    assert 80 <= len(centres) <= 130
    np.testing.assert_allclose(weights @ centres, xy.sum(0))


def test_places_on_a_line_or_at_one_place_are_gathered_too() -> None:
    line = np.stack([np.linspace(0, 9, 500), np.zeros(500)], -1)
    centres, weights = gathered(line, 50)
    assert len(centres) <= 51
    np.testing.assert_allclose(weights @ centres, line.sum(0))
    assert gathered(np.ones((7, 2)), 3)[1].tolist() == [7.0]
