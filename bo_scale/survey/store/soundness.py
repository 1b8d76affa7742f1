"""Damage that another program can do to a survey: what is wrong, in which table, and how to go on."""

import os
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS
from pyproj.exceptions import CRSError

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import KERNELS
from bo_scale.survey.mapping.scales import scale_of
from bo_scale.survey.plan.travel import Depot
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.columns import Columns

STATUSES = ("planned", "measured", "dropped")
BY_HAND = "Correct or delete them in the program that changed them, and add measurements with `bo-scale survey update`."
TYPES: dict[str, tuple[type, ...]] = {
    "columns": (dict,),
    "metric": (str,),
    "said": (list,),
    "transform": (dict,),
    "threshold": (int, float, NoneType),
    "kernel": (str,),
    "keep_outside": (bool,),
    "fit": (dict, NoneType),
    "plans": (list,),
}
"""Types of the settings that every survey has."""


def require_sound(path: str | os.PathLike[str], state: State) -> None:
    """Refuse a survey whose settings or rows cannot be those that were written.

    Args:
        path: The GeoPackage, for messages.
        state: What was read from it.

    Raises:
        SurveyError: naming the setting, or the table and its column, and how to go on.
    """
    _require_settings(path, state.settings)
    for name in ("sites", "planned", "candidates", "weights"):
        frame = getattr(state, name)
        if frame is not None:
            kinds = shapely.get_type_id(frame.geometry.to_numpy())
            bad = (kinds != shapely.GeometryType.POINT) | shapely.is_empty(frame.geometry.to_numpy())
            _refuse(path, name, bad, "have no point as their geometry")
    _require_sites(path, state)
    planned = ~state.planned.status.isin(STATUSES).to_numpy(dtype=bool)
    _refuse(path, "planned", planned, f"have a status that is none of {', '.join(STATUSES)}")
    _refuse(path, "planned", state.planned.site.duplicated().to_numpy(), "have the site of another row")
    if state.weights is not None:
        weight = state.weights.weight.to_numpy(dtype=np.float64)
        _refuse(path, "weights", ~(weight >= 0.0), "have no weight of 0 or more in the column weight")


def _require_sites(path: str | os.PathLike[str], state: State) -> None:
    """Refuse measurements that no table could have given."""
    sites, columns = state.sites, Columns(**state.settings["columns"])
    value, error, of = (sites[name].to_numpy(dtype=np.float64) for name in ("value", "error", "of"))
    _refuse(path, "sites", ~np.isfinite(value), "have no number in the column value")
    _refuse(path, "sites", sites.number.duplicated().to_numpy(), "are copies: they have the number of another row")
    if columns.of is not None:
        _refuse(path, "sites", ~(of > 0.0), "have no positive number in the column of")
        most = np.inf if columns.exposed else of
        _refuse(path, "sites", (value < 0.0) | (value > most), "have a count in the column value that cannot be")
        return
    scale = scale_of(**state.settings["transform"])
    _refuse(path, "sites", ~scale.usable(value), f"have a number in the column value that is not {scale.requirement()}")
    if columns.error is not None:
        _refuse(path, "sites", error < 0.0, "have a negative number in the column error")


def _refuse(path: str | os.PathLike[str], table: str, bad: npt.NDArray[np.bool_], what: str) -> None:
    if count := int(bad.sum()):
        first = int(np.flatnonzero(bad)[0]) + 1
        rows = f"{count} of {len(bad)} rows of the table {table!r} {what}, the first of them row {first}"
        raise SurveyError(f"{path}: {rows}. {BY_HAND}")


def _require_settings(path: str | os.PathLike[str], settings: dict[str, Any]) -> None:
    """Refuse settings that are missing, of another type, or that cannot be read."""
    for name, types in TYPES.items():
        if name not in settings:
            raise SurveyError(f"{path}: the setting {name!r} is missing in the table 'settings'; restore a copy.")
        if not isinstance(settings[name], types):
            _damaged(path, name, f"its value is a {type(settings[name]).__name__}")
    checks: dict[str, Callable[[Any], object]] = {
        "columns": _columns,
        "metric": CRS.from_user_input,
        "said": lambda value: _is("".join(value), str),
        "transform": lambda value: scale_of(**value),
        "kernel": lambda value: KERNELS.index(value),
        "fit": _fit,
        "plans": _plans,
    }
    for name, check in checks.items():
        try:
            check(settings[name])
        except (CRSError, KeyError, TypeError, ValueError) as error:
            _damaged(path, name, str(error))


def _damaged(path: str | os.PathLike[str], name: str, reason: str) -> None:
    raise SurveyError(f"{path}: the setting {name!r} in the table 'settings' is damaged ({reason}); restore a copy.")


def _is(value: Any, *types: type) -> None:
    if not isinstance(value, types):
        raise TypeError(f"{value!r} is of another type")


def _columns(value: dict[str, Any]) -> None:
    columns = Columns(**value)
    for name in (columns.x, columns.y, columns.value):
        _is(name, str)
    for optional in (columns.error, columns.of):
        _is(optional, str, NoneType)


def _fit(value: dict[str, Any] | None) -> None:
    if value is None:
        return
    fit = Fit.of(value)
    numbers = [
        *fit.box,
        fit.offset,
        fit.unit,
        fit.nugget,
        fit.count,
        *(one for each in fit.values.values() for one in each),
    ]
    if len(fit.box) != 4 or not np.isfinite(np.asarray(numbers, dtype=np.float64)).all():
        raise ValueError("some of its numbers are not finite, or missing")


def _plans(value: list[dict[str, Any]]) -> None:
    for plan in value:
        _is(plan["batch"], int)
        travel = plan.get("travel")
        for each in [] if travel is None else [*travel["depots"], *(travel["starts"] or ())]:
            Depot(**each)
