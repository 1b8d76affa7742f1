"""Models of counts and censored values: hyperparameters, and the Gaussian measurements that stand for them, by turns.

Where the stand-ins are at their fixed point, the gradient of the variational bound with respect to hyperparameters is
that of the evidence of the stand-ins: the model is fitted to these as to measurements with known variances.

V. Adam, P. E. Chang, M. E. Khan, A. Solin. Dual parameterization of sparse variational Gaussian processes. NeurIPS
2021.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import Box
from bo_scale.survey.mapping.likelihoods import Likelihood
from bo_scale.survey.mapping.model import fit_model, model_of, predict
from bo_scale.survey.mapping.sites import Sites

Array = npt.NDArray[np.float64]
TURNS, CHOOSING = 12, 2
"""Fits at most, and those of them that choose the kernel."""
SETTLED = 0.02
"""Mean change of log variances of stand-ins below which another fit changes nothing that matters."""
STEPS, TOLERANCE = 50, 1e-3
"""Updates of the stand-ins at most, and the change of means in standard deviations at which they end."""
ROUGHLY = 0.05
"""The same while hyperparameters still change. Each update predicts at all sites."""


def sites_of(xy: Array, likelihood: Likelihood, covariates: Array | None = None) -> Sites:
    """Return sites with first guesses of their stand-ins."""
    return Sites(xy, *likelihood.start(), likelihood, covariates)


def fit_with_stand_ins(
    sites: Sites, box: Box, kernel: str, progress: bool | None, globe: str | None = None, **covariates: Any
) -> tuple[Fit, Sites, ScalableModel]:
    """Fit hyperparameters and stand-ins; all arguments as for `fit_model`. Three to five times its cost."""
    fit, _ = fit_model(sites, box, kernel, progress, globe=globe, **covariates)
    for turn in range(1, TURNS):
        before, sites = sites, settled(sites, fit, ROUGHLY)
        if turn > CHOOSING and _change(before, sites) < SETTLED:
            break
        fit, _ = fit_model(
            sites, box, kernel, progress, near=None if turn < CHOOSING else fit, globe=globe, **covariates
        )
    sites = settled(sites, fit)
    return replace(fit, settled=sites.digest), sites, model_of(sites, fit)


def _change(before: Sites, after: Sites) -> float:
    """Return the mean change of log variances."""
    assert before.variance is not None
    assert after.variance is not None
    return float(np.abs(np.log(after.variance / before.variance)).mean())


def settled(sites: Sites, fit: Fit, tolerance: float = TOLERANCE) -> Sites:
    """Return the sites with stand-ins at the fixed point for hyperparameters. Some six predictions at all sites.

    Args:
        sites: The sites with the stand-ins to start from.
        fit: The hyperparameters.
        tolerance: Change of means, in standard deviations, at which updates end.
    """
    assert sites.likelihood is not None
    last = np.full(len(sites.z), np.inf)
    for _ in range(STEPS):
        mean, variance = _marginals(sites, fit)
        if np.abs((mean - last) / np.sqrt(variance)).max() < tolerance:
            break
        last = mean
        assert sites.variance is not None
        z, own = sites.likelihood.stand_ins(mean, variance, (sites.z, sites.variance))
        sites = replace(sites, z=z, variance=own)
    return sites


def _marginals(sites: Sites, fit: Fit) -> tuple[Array, Array]:
    """Return means and variances of the quantity at the sites: of the map, and of what places vary beyond it.

    A place's deviation ε ~ N(0, τ²) from the map g has a measurement with variance s: given g, the quantity g + ε has
    mean a g + (1 − a) z and variance a τ², with a = s / (τ² + s).
    """
    assert sites.variance is not None
    mean, sd = predict(model_of(sites, fit), fit, sites, sites.xy, False, sites.covariates)
    beyond = fit.nugget * fit.unit**2 if fit.nearest is None else fit.nearest["noise"]
    share = sites.variance / (beyond + sites.variance)
    return share * mean + (1 - share) * sites.z, np.square(share * sd) + share * beyond
