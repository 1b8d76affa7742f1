"""Proposals where integers, choices and constraints allow no others: compared with looking at every point."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.models import SingleTaskGP
from gpytorch.likelihoods import GaussianLikelihood
from loops import CHEAP, cheap, events, single_task
from torch import Tensor

from bo_scale import WISKI
from bo_scale.decisions.by_name import ACQUISITIONS, acquisition_kind
from bo_scale.decisions.candidates import Admissible, Lattice, already
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.errors import InvalidDataError, JournalError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real, Space


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


OPTIONS = {**CHEAP["acquisition_options"], "max_steps": 15, "mc_points": 32, "num_fantasies": 2}
SERVED = [name for name, kind in ACQUISITIONS.items() if kind.serves(1, 0, discrete=True)]
EACH = pytest.mark.parametrize("name", SERVED)
GRID = Space.of({"n": Integer(0, 11), "kind": Choice(("a", "b", "c"))})
LARGE = Space.of({"n": Integer(0, 199), "kind": Choice((False, True)), "x": (0.0, 1.0)})
THIN = Space.of({"n": Integer(0, 9), "x": (0.0, 1.0)}, ["n + 9 * x <= 9"])


def value(unit: Tensor) -> Tensor:
    """Smooth, with a top within the cube."""
    centers = torch.linspace(0.35, 0.75, unit.shape[-1]).to(unit)
    return torch.cos(3 * (unit - centers)).sum(-1, keepdim=True)


def setting(space: Space, q: int = 1, pending: Tensor | None = None, n: int = 16, **options: Any) -> Setting:
    """A model of a smooth function at admissible points."""
    assert space.admissible is not None
    X = space.admissible.sample(n, seed=1)
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.01
    model = WISKI if space.dimension <= 3 else SingleTaskGP
    options = {**OPTIONS, **options}
    made = model(X, value(X), likelihood=likelihood, **({"grid_size": 10} if model is WISKI else {})).eval()
    return Setting(made, X, pending, q, 7, options, space.admissible)


@EACH
@pytest.mark.parametrize("space", [GRID, LARGE, THIN], ids=["grid", "large", "constrained"])
def test_every_acquisition_proposes_distinct_admissible_points(space: Space, name: str) -> None:
    s = setting(space, q=2, pending=space.admissible.sample(2, 5))
    torch.manual_seed(0)
    X = propose(acquisition_kind(name).make, s)
    assert X.shape == (2, space.dimension)
    torch.testing.assert_close(space.admissible.snap(X), X)
    assert space.admissible.feasible(X).all()
    assert len(X.unique(dim=0)) == 2
    assert not already(X, s.pending).any()


@pytest.mark.parametrize("name", ["qUCB", "qLogEI", "qNIPV"])
def test_the_best_of_few_points_is_found(name: str) -> None:
    s = setting(GRID)
    acquisition = acquisition_kind(name).make
    values = acquisition(s)(s.admissible.points.unsqueeze(-2))
    assert torch.equal(propose(acquisition, s), s.admissible.points[values.argmax()].unsqueeze(0))


@pytest.mark.parametrize("name", ["qUCB", "qLogEI", "qNIPV"])
@pytest.mark.parametrize("space", [LARGE, THIN], ids=["large", "constrained"])
def test_of_many_points_none_of_a_fine_mesh_is_better(space: Space, name: str) -> None:
    s = setting(space)
    made = acquisition_kind(name).make(s)
    mesh = torch.cartesian_prod(*[torch.linspace(0, 1, 16, dtype=torch.float64)] * space.dimension)
    mesh = space.admissible.snap(mesh)
    mesh = mesh[space.admissible.feasible(mesh)]
    with torch.no_grad():
        values = torch.cat([made(part.unsqueeze(-2)) for part in mesh.split(2000)])
        found = made(propose(acquisition_kind(name).make, s).unsqueeze(-2))
    assert found.item() >= values.max().item() - 0.01 * (values.max() - values.min()).item()


def test_rounding_afterwards_would_not_do() -> None:
    """Between two integers the relaxed optimum is better than at either, and the nearer is the worse of them."""
    admissible = Admissible(2, {0: Lattice(2)})

    class Peak(qUpperConfidenceBound):
        def forward(self, X: Tensor) -> Tensor:
            u = X[..., 0, :]
            peak = 3 * torch.exp(-200 * (u[..., 0] - 0.45).square())
            return peak + u[..., 0] - (u[..., 1] - 0.3 - 0.4 * u[..., 0]).square()

    X = torch.rand(6, 2).double()
    s = Setting(SingleTaskGP(X, value(X)), X, None, 1, 0, OPTIONS, admissible)
    torch.testing.assert_close(propose(lambda s: Peak(s.model, 1.0), s), exact([[1.0, 0.7]]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["qUCB", "Thompson"])
def test_when_points_run_out_each_is_proposed_once_before_any_is_again(name: str) -> None:
    s = setting(GRID, q=36)
    X = propose(acquisition_kind(name).make, s)
    assert len(X.unique(dim=0)) == 36
    again = propose(acquisition_kind(name).make, setting(GRID, q=2, pending=X))
    assert again.shape == (2, 4)


@pytest.mark.parametrize("name", ["qLogEI", "qUCB", "Thompson"])
def test_intervals_under_constraints_are_searched_within_them_and_reach_their_edge(name: str) -> None:
    """The model's top, at (0.9, 0.9), is beyond x + y ≤ 1."""
    space = Space.of({"x": (0.0, 1.0), "y": (0.0, 1.0)}, ["x + y <= 1"])
    X = space.admissible.sample(40, 2)
    Y = -(X - 0.9).square().sum(-1, keepdim=True)
    model = WISKI(X, Y, grid_size=12, likelihood=GaussianLikelihood()).eval()
    model.likelihood.noise = 1e-3
    torch.manual_seed(0)
    s = Setting(model, X, None, 2, 0, OPTIONS, space.admissible)
    found = propose(acquisition_kind(name).make, s)
    assert space.admissible.feasible(found).all()
    assert found.sum(-1).max() > 0.9


