"""Outliers: when Student-t noise is tried, and when it explains them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from chosen_rows import rows
from scipy import stats
from torch import Tensor

from bo_scale.models.choice import heavy_tails, outliers
from bo_scale.models.choice.choose import choose, choose_plan
from bo_scale.models.choice.kernels import Fit
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import Score
from bo_scale.models.fitting.exact import ExactGP


def with_errors(errors: Tensor, deviations: float | Tensor = 1.0) -> Fit:
    return Fit(Score(Plan("exact")), errors.unsqueeze(-1), deviations=torch.ones(len(errors), 1) * deviations)


def test_student_t_noise_is_tried_only_where_errors_have_heavy_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(4000, generator=generator).double()
    assert not heavy_tails.have_heavy_tails(with_errors(errors))
    assert not heavy_tails.have_heavy_tails(with_errors(errors, 7.0))
    assert heavy_tails.have_heavy_tails(with_errors(torch.where(errors > 2, 5 * errors, errors)))
    on_one_side = torch.where(torch.arange(4000) % 5 == 0, 4.0, 0.1 * errors)
    assert heavy_tails.have_heavy_tails(with_errors(on_one_side - on_one_side.mean()))
    spread = 1 + 9.0 * (torch.arange(4000) % 2)
    assert heavy_tails.have_heavy_tails(with_errors(errors * spread))
    assert not heavy_tails.have_heavy_tails(with_errors(errors * spread, spread.unsqueeze(-1)))
    assert not heavy_tails.have_heavy_tails(with_errors(0 * errors))
    assert not heavy_tails.have_heavy_tails(Fit(Score(Plan("exact")), torch.empty(0)))  # of a fit that failed


def at_places(errors: Tensor, inputs: Tensor) -> Fit:
    density = torch.distributions.Normal(0.0, 1.0).log_prob(errors).mean().item()
    return replace(with_errors(errors), inputs=inputs.unsqueeze(-1), density=density)


def test_errors_that_differ_from_place_to_place_have_no_heavy_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = 50 * torch.rand(400, generator=generator).double()
    normal = torch.randn(400, generator=generator).double()
    smooth = normal * torch.exp((inputs / 8).sin())
    assert heavy_tails.have_heavy_tails(at_places(smooth, inputs))
    scaled = heavy_tails.scaled_nearby(at_places(smooth, inputs))
    assert not heavy_tails.have_heavy_tails(scaled)
    expected = torch.distributions.Normal(0.0, scaled.deviations[:, 0]).log_prob(smooth).mean().item()
    assert scaled.density == pytest.approx(expected)
    assert 400 * (scaled.density - at_places(smooth, inputs).density) > 30
    anywhere = torch.where(torch.arange(400) % 20 == 0, 10 * normal, normal)
    assert heavy_tails.have_heavy_tails(heavy_tails.scaled_nearby(at_places(anywhere, inputs)))


def test_few_rows_and_twins_are_not_scaled() -> None:
    errors = torch.exp(torch.linspace(-4, 4, 400).double())
    for fit in (at_places(errors[:199], errors[:199]), at_places(errors, errors[:200].repeat(2)), with_errors(errors)):
        assert heavy_tails.scaled_nearby(fit) is fit


def test_student_t_noise_has_to_surpass_gaussian_noise_where_rows_can_be_scaled() -> None:
    gaussian = replace(with_errors(torch.zeros(400)), density=-1.0)
    assert heavy_tails.surpasses(replace(gaussian, density=-0.87), gaussian, 50.0)
    assert not heavy_tails.surpasses(replace(gaussian, density=-0.88), gaussian, 50.0)
    few = replace(with_errors(torch.zeros(199)), density=-1.0)
    assert heavy_tails.surpasses(replace(few, density=-2.0), few, 50.0)


@pytest.mark.parametrize("seed", [3, 5])
def test_noise_that_differs_from_place_to_place_is_no_outliers(seed: int) -> None:
    """Student-t noise predicts new rows worse than Gaussian noise whose variance errors nearby scale."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(900, 2, generator=generator, dtype=torch.float64)
    noise = 0.02 * torch.exp(3 * X[:, 0]) * torch.randn(900, generator=generator, dtype=torch.float64)
    Y = (torch.sin(3 * X[:, 0]) + X[:, 1] + noise).unsqueeze(-1)
    model, heavy = (choose(X[:300], Y[:300], student_t=asked) for asked in (None, True))
    assert not model.choice.plan.student_t
    assert model.choice.scales_locally

    def density(model: Any) -> Tensor:
        posterior = model.posterior(X[300:].unsqueeze(1), observation_noise=True)
        return torch.distributions.Normal(posterior.mean, posterior.variance.sqrt()).log_prob(Y[300:, None]).mean()

    assert density(model) > density(heavy) + 0.2


