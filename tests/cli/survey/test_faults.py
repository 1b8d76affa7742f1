"""Faults of disks, files, other programs and terminals: a line that says what to do, and nothing is damaged."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from commands import refused, run

from bo_scale.cli import main
from bo_scale.survey import Survey, whole_files

SURVEY = [sys.executable, "-m", "bo_scale.cli", "survey"]


def spoil(path: Path, *statements: str) -> None:
    """Change a survey as another program does."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.create_function("ST_IsEmpty", 1, lambda _: 0)
        for name in ("ST_MinX", "ST_MaxX", "ST_MinY", "ST_MaxY"):
            file.create_function(name, 1, lambda _: 8.0)
        for each in statements:
            file.execute(each)
        file.commit()


@pytest.mark.parametrize("name", ["g.tif", "g.csv"])
def test_predictions_that_cannot_be_read_back_replace_nothing(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, f"predict s.gpkg --cells 20 --out {name}")
    before = Path(name).read_bytes()
    monkeypatch.setattr(whole_files, "_read", lambda _: (0, 0))
    told = refused(capsys, f"predict s.gpkg --cells 30 --out {name}")
    assert f"{name}: the file could not be written (what was written cannot be read back; is the disk full?)" in told
    assert "What was there is unchanged." in told
    assert Path(name).read_bytes() == before
    assert not list(folder.glob(".*partial*"))


def test_a_file_that_is_too_large_for_the_disk_is_refused(folder: Path) -> None:
    words = "predict s.gpkg --cells 2000 --out g.tif"
    code = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
    code += "from bo_scale.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-B", "-c", code, "survey", *words.split()]  # bytecode would be cut off, and kept
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the file could not be written (File too large). There is no such file now." in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("g.*"))


def test_a_plan_whose_table_cannot_be_written_can_be_had_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(whole_files, "_read", lambda _: (0, 0))
        told = refused(capsys, "plan s.gpkg --batch 2 --out n.csv")
    assert "The survey has the plan; `bo-scale survey plan s.gpkg --again --out OTHER.csv` writes its table." in told
    assert "P1, P2" in run(capsys, "plan s.gpkg --again --out o.csv")


@pytest.mark.parametrize(
    "words",
    [
        "init sites.csv --value pb --out i.gpkg",
        "plan s.gpkg --batch 3 --out n.csv --map m.html",
        "update s.gpkg sites.csv --repeats",
        "predict s.gpkg --cells 100 --out g.tif",
    ],
)
@pytest.mark.parametrize("module", ["bo_scale.survey.survey", "geopandas", "torch"])
def test_an_interrupt_says_what_was_written(folder: Path, words: str, module: str) -> None:
    """The process sends itself the signal as a package is imported, where it may come as another error."""
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from bo_scale.cli import main
sys.exit(main(sys.argv[1:]))
"""
    survey = (folder / "s.gpkg").read_bytes()
    command = [sys.executable, "-c", code, "survey", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("Interrupted. ")
    assert done.stderr.count("\n") == 1
    assert (folder / "s.gpkg").read_bytes() == survey


def test_a_signal_from_outside_ends_a_long_prediction(folder: Path) -> None:
    code = """
import sys
from bo_scale.cli import main
from bo_scale.survey.mapping import model
forecast = model.forecast
def telling(*given):
    print("predicting", flush=True)
    return forecast(*given)
model.forecast = telling
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, *["survey", "predict", "s.gpkg", "--cells", "2000000", "--out", "g.csv"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert told == "predicting\n"
    assert process.returncode == 130
    assert "Interrupted. Unchanged: s.gpkg. Not written: g.csv." in errors
    assert not list(folder.glob(".*partial*"))


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "ALTER TABLE sites RENAME COLUMN value TO lead",
            "'sites' has no column value any more (it has also: geom, lead",
        ),
        ("ALTER TABLE sites DROP COLUMN error", "'sites' has no column error any more"),
        (
            "INSERT INTO sites (geom, value) SELECT geom, 5.0 FROM sites LIMIT 1",
            "column number of the table 'sites' needs",
        ),
        (
            "UPDATE sites SET value = NULL WHERE number = 3",
            "1 of 24 rows of the table 'sites' have no number in the column",
        ),
        ("UPDATE sites SET value = 'abc' WHERE number = 3", "1 rows have 'abc'"),
        ("UPDATE sites SET number = 1", "23 of 24 rows of the table 'sites' are copies"),
        ("UPDATE sites SET geom = NULL WHERE number = 3", "have no point as their geometry, the first of them row 4"),
        ("UPDATE sites SET geom = x'00'", "'sites' has a damaged geometry"),
        ("DELETE FROM area", "the area is empty"),
        ("DROP TABLE planned", "the table 'planned' is not there any more"),
        (
            "UPDATE settings SET value = '{' WHERE key = 'columns'",
            "the setting 'columns' in the table 'settings' is damaged",
        ),
        ("UPDATE settings SET value = NULL WHERE key = 'fit'", "the setting 'fit' in the table 'settings' is damaged"),
        ("UPDATE settings SET value = '{\"kernel\": 1}' WHERE key = 'fit'", "the setting 'fit' in the table"),
        (
            "UPDATE settings SET value = '3' WHERE key = 'plans'",
            "the setting 'plans' in the table 'settings' is damaged",
        ),
        ("UPDATE settings SET value = '\"x\"' WHERE key = 'metric'", "the setting 'metric' in the table"),
        ("UPDATE settings SET value = '\"x\"' WHERE key = 'threshold'", "is damaged (its value is a str)"),
        ("DELETE FROM settings WHERE key = 'kernel'", "the setting 'kernel' is missing"),
        ("UPDATE settings SET value = '99' WHERE key = 'bo_scale format'", "written by a newer bo_scale (format 99"),
        ("DELETE FROM gpkg_spatial_ref_sys WHERE srs_id = 4326", "has no coordinate system any more"),
    ],
)
def test_what_another_program_damaged_is_named(
    folder: Path, statement: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder / "s.gpkg", statement)
    before = (folder / "s.gpkg").read_bytes()
    assert told in refused(capsys, "plan s.gpkg --batch 2 --out n.csv")
    assert (folder / "s.gpkg").read_bytes() == before


