"""Where a quantity is rougher than its model says: a model of one roughness everywhere, scaled by what was measured.

f(x) = m + s(x) g(x), where g is the model's stationary process, and noise is scaled alike. A measurement beside what
was expected of it without it, in standard deviations of that expectation, has a mean square of s².
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial import cKDTree

from bo_scale.models.base import ScalableModel
from bo_scale.survey.model import Fit, Sites, _tensors, coordinates

Array = npt.NDArray[np.float64]
NEIGHBOURS = 8
"""Sites around a place that tell how rough it is there: weights fall to e⁻² at the farthest of them."""
COUNTED = 4 * NEIGHBOURS
"""Sites whose weights are taken: beyond these they are below e⁻⁸ where sites are evenly dense."""
HELD = 2.0
"""What it weighs that the model is right: as much as so many sites at the place."""
CANCELLED = 1e-6
"""Of the noise, below which the variance of what is left of a measurement is not known to a digit."""


def roughness(model: ScalableModel, fit: Fit, sites: Sites, places: Array) -> Array:
    """s² at places: (a + Σ w_i r_i²)/(a + Σ w_i), a weight of `HELD` for 1 and Gaussian ones for the sites around.

    O(n log n) beside n predictions.

    Args:
        model: Of the sites, exact or on grids.
        fit: Its hyperparameters.
        sites: At least one.
        places: `m × 2`, metres.
    """
    squares = left_out_squares(model, fit, sites)
    count = len(squares)
    distance, at = cKDTree(sites.xy).query(places, min(COUNTED, count))
    distance, at = distance.reshape(len(places), -1), at.reshape(len(places), -1)
    reach = np.maximum(distance[:, min(NEIGHBOURS, count) - 1], 1e-9)
    weight = np.exp(-2 * np.square(distance / reach[:, None]))
    return np.asarray((HELD + (weight * squares[at]).sum(1)) / (HELD + weight.sum(1)))


def left_out_squares(model: ScalableModel, fit: Fit, sites: Sites) -> Array:
    """Squares of how many standard deviations each measurement is from what the others let expect: r², `n`.

    With K̂ = K + Σ the measurement i is (K̂⁻¹y)_i/(K̂⁻¹)_ii from its expectation by the others, whose variance is
    1/(K̂⁻¹)_ii (C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, (5.12)). Posterior
    means μ and variances v at the sites hold both: K̂⁻¹y = (y − μ)/σ² and (K̂⁻¹)_ii = (1 − v_i/σ_i²)/σ_i², so that
    r_i² = (y_i − μ_i)²/(σ_i² − v_i).
    """
    _, y, known = _tensors(sites, fit.offset, fit.unit, fit.nugget)
    with torch.no_grad():
        noise = model._measurement_noise(0).expand(len(y)) if known is None else known.squeeze(-1)
        located = model._current_processes()[0].locate(coordinates(model, sites.xy))
        left = torch.maximum(noise - located.variance(), CANCELLED * noise)
        return ((y.squeeze(-1) - located.mean).square() / left).numpy()
