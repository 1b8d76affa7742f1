"""Divides of a survey: given, changed, dropped, refused, drawn."""

from pathlib import Path

import geopandas as gpd
import pytest
import shapely
from samples import sites_table, write

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.output.writers import picture_of

RIDGE = shapely.LineString([(5.74, 50.94), (5.735, 50.97), (5.74, 50.985)])


def drawn(folder: Path, *shapes: shapely.Geometry, name: str = "ridge.geojson", crs: int | None = 4326) -> Path:
    gpd.GeoDataFrame(geometry=list(shapes), crs=crs).to_file(folder / name)
    return folder / name


@pytest.fixture
def survey(tmp_path: Path) -> Survey:
    table = write(tmp_path, "sites.csv", sites_table(30))
    return Survey.create(tmp_path / "s.gpkg", table, "zinc", kernel="matern32", divides=[drawn(tmp_path, RIDGE)])


def test_a_divide_is_kept_and_told_and_drawn(survey: Survey) -> None:
    again = Survey(survey.path)
    assert again.divides == ["ridge.geojson"]
    assert "Correlation goes around divides: ridge.geojson." in again.notes
    prediction = again.predict(cells=200)
    assert Survey(survey.path).settings["fit"]["divides"] == survey.workspace.divides
    shown = picture_of(again.workspace, prediction, None)
    assert shown.walls.area > 0
    assert "Hatched areas are barriers that correlation goes around." in shown.notes


def test_divides_are_changed_and_dropped(survey: Survey, tmp_path: Path) -> None:
    """What was learned with others is forgotten; the same ones change nothing."""
    survey.predict(cells=50)
    survey.change_divides([tmp_path / "ridge.geojson"])
    assert survey.settings["fit"] is not None
    lake = drawn(tmp_path, shapely.box(5.72, 50.96, 5.73, 50.98), shapely.Point(5.7, 50.95), name="lake.gpkg")
    survey.change_divides([lake, tmp_path / "ridge.geojson"])
    assert survey.settings["fit"] is None
    assert survey.divides == ["lake.gpkg", "ridge.geojson"]
    survey.predict(cells=50)
    survey.change_divides()
    assert survey.divides == []
    assert "divides" not in survey.settings
    survey.predict(cells=50)
    assert "divides" not in survey.settings["fit"]


def test_what_cannot_be_a_divide_is_refused_and_nothing_changes(survey: Survey, tmp_path: Path) -> None:
    points = drawn(tmp_path, shapely.Point(5.7, 50.95), name="points.geojson")
    far = drawn(tmp_path, shapely.LineString([(15.7, 50.9), (15.8, 51)]), name="far.geojson")
    for file, said in ((points, "no polygons or lines"), (far, "nothing of"), (tmp_path / "none.shp", "none.shp")):
        with pytest.raises(SurveyError, match=said):
            survey.change_divides([file])
    with pytest.raises(SurveyError, match="--divide none"):
        survey.change_anisotropy((2.0, 30.0))
    survey.change_divides()
    survey.change_anisotropy((2.0, 30.0))
    with pytest.raises(SurveyError, match="anisotropy"):
        survey.change_divides([tmp_path / "ridge.geojson"])
    assert survey.divides == []


def test_the_globe_has_no_divides(tmp_path: Path) -> None:
    table = tmp_path / "world.csv"
    rows = [f"{lon},{lat},{lon + lat}" for lon in range(-170, 180, 40) for lat in range(-80, 90, 40)]
    table.write_text("\n".join(["lon,lat,value", *rows]) + "\n")
    survey = Survey.create(tmp_path / "w.gpkg", table, "value")
    with pytest.raises(SurveyError, match="globe"):
        survey.change_divides([drawn(tmp_path, RIDGE)])


def test_counts_and_plans_have_divides(survey: Survey) -> None:
    plan = survey.plan(2)
    assert len(plan.table) == 2
