"""The best rows of Parquet files to observe next: candidates that are never in memory together."""

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.optimize import optimize_acqf_discrete
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.decisions.thompson import draw_functions
from bo_scale.distributed.scheduling import Submits, finished
from bo_scale.distributed.shards import listed
from bo_scale.distributed.tables import Columns, TableFile
from bo_scale.errors import BoScaleError, InvalidArgumentError, InvalidDataError, WrongTypeError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.random import seeded
from bo_scale.threads import one_thread

ROWS = 1 << 14
"""Rows of a file that are evaluated at once."""
SHORTLIST = 1024
"""Rows from which a batch is chosen, unless each point of it is the best of a function of its own."""
_drawing = threading.Lock()  # threads share torch's global generator
Values = Callable[[Tensor], Tensor]
"""Function from rows `n × d` to values `k × n`."""


@dataclass(frozen=True)
class Candidate:
    """A row of a file.

    Attributes:
        path: The file.
        row: Number of the row in it, from 0.
        x: Its inputs, in the order of the columns.
        value: Value of the posterior function whose best it is, or of the acquisition function for it alone.
    """

    path: str
    row: int
    x: Float[Tensor, " d"]
    value: float


@dataclass(frozen=True)
class _Found:
    """The best rows of a file for each function, the best first.

    Attributes:
        values: Their values, −inf where there are no more rows.
        rows: Their numbers.
        X: Their inputs.
    """

    values: Float[Tensor, "k t"]
    rows: Int[Tensor, "k t"]
    X: Float[Tensor, "k t d"]

    def with_more(self, other: "_Found", count: int) -> "_Found":
        """Return the best rows of both, of equal ones the first; neither has equal ones."""
        values = torch.cat([self.values, other.values], -1)
        both = self.beside(other).at(values.topk(min(2 * count, values.shape[-1]), -1).indices)
        equal = (both.X.unsqueeze(-2) == both.X.unsqueeze(-3)).all(-1).tril(-1).any(-1)
        unlike = replace(both, values=both.values.masked_fill(equal, -torch.inf))
        return unlike.at(unlike.values.topk(min(count, both.values.shape[-1]), -1).indices)

    def beside(self, other: "_Found") -> "_Found":
        """Return the rows of both."""
        values, rows = (torch.cat(pair, -1) for pair in ((self.values, other.values), (self.rows, other.rows)))
        return _Found(values, rows, torch.cat([self.X, other.X], -2))

    def at(self, places: Int[Tensor, "k t"]) -> "_Found":
        """Return the rows at some places for each function."""
        X = self.X.gather(-2, places.unsqueeze(-1).expand(*places.shape, self.X.shape[-1]))
        return _Found(self.values.gather(-1, places), self.rows.gather(-1, places), X)


@dataclass(frozen=True)
class _Task:
    """The search of a file, as it is sent to a worker.

    Attributes:
        model: The model; None with an acquisition function, which has it.
        acquisition: The acquisition function; None for draws of the posterior.
        functions: Number of draws.
        seed: Seed of the draws, which are the same in every worker.
        count: Number of rows that are kept for each function.
    """

    model: ScalableModel | None
    acquisition: AcquisitionFunction | None
    functions: int
    seed: int
    count: int

    def __call__(self, number: int, source: TableFile) -> _Found:
        """Return the best rows of a file."""
        try:
            with one_thread(), torch.no_grad():
                return self._search(source)
        except (BoScaleError, OSError) as error:
            raise InvalidDataError(f"sources: {source.path}: {error}") from error

    def _search(self, source: TableFile) -> _Found:
        values, start = self._values(), 0
        found: _Found | None = None
        for _, X in source.inputs(ROWS):
            first = _first_of_equal(X)
            here = values(X[first])
            rows = (start + first).expand(len(here), -1)
            part = _Found(here, rows, X[first].expand(len(here), len(first), -1))
            empty = _Found(here[:, :0], rows[:, :0], X[:0].expand(len(here), 0, X.shape[-1]))
            found = (found or empty).with_more(part, self.count)
            start += len(X)
        if found is None:
            raise InvalidDataError("it has no rows.")
        return found

    def _values(self) -> Values:
        acquisition, model = self.acquisition, self.model
        if acquisition is not None:
            return lambda X: acquisition(X.unsqueeze(-2)).reshape(1, -1)
        assert model is not None, "there is a model"
        with _drawing, seeded(self.seed, torch.device("cpu")):
            paths = draw_functions(model.eval(), self.functions)
        return lambda X: paths(X.unsqueeze(0)).reshape(self.functions, len(X))


