"""Coefficients of a trend in covariates, with intervals."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.trend import Trend

Array = npt.NDArray[np.float64]
WITHIN = 1.959964
"""Standard deviations from the mean to the end of a 95 % interval."""


def coefficients(model: ScalableModel, fit: Fit, class_names: dict[str, dict[float, str]]) -> pd.DataFrame:
    """Return coefficients: `covariate`, `class`, `estimate`, `sd`, `lower`, `upper`, on the scale of the values.

    Of a number it is the change for each of its units, of a class the difference from the mean of all classes of the
    sites. Covariates with a smooth effect have none.

    Args:
        model: Fitted.
        fit: Its hyperparameters.
        class_names: Names of classes by covariate and the number that stands for them.
    """
    if fit.trend is None:
        return pd.DataFrame({name: [] for name in ("covariate", "class", "estimate", "sd", "lower", "upper")})
    trend = Trend(**fit.trend)
    mean, covariance = _posterior(model, fit)
    rows = []
    for place, (name, level) in enumerate(trend.labels):
        covariate = trend.names.index(name)
        kind, contrast = trend.kinds[covariate], np.zeros(len(mean))
        if kind == "kernel" or (level is not None and np.isnan(level)):
            continue
        contrast[place] = 1 / trend.scales[covariate]
        if level is not None:
            every = [at for at, (own, one) in enumerate(trend.labels) if own == name and one == one]
            contrast[every] -= 1 / len(every)
        called = "" if level is None else class_names.get(name, {}).get(level, f"{level:g}")
        variance = max(float(contrast @ covariance @ contrast), 0.0)
        rows.append((name, called, float(contrast @ mean), variance**0.5))
    found = pd.DataFrame(rows, columns=["covariate", "class", "estimate", "sd"])
    return found.assign(lower=found.estimate - WITHIN * found.sd, upper=found.estimate + WITHIN * found.sd)


def without_trend(sites: Sites, model: ScalableModel, fit: Fit) -> Sites:
    """Return sites with the values that a trend in covariates leaves; the sites themselves without one."""
    if fit.trend is None:
        return sites
    mean, _ = _posterior(model, fit)
    return replace(sites, z=sites.z - fit.columns(sites.xy, sites.covariates) @ mean)


def _posterior(model: ScalableModel, fit: Fit) -> tuple[Array, Array]:
    """Return mean and covariance of the coefficients of all columns."""
    if fit.nearest is not None:
        nearest = Nearest(**fit.nearest)
        return np.array(nearest.coefficients)[1:], np.array(nearest.spread)[1:, 1:]
    west, south, east, north = fit.box
    where = fit.in_space(np.array([[(west + east) / 2, (south + north) / 2]]))
    count = fit.others
    if fit.time is not None:
        where, count = np.concatenate([where, np.ones((1, 1))], 1), count - 1
    steps = np.concatenate([np.zeros((1, count)), np.eye(count)])
    inputs = torch.from_numpy(np.concatenate([np.repeat(where, count + 1, 0), steps], 1))
    with torch.no_grad():
        located = model.processes[0].locate(model.transform_inputs(inputs).double())
        mean, covariance = located.mean.numpy(), located.covariance(located).numpy()
    change = np.concatenate([-np.ones((count, 1)), np.eye(count)], 1)
    return fit.unit * change @ mean, fit.unit**2 * change @ covariance @ change.T
