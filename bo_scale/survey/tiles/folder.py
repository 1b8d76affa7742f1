"""The folder of tiles beside a raster: another call goes on from there if it asks for the same."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from bo_scale.errors import SurveyError
from bo_scale.files import replacing
from bo_scale.models.shell.digest import digest_of
from bo_scale.survey.covariates import Covariates
from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.geography.grid import Grid
from bo_scale.survey.mapping.surface import Surface
from bo_scale.survey.tiles.tile import SIDE, SQUARE

ABOUT = "about.json"
"""File with the digest of what is predicted."""
LOCK = "lock"
FORMAT = 1
"""Number of the way in which tiles are predicted."""


def folder_of(path: Path) -> Path:
    """Return the folder of the tiles of a raster."""
    return path.with_name(f"{path.name}.tiles")


@contextmanager
def held(path: Path, digest: str) -> Iterator[Path]:
    """Yield the folder of a raster's tiles, which nobody else uses meanwhile; tiles of another digest go first.

    Raises:
        SurveyError: if another process makes the same raster, the folder is of something else, or cannot be made.
    """
    folder = folder_of(path)
    if _others(folder) and not (folder / ABOUT).is_file():
        raise SurveyError(f"{folder}: this folder is not of tiles; move it, or give the raster another name.")
    try:
        folder.mkdir(exist_ok=True)
        with FileLock(folder / LOCK, timeout=0):
            if _digest(folder) != digest:
                clear(folder)
            with replacing(folder / ABOUT) as partial:
                partial.write_text(json.dumps({"digest": digest}), encoding="utf-8")
            try:
                yield folder
            finally:
                if not kept(folder):
                    clear(folder)
    except Timeout as error:
        raise SurveyError(f"{path}: another process makes this raster; wait for it, or give another name.") from error
    except OSError as error:
        raise SurveyError(
            f"{path}: the raster could not be made ({error.strerror or error}). Tiles that are done are kept in "
            f"{folder}: repeat the call when this is mended, and it goes on from there."
        ) from error
    finally:
        if folder.is_dir() and not _others(folder):
            with suppress(OSError):  # another call has begun
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def kept(folder: Path) -> list[Path]:
    """Return the files of tiles."""
    return list(folder.glob("*-*.tif"))


def clear(folder: Path) -> None:
    """Remove all that is in the folder but its lock."""
    for each in _others(folder):
        each.unlink()


def _others(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.name != LOCK] if folder.is_dir() else []


def _digest(folder: Path) -> str:
    try:
        return str(json.loads((folder / ABOUT).read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError):
        return ""


def digest_of_predictions(fitted: FittedSurvey, grid: Grid, threshold: float | None, intervals: bool) -> str:
    """Return a digest of all that predictions come from: measurements, model, region, covariates and options."""
    space = fitted.workspace
    about: list[Any] = [FORMAT, SIDE, SQUARE, threshold, intervals, space.scale, space.typical_of, space.when]
    about += [grid.left, grid.top, grid.size, grid.rows, grid.columns, grid.crs.to_wkt(), space.region.shape.wkb]
    about += [_of_surface(surface) for surface in (fitted.surface, fitted.presence) if surface is not None]
    about += [] if space.covariates is None else _of_covariates(space.covariates)
    return digest_of(about)


def _of_surface(surface: Surface) -> list[Any]:
    sites = surface.sites
    arrays = (sites.xy, sites.z, sites.variance, sites.covariates)
    return [surface.fit.saved, [None if each is None else torch.from_numpy(np.array(each)) for each in arrays]]


def _of_covariates(covariates: Covariates) -> list[Any]:
    found: list[Any] = [covariates.time, covariates.when]
    for each in covariates.every:
        if each.file is None:
            known = [(torch.from_numpy(np.array(xy)), cells, reach) for xy, cells, reach in covariates.known]
            found.append((each, known))
            continue
        path = Path(each.found(covariates.folder))
        found.append((each.name, each.kind, path.name, path.stat().st_size, path.stat().st_mtime_ns))
    return found
