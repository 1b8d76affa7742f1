"""Criteria of outliers: errors with heavy tails, gross ones, and whether Student-t noise explains them."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import Normal, StudentT

from bo_scale.gp.function_space.local_scale import local_scale
from bo_scale.gp.function_space.scaled_by_errors import FEWEST, rows_alone
from bo_scale.gp.student_t import DEGREES, scale_of
from bo_scale.models.choice.kernels import Fit, gaussian_density

MUCH_SMALLER = 0.5
"""Least reduction of the mean absolute error by Student-t noise that explains outliers: its share times its number of
standard errors. From .4 to .6 choices for 477 splits of data sets with 50 to 200 rows, and for 174 functions with noise
of 29 kinds, are about as good, by each half of them; with 1 the error of 46 functions is far too large, not of 29."""
SURELY = 2.0
"""Number of standard errors by which an error is surely smaller."""
VANISHING, PERHAPS = 0.05, 0.5
"""Factor of the median absolute error below which so many standard errors are enough. Where a tenth of 80 rows had the
value -9999 the reduction was .6 standard errors, most of which they are themselves."""
SMALL_MEDIAN = 0.25
"""Factor of the median absolute error below which most errors vanish, and outliers are explained. With gross outliers
it was .03 to .27 where other noise is small, and .3 to 1 on data sets that Student-t noise predicts worse."""
SUSPECT = 6.0
"""Least error of a suspect, in units of the median absolute error."""
FORETELLS = 0.7
"""Factor of a suspect's error below which Gaussian noise foretells it."""
FORETOLD = 0.1
"""Least share of suspects that Gaussian noise foretells where they are values, and not outliers. One half of 200
choices with 300 to 1,000 rows, for 12 functions with 29 kinds of noise and 23 data sets, says the same as the other,
from .05 to .15."""
ONE_SIDED = 1.5
"""Factor of the mean squared error of Gaussian noise above which rows set apart are values. A share ε of outliers, all
on one side, has 1/(1 - ε) times as large a one with Student-t noise, since Gaussian noise shifts the function towards
them; a third of the rows, 1.5. With 1 to 70 planted outliers among 700 rows of 20 data sets it was .8 to 1.04, where
real values were set apart up to 1.8."""
DENSER = 6.0
"""Log density, in nats, by which errors must be more like Student-t variables than Gaussian ones where such noise is
tried. From 5 to 7 the same choices are about as good. The ratio of the root mean square to the median needs a third
more trials for that."""
SURPASSING, IN_TRIAL = 50.0, 0.1
"""Log density of rows left out, in nats, by which Student-t noise surpasses Gaussian noise whose variances errors
nearby scale: of all compared rows, and of each in a trial. Of 77 splits of data sets with 200 and 1,000 rows that had
Student-t noise 34 have less, and gain .14 nats in the mean without it; with 1 to 10 % planted outliers all of 448 have
more. Of 54 unseen problems with 200 rows 12 have less, and gain .66 nats."""
OUTRIGHT = 0.4
"""Log density of each row left out, in nats, by which Student-t noise is taken among few rows also where it does not
surely lower the mean absolute error, to which outliers themselves add most; and by which logarithms of skewed targets
have to surpass it if they have no outliers. With a tenth of 50 rows planted outliers it finds 137 of 184 rather than
80, at .82 of the error in the mean. Of 1,154 unseen problems with 50 rows 8 change, at the same error; without
logarithms 23 would, at 1.05 of it."""
MOSTLY, BEYOND = 1 / 3, 100.0
"""Share of targets from which a value is common, and times the median distance of others from it beyond which they have
outliers even so. Of a thousand log-normal values with deviation 1.2, the largest is 50 times the median."""
TRIAL_ROWS = 256
"""Maximum number of rows on which Student-t noise is tried first."""
RARE, GROSS = 0.01, 0.4
"""Largest share of rows of gross errors, and least share of the sum of squared errors that they have. If more rows have
them, a sample of `TRIAL_ROWS` has some. With one or four outliers among 700 rows of 20 data sets, those that had .4 to
.5 of it raised errors by a fifth to a factor of two where no trial was made, in either half of the sets."""
FEW = 3
"""Number of rows of gross errors that a sample must have if there are so many: `RARE` of `TRIAL_ROWS`."""


