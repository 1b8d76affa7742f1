"""Models of surveys on a GPU: plans are made on the CPU, but whoever has a map of many sites may move its model."""

import numpy as np
import pytest
import torch
from matching import assert_all_on, assert_matches

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import coordinates, model_of
from bo_scale.survey.mapping.sites import Sites

BOX = (0.0, 0.0, 1000.0, 800.0)
VALUES = {"matern32": [[12, 10]], "matern12": [[30, 24]], "matern52": []}


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize("kernel", VALUES)
def test_a_model_of_a_map_predicts_the_same(kernel: str, known: bool, gpu: torch.device) -> None:
    rng = np.random.default_rng(0)
    xy, z = rng.random((20, 2)) * [1000, 800], rng.normal(size=20)
    sites = Sites(xy, z, np.full(20, 0.1) if known else None)
    fit = Fit(kernel, 20, BOX, 0.0, 1.0, VALUES[kernel], {})
    model = model_of(sites, fit)
    X = coordinates(model, fit, rng.random((5, 2)) * [1000, 800])
    here = model.posterior(X)
    moved = model_of(sites, fit).to(gpu)
    assert_all_on(moved, gpu)
    there = moved.posterior(X.to(gpu))
    assert_matches(there.mean.detach(), here.mean.detach(), gpu)
    assert_matches(there.variance.detach(), here.variance.detach(), gpu)
