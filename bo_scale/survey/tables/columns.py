"""Columns of a table, recognised by name or given by the user."""

import difflib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from pyproj import CRS
from pyproj.exceptions import CRSError

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.records import clean_name

PREDICTED = ("predicted", "predicted_sd")
"""Columns that only tables of plans have."""
VISIT = ("day", "team", "stop")
"""Columns of planned sites that say when, by whom and in which order they are visited."""
SITE = "site"
NAME = "name"
RESERVED = (SITE, NAME, *VISIT, *PREDICTED)
"""Columns of a plan's table that are not the user's."""
LONGITUDE = frozenset({"lon", "long", "longitude", "lng", "decimallongitude"})
LATITUDE = frozenset({"lat", "latitude", "decimallatitude"})
EAST = frozenset({"x", "east", "easting", "eastings"})
NORTH = frozenset({"y", "north", "northing", "northings"})
UNITS = frozenset({"deg", "degree", "degrees", "dd", "decimal", "wgs", "m", "metre", "metres", "meters"})
LONGITUDE_ABROAD = frozenset({"länge", "laenge", "längengrad", "laengengrad", "longitud", "longitudine", "lengtegraad"})
LATITUDE_ABROAD = frozenset({"breite", "breitengrad", "latitud", "latitudine", "breedtegraad"})
"""Names in other languages, which count only where there are no English ones."""
DEGREES = LONGITUDE | LATITUDE | LONGITUDE_ABROAD | LATITUDE_ABROAD
METRES_ABROAD = (frozenset({"rechtswert", "ostwert"}), frozenset({"hochwert", "nordwert"}))


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


def find_column(header: list[str], name: str, option: str | None = None) -> str:
    """Return the name, if there is one column of that name.

    Args:
        header: Names of the columns.
        name: The name sought.
        option: Option that gives another name, if there is one.

    Raises:
        SurveyError: else; says which columns there are and which is nearest.
    """
    name = clean_name(name)
    times = header.count(name)
    if times == 1:
        return name
    if times > 1:
        raise SurveyError(f"there are {times} columns named {name}; rename all but one.")
    nearest = _nearest(header, name)
    hint = f" Did you mean {nearest}?" if nearest else ""
    if option is not None:
        other = shlex.quote(nearest) if nearest else "NAME"
        hint += f" If it is called otherwise in this table, pass {option} {other}."
    raise SurveyError(f"there is no column {name}.{hint} Columns: {_listed(header)}.")


def missing_columns(header: list[str], asked: list[tuple[str, str | None]]) -> str:
    """Return a sentence on all columns that are not there, with the nearest names; empty if all are there.

    Args:
        header: Names of the columns.
        asked: Names sought, and options that give other ones, if there are such.
    """
    sought = [(clean_name(name), option) for name, option in asked]
    lost = dict.fromkeys((name, option) for name, option in sought if name not in header)
    if not lost:
        return ""
    free = [name for name in header if name not in {name for name, _ in sought}]
    near = dict[str, str]()
    for name, _ in lost:
        if nearest := _nearest([each for each in free if each not in near.values()], name):
            near[name] = nearest
    hints = ", ".join(f"{there} for {name}" for name, there in near.items())
    options = [f"{option} {shlex.quote(near.get(name, 'NAME'))}" for name, option in lost if option is not None]
    named = [name for name, _ in lost]
    return (
        f"there {'is no column' if len(named) == 1 else 'are no columns'} {_and(named)}."
        + (f" Did you mean {hints}?" if hints else "")
        + (f" If they are called otherwise in this table, pass {' '.join(options)}." if options else "")
    )


def require_columns(header: list[str], asked: list[tuple[str, str | None]]) -> None:
    """Refuse a table in which columns are not there.

    Args:
        header: Names of the columns.
        asked: Names sought, and options that give other ones, if there are such.

    Raises:
        SurveyError: naming all of them.
    """
    lost = [(name, option) for name, option in asked if clean_name(name) not in header]
    if len(lost) > 1:
        raise SurveyError(f"{missing_columns(header, asked)} Columns: {_listed(header)}.")
    for name, option in lost:
        find_column(header, name, option)


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _nearest(header: list[str], name: str) -> str:
    """Return the nearest spelling of a name, with or without units behind it; empty if none is near."""
    lower = {column.lower(): column for column in header if column}
    if near := difflib.get_close_matches(name.lower(), lower, n=1):
        return lower[near[0]]
    first = {_words(column)[0]: column for column in header if _words(column)}
    near = difflib.get_close_matches((_words(name) or [""])[0], first, n=1, cutoff=0.7)
    return first[near[0]] if near else ""


