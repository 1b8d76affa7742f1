"""Observations as predicted from the others, and those that stand apart."""

import pytest
import torch
from botorch.models import SingleTaskGP
from insights import MAXIMISED, MINIMISED, SPACE, TWO, data, fitted, two

from bo_scale import WISKI, CaGP, GRIEFBayes
from bo_scale.errors import InvalidDataError
from bo_scale.loop.insight.leave_one_out import at_hyperparameters, leave_one_out, split, suspects
from bo_scale.models.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("whole_fits")


def test_predictions_are_those_without_the_row_in_raw_units() -> None:
    X, Y = data()
    model = SingleTaskGP(X, Y).eval()
    found = leave_one_out(MINIMISED, model, X, Y)
    less = at_hyperparameters(model, lambda X, Y, Yvar: SingleTaskGP(X, Y, Yvar))(X[1:], Y[1:], None)
    less.outcome_transform.load_state_dict(model.outcome_transform.state_dict())
    less.set_train_data(X[1:], (Y[1:, 0] - Y.mean()) / Y.std(), strict=False)
    posterior = less.posterior(X[:1], observation_noise=True)
    assert found.observed[0].item() == -Y[0].item()
    assert found.means[0].item() == pytest.approx(-posterior.mean.item(), rel=1e-6)
    assert found.sds[0].item() == pytest.approx(posterior.variance.sqrt().item(), rel=1e-6)
    assert found.z[0].item() == pytest.approx(((found.observed - found.means) / found.sds)[0].item())


def test_a_good_model_has_errors_of_about_one_standard_deviation() -> None:
    X, Y = data(100)
    found = leave_one_out(TWO, two(CaGP, X, torch.cat([Y, 3 * Y], -1)), X, torch.cat([Y, 3 * Y], -1))
    assert found.z.shape == (100, 2)
    assert leave_one_out(MAXIMISED, fitted(CaGP, X, Y), X, Y).z.std().item() == pytest.approx(1, abs=0.2)


def test_models_without_a_closed_form_are_made_without_folds() -> None:
    X, Y = data(24)

    def bayes(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor | None = None) -> GRIEFBayes:
        return GRIEFBayes(X, Y, Yvar, num_eigenfunctions=16, num_samples=2)

    model = bayes(X, Y).eval()
    with pytest.raises(UnsupportedError, match="Pass fitted"):
        leave_one_out(MAXIMISED, model, X, Y)
    found = leave_one_out(MAXIMISED, model, X, Y, fitted=at_hyperparameters(model, bayes), folds=4)
    assert found.means.isfinite().all()
    assert (found.sds > 0).all()


def test_models_of_part_of_the_rows_keep_the_units_of_all() -> None:
    """A value far off among the rows left out has made the unit."""
    X, Y = data(30)
    Y[0] = 1e4
    model = WISKI(X, Y, grid_size=8).eval()
    less = at_hyperparameters(model, lambda X, Y, Yvar: WISKI(X, Y, Yvar, grid_size=8))(X[1:], Y[1:], None)
    expected = model.remove_observations([0]).posterior(X).mean
    torch.testing.assert_close(less.posterior(X).mean, expected, rtol=1e-6, atol=1e-4)


def test_folds_hold_every_row_once() -> None:
    folds = split(11, 4, seed=0)
    assert sorted(torch.cat(folds).tolist()) == list(range(11))
    assert {len(each) for each in folds} == {2, 3}
    assert len(split(3, 10, 0)) == 3


def test_observations_of_another_number_than_the_models_are_refused() -> None:
    X, Y = data()
    with pytest.raises(InvalidDataError, match="it has 40 observations, and X 39"):
        leave_one_out(MAXIMISED, SingleTaskGP(X, Y), X[1:], Y[1:])


# ---------------------------------------------------------------- suspects


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("kind", [CaGP, WISKI, SingleTaskGP])
def test_clean_data_have_no_suspects(kind: type, n: int) -> None:
    for seed in range(3):
        X, Y = data(n, noise=(0.01, 0.1, 1.0)[seed], seed=seed)
        assert suspects(SPACE, MAXIMISED, fitted(kind, X, Y), X, Y) == []


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("kind", [CaGP, WISKI])
def test_a_diverged_value_is_found_though_it_has_moved_mean_noise_and_scale(kind: type, n: int) -> None:
    X, Y = data(n)
    Y[7] = 1e6
    model = fitted(kind, X, Y)
    assert leave_one_out(MAXIMISED, model, X, Y).z.abs().max() < n**0.5 + 1  # where it hides
    one = suspects(SPACE, MINIMISED, model, X, Y)[0]
    assert (one.row, one.value) == (7, -1e6)
    assert one.x == SPACE.decode(X[7:8])[0]
    assert abs(one.predicted) < 1e3
    assert one.z == pytest.approx((one.value - one.predicted) / one.sd)
    assert abs(one.z) > 1e3
    again = suspects(SPACE, MINIMISED, model, X, Y, fitted=lambda *rows: fitted(kind, *rows))
    assert [each.row for each in again] == [7]


def test_ten_standard_deviations_are_found() -> None:
    X, Y = data(30)
    Y[7] += 10 * Y.std()
    assert [each.row for each in suspects(SPACE, MAXIMISED, fitted(CaGP, X, Y), X, Y)] == [7]


def test_known_noise_is_no_shelter() -> None:
    X, Y = data(30)
    Yvar = torch.full_like(Y, 0.01)
    assert suspects(SPACE, MAXIMISED, fitted(CaGP, X, Y, Yvar), X, Y, Yvar) == []
    Y[4] = -1e6
    again = suspects(SPACE, MAXIMISED, fitted(CaGP, X, Y, Yvar), X, Y, Yvar, fitted=lambda *rows: fitted(CaGP, *rows))
    assert [each.row for each in again] == [4]


def test_several_are_found_though_each_hides_the_others() -> None:
    X, Y = data(40)
    Y[[3, 9, 11]] = torch.tensor([[1e6], [1e6], [-20.0]]).double()
    found = suspects(SPACE, MAXIMISED, fitted(CaGP, X, Y), X, Y, fitted=lambda *rows: fitted(CaGP, *rows))
    assert {each.row for each in found} == {3, 9, 11}
    assert [abs(each.z) for each in found] == sorted((abs(each.z) for each in found), reverse=True)


def test_student_t_noise_has_found_them_already() -> None:
    X, Y = data(40)
    Y[5] = 20.0
    model = CaGP(X, Y, likelihood="student_t")
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert [each.row for each in suspects(SPACE, MAXIMISED, model, X, Y)] == [5]


def test_each_outcome_has_its_own() -> None:
    X, Y = data(40)
    every = torch.cat([Y, Y.flip(0)], -1)
    every[4, 1] = 50.0
    (one,) = suspects(SPACE, TWO, two(CaGP, X, every), X, every)
    assert (one.row, one.outcome, one.value) == (4, "gain", 50.0)


def test_equal_values_and_few_have_none_but_one_other_value_stands_apart() -> None:
    X, Y = data(12)
    flat = torch.full_like(Y, 2.0)
    assert suspects(SPACE, MAXIMISED, CaGP(X, flat), X, flat) == []
    flat[3] = 2.5
    assert [each.row for each in suspects(SPACE, MAXIMISED, CaGP(X, flat), X, flat)] == [3]
    assert suspects(SPACE, MAXIMISED, CaGP(X[:4], Y[:4]), X[:4], Y[:4]) == []
