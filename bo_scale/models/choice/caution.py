"""Cautious noise: a noise variance that few rows cannot make too small."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.student_t import expected_precision, log_density, scale_of
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


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of rows that are left out."""

    def left_out(self, exact: ExactGP) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Return errors of rows predicted from the others, and their variances."""
        return exact.left_out()

    def mean_square(self, values: Float[Tensor, "n m"]) -> Float[Tensor, " m"]:
        """Return the variance σ² of the noise that explains some values best."""
        return values.square().mean(0)

    def variance(self, values: Float[Tensor, "n m"]) -> Float[Tensor, " m"]:
        """Return the variance of values about their mean."""
        return values.var(0, unbiased=False)

    def log_density(
        self, errors: Float[Tensor, "n m"], variances: Float[Tensor, "n m"], noise: Float[Tensor, " m"]
    ) -> Float[Tensor, " m"]:
        """Return the mean log density of errors, but for a constant. The noise is a part of the variances."""
        return -0.5 * (errors.square() / variances + variances.log()).mean(0)


@dataclass(frozen=True)
class HeavyTails:
    """Student-t noise of rows that are left out.

    Attributes:
        degrees: Degrees of freedom ν.
        squares: E[(y_i − f(x_i))²] by the fit.
    """

    degrees: float
    squares: Float[Tensor, "n m"]

    def left_out(self, exact: ExactGP) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Return errors of rows predicted from the others, and variances of f plus σ².

        Weights of rows follow the noise variance, so that outliers stay outliers.
        """
        noise = exact.noise_scale()
        weighed = replace(exact, D=1 / expected_precision(self.squares / noise, self.degrees))
        weighed = replace(exact, D=1 / expected_precision(weighed.squared_residuals(), self.degrees))
        errors, of_function = weighed.left_out_function()
        return errors, of_function + noise

    def mean_square(self, values: Float[Tensor, "n m"]) -> Float[Tensor, " m"]:
        """Return the square σ² of the scale of the noise that explains some values best."""
        return torch.stack([scale_of(column, self.degrees) for column in values.unbind(-1)]).square()

    def variance(self, values: Float[Tensor, "n m"]) -> Float[Tensor, " m"]:
        """Return the mean square of values about their median, with outliers left out of account."""
        return self.mean_square(values - values.median(0).values)

    def log_density(
        self, errors: Float[Tensor, "n m"], variances: Float[Tensor, "n m"], noise: Float[Tensor, " m"]
    ) -> Float[Tensor, " m"]:
        """Return the mean log density of errors."""
        columns = zip(errors.unbind(-1), (variances - noise).unbind(-1), noise.tolist(), strict=True)
        return torch.stack([log_density(e, v, square, self.degrees).mean() for e, v, square in columns])


Noise = GaussianNoise | HeavyTails
"""A kind of noise."""


def cautious_noise(exact: ExactGP, rows: int, degrees: float | None = None) -> Float[Tensor, " m"]:
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

    The squares of Student-t noise are those of its scale σ. Values have the square with which they are likeliest, in
    which outliers hardly count.

    O(n³) time for the rows of the exact GP.

    Args:
        exact: The exact GP of all rows, or of some of them, with its noise as fitted.
        rows: Number n of rows of the fit.
        degrees: Degrees of freedom of Student-t noise, of which the relative noise variances of the exact GP are; None
            for Gaussian noise.

    Returns:
        The noise variance of every output; at least σ².
    """
    n, fitted = max(rows, FEWEST_ROWS), exact.noise_scale().clone()
    noise: Noise = GaussianNoise()
    if degrees is not None:
        noise = HeavyTails(degrees, exact.squared_residuals() * fitted)
    errors, variances = noise.left_out(exact)
    least = noise.log_density(errors, variances, fitted) - min(PREMIUM, TOTAL_PREMIUM / rows)
    prior = PRIOR_ROWS * noise.mean_square(errors) + UNEXPLAINED_ROWS * noise.variance(exact.Y)
    full = ((n * fitted + prior) / (n + PRIOR_ROWS + UNEXPLAINED_ROWS)).maximum(fitted)
    found = _left_out_at(exact, full, noise)
    if bool((noise.log_density(*found, full) >= least).all()):
        return _enough(exact, full, noise, *found)
    share = torch.zeros_like(full)  # of the way from fitted to full noise, on a logarithmic scale
    for halving in range(1, HALVINGS + 1):
        farther = share + 0.5**halving
        density = _density_at(exact, fitted * (full / fitted) ** farther, noise)
        share = torch.where(density >= least, farther, share)
    return fitted * (full / fitted) ** share


def _enough(
    exact: ExactGP,
    variance: Float[Tensor, " m"],
    noise: Noise,
    errors: Float[Tensor, "n m"],
    variances: Float[Tensor, "n m"],
) -> Float[Tensor, " m"]:
    """Return a noise variance, doubled while rows left out are farther off than their variances and gain log density.

    Args:
        exact: The exact GP.
        variance: The noise variance of every output.
        noise: The kind of noise.
        errors: Errors of rows left out, with this noise variance.
        variances: Their variances.
    """
    density, rises = noise.log_density(errors, variances, variance), noise.mean_square(errors / variances.sqrt()) > 1
    for _ in range(DOUBLINGS):
        if not bool(rises.any()):
            break
        more = torch.where(rises, 2 * variance, variance)
        found = _density_at(exact, more, noise)
        rises = rises & (found > density)
        variance, density = torch.where(rises, more, variance), torch.where(rises, found, density)
    return variance


def _density_at(exact: ExactGP, variance: Float[Tensor, " m"], noise: Noise) -> Float[Tensor, " m"]:
    """Return the log density of left-out rows at another noise variance."""
    return noise.log_density(*_left_out_at(exact, variance, noise), variance)


def _left_out_at(
    exact: ExactGP, variance: Float[Tensor, " m"], noise: Noise
) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
    """Return errors and variances of left-out rows at another noise variance, which stays as it was."""
    before = exact.modules.likelihood.noise.detach().clone()
    exact.modules.likelihood.noise = variance
    found = noise.left_out(exact)
    exact.modules.likelihood.noise = before
    return found
