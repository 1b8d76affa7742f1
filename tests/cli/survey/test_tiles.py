"""`predict --workers` and `--dask`: what they say, and what they refuse."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rasterio
from commands import refused, run

from bo_scale.cli import executors
from bo_scale.distributed.scheduling import finished

NONE = "bo_scale.survey.tiles.tiles.finished"


def here(task: Any, items: Any, executor: Any, progress: Any, called: str) -> Any:
    """Tasks in this process, whoever was asked for."""
    return finished(task, items, None, progress, called)


def test_costs_are_told_before_the_file_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NONE, here)
    told = run(capsys, "predict s.gpkg --size 100 --workers 2 --prediction --out m.tif")
    first, second, third = told.splitlines()
    assert re.fullmatch(r"About [\d,]+ cells of 100 m in 1 tiles?, less than 1 MB: about \d+ s by 2 processes\.", first)
    assert re.fullmatch(r"Written: m\.tif, 100 m a cell, [\d.]+ MB", second)
    assert third.startswith("Above 22, with 90 % intervals: ")
    with rasterio.open("m.tif") as file:
        assert file.descriptions == ("mean", "sd", "exceedance", "lower", "upper", "new_lower", "new_upper")
    assert not Path("m.tif.tiles").exists()


def test_what_does_not_fit_together_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell = partial(refused, capsys)
    assert "by processes of this machine or by Dask" in tell(
        "predict s.gpkg --workers 2 --dask a:1 --size 9 --out m.tif"
    )
    assert "give 1 or more processes" in tell("predict s.gpkg --workers 0 --size 9 --out m.tif")
    assert "give one file" in tell("predict s.gpkg --workers 1 --size 9 --out m.tif n.tif")
    assert "ends in .tif" in tell("predict s.gpkg --workers 1 --size 9 --out m.csv")
    assert "give either a number of cells (--cells)" in tell("predict s.gpkg --workers 1 --out m.tif")
    assert "with --at leave them out" in tell("predict s.gpkg --workers 1 --at sites.csv --out m.csv")
    assert "make them by tiles in a GeoTIFF (predict --workers 2)" in tell("predict s.gpkg --size 0.1 --out m.tif")
    assert not list(folder.glob("m.*"))


def test_dask_is_asked_for_its_executor(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def __init__(self, address: str, timeout: float) -> None:
            if address != "tcp://there:1":
                raise OSError("timed out")

        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None: ...

        def get_executor(self) -> Any:
            return None

        def nthreads(self) -> dict[str, int]:
            return {"a": 2, "b": 1}

    monkeypatch.setattr(executors, "import_module", lambda name: type("distributed", (), {"Client": Client}))
    assert "by 3 processes." in run(capsys, "predict s.gpkg --size 300 --dask tcp://there:1 --out m.tif")
    assert "--dask away: no scheduler answers (timed out)" in refused(
        capsys, "predict s.gpkg --size 300 --dask away --out n.tif"
    )

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(executors, "import_module", missing)
    assert "pip install 'bo_scale[dask]'" in refused(capsys, "predict s.gpkg --size 300 --dask a --out n.tif")
