"""What every posterior process does with its located points."""

from typing import Any

import pytest
import torch
from cases import CosineFeatures, data, exact_gp, rand, randn
from torch import Tensor

from bo_scale.gp.conditioning import condition
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.processes import PosteriorProcess, join_rows
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior

X, Y = data(6, 2)
Z = rand(5, 2, seed=1)


def in_weight_space() -> PosteriorProcess:
    return WeightSpacePosterior.prior(CosineFeatures(torch.tensor([0.05]).double()), torch.tensor(0.3).double())


def in_function_space() -> PosteriorProcess:
    return exact_gp(X, Y[:, 0], 0.05)


def fantasies() -> PosteriorProcess:
    return condition(exact_gp(X, Y[:, 0], 0.05), rand(3, 1, 2), randn(4, 3, 1), torch.tensor([0.1]).double())


@pytest.mark.parametrize("build", [in_weight_space, in_function_space, fantasies])
def test_moments_of_points_are_those_of_the_points_located(build: Any) -> None:
    process = build()
    located, other = process.locate(Z), process.locate(Z[:2])
    torch.testing.assert_close(process.mean(Z), located.mean)
    torch.testing.assert_close(process.covariance(Z), located.covariance(located))
    torch.testing.assert_close(process.covariance(Z, Z[:2]), located.covariance(other))
    torch.testing.assert_close(process.covariance(Z)[..., :2], process.covariance(Z, Z[:2]))
    torch.testing.assert_close(process.variance(Z), process.covariance(Z).diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("build", [in_function_space, fantasies])
def test_draws_are_the_mean_and_a_root_times_normal_numbers(build: Any) -> None:
    process = build()
    found = process.sample(Z, 7, torch.Generator().manual_seed(3))
    mean, L = process.mean(Z), cholesky(process.covariance(Z))
    z = torch.randn(7, *mean.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert found.shape == (7, *mean.shape)
    for draw, numbers in zip(found, z, strict=True):
        torch.testing.assert_close(draw, mean + (L @ numbers.unsqueeze(-1)).squeeze(-1))


def test_of_no_points_there_is_nothing_to_draw() -> None:
    assert in_function_space().sample(Z[:0], 3).shape == (3, 0)
    assert in_function_space().sample(Z, 0).shape == (0, 5)


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [((2, 3), (4, 3), (6, 3)), ((5, 1, 2, 3), (7, 0, 3), (5, 7, 2, 3)), ((0, 3), (2, 4, 3), (2, 4, 3))],
)
def test_rows_are_joined_with_their_batches_broadcast(
    a: tuple[int, ...], b: tuple[int, ...], joined: tuple[int, ...]
) -> None:
    A, B = randn(*a), randn(*b, seed=1)
    found = join_rows(A, B)
    assert found.shape == joined
    assert torch.equal(found[..., : a[-2], :], A.expand(*joined[:-2], *a[-2:]))
    assert torch.equal(found[..., a[-2] :, :], B.expand(*joined[:-2], *b[-2:]))


def test_numbers_of_columns_are_joined_as_whole_numbers() -> None:
    columns: Tensor = join_rows(torch.tensor([[1, 2]]), torch.tensor([[3, 4]]))
    assert columns.tolist() == [[1, 2], [3, 4]]
    assert columns.dtype == torch.int64
