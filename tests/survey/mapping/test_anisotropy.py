"""Anisotropy with an angle: recovered from simulations, the same at any size, given and undone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples import write
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping import anisotropy as module
from bo_scale.survey.mapping.anisotropy import Stretch, learned_stretch, parsed
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import fit_model, forecast, model_of, predict
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.structure import Structure

BOX = (0.0, 0.0, 10_000.0, 10_000.0)


def drawn(n: int, stretch: Stretch, seed: int = 0, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, a field of ν = 3/2 and range 2.7 × 1500 m along its axis, and measurements."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 10_000, (n, 2))
    r = np.sqrt(3) * cdist(stretch.undone(xy), stretch.undone(xy)) / 1500
    f = np.linalg.cholesky((1 + r) * np.exp(-r) + 1e-8 * np.eye(n)) @ rng.normal(size=n)
    return xy, f, f + noise * rng.normal(size=n)


def test_a_stretch_leaves_distances_along_the_axis() -> None:
    u = Stretch(3.0, 30.0).undone(np.array([[0.0, 0.0], [np.sin(np.pi / 6), np.cos(np.pi / 6)], [0.0, 1.0]]))
    assert np.linalg.norm(u[1] - u[0]) == pytest.approx(1)
    assert np.linalg.norm(u[2] - u[0]) == pytest.approx(np.hypot(np.cos(np.pi / 6), 3 * np.sin(np.pi / 6)))


@pytest.mark.parametrize("angle", [20.0, 115.0])
def test_ratio_and_angle_are_recovered(angle: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE", 160)
    xy, _, z = drawn(160, Stretch(4.0, angle), seed=int(angle))
    found = learned_stretch(xy, z, np.full(160, 0.09))
    assert found is not None
    assert abs((found.angle - angle + 90) % 180 - 90) < 8
    assert 2.5 < found.ratio < 6
    assert learned_stretch(*drawn(160, Stretch(1.0, 0.0))[::2], None) is None


def test_the_gradient_is_that_of_the_density() -> None:
    xy, _, z = drawn(40, Stretch(2.0, 60.0))
    data = [tuple(module.torch.from_numpy(each) for each in (xy / 10_000, z, np.full(40, 0.1)))]
    theta = np.array([0.5, -0.3, 0.1, np.log(0.2), np.log(0.05), -0.5, -1.0, -2.0])
    for nu in ((0.5, 1.5), (2.5, 1.5)):
        numeric = approx_fprime(theta, lambda t, nu=nu: module._loss(t, nu, data)[0], 1e-6)
        np.testing.assert_allclose(module._loss(theta, nu, data)[1], numeric, rtol=1e-3, atol=1e-3)


def test_every_size_of_model_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact, on grids and from the nearest sites: all are the isotropic one in stretched places."""
    monkeypatch.setattr("bo_scale.survey.mapping.model.FINE_POINTS", 400)
    monkeypatch.setattr("bo_scale.survey.mapping.model.RANK", 64)
    stretch = Stretch(4.0, 35.0)
    xy, _, z = drawn(150, stretch)
    sites, turned = Sites(xy, z, None), Sites(stretch.undone(xy), z, None)
    at = np.random.default_rng(5).uniform(1000, 9000, (40, 2))
    fit, model = fit_model(sites, BOX, "matern32", anisotropy=stretch)
    assert fit.stretch == (4.0, 35.0)
    again = Fit.of(fit.saved)
    assert again == fit
    plain = replace(fit, stretch=None, box=fit.within)
    expected = forecast(model_of(turned, plain), plain, stretch.undone(at), progress=False)
    np.testing.assert_allclose(forecast(model, fit, at, progress=False), expected, rtol=1e-5, atol=1e-6)
    part = Structure.of(fit, known_errors=False).parts[0]
    assert (part.ratio, part.angle) == (pytest.approx(4.0), 35.0)
    assert 2000 < part.ranges[0] < 8000
    on_grid, coarse = fit_model(sites, BOX, "matern32", exact_up_to=10, anisotropy=stretch)
    plain = replace(on_grid, stretch=None, box=on_grid.within)
    expected = forecast(model_of(turned, plain), plain, stretch.undone(at), progress=False)
    np.testing.assert_allclose(forecast(coarse, on_grid, at, progress=False), expected, rtol=1e-4, atol=1e-5)
    near = Nearest([1.5, 1.5], [1500.0, 1500.0], [0.5, 0.5], 0.0, 0.09)
    from_nearest = replace(on_grid, nearest=vars(near))
    mean, sd = predict(coarse, from_nearest, sites, at, progress=False)
    plain = replace(plain, nearest=vars(near))
    other = predict(model_of(turned, plain), plain, turned, stretch.undone(at), progress=False)
    np.testing.assert_allclose((mean, sd), other, rtol=1e-4, atol=1e-5)


def test_what_was_given_is_kept_and_can_be_undone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey = Survey(path)
    assert survey.anisotropy is None
    assert main(["survey", "model", str(path), "--anisotropy", "3,225"]) == 0
    assert "3 times as far along an axis of bearing 45°" in capsys.readouterr().out
    assert Survey(path).anisotropy == (3.0, 45.0)
    assert any("bearing 45°" in note for note in Survey(path).predict(cells=50).notes)
    assert "from north-east to south-west" in Survey(path).status()
    assert main(["survey", "model", str(path), "--anisotropy", "learn"]) == 0
    assert Survey(path).anisotropy is None
    for wrong in ("0.3,45", "3", "north"):
        assert main(["survey", "model", str(path), "--anisotropy", wrong]) == 1
        assert "anisotropy" in capsys.readouterr().err
    assert parsed("3,-30") == Stretch(3.0, 150.0)


def test_a_survey_learns_it_only_where_the_evidence_asks(tmp_path: Path) -> None:
    xy, _, z = drawn(120, Stretch(5.0, 60.0), seed=1)
    table = pd.DataFrame({"x": xy[:, 0] + 6e5, "y": xy[:, 1] + 5.6e6, "v": z})
    survey = Survey.create(
        tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "v", crs="EPSG:32631", kernel="matern32"
    )
    survey.predict(cells=50)
    assert survey.anisotropy is not None
    assert survey.anisotropy[1] == pytest.approx(60, abs=8)
    assert "about north-east to south-west" in survey.report().text
    assert survey.predict(cells=50).anisotropy == survey.anisotropy
    survey.change_anisotropy("none")
    survey.predict(cells=50)
    assert survey.anisotropy is None
    with pytest.raises(SurveyError, match="give the longer range by the shorter"):
        survey.change_anisotropy((0.5, 10.0))
