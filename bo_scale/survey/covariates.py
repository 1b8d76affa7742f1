"""Covariates of a survey: rasters and columns of its tables, and their values at places."""

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
from pyproj import CRS
from scipy.spatial import cKDTree

from bo_scale.errors import SurveyError
from bo_scale.survey.choice.places import SAME
from bo_scale.survey.geography.sampling import bands_of, require_raster, values_at
from bo_scale.survey.mapping.temporal import time_of
from bo_scale.survey.mapping.trend import KINDS
from bo_scale.survey.tables.columns import RESERVED

Array = npt.NDArray[np.float64]
RASTERS = (".tif", ".tiff", ".vrt", ".img", ".asc")
"""Endings of files that are taken for rasters."""
BETWEEN = 0.75
"""Reach of a candidate's covariates, in distances of candidates from each other: on a grid it covers the cells."""
CLASSES = 50
"""Most classes of a covariate."""
FAR = 3.0
"""Interquartile ranges beyond the quartiles from which a value may be a code for a missing one."""
CODES = tuple(sign * float("9" * digits) for sign in (-1, 1) for digits in range(2, 7))
"""Usual codes for missing values."""
FEW_VALUES = 12
"""Whole values of a covariate up to which a note asks whether they are classes."""


@dataclass(frozen=True)
class Covariate:
    """A covariate.

    Attributes:
        name: Its name: that of the column, or of the file without its ending.
        kind: How it enters, one of `KINDS`.
        file: Absolute path of its raster; None for a column of the tables.
    """

    name: str
    kind: str = "linear"
    file: str | None = None

    @classmethod
    def parsed(cls, text: str) -> "Covariate":
        """Return the covariate that a text such as `elevation.tif`, `landuse.tif:categorical` or `depth` means.

        Raises:
            SurveyError: if there is no such raster, or the text names none.
        """
        name, mark, kind = text.rpartition(":")
        if not mark or kind not in KINDS:
            if mark and not Path(text).exists() and len(name) > 1:
                raise SurveyError(f"covariate={text!r}: {kind!r} is none of the kinds {', '.join(KINDS)}.")
            name, kind = text, "linear"
        if not name:
            raise SurveyError(f"covariate={text!r}: name a raster or a column.")
        if Path(name).suffix.lower() in RASTERS or Path(name).is_file():
            require_raster(name)
            return cls(Path(name).stem, kind, str(Path(name).resolve()))
        if name.lower() in RESERVED:
            raise SurveyError(f"covariate={text!r}: tables of plans have such a column of their own; rename yours.")
        return cls(name, kind)

    def found(self, folder: Path | None) -> str:
        """Return the path of the raster; beside the survey, if it is not where it was.

        Raises:
            SurveyError: if it is in neither place.
        """
        assert self.file is not None, "of a raster"
        beside = None if folder is None else folder / Path(self.file).name
        for path in (Path(self.file), beside):
            if path is not None and path.is_file():
                return str(path)
        raise SurveyError(
            f"{self.file}: the raster of the covariate {self.name} is gone. Put it beside the survey, or name it anew "
            "(bo-scale survey model --covariate)."
        )


