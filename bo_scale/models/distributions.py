"""GPyTorch distributions of located points."""

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import LinearOperator
from linear_operator.operators import BlockDiagLinearOperator, DenseLinearOperator, LowRankRootLinearOperator
from torch import Tensor

from bo_scale.posterior import Located, WeightLocated


def covariance_operator(
    located: Located, diagonal: Tensor | None, dtype: torch.dtype, batch: torch.Size
) -> LinearOperator:
    """Square and dense for few points; a root for many more points than the posterior has rank."""
    q = located.mean.shape[-1]
    operator: LinearOperator
    if isinstance(located, WeightLocated) and q > 2 * located.root.shape[-1]:
        operator = LowRankRootLinearOperator(located.root.to(dtype).expand(*batch, *located.root.shape[-2:]))
        return operator if diagonal is None else operator.add_diagonal(diagonal.to(dtype).expand(*batch, q))
    covariance = located.covariance(located)
    covariance = 0.5 * (covariance + covariance.mT)
    if diagonal is not None:
        covariance = covariance + torch.diag_embed(diagonal.expand(*diagonal.shape[:-1], q))
    return DenseLinearOperator(covariance.to(dtype).expand(*batch, q, q))


def joint_distribution(means: list[Tensor], covariances: list[LinearOperator]) -> MultivariateNormal:
    """The distribution of one output, or the independent joint distribution of several."""
    if len(means) == 1:
        return MultivariateNormal(means[0], covariances[0])
    blocks = DenseLinearOperator(torch.stack([covariance.to_dense() for covariance in covariances], -3))
    return MultitaskMultivariateNormal(torch.stack(means, -1), BlockDiagLinearOperator(blocks), interleaved=False)
