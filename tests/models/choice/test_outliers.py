"""Outliers: when Student-t noise is tried, and when it explains them."""

import pytest
import torch
from chosen_rows import spoilt

from bo_scale.models.choice import outliers
from bo_scale.models.choice.kernels import Fit, KernelFits
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import Score
from bo_scale.models.fitting.exact import ExactGP


def test_student_t_noise_is_tried_only_where_errors_have_heavy_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(4000, 1, generator=generator).double()
    assert not outliers.have_heavy_tails(errors)
    assert outliers.have_heavy_tails(torch.where(errors > 2, 5 * errors, errors))
    assert not outliers.have_heavy_tails(torch.empty(0))  # of a fit that failed


@pytest.mark.parametrize(("factor", "goes_on"), [(0.4, True), (1.0, False), (1.1, False)])
def test_a_trial_of_student_t_noise_goes_on_while_errors_fall(
    factor: float, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, data = Plan("exact", "matern52"), (*spoilt(60)[:2], None)
    gaussian = KernelFits(data)(plan)
    monkeypatch.setattr(ExactGP, "left_out", lambda _: (factor * gaussian.errors, gaussian.errors.square()))
    assert outliers._promises(ExactGP.of(plan.build(*data)), gaussian) == goes_on


@pytest.mark.parametrize("n", [40, 120, 256])
def test_what_explains_outliers_goes_on(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that ended early has not explained them."""
    generator = torch.Generator().manual_seed(n)
    exact = ExactGP.of(Plan("exact", "matern52").build(*spoilt(n)[:2]))
    explained = 0
    for share in torch.linspace(0.2, 1.0, 20).tolist():
        errors = torch.randn(n, 1, generator=generator).double()
        errors[: n // 10] *= 20 * torch.rand((), generator=generator).double()
        fewer = share * errors
        fewer[: n // 10] = errors[: n // 10] * (0.9 + 0.2 * torch.rand((), generator=generator).double())
        heavy, gaussian = (Fit(Score(Plan("exact")), each) for each in (fewer, errors))
        monkeypatch.setattr(ExactGP, "left_out", lambda _, fewer=fewer: (fewer, fewer.square()))
        explained += outliers.explains_outliers(heavy, gaussian)
        assert outliers._promises(exact, gaussian) or not outliers.explains_outliers(heavy, gaussian)
    assert explained


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
