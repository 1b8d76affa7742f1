"""Frozen inference of weight-space models: more data, or other hyperparameters, are another object."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from cases import CosineFeatures, data, eigenfunctions, grid_features, softmax_features
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.forgetting import Forgetting
from bo_scale.gp.weight_space.inference import (
    PENDING,
    FromRows,
    Hyperparameters,
    WeightSpaceInference,
    accumulated,
    no_statistics,
)
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.predictive_variance import InterpolationVariance, MissingVariance

D = 2
SCALES = torch.tensor([0.4, 0.7], dtype=torch.float64)
FEATURES = pytest.mark.parametrize(
    "build", [grid_features((9, 8)), softmax_features, eigenfunctions], ids=["grid", "softmax", "eigenfunctions"]
)
CPU = torch.device("cpu")


def hyperparameters(phi: FeatureMap, m: int = 1, **others: Any) -> Hyperparameters:
    values = torch.linspace(0.01, 0.03, m, dtype=torch.float64)
    return Hyperparameters(torch.zeros(3).double(), (phi,) * m, values, 0.1 + values, **others)


def empty(known: Hyperparameters, **options: Any) -> WeightSpaceInference:
    return WeightSpaceInference(known, no_statistics(known.features, 1, CPU), **options)


def noise(n: int, m: int = 1) -> Tensor:
    return 0.5 + torch.rand(n, 1, generator=torch.Generator().manual_seed(7), dtype=torch.float64).expand(n, m)


def assert_same(a: WeightSpaceInference, b: WeightSpaceInference) -> None:
    Z = data(5, D, seed=9)[0]
    assert a.count == b.count
    torch.testing.assert_close(a.statistics[0].gram.to_dense(), b.statistics[0].gram.to_dense())
    for one, other in zip(a.processes, b.processes, strict=True):
        torch.testing.assert_close(one.mean(Z), other.mean(Z), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(one.covariance(Z), other.covariance(Z), rtol=1e-6, atol=1e-9)


@FEATURES
@pytest.mark.parametrize(("may_wait", "m"), [(False, 1), (True, 2)])
def test_rows_one_by_one_are_rows_at_once(build: Callable[[Tensor], FeatureMap], may_wait: bool, m: int) -> None:
    known, (X, Y), V = hyperparameters(build(SCALES), m), data(PENDING + 9, D, m), noise(PENDING + 9, m)
    whole = WeightSpaceInference(known, accumulated(known.features, True, X, Y, V, None))
    grown = empty(known, may_wait=may_wait).observe(X[:4], Y[:4], V[:4])
    _ = grown.processes
    for i in range(4, len(X)):
        before = grown
        grown = grown.observe(X[i : i + 1], Y[i : i + 1], V[i : i + 1])
        assert before.count == i
    assert grown.made is not None
    assert (grown.waiting > 0) == may_wait
    assert grown.waiting <= PENDING
    assert_same(grown, whole)
    for j in range(m):
        assert_same(grown.outputs([j]), whole.outputs([j]))


@FEATURES
def test_other_hyperparameters_are_another_object(build: Callable[[Tensor], FeatureMap]) -> None:
    known, (X, Y), V = hyperparameters(build(SCALES)), data(20, D), noise(20)
    found = empty(known, may_wait=True).observe(X, Y, V)
    other = replace(known, noise=3 * known.noise, theta=known.theta + 1)
    moved = found.at(other)
    assert moved is not found
    assert found.hyperparameters is known
    assert_same(moved, WeightSpaceInference(other, accumulated(other.features, True, X, Y, V, None)))
    with pytest.raises(FrozenInstanceError):
        found.summed = ()  # type: ignore[misc]


@FEATURES
def test_rows_taken_away_were_never_there(build: Callable[[Tensor], FeatureMap]) -> None:
    known, (X, Y), V = hyperparameters(build(SCALES)), data(20, D), noise(20)
    found = empty(known, may_wait=True).observe(X, Y, V)
    assert_same(found.without(X[15:], Y[15:], V[15:]), empty(known).observe(X[:15], Y[:15], V[:15]))
    nothing = found.without(X, Y, V)
    assert nothing.count == 0
    assert not nothing.statistics[0].gram.to_dense().any()


def test_other_units_are_those_of_the_rows() -> None:
    known, (X, Y), V = hyperparameters(CosineFeatures(SCALES), 2), data(20, D, 2), noise(20, 2)
    scale, offset = torch.tensor([2.0, 0.5]).double(), torch.tensor([-1.0, 3.0]).double()
    found = empty(known).observe(X, Y, V).in_units(scale, offset, known_noise=False)
    assert_same(found, empty(known).observe(X, scale * Y + offset, V))
    scaled = empty(known).observe(X, Y, V).in_units(2 * torch.ones(2).double(), offset, known_noise=True)
    assert_same(scaled, empty(known).observe(X, 2 * Y + offset, 4 * V))


def test_few_rows_by_an_update_of_the_prior_or_by_qr_give_the_same() -> None:
    known, (X, Y), V = hyperparameters(grid_features((9, 8))(SCALES)), data(6, D), noise(6)
    found = empty(known).observe(X, Y, V)
    for dtype in (None, torch.float64):
        assert_same(replace(found, rows=FromRows(X, Y, V, dtype)), found)


def test_what_is_forgotten_counts_less_and_less() -> None:
    known, (X, Y), V = hyperparameters(CosineFeatures(SCALES), forgetting=Forgetting(0.8)), data(9, D), noise(9)
    found = empty(known)
    for i in range(9):
        found = found.observe(X[i : i + 1], Y[i : i + 1], V[i : i + 1])
    weights = Forgetting(0.8).weights(9, CPU)
    assert_same(found, WeightSpaceInference(known, accumulated(known.features, True, X, Y, V, None, weights)))


def test_inflation_is_added_to_the_noise_by_the_precision_of_the_rows() -> None:
    error = torch.tensor([0.2]).double()
    known, (X, Y), V = hyperparameters(CosineFeatures(SCALES), inflation=error), data(9, D), noise(9)
    found = empty(known).observe(X, Y, V)
    torch.testing.assert_close(found.noise, known.noise + error * (1 / V).mean())
    _ = found.processes
    assert_same(found.observe(X[:2], Y[:2], V[:2]), empty(known).observe(X, Y, V).observe(X[:2], Y[:2], V[:2]))


def test_extra_variance_is_that_of_the_rule() -> None:
    phi, (X, Y) = grid_features((6, 6))(SCALES), data(30, D)
    V = torch.ones_like(Y)
    for rule, wanted in (
        (MissingVariance(few=False), phi.missing_variance(X)),
        (InterpolationVariance(), phi.interpolation_variance(X)),  # type: ignore[attr-defined]
    ):
        torch.testing.assert_close(empty(hyperparameters(phi, extra=rule)).extra_variance(X, 0), wanted)
    few = empty(hyperparameters(phi, extra=MissingVariance(few=True))).observe(X, Y, V)
    assert few.adds_variance()
    many = few.observe(X[:7], Y[:7], V[:7])
    assert not many.adds_variance()
    assert many.adds_variance(removed=1)
    assert empty(hyperparameters(phi)).extra_variance(X, 0) is None


def test_fantasies_condition_and_stay() -> None:
    known, (X, Y), V = hyperparameters(CosineFeatures(SCALES)), data(20, D), noise(20)
    (x, y), (u, v), Z = data(3, D, seed=2), data(2, D, seed=4), data(5, D, seed=9)[0]
    found = empty(known).observe(X, Y, V)
    fantasised = found.fantasised(x, y.expand(4, 3, 1), torch.ones(1, 1).double())
    assert fantasised.processes[0].mean(Z).shape == (4, 5)
    again = fantasised.fantasised(u, v.expand(4, 2, 1), torch.ones(1, 1).double())
    told = found.observe(x, y, torch.ones_like(y)).observe(u, v, torch.ones_like(v))
    torch.testing.assert_close(again.processes[0].variance(Z), told.processes[0].variance(Z))
    torch.testing.assert_close(again.processes[0].mean(Z)[2], told.processes[0].mean(Z))
    assert again.base is found
    assert isinstance(found.processes[0], WeightSpacePosterior)
    with pytest.raises(TypeError, match="fantasies"):
        again.state()


def test_noise_that_is_not_positive_is_refused() -> None:
    found = empty(hyperparameters(CosineFeatures(SCALES))).observe(*data(5, D), noise(5))
    _ = found.processes
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidDataError, match="must be positive"):
            found.observe(*data(1, D), torch.tensor([[bad]]).double())
