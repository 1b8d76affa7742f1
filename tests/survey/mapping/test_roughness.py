"""How rough a quantity is beside what its model says: against the model without each measurement, and a known truth."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import forecast, model_of
from bo_scale.survey.mapping.roughness import HELD, NEIGHBOURS, left_out_squares, predicted_share, roughness
from bo_scale.survey.mapping.sites import Sites

BOX = (0.0, 0.0, 1000.0, 800.0)
KERNELS = {"exact": ("matern52", []), "wiski": ("matern32", [[12, 10]]), "sparse": ("matern12", [[30, 24]])}


def sites_of(n: int = 20, variance: bool = False, seed: int = 0) -> Sites:
    rng = np.random.default_rng(seed)
    xy = rng.random((n, 2)) * [1000.0, 800.0]
    z = np.sin(xy[:, 0] / 90) + xy[:, 1] / 500 + 0.1 * rng.standard_normal(n)
    return Sites(xy, z, rng.uniform(0.01, 0.2, n) if variance else None)


def fit_of(kernel: str, n: int, noise: float = 0.1, nugget: float = 0.0) -> Fit:
    """With other hyperparameters than those that fits start from."""
    name, grids = KERNELS[kernel]
    fit = Fit(name, n, BOX, 0.1, 0.8, grids, {}, nugget=nugget)
    values = {
        key: (value.detach() + 0.3).flatten().tolist()
        for key, value in model_of(sites_of(n, nugget > 0), fit).named_parameters()
    }
    if nugget == 0:
        values["likelihood.noise_covar.raw_noise"] = [noise]
    return replace(fit, values=values)


def some(sites: Sites, rows: np.ndarray) -> Sites:
    return Sites(sites.xy[rows], sites.z[rows], None if sites.variance is None else sites.variance[rows])


def left_out_one_by_one(sites: Sites, fit: Fit) -> np.ndarray:
    """Each measurement beside the prediction of the model of the others."""
    errors, variances = left_out(sites, fit)
    return np.square(errors) / variances


def left_out(sites: Sites, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Errors of predictions of each measurement by the model of the others, and their variances."""
    errors, variances = [], []
    for i in range(len(sites.z)):
        others = model_of(some(sites, np.arange(len(sites.z)) != i), fit)
        mean, sd = forecast(others, fit, sites.xy[i : i + 1], progress=False)
        known = None if sites.variance is None else sites.variance[i] + fit.unit**2 * fit.nugget
        noise = fit.unit**2 * float(others.measurement_noise(0)) if known is None else known
        errors.append(sites.z[i] - mean[0])
        variances.append(sd[0] ** 2 + noise)
    return np.array(errors), np.array(variances)


@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize("n", [2, 20])
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_what_others_let_expect_is_the_prediction_of_their_model(kernel: str, n: int, variance: bool) -> None:
    sites, fit = sites_of(n, variance), fit_of(kernel, n, nugget=0.05 if variance else 0.0)
    found = left_out_squares(model_of(sites, fit), fit, sites)
    np.testing.assert_allclose(found, left_out_one_by_one(sites, fit), rtol=1e-6)


@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_the_share_that_others_predict_is_that_of_their_model(kernel: str, variance: bool) -> None:
    sites, fit = sites_of(20, variance), fit_of(kernel, 20, nugget=0.05 if variance else 0.0)
    weight = 1 / (sites.variance + fit.unit**2) if sites.variance is not None else np.ones(20)
    error = left_out(sites, fit)[0]
    mean = np.average(sites.z, weights=weight)
    expected = 1 - (weight * error**2).sum() / (weight * (sites.z - mean) ** 2).sum()
    assert predicted_share(model_of(sites, fit), fit, sites) == pytest.approx(expected, rel=1e-6)


def test_it_holds_without_noise_and_for_sites_measured_twice() -> None:
    sites, fit = sites_of(), fit_of("exact", 20, noise=1e-6)
    found = left_out_squares(model_of(sites, fit), fit, sites)
    np.testing.assert_allclose(found, left_out_one_by_one(sites, fit), rtol=1e-2)
    twice = Sites(np.tile(sites.xy, (2, 1)), np.r_[sites.z, sites.z + 0.001], None)
    found = left_out_squares(model_of(twice, fit), fit, twice)
    np.testing.assert_allclose(found, left_out_one_by_one(twice, fit), rtol=1e-2)
    assert np.isfinite(roughness(model_of(twice, fit), fit, twice, twice.xy)).all()


