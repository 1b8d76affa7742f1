"""The state of a survey in one GeoPackage, which is the old one or the new one, never half."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import geopandas as gpd
import pandas as pd
import pyogrio
import shapely
from filelock import FileLock, Timeout

from bo_scale.errors import SurveyError
from bo_scale.survey.choice.objectives import current_name
from bo_scale.survey.paths import require_survey
from bo_scale.survey.store.layers import read_layer

FORMAT = 2
"""The newest format: of surveys with cases, zeros or limits of detection. Others have 1, as before."""
FORMAT_KEY = "bo_scale format"
CRS_KEY = "bo_scale crs"
"""Coordinate systems as they were given; a GeoPackage's own definitions round their parameters."""
SYNCHRONOUS = "OGR_SQLITE_SYNCHRONOUS"
BESIDE = ("-journal", "-wal", "-shm")
"""Endings of files that SQLite keeps beside one that is being written."""

TABLES: dict[str, tuple[str | None, dict[str, type]]] = {
    "sites": (
        "Point",
        {
            "number": int,
            "value": float,
            "error": float,
            "of": float,
            "site": str,
            "file": str,
            "row": int,
            "text": str,
            "batch": int,
        },
    ),
    "area": ("MultiPolygon", {}),
    "forbidden": ("MultiPolygon", {}),
    "candidates": ("Point", {"name": str}),
    "weights": ("Point", {"weight": float}),
    "planned": ("Point", {"site": str, "name": str, "batch": int, "status": str, "score": float}),
    "routes": (
        "LineString",
        {"batch": int, "day": int, "team": int, "sites": str, "kilometres": float, "hours": float},
    ),
    "barriers": ("MultiPolygon", {}),
    "rejected": (None, {"file": str, "row": int, "text": str, "reason": str}),
}
"""Kind of geometry and columns of each; others that a frame has are kept as well."""
LAYERS = {"rejected": "aside"}
"""Names in the file of tables that are called otherwise here."""
OPTIONAL = ("forbidden", "candidates", "weights", "routes", "barriers")


@dataclass
class State:
    """All that a survey knows, and its GeoPackage holds.

    Attributes:
        settings: Settings by name, as JSON can hold them.
        sites: Measured, in the coordinates of the user; a row for each measurement.
        area: The area where sampling is allowed.
        forbidden: Its forbidden parts.
        candidates: Places to choose from; None where any will do.
        weights: Places with how much they count.
        planned: Proposed sites, and what became of them.
        rejected: Rows that could not be used.
        routes: Routes of teams to planned sites; None if nobody travels.
        barriers: Barriers that the routes lead around, beside the forbidden parts; None without any.
    """

    settings: dict[str, Any]
    sites: gpd.GeoDataFrame
    area: gpd.GeoDataFrame
    forbidden: gpd.GeoDataFrame | None
    candidates: gpd.GeoDataFrame | None
    weights: gpd.GeoDataFrame | None
    planned: gpd.GeoDataFrame
    rejected: pd.DataFrame
    routes: gpd.GeoDataFrame | None = None
    barriers: gpd.GeoDataFrame | None = None


@contextmanager
def locked(path: str | os.PathLike[str], timeout: float = 60.0) -> Iterator[None]:
    """Hold a survey, so that nobody writes between a read and a write; within the same thread it may be held again.

    Args:
        path: The GeoPackage; the lock is a file beside it.
        timeout: Seconds to wait for whoever has it.

    Raises:
        SurveyError: if another process does not let go, or the folder is not there or cannot be written to.
    """
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise SurveyError(f"{path}: there is no folder {target.parent}; create it first.")
    lock = FileLock(f"{target}.lock", is_singleton=True)
    try:
        lock.acquire(timeout=timeout)
    except Timeout as error:
        raise SurveyError(f"{path}: another process is working on this survey; try again when it is done.") from error
    except OSError as error:
        raise SurveyError(f"{path}: the folder cannot be written to ({error}); check its permissions.") from error
    try:
        yield
    finally:
        lock.release()


