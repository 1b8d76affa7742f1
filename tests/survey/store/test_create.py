from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from pyproj import CRS, Transformer
from samples import AREA, UTM, copied, filled, metres, sites_table, write, write_area
from scipy.spatial.distance import pdist

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


def test_it_says_what_it_took_for_granted(path: Path, made: Path, tmp_path: Path) -> None:
    survey = Survey(path)
    said = " ".join(survey.notes)
    assert "lon" in said
    assert "recognised by name" in said
    assert "UTM zone 31 north (EPSG:32631)" in said
    assert "hull" not in said
    assert survey.region.area == pytest.approx(
        shapely.transform(AREA, lambda x: np.stack(UTM.transform(*x.T), -1)).area
    )
    other = Survey.create(tmp_path / "hull.gpkg", made / "sites.csv", "zinc")
    assert "hull of the sites" in " ".join(other.notes)
    xy = metres(sites_table())
    assert other.region.contains(xy).all()
    assert other.region.area > shapely.multipoints(xy).convex_hull.area
    assert len(other.sites) == 48


def test_sites_on_both_sides_of_the_antimeridian_have_one_hull(tmp_path: Path) -> None:
    table = sites_table(25)
    table["lon"] = (table.lon + 180 - 5.74 + 180) % 360 - 180
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "sites.csv", table), "zinc")
    there = Survey.create(tmp_path / "t.gpkg", write(tmp_path, "there.csv", sites_table(25)), "zinc")
    assert len(survey.sites) == 25
    for one in (survey, Survey(survey.path)):
        assert one.region.area == pytest.approx(there.region.area, rel=0.01)
    assert survey.region.contains(survey.workspace.xy(survey.sites)).all()


@pytest.mark.parametrize(("crs", "kept"), [(4087, False), (6933, False), (28992, True)])
def test_a_system_that_stretches_distances_is_replaced(tmp_path: Path, crs: int, kept: bool) -> None:
    table, to = sites_table(8), Transformer.from_crs(4326, crs, always_xy=True)
    table["x"], table["y"] = to.transform(table.lon, table.lat)
    survey = Survey.create(
        tmp_path / "s.gpkg", write(tmp_path, "xy.csv", table), "zinc", x="x", y="y", crs=f"EPSG:{crs}"
    )
    assert (CRS(survey.settings["metric"]) == CRS(crs)) == kept
    np.testing.assert_allclose(pdist(survey.workspace.xy(survey.sites)), pdist(metres(table)), rtol=0.04)


def test_measurements_are_kept_word_by_word(path: Path) -> None:
    sites, table = Survey(path).sites, sites_table()
    np.testing.assert_array_equal(shapely.get_coordinates(sites.geometry.to_numpy()), table[["lon", "lat"]])
    np.testing.assert_array_equal(sites.value, table.zinc)
    assert sites.row.tolist() == list(range(2, 50))
    assert sites.number.tolist() == list(range(48))
    assert set(sites.file) == {"sites.csv"}
    assert sites.text[0] == ",".join(str(part) for part in table.iloc[0])


