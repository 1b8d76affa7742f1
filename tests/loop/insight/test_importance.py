"""Sobol' indices: of functions whose indices are known, by both ways, and of all kinds of parameters."""

import math
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
from insights import MAXIMISED, TWO, fitted, two
from torch import Tensor

from bo_scale import WISKI, CaGP
from bo_scale.errors import SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Space
from bo_scale.loop.insight.importance import importance
from bo_scale.loop.insight.product_kernel import Places, closed_form
from bo_scale.models.shell.kernels import ProductMaternKernel

pytestmark = pytest.mark.usefixtures("whole_fits")


def cube(n: int, d: int) -> Tensor:
    return torch.quasirandom.SobolEngine(d, scramble=True, seed=0).draw(n, dtype=torch.float64)


def ishigami(X: Tensor) -> Tensor:
    x = math.pi * (2 * X - 1)
    return (x[:, 0].sin() + 7 * x[:, 1].sin().square() + 0.1 * x[:, 2] ** 4 * x[:, 0].sin()).unsqueeze(-1)


def g_function(X: Tensor) -> Tensor:
    """Sobol's function with a = (0, 1, 4.5), smoothed of its kinks: |4x − 2| by the square."""
    a = torch.tensor([0.0, 1.0, 4.5]).double()
    return (1 + (12 * (X - 0.5).square() - 1) / (1 + a)).prod(-1, keepdim=True)


def indices_of_products(variances: list[float]) -> tuple[list[float], list[float]]:
    """Of Π (1 + h_g) with E h = 0 and given variances."""
    whole = math.prod(1 + v for v in variances) - 1
    total = [v * math.prod(1 + w for j, w in enumerate(variances) if j != i) / whole for i, v in enumerate(variances)]
    return [v / whole for v in variances], total


INTERVALS = [Places((0,), None), Places((1,), None)]
ISHIGAMI = ([0.3139, 0.4424, 0.0], [0.5576, 0.4424, 0.2437])


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "sampled"])
@pytest.mark.parametrize("kind", [CaGP, SingleTaskGP])
def test_ishigamis_function(kind: Any, closed: bool) -> None:
    X = cube(250, 3)
    (found,) = importance(Space.of([(0.0, 1.0)] * 3), MAXIMISED, fitted(kind, X, ishigami(X)), closed=closed)
    assert list(found.first.values()) == pytest.approx(ISHIGAMI[0], abs=0.04)
    assert list(found.total.values()) == pytest.approx(ISHIGAMI[1], abs=0.04)
    assert all((error == 0) == closed for error in found.total_errors.values())


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "sampled"])
def test_a_product_of_parabolas(closed: bool) -> None:
    X = cube(150, 3)
    first, total = indices_of_products([0.8, 0.2, 0.8 / 5.5**2])
    (found,) = importance(Space.of([(0.0, 1.0)] * 3), MAXIMISED, fitted(CaGP, X, g_function(X)), closed=closed)
    assert list(found.first.values()) == pytest.approx(first, abs=0.02)
    assert list(found.total.values()) == pytest.approx(total, abs=0.02)