def write_state(path: str | os.PathLike[str], state: State) -> None:
    """Write a survey in place of what is there; whatever happens meanwhile, the old one or the new one is there, whole.

    Raises:
        SurveyError: if another program has the file open, or it cannot be written; it is as it was.
    """
    target = Path(path).resolve()
    partial = target.with_name(f".{target.name}.partial.gpkg")
    with locked(target):
        settle(target)
        _remove(partial)
        try:
            with _unhurried():
                _write(partial, state)
            _sync(partial)
            os.replace(partial, target)
            _sync(target.parent)
        except (OSError, sqlite3.Error, pyogrio.errors.DataSourceError, pyogrio.errors.FeatureError) as error:
            raise SurveyError(
                f"{path}: the file could not be written ({_short(error)}). The survey is unchanged."
            ) from error
        finally:
            _remove(partial)


def read_state(path: str | os.PathLike[str]) -> State:
    """Read a survey.

    Raises:
        SurveyError: if there is none, it is damaged or in use, or it was written by a newer version.
    """
    require_survey(path)
    try:
        with closing(_connect(Path(path))) as file:
            file.execute("BEGIN")
            names = {name for (name,) in file.execute("SELECT table_name FROM gpkg_contents")}
            if not {"settings", "sites", "area", "planned", _layer("rejected")} <= names:
                raise SurveyError(_no_survey(path))
            settings = _settings(file, path)
            given = settings.pop(CRS_KEY, {})
            for plan in settings.get("plans", ()):
                plan["objective"] = current_name(plan["objective"])
            tables = {
                name: read_layer(file, _layer(name), columns, given.get(name), path) if _layer(name) in names else None
                for name, (_, columns) in TABLES.items()
            }
    except sqlite3.DatabaseError as error:
        raise SurveyError(f"{path}: {_reason(error)}") from error
    return State(settings, **tables)


@contextmanager
def _unhurried() -> Iterator[None]:
    """Let GDAL not wait for the disk after each layer: what it writes counts only once it is whole and synchronised."""
    before = pyogrio.get_gdal_config_option(SYNCHRONOUS)
    pyogrio.set_gdal_config_options({SYNCHRONOUS: "OFF"})
    try:
        yield
    finally:
        pyogrio.set_gdal_config_options({SYNCHRONOUS: before})


def _write(partial: Path, state: State) -> None:
    systems = {name: getattr(state, name).crs for name in TABLES if isinstance(getattr(state, name), gpd.GeoDataFrame)}
    given = {name: crs.srs for name, crs in systems.items() if crs is not None}
    settings = {**state.settings, FORMAT_KEY: _format(state), CRS_KEY: given}
    texts = [json.dumps(value, ensure_ascii=False) for value in settings.values()]
    counts = {"settings": len(settings)}
    pyogrio.write_dataframe(
        pd.DataFrame({"key": list(settings), "value": texts}), partial, layer="settings", driver="GPKG"
    )
    for name, (geometry, columns) in TABLES.items():
        frame = getattr(state, name)
        if frame is None and name in OPTIONAL:
            continue
        frame = _typed(frame, name, columns)
        counts[_layer(name)] = len(frame)
        pyogrio.write_dataframe(
            frame,
            partial,
            layer=_layer(name),
            driver="GPKG",
            geometry_type=geometry,
            promote_to_multi=geometry == "MultiPolygon",
        )
    _check(partial, counts)


def _format(state: State) -> int:
    """Return the oldest format that holds a state."""
    transform = state.settings.get("transform", {})
    zeros = "offset" in transform or transform.get("name") in ("log1p", "two-part")
    limits = "below" in state.sites.columns and bool((state.sites.below > 0).any())
    return FORMAT if zeros or limits or state.settings.get("columns", {}).get("exposed") else 1


def _layer(table: str) -> str:
    return LAYERS.get(table, table)