def test_rows_that_cannot_be_used_are_kept_aside_by_number(made: Path, tmp_path: Path) -> None:
    table = sites_table().astype(object)
    table.loc[3, "zinc"], table.loc[5, "zinc"], table.loc[7, "zinc"] = "n.d.", -4.0, ""
    table.loc[9, ["lon", "lat"]] = 5.75, 50.98  # in the hole
    table.loc[11, ["lon", "lat"]] = 6.9, 50.98
    given = write(tmp_path, "sites.csv", table)
    area = made / "area.geojson"
    survey = Survey.create(tmp_path / "s.gpkg", given, "zinc", area=area, transform="log")
    aside = Survey(tmp_path / "s.gpkg").rejected
    assert aside.row.tolist() == [5, 7, 9, 11, 13]
    reasons = dict(zip(aside.row, aside.reason, strict=True))
    assert "not a number" in reasons[5]
    assert "not positive" in reasons[7]
    assert "no value in column zinc" in reasons[9]
    assert reasons[11] == reasons[13] == "outside the area"
    lines = given.read_text().splitlines()
    assert aside.text.tolist() == [lines[row - 1] for row in aside.row]
    assert sorted([*survey.sites.row, *aside.row]) == list(range(2, 50))  # nothing is lost
    kept = Survey.create(
        tmp_path / "k.gpkg", given, "zinc", area=area, transform="log", keep_outside=True, kernel="matern32"
    )
    assert set(kept.sites.row) - set(survey.sites.row) == {11, 13}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"value": "zink"}, "Did you mean zinc"),
        ({"transform": "sqrt"}, "choose one of none, log, log1p, two-part, logit"),
        ({"kernel": "rbf"}, "choose one of auto"),
        ({"transform": "logit"}, "no row can be used: zinc is not above 0 and below 1"),
        ({"transform": "log", "threshold": -1.0}, "must be positive"),
        ({"threshold": float("nan")}, "must be a finite number"),
        ({"of": "zinc", "value": "lon", "transform": "log"}, "leave out transform"),
        ({"of": "zinc", "value": "lon", "upper": 100.0}, "leave out lower and upper"),
        ({"transform": "logit", "lower": 3.0, "upper": 2.0}, "must be below"),
        ({"error": "sd"}, "no column sd"),
        ({"crs": "EPSG:nothing"}, "EPSG:25832"),
        ({"area": "nowhere.geojson"}, "nowhere.geojson"),
        ({"candidates": "nowhere.csv"}, "no such file"),
        ({"weights": "sites.csv"}, "need a column 'weight'"),
    ],
)
def test_what_cannot_begin_is_refused_with_the_remedy(
    made: Path, tmp_path: Path, given: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    with pytest.raises(SurveyError, match=word):
        Survey.create(tmp_path / "s.gpkg", "sites.csv", **{"value": "zinc", **given})
    assert not list(tmp_path.iterdir())


def test_sites_far_from_the_area_and_swapped_columns_are_refused(made: Path, tmp_path: Path) -> None:
    table = sites_table()
    swapped = write(tmp_path, "swapped.csv", table.rename(columns={"lon": "lat", "lat": "lon"}))
    with pytest.raises(SurveyError, match=r"look swapped.*pass --x lat --y lon"):
        Survey.create(tmp_path / "s.gpkg", swapped, "zinc", area=made / "area.geojson")
    survey = Survey.create(tmp_path / "s.gpkg", swapped, "zinc", x="lat", y="lon", area=made / "area.geojson")
    assert len(survey.sites) == 48
    far = write(tmp_path, "far.csv", table.assign(lat=table.lat - 3))
    with pytest.raises(SurveyError, match="none of the sites lies in the area"):
        Survey.create(tmp_path / "t.gpkg", far, "zinc", area=made / "area.geojson")


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        ({"weight": [1.0, -1.0]}, "must not be negative"),
        ({"weight": [0.0, 0.0]}, "must be positive"),
        ({"weight": [1.0, 1.0], "x": [0.0, 1.0]}, "none of its places"),
        ({"population": [1.0, 1.0]}, "need a column 'weight'"),
    ],
)
def test_weights_that_cannot_be_are_refused(dutch: Path, tmp_path: Path, frame: dict[str, Any], word: str) -> None:
    table = pd.DataFrame({"x": [181_000.0, 181_500.0], "y": [331_000.0, 332_000.0], **frame})
    weights = write(tmp_path, "weights.csv", table)
    with pytest.raises(SurveyError, match=word):
        Survey.create(tmp_path / "s.gpkg", dutch / "sites.csv", "lead", crs="EPSG:28992", weights=weights)
    survey = copied(dutch / "s.gpkg", tmp_path)
    with pytest.raises(SurveyError, match=word):
        survey.plan(1, weights=weights)
    assert (tmp_path / "s.gpkg").read_bytes() == (dutch / "s.gpkg").read_bytes()


def test_codes_for_no_value_are_pointed_at(path: Path) -> None:
    coded = sites_table().assign(zinc=lambda t: t.zinc.where(t.index != 3, 9999.0))
    survey = Survey.create(path.parent / "c.gpkg", write(path.parent, "coded.csv", coded), "zinc")
    told = "looks like a code for a missing value, but it counts. If it is a code,"
    assert f"row 5: 9999 {told} clear it and begin the survey again (--overwrite)." in survey.notes
    later = sites_table(50).tail(2).assign(zinc=[-999.0, 5.0])
    said = survey.update(write(path.parent, "later.csv", later)).notes
    assert f"row 2: -999 {told} clear it and begin the survey again (--overwrite)." in said
    planned = filled(survey.plan(1).table, P1=-9999.0)
    said = survey.update(write(path.parent, "planned.csv", planned)).notes
    assert f"row 2: -9999 {told} send the row with the right value (--replace)." in said
    mended = write(path.parent, "mended.csv", filled(planned, P1=5.0))
    survey.update(mended, corrections=True)
    assert survey.sites.value.min() == -999.0  # which is of no planned site: it stays


