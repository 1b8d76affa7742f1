from pathlib import Path

import gpxpy
import numpy as np
import pandas as pd
import pyogrio
import pytest
import shapely
from commands import refused, run

from bo_scale.cli import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.choice.designs import DESIGNS
from bo_scale.survey.choice.objectives import OBJECTIVES


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
    assert "Places with weights: 2." in said
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
    assert [plan["weights"] for plan in plans] == ["people.csv", *[None] * len(DESIGNS)]


def test_values_that_were_filled_in_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "plan s.gpkg --batch 2 --out t.csv")
    table = pd.read_csv("t.csv").assign(pb=[20.5, None])
    table.to_csv("t.csv", index=False)
    assert "t.csv: this file has values that are not in the survey yet (1)" in refused(
        capsys, "plan s.gpkg --out t.csv"
    )
    assert pd.read_csv("t.csv").pb[0] == 20.5
    run(capsys, "update s.gpkg t.csv")
    assert "Sites still to be measured: P2." in run(capsys, "plan s.gpkg --again --out t.csv")
    assert pd.read_csv("t.csv").site.tolist() == ["P2"]
    pd.read_csv("t.csv").assign(pb="<20").to_csv("t.csv", index=False)  # which is no number, and no blank either
    assert "not in the survey yet (1)" in refused(capsys, "plan s.gpkg --out t.csv")
    run(capsys, "plan s.gpkg --again --out u.csv")
    assert "These planned sites were not measured and are dropped: P2" in run(
        capsys, "plan s.gpkg --batch 1 --out u.csv"
    )


@pytest.mark.parametrize("words", ["plan s.gpkg --batch 2", "plan s.gpkg --again"])
@pytest.mark.parametrize("file", ["sites.csv", "s.gpkg", "notes.txt"])
def test_a_plan_is_not_written_over_another_file(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, file: str
) -> None:
    Path("notes.txt").write_text("the key is under the mat")
    before = Path(file).read_bytes()
    assert file in refused(capsys, f"{words} --out {file}")
    assert Path(file).read_bytes() == before


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


def test_a_plan_is_written_for_navigation_in_its_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "plan s.gpkg --batch 3 --out n.csv --gpx n.gpx --kml n.kml")
    assert "Written: n.gpx\nWritten: n.kml\n" in said
    table = pd.read_csv("n.csv")
    file = gpxpy.parse(Path("n.gpx").read_text())
    assert [point.name for point in file.waypoints] == list(table.site) == ["P1", "P2", "P3"]
    found = [(point.longitude, point.latitude) for point in file.waypoints]
    np.testing.assert_allclose(found, table[["lon", "lat"]], atol=1e-7)
    assert file.routes == file.tracks == []
    assert "pb: " in file.waypoints[0].description
    frame = pyogrio.read_dataframe("n.kml")
    assert list(frame.Name) == list(table.site)
    np.testing.assert_allclose(shapely.get_coordinates(frame.geometry.to_numpy()), found, atol=1e-7)
    run(capsys, "plan s.gpkg --again --out n.csv --kml again.kml")
    assert Path("again.kml").read_text() == Path("n.kml").read_text()
    table.assign(pb=20.0).to_csv("n.csv", index=False)
    run(capsys, "update s.gpkg n.csv")
    assert "no site still to be measured" in refused(capsys, "plan s.gpkg --again --out n.csv")
    with pytest.raises(SurveyError, match="no site is still to be measured"):
        Survey("s.gpkg").kml("n.kml")
