from pathlib import Path

import geopandas as gpd
import pytest
import shapely
from commands import run

from bo_scale.cli import main


def test_a_map_has_its_title(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Written: m.html, " in run(capsys, "map s.gpkg --cells 30 --title Blei --out m.html")
    assert "Blei" in Path("m.html").read_text()


def test_an_outline_is_drawn_or_said_to_be_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "map s.gpkg --cells 30 --out plain.html")
    assert '"coasts":[]' in Path("plain.html").read_text()
    run(capsys, "map s.gpkg --cells 30 --outline area.geojson --out m.html m.png")
    assert '"coasts":[[' in Path("m.html").read_text()
    gpd.GeoDataFrame(geometry=[shapely.box(100, 10, 101, 11)], crs=4326).to_file("far.gpkg")
    assert main(["survey", "map", "s.gpkg", "--cells", "30", "--outline", "far.gpkg", "--out", "m.html"]) == 0
    assert "Note: outline: no line of far.gpkg lies on the map or near it." in capsys.readouterr().err
