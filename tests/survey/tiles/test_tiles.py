"""Predictions by tiles: those of `predict`, the same bits whoever makes them, and nothing lost."""

import errno
import resource
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rasterio
from filelock import FileLock
from killed import KilledOnce
from pyproj import CRS
from rasterio.transform import from_origin
from samples import write

from bo_scale.errors import SurveyError
from bo_scale.survey import Prediction, Survey
from bo_scale.survey.output.exports import write_geotiff
from bo_scale.survey.tiles import mosaic, tile
from bo_scale.survey.tiles import tiles as module
from bo_scale.survey.tiles.folder import folder_of
from bo_scale.survey.tiles.tile import Predicts
from bo_scale.survey.tiles.tiles import Tiles

SIZE = 30.0


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", 96)
    monkeypatch.setattr(module, "OVERVIEW", 60)
    monkeypatch.setitem(mosaic.OPTIONS, "blocksize", 128)


@pytest.fixture
def tiles(path: Path) -> Tiles:
    return Survey(path).tiles(size=SIZE)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first rows of tiles that are predicted, in order."""
    found, whole = list[int](), Predicts.image

    def image(self: Predicts, fitted: Any, part: Any) -> Any:
        made = whole(self, fitted, part)
        found.extend([part[0].start] * (made is not None))
        return made

    monkeypatch.setattr(Predicts, "image", image)
    return found


def require_same(path: Path, prediction: Prediction, folder: Path) -> None:
    """The file is what `export` would write, in its values, places, names and tags."""
    write_geotiff(prediction, folder / "whole.tif")
    with rasterio.open(path) as found, rasterio.open(folder / "whole.tif") as expected:
        assert found.descriptions == expected.descriptions
        assert found.transform.almost_equals(expected.transform, 1e-9)
        assert CRS.from_wkt(found.crs.to_wkt()) == CRS.from_wkt(expected.crs.to_wkt())
        assert np.isnan(found.nodata)
        assert set(found.dtypes) == {"float32"}
        assert found.tags().get("date") == expected.tags().get("date")
        assert [found.tags(k + 1)["of"] for k in range(found.count)] == [
            expected.tags(k + 1)["of"] for k in range(found.count)
        ]
        np.testing.assert_allclose(found.read(), expected.read(), rtol=3e-7, atol=1e-12)


def test_it_is_a_cloud_optimised_file_of_what_predict_says(path: Path, tmp_path: Path) -> None:
    survey, out = Survey(path), tmp_path / "map.tif"
    assert survey.tiles(size=SIZE, intervals=True).write(out, progress=False) == out
    require_same(out, survey.predict(size=SIZE, intervals=True), tmp_path)
    assert not folder_of(out).exists()
    with rasterio.open(out) as file:
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.block_shapes[0] == (128, 128)
        assert file.overviews(1) == [2]
        fine = file.read(1)
    with rasterio.open(out, overview_level=0) as file:
        assert file.read(1)[5, 5] == pytest.approx(fine[10:12, 10:12].mean(), rel=1e-3)  # of an odd number of cells


def many(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Survey:
    """A survey of sites around a gap whose predictions come from the nearest ones; it would be of more than 1,000."""
    sizes = {"FINE_POINTS": 200, "COARSE_POINTS": 80, "CHANGING_POINTS": 60, "MOMENTS": 4, "STAYING_POINTS": 60}
    for name, value in {"EXACT": 40, "OPTIMISER": {"options": {"maxiter": 4}}, **sizes}.items():
        monkeypatch.setattr(f"bo_scale.survey.mapping.model.{name}", value)
    monkeypatch.setattr("bo_scale.survey.mapping.model.grid_is_better", lambda *given: False)
    rng = np.random.default_rng(4)
    x, y, day = rng.uniform(0, 6000, 130), rng.uniform(0, 4000, 130), rng.integers(0, 90, 130)
    x, y, day = (each[np.hypot(x - 4500, y - 2500) > 900] for each in (x, y, day))
    value = np.sin(x / 700) + np.cos(y / 500) + 0.1 * rng.normal(size=len(x))
    table = {"x": 4e5 + x.round(1), "y": 5.6e6 + y.round(1), "value": value, "when": day}
    columns = ["x", "y", "value", *more.get("time", "").split()]
    write(folder, "many.csv", pd.DataFrame(table)[columns])
    more |= {"crs": "EPSG:25832", "kernel": "matern32", "anisotropy": "none"}
    return Survey.create(folder / "many.gpkg", folder / "many.csv", "value", **more)


def deep(folder: Path) -> str:
    """A raster of depths, without values in the south-west."""
    profile = {"driver": "GTiff", "count": 1, "dtype": "float32", "crs": "EPSG:25832", "nodata": -9.0}
    values = np.add.outer(np.zeros(60), np.linspace(-1, 7, 80)).astype(np.float32)
    values[40:, :20] = -9.0
    at = from_origin(399_000.0, 5_605_000.0, 100.0, 100.0)
    with rasterio.open(folder / "deep.tif", "w", height=60, width=80, transform=at, **profile) as file:
        file.write(values, 1)
    return str(folder / "deep.tif")


@pytest.mark.parametrize("dated", [False, True])
def test_tiles_of_many_sites_have_no_seams(dated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With knots in a gap; with a date and a covariate that is not everywhere."""
    more: dict[str, Any] = {"time": "when", "covariates": [deep(tmp_path)]} if dated else {}
    survey, date = many(tmp_path, monkeypatch, **more), 20.0 if dated else None
    fitted = survey.fitted(date=date)
    assert fitted.fit.nearest is not None
    assert dated or fitted.surface.gaps.knots is not None
    found = survey.tiles(size=60.0, date=date)
    assert found.costs.tiles == 2
    if dated:
        with pytest.raises(SurveyError, match="this file is read by the same command"):
            found.write(tmp_path / "deep.tif")
    found.write(tmp_path / "map.tif", progress=False)
    require_same(tmp_path / "map.tif", survey.predict(size=60.0, date=date), tmp_path)


