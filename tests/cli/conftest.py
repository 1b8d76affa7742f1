"""A survey in a folder, which all commands share. What takes seconds to import is imported where it is used."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="package")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 150)
        patch.setattr("bo_scale.survey.plan.problem.CELLS", 400)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import geopandas as gpd
    import shapely
    from commands import sites

    from bo_scale.survey import Survey

    folder = tmp_path_factory.mktemp("cli")
    sites().to_csv(folder / "sites.csv", index=False)
    gpd.GeoDataFrame(geometry=[shapely.box(8.0, 47.0, 8.1, 47.05)], crs=4326).to_file(folder / "area.geojson")
    survey = Survey.create(folder / "s.gpkg", folder / "sites.csv", "pb", kernel="matern32", threshold=22.0)
    survey.predict(cells=20)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in ("sites.csv", "area.geojson", "s.gpkg"):
        (tmp_path / file).write_bytes((made / file).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path