def test_rows_that_were_deleted_are_gone_and_without_any_nothing_is_predicted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder / "s.gpkg", "DELETE FROM sites WHERE number < 5")
    assert "Measurements: 19." in run(capsys, "status s.gpkg")
    run(capsys, "predict s.gpkg --cells 20 --out g.csv")
    spoil(folder / "s.gpkg", "DELETE FROM sites")
    assert "no measurements any more" in refused(capsys, "predict s.gpkg --cells 20 --out h.csv")


def test_files_that_are_no_survey(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (folder / "s.gpkg").read_bytes()
    for content, told in (
        (b"", "the file is empty"),
        (b"no database" * 50, "no GeoPackage"),
        (whole[: len(whole) // 2], "the file is cut short"),
        (whole[:50], "the file is cut short"),
    ):
        (folder / "d.gpkg").write_bytes(content)
        assert told in refused(capsys, "status d.gpkg")
    assert "this is a folder" in refused(capsys, f"status {folder}")


@pytest.fixture
def held(folder: Path) -> Iterator[None]:
    """Another process that is changing the survey."""
    code = "import sqlite3, time; c = sqlite3.connect('s.gpkg', isolation_level=None); c.execute('BEGIN IMMEDIATE')\n"
    code += "print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@pytest.mark.usefixtures("held")
def test_a_survey_that_another_program_changes_is_not_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.1))  # for which it waits
    before = (folder / "s.gpkg").read_bytes()
    told = refused(capsys, "plan s.gpkg --batch 2 --out n.csv")
    assert "another program, such as QGIS, is changing the survey" in told
    assert (folder / "s.gpkg").read_bytes() == before
    assert not Path("n.csv").exists()


def test_a_reader_that_stops_early_is_no_fault(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*SURVEY, "status", "s.gpkg"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("predict s.gpkg --cells 1000000000 --out g.csv", "Give at most 25,000,000, which take about 12 GB"),
        ("predict s.gpkg --cells 0 --out g.csv", "give a number from 1 to 25,000,000"),
        ("predict s.gpkg --cells -5 --out g.csv", "give a number from 1 to 25,000,000"),
        ("predict s.gpkg --size 1e-9 --out g.csv", "(--size):"),
        ("plan s.gpkg --batch 100000 --out n.csv", "plan 1 to 1000 sites in all"),
        ("plan s.gpkg --spacing inf --out n.csv", "spacing=inf: give a number of metres"),
        ("plan s.gpkg --seed 99999999999999999999 --out n.csv", "seed=99999999999999999999: give a number"),
        ("plan s.gpkg --out n.gpkg", "ends in .csv or .txt"),
        ("predict s.gpkg --out area.csv/g.csv", "there is no folder"),
        ("init sites.csv --value pb --overwrite --out sites.csv", "ends in .gpkg"),
        ("init sites.csv --value pb --area s.gpkg --overwrite --out s.gpkg", "would be lost; give another name"),
        ("init sites.csv --value pb --x lon --y lon --out t.gpkg", "the column lon cannot be two things at once"),
        ("init sites.csv --value pb --error pb --out t.gpkg", "the column pb cannot be two things at once"),
        ("init sites.csv --value pb --threshold nan --out t.gpkg", "it must be a finite number"),
    ],
)
def test_hostile_options_are_refused(folder: Path, words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "s.gpkg").read_bytes()
    assert told in refused(capsys, words)
    assert (folder / "s.gpkg").read_bytes() == before


@pytest.mark.parametrize(
    "rows", ["8.05,47.02,5", "8.05,47.02,5\n8.06,47.01,7", "8.05,47.02,5\n" * 3, "8.0,47,0\n8.1,47.1,0"]
)
def test_few_or_equal_measurements_give_finite_maps(
    folder: Path, rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "t.csv").write_text(f"lon,lat,pb\n{rows}\n")
    run(capsys, "init t.csv --value pb --kernel matern32 --out t.gpkg")
    survey = Survey(folder / "t.gpkg")
    prediction = survey.predict(cells=20)
    assert (prediction.sd > 0).all()
    assert abs(prediction.mean).max() < 1e3


def test_values_too_large_for_the_model_are_set_aside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "sites.csv").read_text().splitlines()
    (folder / "t.csv").write_text("\n".join([*lines, "8.05,47.02,1e300", "8.05,47.02,inf"]))
    said = run(capsys, "init t.csv --value pb --kernel matern32 --out t.gpkg")
    assert "pb is beyond ±1e+30, change its unit: 1e300" in said
    assert "pb is not finite: inf" in said


def test_names_with_blanks_are_quoted_in_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("sites.csv", "my sites.csv")
    assert main(["survey", "init", "my sites.csv", "--value", "pb", "--out", "Übersicht 1.gpkg"]) == 0
    assert "bo-scale survey plan 'Übersicht 1.gpkg' --batch" in capsys.readouterr().out