def test_processes_give_the_same_bits_although_one_is_killed(tiles: Tiles, tmp_path: Path) -> None:
    alone = tiles.write(tmp_path / "alone.tif", progress=False).read_bytes()
    with ThreadPoolExecutor(3) as threads:
        assert tiles.write(tmp_path / "threads.tif", threads, progress=False).read_bytes() == alone
    known = {each.name: getattr(tiles.fitted, each.name) for each in fields(tiles.fitted)}
    killed = KilledOnce(**known, killed=tmp_path / "killed")
    found = replace(tiles, fitted=killed).write(tmp_path / "pool.tif", 1, progress=False)
    assert (tmp_path / "killed").exists()
    assert found.read_bytes() == alone


def test_dask_gives_the_same_bits(tiles: Tiles, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "processes": False}
    with distributed.LocalCluster(**options) as local, distributed.Client(local) as client:
        found = tiles.write(tmp_path / "dask.tif", client.get_executor(), progress=False)
    assert found.read_bytes() == tiles.write(tmp_path / "alone.tif", progress=False).read_bytes()


def full(*given: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let this process write no file of more bytes, as on a full disk; bytecode would be cut off, and kept."""
    limits, without = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = without
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_loses_nothing(
    tiles: Tiles, counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "map.tif", tile.saved
    out.write_bytes(b"of before")
    _ = tiles.costs
    counted.clear()
    with monkeypatch.context() as patch:
        patch.setattr(tile, "saved", lambda *given: full() if given[1] == 4 else whole(*given))
        with pytest.raises(
            SurveyError, match=r"tile 4 could not be made \(No space left.*Tiles that are done are kept"
        ):
            tiles.write(out, progress=False)
    kept = len(list(folder_of(out).glob("*-*.tif")))
    assert kept >= 2
    damaged = next(folder_of(out).glob("0000*-*.tif"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with monkeypatch.context() as patch:  # GDAL writes half of it, and says nothing
        patch.setattr(mosaic, "copy", lambda source, path, **_: path.write_bytes(damaged.read_bytes()))
        with pytest.raises(SurveyError, match=r"could not be made \(what was written.*goes on from there"):
            tiles.write(out, progress=False)
    assert len(counted) == len(list(folder_of(out).glob("*-*.tif"))) + 2
    assert out.read_bytes() == b"of before"
    expected = tiles.write(tmp_path / "other.tif", progress=False).read_bytes()
    with (
        small_files(len(expected) // 2),
        pytest.raises(SurveyError, match=r"made \(GDAL says .* full\?\)"),
    ):
        tiles.write(out, progress=False)
    assert out.read_bytes() == b"of before"
    counted.clear()
    assert tiles.write(out, progress=False).read_bytes() == expected
    assert not counted


def test_too_small_a_disk_is_told_before(tiles: Tiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(SurveyError, match="are needed on the disk, and less than 1 MB are free"):
        tiles.write(tmp_path / "map.tif")
    assert not folder_of(tmp_path / "map.tif").exists()


def test_tiles_of_other_options_or_data_are_made_anew(
    path: Path, counted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, survey = tmp_path / "map.tif", Survey(path)

    def made(given: Tiles) -> int:
        _ = given.costs
        counted.clear()
        with monkeypatch.context() as patch:
            patch.setattr(mosaic, "copy", full)
            with pytest.raises(SurveyError, match="No space"):
                given.write(out, progress=False)
        return len(counted)

    tiles = survey.tiles(size=SIZE)
    every = 6  # of 9, the others have no cell within
    assert [made(tiles), made(Survey(path).tiles(size=SIZE))] == [every, 0]
    assert made(survey.tiles(size=SIZE, threshold=11.0)) == every
    write(
        tmp_path,
        "more.csv",
        survey.sites[["value"]].head(1).assign(lon=5.71, lat=50.96).rename(columns={"value": "zinc"}),
    )
    survey.update(tmp_path / "more.csv")
    assert [made(survey.tiles(size=SIZE, threshold=11.0)), made(survey.tiles(size=SIZE, threshold=11.0))] == [every, 0]


def test_what_cannot_be_made_is_refused(path: Path, tiles: Tiles, tmp_path: Path) -> None:
    survey, out = Survey(path), tmp_path / "map.tif"
    with pytest.raises(SurveyError, match=r"ends in \.tif"):
        tiles.write(tmp_path / "map.csv")
    for given in ({}, {"cells": 5, "size": 3.0}):
        with pytest.raises(SurveyError, match=r"either a number of cells \(--cells\) or their width"):
            survey.tiles(**given)
    with pytest.raises(SurveyError, match=r"at least 0.058 metres \(--size\)"):
        survey.tiles(size=0.01)
    for given in ({"cells": 0}, {"size": -1.0}):
        with pytest.raises(SurveyError, match="give a"):
            survey.tiles(**given)
    with pytest.raises(SurveyError, match="no cell of 1e\\+06 m has its centre in the area"):
        survey.tiles(size=1e6).write(out, progress=False)
    folder = folder_of(tmp_path / "other.tif")
    folder.mkdir()
    (folder / "mine.txt").touch()
    with pytest.raises(SurveyError, match="this folder is not of tiles"):
        tiles.write(tmp_path / "other.tif")
    folder_of(out).mkdir(exist_ok=True)
    with FileLock(folder_of(out) / "lock"), pytest.raises(SurveyError, match="another process makes this raster"):
        tiles.write(out)


def test_costs_are_told_before(tiles: Tiles, tmp_path: Path) -> None:
    costs = tiles.costs
    assert costs.cells == pytest.approx(survey_cells(tiles), rel=0.02)
    made = tiles.write(tmp_path / "map.tif", progress=False)
    assert costs.bytes == pytest.approx(made.stat().st_size, rel=0.5)
    assert costs.told(None).endswith("of one core.")
    assert f"in {costs.tiles} tiles" in costs.told(2)
    large = replace(costs, seconds=9e4, bytes=3e9, cells=10**9, size=2.0)
    assert "1,000,000,000 cells of 2 m" in large.told(1)
    assert "3.0 GB: about 25.0 hours by 1 process." in large.told(1)
    assert "about 75 minutes by 20 processes" in large.told(20)
    assert large.shortage(tmp_path, 0) == ""


def survey_cells(tiles: Tiles) -> int:
    return tiles.fitted.workspace.region.cells(size=tiles.grid.size).count
