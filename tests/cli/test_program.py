import warnings
from collections.abc import Iterator
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely

from bo_scale.cli import main
from bo_scale.errors import SurveyWarning
from bo_scale.survey import Survey
from bo_scale.survey.choice.designs import DESIGNS
from bo_scale.survey.choice.objectives import OBJECTIVES
from bo_scale.survey.plan import problem as prospect


def sites() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    lon, lat = rng.uniform(8.0, 8.1, 24).round(5), rng.uniform(47.0, 47.05, 24).round(5)
    return pd.DataFrame({"lon": lon, "lat": lat, "pb": (20 + 5 * np.sin(60 * lon) + rng.normal(size=24)).round(2)})


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prospect, "CANDIDATES", 150)
        patch.setattr(prospect, "CELLS", 400)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["survey", *" ".join(words).split()]) == 0
    said = capsys.readouterr()
    return said.out


def refused(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(["survey", *words.split()]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("bo-scale: ")
    return said.err


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
    assert "Without a value yet: 2." in said
    said = run(capsys, "update", "s.gpkg", "next.csv")
    assert "Measurements added: 0." in said
    assert "being there already: 1 " in said
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


def test_options_of_a_plan_arrive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "plan s.gpkg --batch 2 --objective straddle --threshold 19 --seed 4 --out a.csv")
    run(capsys, "plan s.gpkg --batch 1 --objective thompson --spacing 50 --add --out b.csv")
    first, second = Survey("s.gpkg").settings["plans"]
    assert (first["objective"], first["threshold"], first["seed"], first["add"]) == ("straddle", 19.0, 4, False)
    assert (second["objective"], second["threshold"], second["spacing"]) == ("thompson", 22.0, 50.0)
    assert second["add"]
    assert pd.read_csv("b.csv").site.tolist() == ["P3"]


def test_designs_and_weights_of_a_plan_arrive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = pd.DataFrame({"lon": [8.07, 8.075], "lat": [47.035, 47.03], "weight": [10, 30]})
    people.to_csv("people.csv", index=False)
    said = run(capsys, "plan s.gpkg --batch 1 --weights people.csv --out a.csv")
    assert "2 places with weights" in said
    assert "Typical sd over the weights: " in said
    first = pd.read_csv("a.csv")
    assert abs(first.lon[0] - 8.074) < 0.015
    assert abs(first.lat[0] - 47.031) < 0.015
    for name in DESIGNS:
        said = run(capsys, f"plan s.gpkg --batch 4 --objective {name} --spacing 400 --out {name}.csv")
        assert "Typical sd over the area: " in said
        assert len(pd.read_csv(f"{name}.csv")) == 4
    plans = Survey("s.gpkg").settings["plans"]
    assert [plan["objective"] for plan in plans] == ["variance", *DESIGNS]
    assert [plan["weights"] for plan in plans] == ["people.csv", None, None, None, None]


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


def test_many_rows_kept_aside_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = sites().astype(object)
    frame.loc[0:21, "pb"] = "?"
    frame.to_csv("t.csv", index=False)
    said = run(capsys, "update s.gpkg t.csv")
    assert "'aside': 22." in said
    assert "row 21: pb is no number: ?" in said
    assert "row 22:" not in said
    assert "and 2 more" in said


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
        ("plan sites.csv --out t.csv", "no survey"),
        ("plan s.gpkg --batch 0 --out t.csv", "1 to 1000"),
        ("plan s.gpkg --spacing 1e7 --out t.csv", "choose less"),
        ("plan s.gpkg --seed -3 --out t.csv", "not negative"),
        ("plan s.gpkg --weights none.csv --out t.csv", "no such file"),
        ("plan s.gpkg --weights sites.csv --out t.csv", "need a column 'weight'"),
        ("plan s.gpkg --objective latin --weights w.csv --out t.csv", "weights: designs such as latin use none"),
        ("plan s.gpkg --objective maximin --spacing 1e7 --out t.csv", "choose less"),
        ("plan s.gpkg --out none/t.csv", "no folder"),
        ("plan s.gpkg --out t.csv --map none/m.html", "no folder"),
        ("plan s.gpkg --out t.csv --map m.jpg", "m.jpg: give a file that ends in .html"),
        ("plan s.gpkg --out t.csv --gpx m.gpx", "--gpx: no route is planned"),
        ("plan s.gpkg --again --out t.csv --gpx m.gpx", "--gpx: no route is planned"),
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


def test_values_that_were_filled_in_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "plan s.gpkg --batch 2 --out t.csv")
    table = pd.read_csv("t.csv").assign(pb=[20.5, None])
    table.to_csv("t.csv", index=False)
    assert "t.csv: holds values that are not in the survey yet (1)" in refused(capsys, "plan s.gpkg --out t.csv")
    assert pd.read_csv("t.csv").pb[0] == 20.5
    run(capsys, "update s.gpkg t.csv")
    assert "what is to be measured: P2." in run(capsys, "plan s.gpkg --again --out t.csv")
    assert pd.read_csv("t.csv").site.tolist() == ["P2"]
    pd.read_csv("t.csv").assign(pb="<20").to_csv("t.csv", index=False)  # which is no number, and no blank either
    assert "not in the survey yet (1)" in refused(capsys, "plan s.gpkg --out t.csv")
    run(capsys, "plan s.gpkg --again --out u.csv")
    assert "Not measured, and dropped: P2" in run(capsys, "plan s.gpkg --batch 1 --out u.csv")


@pytest.mark.parametrize("words", ["plan s.gpkg --batch 2", "plan s.gpkg --again"])
@pytest.mark.parametrize("file", ["sites.csv", "s.gpkg", "notes.txt"])
def test_a_plan_is_not_written_over_another_file(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, file: str
) -> None:
    Path("notes.txt").write_text("the key is under the mat")
    before = Path(file).read_bytes()
    assert file in refused(capsys, f"{words} --out {file}")
    assert Path(file).read_bytes() == before


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


def test_a_former_name_of_an_objective_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["survey", "plan", "s.gpkg", "--batch", "1", "--objective", "maximum", "--out", "a.csv"]) == 0
    assert "Note: objective='maximum' is now called 'uncertainty'" in capsys.readouterr().err
    assert Survey("s.gpkg").settings["plans"][0]["objective"] == "uncertainty"


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["survey", "plan", "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for word in (
        "--batch",
        "--objective",
        "--spacing METRES",
        "--add",
        "--weights",
        *OBJECTIVES,
        *DESIGNS,
        "need no model",
    ):
        assert word in said


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("plan s.gpkg --hours 4 --hours 8 --out n.csv", "--hours"),
        ("plan s.gpkg --kilometres 4 --kilometres 4 --out n.csv", "--kilometres"),
        ("plan s.gpkg --out n.csv --seed 1 --out m.csv", "--out"),
        ("map s.gpkg --out n.html --out m.html", "--out"),
        ("init a.csv --value pb --area a.geojson --area b.geojson --out s.gpkg", "--area"),
    ],
)
def test_an_option_that_is_there_twice_is_refused(words: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["survey", *words.split()])
    assert end.value.code == 2
    assert f"argument {option}: is there twice; give it once" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["survey"], ["survey", "plan"], ["survey", "plan", "s.gpkg", "--out"]])
def test_commands_that_are_not_whole_are_explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: bo-scale" in capsys.readouterr().err