def test_corners_where_several_searches_end_are_proposed_once() -> None:
    """A box too: noisy values that rise towards a corner."""
    X = torch.rand(12, 2, generator=torch.Generator().manual_seed(0)).double()
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.5
    model = WISKI(X, X.sum(-1, keepdim=True), grid_size=8, likelihood=likelihood).eval()
    s = Setting(model, X, torch.ones(1, 2).double(), 5, 0, {**OPTIONS, "beta": 1e-6})
    found = propose(acquisition_kind("qUCB").make, s)
    assert len(torch.cat([found, s.pending]).unique(dim=0)) == 6


def test_points_of_a_factory_are_rounded() -> None:
    s = setting(GRID, q=2)
    found = propose(lambda s: torch.full((2, 4), 0.51, dtype=torch.float64), s)
    assert torch.equal(GRID.admissible.snap(found), found)


def test_one_shot_acquisitions_are_refused_where_something_is_discrete() -> None:
    with pytest.raises(InvalidDataError, match="along with its fantasies"):
        propose(acquisition_kind("qKG").make, setting(GRID))


# ---------------------------------------------------------------- the loop


KINDS = {
    **{"rate": Real(1e-3, 1.0, log=True), "n": Integer(1, 6), "kind": Choice(("a", "b")), "seed": Fixed(3)},
}


def score(points: list[dict[str, Any]]) -> list[float]:
    """Best at a rate of 0.03, n = 4 and kind b."""
    return [-((math.log10(p["rate"]) + 1.5) ** 2) - 0.1 * (p["n"] - 4) ** 2 + (p["kind"] == "b") for p in points]


