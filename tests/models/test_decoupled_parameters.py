"""Where a decoupled GP keeps its bases and variational parameters, and what these are optimal for."""

import pytest
import torch
from cases import data
from decoupled_models import kinds, small
from torch import Tensor

from bo_scale.gp.function_space.bases import Bases, BasisRule
from bo_scale.gp.function_space.variational import Variational, new_root
from bo_scale.models.decoupled_parameters import DecoupledParameters, Stamp, register_parameters


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def registered(hybrid: bool) -> torch.nn.Module:
    module = torch.nn.Module()
    register_parameters(module, BasisRule(hybrid, 6, 4, 6, 2, 0), outputs=2, d=3)
    return module


def found(hybrid: bool, own: int, covar: int) -> Variational:
    return Variational(rand(own), rand(covar, covar), rand(covar if hybrid else 0))


@kinds
def test_what_is_put_is_found_and_the_rest_is_zero(kind: str) -> None:
    hybrid = kind == "hybrid"
    module = registered(hybrid)
    held = DecoupledParameters.of(module)
    for own, covar in ((5, 4), (3, 2)):
        bases, each = Bases(rand(own, 3), rand(covar, 3), hybrid), [found(hybrid, own, covar)] * 2
        held.put_bases(bases)
        held.put_variational(each)
        assert held.bases.hybrid == hybrid
        assert held.bases.sizes == (own, covar)
        assert torch.equal(held.bases.mean, bases.mean)
        assert torch.equal(held.bases.covar, bases.covar)
        for name in ("weights", "root", "innovation"):
            assert torch.equal(getattr(held.of_output(1), name), getattr(each[1], name))
    used = [3 * 3, 2 * 3, 2 * 3, 2 * 4, 2 * (2 if hybrid else 0)]
    assert [int((p != 0).sum()) for p in module.parameters()] == used


def test_points_may_be_put_back_where_they_are() -> None:
    held = DecoupledParameters.of(registered(False))
    points = rand(6, 3)
    held.put_bases(Bases(points, rand(2, 3), False))
    held.put_bases(Bases(held.bases.mean[1:], held.bases.covar, False))
    assert torch.equal(held.bases.mean, points[1:])


def test_only_parameters_with_entries_learn() -> None:
    held = DecoupledParameters.of(registered(False))
    for learned in (True, False):
        held.learn_variational(learned)
        assert [p.requires_grad for p in (held.weights, held.root, held.innovation)] == [learned, learned, False]


@kinds
def test_growth_keeps_what_there_is(kind: str) -> None:
    X, Y = data(40, 2)
    model = small(X, Y, parameterization=kind, start_size=8).eval()
    held, hybrid = model._held, kind == "hybrid"
    before, points = held.of_output(0).frozen(), held.bases.frozen()
    fewer = Bases(points.mean, points.covar[:4], hybrid)
    held.put_bases(fewer)
    held.grow(points, [model._kernel(0)])
    after = held.of_output(0)
    assert torch.equal(after.weights, before.weights)
    assert torch.equal(after.root[:4, :4], before.root[:4, :4])
    assert torch.equal(after.root.diagonal()[4:], new_root(model._kernel(0), points, 2))


# ---------------------------------------------------------------- what they are optimal for


def test_a_stamp_changes_with_rows_and_other_parameters_and_not_with_the_variational() -> None:
    X, Y = data(30, 2)
    model = small(X, Y).eval()
    stamp = Stamp.of(model)
    assert Stamp.of(model).change_since(stamp) is None
    with torch.no_grad():
        model.variational_weights += 1
    assert Stamp.of(model).change_since(stamp) is None
    model.likelihood.noise = 0.3
    assert Stamp.of(model).change_since(stamp) == "settings"
    model._rows = model.rows.with_targets(-model.rows.Y)
    assert Stamp.of(model).change_since(stamp) == "rows"


@pytest.mark.parametrize("other", [None, torch.zeros(2, device="meta", dtype=torch.float64)], ids=["none", "elsewhere"])
def test_unknown_settings_are_other_settings(other: Tensor | None) -> None:
    rows, known = torch.tensor(1), torch.zeros(2, dtype=torch.float64)
    assert Stamp(rows, known).change_since(Stamp(rows, other)) == "settings"
    assert Stamp(rows, known).change_since(Stamp(torch.tensor(2), other)) == "rows"