def propose_rows(
    model: ScalableModel,
    sources: "Iterable[Any] | str | os.PathLike[str]",
    q: int = 1,
    *,
    columns: Columns,
    acquisition: AcquisitionFunction | None = None,
    avoid: Float[Tensor, "n d"] | None = None,
    seed: int = 0,
    executor: "Submits | int | None" = None,
    progress: bool | None = None,
) -> list[Candidate]:
    """Return the q best rows of Parquet files to observe next. Memory is free of the number of rows.

    By default each is the maximiser of one function drawn from the posterior (Thompson sampling), exactly: every
    function is evaluated at every row. With an acquisition function its best 1,024 rows are found for a point alone,
    and a batch is chosen among these, one point after the other, which may miss good ones if q is above 1. The result
    is the same for any executor. For products of lists and for mixtures, of which no file is needed, use an `Optimizer`
    with a space.

    Args:
        model: A model of one output, on the CPU, of which larger values are better.
        sources: Paths of Parquet or Arrow files, patterns of these, or a folder.
        q: Number of rows. All differ in their inputs.
        columns: Names of the inputs; targets are not read.
        acquisition: An acquisition function of BoTorch over the model, instead of Thompson sampling.
        avoid: Inputs that are not proposed, such as those under way.
        seed: Seed of the draws.
        executor: Where files are searched; as for `accumulate`.
        progress: Whether to show a bar; None for only on a terminal.

    Returns:
        The rows, in the order of the draws, or in which they were chosen.

    Raises:
        InvalidArgumentError: for no sources, q below 1, or another number of inputs than the model's.
        InvalidDataError: for a file that cannot be read, with its name; NaN, with numbers; fewer different rows than q.
        WrongTypeError: for a model with several outputs.
    """
    if q < 1:
        raise InvalidArgumentError(f"q={q}: must be at least 1.")
    if model.num_outputs != 1:
        raise WrongTypeError(f"model: {model.num_outputs} outputs. Rows are proposed by a model of one.")
    if len(columns.groups[0]) != model.num_inputs:
        raise InvalidArgumentError(f"columns: {len(columns.groups[0])} inputs for a model of {model.num_inputs}.")
    files = [each for each in listed(sources, columns) if isinstance(each, TableFile)]
    avoid = torch.empty(0, model.num_inputs, dtype=torch.float64) if avoid is None else avoid.double()
    spare = q + len(avoid)
    if acquisition is None:
        task = _Task(model, None, q, seed, spare)
    else:
        task = _Task(None, acquisition, 1, seed, SHORTLIST + spare)
    found = dict(finished(task, files, executor, progress, "files"))
    ranked = [list(_ranked(files, found, k)) for k in range(task.functions)]
    if acquisition is None:
        return _different(ranked, avoid, q)
    return _greedy(acquisition, _different([[each] for each in ranked[0]], avoid, q), q)


def _first_of_equal(X: Float[Tensor, "n d"]) -> Int[Tensor, " u"]:
    """Return the numbers of the rows that no row before them equals."""
    unlike, group = X.unique(dim=0, return_inverse=True)
    first = torch.full((len(unlike),), len(X)).scatter_reduce(0, group, torch.arange(len(X)), "amin")
    return first.sort().values


def _ranked(files: list[TableFile], found: dict[int, _Found], function: int) -> Iterator[Candidate]:
    """Yield the rows of all files by their values of a function, the best first; of equals, the first in the files."""
    every = [
        (-value, number, row, found[number].X[function, place])
        for number in sorted(found)
        for place, (value, row) in enumerate(
            zip(found[number].values[function].tolist(), found[number].rows[function].tolist(), strict=True)
        )
        if value > -math.inf
    ]
    for value, number, row, x in sorted(every, key=lambda each: each[:3]):
        yield Candidate(files[number].path, row, x, -value)


def _different(ranked: list[list[Candidate]], avoid: Float[Tensor, "n d"], least: int) -> list[Candidate]:
    """Return the best row of each ranking whose inputs nobody has yet; of equal ones, one; at least so many."""
    taken, chosen = {tuple(row) for row in avoid.tolist()}, list[Candidate]()
    for each in ranked:
        best = next((row for row in each if tuple(row.x.tolist()) not in taken), None)
        if best is not None:
            chosen.append(best)
            taken.add(tuple(best.x.tolist()))
    if len(chosen) < least:
        raise InvalidDataError(f"sources: {len(chosen)} different rows that are not in avoid, for q={least}. Lower q.")
    return chosen


def _greedy(acquisition: AcquisitionFunction, rows: list[Candidate], q: int) -> list[Candidate]:
    """Return a batch of the rows, one after the other, each with those before it pending."""
    if q == 1:
        return rows[:1]
    X = torch.stack([row.x for row in rows])
    batch, _ = optimize_acqf_discrete(acquisition, q, X, unique=True)
    return [rows[int((X - x).abs().amax(-1).argmin())] for x in batch.reshape(q, -1)]