def parsed_all(texts: Iterable[str | os.PathLike[str]]) -> list[Covariate]:
    """Return covariates of texts.

    Raises:
        SurveyError: if one cannot be used, or two have one name.
    """
    found = [Covariate.parsed(os.fspath(text)) for text in texts]
    names = [each.name for each in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SurveyError(f"covariate: two are called {twice[0]}; rename a file or a column.")
    return found


def changed(now: "Covariates | None", add: Iterable[str | os.PathLike[str]], drop: Iterable[str]) -> list[Covariate]:
    """Return covariates with others added, or in place of those of the same name, and some dropped.

    Raises:
        SurveyError: if one to drop is not there, or one to add cannot be used.
    """
    found = {} if now is None else {each.name: each for each in now.every}
    for name in drop:
        if name not in found:
            raise SurveyError(f"drop={name!r}: there is no such covariate ({', '.join(found) or 'there are none'}).")
        del found[name]
    return list((found | {each.name: each for each in parsed_all(add)}).values())


@dataclass(frozen=True, eq=False)
class Covariates:
    """The covariates of a survey, and where their values are known.

    Attributes:
        every: The covariates.
        metric: Coordinate system of places.
        folder: Folder of the survey; None if that is not known.
        known: Cells of columns, as JSON, at places where they are known: places, cells, and how far they reach.
        time: Column of times, which come before all covariates; None without time.
        when: The time that is predicted.
    """

    every: Sequence[Covariate]
    metric: CRS
    folder: Path | None
    known: Sequence[tuple[Array, list[str], float]]
    time: str | None = None
    when: float = np.nan

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [each.name for each in self.every]

    @property
    def kinds(self) -> list[str]:
        """Their kinds, of `KINDS`."""
        return [each.kind for each in self.every]

    def __call__(self, xy: Array) -> Array:
        """Return the covariates at places, `n × q`, behind the time that is predicted; NaN where there is none."""
        found = [] if self.time is None else [np.full(len(xy), self.when)]
        return np.stack([*found, *(self._at(each, xy) for each in self.every)], -1)

    def at_sites(self, xy: Array, cells: list[str]) -> Array:
        """Return the covariates of measurements, `n × q`, with their own cells of other columns as JSON.

        A site on a pixel without a value has that of a pixel next to it.
        """
        own = [json.loads(text) if text else {} for text in cells]
        found = [] if self.time is None else [np.array([time_of(row.get(self.time))[0] for row in own])]
        for each in self.every:
            if each.file is not None:
                found.append(values_at(each.found(self.folder), xy, self.metric, beside=True))
                continue
            column = np.array([number_of(row.get(each.name), each.kind) for row in own])
            missing = np.isnan(column)
            column[missing] = self._at(each, xy[missing])
            found.append(column)
        return np.stack(found, -1)

    def _at(self, covariate: Covariate, xy: Array) -> Array:
        if covariate.file is not None:
            return values_at(covariate.found(self.folder), xy, self.metric)
        found = np.full(len(xy), np.nan)
        for tree, columns, reach in self._columns:
            values = columns[covariate.name]
            if len(values) == 0 or len(xy) == 0:
                continue
            distance, nearest = tree.query(xy)
            near = (distance <= reach) & np.isnan(found)
            found[near] = values[nearest[near]]
        return found

    @cached_property
    def _columns(self) -> list[tuple[cKDTree, dict[str, Array], float]]:
        """Trees of places with the values of all columns."""
        mine = [each for each in self.every if each.file is None]
        found = []
        for xy, cells, reach in self.known:
            rows = [json.loads(text) if text else {} for text in cells]
            values = {one.name: np.array([number_of(row.get(one.name), one.kind) for row in rows]) for one in mine}
            if len(xy):
                found.append((cKDTree(xy), values, reach))
        return found

    @property
    def from_table(self) -> list[str]:
        """Names of those that are columns."""
        return [each.name for each in self.every if each.file is None]


def number_of(cell: str | None, kind: str) -> float:
    """Return the number of a cell; of a class that is none, a number that stands for its name; NaN for none."""
    if cell is None or cell.strip() == "":
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return float(zlib.crc32(cell.encode())) if kind == "categorical" else np.nan


def class_names(cells: Iterable[str], name: str) -> dict[float, str]:
    """Return the names of classes by the numbers that stand for them."""
    texts = {json.loads(text).get(name) for text in cells if text}
    return {number_of(text, "categorical"): text for text in texts if text is not None}


def reach_of(xy: Array) -> float:
    """Return how far the covariates of candidates reach."""
    distinct = np.unique(xy, axis=0)
    if len(distinct) < 2:
        return SAME
    return max(BETWEEN * float(np.median(cKDTree(distinct).query(distinct, 2)[0][:, 1])), SAME)


def cells_of_frame(frame: gpd.GeoDataFrame | None) -> list[str]:
    """Return the cells of other columns of a table, as JSON; empty texts in surveys from before they were kept."""
    if frame is None:
        return []
    if "other" not in frame.columns:
        return [""] * len(frame)
    return [text if isinstance(text, str) else "" for text in frame.other]


def require_usable(covariates: Covariates, values: Array) -> list[str]:
    """Refuse covariates that tell nothing; return notes about the others.

    Args:
        covariates: The covariates.
        values: Their values at the sites, `n × q`, without times.

    Raises:
        SurveyError: naming the covariate, and what to do.
    """
    notes = []
    for each, column in zip(covariates.every, values.T, strict=True):
        there = column[np.isfinite(column)]
        where = "column" if each.file is None else "raster"
        if not len(there):
            raise SurveyError(
                f"covariate {each.name}: the {where} has no {'number' if each.kind != 'categorical' else 'class'} at "
                f"any measurement. Check {'its name' if each.file is None else 'its coordinates'}."
            )
        distinct = np.unique(there)
        if len(distinct) == 1:
            raise SurveyError(f"covariate {each.name}: it is {distinct[0]:g} at all measurements; leave it out.")
        notes += _codes(each, there)
        if each.kind == "categorical" and len(distinct) > CLASSES:
            raise SurveyError(
                f"covariate {each.name}: there are {len(distinct):,} classes, more than {CLASSES}. If it is a number, "
                "leave out :categorical."
            )
        if each.kind != "categorical" and len(distinct) <= FEW_VALUES < len(there) and (distinct % 1 == 0).all():
            notes.append(
                f"{each.name} has {len(distinct)} whole values. If they are classes, write {each.name}:categorical."
                if each.file is None
                else f"{each.name} has {len(distinct)} whole values. If they are classes, write "
                f"{Path(each.file).name}:categorical."
            )
        if each.file is not None and (bands := bands_of(each.found(covariates.folder))) > 1:
            notes.append(f"{each.name}: the raster has {bands} bands, of which the first is used.")
    return notes


def _codes(covariate: Covariate, values: Array) -> list[str]:
    """Return a note on values that look like codes for missing ones."""
    low, high = np.quantile(values, [0.25, 0.75])
    far = (values < low - FAR * (high - low)) | (values > high + FAR * (high - low))
    codes = np.unique(values[far & np.isin(values, CODES)])
    if covariate.kind == "categorical" or not len(codes):
        return []
    found = ", ".join(f"{code:g}" for code in codes)
    return [
        f"{covariate.name}: {found} looks like a code for a missing value, but it counts. Clear these cells if it is."
    ]


def saved(covariates: Iterable[Covariate]) -> list[dict[str, Any]]:
    """Return covariates as JSON can hold them."""
    return [asdict(each) for each in covariates]
