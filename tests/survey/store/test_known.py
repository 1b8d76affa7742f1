from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from samples import copied, filled, sites_table, write

from bo_scale.survey import Survey
from bo_scale.survey.store.arrivals import Arrival

pytestmark = pytest.mark.usefixtures("small")


def begun(folder: Path, table: pd.DataFrame) -> Survey:
    return Survey.create(folder / "o.gpkg", write(folder, "first.csv", table), "zinc", kernel="matern32")


def dated(count: int = 10) -> pd.DataFrame:
    days = pd.date_range("2024-05-01", periods=count).strftime("%Y-%m-%d")
    return sites_table(count).assign(date=days, note="")


def test_the_same_rows_of_another_program_are_known(tmp_path: Path) -> None:
    table = dated()
    survey = begun(tmp_path, table)
    other = table[["note", "date", "zinc", "lat", "lon"]].copy()
    other["date"] = pd.to_datetime(other.date).dt.strftime("%d.%m.%Y")
    other["zinc"] = other.zinc.map("{:.5f}".format)
    other["lon"] += 4e-7  # other rounding
    other.insert(0, "fid", range(10))  # which QGIS adds
    for name, more in {"a.csv": {}, "b.csv": {"sep": ";", "decimal": ","}, "c.csv": {"quoting": 1}}.items():
        other.to_csv(tmp_path / name, index=False, **more)
        arrival = survey.update(tmp_path / name)
        assert (arrival.added, arrival.known, arrival.aside) == (0, 10, 0), name
    other.assign(zinc=table.zinc).to_excel(tmp_path / "d.xlsx", index=False)
    assert survey.update(tmp_path / "d.xlsx").known == 10
    assert survey.update(tmp_path / "a.csv", repeats=True).added == 10


def test_another_day_place_or_value_is_another_measurement(tmp_path: Path) -> None:
    table = dated(4)
    survey = begun(tmp_path, table)
    again = pd.concat([table.iloc[[0]].assign(date="2025-05-01"), table.iloc[[1]], table.iloc[[2]]])
    again.iloc[1, 0] += 1e-5
    again.iloc[2, 2] += 0.001
    arrival = survey.update(write(tmp_path, "again.csv", again))
    assert (arrival.added, arrival.known) == (3, 0)
    told = "Rows with the place and the value of a measurement that the survey has, but another date: 1."
    assert arrival.notes[-1].startswith(told)
    assert survey.update(tmp_path / "again.csv").added == 0


