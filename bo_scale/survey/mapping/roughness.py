"""Local roughness: a model of equal roughness everywhere, scaled by how far measurements are from its expectations.

f(x) = m + s(x) g(x), where g is the model's stationary process, and noise is scaled alike. A measurement beside what
was expected of it without it, in standard deviations of that expectation, has a mean square of s².
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial import cKDTree

from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import forecast, model_tensors
from bo_scale.survey.mapping.sites import Sites

Array = npt.NDArray[np.float64]
NEIGHBOURS = 8
"""Sites around a place that tell how rough it is there: weights fall to e⁻² at the farthest of them."""
COUNTED = 4 * NEIGHBOURS
"""Sites whose weights are taken: beyond these they are below e⁻⁸ where sites are evenly dense."""
HELD = 2.0
"""Weight of the model's own roughness, in sites at the place."""
MOST = 20_000
"""Sites that are compared, by default."""
COMPARED = 2000
"""Sites that are left out to see how much the others predict."""
CANCELLED = 1e-6
"""Share of the noise below which rounding leaves no digit of a left-out variance."""


def roughness(model: ScalableModel, fit: Fit, sites: Sites, places: Array, most: int = MOST) -> Array:
    """Return s² at places: (a + Σ w_i r_i²)/(a + Σ w_i), with a = `HELD` and Gaussian weights w of the sites around.

    As many predictions as sites, `most` at most, and O(m log n).

    Args:
        model: Model of the sites, exact or on grids.
        fit: Its hyperparameters.
        sites: The sites, at least one.
        places: Places, `m × 2`, metres.
        most: Sites that are compared with what the others let expect; of more so many, drawn at random.
    """
    compared = _some(sites, most)
    squares = left_out_squares(model, fit, compared)
    count = len(squares)
    distance, at = cKDTree(fit.in_space(compared.xy)).query(fit.in_space(places), min(COUNTED, count))
    distance, at = distance.reshape(len(places), -1), at.reshape(len(places), -1)
    reach = np.maximum(distance[:, min(NEIGHBOURS, count) - 1], 1e-9)
    weight = np.exp(-2 * np.square(distance / reach[:, None]))
    return np.asarray((HELD + (weight * squares[at]).sum(1)) / (HELD + weight.sum(1)))


def left_out_squares(model: ScalableModel, fit: Fit, sites: Sites) -> Array:
    """Return r², `n`: squared standard deviations of each measurement from its expectation given the others.

    Args:
        model: Model of these sites, and perhaps of others.
        fit: Its hyperparameters.
        sites: The sites.
    """
    error, variance = _left_out(model, fit, sites)
    return np.square(error) / variance


def predicted_share(model: ScalableModel, fit: Fit, sites: Sites, most: int = COMPARED) -> float:
    """Return the share of the variance of measurements that the others predict: 1 − Σ e²/Σ (y − ȳ)².

    The errors e are those of measurements left out one by one. Below zero the mean would be a better prediction. Each
    counts by the inverse of its variance.

    Args:
        model: Model of the sites, exact or on grids.
        fit: Its hyperparameters.
        sites: The sites; their values are not all equal.
        most: Sites that are left out; of more so many, drawn at random.
    """
    compared = _some(sites, most)
    error, _ = _left_out(model, fit, compared)
    weight = np.ones_like(error) if compared.variance is None else 1 / (compared.variance + fit.unit**2)
    around = compared.z - np.average(compared.z, weights=weight)
    return 1 - float(weight @ np.square(error)) / max(float(weight @ np.square(around)), float(np.finfo(float).tiny))


def _some(sites: Sites, most: int) -> Sites:
    """Return the sites, or so many of them, drawn at random."""
    rows = np.sort(np.random.default_rng(0).permutation(len(sites.z))[:most])
    return sites.some(rows)


def _left_out(model: ScalableModel, fit: Fit, sites: Sites) -> tuple[Array, Array]:
    """Return the error of each measurement's expectation given the others, and the variance of it, `n` each.

    With K̂ = K + Σ the measurement i is (K̂⁻¹y)_i/(K̂⁻¹)_ii from its expectation by the others, whose variance is
    1/(K̂⁻¹)_ii (C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, (5.12)). Posterior
    means μ and variances v at the sites hold both: K̂⁻¹y = (y − μ)/σ² and (K̂⁻¹)_ii = (1 − v_i/σ_i²)/σ_i², so that the
    error is (y_i − μ_i) σ_i²/(σ_i² − v_i) and its variance σ_i⁴/(σ_i² − v_i).
    """
    _, _, known = model_tensors(sites, fit)
    mean, sd = forecast(model, fit, sites.xy, False, sites.covariates)
    with torch.no_grad():
        noise = fit.unit**2 * (model.measurement_noise(0) if known is None else known.squeeze(-1)).numpy()
    kept = np.maximum(noise - np.square(sd), CANCELLED * noise) / noise
    return np.asarray((sites.z - mean) / kept), np.asarray(noise / kept)
