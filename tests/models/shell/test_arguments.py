import pytest
import torch
from botorch.models.transforms.input import Normalize, Warp
from cases import rand, randn
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, StudentTLikelihood
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from torch import Size, Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.arguments import (
    make_likelihood,
    make_mean,
    require_frozen,
    require_row_numbers,
)
from bo_scale.models.shell.rows import Rows

ROWS = Rows.of(rand(3, 2), randn(3, 1), 0.1 + rand(3, 1))


@pytest.mark.parametrize(
    ("rows", "found"),
    [([], []), ([0, 2], [0, 2]), ([-1, 0], [4, 0]), (torch.tensor([3], dtype=torch.int8), [3]), ((-5,), [0])],
)
def test_rows_are_counted_from_the_start_in_the_order_given(rows: list[int] | Tensor, found: list[int]) -> None:
    assert require_row_numbers(rows, 5).tolist() == found
    assert require_row_numbers(rows, 5).dtype == torch.int64


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([5], r"\[5\] are not among 5 observations"),
        ([-6], r"\[-6\] are not among"),
        ([1, -4], r"\[1\] occur more than once"),
        ([True, False], "For a mask, pass"),
        (torch.tensor([1.0]), "list or a one-dimensional tensor of ints"),
        (torch.tensor(1), "one-dimensional"),
    ],
)
def test_rows_that_are_none_are_refused(rows: list[int] | Tensor, why: str) -> None:
    with pytest.raises(InvalidDataError, match=f"rows: .*{why}"):
        require_row_numbers(rows, 5)


def test_a_transform_that_learns_is_refused_with_the_remedy() -> None:
    warp = Warp(d=2, indices=[0])
    for frozen in (None, Normalize(2), Warp(d=2, indices=[0]).requires_grad_(False)):
        require_frozen(frozen)
    with pytest.raises(UnsupportedError, match=r"input_transform: Warp .*requires_grad_\(False\)"):
        require_frozen(warp)


def test_learned_noise_has_the_likelihood_given_or_botorchs() -> None:
    given = GaussianLikelihood()
    assert make_likelihood(given, ROWS, False, Size([])) is given
    assert make_likelihood(None, ROWS, False, Size([2])).noise.shape == (2, 1)
    for other in (StudentTLikelihood(), FixedNoiseGaussianLikelihood(rand(3))):
        with pytest.raises(UnsupportedError, match=f"likelihood: {type(other).__name__} is not supported"):
            make_likelihood(other, ROWS, False, Size([]))


def test_known_noise_is_read_from_the_rows() -> None:
    for given in (None, FixedNoiseGaussianLikelihood(rand(3))):
        assert torch.equal(make_likelihood(given, ROWS, True, Size([])).noise, ROWS.D[:, 0])
    with pytest.raises(UnsupportedError, match="likelihood: GaussianLikelihood with train_Yvar"):
        make_likelihood(GaussianLikelihood(), ROWS, True, Size([]))
    learned = FixedNoiseGaussianLikelihood(rand(3), learn_additional_noise=True)
    with pytest.raises(UnsupportedError, match="likelihood: a learned noise on top"):
        make_likelihood(learned, ROWS, True, Size([]))


def test_a_mean_is_constant_or_zero() -> None:
    assert make_mean(None, Size([3])).constant.shape == (3,)
    for given in (ZeroMean(), ConstantMean()):
        assert make_mean(given, Size([])) is given
    with pytest.raises(UnsupportedError, match="mean_module: LinearMean is not supported"):
        make_mean(LinearMean(2), Size([]))
