from dataclasses import replace
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import shapely
from samples import copied, filled, metres, sites_table, write, write_area
from scipy.spatial.distance import cdist

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


def test_measurements_come_partially_and_out_of_order(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(4).table
    file = path.with_name("done.csv")
    shuffled = table.iloc[[2, 0, 3, 1]]
    filled(shuffled, P3=12.5, P1=7.25).to_csv(file, index=False)
    arrival = Survey(path).update(file)
    assert (arrival.added, arrival.known, arrival.blank, arrival.rejected) == (2, 0, 2, [])
    assert arrival.matched == ["P1", "P3"]
    survey = Survey(path)
    assert survey.planned.status.tolist() == ["measured", "planned", "measured", "planned"]
    new = survey.sites.iloc[48:]
    assert new.site.tolist() == ["P3", "P1"]
    assert new.value.tolist() == [12.5, 7.25]
    assert new.batch.tolist() == [1, 1]
    assert new.row.tolist() == [2, 3]
    assert new.number.tolist() == [48, 49]
    assert set(survey.sites.batch[:48]) == {-1}
    again = survey.update(file)
    assert (again.added, again.known, again.blank, again.matched) == (0, 2, 2, [])
    filled(shuffled, P3=12.5, P1=7.25, P2=9).to_csv(file, index=False)
    grown = survey.update(file)
    assert (grown.added, grown.known, grown.blank, grown.matched) == (1, 2, 1, ["P2"])
    repeated = survey.update(file, repeats=True)
    assert (repeated.added, repeated.known) == (3, 0)
    assert len(Survey(path).sites) == 54
    assert Survey(path).rejected.empty


def test_equal_rows_are_as_many_measurements_and_the_file_again_is_none(path: Path) -> None:
    row = pd.DataFrame({"lon": [5.71], "lat": [50.96], "zinc": [9.0]})
    survey = Survey(path)
    file = write(path.parent, "twins.csv", pd.concat([row, row]))
    assert survey.update(file).added == 2
    assert survey.update(file).added == 0
    third = survey.update(write(path.parent, "triplets.csv", pd.concat([row, row, row])))
    assert (third.added, third.known) == (1, 2)


def test_sites_are_told_by_their_id_or_by_their_place(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(4, spacing=500.0).table
    lon, lat = plan.lon.to_numpy().copy(), plan.lat.to_numpy().copy()
    done = pd.DataFrame({"site": ["P2", "mine", "", "P9", ""], "lon": lon[0], "lat": lat[0], "zinc": 8.0})
    done.loc[1, ["lon", "lat"]] = lon[2] + 2e-4, lat[2]  # 14 m away
    inwards = np.sign(lat.mean() - lat[3])
    done.loc[2, ["lon", "lat"]] = lon[3], lat[3] + 1.5e-3 * inwards  # 170 m away: another place
    places = sites_table()[["lon", "lat"]].to_numpy()  # within the area
    away = np.abs(places[:, None] - np.stack([lon, lat], 1)).max(-1).min(-1)
    done.loc[3, ["lon", "lat"]] = places[away.argmax()]
    done = done.iloc[:4]
    arrival = survey.update(write(path.parent, "done.csv", done))
    assert arrival.added == 4
    assert arrival.matched == ["P2", "P3"]  # P2 by its id, although it was measured where P1 is planned
    assert survey.planned.status.tolist() == ["planned", "measured", "measured", "planned"]
    assert survey.sites.site[48:].tolist() == ["P2", "P3", "", "P9"]
    assert survey.sites.batch[48:].tolist() == [1, 1, -1, -1]


def test_near_is_no_more_than_half_way_to_the_next(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    planned = gpd.GeoDataFrame(
        {"site": ["P1", "P2", "P3"], "name": "", "batch": 1, "status": "planned", "score": 0.0},
        geometry=shapely.points([[181_000.0, 331_000.0], [181_000.0, 331_020.0], [181_000.0, 331_000.0]]),
        crs="EPSG:28992",
    )
    survey._save(replace(survey.workspace.state, planned=planned))
    table = pd.DataFrame({"x": [181_000.0, 181_000.0], "y": [331_012.0, 331_033.0], "lead": [1.0, 2.0], "sd": 0.1})
    aside = survey.update(write(tmp_path, "aside.csv", table.iloc[1:]))
    assert aside.matched == []  # 13 m from P2, which is 20 m from P1
    near = survey.update(write(tmp_path, "near.csv", table.iloc[:1]))
    assert near.matched == ["P2"]  # 8 m from it, 12 m from P1
    beyond = survey.update(write(tmp_path, "beyond.csv", table.assign(y=331_000 - 35 * table.lead)))
    assert beyond.added == 2
    assert beyond.matched == ["P1"]  # 35 m away with nothing else near; 70 m are too far


def test_a_dropped_site_that_was_measured_after_all_is_known_by_its_id(path: Path) -> None:
    survey = Survey(path)
    first = survey.plan(2).table
    survey.plan(1, seed=5)
    late = filled(first, P2=11.0)
    arrival = survey.update(write(path.parent, "late.csv", late))
    assert (arrival.added, arrival.blank, arrival.matched) == (1, 1, ["P2"])
    assert survey.planned.status.tolist() == ["dropped", "measured", "planned"]
    assert survey.sites.batch.iloc[-1] == 1


def test_a_measurement_where_a_site_was_dropped_is_of_no_plan(path: Path) -> None:
    survey = Survey(path)
    first, second = survey.plan(2).table, survey.plan(1, seed=5).table
    far = cdist(metres(first), metres(second)).ravel().argmax()
    there = first.iloc[[far]].assign(site="", zinc=8.0)
    arrival = survey.update(write(path.parent, "there.csv", there))
    assert (arrival.added, arrival.matched) == (1, [])
    assert survey.planned.status.tolist() == ["dropped", "dropped", "planned"]
    assert (survey.sites.site.iloc[-1], survey.sites.batch.iloc[-1]) == ("", -1)
    arrival = survey.update(write(path.parent, "here.csv", second.assign(site="", zinc=9.0)))
    assert arrival.matched == ["P3"]
    assert survey.planned.status.tolist() == ["dropped", "dropped", "measured"]
    assert (survey.sites.site.iloc[-1], survey.sites.batch.iloc[-1]) == ("P3", 2)


def test_rows_outside_are_reported_and_kept_once(path: Path) -> None:
    survey = Survey(path)
    lon, lat, zinc = [5.75, 5.71, 5.72, 5.73], [50.98, 50.96, 50.96, 50.96], [5.0, 6.0, -1.0, "?"]
    table = pd.DataFrame({"lon": lon, "lat": lat, "zinc": zinc})
    file = write(path.parent, "new.csv", table)
    arrival = survey.update(file)
    assert arrival.added == 1
    assert arrival.rejected == [(2, "outside the area"), (4, "zinc is not positive"), (5, "zinc is not a number: ?")]
    assert survey.update(file).known == 4
    aside = Survey(path).rejected
    assert aside.row.tolist() == [2, 4, 5]
    assert aside.text.tolist() == ["5.75,50.98,5.0", "5.72,50.96,-1.0", "5.73,50.96,?"]
    assert set(aside.file) == {"new.csv"}


def test_blank_values_without_a_plan_are_kept_aside(path: Path) -> None:
    file = write(path.parent, "new.csv", pd.DataFrame({"lon": [5.71, 5.72], "lat": 50.96, "zinc": [6.0, np.nan]}))
    arrival = Survey(path).update(file)
    assert (arrival.added, arrival.blank, arrival.rejected) == (1, 0, [(3, "no value in column zinc")])


def test_a_table_of_other_columns_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    file = write(path.parent, "new.csv", pd.DataFrame({"lon": [5.71], "lat": [50.96], "copper": [6.0]}))
    with pytest.raises(SurveyError, match="no column zinc"):
        Survey(path).update(file)
    assert path.read_bytes() == before


def test_a_correction_replaces_what_was_measured(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    survey.update(write(path.parent, "done.csv", filled(table, P1=5.0, P2=6.0)))
    again = write(path.parent, "again.csv", filled(table, P1=7.0, P2=6.0))
    arrival = survey.update(again, corrections=True)
    assert (arrival.added, arrival.known) == (1, 1)
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [7.0, 6.0]
    assert len(survey.sites) == 50
    assert survey.sites.number.is_unique
    assert survey.rejected.reason.tolist() == ["replaced by a later value"]
    both = survey.update(write(path.parent, "both.csv", filled(table, P1=8.0)))
    assert both.notes == ["P1 was measured before, so both values count (--replace sets the earlier one aside)."]
    assert (survey.sites.site == "P1").sum() == 2


def test_a_correction_that_is_there_already_puts_the_earlier_value_aside(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    first = write(path.parent, "done.csv", filled(table, P1=5.0, P2=6.0))
    again = write(path.parent, "again.csv", filled(table, P1=7.0))
    survey.update(first)
    survey.update(again)
    assert survey.update(first, corrections=True).notes == []  # the later value is no earlier one
    assert survey.sites.set_index("site").value["P1"].tolist() == [5.0, 7.0]
    arrival = survey.update(again, corrections=True)
    assert (arrival.added, arrival.known) == (0, 1)
    assert arrival.notes == ["P1: the earlier value was set aside."]
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [7.0, 6.0]
    assert survey.rejected.reason.tolist() == ["replaced by a later value"]
    assert survey.update(again, corrections=True).notes == []
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [7.0, 6.0]


def test_a_value_comes_back_when_its_row_does(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    first = write(path.parent, "first.csv", filled(table, P1=1.2, P2=6.0))
    wrong = write(path.parent, "wrong.csv", filled(table, P1=12.0))
    for file in (first, wrong):
        survey.update(file, corrections=True)
    assert survey.update(first).added == 0  # of a file that was taken in before
    both = write(path.parent, "both.csv", pd.concat([filled(table, P1=1.2), filled(table, P1=12.0)]))
    assert survey.update(both, corrections=True).added == 0  # one value after another, the last of which counts
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [12.0, 6.0]
    arrival = survey.update(first, corrections=True)
    assert (arrival.added, arrival.known) == (1, 1)
    assert arrival.notes == ["P1: a value that had been replaced counts again."]
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [1.2, 6.0]
    assert survey.update(first, corrections=True).added == 0


def test_a_correction_forgets_what_was_learned_from_a_typo(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    survey.update(write(path.parent, "done.csv", filled(table, P1=5.0)), corrections=True)
    assert survey.settings["fit"] is not None
    survey.update(write(path.parent, "again.csv", filled(table, P1=5.5)), corrections=True)
    assert Survey(path).settings["fit"] is None


def test_both_values_of_one_table_stay(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(1).table
    twice = write(path.parent, "done.csv", pd.concat([filled(table, P1=5.0), filled(table, P1=7.0)]))
    survey.update(twice)
    assert survey.update(twice, corrections=True).notes == []
    assert (survey.sites.site == "P1").sum() == 2


@pytest.mark.parametrize("planned", [False, True])
def test_a_correction_may_be_of_a_site_of_the_first_table(tmp_path: Path, planned: bool) -> None:
    table = sites_table(12).assign(Nr=[f"W{k:03d}" for k in range(12)])
    first = write(tmp_path, "t.csv", table)
    survey = Survey.create(tmp_path / "s.gpkg", first, "zinc", site="Nr", kernel="matern32", area=write_area(tmp_path))
    if planned:
        survey.plan(1)
    survey.predict(cells=50)
    mended = write(tmp_path, "mended.csv", table.iloc[[7]].assign(zinc=99.0))
    both = survey.update(mended)
    told = "W007 was measured before, so both values count (--replace sets the earlier one aside)."
    assert (both.added, told in both.notes) == (1, True)
    assert not any("no planned site" in note for note in both.notes)
    arrival = survey.update(mended, corrections=True)  # which is there already
    assert (arrival.added, arrival.notes) == (0, ["W007: the earlier value was set aside."])
    assert survey.settings["fit"] is None
    third = write(tmp_path, "third.csv", table.iloc[[7]].assign(zinc=5.5))
    arrival = survey.update(third, corrections=True)
    assert (arrival.added, "W007: the earlier value was set aside." in arrival.notes) == (1, True)
    assert survey.sites.value[survey.sites.site == "W007"].tolist() == [5.5]
    assert survey.rejected.reason.tolist() == ["replaced by a later value"] * 2
    arrival = survey.update(write(tmp_path, "old.csv", table.iloc[[7]]), corrections=True)
    assert arrival.notes[-2:] == [
        "W007: the earlier value was set aside.", "W007: a value that had been replaced counts again.",
    ]  # fmt: skip
    assert survey.sites.value[survey.sites.site == "W007"].tolist() == [table.zinc[7]]
    assert len(survey.sites) == 12
    lab = write(tmp_path, "lab.csv", pd.DataFrame({"Nr": ["w007"], "zinc": [7.5]}))
    assert survey.update(lab, corrections=True).added == 1
    assert survey.sites.value[survey.sites.site == "W007"].tolist() == [7.5]


def test_a_correction_of_one_of_several_measurements_is_refused(path: Path) -> None:
    """Names of the user's own may stand for many places."""
    survey = Survey(path)
    survey.plan(1)
    masts = [sites_table(2, seed=9 + k).assign(site="mast") for k in range(2)]
    assert survey.update(write(path.parent, "one.csv", masts[0]), corrections=True).added == 2
    before = path.read_bytes()
    with pytest.raises(SurveyError, match=r"^mast: the survey has 2 values .* not certain .* without --replace"):
        survey.update(write(path.parent, "two.csv", masts[1]), corrections=True)
    assert path.read_bytes() == before
    masts[0].loc[1, "zinc"] = 6.25  # the other row is still there
    assert survey.update(write(path.parent, "one.csv", masts[0]), corrections=True).added == 1
    assert survey.sites.value[survey.sites.site == "mast"].tolist() == masts[0].zinc.tolist()


def test_a_corrected_site_is_not_taken_for_a_planned_one_beside_it(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(1).table
    near = plan[["lon", "lat"]].assign(lon=plan.lon + 0.006, zinc=8.0, site="mine")
    assert survey.update(write(path.parent, "mine.csv", near)).matched == []
    near["lon"] -= 0.0058
    arrival = survey.update(write(path.parent, "mended.csv", near.assign(zinc=9.0)), corrections=True)
    assert (arrival.added, arrival.matched) == (1, [])
    assert arrival.notes[0].startswith("row 2: mine was measured ")
    assert survey.sites.value[survey.sites.site == "mine"].tolist() == [9.0]


def test_rows_to_look_at_are_named(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    moved = filled(table, P1=5.0, P2=6.0)
    moved.loc[1, "lat"] = 50.955 if moved.lat[1] > 50.975 else 50.995
    moved.loc[1, "lon"] = 5.705
    moved.loc[2] = {**moved.loc[0], "site": "P99"}
    said = survey.update(write(path.parent, "moved.csv", moved)).notes
    assert said[0].startswith("row 3: P2 was measured ")
    assert said[1] == "row 4: there is no planned site P99, so the row is matched by its coordinates."
    assert "(row 4 as row 2 (other site)). Each counts as a measurement of its own." in said[2]


def test_a_planned_site_may_be_hit_a_little_outside_the_area(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(1).table
    for offset, added in ((0.00005, 1), (0.02, 0)):
        moved = filled(table, P1=5.0 + offset).assign(lon=5.70 - offset, lat=50.96)
        assert survey.update(write(path.parent, f"{added}.csv", moved)).added == added


def test_a_table_of_a_laboratory_has_ids_alone(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(3).table
    file = path.parent / "lab.csv"
    file.write_text("Site;zinc\nP2 ;5,25\np1;6\nP7;7\nP2;8,5\nP3;\n;9\n")
    arrival = survey.update(file)
    assert (arrival.added, arrival.blank, arrival.matched) == (3, 1, ["P1", "P2"])
    assert arrival.rejected == [(4, "there is no site P7"), (7, "no value in column Site")]
    assert "P2 is in rows 2, 5 of the table: all values count." in arrival.notes
    assert "The table has no coordinates; its rows are placed by the ids in Site." in arrival.notes
    new = survey.sites.tail(3)
    assert new.site.tolist() == ["P2", "P1", "P2"]
    assert new.value.tolist() == [5.25, 6.0, 8.5]
    places = plan.set_index("site").loc[["P2", "P1", "P2"], ["lon", "lat"]]
    np.testing.assert_allclose(shapely.get_coordinates(new.geometry.to_numpy()), places, atol=1e-7)
    assert survey.update(file).added == 0
    full = filled(plan, P1=6.0, P2=5.25)
    assert survey.update(write(path.parent, "full.csv", full)).known == 2
    survey.update(write(path.parent, "mended.csv", full[["site", "zinc"]].assign(zinc=[7.0, 5.25, np.nan])))
    assert survey.sites.value.iloc[-1] == 7.0


def test_ids_of_the_first_table_and_errors_place_rows_too(tmp_path: Path) -> None:
    table = sites_table(12).assign(Probe=[f"{k:03d}" for k in range(12)], sd=0.5)
    options = {"error": "sd", "site": "Probe", "kernel": "matern32"}
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "zinc", **options)
    assert Survey(tmp_path / "s.gpkg").settings["columns"]["site"] == "Probe"
    lab = pd.DataFrame({"Probe": [7, 11, 12], "zinc": [5.0, 6.0, 7.0], "sd": [0.25, 0.5, 0.5]})
    arrival = survey.update(write(tmp_path, "lab.csv", lab))
    assert arrival.added == 2
    assert arrival.rejected == [(4, "there is no site 12")]
    assert survey.sites.site.tail(2).tolist() == ["007", "011"]
    assert survey.sites.error.tail(2).tolist() == [0.25, 0.5]
    named = survey.update(write(tmp_path, "named.csv", lab.rename(columns={"Probe": "Nr"})), names={"site": "Nr"})
    assert (named.added, named.known) == (0, 3)
    with pytest.raises(SurveyError, match=r"no columns lon and lat, and none of ids. Pass --x and --y .* or --site"):
        survey.update(write(tmp_path, "none.csv", lab.drop(columns="Probe")))


def test_names_of_candidates_place_rows(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    plan = survey.plan(2).table
    lab = pd.DataFrame({"name": plan.name, "lead": [3.5, 4.5], "sd": 0.1})
    arrival = survey.update(write(tmp_path, "lab.csv", lab))
    assert (arrival.added, arrival.matched) == (2, ["P1", "P2"])


def test_a_renamed_column_is_named_with_the_option(path: Path) -> None:
    survey = Survey(path)
    table = sites_table(60).tail(2).rename(columns={"zinc": "Zinc mg/kg", "lon": "X"})
    file = write(path.parent, "new.csv", table)
    told = (
        r"no columns zinc and lon\. Did you mean Zinc mg/kg for zinc\? If .* pass --value 'Zinc mg/kg' --x NAME\. Col"
    )
    with pytest.raises(SurveyError, match=told):
        survey.update(file)
    told = r"no column zinc\. Did you mean Zinc mg/kg\? If .* pass --value 'Zinc mg/kg'\. Columns: X, lat, Zinc mg/kg"
    with pytest.raises(SurveyError, match=told):
        survey.update(file, names={"x": "X"})
    with pytest.raises(SurveyError, match=r"no column lon.* pass --x"):
        survey.update(file, names={"value": "Zinc mg/kg"})
    assert survey.update(file, names={"value": "Zinc mg/kg", "x": "X"}).added == 2
    assert survey.settings["columns"]["value"] == "zinc"


def test_the_columns_of_a_table_of_ids_are_its_own(path: Path) -> None:
    survey = Survey(path)
    survey.plan(1)
    file = write(path.parent, "lab.csv", pd.DataFrame({"site": ["P1"], "result": [5.0]}))
    with pytest.raises(SurveyError, match=r"no column zinc\..* Columns: site, result\.$"):
        survey.update(file)
    file = write(path.parent, "lab.csv", pd.DataFrame({"probe": ["P1"], "result": [5.0]}))
    told = r"no columns lon and lat, and none of ids\..* And there is no column zinc\..* pass --value NAME\. Columns"
    with pytest.raises(SurveyError, match=told):
        survey.update(file)
