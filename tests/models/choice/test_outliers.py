"""Outliers: when Student-t noise is tried, and when it explains them."""

import pytest
import torch

from bo_scale.models.choice import outliers
from bo_scale.models.choice.choose import choose
from bo_scale.models.choice.kernels import Fit
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import Score


def test_student_t_noise_is_tried_only_where_errors_have_heavy_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(4000, 1, generator=generator).double()
    assert not outliers.have_heavy_tails(errors)
    assert outliers.have_heavy_tails(torch.where(errors > 2, 5 * errors, errors))
    assert not outliers.have_heavy_tails(torch.empty(0))  # of a fit that failed


def test_outliers_that_the_first_start_does_not_find_are_found() -> None:
    """A fifth of the values, with ten times the spread of the function: only fits from other starts tell them."""
    generator = torch.Generator().manual_seed(3083)
    X = torch.rand(80, 3, generator=generator, dtype=torch.float64)
    f = X @ torch.linspace(-1, 2, 3).double()
    f = f / f.std()
    small, which, large = (
        draw(80, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand, torch.randn)
    )
    model = choose(X, (f + torch.where(which < 0.2, 10 * large, 0.05 * small)).unsqueeze(-1))
    assert model.choice.plan.student_t
    assert (model.posterior(X).mean.flatten() - f).square().mean().sqrt() < 0.2


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
