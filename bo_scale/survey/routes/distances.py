"""Ways between places: straight, around barriers, or as long as somebody says."""

from abc import ABC, abstractmethod
from os import PathLike

import numpy as np
from jaxtyping import Float
from shapely.geometry.base import BaseGeometry
from typing_extensions import override

from bo_scale.errors import SurveyError
from bo_scale.survey.routes.barriers import Barriers
from bo_scale.survey.tables.numbers import MISSING
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.records import Records

Lengths = Float[np.ndarray, " n"]


class Ways(ABC):
    """Ways between a fixed set of places.

    Attributes:
        points: The places, metres.
    """

    points: Float[np.ndarray, "n 2"]

    @abstractmethod
    def starting(self, i: int) -> Lengths:
        """Lengths of the ways from a place to every place, metres; infinite where there is none, 0 to itself."""

    @abstractmethod
    def ending(self, i: int) -> Lengths:
        """Lengths of the ways from every place to a place, metres; infinite where there is none, 0 from itself."""

    @abstractmethod
    def path(self, i: int, j: int) -> Float[np.ndarray, "k 2"]:
        """The way from place i to place j, both of them, and its corners between them.

        Raises:
            SurveyError: if there is none.
        """


class Straight(Ways):
    """Straight lines.

    Args:
        points: The places, metres.
    """

    def __init__(self, points: Float[np.ndarray, "n 2"]) -> None:
        self.points = points

    @override
    def starting(self, i: int) -> Lengths:
        return np.linalg.norm(self.points - self.points[i], axis=-1)

    @override
    def ending(self, i: int) -> Lengths:
        return self.starting(i)

    @override
    def path(self, i: int, j: int) -> Float[np.ndarray, "k 2"]:
        return self.points[[i, j]]


class Around(Ways):
    """Shortest ways around barriers: straight lines that bend at their corners.

    Ways may run along a barrier and not through it; places inside one are not reached. What is seen from where is found
    once, O(n c + c²) for n places and c corners; the lengths from one place take O(n c), and are kept. Visibility graph
    of Lozano-Pérez and Wesley (1979), without the lines that no shortest way has.

    Where the outlines are simplified (`deviation`), a way may cut off as much of a barrier; a place between the true
    outline and the simplified one has a straight way to the latter.

    Args:
        points: The places, metres.
        barriers: Polygons, metres; their holes are no barrier.

    Raises:
        SurveyError: if the barriers have too many corners.

    Attributes:
        deviation: Metres that the outlines taken may lie from the true ones; 0 where these are taken.
        inside: Places in a barrier, to which no way leads.
    """

    def __init__(self, points: Float[np.ndarray, "n 2"], barriers: BaseGeometry) -> None:
        self.points = points
        self._barriers = Barriers(barriers)
        self.deviation = self._barriers.deviation
        self.inside = self._barriers.inside(points)
        self._exits = self._barriers.outside(points)
        self._stubs: Lengths = np.linalg.norm(self._exits - points, axis=-1)
        self._sights = np.full((len(points), len(self._barriers.corners)), np.inf)
        self._sights[~self.inside] = self._barriers.sights(self._exits[~self.inside])
        self._found: dict[int, Lengths] = {}

    @override
    def starting(self, i: int) -> Lengths:
        if i not in self._found:
            lengths = np.minimum(self._direct(i), self._bent(i)) + self._stubs + self._stubs[i]
            lengths[self.inside | self.inside[i]] = np.inf
            lengths[i] = 0.0
            lengths.setflags(write=False)
            self._found[i] = lengths
        return self._found[i]

    @override
    def ending(self, i: int) -> Lengths:
        return self.starting(i)

    @override
    def path(self, i: int, j: int) -> Float[np.ndarray, "k 2"]:
        if not np.isfinite(self.starting(i)[j]):
            raise SurveyError(f"there is no route around the barriers from place {i} to place {j}; leave one out.")
        if i == j:
            return self.points[[i, j]]
        start, end = ([self.points[k]] if self._stubs[k] else [] for k in (i, j))
        return np.stack([*start, self._exits[i], *self._bends(i, j), self._exits[j], *end])

    def _direct(self, i: int) -> Lengths:
        lengths = np.linalg.norm(self._exits - self._exits[i], axis=-1)
        lengths[self._barriers.blocked(np.broadcast_to(self._exits[i], self._exits.shape), self._exits)] = np.inf
        return lengths

    def _bent(self, i: int) -> Lengths:
        """Return the ways by at least one corner."""
        seen = np.isfinite(self._sights[i])
        if not seen.any():
            return np.full(len(self.points), np.inf)
        corners = (self._sights[i, seen, None] + self._barriers.between[seen]).min(0)
        return (self._sights + corners).min(1)

    def _bends(self, i: int, j: int) -> Float[np.ndarray, "k 2"]:
        start, end = self._exits[i], self._exits[j]
        if not self._barriers.blocked(start[None], end[None])[0]:
            return np.zeros((0, 2))
        lengths = self._sights[i][:, None] + self._barriers.between + self._sights[j]
        first, last = np.unravel_index(int(lengths.argmin()), lengths.shape)
        corners = [int(last)]
        while corners[-1] != first:
            corners.append(int(self._barriers.before[first, corners[-1]]))
        return self._barriers.corners[corners[::-1]]


