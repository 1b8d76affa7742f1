"""The success of an evaluation: a Gaussian process of labels."""

import math

import torch
from botorch.models.gp_regression import SingleTaskGP
from botorch.settings import validate_input_scaling
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.loop.surrogate.side_fit import fit_or_keep
from bo_scale.random import seeded

ROWS = 256
"""Rows that the model sees."""
LEVEL = 0.5
"""A point succeeds where the label of success, 1, is nearer than that of failure, 0."""
SMOOTH = 0.5, 0.5
"""Median of a lengthscale, as a share of the diagonal of the unit cube, and standard deviation of its logarithm. By
themselves, labels that jump at a border ask for lengthscales so short that nothing is learned between the rows."""


def success_model(X: Float[Tensor, "n d"], failures: Float[Tensor, "f d"], seed: int) -> SingleTaskGP:
    """Return a GP of labels, 1 where an evaluation succeeded and 0 where it failed: least-squares classification.

    It sees the latest failures, up to half of `ROWS`. If there are more successes than the rest, half of those it sees
    are the nearest to failures, and half are spread over all. One fit of an exact GP.

    C. Rasmussen, C. Williams. Gaussian processes for machine learning, 2006: section 6.5.

    Args:
        X: Points that succeeded, in the unit cube, at least one.
        failures: Points that failed, at least one.
        seed: Seed of the fit.
    """
    failures = failures[-(ROWS // 2) :]
    points = torch.cat([X[_some_near(X, failures, ROWS - len(failures))], failures])
    labels = points.new_ones(len(points), 1)
    labels[len(points) - len(failures) :] = 0.0
    d = points.shape[-1]
    median, spread = SMOOTH
    lengthscale = median * math.sqrt(d)
    base = MaternKernel(
        2.5,
        ard_num_dims=d,
        lengthscale_prior=LogNormalPrior(math.log(lengthscale), spread),
        lengthscale_constraint=GreaterThan(1e-3),
    )
    base.lengthscale = lengthscale
    kernel = ScaleKernel(base, outputscale_prior=LogNormalPrior(0.0, 1.0), outputscale_constraint=GreaterThan(1e-3))
    with seeded(seed, points.device, 6), validate_input_scaling(False):  # labels are on their scale
        model = SingleTaskGP(points, labels, covar_module=kernel, outcome_transform=None)
        fit_or_keep(ExactMarginalLogLikelihood(model.likelihood, model), "success")
    model.eval()
    return model


def _some_near(X: Float[Tensor, "n d"], others: Float[Tensor, "f d"], count: int) -> Int[Tensor, " k"]:
    """Return up to `count` rows: the nearest to other points, and as many spread over all."""
    if len(X) <= count:
        return torch.arange(len(X), device=X.device)
    distances = torch.cat([torch.cdist(part, others).amin(-1) for part in X.split(10_000)])
    nearest = distances.topk(count // 2, largest=False).indices
    spread = torch.linspace(0, len(X) - 1, count - len(nearest), device=X.device).round().long()
    return torch.cat([nearest, spread]).unique()
