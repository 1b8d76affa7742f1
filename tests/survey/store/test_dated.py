"""Measurements of wells at several dates: what comes late, what is corrected, and what is pointed out."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.store.far import stand_apart

HEADER = "well,x,y,date,salt"
SOON = (date.today() + timedelta(400)).isoformat()


def row(well: int, when: str, salt: float) -> str:
    return f"W{well},{400_000 + 431 * (well % 6)},{5_600_000 + 377 * (well // 6)},{when},{salt}"


ROWS = [row(k, f"2023-0{month}-1{k % 9}", round(month + 0.1 * k, 1)) for k in range(24) for month in (2, 5, 8)]


def written(folder: Path, rows: list[str], name: str = "new.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([HEADER, *rows]))
    return path


def begun(folder: Path, rows: list[str], time: str | None = "date", site: str | None = "well") -> Survey:
    table = written(folder, rows, "wells.csv")
    return Survey.create(folder / "w.gpkg", table, "salt", crs="EPSG:32633", site=site, time=time)


def measured(survey: Survey, well: str) -> list[tuple[str, float]]:
    sites = survey.sites[survey.sites.site == well]
    times = [survey.workspace.time.shown(when) if when == when else "" for when in survey.workspace.times]
    return sorted((times[k], float(value)) for k, value in zip(sites.index, sites.value, strict=True))


def test_a_date_that_comes_late_is_filled_in(tmp_path: Path) -> None:
    rows = [ROWS[0].replace("2023-02-10", ""), *ROWS[1:]]
    survey = begun(tmp_path, rows)
    assert not survey.workspace.modelled[0]
    arrival = survey.update(written(tmp_path, [ROWS[0], ROWS[4]]))
    assert (arrival.added, arrival.known) == (0, 1)
    assert "Measurements that had no date and have one now: 1 (row 2)." in arrival.notes
    assert survey.workspace.modelled.all()
    assert measured(Survey(survey.path), "W0")[0] == ("2023-02-10", 2.0)
    again = survey.update(written(tmp_path, ROWS))
    assert (again.added, again.known) == (0, 72)


def test_a_row_with_a_date_is_that_with_the_same_date_before_one_without(tmp_path: Path) -> None:
    rows = [row(0, "", 2.0), *ROWS]
    survey = begun(tmp_path, rows)
    arrival = survey.update(written(tmp_path, ROWS))
    assert (arrival.added, arrival.known) == (0, 72)
    assert int(survey.workspace.modelled.sum()) == 72


def test_a_depth_that_comes_late_is_filled_in(tmp_path: Path) -> None:
    table = tmp_path / "depths.csv"
    lines = [f"{each},{k if k else ''}" for k, each in enumerate(ROWS)]
    table.write_text("\n".join([f"{HEADER},depth", *lines]))
    survey = Survey.create(tmp_path / "d.gpkg", table, "salt", crs="EPSG:32633", covariates=["depth"])
    table.write_text("\n".join([f"{HEADER},depth", f"{ROWS[0]},7"]))
    assert "Measurements that had no depth and have one now: 1 (row 2)." in survey.update(table).notes
    assert survey.workspace.modelled.all()


def test_a_row_replaces_the_value_of_its_date_or_the_date_of_its_value(tmp_path: Path) -> None:
    survey = begun(tmp_path, ROWS)
    assert measured(survey, "W3") == [("2023-02-13", 2.3), ("2023-05-13", 5.3), ("2023-08-13", 8.3)]
    value, when = row(3, "2023-05-13", 5.9), row(4, "2023-08-30", 8.4)
    arrival = survey.update(written(tmp_path, [value, when, row(5, "2023-11-01", 9.9)]), corrections=True)
    assert measured(survey, "W3") == [("2023-02-13", 2.3), ("2023-05-13", 5.9), ("2023-08-13", 8.3)]
    assert measured(survey, "W4") == [("2023-02-14", 2.4), ("2023-05-14", 5.4), ("2023-08-30", 8.4)]
    assert len(measured(survey, "W5")) == 4
    assert "W5: no earlier value has its date or its value, so all count." in arrival.notes
    assert {"W3: the earlier value was set aside.", "W4: the earlier value was set aside."} <= {*arrival.notes}
    assert not any("further measurements" in note for note in arrival.notes)
    # a later table that is sent again leaves the visits before alone
    assert survey.update(written(tmp_path, [row(5, "2023-11-01", 9.9)]), corrections=True).added == 0
    assert len(measured(survey, "W5")) == 4
    # but not a value of the same date, which was to be replaced
    survey.update(written(tmp_path, [row(5, "2023-11-01", 9.0)]))
    survey.update(written(tmp_path, [row(5, "2023-11-01", 9.0)]), corrections=True)
    assert measured(survey, "W5")[-1] == ("2023-11-01", 9.0)
    assert len(measured(survey, "W5")) == 4


def test_what_may_replace_several_is_refused(tmp_path: Path) -> None:
    survey = begun(tmp_path, [*ROWS, row(0, "2023-02-10", 2.2)])
    with pytest.raises(SurveyError, match="W0: the survey has 2 values of this site that row 2 may correct"):
        survey.update(written(tmp_path, [row(0, "2023-02-10", 2.1)]), corrections=True)


def test_a_planned_site_is_corrected_and_its_other_visits_stay(tmp_path: Path) -> None:
    survey = begun(tmp_path, ROWS)
    (place,) = survey.plan(1, progress=False).table.itertuples()

    def sent(when: str, salt: float, corrections: bool = False) -> None:
        path = tmp_path / "plan.csv"
        path.write_text(f"site,x,y,date,salt\nP1,{place.x},{place.y},{when},{salt}")
        survey.update(path, corrections=corrections)

    sent("2023-09-01", 50.0)
    sent("2023-09-10", 5.0, True)  # both were wrong
    assert measured(survey, "P1") == [("2023-09-10", 5.0)]
    sent("2023-10-01", 6.0)
    sent("2023-10-01", 7.0, True)
    assert measured(survey, "P1") == [("2023-09-10", 5.0), ("2023-10-01", 7.0)]


def test_copies_are_pointed_out_and_visits_are_not(tmp_path: Path) -> None:
    same_value = row(3, "2023-11-01", 2.3)
    survey = begun(tmp_path, [*ROWS, ROWS[7], same_value])
    (note,) = (note for note in survey.notes if "an earlier row of the table" in note)
    assert note.startswith("Rows with the place, the value and the date of an earlier row of the table: 1 (row 74 as ")
    assert not any("all values count" in note for note in survey.notes)


def test_two_values_of_one_date_are_pointed_out(tmp_path: Path) -> None:
    survey = begun(tmp_path, [*ROWS, row(3, "2023-05-13", 7.0)])
    assert "W3 is in rows 12, 74 of the table with date 2023-05-13: all values count." in survey.notes


def test_without_time_copies_are_named_first(tmp_path: Path) -> None:
    others = [row(k, "2023-11-01", round(2 + 0.1 * k, 1)) for k in range(8)]
    survey = begun(tmp_path, [*ROWS, *others, ROWS[7]], time=None)
    (note,) = (note for note in survey.notes if "an earlier row of the table" in note)
    assert "9 (row 82 as row 9; row 74 as row 2 (other date)" in note


def test_a_new_date_of_the_same_result_is_pointed_out(tmp_path: Path) -> None:
    table = tmp_path / "undated.csv"
    table.write_text("\n".join(",".join(each.split(",")[k] for k in (0, 1, 2, 4)) for each in [HEADER, *ROWS]))
    survey = Survey.create(tmp_path / "u.gpkg", table, "salt", crs="EPSG:32633", site="well")
    arrival = survey.update(written(tmp_path, [ROWS[0], row(9, "2023-11-01", 12.0)]))
    assert (arrival.added, arrival.known) == (1, 1)
    assert any(
        note.startswith("Rows left out as known, though the survey's rows have no date: 1 (row 2).")
        for note in arrival.notes
    )


def test_a_date_in_the_future_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey = begun(tmp_path, [*ROWS[:-1], ROWS[-1].replace("2023-08-15", SOON)])
    note = f"wells.csv, row 73: date {SOON} is in the future. If it is a typo, send the row with the right one (--re"
    assert any(said.startswith(note) for said in survey.notes)
    survey.update(written(tmp_path, [ROWS[-1]]), corrections=True)
    assert not any("in the future" in said for said in survey.notes)
    new = written(tmp_path, [row(2, SOON, 5.5), row(3, "", 5.6)])
    assert main(["survey", "update", str(survey.path), str(new)]) == 0
    said = capsys.readouterr().out
    assert f"new.csv, row 2: date {SOON} is in the future." in said
    assert "Measurements that are not used, because they have no value of date: 1 (new.csv, row 3)." in said


def test_a_date_far_from_all_others_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = written(tmp_path, [ROWS[0].replace("2023-02-10", "1923-02-10"), ROWS[1].replace("2023", ""), *ROWS[2:]])
    asked = ["survey", "init", str(table), "--value", "salt", "--crs", "EPSG:32633", "--time", "date"]
    assert main([*asked, "--out", str(tmp_path / "w.gpkg")]) == 0
    said = capsys.readouterr().out
    assert "new.csv, row 2: date 1923-02-10 is far from all others. If it is a typo, correct it and begin" in said
    assert "Measurements used: 71." in said


def test_times_stand_apart_where_few_are_farther_than_the_others_span() -> None:
    times = np.array([3.0, 1, 2, np.nan, 5, 4, 0, 7, 6, 30, 8, 2, 3, 4, 1, 2, 8])
    assert np.flatnonzero(stand_apart(times)).tolist() == [9]
    assert np.flatnonzero(stand_apart(-times)).tolist() == [9]
    assert np.flatnonzero(stand_apart(np.append(times, 33.0))).tolist() == [9, 17]
    assert not stand_apart(np.append(times, [33.0, 40, 41, 42])).any()
    assert not stand_apart(np.full(20, 4.0)).any()
    assert not stand_apart(np.array([1.0, 2, 99])).any()