def test_a_loop_over_all_kinds_resumes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "space": KINDS,
        "acquisition": "qLogEI",
        "parameter_constraints": ["n <= 5"],
        "refit_growth": 9.0,
    }
    whole, told = cheap(**options), []
    for _ in range(5):
        points = whole.ask(2)
        whole.tell(points, score(points))
        told.append(points)
    for number, points in enumerate(told):
        with cheap(tmp_path, **options) as part:
            assert part.ask(2) == points
            if number != 3:
                part.tell(points, score(points))
        if number == 3:
            with cheap(tmp_path, **options) as part:
                assert part.pending == points
                part.tell(points, score(points))
    best = whole.best()
    assert best.x in [p for points in told for p in points]
    assert all(type(p["n"]) is int and p["n"] <= 5 and p["seed"] == 3 for points in told for p in points)
    flat = [tuple(p.values()) for points in told for p in points]
    assert len(set(flat)) == len(flat)
    first = events(tmp_path)[0]
    assert first["format"] == 3
    assert events(tmp_path)[1]["X"] == [list(p.values()) for p in told[0]]


def test_first_points_of_a_mixed_space_do_not_depend_on_how_many_are_asked_at_once() -> None:
    one, many = (cheap(space=KINDS, num_initial=50) for _ in range(2))
    single = [one.ask()[0] for _ in range(8)]
    assert [*many.ask(1), *many.ask(3), *many.ask(4)] == single


def test_a_journal_of_another_space_is_refused(tmp_path: Path) -> None:
    cheap(tmp_path, space=KINDS).close()
    with pytest.raises(JournalError, match="space: "):
        cheap(tmp_path, space={**KINDS, "n": Integer(1, 7)})
    with pytest.raises(JournalError, match="space: "):
        cheap(tmp_path)


def test_told_points_are_matched_where_they_are_rounded_to() -> None:
    loop = cheap(space={"n": Integer(1, 1000), "x": (0.0, 1.0)}, num_initial=9)
    points = loop.ask(3)
    loop.tell([{**points[1], "n": float(points[1]["n"]) + 1e-7}], [1.0])
    assert loop.pending == [points[0], points[2]]
    loop.abandon(points[2])
    assert loop.pending == points[:1]


def test_constraints_that_contradict_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="no admissible point"):
        cheap(tmp_path, space={"x": (0.0, 1.0)}, parameter_constraints=["x <= 0.2", "x >= 0.4"])
    assert not (tmp_path / "journal.jsonl").exists()


def test_other_models_serve_choices_of_many(tmp_path: Path) -> None:
    space = {"kind": Choice(tuple("abcd")), "n": Integer(1, 8, log=True), "x": (0.0, 1.0)}
    with pytest.raises(SpaceError, match="6 parameters"):
        Optimizer(space, model="wiski")
    loop = cheap(space=space, model=single_task)
    for _ in range(3):
        points = loop.ask(2)
        loop.tell(points, [p["x"] + p["n"] / 8 + (p["kind"] == "c") for p in points])
    assert loop.best().x["kind"] in "abcd"


def test_the_journal_of_a_box_has_what_its_format_says(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        loop.tell(loop.ask(1), [1.0])
    begin, ask, told = events(tmp_path)
    assert begin["format"] == 3
    assert begin["space"] == {"kind": "box", "lower": [0.0, -2.0], "upper": [1.0, 3.0], "names": None}
    assert begin["objective"] == "maximize"
    assert set(begin) == {
        *("event", "format", "space", "objective", "model", "model_options", "acquisition", "acquisition_options"),
        *("seed", "num_initial", "refit_growth", "torch", "first", "match_tolerance"),
        *("failures", "per_cost", "fidelity"),
    }
    assert set(ask) == {"event", "ask", "n", "q", "fitted", "initial", "X"}
    assert told == {"event": "tell", "matched": [0], "X": ask["X"], "Y": [1.0], "Yvar": None}
