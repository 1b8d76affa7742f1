from pathlib import Path

import geopandas as gpd
import pytest
import shapely
from commands import run, sites

from bo_scale.survey import Survey


def test_options_of_a_beginning_arrive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = sites().assign(n=60, sd=0.5).rename(columns={"lon": "a", "lat": "b"}).round({"pb": 0})
    table.loc[2, "a"] = 8.5
    table.to_csv("t.csv", index=False)
    gpd.GeoDataFrame(geometry=[shapely.box(8.05, 47.0, 8.1, 47.05)], crs=4326).to_file("no.geojson")
    common = "init t.csv --value pb --x a --y b --crs EPSG:4326 --area area.geojson"
    said = run(capsys, common, "--forbidden no.geojson --error sd --transform log --out one.gpkg")
    one = Survey("one.gpkg")
    outside = (table.a >= 8.05).sum()
    assert f"'aside': {outside}." in said
    assert "t.csv, row 4: outside the area" in said
    assert len(one.sites) == 24 - outside
    assert one.settings["transform"] == {"name": "log", "lower": 0.0, "upper": 1.0}
    assert one.settings["columns"]["error"] == "sd"
    run(capsys, common, "--transform logit --lower 1 --upper 99 --outside keep --out two.gpkg")
    two = Survey("two.gpkg")
    assert len(two.sites) == 24
    assert two.settings["transform"] == {"name": "logit", "lower": 1.0, "upper": 99.0}
    run(capsys, common, "--of n --out three.gpkg")
    assert Survey("three.gpkg").settings["columns"]["of"] == "n"
    table[["a", "b"]].assign(weight=1.0, name="x").to_csv("w.csv", index=False)
    said = run(capsys, common, "--weights w.csv --candidates w.csv --out three.gpkg --overwrite")
    assert "Replaced: a survey of " in said
    Path("three.gpkg").write_text("broken")
    assert "Replaced" not in run(capsys, common, "--weights w.csv --candidates w.csv --out three.gpkg --overwrite")
    assert Survey("three.gpkg").workspace.state.weights is not None
    assert set(Survey("three.gpkg").workspace.state.candidates.name) == {"x"}
