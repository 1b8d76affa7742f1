"""Models with Student-t noise: outliers are ignored and listed, in every family, and nothing else changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy import stats
from torch import Tensor

from bo_scale import (
    GRIEF,
    WISKI,
    CaGP,
    DecoupledGP,
    GRIEFBayes,
    LinearProjection,
    SoftKI,
    StudentTNoise,
    load_model,
    save_model,
)
from bo_scale.errors import FitWarning
from bo_scale.loop import Optimizer
from bo_scale.models.choice.plan import Plan
from bo_scale.models.errors import FitError, UnsupportedError
from bo_scale.models.fitting import student_t
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.fitting.student_t import ROWS, fit_student_t

BAD = [3, 17, 40, 41, 66]
Build = Callable[..., Any]
FAMILIES: dict[str, Build] = {
    "WISKI": lambda X, Y, **options: WISKI(X, Y, grid_size=12, **options),
    "SoftKI": lambda X, Y, **options: SoftKI(X, Y, progress=False, **options),
    "GRIEF": GRIEF,
    "CaGP": lambda X, Y, **options: CaGP(X, Y, num_actions=200, policy="cg", epochs=0, progress=False, **options),
    "DecoupledGP": lambda X, Y, **options: DecoupledGP(X, Y, progress=False, **options),
}


def outliers(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a smooth function, with and without five outliers."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    Y = torch.sin(4 * X[:, :1]) + X[:, 1:] + 0.05 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    spoilt = Y.clone()
    spoilt[BAD] += torch.tensor([6.0, -8.0, 7.0, -5.0, 10.0], dtype=torch.float64).unsqueeze(-1)
    return X, Y, spoilt


def fitted(model: Any) -> Any:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def error(model: Any) -> float:
    X, Y, _ = outliers(400, seed=9)
    deviation: Tensor = (model.posterior(X).mean - Y).square().mean().sqrt()
    return deviation.item()


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of WISKI's small grid
@pytest.mark.parametrize("family", FAMILIES)
def test_outliers_are_ignored_and_listed(family: str) -> None:
    X, _, Y = outliers()
    gaussian = error(fitted(FAMILIES[family](X, Y)))
    model = fitted(FAMILIES[family](X, Y, likelihood="student_t"))
    assert error(model) < 0.2  # .06 to .13 (SoftKI) over 10 seeds; with Gaussian noise .31 to .9
    assert error(model) < 0.7 * gaussian
    assert set(BAD) <= set(model.suspects)
    assert len(model.suspects) <= 12
    assert model.suspects[0] == 66
    assert model.measurement_noise(0).item() * Y.var() < 0.1  # of a regular value
    noise = (model.posterior(X, observation_noise=True).variance - model.posterior(X).variance)[0]
    assert 0.5 < noise / (Y - outliers()[1]).square().mean() < 2  # the mean squared residual
    more = model.condition_on_observations(X[:2], Y[:2])
    assert more.posterior(X).variance.isfinite().all()


def test_without_outliers_it_is_nearly_gaussian() -> None:
    X, Y, _ = outliers()
    gaussian, student = (fitted(FAMILIES["CaGP"](X, Y, likelihood=name)) for name in (None, "student_t"))
    assert student.likelihood.degrees_of_freedom.item() >= 10
    torch.testing.assert_close(student.posterior(X).mean, gaussian.posterior(X).mean, atol=0.05, rtol=0)
    assert student.suspects == []
    assert gaussian.suspects == []


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of WISKI's small grid
@pytest.mark.parametrize("family", FAMILIES)
def test_noise_with_heavy_tails_has_few_degrees_of_freedom(family: str) -> None:
    X, Y, _ = outliers(150)
    noise = torch.as_tensor(stats.t.rvs(2.5, size=(150, 1), random_state=0))
    model = fitted(FAMILIES[family](X, Y + 0.1 * noise, likelihood="student_t"))
    assert model.likelihood.degrees_of_freedom.item() <= 5


def test_every_output_has_weights_of_its_own() -> None:
    X, clean, spoilt = outliers()
    model = fitted(FAMILIES["GRIEF"](X, torch.cat([clean, spoilt], -1), likelihood=StudentTNoise(torch.Size([2]))))
    first, second = model.rows.D[BAD].unbind(-1)
    assert (first < 4).all()
    assert (second > 4).all()
    assert set(BAD) <= set(model.subset_output([1]).suspects)
    assert not set(BAD) & set(model.subset_output([0]).suspects)


def test_rows_beyond_those_of_the_exact_gp_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ROWS < 1000
    monkeypatch.setattr("bo_scale.models.fitting.student_t.ROWS", 40)
    X, _, Y = outliers()
    model = fitted(FAMILIES["CaGP"](X, Y, likelihood="student_t"))
    assert set(BAD) <= set(model.suspects)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    X, _, Y = outliers()
    model = fitted(FAMILIES["GRIEF"](X, Y, likelihood="student_t"))
    save_model(model, tmp_path / "model.pt")
    loaded = load_model(FAMILIES["GRIEF"](X, Y, likelihood="student_t"), tmp_path / "model.pt")
    assert loaded.suspects == model.suspects
    torch.testing.assert_close(loaded.posterior(X).variance, model.posterior(X).variance)


def fails(*_: Any) -> None:
    raise FitError("no")


def test_a_failed_fit_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _, Y = outliers()
    model = FAMILIES["GRIEF"](X, Y, likelihood="student_t")

    monkeypatch.setattr(StagedFit, "fit", fails)
    with pytest.raises(FitError):
        fitted(model)
    assert (model.rows.D == 1).all()


def test_what_it_does_not_go_with_is_refused() -> None:
    X, _, Y = outliers()
    with pytest.raises(UnsupportedError, match="keep_data=True"):
        fitted(WISKI(X, Y, grid_size=8, keep_data=False, likelihood="student_t"))
    with pytest.raises(UnsupportedError, match="'student_t' with train_Yvar"):
        GRIEF(X, Y, torch.ones_like(Y), likelihood="student_t")
    with pytest.raises(UnsupportedError, match="GRIEFBayes samples Gaussian noise"):
        GRIEFBayes(X, Y, likelihood="student_t")
    with pytest.raises(UnsupportedError, match="'cauchy' is not supported"):
        GRIEF(X, Y, likelihood="cauchy")
    with pytest.raises(UnsupportedError, match="StudentTNoise with train_Yvar"):
        GRIEF(X, Y, torch.ones_like(Y), likelihood=StudentTNoise())
    with pytest.raises(UnsupportedError, match="StudentTNoise for 1 outputs, expected 2"):
        GRIEF(X, torch.cat([Y, Y], -1), likelihood=StudentTNoise())
    with pytest.raises(UnsupportedError, match="does not go with decay"):
        fitted(WISKI(X, Y, grid_size=8, decay=0.9, likelihood="student_t"))
    with pytest.raises(UnsupportedError, match="does not go with a projection"):
        fitted(WISKI(X, Y, grid_size=8, projection=LinearProjection(2, 1), likelihood="student_t"))
    assert isinstance(
        GRIEF(X, Y, likelihood=FixedNoiseGaussianLikelihood(torch.ones(80))).likelihood, FixedNoiseGaussianLikelihood
    )


def test_a_search_takes_it_by_name_and_again_when_it_resumes(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    effort = {"num_restarts": 2, "raw_samples": 16, "max_steps": 10}
    options: Any = {
        "model_options": {"likelihood": "student_t"},
        "acquisition_options": effort,
        "num_initial": 12,
        "seed": 0,
        "path": tmp_path / "search",
    }
    with Optimizer([(0.0, 1.0)], **options) as search:
        for i in range(14):
            X = torch.as_tensor(search.ask(1)).double()
            noise = 50.0 if i == 9 else 0.01 * torch.randn((), generator=generator).item()
            search.tell(X, -(X - 0.3).square().sum(-1) + noise)
        search.ask(1)
        assert search.model.suspects[0] == 9
        assert len(search.model.suspects) <= 3
    with Optimizer([(0.0, 1.0)], **options) as again:
        again.ask(1)
        assert isinstance(again.model.likelihood, StudentTNoise)


@pytest.mark.parametrize("size", [10.0, 1e3, 1e6])
def test_the_size_of_outliers_does_not_matter(size: float) -> None:
    X, Y, _ = outliers()
    Y[BAD] = size
    model = fitted(FAMILIES["CaGP"](X, Y, likelihood="student_t"))
    assert error(model) < 0.15  # at most .06 over 10 seeds
    assert any("standardised by their median" in note for note in model.fit_report.notes)
    assert set(BAD) <= set(model.suspects)


def test_few_rows_with_an_outlier() -> None:
    found = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(14, 1, generator=generator, dtype=torch.float64)
        Y = torch.sin(4 * X) + 0.05 * torch.randn(14, 1, generator=generator, dtype=torch.float64)
        Y[4] += 8.0
        model = fitted(FAMILIES["CaGP"](X, Y, likelihood="student_t"))
        grid = torch.linspace(0.1, 0.9, 30, dtype=torch.float64).unsqueeze(-1)
        found.append(
            ((model.posterior(grid).mean - torch.sin(4 * grid)).abs().mean() < 0.3).item() and 4 in model.suspects
        )
    assert sum(found) >= 5


def test_fantasies_are_those_of_a_regular_value() -> None:
    X, _, Y = outliers()
    model = fitted(FAMILIES["GRIEF"](X, Y, likelihood="student_t"))
    place = X.mean(0, keepdim=True)
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    spread = model.fantasize(place, sampler).posterior(place).mean.std()
    before, after = model.posterior(place).variance, model.fantasize(place, sampler).posterior(place).variance.mean()
    assert spread.item() == pytest.approx((before - after).sqrt().item(), rel=0.3)


def test_weights_are_forgotten_with_what_they_were_made_for() -> None:
    X, clean, Y = outliers()
    model = fitted(FAMILIES["CaGP"](X, Y, likelihood="student_t"))
    with pytest.raises(UnsupportedError, match="noise: StudentTNoise gives every value a variance of its own"):
        model.condition_on_observations(X[:1], Y[:1], noise=torch.ones(1, 1).double())
    state = model.state_dict()
    other = fitted(FAMILIES["CaGP"](X, clean, likelihood="student_t"))
    other.load_state_dict(state)
    assert other.suspects == []
    model.set_train_data(targets=other.train_targets)
    assert model.suspects == []
    assert (model.posterior(X, observation_noise=True).variance > model.posterior(X).variance).all()


@pytest.mark.parametrize("family", ["CaGP", "GRIEF", "SoftKI", "WISKI"])
def test_loaded_hyperparameters_have_their_weights(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has none of the rows. Without weights outliers counted in full, and no row was suspicious."""
    monkeypatch.setattr(student_t, "ROWS", 60)  # others follow from these
    X, clean, Y = outliers()
    model = fitted(FAMILIES[family](X, Y, likelihood="student_t"))
    loaded = FAMILIES[family](X, Y, likelihood="student_t")
    loaded.load_state_dict(model.state_dict())
    assert loaded.suspects
    errors = [(each.eval().posterior(X).mean - clean).square().mean().sqrt() for each in (loaded, model)]
    assert errors[0] < 1.2 * errors[1] + 0.01