def _typed(frame: Any, name: str, columns: dict[str, type]) -> Any:
    """Return a copy with the columns of a table in their types, and plane geometry."""
    absent = [column for column in columns if column not in frame.columns]
    if absent:
        raise SurveyError(f"{name}: columns are missing: {', '.join(absent)}.")
    whole = frame.copy()
    for column, kind in columns.items():
        whole[column] = whole[column].fillna("").astype(str) if kind is str else whole[column].astype(kind)
    if isinstance(whole, gpd.GeoDataFrame):
        if whole.crs is None:
            raise SurveyError(f"{name}: there is no CRS.")
        whole = whole.set_geometry(shapely.force_2d(whole.geometry.to_numpy()), crs=whole.crs)
    return whole


def _check(partial: Path, counts: dict[str, int]) -> None:
    """Refuse a file in which rows are missing."""
    with closing(_connect(partial)) as file:
        for name, count in counts.items():
            (found,) = file.execute(f'SELECT count(*) FROM "{name}"').fetchone()
            if found != count:
                raise OSError(f"only {found} of {count} rows of {name} were written; is the disk full?")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=rw", uri=True, isolation_level=None)


def settle(path: str | os.PathLike[str]) -> None:
    """Merge changes that another program has left beside the file; else they would be mixed with the new one.

    Raises:
        SurveyError: if another program still has it open, or is changing it.
    """
    target = Path(path).resolve()
    beside = [Path(f"{target}{suffix}") for suffix in BESIDE[:2]]
    if target.is_file() and any(file.exists() for file in beside):
        try:
            with closing(_connect(target)) as file:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                file.execute("PRAGMA journal_mode=DELETE")
                file.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            pass
    if any(file.exists() for file in beside):
        raise SurveyError(f"{target}: another program, such as QGIS, has the survey open: close it there first.")
    if target.is_file():
        _require_unlocked(target)


def _require_unlocked(target: Path) -> None:
    """Refuse a file in which another program has changes that it has not saved yet."""
    try:
        with closing(_connect(target)) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise SurveyError(f"{target}: {_reason(error)}") from error
    except sqlite3.DatabaseError:  # no database, which may be replaced
        return


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(partial: Path) -> None:
    for suffix in ("", *BESIDE):
        Path(f"{partial}{suffix}").unlink(missing_ok=True)


def _no_survey(path: str | os.PathLike[str]) -> str:
    return f"{path}: this GeoPackage is not a survey; create one with `bo-scale survey init`."


def _short(error: Exception) -> str:
    """Return why a file could not be written; GDAL quotes whole statements of SQL."""
    text = str(error)
    return "the disk is full" if "disk is full" in text else text if len(text) < 200 else f"{text[:200]}…"


def _reason(error: sqlite3.DatabaseError) -> str:
    """Return why a file could not be read, and what to do."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extended part
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another program, such as QGIS, is changing the survey: save the changes and close it there first."
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
        return f"the file cannot be read ({error}); check its permissions, and those of its folder."
    return f"this is not a survey, or it is damaged ({error}); restore a copy."


def _setting(path: str | os.PathLike[str], key: str, text: Any) -> Any:
    """Return the value of a setting from its JSON."""
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise SurveyError(
            f"{path}: the setting {key!r} in the table 'settings' is damaged ({error}); restore a copy."
        ) from error


def _settings(file: sqlite3.Connection, path: str | os.PathLike[str]) -> dict[str, Any]:
    rows = file.execute("SELECT key, value FROM settings ORDER BY fid")
    settings = {key: _setting(path, key, value) for key, value in rows}
    version = settings.pop(FORMAT_KEY, None)
    if not isinstance(version, int):
        raise SurveyError(_no_survey(path))
    if version > FORMAT:
        raise SurveyError(
            f"{path}: written by a newer bo_scale (format {version}; this one reads {FORMAT}). Update bo_scale."
        )
    plans = settings.get("plans", [])
    if not isinstance(plans, list) or not all(isinstance(each, dict) and "objective" in each for each in plans):
        raise SurveyError(f"{path}: the setting 'plans' in the table 'settings' is damaged; restore a copy.")
    if not isinstance(settings.get(CRS_KEY, {}), dict):
        raise SurveyError(f"{path}: the setting {CRS_KEY!r} in the table 'settings' is damaged; restore a copy.")
    return settings