def have_heavy_tails(fit: Fit) -> bool:
    """Return whether errors in units of their deviations are much more like Student-t variables than Gaussian ones.

    Each of the two may have any scale.
    """
    z = (fit.errors / fit.deviations).flatten().double()
    square = z.square().mean() if len(z) else torch.zeros(())
    if not square > 0:  # of a fit that failed, or without errors
        return False
    gaussian = Normal(0.0, square.sqrt()).log_prob(z).sum()
    heavy = [StudentT(degrees, 0.0, scale_of(z, degrees)).log_prob(z).sum() for degrees in DEGREES]
    return bool(max(heavy) - gaussian > DENSER)


def scaled_nearby(fit: Fit) -> Fit:
    """Return a fit with Gaussian noise whose deviations errors of left-out rows nearby scale, as `choose` does later.

    Rows with errors that differ from place to place look like outliers, and are none.
    """
    rows = rows_alone(fit.inputs)
    if len(fit.inputs) < FEWEST or 2 * len(rows) < len(fit.inputs):
        return fit
    inputs, squares = fit.inputs[rows], (fit.errors / fit.deviations).flatten()[rows].square()
    scale = local_scale(inputs, torch.ones_like(inputs[0]), squares)
    if scale is None:
        return fit
    deviations = fit.deviations.clone()
    deviations[rows] *= scale.left_out(inputs).sqrt().unsqueeze(-1)
    return replace(fit, deviations=deviations, density=gaussian_density(fit.errors, deviations**2).mean().item())


def surpasses(heavy: Fit, gaussian: Fit, nats: float) -> bool:
    """Return whether rows left out are likelier with Student-t noise by so many nats; True if rows are few.

    Args:
        heavy: A fit with Student-t noise.
        gaussian: The one with Gaussian noise of the same rows, `scaled_nearby`.
        nats: The nats of all rows.
    """
    rows = len(gaussian.errors)
    return rows < FEWEST or rows * (heavy.density - gaussian.density) > nats


def is_far_likelier(heavy: Fit, gaussian: Fit) -> bool:
    """Return whether each row left out is likelier with Student-t noise by `OUTRIGHT` nats in the mean."""
    return heavy.density - gaussian.density > OUTRIGHT


def gross_rows(errors: Tensor, total: int) -> Tensor:
    """Return the rows of the largest errors, at most `FEW`, if few rows have `GROSS` of the sum of squares.

    One value of -99 among 400 has nearly all of it, and makes Gaussian noise as large as the function. A sample of some
    rows may lack it, and Student-t noise would then seem of no use.

    Args:
        errors: Errors `k × 1` of some rows, with all the largest.
        total: Number n of all rows. Others have errors like most of these.

    Returns:
        Places among the k, the largest error first; none if many rows have such errors, or no row has.
    """
    squares = errors.flatten().square()
    most = max(1, int(RARE * len(squares)))
    largest = squares.topk(min(most, len(squares)))
    apart = largest.indices[largest.values > SUSPECT**2 * squares.median()]
    theirs = squares[apart].sum()
    rest = (squares.sum() - theirs) * total / len(squares)
    return apart[:FEW] if theirs > GROSS * (theirs + rest) else apart[:0]


def are_values(Y: Tensor) -> bool:
    """Return whether targets off the one that most rows share are values of it: counts, classes, or not zeros.

    The mean absolute error is least for the median, so that Student-t noise explains all other values as outliers: with
    two values whose probabilities vary smoothly, it predicted the likelier one everywhere. Single rows, and values such
    as -9999, far beyond most that are not the common one, are outliers even so.

    Args:
        Y: Targets `n × 1`.
    """
    values, counts = Y.unique(return_counts=True)
    away = (Y - values[counts.argmax()]).abs()
    others = away[away > 0]
    if counts.max() < MOSTLY * len(Y) or len(others) <= max(FEW, RARE * len(Y)):
        return False
    return bool(others.max() <= BEYOND * others.median())


