import runpy
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio
from commands import refused, run

from bo_scale.cli import main
from bo_scale.errors import SurveyWarning
from bo_scale.survey import Survey


def test_a_day_in_the_field(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "init sites.csv --value pb --kernel matern32 --threshold 22 --out new.gpkg")
    for part in ("Measurements used: 24.", "hull of the sites", "UTM zone 32 north", "Written: new.gpkg"):
        assert part in said
    said = run(capsys, "plan s.gpkg --batch 3 --out next.csv --map map.html --title Lead --spacing 100")
    table = pd.read_csv("next.csv")
    assert table.site.tolist() == ["P1", "P2", "P3"]
    for part in ("P3", "Typical sd over the area:", "Written: next.csv", "update s.gpkg next.csv", "Written: map.html"):
        assert part in said
    assert "Lead" in Path("map.html").read_text()
    table.loc[1, "pb"] = 21.5
    table.to_csv("next.csv", index=False)
    said = run(capsys, "update", "s.gpkg", "next.csv")
    assert "Measurements added: 1." in said
    assert "Planned sites measured: P2." in said
    assert "Rows without a value yet: 2." in said
    said = run(capsys, "update", "s.gpkg", "next.csv")
    assert "Measurements added: 0." in said
    assert "has them already: 1 " in said
    assert "Measurements added: 1." in run(capsys, "update", "s.gpkg", "next.csv", "--repeats")
    said = run(capsys, "status", "s.gpkg")
    assert "Measurements: 26." in said
    assert "to be measured: P1, P3" in said
    said = run(capsys, "predict s.gpkg --cells 300 --out grid.tif grid.csv")
    with rasterio.open("grid.tif") as file:
        cells = int(np.isfinite(file.read(1)).sum())
        assert file.count == 3
    assert f"Written: grid.tif, {cells} cells of" in said
    assert said.count("Above 22, with 90 % intervals: ") == 1
    assert " of the area, " in said
    assert len(pd.read_csv("grid.csv")) == cells
    run(capsys, "predict s.gpkg --size 500 --threshold 24 --out other.tif")
    with rasterio.open("other.tif") as file:
        assert file.res == (500.0, 500.0)
    said = run(capsys, "map s.gpkg --cells 200 --title Blei --out map2.html map.png")
    assert "Written: map2.html, " in said
    assert "Above 22, with 90 % intervals: " in said
    assert "Above 22, with 90 % intervals: " in Path("map2.html").read_text()
    assert "Written: map.png, " in said
    assert Path("map.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("init sites.csv --value zn --out t.gpkg", "Columns: lon, lat, pb"),
        ("init none.csv --value pb --out t.gpkg", "no such file"),
        ("init sites.csv --value pb --out s.gpkg", "--overwrite"),
        ("init sites.csv --value pb --kernel rbf --out t.gpkg", "choose one of auto"),
        ("init sites.csv --value pb --out none/t.gpkg", "no folder"),
        ("init sites.csv --value pb --candidates none.csv --out t.gpkg", "no such file"),
        ("plan none.gpkg --out t.csv", "bo-scale survey init"),
        ("plan sites.csv --out t.csv", "not a survey"),
        ("plan s.gpkg --batch 0 --out t.csv", "1 to 1000"),
        ("plan s.gpkg --spacing 1e7 --out t.csv", "Reduce spacing"),
        ("plan s.gpkg --seed -3 --out t.csv", "not negative"),
        ("plan s.gpkg --weights none.csv --out t.csv", "no such file"),
        ("plan s.gpkg --weights sites.csv --out t.csv", "need a column 'weight'"),
        ("plan s.gpkg --objective latin --weights w.csv --out t.csv", "weights: the design latin does not use weights"),
        ("plan s.gpkg --objective maximin --spacing 1e7 --out t.csv", "Reduce spacing"),
        ("plan s.gpkg --out none/t.csv", "no folder"),
        ("plan s.gpkg --out t.csv --map none/m.html", "no folder"),
        ("plan s.gpkg --out t.csv --map m.jpg", "m.jpg: give a file that ends in .html"),
        ("plan s.gpkg --out t.csv --gpx m.kml", "m.kml: give a file that ends in .gpx"),
        ("plan s.gpkg --out t.csv --kml m.gpx", "m.gpx: give a file that ends in .kml"),
        ("plan s.gpkg --out t.csv --kml none/m.kml", "no folder"),
        ("plan s.gpkg --out t.csv --outline sites.csv", "--outline: no map is drawn"),
        ("plan s.gpkg --out t.csv --map m.html --outline none.geojson", "none.geojson: there is no such file"),
        ("map s.gpkg --out m.html --outline none.geojson", "none.geojson: there is no such file"),
        ("update s.gpkg none.csv", "no such file"),
        ("update s.gpkg s.gpkg", "save the table as CSV"),
        ("map s.gpkg --cells 50 --out m.pdf", ".html or .htm or .png"),
        ("predict s.gpkg --cells 50 --out g.nc", ".tif or .tiff or .csv"),
        ("predict s.gpkg --cells 50 --out none/g.tif", "none"),
        ("status none.gpkg", "no such survey"),
    ],
)
def test_refusals_say_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str], words: str, remedy: str) -> None:
    before = (folder / "s.gpkg").read_bytes()
    assert remedy in refused(capsys, words)
    assert not list(folder.glob("t.*"))
    assert (folder / "s.gpkg").read_bytes() == before


def test_warnings_of_ours_are_notes_and_others_are_silent(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(_: Survey) -> str:
        warnings.warn("the tide is high", SurveyWarning, stacklevel=2)
        warnings.warn("numpy changes", DeprecationWarning, stacklevel=2)
        return "all is well"

    monkeypatch.setattr(Survey, "status", status)
    show = warnings.showwarning
    assert main(["survey", "status", "s.gpkg"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("all is well\n", "Note: the tide is high\n")
    assert warnings.showwarning is show


@pytest.mark.parametrize("words", [[], ["survey"], ["survey", "plan"], ["survey", "plan", "s.gpkg", "--out"]])
def test_commands_that_are_not_whole_are_explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: bo-scale" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["bo_scale", "bo_scale.cli"])
def test_the_package_is_run_as_a_module(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "loop", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: bo-scale loop")
