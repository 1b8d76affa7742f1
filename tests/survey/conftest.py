"""What all tests of surveys share. What takes seconds to import is imported where it is used."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="package", autouse=True)
def _few_scored() -> Iterator[None]:
    """Processes of the nearest sites are fitted to few; where that matters, tests say how many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bo_scale.survey.mapping.scored.SCORED", 60)
        patch.setattr("bo_scale.survey.mapping.scored.SPARSE", 60)
        patch.setattr("bo_scale.survey.mapping.scored.HOLLOW", 60)
        patch.setattr("bo_scale.survey.mapping.scored.STEPS", 15)
        yield


SHORT = ("geography", "output", "plan", "report", "routes", "store", "tables")
"""Tests of these folders are about what comes after a fit."""


@pytest.fixture(autouse=True)
def _short(request: pytest.FixtureRequest) -> None:
    """Fits of surveys are short where they do not matter."""
    if request.path.parent.name in SHORT:
        request.getfixturevalue("short_unless_whole")


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 250)
        patch.setattr("bo_scale.survey.plan.problem.CELLS", 1500)
        patch.setattr("bo_scale.survey.survey.MAP_CELLS", 1500)
        patch.setattr("bo_scale.survey.fitted.CELLS", 400)
        patch.setattr("bo_scale.survey.mapping.exceedance.CELLS", 400)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A survey with a fit, and beside it, as unfitted.gpkg, without."""
    from samples import sites_table, write, write_area

    from bo_scale.survey import Survey

    folder = tmp_path_factory.mktemp("made")
    table, area = write(folder, "sites.csv", sites_table()), write_area(folder)
    path = folder / "s.gpkg"
    survey = Survey.create(path, table, "zinc", area=area, transform="log", threshold=10.0, kernel="matern32")
    shutil.copy(path, folder / "unfitted.gpkg")
    survey.predict(cells=50)
    return folder


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "s.gpkg", tmp_path / "s.gpkg"))


@pytest.fixture
def unfitted(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "unfitted.gpkg", tmp_path / "u.gpkg"))


@pytest.fixture(scope="session")
def dutch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In metres, with errors, candidates and weights, without an area."""
    import numpy as np
    import pandas as pd
    from samples import write

    from bo_scale.survey import Survey

    folder = tmp_path_factory.mktemp("dutch")
    rng = np.random.default_rng(5)
    xy = rng.uniform([180_000, 330_000], [182_000, 333_000], (40, 2)).round(1)
    sd = np.where(np.arange(40) < 30, 0.05, 1.5)
    lead = (3 + np.sin(xy[:, 0] / 400) + np.cos(xy[:, 1] / 500) + sd * rng.normal(size=40)).round(4)
    table = pd.DataFrame({"x": xy[:, 0], "y": xy[:, 1], "lead": lead, "sd": sd.astype(object)})
    table.loc[0, "sd"] = ""
    write(folder, "sites.csv", table)
    places = rng.uniform([180_500, 330_700], [181_500, 332_300], (12, 2)).round(0)
    names = [f"well {k}" for k in range(12)]
    candidates = pd.DataFrame({"name": names, "x": places[:, 0], "y": places[:, 1]})
    candidates.loc[4, "x"] = 250_000.0  # outside
    lines = candidates.to_csv(index=False).splitlines()
    (folder / "candidates.csv").write_text("\n".join([*lines[:3], "", *lines[3:]]) + "\n")
    people = rng.uniform([180_000, 330_000], [182_000, 333_000], (300, 2)).round(0)
    weight = np.where((people[:, 0] < 181_000) & (people[:, 1] < 331_500), 100, 0)
    write(folder, "weights.csv", pd.DataFrame({"x": people[:, 0], "y": people[:, 1], "weight": weight}))
    common: dict[str, Any] = {"crs": "EPSG:28992", "error": "sd", "kernel": "matern32"}
    survey = Survey.create(folder / "s.gpkg", folder / "sites.csv", "lead", **common)
    survey.predict(cells=50)
    fit = survey.settings["fit"]
    for name, more in (("candidates", {"candidates": folder / "candidates.csv"}), ("weights", {})):
        weights = folder / "weights.csv" if name == "weights" else None
        other = Survey.create(folder / f"{name}.gpkg", folder / "sites.csv", "lead", **common, **more, weights=weights)
        other._save(replace(other.workspace.state, settings={**other.settings, "fit": fit}))
    return folder
