"""Points on linear equalities: mixtures, and mixtures beside integers, choices and inequalities."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.models import SingleTaskGP
from gpytorch.likelihoods import GaussianLikelihood
from pairwise import pairwise as all_pairs
from settings import OPTIONS
from torch import Tensor

from bo_scale.decisions.ascent import ascend, climb_within
from bo_scale.decisions.by_name import ACQUISITIONS, acquisition_kind
from bo_scale.decisions.candidates import Admissible
from bo_scale.decisions.equalities import Reduction, Slice
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.errors import SpaceError
from bo_scale.loop import Choice, Integer, Space

MIXTURE = Space.of({"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 1.0)}, ["a + b + c == 1"])
LIMITED = Space.of({"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 1.0)}, ["a + b + c == 1", "a <= 0.4", "b >= c"])
TWO = Space.of(
    {"a": (0.0, 2.0), "b": (-1.0, 1.0), "c": (0.0, 1.0), "d": (0.0, 5.0), "e": (0.0, 1.0)},
    ["a + b + c == 1", "a - d / 2 == 0.1"],
)
MIXED = Space.of(
    {"a": (0.0, 1.0), "n": Integer(0, 9), "kind": Choice(("u", "v", "w")), "b": (0.0, 1.0), "c": (0.0, 1.0)},
    ["a + b + n / 10 == 1", "c <= b"],
)
NAMED = {"mixture": MIXTURE, "limited": LIMITED, "two": TWO, "mixed": MIXED}
SPACES = pytest.mark.parametrize("space", NAMED.values(), ids=NAMED)
SINGLE = [name for name, kind in ACQUISITIONS.items() if kind.serves(1, 0)]
SHORT = {"max_steps": 3, "mc_points": 16}
"""Options of searches that need not find the best point."""
CASES = all_pairs(
    [*NAMED],
    SINGLE,
    [1, 3],
    allowed=lambda space, name, q: space != "mixed" or ACQUISITIONS[name].discrete,
)


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sliced(space: Space) -> Slice:
    assert isinstance(space.admissible, Slice)
    return space.admissible


def setting(space: Space, q: int = 1, held: dict[str, Any] | None = None, told: int = 16, **options: Any) -> Setting:
    """A model of a smooth function whose top is at 0.3 of every input."""
    X = sliced(space).sample(told, 1)
    likelihood = GaussianLikelihood()
    likelihood.noise = 1e-3
    made = SingleTaskGP(X, -(X - 0.3).square().sum(-1, keepdim=True), likelihood=likelihood).eval()
    at = space.held(held) if held else None
    return Setting(made, X, None, q, 7, {**OPTIONS, **options}, space.admissible, held=at)


def assert_admissible(space: Space, X: Tensor) -> None:
    """In the unit cube, and in raw units."""
    some = sliced(space)
    assert some.feasible(X).all()
    torch.testing.assert_close(some.snap(X), X, rtol=0, atol=0)
    for point in space.decode(X):
        for constraint in space.constraints:
            missed = constraint.value(point) - constraint.upper
            assert abs(missed) < 1e-14 if constraint.equal else missed < 1e-8


# ---------------------------------------------------------------- equalities solved


def test_the_largest_weight_is_solved_for_and_the_others_are_free() -> None:
    solved = Reduction.of(exact([[0.6, 0.0, 0.8]]), exact([0.4]), exact([1, 1, 1]).bool())
    assert solved.pivots == [2]
    assert solved.slopes.tolist() == [[pytest.approx(0.75), 0, 0]]
    assert solved.complete(exact([[0.2, 0.9, 0.7]]))[0].tolist() == pytest.approx([0.2, 0.9, 0.35])
    held = Reduction.of(exact([[0.6, 0.0, 0.8]]), exact([0.4]), exact([1, 1, 0]).bool())
    assert held.pivots == [0]


def test_what_follows_is_dropped_and_what_contradicts_is_left() -> None:
    free = torch.ones(3, dtype=torch.bool)
    rows = exact([[0.6, 0.8, 0.0], [0.0, 0.6, 0.8], [0.6, 1.4, 0.8]])
    assert Reduction.of(rows, exact([0.3, 0.2, 0.5]), free).rows == []
    left = Reduction.of(rows, exact([0.3, 0.2, 0.6]), free)
    assert len(left.rows) == 1
    assert not left.weights.any()
    assert left.targets.abs().item() == pytest.approx(0.1)
    discrete = Reduction.of(rows[:1], exact([0.3]), exact([0, 0, 1]).bool())
    assert (discrete.pivots, discrete.rows, discrete.weights.tolist()) == ([], [0], rows[:1].tolist())


# ---------------------------------------------------------------- points


def test_the_mixtures_are_sampled_evenly() -> None:
    """A share of three has mean 1/3 and variance 1/18, and two have covariance −1/36."""
    X = sliced(MIXTURE).sample(4000, 0)
    covariance = torch.cov(X.T)
    assert X.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.005)
    assert covariance.diagonal().tolist() == pytest.approx([1 / 18] * 3, rel=0.03)
    assert covariance[0, 1:].tolist() == pytest.approx([-1 / 36] * 2, rel=0.05)


def test_mixtures_of_many_are_sampled_evenly_and_the_first_ones_are_far_apart() -> None:
    d = 10
    X = Slice(d, equalities=torch.ones(1, d).double() / d**0.5, targets=exact([d**-0.5])).sample(1000, 0)
    assert X.mean(0).tolist() == pytest.approx([0.1] * d, rel=0.15)
    assert X.var(0).mean().item() == pytest.approx((d - 1) / d**2 / (d + 1), rel=0.05)
    assert torch.pdist(X[:8]).mean().item() == pytest.approx(torch.pdist(X).mean().item(), rel=0.2)


@SPACES
def test_samples_are_admissible_and_a_sequence(space: Space) -> None:
    some = sliced(space)
    X = some.sample(100, 3)
    assert_admissible(space, X)
    assert len(X.unique(dim=0)) == 100
    assert torch.equal(torch.cat([some.sample(40, 3), some.sample(60, 3, first=40)]), X)


@SPACES
def test_points_anywhere_are_moved_onto_the_equalities(space: Space) -> None:
    some, g = sliced(space), torch.Generator().manual_seed(0)
    unit = some.snap(torch.rand(200, some.dimension, generator=g, dtype=torch.float64))
    for moved in (some.nearest(unit), some.repair(unit)):
        assert some.feasible(moved).double().mean() > 0.95
        torch.testing.assert_close(some.snap(moved), moved)


def test_the_nearest_mixture_is_the_projection() -> None:
    some = sliced(MIXTURE)
    assert some.nearest(exact([[0.5, 0.5, 0.5]]))[0].tolist() == pytest.approx([1 / 3] * 3)
    assert some.nearest(exact([[0.5, 0.3, 0.5]]))[0].tolist() == pytest.approx([0.4, 0.2, 0.4])


@SPACES
def test_retracted_points_are_admissible_and_keep_what_is_discrete(space: Space) -> None:
    some, g = sliced(space), torch.Generator().manual_seed(0)
    start = some.sample(100, 1)
    moved = some.retract(torch.rand(100, some.dimension, generator=g, dtype=torch.float64), start)
    assert some.feasible(moved).all()
    assert torch.equal(moved[:, ~some.free], start[:, ~some.free])
    torch.testing.assert_close(some.retract(start, start), start)


@SPACES
def test_gradients_along_the_equalities_are_those_of_differences(space: Space) -> None:
    some = sliced(space)
    start = some.sample(3, 1)
    for row in start:
        inside = (row + 0.02 * torch.sin(torch.arange(some.dimension))).requires_grad_()
        outside = torch.where(some.free, 1.1 - row, row).detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda u, row=row: some.retract(u, row), inside)
        assert torch.autograd.gradcheck(lambda u, row=row: some.retract(u, row), outside)


def test_the_excess_is_the_distance_by_which_an_equality_or_a_bound_is_missed() -> None:
    some = sliced(MIXTURE)
    assert some.excess(exact([[0.5, 0.5, 0.5], [0.5, 0.6, -0.1]])).tolist() == pytest.approx([0.5 / 3**0.5, 0.1])
    assert some.feasible(exact([[0.33, 0.33, 0.34], [0.333, 0.333, 0.333]])).tolist() == [True, False]
    assert sliced(LIMITED).excess(exact([[0.5, 0.4, 0.1]])).item() == pytest.approx(0.1)


def test_what_is_within_rounding_of_a_bound_is_settled_on_it() -> None:
    some = sliced(MIXTURE)
    near = exact([[1 + 5e-10, -2e-10, -3e-10], [0.4, 0.6, 1e-17], [0.2 + 4e-10, 0.3, 0.5]])
    settled = some.settled(near)
    assert settled[:2].tolist() == [[1, 0, 0], [0.4, 0.6, 0]]
    assert (settled.sum(-1) - 1).abs().max() < 4e-16
    only = exact([[0.2, 0.3]])
    assert torch.equal(Admissible(2).settled(only), only)


# ---------------------------------------------------------------- held values


def test_held_values_are_kept_and_another_input_is_solved_for() -> None:
    some = sliced(MIXTURE)
    for i in range(3):
        one = some.holding({i: 0.7})
        X = one.sample(100, 0)
        assert (X[:, i] == 0.7).all()
        assert some.feasible(X).all()
        assert (X.amin(0) < 0.02).sum() == 2
        assert one.repair(exact([[0.7, 0.7, 0.7]]))[0, i] == 0.7
    two = some.holding({0: 0.5, 2: 0.2})
    assert (two.count, two.free.any().item()) == (1, False)
    assert two.points is not None
    assert two.points[0].tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert some.holding({0: 0.5, 1: 0.3, 2: 0.2}).sample(2, 0).tolist() == [[0.5, 0.3, 0.2]] * 2


@pytest.mark.parametrize("held", [{0: 0.7, 1: 0.7}, {0: 0.5, 1: 0.3, 2: 0.3}, {0: 1.5}])
def test_held_values_that_no_point_has_are_refused(held: dict[int, float]) -> None:
    with pytest.raises(SpaceError, match=f"no admissible point was found.*{len(held)} inputs are held"):
        sliced(MIXTURE).holding(held).sample(1, 0)


def test_integers_must_make_up_for_what_is_held() -> None:
    space = Space.of({"a": (0.0, 1.0), "n": Integer(0, 99), "m": Integer(0, 99)}, ["50 * a + n + m == 90"])
    some = sliced(space).holding(space.held({"a": 0.5}))
    X = some.sample(60, 0)
    assert len(X.unique(dim=0)) == 60
    assert all(point["n"] + point["m"] == 65 for point in space.decode(X))
    with pytest.raises(SpaceError, match="fixed: no point with"):
        space.held({"a": 0.51})
    small = Space.of({"a": (0.0, 1.0), "n": Integer(0, 9)}, ["a + n / 10 == 1"])
    points = sliced(small).holding(small.held({"a": 0.3})).points
    assert points is not None
    assert [point["n"] for point in small.decode(points)] == [7]


# ---------------------------------------------------------------- climbs


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
        ([0.9, 0.8, 0.4], [8 / 15, 13 / 30, 1 / 30]),
        ([0.9, 0.8, -0.4], [0.55, 0.45, 0.0]),
        ([2.0, 0.1, 0.3], [1.0, 0.0, 0.0]),
    ],
)
def test_a_quadratic_over_mixtures_is_climbed_to_its_constrained_maximum(
    top: list[float], expected: list[float]
) -> None:
    def hill(X: Tensor) -> Tensor:
        return -(X - exact(top)).square().sum(-1)

    points, values = climb_within(hill, sliced(MIXTURE).sample(20, 0), sliced(MIXTURE), 60)
    torch.testing.assert_close(points, exact([expected]).expand(20, 3), rtol=0, atol=1e-4)
    torch.testing.assert_close(values, hill(points))
    assert sliced(MIXTURE).feasible(points).all()


def test_integers_are_exchanged_and_continuous_inputs_make_up_for_it() -> None:
    """At n = 3 the top a = 0.35, b = 0.35 is reached, from any start."""

    def hill(X: Tensor) -> Tensor:
        return -(X[..., 0] - 0.35).square() - (X[..., 5] - 0.35).square() - (X[..., 1] - 1 / 3).square() + X[..., 3]

    points, _ = ascend(hill, sliced(MIXED).sample(10, 0), sliced(MIXED), 60)
    for point in MIXED.decode(points):
        assert (point["n"], point["kind"]) == (3, "v")
        assert [point["a"], point["b"]] == pytest.approx([0.35, 0.35], abs=1e-4)
    assert_admissible(MIXED, sliced(MIXED).settled(points))


# ---------------------------------------------------------------- proposals


@pytest.mark.usefixtures("short_fits", "short_walks")
@pytest.mark.parametrize(("kind", "name", "q"), CASES)
def test_every_acquisition_proposes_points_on_the_equalities(kind: str, name: str, q: int) -> None:
    space = NAMED[kind]
    torch.manual_seed(0)
    X = propose(acquisition_kind(name).make, setting(space, q, **SHORT))
    assert X.shape == (q, sliced(space).dimension)
    assert not X.requires_grad
    assert len(X.unique(dim=0)) == q
    assert_admissible(space, X)


@pytest.mark.usefixtures("short_fits", "short_walks")
@pytest.mark.parametrize("name", SINGLE)
def test_held_values_and_equalities_go_together(name: str) -> None:
    torch.manual_seed(0)
    X = propose(acquisition_kind(name).make, setting(LIMITED, 2, {"b": 0.45}, **SHORT))
    assert (X[:, 1] == 0.45).all()
    assert len(X.unique(dim=0)) == 2
    assert_admissible(LIMITED, X)
    every = propose(acquisition_kind(name).make, setting(MIXTURE, 2, {"b": 0.45, "a": 0.1}))
    assert every.flatten().tolist() == pytest.approx([0.1, 0.45, 0.45] * 2)


@pytest.mark.parametrize("name", ["qUCB", "qLogEI", "qLogNEI", "qNIPV"])
@pytest.mark.parametrize("space", [MIXTURE, LIMITED], ids=["mixture", "limited"])
def test_the_best_of_a_dense_mesh_is_found(space: Space, name: str) -> None:
    steps = torch.linspace(0, 1, 61, dtype=torch.float64)
    a, b = (each.flatten() for each in torch.meshgrid(steps, steps, indexing="ij"))
    mesh = torch.stack([a, b, 1 - a - b], -1)
    mesh = mesh[sliced(space).feasible(mesh)]
    make = acquisition_kind(name).make
    s = setting(space, num_restarts=4, raw_samples=128, max_steps=60)
    made = make(s)
    with torch.no_grad():
        values, found = made(mesh.unsqueeze(-2)), made(propose(make, s).unsqueeze(-2))
    assert found.item() >= values.max().item() - 1e-3 * (values.max() - values.min()).item()


@pytest.mark.usefixtures("short_fits", "short_walks")
def test_the_knowledge_gradient_looks_for_maxima_among_admissible_points() -> None:
    """So its points and all fantasies lie on the equality wherever it is evaluated last."""
    tried: list[Tensor] = []

    class Watched(qKnowledgeGradient):
        def forward(self, X: Tensor) -> Tensor:
            tried.append(X.detach())
            return super().forward(X)

    X = propose(lambda s: Watched(s.model, 2), setting(MIXTURE, max_steps=4))
    assert_admissible(MIXTURE, X)
    assert (tried[-1].sum(-1) - 1).abs().max() < 1e-6
    held = propose(lambda s: Watched(s.model, 2), setting(MIXTURE, held={"a": 0.6}, max_steps=4))
    assert held[0, 0] == 0.6
    assert (tried[-1][..., 0, :].sum(-1) - 1).abs().max() < 1e-6


def test_points_of_a_factory_are_moved_onto_the_equalities() -> None:
    s = setting(MIXTURE, 2)
    points = exact([[0.5, 0.5, 0.5], [0.2, 0.3, 0.5]])
    found = propose(lambda s: points, s)
    assert found.tolist() == [pytest.approx([1 / 3] * 3), pytest.approx([0.2, 0.3, 0.5])]
    held = propose(lambda s: points, replace(s, held={0: 0.4}))
    assert (held[:, 0] == 0.4).all()
    assert_admissible(MIXTURE, held)


def test_told_points_that_miss_an_equality_by_their_slack_are_still_starts() -> None:
    s = setting(MIXTURE)
    off = replace(s, observed=(s.observed * (1 + 1e-6)).clamp(0.0, 1.0))
    for make in (acquisition_kind("qLogEI").make, acquisition_kind("Thompson").make):
        torch.manual_seed(0)
        assert_admissible(MIXTURE, propose(make, off))


def test_a_map_of_a_mixture_is_a_map_of_the_mixtures_alone() -> None:
    """A point in the middle of the triangle lowers the variance there most, far from the middle of the cube."""
    made = SingleTaskGP(exact([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]), torch.zeros(3, 1).double()).eval()
    s = Setting(made, exact([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]), None, 1, 0, OPTIONS, MIXTURE.admissible)
    options = {"mc_points": 256, "num_restarts": 2, "raw_samples": 32, "max_steps": 30}
    X = propose(acquisition_kind("qNIPV").make, replace(s, options=options))
    assert X[0].tolist() == pytest.approx([1 / 3] * 3, abs=0.05)


def test_batches_spread_over_the_mixtures() -> None:
    torch.manual_seed(0)
    X = propose(acquisition_kind("Thompson").make, setting(MIXTURE, 30, told=4))
    assert_admissible(MIXTURE, X)
    assert len(X.unique(dim=0)) == 30
    assert all((a != b).any() for a, b in pairwise(X))
