import numpy as np
import pytest
import torch

from bo_scale.survey.geography.thinning import thinned

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