class Given(Ways):
    """Ways of given lengths, which are drawn straight.

    Args:
        points: The places, metres.
        lengths: Ways from each place (row) to each place (column), metres; NaN where there is no way. There and back
            may differ.

    Raises:
        SurveyError: if there is not one row and one column for each place, or a length is negative.
    """

    def __init__(self, points: Float[np.ndarray, "n 2"], lengths: Float[np.ndarray, "a b"]) -> None:
        count = len(points)
        if lengths.shape != (count, count):
            raise SurveyError(
                f"lengths: {count} places need a {count} × {count} matrix, but its shape is {lengths.shape}."
            )
        if bool((lengths < 0.0).any()):
            raise SurveyError("lengths: some are negative; give NaN where there is no route.")
        self.points = points
        self._lengths = np.where(np.isnan(lengths), np.inf, lengths)
        np.fill_diagonal(self._lengths, 0.0)
        self._lengths.setflags(write=False)

    @override
    def starting(self, i: int) -> Lengths:
        return self._lengths[i]

    @override
    def ending(self, i: int) -> Lengths:
        return self._lengths[:, i]

    @override
    def path(self, i: int, j: int) -> Float[np.ndarray, "k 2"]:
        if not np.isfinite(self._lengths[i, j]):
            raise SurveyError(f"there is no route from place {i} to place {j} in the matrix; leave one out.")
        return self.points[[i, j]]


def given_ways(path: str | PathLike[str]) -> tuple[list[str], Float[np.ndarray, "n n"]]:
    """A matrix from a file of delimited text: names in its first row and first column, how far or long in between.

    Rows are from, columns are to. Rows may come in another order than columns.

    Args:
        path: The file.

    Returns:
        The names as the columns have them, and the numbers in the file's own units; NaN where a field is blank.

    Raises:
        SurveyError: no such file, or it is not square, or names are missing, double or not the same in rows and
            columns, or something is negative or no number; says where, and what to do.
    """
    records = read_records(path)
    if records.refused:
        first = records.refused[0]
        raise SurveyError(
            f"{path}, row {first.row}: {first.reason}; each row needs a name, then a number or a blank for each column."
        )
    columns, rows = records.header[1:], [cells[0] for cells in records.cells]
    _check_names(path, columns, [f"column {k}" for k in range(2, len(columns) + 2)])
    _check_names(path, rows, [f"row {row}" for row in records.rows])
    for name, row in zip(rows, records.rows):
        if name not in columns:
            raise SurveyError(f"{path}, row {row}: there is no column {name}; rows and columns need the same names.")
    if absent := [name for name in columns if name not in rows]:
        raise SurveyError(f"{path}: there is no row {', '.join(absent[:10])}; rows and columns need the same names.")
    found = np.full((len(rows), len(columns)), np.nan)
    for k, name in enumerate(rows):
        found[columns.index(name)] = _numbers(path, records, k)
    return columns, found


def _check_names(path: str | PathLike[str], names: list[str], places: list[str]) -> None:
    for k, name in enumerate(names):
        if not name:
            raise SurveyError(
                f"{path}, {places[k]}: the name is missing; write the name of the place in the first field."
            )
        if name in names[:k]:
            other = places[names.index(name)]
            raise SurveyError(f"{path}, {places[k]}: {name} is also in {other}; list each place once.")


def _numbers(path: str | PathLike[str], records: Records, k: int) -> Float[np.ndarray, " n"]:
    """Return the numbers of a row; blanks are NaN. Commas may be decimal if they do not separate."""
    found = np.full(len(records.header) - 1, np.nan)
    for column, cell in enumerate(records.cells[k][1:]):
        if cell.lower() in MISSING:
            continue
        where = f"{path}, row {records.rows[k]}, column {column + 2} ({records.header[column + 1]})"
        try:
            number = float(cell if records.separator == "," else cell.replace(",", "."))
        except ValueError:
            raise SurveyError(
                f"{where}: {cell} is not a number; leave the field blank where there is no route."
            ) from None
        if not 0.0 <= number < np.inf:
            raise SurveyError(
                f"{where}: {cell} is not a distance or a time; leave the field blank where there is no route."
            )
        found[column] = number
    return found
