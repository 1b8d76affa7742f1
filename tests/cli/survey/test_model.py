"""`bo-scale survey model`: what is changed together."""

from pathlib import Path

import geopandas as gpd
import pytest
import shapely
from samples import sites_table, write

from bo_scale.cli import main
from bo_scale.survey import Survey


def test_divides_are_given_and_exchanged_for_an_anisotropy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, ridge = write(tmp_path, "s.csv", sites_table(20)), tmp_path / "ridge.geojson"
    line = shapely.LineString([(5.74, 50.94), (5.74, 50.98)])
    gpd.GeoDataFrame(geometry=[line], crs=4326).to_file(ridge)
    path = str(tmp_path / "s.gpkg")
    main(["survey", "init", str(table), "--value", "zinc", "--divide", str(ridge), "--out", path])
    assert "Correlation goes around divides: ridge.geojson." in capsys.readouterr().out
    main(["survey", "model", path, "--divide", "none", "--anisotropy", "2,30"])
    assert "Divides: none." in capsys.readouterr().out
    assert Survey(path).anisotropy == (2.0, 30.0)
    main(["survey", "model", path, "--anisotropy", "none", "--divide", str(ridge)])
    assert "ridge.geojson" in capsys.readouterr().out
    assert Survey(path).divides == ["ridge.geojson"]