def test_one_site_and_values_that_are_all_the_same() -> None:
    for n in (1, 30):
        sites = replace(sites_of(n), z=np.full(n, 0.1))  # the offset of the fit
        fit = replace(fit_of("exact", n), values={})
        found = roughness(model_of(sites, fit), fit, sites, sites_of(7, seed=1).xy)
        assert np.isfinite(found).all()
        assert (found > 0).all()
        assert (found < 1).all()


def test_it_is_the_mean_of_the_squares_around_drawn_towards_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, fit, places = sites_of(60), fit_of("exact", 60), sites_of(9, seed=4).xy
    squares = np.random.default_rng(1).random(60) * 5
    monkeypatch.setattr("bo_scale.survey.mapping.roughness.left_out_squares", lambda *_: squares)
    found = roughness(model_of(sites, fit), fit, sites, places)
    for place, value in zip(places, found, strict=True):
        distance = np.linalg.norm(sites.xy - place, axis=1)
        weight = np.exp(-2 * (distance / np.sort(distance)[NEIGHBOURS - 1]) ** 2)
        assert value == pytest.approx((HELD + weight @ squares) / (HELD + weight.sum()), rel=5e-3)
    monkeypatch.setattr("bo_scale.survey.mapping.roughness.left_out_squares", lambda *_: np.ones(60))
    np.testing.assert_allclose(roughness(model_of(sites, fit), fit, sites, places), 1.0)


def test_of_many_sites_some_are_compared() -> None:
    rng = np.random.default_rng(5)
    xy = rng.random((400, 2)) * [1000.0, 800.0]
    sites = Sites(xy, np.where(xy[:, 0] < 500, 0.1, 1.5) * rng.standard_normal(400), rng.uniform(0.01, 0.02, 400))
    fit, places = fit_of("exact", 400, nugget=0.05), np.array([[200.0, 400.0], [800.0, 400.0]])
    model = model_of(sites, fit)
    every = roughness(model, fit, sites, places)
    found = roughness(model, fit, sites, places, most=150)
    assert found[1] > 4 * found[0]
    np.testing.assert_allclose(np.log(found), np.log(every), atol=1.0)


def test_a_quantity_of_the_roughness_that_the_model_says_has_one_of_one() -> None:
    fit, rng = fit_of("exact", 200), np.random.default_rng(2)
    xy = rng.random((200, 2)) * [1000.0, 800.0]
    joint = model_of(Sites(xy[:1], np.full(1, 0.1), None), fit)
    prior = joint.covar_module(joint.transform_inputs(torch.from_numpy(xy))).to_dense().detach().numpy()
    noise = float(joint.measurement_noise(0))
    L = np.linalg.cholesky(prior + noise * np.eye(200))
    mean = float(joint.mean_module(joint.transform_inputs(torch.from_numpy(xy[:1]))).detach())
    squares = []
    for _ in range(20):
        sites = Sites(xy, fit.offset + fit.unit * (mean + L @ rng.standard_normal(200)), None)
        squares.append(left_out_squares(model_of(sites, fit), fit, sites))
    assert np.mean(squares) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_it_is_large_where_the_quantity_is_rougher_than_the_model_says(kernel: str) -> None:
    rng = np.random.default_rng(5)
    xy = rng.random((150, 2)) * [1000.0, 800.0]
    amplitude = np.where(xy[:, 0] < 500, 0.1, 1.5)
    sites = Sites(xy, amplitude * np.sin(xy[:, 0] / 25) * np.cos(xy[:, 1] / 25), None)
    fit = replace(fit_of(kernel, 150), offset=0.0)
    found = roughness(model_of(sites, fit), fit, sites, np.array([[200.0, 400.0], [800.0, 400.0]]))
    assert found[0] < 0.5
    assert found[1] > 4 * found[0]