def explains_outliers(heavy: Fit, gaussian: Fit) -> bool:
    """Return whether Student-t noise lowers errors, and not only their density.

    Noise that differs from place to place, or values that only few rows foretell, have a higher density with Student-t
    noise, which ignores those rows: on five of ten data sets it predicted worse. With outliers most other errors become
    smaller, and their mean absolute value tells. Gaussian noise shifts the function towards outliers by their share of
    rows: a share ε, off by s, has mean absolute errors of 2ε(1 - ε)s with that shift and εs without. Mean squares need
    not tell, since outliers on one side have ε(1 - ε)s² with it and εs² without.
    """
    smaller, share = _reduction(heavy, gaussian)
    if _most_vanish(heavy, gaussian, VANISHING):
        return smaller > PERHAPS
    return smaller > 0 and smaller * share > MUCH_SMALLER  # both are negative where errors rise


def may_be_chosen(heavy: Fit, gaussian: Fit, best: Fit, explained: bool) -> bool:
    """Return whether Student-t noise surely lowers the mean absolute error of the best fit with Gaussian noise.

    If its mean squared error is half as large again, rows that it sets apart are values. Among many rows any difference
    is sure, also where Student-t noise sets rows apart that others foretell. There the errors of most rows must vanish,
    or hardly a suspect be foretold by Gaussian noise, or, if the trial explained outliers, the mean squared error be
    surely lower than that of Gaussian noise with the same kernel, and not clearly above the best.

    Args:
        heavy: A fit with Student-t noise.
        gaussian: The fit of the same kernel with Gaussian noise.
        best: The best fit with Gaussian noise.
        explained: Whether the trial explained outliers.
    """
    if not is_surely_smaller(heavy, best) or _sets_values_apart(heavy, best):
        return False
    few = heavy.errors.numel() <= TRIAL_ROWS
    if few or _most_vanish(heavy, best) or _share_foretold(heavy, best) < FORETOLD:
        return True
    return explained and _squares(heavy, gaussian) < -SURELY and _squares(heavy, best) < 1


def may_be_chosen_outright(heavy: Fit, best: Fit) -> bool:
    """Return whether few rows are far likelier with Student-t noise, and it sets no values apart."""
    return is_far_likelier(heavy, best) and not _sets_values_apart(heavy, best)


def _sets_values_apart(heavy: Fit, best: Fit) -> bool:
    return _mean_square(heavy) > ONE_SIDED * _mean_square(best)


def is_surely_smaller(heavy: Fit, other: Fit) -> bool:
    """Return whether the mean absolute error is surely smaller than another fit's.

    Where nearly all errors vanish, half a standard error is enough: the largest are those of the outliers themselves.
    """
    enough = PERHAPS if _most_vanish(heavy, other, VANISHING) else SURELY
    return _reduction(heavy, other)[0] > enough


def _most_vanish(heavy: Fit, other: Fit, factor: float = SMALL_MEDIAN) -> bool:
    """Return whether the median absolute error is below a factor of another fit's; False if a fit failed."""
    return bool(heavy.errors.abs().median() < factor * other.errors.abs().median())


def _share_foretold(heavy: Fit, other: Fit) -> float:
    """Return the share of suspects, rows far off with Student-t noise, whose error is clearly smaller with another.

    It is 0 if there are none.
    """
    ours, theirs = heavy.errors.abs(), other.errors.abs()
    suspects = ours > SUSPECT * ours.median()
    return (theirs < FORETELLS * ours)[suspects].double().mean().item() if suspects.any() else 0.0


def _mean_square(fit: Fit) -> float:
    return fit.errors.square().mean().item()


def _squares(fit: Fit, other: Fit) -> float:
    """Return the difference of mean squared errors in units of its standard error; inf if a fit failed."""
    failed = fit.score.failure or other.score.failure
    return math.inf if failed else _deviations(fit.errors.square() - other.errors.square())


def _reduction(fit: Fit, other: Fit) -> tuple[float, float]:
    """Return how much smaller the mean absolute error of a fit is than another's.

    Returns:
        The difference in units of its standard error, -inf if a fit failed, and its share of the other.
    """
    if fit.score.failure or other.score.failure:
        return -math.inf, 0.0
    ours, theirs = fit.errors.abs(), other.errors.abs()
    return _deviations(theirs - ours), (1 - ours.mean() / theirs.mean().clamp_min(1e-300)).item()


def _deviations(values: Tensor) -> float:
    """Return the mean of values in units of its standard error."""
    return (values.mean() / (values.std() / values.numel() ** 0.5).clamp_min(1e-300)).item()
