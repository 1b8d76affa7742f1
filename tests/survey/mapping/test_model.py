import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist

from bo_scale.errors import SurveyError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping import model as module
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import KERNELS, Box
from bo_scale.survey.mapping.model import MARGIN, box_of, coordinates, fit_model, model_of
from bo_scale.survey.mapping.sites import Sites

BOX: Box = (400_000.0, 5_600_000.0, 404_000.0, 5_602_000.0)
SOME = np.random.default_rng(99).random((50, 2)) * [4000.0, 2000.0] + BOX[:2]


def smooth(xy: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin((xy[:, 0] - BOX[0]) / 700) + np.cos((xy[:, 1] - BOX[1]) / 500))


def places(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 2)) * [4000.0, 2000.0] + BOX[:2]


def predicted(sites: Sites, fit: Fit, model: ScalableModel, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        located = model.processes[0].locate(coordinates(model, fit, xy))
        return fit.offset + fit.unit * located.mean.numpy(), fit.unit * located.variance().sqrt().numpy()


def fitted(sites: Sites, kernel: str = "matern32") -> tuple[np.ndarray, np.ndarray]:
    fit, model = fit_model(sites, BOX, kernel)
    return predicted(sites, fit, model, SOME)


@dataclass(frozen=True)
class Fitted:
    sites: Sites
    fit: Fit
    model: ScalableModel


def small_grids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "EXACT", 60)
    patch.setattr(module, "FINE_POINTS", 700)
    patch.setattr(module, "COARSE_POINTS", 150)


@pytest.fixture(scope="module")
def fits() -> dict[str, Fitted]:
    rng = np.random.default_rng(0)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        small_grids(patch)
        for name, n, kernel in (
            ("exact", 50, "matern52"),
            ("known", 50, "matern32"),
            ("grid", 80, "matern12"),
            ("two", 1500, "auto"),
        ):
            xy = places(n)
            rough = 0.4 * np.sin(xy[:, 0] / 40) * (name == "two")
            variance = rng.uniform(0.001, 0.3, n) if name == "known" else None
            sd = 0.1 if variance is None else np.sqrt(variance)
            sites = Sites(xy, 5 + 3 * smooth(xy) + rough + sd * rng.normal(size=n), variance)
            found[name] = Fitted(sites, *fit_model(sites, BOX, kernel))
    return found


@pytest.fixture(params=["exact", "known", "grid", "two"])
def case(request: pytest.FixtureRequest, fits: dict[str, Fitted]) -> Fitted:
    return fits[request.param]


def test_a_model_comes_back_from_the_numbers_of_its_fit(case: Fitted) -> None:
    saved = Fit.of(json.loads(json.dumps(case.fit.__dict__)))
    assert saved == case.fit
    wanted = predicted(case.sites, case.fit, case.model, SOME)
    found = predicted(case.sites, saved, model_of(case.sites, saved), SOME)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-8)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-8)


def test_it_predicts_what_was_measured(case: Fitted) -> None:
    truth, (mean, sd) = 5 + 3 * smooth(SOME), predicted(case.sites, case.fit, case.model, SOME)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.6
    assert (np.abs(mean - truth) < 2 * sd + 0.45 * (case.fit.kernel == "two-scale")).mean() >= 0.75


@pytest.mark.parametrize("name", ["exact", "known"])
def test_some_hundreds_of_sites_are_kriged_exactly(fits: dict[str, Fitted], name: str) -> None:
    """Against simple kriging written out, in metres and in the units of the values."""
    case = fits[name]
    parameters = case.model.covar_module
    lengths = 4000.0 * parameters.base_kernel.lengthscale.detach().numpy().ravel()
    variance = parameters.outputscale.item() * case.fit.unit**2
    nu = {"matern52": 2.5, "matern32": 1.5}[case.fit.kernel]

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = np.sqrt(2 * nu) * cdist(a / lengths, b / lengths)
        return np.asarray(variance * (1 + r + (r**2 / 3 if nu == 2.5 else 0)) * np.exp(-r))

    constant = case.fit.offset + case.fit.unit * case.model.mean_module.constant.item()
    xy, noise = case.sites.xy, case.sites.variance
    noise = None if noise is None else noise + case.fit.nugget * case.fit.unit**2
    noise = case.model.likelihood.noise.item() * case.fit.unit**2 * np.ones(50) if noise is None else noise
    K, k = kernel(xy, xy) + np.diag(noise), kernel(SOME, xy)
    mean, sd = predicted(case.sites, case.fit, case.model, SOME)
    np.testing.assert_allclose(mean, constant + k @ np.linalg.solve(K, case.sites.z - constant), rtol=1e-5)
    np.testing.assert_allclose(sd**2, variance - (k * np.linalg.solve(K, k.T).T).sum(1), rtol=1e-3, atol=1e-6)
    assert fits["exact"].fit.grids == []