def test_a_start_that_fails_is_given_up_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    X, _, Y = outliers()
    exact = ExactGP.of(Plan("exact", "matern52", student_t=True).build(X, Y))
    attempts, whole = iter([fails]), student_t.fit_jointly
    monkeypatch.setattr(student_t, "fit_jointly", lambda *given: next(attempts, whole)(*given))
    with pytest.warns(FitWarning, match="a start with Student-t noise failed and was given up: no"):
        found, _, _ = fit_student_t(exact, {})
    assert sorted(found.D[:, 0].topk(len(BAD)).indices.tolist()) == BAD


def test_another_kernel_may_start_from_the_weights_of_the_first() -> None:
    X, _, Y = outliers()
    first, second = (ExactGP.of(Plan("exact", name, student_t=True).build(X, Y)) for name in ("rbf", "matern52"))
    found, _, _ = fit_student_t(first, {})
    started, degrees, bound = fit_student_t(second, {}, found.D)
    searched, same, best = fit_student_t(ExactGP.of(Plan("exact", "matern52", student_t=True).build(X, Y)), {})
    assert bound > best - 0.01
    assert degrees == same
    given = ExactGP.of(Plan("exact", "matern52", student_t=True).build(X, Y))
    gaussian = ExactGP.of(Plan("exact", "matern52").build(X, Y))
    gaussian.fit_from_best_start({})
    from_a_fit, _, as_good = fit_student_t(given, {}, gaussian=dict(gaussian.modules.named_parameters()))
    assert as_good == pytest.approx(best, abs=1e-3)
    for exact in (found, started, searched, from_a_fit):
        assert sorted(exact.D[:, 0].topk(len(BAD)).indices.tolist()) == BAD
