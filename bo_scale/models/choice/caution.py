"""Cautious noise: a noise variance that few rows cannot make too small."""

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.models.fitting.exact import ExactGP

PRIOR_ROWS = 20
"""Number k of rows of mean square e² that the prior of the noise variance counts for."""
UNEXPLAINED_ROWS = 0.1
"""Number u of rows of which nothing is explained that it counts for besides."""
FEWEST_ROWS = 50
"""Number of rows below which the prior gains no more weight: 2/7."""
PREMIUM, TOTAL_PREMIUM = 0.5, 100.0
"""Largest loss of log density, in nats, that caution may cost: of each row left out, and of all rows."""
DOUBLINGS = 20
"""Maximum number of times that a noise variance is doubled which rows left out contradict."""
HALVINGS = 4
"""Number of times that the way to a noise variance that costs too much is halved."""


def cautious_noise(exact: ExactGP, rows: int) -> Float[Tensor, " m"]:
    """Return the noise variance (n σ² + k e² + u s²)/(n + k + u), with e² the mean squared error of rows left out.

    Few rows can be explained without noise, and evidence then takes σ² for nearly 0: with 50 rows of 23 data sets, 95 %
    intervals held 92 %, and some rows lay tens of deviations away. This is the mode of σ² for n rows with mean square
    σ², and an inverse-gamma prior that is worth k = 20 rows with mean square e² and a tenth of a row with the variance
    s² of the targets. The prior's weight falls as 1/n; n counts as at least 50, since more noise would blur what few
    rows say.

    Where errors are large at few rows only, and these had wide intervals, so much noise would spoil the others. It is
    then lowered until the mean log density of rows left out is lower than at σ² by at most half a nat, or by at most
    100 nats divided by the number of rows: the more rows, the better they tell what caution costs.

    Where rows left out lie farther off than their variances say even so, which happens if the GP was fitted to fewer
    rows than these, the noise variance is doubled while that raises their log density. On gas, 5000 rows, with
    hyperparameters of 1000, test rows had 14 nats less without.

    O(n³) time for the rows of the exact GP.

    Args:
        exact: The exact GP of all rows, or of some of them, with its noise as fitted.
        rows: Number n of rows of the fit.

    Returns:
        The noise variance of every output; at least σ².
    """
    n, fitted = max(rows, FEWEST_ROWS), exact.noise_scale().clone()
    errors, variances = exact.left_out()
    least = _log_density(errors, variances) - min(PREMIUM, TOTAL_PREMIUM / rows)
    prior = PRIOR_ROWS * errors.square().mean(0) + UNEXPLAINED_ROWS * exact.Y.var(0, unbiased=False)
    full = ((n * fitted + prior) / (n + PRIOR_ROWS + UNEXPLAINED_ROWS)).maximum(fitted)
    found = _left_out_at(exact, full)
    if bool((_log_density(*found) >= least).all()):
        return _enough(exact, full, *found)
    share = torch.zeros_like(full)  # of the way from fitted to full noise, on a logarithmic scale
    for halving in range(1, HALVINGS + 1):
        farther = share + 0.5**halving
        share = torch.where(_density_at(exact, fitted * (full / fitted) ** farther) >= least, farther, share)
    return fitted * (full / fitted) ** share


def _enough(
    exact: ExactGP, noise: Float[Tensor, " m"], errors: Float[Tensor, "n m"], variances: Float[Tensor, "n m"]
) -> Float[Tensor, " m"]:
    """Return a noise variance, doubled while rows left out are farther off than their variances and gain log density.

    Args:
        exact: The exact GP.
        noise: The noise variance of every output.
        errors: Errors of rows left out, with this noise.
        variances: Their variances.
    """
    density, rises = _log_density(errors, variances), (errors.square() / variances).mean(0) > 1
    for _ in range(DOUBLINGS):
        if not bool(rises.any()):
            break
        more = torch.where(rises, 2 * noise, noise)
        found = _density_at(exact, more)
        rises = rises & (found > density)
        noise, density = torch.where(rises, more, noise), torch.where(rises, found, density)
    return noise


def _density_at(exact: ExactGP, noise: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Return the log density of left-out rows at another noise variance."""
    return _log_density(*_left_out_at(exact, noise))


def _left_out_at(exact: ExactGP, noise: Float[Tensor, " m"]) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
    """Return errors and variances of left-out rows at another noise variance, which stays as it was."""
    before = exact.modules.likelihood.noise.detach().clone()
    exact.modules.likelihood.noise = noise
    found = exact.left_out()
    exact.modules.likelihood.noise = before
    return found


def _log_density(errors: Float[Tensor, "n m"], variances: Float[Tensor, "n m"]) -> Float[Tensor, " m"]:
    """Return the mean log density of errors, but for a constant."""
    return -0.5 * (errors.square() / variances + variances.log()).mean(0)