def test_both_ways_agree_on_every_kind_of_parameter() -> None:
    space = Space.of({"x": (0.0, 2.0), "n": Integer(1, 6), "kind": Choice(tuple("abc")), "seed": Fixed(1)})
    X = space.admissible.sample(80, 0)
    Y = ((3 * X[:, 0]).sin() + X[:, 1] * X[:, 2] + 2 * X[:, 3]).unsqueeze(-1)
    model = fitted(CaGP, X, Y)
    (exact,), (sampled,) = (importance(space, MAXIMISED, model, closed=each) for each in (True, False))
    assert list(exact.total) == ["x", "n", "kind", "seed"]
    assert exact.total["seed"] == sampled.total["seed"] == 0
    for name in exact.total:
        assert sampled.first[name] == pytest.approx(exact.first[name], abs=max(0.01, 5 * sampled.first_errors[name]))
        assert sampled.total[name] == pytest.approx(exact.total[name], abs=max(0.01, 5 * sampled.total_errors[name]))
    assert exact.total["kind"] > exact.total["n"]
    assert str(exact).splitlines()[1].startswith("kind")


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_products_of_matern_kernels_have_a_closed_form_and_radial_ones_none(nu: float) -> None:
    X = cube(60, 2)
    Y = (4 * X[:, :1]).sin() + X[:, 1:]
    space = Space.of([(0.0, 1.0)] * 2)
    product = SingleTaskGP(X, Y, covar_module=ProductMaternKernel(nu=nu, ard_num_dims=2)).eval()
    (exact,), (sampled,) = (importance(space, MAXIMISED, product, closed=each) for each in (True, False))
    assert exact.total_errors[0] == 0
    assert list(exact.total.values()) == pytest.approx(list(sampled.total.values()), abs=0.01)
    radial = SingleTaskGP(X, Y, covar_module=get_matern_kernel_with_gamma_prior(2)).eval()
    assert importance(space, MAXIMISED, radial)[0].total_errors[0] > 0


def test_the_order_of_parameters_does_not_matter_and_an_irrelevant_one_has_nothing() -> None:
    X = cube(80, 3)
    Y = (5 * X[:, :1]).sin() + X[:, 1:2]
    a, b, c = (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)
    (one,) = importance(Space.of({"a": a, "b": b, "c": c}), MAXIMISED, fitted(CaGP, X, Y))
    (other,) = importance(Space.of({"c": c, "b": b, "a": a}), MAXIMISED, fitted(CaGP, X.flip(-1), Y))
    for name in "abc":
        assert one.total[name] == pytest.approx(other.total[name], abs=1e-3)
    assert one.total["c"] == pytest.approx(0, abs=1e-3)


def test_it_is_printed_as_tables() -> None:
    X = cube(20, 2)
    space = Space.of({"rate": (0.0, 1.0), "depth": (0.0, 1.0)})
    shown = str(importance(space, MAXIMISED, fitted(CaGP, X, X[:, :1])))
    assert shown.splitlines()[0].split() == ["parameter", "alone", "in", "all"]
    assert shown.splitlines()[1].startswith("rate")


@pytest.mark.parametrize("kind", [CaGP, WISKI])
def test_constant_values_have_no_important_parameter(kind: Any) -> None:
    X = cube(20, 2)
    (found,) = importance(Space.of([(0.0, 1.0)] * 2), MAXIMISED, kind(X, torch.full((20, 1), 3.0).double()).eval())
    assert list(found.first.values()) == list(found.total.values()) == [0, 0]


def test_each_outcome_has_its_own() -> None:
    X = cube(60, 2)
    found = importance(Space.of([(0.0, 1.0)] * 2), TWO, two(CaGP, X, X), samples=256)
    assert [each.outcome for each in found] == ["loss", "gain"]
    assert found[0].total[0] == pytest.approx(1, abs=0.05)
    assert found[1].total[0] == pytest.approx(0, abs=0.05)
    assert str(found[1]).startswith("Importance for gain\n")


def test_one_parameter_explains_all() -> None:
    X = cube(12, 1)
    (found,) = importance(Space.of([(0.0, 1.0)]), MAXIMISED, CaGP(X, X.square()).eval())
    assert (found.first[0], found.total[0]) == (pytest.approx(1), pytest.approx(1))


def test_dependent_parameters_are_refused() -> None:
    X = cube(12, 2)
    space = Space.of({"x": (0.0, 1.0), "y": (0.0, 1.0)}, ["x + y <= 1"])
    with pytest.raises(SpaceError, match="depend on each other"):
        importance(space, MAXIMISED, CaGP(X, X[:, :1]).eval())


def test_models_that_are_no_expansion_have_no_closed_form() -> None:
    X = cube(30, 2)
    assert closed_form(WISKI(X, X[:, :1], grid_size=8).eval(), INTERVALS) is None
    assert closed_form(CaGP(X, (9 * X[:, :1]).sin(), num_actions=4).eval(), INTERVALS) is None
