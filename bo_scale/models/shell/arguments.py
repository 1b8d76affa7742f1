"""Checks of a model's arguments: row numbers, frozen transforms, a Gaussian likelihood, a constant mean."""

from collections.abc import Sequence

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Int
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.row_noise import RowNoise
from bo_scale.models.shell.rows import Rows
from bo_scale.models.shell.student_t import StudentTNoise

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def require_row_numbers(rows: Sequence[int] | Tensor, n: int) -> Int[Tensor, " k"]:
    """Return indices of some of n rows, counted from the start; refuse invalid and repeated ones."""
    numbers = torch.as_tensor(rows)
    if numbers.ndim != 1 or (len(numbers) > 0 and numbers.dtype not in _INTEGERS):
        raise InvalidDataError(
            "rows: expected a list or a one-dimensional tensor of ints. For a mask, pass mask.nonzero().squeeze(-1)."
        )
    numbers = numbers.long()
    outside = numbers[(numbers < -n) | (numbers >= n)].tolist()
    if outside:
        raise InvalidDataError(f"rows: {outside[:5]} are not among {n} observations. Count from 0, or back from −1.")
    numbers = torch.where(numbers < 0, numbers + n, numbers)
    found, times = numbers.unique(return_counts=True)
    if (times > 1).any():
        raise InvalidDataError(f"rows: {found[times > 1].tolist()[:5]} occur more than once. Give each once.")
    return numbers


def require_frozen(input_transform: InputTransform | None) -> None:
    """Refuse a transform that fitting would change, since statistics are accumulated from transformed inputs."""
    if input_transform is not None and any(p.requires_grad for p in input_transform.parameters()):
        raise UnsupportedError(
            f"input_transform: {type(input_transform).__name__} has parameters to learn, which would change the inputs "
            f"during a fit. Call requires_grad_(False) on it."
        )


def make_likelihood(
    likelihood: Likelihood | str | None, rows: Rows, known: bool, batch_shape: torch.Size
) -> Likelihood:
    """Return the given likelihood, BoTorch's default, or one that reads known variances from the rows.

    Raises:
        UnsupportedError: for any other likelihood, which the message names.
    """
    name = repr(likelihood) if isinstance(likelihood, str | type) else type(likelihood).__name__
    if known:
        if likelihood is not None and type(likelihood) is not FixedNoiseGaussianLikelihood:
            raise UnsupportedError(f"likelihood: {name} with train_Yvar. Known variances need none; leave it out.")
        if isinstance(likelihood, FixedNoiseGaussianLikelihood) and likelihood.second_noise_covar is not None:
            raise UnsupportedError(
                "likelihood: a learned noise on top of known variances is not supported. Pass train_Yvar alone."
            )
        fixed = FixedNoiseGaussianLikelihood(noise=rows.D.new_ones(*batch_shape, 1), batch_shape=batch_shape)
        fixed.noise_covar = RowNoise(rows)
        return fixed
    if likelihood == "student_t":
        return StudentTNoise(batch_shape)
    if likelihood is None:
        return get_gaussian_likelihood_with_lognormal_prior(batch_shape=batch_shape)
    if isinstance(likelihood, str | type) or type(likelihood) not in (GaussianLikelihood, StudentTNoise):
        raise UnsupportedError(
            f"likelihood: {name} is not supported; use GaussianLikelihood, 'student_t' for outliers, or train_Yvar."
        )
    outputs = batch_shape.numel()
    if isinstance(likelihood, StudentTNoise) and likelihood.degrees_of_freedom.numel() != outputs:
        raise UnsupportedError(
            f"likelihood: StudentTNoise for {likelihood.degrees_of_freedom.numel()} outputs, expected {outputs}. Pass "
            f"'student_t', or StudentTNoise(torch.Size([{outputs}]))."
        )
    return likelihood


def make_mean(mean_module: Mean | None, batch_shape: torch.Size) -> Mean:
    """Return the given mean, or a constant one.

    Raises:
        UnsupportedError: for a mean that is neither constant nor zero, which the message names.
    """
    if mean_module is None:
        return ConstantMean(batch_shape=batch_shape)
    if type(mean_module) not in (ConstantMean, ZeroMean):
        raise UnsupportedError(
            f"mean_module: {type(mean_module).__name__} is not supported; use ConstantMean or ZeroMean."
        )
    return mean_module