def test_many_sites_get_two_scales_on_square_cells(fits: dict[str, Fitted]) -> None:
    case = fits["two"]
    assert case.fit.kernel == "two-scale"
    assert case.fit.count == 1500
    for columns, rows in case.fit.grids:
        assert columns / rows == pytest.approx(2.0, rel=0.15)
    assert [np.prod(grid) for grid in case.fit.grids] == pytest.approx([700, 150], rel=0.1)
    assert fits["grid"].fit.grids == case.fit.grids[:1]
    fine, coarse = (part.base_kernel.lengthscale[..., 0].item() for part in case.model.covar_module.kernels)
    assert fine != coarse  # which is the rough one of two grids as small as these is chance


def test_measurements_with_larger_errors_count_less() -> None:
    xy = places(20)
    z = smooth(xy)
    z[0] += 5.0
    beliefs = []
    for sd in (0.01, 5.0):
        variance = np.full(20, 0.01**2)
        variance[0] = sd**2
        sites = Sites(xy, z, variance)
        fit = Fit("matern32", 20, BOX, 0.0, 1.0, [], {})
        beliefs.append(predicted(sites, fit, model_of(sites, fit), xy[:1]))
    (believed, sure), (doubted, unsure) = beliefs
    assert believed[0] == pytest.approx(z[0], abs=0.5)
    assert abs(doubted[0] - z[0]) > 2.0
    assert sure[0] < 0.02 < unsure[0]


def test_hyperparameters_are_found_again() -> None:
    rng, n = np.random.default_rng(4), 250
    xy = places(n, 7)
    lengths, sd, noise = np.array([600.0, 1400.0]), 4.0, 0.8
    r = np.sqrt(3) * cdist(xy / lengths, xy / lengths)
    f = sd * np.linalg.cholesky((1 + r) * np.exp(-r) + 1e-9 * np.eye(n)) @ rng.normal(size=n)
    fit, model = fit_model(Sites(xy, 100 + f + noise * rng.normal(size=n), None), BOX, "matern32")
    found = 4000 * model.covar_module.base_kernel.lengthscale.detach().numpy().ravel()
    assert (np.abs(np.log(found / lengths)) < np.log(2.2)).all()
    assert model.likelihood.noise.item() ** 0.5 * fit.unit == pytest.approx(noise, rel=0.25)
    assert abs(np.log(model.covar_module.outputscale.item() ** 0.5 * fit.unit / sd)) < np.log(1.8)


