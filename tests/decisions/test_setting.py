import torch
from settings import model, setting

from bo_scale.decisions.setting import BASELINE


def test_the_best_told_points_are_those_of_highest_posterior_mean() -> None:
    s = setting(model())
    order = s.means.argsort(descending=True)
    assert torch.equal(s.best(3), s.observed[order[:3]])
    assert len(s.best(BASELINE)) == 12
