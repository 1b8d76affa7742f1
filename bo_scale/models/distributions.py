"""GPyTorch distributions of located points."""

import torch
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import LinearOperator
from linear_operator.operators import BlockDiagLinearOperator, DenseLinearOperator, LowRankRootLinearOperator
from torch import Tensor

from bo_scale.posterior import Located, WeightLocated


def standardisation(transform: OutcomeTransform | None, outputs: list[int]) -> list[tuple[Tensor, Tensor]] | None:
    """Offset and scale of each output from a Standardize; None for any other transform.

    Applied to roots, they keep a root a root: Standardize's own untransform makes it dense.
    """
    if type(transform) is not Standardize or transform._outputs is not None:
        return None
    means, scales = transform.means.double().reshape(-1), transform.stdvs.double().reshape(-1)
    return [(means[j], scales[j]) for j in outputs]


def covariance_operator(
    located: Located, diagonal: Tensor | None, scale: Tensor | float, dtype: torch.dtype, batch: torch.Size
) -> LinearOperator:
    """Covariance times scale²: square and dense for few points; a root for many more than the posterior has rank."""
    q = located.mean.shape[-1]
    added = None if diagonal is None else (scale * scale * diagonal).expand(*diagonal.shape[:-1], q)
    if isinstance(located, WeightLocated) and q > 2 * located.root.shape[-1]:
        root = (scale * located.root).to(dtype)
        operator: LinearOperator = LowRankRootLinearOperator(root.expand(*batch, *root.shape[-2:]))
        return operator if added is None else operator.add_diagonal(added.to(dtype).expand(*batch, q))
    covariance = scale * scale * located.covariance(located)
    covariance = 0.5 * (covariance + covariance.mT)
    if added is not None:
        covariance = covariance + torch.diag_embed(added)
    return DenseLinearOperator(covariance.to(dtype).expand(*batch, q, q))


def joint_distribution(means: list[Tensor], covariances: list[LinearOperator]) -> MultivariateNormal:
    """The distribution of one output, or the independent joint distribution of several."""
    if len(means) == 1:
        return MultivariateNormal(means[0], covariances[0])
    if all(isinstance(covariance, LowRankRootLinearOperator) for covariance in covariances):
        roots = [covariance.root.to_dense() for covariance in covariances]
        width = max(root.shape[-1] for root in roots)
        padded = [torch.nn.functional.pad(root, (0, width - root.shape[-1])) for root in roots]
        blocks: LinearOperator = LowRankRootLinearOperator(torch.stack(padded, -3))
    else:
        blocks = DenseLinearOperator(torch.stack([covariance.to_dense() for covariance in covariances], -3))
    return MultitaskMultivariateNormal(torch.stack(means, -1), BlockDiagLinearOperator(blocks), interleaved=False)
