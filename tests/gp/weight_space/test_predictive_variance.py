import copy
import pickle

import pytest
import torch
from cases import CosineFeatures, grid_features, projected, rand, sum_features

from bo_scale.errors import WrongTypeError
from bo_scale.gp.weight_space.predictive_variance import (
    NOTHING_ADDED,
    InterpolationVariance,
    MissingVariance,
    PredictiveVariance,
)

SCALES = torch.tensor([0.4, 0.7], dtype=torch.float64)
X = rand(2, 5, 2)


@pytest.mark.parametrize("rule", [NOTHING_ADDED, MissingVariance(few=True), InterpolationVariance()])
def test_every_rule_is_one(rule: PredictiveVariance) -> None:
    assert isinstance(rule, PredictiveVariance)
    found = rule.at(grid_features((6, 6))(SCALES), X)
    assert found.shape == (2, 5)
    assert (found >= 0).all()


def test_nothing_is_added_and_copies_are_the_same_nothing() -> None:
    features = grid_features((6, 6))(SCALES)
    assert not NOTHING_ADDED.applies(0.0, features)
    assert not NOTHING_ADDED.at(features, X).any()
    assert pickle.loads(pickle.dumps(NOTHING_ADDED)) is NOTHING_ADDED
    assert copy.deepcopy(NOTHING_ADDED) is NOTHING_ADDED


def test_what_is_missing_is_the_variance_of_the_kernel_less_that_of_the_features() -> None:
    features = CosineFeatures(SCALES)
    torch.testing.assert_close(MissingVariance(few=False).at(features, X), torch.full((2, 5), 0.1).double())
    grid = grid_features((4, 4))(SCALES / 4)
    flat = X.reshape(-1, 2)
    prior = grid.prior_covariance(flat).diagonal().reshape(2, 5)
    expected = (grid.kernel_variance(X) - prior).clamp_min(0.0)
    assert (expected > 1e-3).any()
    torch.testing.assert_close(MissingVariance(few=True).at(grid, X), expected)


def test_it_is_missing_while_observations_are_no_more_than_the_rank() -> None:
    features = CosineFeatures(SCALES, p=5)
    few, always = MissingVariance(few=True), MissingVariance(few=False)
    assert [few.applies(count, features) for count in (0.0, 5.0, 5.5)] == [True, True, False]
    assert always.applies(10.0**6, features)


def test_errors_of_interpolation_are_summed_over_grids_and_seen_through_a_projection() -> None:
    rule, coarse, fine = InterpolationVariance(), grid_features((5, 5))(SCALES), grid_features((9, 8))(SCALES)
    assert rule.applies(10.0**6, fine)
    apart = [each.interpolation_variance(X) for each in (coarse, fine)]  # type: ignore[attr-defined]
    assert (apart[0] > apart[1]).all()
    both = sum_features(grid_features((5, 5)), grid_features((9, 8)))(SCALES)
    torch.testing.assert_close(rule.at(both, X), apart[0] + apart[1])
    with pytest.raises(WrongTypeError, match=r"CosineFeatures.* not all grids"):
        rule.at(sum_features(grid_features((5, 5)), CosineFeatures)(SCALES), X)
    through = projected(7, 6)(torch.tensor([0.3, 0.4, 0.5]).double())
    Z = rand(4, 3)
    expected = through.base.interpolation_variance(through.projection(Z))  # type: ignore[attr-defined]
    torch.testing.assert_close(rule.at(through, Z), expected)