def test_a_value_far_from_all_others_is_pointed_at_and_a_tail_is_not(path: Path) -> None:
    survey = Survey(path)
    high = float(survey.sites.value.max())
    planned = filled(survey.plan(2).table, P1=100 * high, P2=high)
    told = (
        f"{100 * high:g} is far from all other values. If it is a typo, send the row with the right value (--replace)."
    )
    assert survey.update(write(path.parent, "typo.csv", planned)).notes == [f"row 2: {told}"]
    survey.update(write(path.parent, "mended.csv", filled(planned, P1=high)), corrections=True)
    assert survey.sites.value.max() == high
    tail = sites_table(8, seed=3).assign(zinc=[1e4, 2e4, 3e4, 4e4, 1.0, 2.0, 3.0, 4.0])
    assert not any("far from all" in note for note in survey.update(write(path.parent, "tail.csv", tail)).notes)


def test_a_table_of_which_most_cannot_be_used_is_refused(path: Path) -> None:
    text = sites_table().astype({"zinc": object})
    text.loc[:40, "zinc"] = "high"
    with pytest.raises(SurveyError, match=r"41 rows cannot be used, and only 7 can \(zinc is not a number: high"):
        Survey.create(path.parent / "t.gpkg", write(path.parent, "text.csv", text), "zinc")


def test_tables_with_longitudes_from_0_to_360_are_those_within_180(tmp_path: Path) -> None:
    table = sites_table(20)
    table["lon"] = (table.lon - 5.74 + 180).round(6)  # around the antimeridian
    within = table.assign(lon=((table.lon + 180) % 360 - 180).round(6))
    surveys = []
    for name, each in (("a", table), ("b", within)):
        given = write(tmp_path, f"{name}.csv", each[:15])
        extra = write(tmp_path, f"{name} places.csv", each[["lon", "lat"]].assign(weight=1.0))
        made = {"candidates": extra, "weights": extra}
        surveys.append(Survey.create(tmp_path / f"{name}.gpkg", given, "zinc", **made))
    wide, narrow = surveys
    assert "lon goes beyond 180 in" in " ".join(wide.notes)
    assert "a places.csv: lon goes beyond 180 in" in " ".join(wide.notes)
    assert "beyond 180" not in " ".join(narrow.notes)
    arrival = wide.update(write(tmp_path, "more.csv", table[15:]))
    narrow.update(write(tmp_path, "less.csv", within[15:]))
    assert "lon goes beyond 180" in arrival.notes[0]
    for frame in ("sites", "candidates", "weights"):
        found, expected = (getattr(one.workspace.state, frame).geometry.to_numpy() for one in surveys)
        np.testing.assert_array_equal(shapely.get_coordinates(found), shapely.get_coordinates(expected))
    assert wide.region.area == narrow.region.area


def coastal(folder: Path, **changes: float) -> Path:
    """Sites in Brittany and Cornwall; changes are longitudes by their rows."""
    rng = np.random.default_rng(2)
    lon = np.concatenate([rng.uniform(-3.2, -2.2, 20), rng.uniform(-4.8, -4.0, 20)]).round(4)
    lat = np.concatenate([rng.uniform(48.0, 48.5, 20), rng.uniform(50.4, 50.6, 20)]).round(4)
    table = pd.DataFrame({"lon": lon, "lat": lat, "zinc": rng.uniform(1, 2, 40).round(3)})
    for row, value in changes.items():
        table.loc[int(row.removeprefix("row")) - 2, "lon"] = value
    return write(folder, "coastal.csv", table)


def test_an_area_that_nobody_gave_and_that_is_half_sea_is_pointed_out(tmp_path: Path) -> None:
    survey = Survey.create(tmp_path / "s.gpkg", coastal(tmp_path), "zinc")
    (note,) = (note for note in survey.notes if "sea" in note)
    assert note.endswith("so plans may be at sea: give an area of land (--area).")
    assert survey.workspace.area_is_assumed
    area = write_area(tmp_path, shapely.box(-6, 47, -1, 52))
    given = Survey.create(tmp_path / "t.gpkg", coastal(tmp_path), "zinc", area=area)
    assert not any("sea" in note for note in given.notes)
    assert not given.workspace.area_is_assumed


def test_sites_and_candidates_at_sea_are_named(tmp_path: Path) -> None:
    survey = Survey.create(tmp_path / "s.gpkg", coastal(tmp_path, row5=-9.5), "zinc")
    assert any(note.startswith("Sites at sea: row 5 lies more than 25 km from land") for note in survey.notes)
    places = pd.DataFrame({"name": ["farm", "buoy"], "lon": [-2.8, -3.6], "lat": [48.2, 49.4]})
    candidates = write(tmp_path, "places.csv", places)
    survey = Survey.create(tmp_path / "c.gpkg", coastal(tmp_path), "zinc", candidates=candidates)
    (note,) = (note for note in survey.notes if "sea" in note)
    assert note.startswith("Candidate sites at sea: buoy lies more than 25 km from land")