def test_few_sites_have_one_lengthscale_and_more_have_two(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(places(20), smooth(places(20)), None)
    fit, model = fit_model(sites, BOX, "matern32")
    assert fit.isotropic
    assert model.covar_module.base_kernel.lengthscale.shape == (1, 1)
    monkeypatch.setattr(module, "FEW_FOR_TWO", 20)
    fit, model = fit_model(sites, BOX, "matern32")
    assert not fit.isotropic
    assert model.covar_module.base_kernel.lengthscale.shape == (1, 2)


def test_a_fit_saved_without_isotropic_has_two_lengthscales() -> None:
    sites = Sites(places(20), smooth(places(20)), None)
    fit, _ = fit_model(sites, BOX, "matern32")
    saved = {key: value for key, value in fit.__dict__.items() if key != "isotropic"}
    name = "covar_module.base_kernel.raw_lengthscale"
    saved["values"] = {**saved["values"], name: 2 * saved["values"][name]}
    model = model_of(sites, Fit.of(json.loads(json.dumps(saved))))
    assert model.covar_module.base_kernel.lengthscale.shape == (1, 2)


@pytest.mark.parametrize(("kernel", "learned"), [("matern32", 4), ("two-scale", 6)])
def test_variances_give_back_what_parameters_took(kernel: str, learned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(places(20), smooth(places(20)) + 0.2 * np.random.default_rng(0).normal(size=20), None)
    fit, model = fit_model(sites, BOX, kernel)
    monkeypatch.setattr(module, "_learned", lambda *_: -2)
    before = fit_model(sites, BOX, kernel)
    noise = [m.likelihood.noise.item() for m in (before[1], model)]
    factor = 20 / (18 - learned)
    assert noise[1] == pytest.approx(factor * noise[0], rel=1e-6)
    (same, less), (mean, sd) = predicted(sites, *before, SOME), predicted(sites, fit, model, SOME)
    np.testing.assert_allclose(mean, same, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(sd**2, factor * less**2, rtol=1e-6)
    stretched = replace(fit, stretch=(2.0, 30.0))
    assert module._learned(model, stretched) == module._learned(model, fit) == -2
    monkeypatch.undo()
    assert module._learned(model, stretched) == module._learned(model, fit) + 2 == learned + 2


def test_a_smoother_kernel_must_be_better_by_its_prior_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    xy = places(60)
    sites = Sites(xy, smooth(xy) + 0.01 * np.random.default_rng(0).normal(size=60), None)
    assert fit_model(sites, BOX)[0].kernel == "matern52"
    monkeypatch.setattr(module, "SMOOTHER", 1e3)
    assert fit_model(sites, BOX)[0].kernel == "matern12"


def test_a_known_noise_is_not_widened() -> None:
    xy = places(20)
    fit, model = fit_model(Sites(xy, smooth(xy), np.full(20, 0.04)), BOX, "matern32")
    again = model_of(Sites(xy, smooth(xy), np.full(20, 0.04)), fit)
    found = (model.measurement_noise(0), again.measurement_noise(0))
    assert float(found[0]) * fit.unit**2 == pytest.approx(0.04 + fit.nugget * fit.unit**2)
    assert found[0] == found[1]


def test_auto_takes_the_best_of_three_by_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    xy = places(45)
    fit, model = fit_model(Sites(xy, smooth(xy), None), BOX)
    assert fit.kernel == "matern52"  # sines are smooth
    assert model.covar_module.base_kernel.nu == 2.5
    for wanted, nu in (("matern12", 0.5), ("matern32", 1.5)):
        monkeypatch.setattr(module, "best_fit", lambda starts, *_, nu=nu: _of_smoothness(starts, nu))
        fit, model = fit_model(Sites(xy, smooth(xy), None), BOX)
        assert fit.kernel == wanted
        assert model.covar_module.base_kernel.nu == nu


def _of_smoothness(starts: list[ScalableModel], nu: float) -> ScalableModel:
    assert len(starts) == 3
    return next(start for start in starts if start.covar_module.base_kernel.nu == nu)


def test_one_site_is_enough() -> None:
    mean, sd = fitted(Sites(np.array([[402_000.0, 5_601_000.0]]), np.array([7.0]), None))
    np.testing.assert_allclose(mean, 7.0, atol=0.5)
    assert (sd > 0.1).all()
    assert np.isfinite(sd).all()


def test_three_sites_are_enough() -> None:
    xy = np.array([[400_500.0, 5_600_500.0], [403_500.0, 5_601_500.0], [402_000.0, 5_600_200.0]])
    sites = Sites(xy, np.array([1.0, 3.0, 2.0]), None)
    fit, model = fit_model(sites, BOX, "matern32")
    mean, sd = predicted(sites, fit, model, np.concatenate([xy, SOME]))
    assert mean.min() > 0.5
    assert mean.max() < 3.5
    assert mean[0] < mean[2] < mean[1]
    assert sd[:3].max() < sd[3:].max()


@pytest.mark.parametrize("value", [0.0, -3.7e9, 1e-12])
def test_values_that_are_all_the_same_stay_the_same(value: float) -> None:
    mean, sd = fitted(Sites(places(12), np.full(12, value), None), "matern52")
    np.testing.assert_allclose(mean, value, rtol=1e-9, atol=0.05)
    assert np.isfinite(sd).all()
    assert (sd < 1.0).all()


def test_places_may_repeat_and_then_tell_the_noise() -> None:
    xy = np.repeat(places(12), 4, axis=0)
    z = smooth(xy) + 0.5 * np.random.default_rng(2).normal(size=48)
    sites = Sites(xy, z, None)
    fit, model = fit_model(sites, BOX, "matern32")
    within = z.reshape(12, 4).var(1, ddof=1).mean() ** 0.5
    assert model.likelihood.noise.item() ** 0.5 * fit.unit == pytest.approx(within, rel=0.3)
    assert np.isfinite(predicted(sites, fit, model, xy)[1]).all()


@pytest.mark.parametrize("variance", [None, 0.0])
def test_without_noise_it_interpolates(variance: float | None) -> None:
    xy = places(60)
    known = None if variance is None else np.full(60, variance)
    sites = Sites(xy, smooth(xy), known)
    fit, model = fit_model(sites, BOX, "matern52")
    mean, sd = predicted(sites, fit, model, xy)
    np.testing.assert_allclose(mean, sites.z, atol=0.02)
    assert (sd < 0.05).all()
    assert model.measurement_noise(0).item() >= 1e-6 * (1 - 1e-9)


def test_units_do_not_matter(fits: dict[str, Fitted]) -> None:
    """The same sites in other units of values, elsewhere: the same hyperparameters."""
    case = fits["exact"]
    moved = replace(case.sites, xy=case.sites.xy + 1e5, z=1e6 * case.sites.z - 3e7)
    west, south, east, north = BOX
    fit, _ = fit_model(moved, (west + 1e5, south + 1e5, east + 1e5, north + 1e5), "matern52")
    for name, values in case.fit.values.items():
        np.testing.assert_allclose(fit.values[name], values, rtol=1e-2, atol=1e-3, err_msg=name)


def test_coordinates_have_one_unit_for_both_axes(fits: dict[str, Fitted]) -> None:
    corners = np.array([BOX[:2], BOX[2:]])
    np.testing.assert_allclose(
        coordinates(fits["exact"].model, fits["exact"].fit, corners), [[0, 0], [1, 0.5]], atol=1e-12
    )


def test_the_box_holds_sites_and_area_with_a_margin() -> None:
    xy = np.array([[-10.0, 50.0], [60.0, 20.0]])
    west, south, east, north = box_of(xy, (0.0, 0.0, 100.0, 40.0))
    margin = MARGIN * 110
    np.testing.assert_allclose([west, south, east, north], [-10 - margin, -margin, 100 + margin, 50 + margin])


def test_what_cannot_be_fitted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(places(5), stats.norm.ppf((np.arange(5) + 0.5) / 5), None)
    with pytest.raises(SurveyError, match=f"choose one of {', '.join(KERNELS)}"):
        fit_model(sites, BOX, "gaussian")
    monkeypatch.setattr(module, "best_fit", lambda *_: None)
    with pytest.raises(SurveyError, match="outliers"):
        fit_model(sites, BOX)


@pytest.mark.parametrize("many", [False, True], ids=["exact", "grids"])
def test_what_varies_beyond_known_errors_is_no_structure(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that are too small by far: intervals at new places hold nevertheless."""
    if many:
        monkeypatch.setattr("bo_scale.survey.mapping.model.EXACT", 200)
        monkeypatch.setattr("bo_scale.survey.mapping.model.FINE_POINTS", 900)
    rng, n = np.random.default_rng(5), 400
    xy = places(n, seed=3) if many else places(n, seed=3)[:200]
    z = smooth(xy) + 0.3 * rng.normal(size=len(xy))
    fit, model = fit_model(Sites(xy, z, np.full(len(xy), 0.01**2)), BOX)
    assert bool(fit.grids) == many
    assert fit.nugget**0.5 * fit.unit == pytest.approx(0.3, rel=0.25)
    new = places(300, seed=4)
    mean, sd = predicted(Sites(xy, z, None), fit, model, new)
    assert np.sqrt(np.mean((mean - smooth(new)) ** 2)) < 0.16
    assert 0.85 < np.mean(np.abs(mean - smooth(new)) < 1.96 * sd) <= 1.0
