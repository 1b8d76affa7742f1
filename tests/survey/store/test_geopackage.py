import multiprocessing
import os
import random
import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pyogrio
import pytest
import shapely
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyproj import CRS
from states import LAMBERT, assert_same, assert_same_frame, planned, sites, small

from bo_scale.errors import SurveyError
from bo_scale.survey.store import geopackage
from bo_scale.survey.store.geopackage import FORMAT_KEY, State, locked, read_state, write_state


def written(folder: Path, state: State) -> State:
    path = folder / "s.gpkg"
    write_state(path, state)
    return read_state(path)


def test_a_survey_comes_back_as_it_was(tmp_path: Path) -> None:
    crs = CRS.from_epsg(25832)
    point = np.asarray([[500_000.1, 5_700_000.2]])
    state = replace(
        small(n=50),
        forbidden=gpd.GeoDataFrame(geometry=[shapely.MultiPolygon([shapely.box(0, 0, 0.1, 0.3)])], crs=4326),
        candidates=gpd.GeoDataFrame({"name": ["am Bach", ""]}, geometry=shapely.points([[0, 1], [2, 3]]), crs=LAMBERT),
        weights=gpd.GeoDataFrame({"weight": [np.inf]}, geometry=shapely.points(point), crs=crs),
        planned=planned(np.zeros((0, 2)), crs),
        rejected=pd.DataFrame({"file": [], "row": [], "text": [], "reason": []}),
    )
    back = written(tmp_path, state)
    assert_same(state, back)
    assert isinstance(back.sites, gpd.GeoDataFrame)
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")) == ["s.gpkg"]


def test_it_comes_back_with_the_types_its_columns_have(tmp_path: Path) -> None:
    for frame in (sites(np.zeros((0, 2)), LAMBERT), sites(np.zeros((2, 2)), LAMBERT)):
        back = written(tmp_path, replace(small(), sites=frame)).sites
        assert {str(back[name].dtype) for name in ("number", "row", "batch")} == {"int64"}
        assert {str(back[name].dtype) for name in ("value", "error", "of")} == {"float64"}
        assert {str(back[name].dtype) for name in ("site", "file", "text")} == {"str"}


def test_parts_that_are_empty_are_not_the_same_as_none(tmp_path: Path) -> None:
    empty = gpd.GeoDataFrame({"name": pd.Series([], dtype="str")}, geometry=[], crs=4326)
    back = written(tmp_path, replace(small(), candidates=empty))
    assert back.candidates is not None
    assert len(back.candidates) == 0
    assert back.forbidden is None


def test_columns_that_somebody_added_are_kept(tmp_path: Path) -> None:
    state = small(n=3)
    state = replace(state, sites=state.sites.assign(depth=[0.5, np.nan, 2.0], who=["A", None, "C"], day=[1, 2, 3]))
    back = written(tmp_path, state).sites
    np.testing.assert_array_equal(back.depth, [0.5, np.nan, 2.0])
    assert back.who.fillna("?").tolist() == ["A", "?", "C"]
    assert back.day.tolist() == [1, 2, 3]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
numbers = st.floats(allow_nan=True, allow_infinity=True).map(lambda x: x + 0.0)
finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(finite, finite, numbers, texts), min_size=1, max_size=4), lat=st.floats(-80, 80))
def test_numbers_texts_and_coordinate_systems_are_exact(
    tmp_path: Path, rows: list[tuple[float, float, float, str]], lat: float
) -> None:
    crs = CRS.from_proj4(f"+proj=laea +lat_0={round(lat, 6)} +lon_0=3.25 +datum=WGS84 +units=m +no_defs")
    x, y, value, text = (list(part) for part in zip(*rows))
    frame = sites(np.stack([x, y], -1), crs, value=value, text=text)
    back = written(tmp_path, replace(small(), sites=frame)).sites
    assert_same_frame(frame, back)
    assert back.crs == crs
    assert back.crs.to_wkt() == frame.crs.to_wkt()
    parameters = [[p.value for p in one.coordinate_operation.params] for one in (back.crs, frame.crs)]
    assert parameters[0] == parameters[1]


def test_other_programs_can_read_every_layer(tmp_path: Path) -> None:
    state = small()
    path = tmp_path / "s.gpkg"
    write_state(path, state)
    assert {name for name, _ in pyogrio.list_layers(path)} == {"settings", "sites", "area", "planned", "aside"}
    assert_same_frame(pyogrio.read_dataframe(path, layer="sites"), state.sites)
    assert_same_frame(pyogrio.read_dataframe(path, layer="area"), state.area)


