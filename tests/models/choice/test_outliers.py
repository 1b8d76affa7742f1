"""Outliers: when Student-t noise is tried, and when it explains them."""

from types import SimpleNamespace

import pytest
import torch
from chosen_rows import spoilt

from bo_scale.models.choice import outliers
from bo_scale.models.choice.kernels import Fit, KernelFits
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import Score
from bo_scale.models.errors import FitError


def test_student_t_noise_is_tried_only_where_errors_have_heavy_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(4000, 1, generator=generator).double()
    assert not outliers.have_heavy_tails(errors)
    assert outliers.have_heavy_tails(torch.where(errors > 2, 5 * errors, errors))
    assert not outliers.have_heavy_tails(torch.empty(0))  # of a fit that failed


def test_a_trial_of_student_t_noise_ends_early_where_errors_do_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, data = Plan("exact", "matern52"), (*spoilt(60)[:2], None)
    gaussian = KernelFits(data)(plan)
    assert outliers._may_explain_outliers(plan, data, gaussian)
    for factor, goes_on in ((0.5, True), (1.0, False), (1.1, False)):  # of the first rounds' errors
        rounds = SimpleNamespace(left_out=lambda factor=factor: (factor * gaussian.errors,))
        monkeypatch.setattr(outliers, "first_rounds", lambda *_, rounds=rounds: (rounds,))
        assert outliers._may_explain_outliers(plan, data, gaussian) == goes_on
    monkeypatch.setattr(outliers, "student_t_fits", lambda *_: pytest.fail("the trial went on"))
    assert not outliers.has_outliers(data, {})
    assert not outliers.has_outliers(data, {plan: gaussian})
    monkeypatch.setattr(outliers, "first_rounds", lambda *_: raised())
    assert outliers._may_explain_outliers(plan, data, gaussian)  # another start may be fitted


def raised() -> None:
    raise FitError("no luck")


@pytest.mark.parametrize(
    ("n", "worse", "expected"), [(40, 0.5, True), (40, 1.1, False), (256, 0.1, False), (256, -0.1, True)]
)
def test_student_t_noise_of_many_rows_has_to_lower_the_mean_squared_error(
    n: int, worse: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Score(Plan("exact"))
    heavy, gaussian = (Fit(score, scale * torch.ones(n, 1).double()) for scale in (0.1, 1.0))
    monkeypatch.setattr(outliers, "differs", lambda *_: worse)
    assert outliers.explains_outliers(heavy, gaussian) == expected