def test_rounded_metres_are_known(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    table = pd.read_csv(dutch / "sites.csv")
    table["x"] += 0.04
    assert survey.update(write(tmp_path, "t.csv", table)).known == 40
    table["x"] += 0.06
    assert survey.update(write(tmp_path, "t.csv", table)).added == 40


def test_a_replaced_value_stays_replaced_when_another_program_saves_its_row(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(1).table
    survey.update(write(path.parent, "first.csv", filled(plan, P1=12.0)))
    survey.update(write(path.parent, "mended.csv", filled(plan, P1=1.2)), corrections=True)
    filled(plan, P1="12,00").to_csv(path.parent / "first2.csv", index=False, sep=";", decimal=",")
    arrival = survey.update(path.parent / "first2.csv")
    assert (arrival.added, arrival.known, arrival.aside) == (0, 1, 1)
    assert survey.sites.value.iloc[-1] == 1.2


def test_rows_that_cannot_be_used_are_told_once(path: Path) -> None:
    survey = Survey(path)
    (path.parent / "a.csv").write_text("lon,lat,zinc\n5.71,50.96,?\n5.75,50.98,5.50\n")
    (path.parent / "b.csv").write_text('zinc;lat;lon\n"?";50,96;5,71\n5,5;50,98;5,75\n')
    assert len(survey.update(path.parent / "a.csv").rejected) == 2
    again = survey.update(path.parent / "b.csv")
    assert (again.rejected, again.known, again.aside) == ([], 2, 2)


def test_rows_of_earlier_versions_are_known_by_what_they_kept(tmp_path: Path) -> None:
    table = dated()
    survey = begun(tmp_path, table)
    state = survey.workspace.state
    survey._save(replace(state, sites=state.sites.drop(columns="other")))
    other = table.assign(date=pd.to_datetime(table.date).dt.strftime("%d.%m.%Y"))
    other.to_csv(tmp_path / "b.csv", index=False, sep=";", decimal=",")
    assert survey.update(tmp_path / "b.csv").known == 10
    assert survey.update(write(tmp_path, "c.csv", table.assign(date="2025-01-01"))).added == 10


def test_equal_rows_of_one_table_are_told_and_count(tmp_path: Path) -> None:
    table = pd.concat([dated(6), dated(6).iloc[[1]], dated(6).iloc[[2]].assign(date="2024-06-01")])
    survey = begun(tmp_path, table)
    told = "Rows with the place and the value of an earlier row of the table: 2 (row 8 as row 3; row 9 as row 4 "
    assert any(note.startswith(told + "(other date)).") for note in survey.notes)
    assert len(survey.sites) == 8


def test_equal_rows_come_in_any_number_quickly(tmp_path: Path) -> None:
    station = pd.DataFrame({"lon": 5.7, "lat": 50.9, "zinc": 0.0, "hour": range(3000)})
    survey = begun(tmp_path, pd.concat([station, sites_table(5).assign(hour=0)]))
    arrival = survey.update(write(tmp_path, "again.csv", station.assign(hour=station.hour + 1000)))
    assert (arrival.added, arrival.known) == (1000, 2000)


def test_a_negative_zero_is_zero(tmp_path: Path) -> None:
    table = sites_table(6).assign(zinc=[-0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    survey = begun(tmp_path, table)
    table.to_csv(tmp_path / "b.csv", index=False, sep=";", decimal=",")
    assert survey.update(tmp_path / "b.csv").known == 6


COUNTS = "Standort;Länge;Breite;Positive;Untersucht"


def counted(folder: Path) -> Survey:
    rows = [f"W{k:03d};7,{k:02d}1;51,0{k}2;{k % 3};{k + 4}" for k in range(10)]
    (folder / "first.csv").write_text("\n".join([COUNTS, *rows]) + "\n")
    options = {"of": "Untersucht", "site": "Standort", "x": "Länge", "y": "Breite", "crs": "EPSG:4326"}
    return Survey.create(folder / "c.gpkg", folder / "first.csv", "Positive", kernel="matern32", **options)


def sent(survey: Survey, name: str, *rows: str, header: str = COUNTS, **options: bool) -> Arrival:
    file = survey.path.parent / name
    file.write_text("\n".join([header, *rows]) + "\n")
    return survey.update(file, **options)


def test_a_corrected_row_is_not_the_row_that_was_set_aside(tmp_path: Path) -> None:
    survey = counted(tmp_path)
    wrong = sent(survey, "a.csv", "W003;7,031;51,032;7;2")
    assert (wrong.added, wrong.rejected) == (0, [(2, "Positive is more than Untersucht")])
    again = sent(survey, "a.csv", "W003;7,031;51,032;7;2")
    assert (again.added, again.known, again.aside) == (0, 1, 1)
    right = sent(survey, "b.csv", "W003;7,031;51,032;2;7")
    assert (right.added, right.known) == (1, 0)
    assert survey.sites.value.tolist()[-1:] == [2.0]
    ids = sent(survey, "c.csv", "W004;7;2", "W005;7;5", header="Standort;Positive;Untersucht")
    assert (ids.added, len(ids.rejected)) == (0, 2)
    header = "Untersucht;Standort;Positive"
    assert sent(survey, "d.csv", "2,0;w004;7", "7;W005;5", header=header).aside == 1  # the second is corrected
    assert survey.sites.value.tolist()[-1:] == [5.0]


def test_exchanged_coordinates_may_be_corrected(tmp_path: Path) -> None:
    table = pd.DataFrame({"lon": [100.0 + k / 100 for k in range(10)], "lat": 13.0, "v": range(10)})
    table["lat"] += [0.0, 0.05] * 5
    survey = Survey.create(tmp_path / "t.gpkg", write(tmp_path, "t.csv", table), "v", kernel="matern32")
    new = pd.DataFrame({"lon": [100.011, 100.021, 100.031, 13.02], "lat": [13.02, 13.02, 13.02, 100.041], "v": 3.5})
    assert survey.update(write(tmp_path, "a.csv", new)).added == 3
    assert survey.rejected.reason.str.contains("may be swapped").all()
    new.loc[3, ["lon", "lat"]] = 100.041, 13.02
    arrival = survey.update(write(tmp_path, "b.csv", new))
    assert (arrival.added, arrival.known) == (1, 3)


def test_rows_that_earlier_versions_set_aside_are_known_by_their_text(tmp_path: Path) -> None:
    survey = counted(tmp_path)
    sent(survey, "a.csv", "W003;7,031;51,032;7;2", "W004;7,041;51,042;?;2")
    state = survey.workspace.state
    for old in (["content"], ["content", "key"]):
        survey._save(replace(state, rejected=state.rejected.drop(columns=old)))
        survey = Survey(survey.path)
        header = "Länge;Standort;Breite;Positive;Untersucht"
        again = sent(survey, "b.csv", "7,031;W003;51,032;7;2", "7,041;W004;51,042;?;2", header=header)
        assert (again.known, again.rejected) == (2, [])
        assert sent(survey, "c.csv", "W003;7,031;51,032;2;7").added == 1