def find_columns(
    header: list[str],
    value: str,
    x: str | None,
    y: str | None,
    crs: str | int | CRS | None,
    error: str | None,
    of: str | None,
    site: str | None = None,
    again: bool = False,
) -> tuple[Columns, CRS, list[str]]:
    """Find the columns of a table and its coordinate system; return them, and notes about both.

    Args:
        header: Names of the columns.
        value: Column of values.
        x: Column of longitudes or eastings; None if it is to be recognised by name, as is y.
        y: Column of latitudes or northings.
        crs: Coordinate system.
        error: Column of errors.
        of: Column of numbers examined or of exposures.
        site: Column of ids; None for the one called site, if there is one.
        again: Whether names are those of the survey's first table, which a later table may have changed.

    Raises:
        SurveyError: a column that is not there, coordinates that cannot be told by name, or no coordinate system.
    """
    options = ["--value", "--error", "--of"] if again else [None] * 3
    asked = zip((value, error, of), options, strict=True)
    named = [None if name is None else find_column(header, name, option) for name, option in asked]
    if (x is None) != (y is None):
        raise SurveyError("pass --x and --y together, or neither.")
    notes: list[str] = []
    if x is not None and y is not None:
        x, y = find_column(header, x, "--x" if again else None), find_column(header, y, "--y" if again else None)
    system = None if crs is None else coordinate_system(crs)
    if x is None or y is None:
        x, y = recognised(header, named, system)
        degrees = _has(x, LONGITUDE | LONGITUDE_ABROAD) if system is None else system.is_geographic
        first, second = ("longitude", "latitude") if degrees else ("easting", "northing")
        notes.append(f"The columns {x} and {y} were recognised by name as {first} and {second}.")
    if system is None:
        if not (_has(x, DEGREES) and _has(y, DEGREES)):
            raise SurveyError(
                f"missing CRS: the system of {x} and {y} is not known. Pass --crs EPSG:... (degrees: EPSG:4326)."
            )
        system = CRS.from_epsg(4326)
        notes.append("No CRS was given, so coordinates are taken as longitude and latitude on WGS 84 (EPSG:4326).")
    taken = {name for name in (*named, x, y) if name is not None}
    site = find_column(header, site) if site is not None else site_column(header, taken)
    return Columns(x, y, find_column(header, value), named[1], named[2], site), system, notes


def site_column(header: list[str], taken: set[str]) -> str | None:
    """Return the column called site, None if there is none."""
    sites = [name for name in header if name.lower() == SITE and name not in taken]
    return find_column(header, sites[0]) if sites else None


def recognised(header: list[str], taken: list[str | None], crs: CRS | None) -> tuple[str, str]:
    """Return the two columns of coordinates, recognised by name."""
    free = [name for name in header if name not in taken]
    degrees = _pair(free, LONGITUDE, LATITUDE) or _pair(free, LONGITUDE_ABROAD, LATITUDE_ABROAD, (_is,))
    metres = _pair(free, EAST, NORTH) or _pair(free, *METRES_ABROAD, (_is,))
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


def _is(name: str, words: frozenset[str]) -> bool:
    return "".join(_words(name)) in words


def _has(name: str, words: frozenset[str]) -> bool:
    return not words.isdisjoint(_words(name))


def _pair(
    header: list[str],
    first: frozenset[str],
    second: frozenset[str],
    matches: tuple[Callable[[str, frozenset[str]], bool], ...] = (_is, _has),
) -> tuple[str, str] | None:
    """Return columns named for both coordinates: by the whole name if there are such, else by a word of it."""
    for match in matches:
        xs, ys = ([name for name in header if match(name, words)] for words in (first, second))
        if len(xs) == len(ys) == 1:
            return xs[0], ys[0]
        if xs and ys:
            raise SurveyError(
                f"several columns may be the coordinates ({_listed(xs)}; {_listed(ys)}): pass --x and --y."
            )
    return None


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]+", name.lower()) if word not in UNITS]


def _listed(names: list[str]) -> str:
    return ", ".join(name or "(no name)" for name in names)
