"""Columns of a table, recognised by name or given by the user."""

import difflib
import re
from dataclasses import dataclass

from pyproj import CRS
from pyproj.exceptions import CRSError

from bo_scale.errors import SurveyError

LONGITUDE = frozenset({"lon", "long", "longitude", "lng", "decimallongitude"})
LATITUDE = frozenset({"lat", "latitude", "decimallatitude"})
EAST = frozenset({"x", "east", "easting", "eastings"})
NORTH = frozenset({"y", "north", "northing", "northings"})
UNITS = frozenset({"deg", "degree", "degrees", "dd", "decimal", "wgs", "m", "metre", "metres", "meters"})
SITE = "site"


@dataclass(frozen=True)
class Columns:
    """Names of columns, all of which are there.

    Attributes:
        x: Longitude or easting.
        y: Latitude or northing.
        value: Measured values; of counts, numbers of positives.
        error: Standard deviation of the measurement.
        of: Numbers examined; of cases, exposures.
        site: Id of a planned site.
        exposed: Whether values are cases, and `of` their exposures.
    """

    x: str
    y: str
    value: str
    error: str | None = None
    of: str | None = None
    site: str | None = None
    exposed: bool = False

    @property
    def used(self) -> list[str]:
        """All that have a name."""
        named = (self.x, self.y, self.value, self.error, self.of, self.site)
        return [name for name in named if name is not None]


def coordinate_system(given: str | int | CRS) -> CRS:
    """Return a coordinate system from what the user wrote, such as EPSG:25832.

    Raises:
        SurveyError: if it is none.
    """
    try:
        return CRS.from_user_input(given)
    except CRSError as error:
        raise SurveyError(
            f"{given}: there is no coordinate system of that name; pass one such as EPSG:25832."
        ) from error


def find_column(header: list[str], name: str) -> str:
    """Return the name, if there is one column of that name.

    Raises:
        SurveyError: else; says which columns there are and which is nearest.
    """
    times = header.count(name.strip())
    if times == 1:
        return name.strip()
    if times > 1:
        raise SurveyError(f"there are {times} columns named {name}; rename all but one.")
    lower = {column.lower(): column for column in header}
    near = difflib.get_close_matches(name.strip().lower(), lower, n=1)
    hint = f" Did you mean {lower[near[0]]}?" if near else ""
    raise SurveyError(f"there is no column {name}.{hint} Columns: {_listed(header)}.")


def find_columns(
    header: list[str],
    value: str,
    x: str | None,
    y: str | None,
    crs: str | int | CRS | None,
    error: str | None,
    of: str | None,
) -> tuple[Columns, CRS, list[str]]:
    """Find the columns of a table and its coordinate system; return them, and notes about both.

    Raises:
        SurveyError: a column that is not there, coordinates that cannot be told by name, or no coordinate system.
    """
    named = [None if name is None else find_column(header, name) for name in (value, error, of)]
    if (x is None) != (y is None):
        raise SurveyError("pass --x and --y together, or neither.")
    notes: list[str] = []
    if x is not None and y is not None:
        x, y = find_column(header, x), find_column(header, y)
    system = None if crs is None else coordinate_system(crs)
    if x is None or y is None:
        x, y = _recognised(header, named, system)
        degrees = _has(x, LONGITUDE) if system is None else system.is_geographic
        first, second = ("longitude", "latitude") if degrees else ("easting", "northing")
        notes.append(f"The columns {x} and {y} were recognised by name as {first} and {second}.")
    if system is None:
        if not (_has(x, LONGITUDE | LATITUDE) and _has(y, LONGITUDE | LATITUDE)):
            raise SurveyError(
                f"missing CRS: the system of {x} and {y} is not known. Pass --crs EPSG:... (degrees: EPSG:4326)."
            )
        system = CRS.from_epsg(4326)
        notes.append("No CRS was given, so coordinates are taken as longitude and latitude on WGS 84 (EPSG:4326).")
    sites = [name for name in header if name.lower() == SITE and name not in (*named, x, y)]
    site = find_column(header, sites[0]) if sites else None
    return Columns(x, y, find_column(header, value), named[1], named[2], site), system, notes


def _recognised(header: list[str], taken: list[str | None], crs: CRS | None) -> tuple[str, str]:
    """Return the two columns of coordinates, recognised by name."""
    free = [name for name in header if name not in taken]
    degrees = _pair(free, LONGITUDE, LATITUDE)
    metres = _pair(free, EAST, NORTH)
    if crs is not None and not crs.is_geographic:
        if metres is None and degrees is not None:
            raise SurveyError(
                f"{degrees[0]} and {degrees[1]} look like degrees, but {crs.name} is not in degrees: leave out --crs, "
                "or name the columns with --x and --y."
            )
        found = metres
    else:
        found = degrees or metres
    if found is None:
        raise SurveyError(f"which columns are the coordinates? Pass --x and --y. Columns: {_listed(header)}.")
    return found


def _pair(header: list[str], first: frozenset[str], second: frozenset[str]) -> tuple[str, str] | None:
    """Return columns named for both coordinates: by the whole name if there are such, else by a word of it."""
    for match in (_is, _has):
        xs, ys = ([name for name in header if match(name, words)] for words in (first, second))
        if len(xs) == len(ys) == 1:
            return xs[0], ys[0]
        if xs and ys:
            raise SurveyError(
                f"several columns may be the coordinates ({_listed(xs)}; {_listed(ys)}): pass --x and --y."
            )
    return None


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z]+", name.lower()) if word not in UNITS]


def _is(name: str, words: frozenset[str]) -> bool:
    return "".join(_words(name)) in words


def _has(name: str, words: frozenset[str]) -> bool:
    return not words.isdisjoint(_words(name))


def _listed(names: list[str]) -> str:
    return ", ".join(name or "(no name)" for name in names)