def test_a_large_survey_takes_seconds(tmp_path: Path) -> None:
    n = 20_000
    state = replace(small(), sites=sites(np.random.default_rng(0).random((n, 2)), LAMBERT))
    start = time.process_time()
    back = written(tmp_path, state)
    assert time.process_time() - start < 3.0
    np.testing.assert_array_equal(
        shapely.get_coordinates(back.sites.geometry), shapely.get_coordinates(state.sites.geometry)
    )


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_file_that_is_no_survey(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.gpkg"
    with pytest.raises(SurveyError, match="no such survey"):
        read_state(path)
    path.write_bytes(content)
    with pytest.raises(SurveyError, match="not a survey"):
        read_state(path)
    os.remove(path)
    pyogrio.write_dataframe(small().sites, path, layer="sites")
    with pytest.raises(SurveyError, match="not a survey"):
        read_state(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    write_state(path, small())
    with sqlite3.connect(path) as file:
        file.execute("UPDATE settings SET value = '99' WHERE key = ?", (FORMAT_KEY,))
    file.close()
    with pytest.raises(SurveyError, match=r"newer bo_scale \(format 99"):
        read_state(path)


def test_frames_that_lack_something_are_refused(tmp_path: Path) -> None:
    state = small()
    with pytest.raises(SurveyError, match="sites: columns are missing: value"):
        write_state(tmp_path / "s.gpkg", replace(state, sites=state.sites.drop(columns="value")))
    with pytest.raises(SurveyError, match="area: there is no CRS"):
        write_state(tmp_path / "s.gpkg", replace(state, area=gpd.GeoDataFrame(geometry=[shapely.box(0, 0, 1, 1)])))
    with pytest.raises(SurveyError, match="there is no folder"):
        write_state(tmp_path / "nowhere" / "s.gpkg", state)


STEPS = ["pyogrio.write_dataframe", "_check", "_sync", "os.replace"]


@pytest.mark.parametrize(
    ("step", "call"),
    [(step, call) for step in STEPS for call in range({"pyogrio.write_dataframe": 5, "_sync": 1}.get(step, 1))],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_step_leaves_the_old_survey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int, after: bool
) -> None:
    if step == "os.replace" and after:
        pytest.skip("then the new one is there")
    path = tmp_path / "s.gpkg"
    write_state(path, small(1))
    owner, name = (getattr(geopackage, step.split(".")[0]), step.split(".")[1]) if "." in step else (geopackage, step)
    original = getattr(owner, name)
    calls = 0

    def failing(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls - 1 != call:
            return original(*args, **options)
        if after:
            original(*args, **options)
        raise KeyboardInterrupt if after else OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        with pytest.raises((SurveyError, KeyboardInterrupt)) as caught:
            write_state(path, small(2))
    assert calls == call + 1
    assert after or "is unchanged" in str(caught.value)
    assert_same(read_state(path), small(1))
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")) == ["s.gpkg"]
    write_state(path, small(3))
    assert_same(read_state(path), small(3))


def test_rows_that_did_not_arrive_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.gpkg"
    write_state(path, small(1))
    original = pyogrio.write_dataframe
    monkeypatch.setattr(
        pyogrio, "write_dataframe", lambda frame, *args, **options: original(frame.iloc[:3], *args, **options)
    )
    with pytest.raises(SurveyError, match="3 of 7 rows of settings"):
        write_state(path, small(2))
    assert_same(read_state(path), small(1))


def keep_writing(path: Path, generation: int, said: Connection) -> None:
    while True:
        generation += 1
        write_state(path, small(generation))
        said.send(generation)


def test_a_process_killed_at_any_moment_leaves_a_survey_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    write_state(path, small(0))
    delays = random.Random(5)
    fork = multiprocessing.get_context("fork")
    written = leftovers = 0
    for number in range(8):
        before = read_state(path).settings["generation"]
        ours, theirs = fork.Pipe(duplex=False)
        child = fork.Process(target=keep_writing, args=(path, before, theirs))
        child.start()
        theirs.close()
        said = [before, ours.recv()] if number % 2 else [before]  # of some, what they wrote is waited for
        time.sleep(delays.uniform(0.05, 0.4))
        child.kill()
        child.join()
        with suppress(EOFError):
            while True:
                said.append(ours.recv())
        leftovers += any("partial" in file.name for file in tmp_path.iterdir())
        state = read_state(path)
        generation = state.settings["generation"]
        assert generation in (said[-1], said[-1] + 1)
        assert_same(state, small(generation))
        written = generation
    assert written > 0
    assert leftovers > 0
    write_state(path, small(1000))
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []
    assert_same(read_state(path), small(1000))


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    for suffix in ("", "-journal", "-wal"):
        (tmp_path / f".s.gpkg.partial.gpkg{suffix}").write_bytes(b"half a survey")
    write_state(path, small(1))
    assert_same(read_state(path), small(1))
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []


def test_changes_another_program_has_not_merged_are_let_in_first(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    write_state(path, small(1))
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode=WAL")
    other.execute("UPDATE aside SET reason = 'edited'")
    other.commit()
    assert read_state(path).rejected.reason.tolist() == ["edited"]
    with pytest.raises(SurveyError, match="close it there first"):
        write_state(path, small(2))
    assert read_state(path).rejected.reason.tolist() == ["edited"]
    other.close()
    write_state(path, small(2))
    assert_same(read_state(path), small(2))


def test_the_log_that_a_crashed_program_left_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    write_state(path, small(1))
    script = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA journal_mode=WAL');"
        "c.execute(\"UPDATE aside SET reason = 'edited'\"); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert Path(f"{path}-wal").exists()
    state = read_state(path)
    assert state.rejected.reason.tolist() == ["edited"]
    write_state(path, state)
    assert not Path(f"{path}-wal").exists()
    assert_same(read_state(path), state)


def test_a_survey_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    with locked(path):
        write_state(path, small(1))
        with locked(path):
            pass
        with pytest.raises(Exception, match="could not be acquired"):
            FileLock(f"{path}.lock", timeout=0.0).acquire()
    other = FileLock(f"{path}.lock")
    with other, pytest.raises(SurveyError, match="another process"), locked(path, timeout=0.05):
        pass
    with locked(path):
        pass


def test_plans_of_an_objective_that_was_renamed_are_read_silently(tmp_path: Path) -> None:
    state = small()
    state.settings["plans"] = [{"objective": "maximum"}, {"objective": "latin"}]
    write_state(tmp_path / "s.gpkg", state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plans = read_state(tmp_path / "s.gpkg").settings["plans"]
    assert plans == [{"objective": "uncertainty"}, {"objective": "latin"}]