@pytest.mark.parametrize(("degrees", "least"), [(2.0, 30), (3.0, 20)])
def test_tails_of_few_degrees_of_freedom_show_in_120_errors(degrees: float, least: int) -> None:
    found = [
        heavy_tails.have_heavy_tails(with_errors(torch.as_tensor(stats.t.rvs(degrees, size=120, random_state=seed))))
        for seed in range(40)
    ]
    assert sum(found) >= least


def plane(n: int, d: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and the values of a linear function of unit variance."""
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    f = X @ torch.linspace(-1, 2, d, dtype=torch.float64)
    return X, (f - f.mean()) / f.std()


def error_with_outliers(X: Tensor, f: Tensor, values: Tensor, which: Tensor, generator: torch.Generator) -> float:
    """Return the root mean square error of the function that `choose` finds, whose noise must have heavy tails."""
    noise = 0.05 * torch.randn(len(X), generator=generator, dtype=torch.float64)
    model = choose(X, torch.where(which, values, f + noise).unsqueeze(-1))
    assert model.choice.plan.student_t
    return (model.posterior(X).mean.flatten() - f).square().mean().sqrt().item()


def test_outliers_that_the_first_start_does_not_find_are_found() -> None:
    """A fifth of the values, with ten times the spread of the function: only fits from other starts tell them."""
    generator = torch.Generator().manual_seed(3083)
    X, f = plane(80, 3, generator)
    which = torch.rand(80, generator=generator) < 0.2
    gross = f + 10 * torch.randn(80, generator=generator, dtype=torch.float64)
    assert error_with_outliers(X, f, gross, which, generator) < 0.2


@pytest.mark.parametrize("value", [-4.0, -9999.0])
def test_a_sensor_that_drops_to_one_value_is_found(value: float) -> None:
    """Gaussian noise shifts the function towards these values, and has the lower mean squared error."""
    generator = torch.Generator().manual_seed(2)
    X, f = plane(80, 2, generator)
    which = torch.rand(80, generator=generator) < 0.1
    assert error_with_outliers(X, f, torch.full_like(f, value), which, generator) < 0.05


@pytest.mark.parametrize("kind", ["on both sides", "one value"])
def test_outliers_among_many_rows_are_found(kind: str) -> None:
    """Where they are a tenth or more, the mean absolute error falls by a third only, since it is mostly theirs."""
    generator = torch.Generator().manual_seed(6)
    X, f = plane(260, 3, generator)
    which = torch.rand(260, generator=generator) < 0.15
    sizes = 3 + 7 * torch.rand(260, generator=generator, dtype=torch.float64)
    gross = f + sizes * torch.randn(260, generator=generator, dtype=torch.float64).sign()
    values = gross if kind == "on both sides" else torch.full_like(f, f.min())
    Y = torch.where(which, values, f + 0.05 * torch.randn(260, generator=generator, dtype=torch.float64))
    assert choose_plan(X, Y.unsqueeze(-1), kernels=("rbf", "matern12"), streams=True).plan.student_t


def test_gross_errors_are_few_and_have_most_of_the_sum_of_squares() -> None:
    errors = 0.1 * torch.randn(2500, 1, generator=torch.Generator().manual_seed(7)).double()
    assert len(heavy_tails.gross_rows(errors, 2500)) == len(heavy_tails.gross_rows(torch.zeros(5, 1), 5)) == 0
    errors[[70, 3, 900, 8]] = torch.tensor([[30.0], [-99.0], [40.0], [50.0]]).double()
    assert heavy_tails.gross_rows(errors, 2500).tolist() == [3, 8, 900]
    assert len(heavy_tails.gross_rows(errors, 10_000_000)) == 0
    errors[:80] = 60.0  # any sample has some of these
    assert len(heavy_tails.gross_rows(errors, 2500)) == 0


@pytest.mark.parametrize(("n", "value"), [(400, -99.0), (700, 10.0), (700, -9999.0), (4600, -99.0)])
def test_one_gross_outlier_that_samples_lack_is_found(n: int, value: float) -> None:
    """It is the last in the order of rows: noise was taken to be as large as the function, without a word."""
    generator = torch.Generator().manual_seed(8)
    X, f = plane(n, 2, generator)
    Y = torch.sin(3 * f) + 0.05 * torch.randn(n, generator=generator, dtype=torch.float64)
    Y[torch.randperm(n, generator=torch.Generator().manual_seed(0))[-1]] = value
    assert choose_plan(X, Y.unsqueeze(-1), kernels=("rbf", "matern12"), streams=True).plan.student_t


def test_a_narrow_peak_among_many_rows_is_no_outlier() -> None:
    """It has a hundredth of the rows. Those around the highest ones tell."""
    generator = torch.Generator().manual_seed(9)
    X, f = plane(1500, 2, generator)
    peak = 10 * torch.exp(-0.5 * ((X - 0.4) / 0.03).square().sum(-1))
    Y = f + peak + 0.05 * torch.randn(1500, generator=generator, dtype=torch.float64)
    assert not choose_plan(X, Y.unsqueeze(-1), kernels=("rbf", "matern52"), streams=True).plan.student_t


def test_a_step_at_the_border_is_no_outlier() -> None:
    generator = torch.Generator().manual_seed(3)
    X, f = plane(200, 2, generator)
    Y = f + 5.0 * (X[:, 0] > 0.9) + 0.05 * torch.randn(200, generator=generator, dtype=torch.float64)
    assert not choose(X, Y.unsqueeze(-1)).choice.plan.student_t


def fits(heavy: Tensor, gaussian: Tensor) -> tuple[Fit, Fit]:
    """Return two fits that left such errors."""
    score = Score(Plan("exact"))
    return Fit(score, heavy.unsqueeze(-1)), Fit(score, gaussian.unsqueeze(-1))


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25])
def test_outliers_on_one_side_are_explained_although_the_mean_squared_error_rises(share: float) -> None:
    """A Gaussian fit of a constant, which predicts the mean of all values, beside one that ignores outliers."""
    generator = torch.Generator().manual_seed(4)
    values, which = (draw(300, generator=generator).double() for draw in (torch.randn, torch.rand))
    values = torch.where(which < share, 40.0, 0.1 * values)
    heavy, gaussian = fits(values, values - values.mean())
    assert heavy.errors.square().mean() > gaussian.errors.square().mean()
    assert heavy_tails.explains_outliers(heavy, gaussian)


def test_values_that_only_few_rows_foretell_are_not_explained() -> None:
    """Most errors vanish without a peak of a tenth of the rows, half of which a Gaussian fit foretells."""
    peak = torch.where(torch.arange(300) % 10 == 0, 5.0, 0.0).double()
    small = 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(5)).double()
    assert not heavy_tails.explains_outliers(*fits(peak + 0.1 * small, peak / 2 + small))
    assert not heavy_tails.explains_outliers(*fits(peak, peak))


def test_among_many_rows_outliers_are_not_foretold() -> None:
    """A tenth is far off with either noise, whether other errors are smaller by two thirds or by a third."""
    errors = torch.linspace(-1, 1, 500).double()
    outlying = torch.arange(500) % 10 == 0
    for factor in (0.3, 0.7):
        found = fits(torch.where(outlying, 9.0, factor * errors), torch.where(outlying, 8.5, errors))
        assert heavy_tails.may_be_chosen(*found, found[1], explained=False)


@pytest.mark.parametrize(("n", "expected"), [(200, True), (500, False)])
def test_among_many_rows_suspects_that_gaussian_noise_foretells_are_values(n: int, expected: bool) -> None:
    errors = torch.linspace(-1, 1, n).double()
    few = torch.arange(n) % 50 == 0
    heavy, gaussian = fits(torch.where(few, 3.5 * errors, 0.85 * errors), errors)
    assert heavy_tails.may_be_chosen(heavy, gaussian, gaussian, explained=True) == expected
    assert heavy_tails.may_be_chosen(*fits(0.5 * errors, errors), gaussian, explained=False)


@pytest.mark.parametrize("n", [200, 500])
@pytest.mark.parametrize(("gaussian", "expected"), [(8.0, True), (5.0, False)])
def test_rows_set_apart_are_values_where_the_mean_squared_error_rises_by_half(
    n: int, gaussian: float, expected: bool
) -> None:
    """Nearly all errors vanish; those of a twentieth are large with either noise, or half as large with one."""
    errors = torch.linspace(-1, 1, n).double()
    few = torch.arange(n) % 20 == 0
    heavy, other = fits(torch.where(few, 8.5, 0.01 * errors), torch.where(few, gaussian, errors))
    assert heavy_tails.may_be_chosen(heavy, other, other, explained=True) == expected


@pytest.mark.parametrize(("limit", "trials"), [(80, 1), (60, 2)])
def test_fits_to_all_rows_go_on_from_a_trial_of_all_rows(
    limit: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outliers, "TRIAL_ROWS", limit)
    starts: list[bool] = []
    real = outliers.fit_student_t

    def fit(exact: ExactGP, given: Any, D: Tensor | None, gaussian: Any) -> Any:
        starts.append(D is None)
        return real(exact, given, D, gaussian)

    monkeypatch.setattr(outliers, "fit_student_t", fit)
    X, Y = rows(80, 3, noise=0.05)
    Y[::8] += torch.where(torch.arange(10) % 2 == 0, 10.0, -10.0).unsqueeze(-1)
    choose_plan(X, Y, kernels=("rbf", "matern52"))
    assert sum(starts) == trials
    assert len(starts) > trials


def test_classes_and_counts_are_no_outliers() -> None:
    """Student-t noise predicted the likelier class everywhere, and took all rows of the other for outliers."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(400, 3, generator=generator, dtype=torch.float64)
    share = torch.special.ndtr((X[:, :1] + 0.3 * X[:, 1:2] - 0.8) / 0.2)
    classes = (torch.rand(400, 1, generator=generator) < share).double()
    counts = torch.poisson(torch.exp(3 * X[:, :1] - 2.5), generator=generator)
    for Y in (classes, counts):
        assert heavy_tails.are_values(Y)
    model = choose(X, classes)
    assert not model.choice.plan.student_t
    assert (model.posterior(X).mean - share).square().mean().sqrt() < 0.15


@pytest.mark.parametrize("value", [-9999.0, 99.0])
def test_outliers_among_many_zeros_are_found(value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(150, 1, generator=generator, dtype=torch.float64)
    Y = (6 * X).sin().clamp_min(0.0)
    assert heavy_tails.are_values(Y)
    Y[[5, 17, 60, 90]] = value
    assert not heavy_tails.are_values(Y)
    model = choose(X, Y)
    assert set(model.suspects[:4]) == {5, 17, 60, 90}
    assert not heavy_tails.are_values(torch.tensor([0.0] * 97 + [7.0] * 3).unsqueeze(-1))  # single ones


@pytest.mark.parametrize("seed", [4, 5, 11])
def test_a_tenth_of_few_rows_are_outliers_although_the_mean_absolute_error_hardly_falls(seed: int) -> None:
    """Outliers on both sides have most of it. Gaussian noise, by which it was judged, had errors of 3 and not .3."""
    generator = torch.Generator().manual_seed(seed)
    X, f = plane(50, 3, generator)
    Y = f + 0.5 * torch.randn(50, generator=generator, dtype=torch.float64)
    sizes = 5 + 10 * torch.rand(5, generator=generator, dtype=torch.float64)
    Y[:5] += sizes * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).double()
    model = choose(X, Y.unsqueeze(-1))
    assert model.choice.plan.student_t
    assert (model.posterior(X).mean.flatten() - f).square().mean().sqrt() < 0.35


def test_few_rows_that_are_far_likelier_may_have_student_t_noise_outright() -> None:
    """Errors are as large as with Gaussian noise; where their mean square is 1.5 times as large, they are values."""
    errors = torch.linspace(-1, 1, 100).double()
    heavy, gaussian = (replace(each, density=density) for each, density in zip(fits(errors, errors), (-1.0, -1.5)))
    assert not heavy_tails.may_be_chosen(heavy, gaussian, gaussian, explained=True)
    assert heavy_tails.may_be_chosen_outright(heavy, gaussian)
    assert not heavy_tails.may_be_chosen_outright(replace(heavy, density=-1.2), gaussian)
    assert not heavy_tails.may_be_chosen_outright(replace(heavy, errors=1.3 * heavy.errors), gaussian)


def test_skewed_targets_have_no_outliers_outright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their logarithms have no outliers, and are likelier than Student-t noise of the targets."""
    generator = torch.Generator().manual_seed(3)
    X, f = plane(50, 3, generator)
    amounts = torch.exp(1.5 * f + 0.3 * torch.randn(50, generator=generator, dtype=torch.float64)).unsqueeze(-1)
    assert outliers.trial((X, amounts, None), {}) is None
    monkeypatch.setattr(outliers, "gain_of_logarithms", lambda *_: 0.39)
    found = outliers.trial((X, amounts, None), {})
    assert found is not None
    assert found.outright
    assert not found.explained
