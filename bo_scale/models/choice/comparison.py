"""Compare kernels of exact GPs, and kinds of noise, on the rows that tell most about them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bo_scale.models.choice.heavy_tails import TRIAL_ROWS, gross_rows
from bo_scale.models.choice.kernels import (
    Data,
    Fit,
    KernelFits,
    best_of,
    not_clearly_worse,
    some_rows,
    while_preferred,
)
from bo_scale.models.choice.outliers import to_the_front, trial, with_student_t
from bo_scale.models.choice.places import places_of
from bo_scale.models.choice.plan import Plan, on_scales
from bo_scale.models.inputs import LogScales

KERNEL_ROWS = 500
"""Maximum number of rows on which kernels are compared."""
OTHER_ROWS = 2000
"""Maximum number of further rows, predicted from those, by which errors of kernels are compared too."""
ROWS_FOR_EACH = 10
"""Least number of rows for each input on a logarithmic scale. With fewer, directions and steepness of all of them can
explain too much: with 50 rows of `keggundirected`, 18 scales made errors of left-out rows a tenth as large, and 4 % of
test rows lay over 100 deviations off rather than 25. With 4, a hundred of `gas` lose .4 nats with 1000 rows."""
NEAREST = 10
"""Number of rows around each gross error that are compared with it."""
MUCH_WORSE = 1.1
"""Error with a shared lengthscale, relative to the best with one for each input, up to which it may be chosen."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of kernels of exact GPs with Gaussian noise.

    Attributes:
        data: All rows.
        kernels, rougher, streams: As for `choose_plan`.
    """

    data: Data
    kernels: tuple[str, ...]
    rougher: float
    streams: bool

    def __call__(self, order: Tensor, log_scales: bool | None = None) -> tuple[KernelFits, Fit]:
        """Compare kernels on the first rows of an order; return all fits and the best.

        Args:
            order: The order.
            log_scales: Whether skewed inputs are on logarithmic scales; None to compare.
        """
        compared = some_rows(self.data, order[:KERNEL_ROWS])
        none = self.streams or len(order) <= KERNEL_ROWS
        others = None if none else some_rows(self.data, self._at_other_places(order[: KERNEL_ROWS + OTHER_ROWS]))
        fit = KernelFits(compared, others, cautious=not self.streams)
        fits = [fit(plan) for plan in on_scales(self.own, bool(log_scales))]
        if log_scales is None and self.has_skewed_inputs(order):
            fits += while_preferred(fit, on_scales(self.own, True), best_of(fits, self.rougher), self.rougher)
        best = best_of(fits, self.rougher)
        if self.shared:
            fits += while_preferred(fit, on_scales(self.shared, best.score.plan.log_scales), best, self.rougher)
        as_good = [fit for fit in fits if fit.rmse <= MUCH_WORSE * best.rmse]
        if not self.streams:
            as_good = not_clearly_worse(as_good)
        return fit, best_of(as_good or fits, self.rougher)  # all, if none could be fitted with separate lengthscales

    def _at_other_places(self, order: Tensor) -> Tensor:
        """Return rows after the compared ones, one at each place where none of these is."""
        first = places_of(self.data[0][order])[1]
        return order[first[first >= KERNEL_ROWS].sort().values]

    def has_skewed_inputs(self, order: Tensor) -> bool:
        """Return whether logarithmic scales are compared. A search has the scales that its parameters say."""
        rows = order[:KERNEL_ROWS]
        scales = 0 if self.streams else len(LogScales(self.data[0][rows]).inputs)
        return 0 < ROWS_FOR_EACH * scales <= len(rows)

    @property
    def own(self) -> list[Plan]:
        """Plans with a lengthscale for each input."""
        return [Plan("exact", name) for name in self.kernels]

    @property
    def shared(self) -> list[Plan]:
        """Plans with a shared one; none if these are not compared."""
        X = self.data[0]
        shares = X.shape[-1] > 1 and len(X) <= KERNEL_ROWS and not self.streams
        return [replace(plan, shared_lengthscale=True) for plan in self.own] if shares else []

    def gross(self, fit: KernelFits, best: Fit, order: Tensor) -> Tensor:
        """Return the places in an order of rows with gross errors, if the compared ones lack any; see `gross_rows`.

        Of many rows it looks at some at random, and at those whose targets are the farthest from their median. O(n).
        """
        Y, places = self.data[1], torch.arange(len(order), device=order.device)
        rest = places[KERNEL_ROWS:]
        if best.score.failure or len(rest) == 0:
            return rest[:0]
        if len(rest) > 2 * OTHER_ROWS:
            away = (Y - Y.median())[order[rest]].flatten().abs()
            rest = to_the_front(away.topk(OTHER_ROWS).indices, rest)[: 2 * OTHER_ROWS]
        errors = fit.errors_of(best, some_rows(self.data, order[rest]))
        found = torch.cat([places[:KERNEL_ROWS], rest])[gross_rows(errors, len(order))]
        return found if bool((found >= KERNEL_ROWS).any()) else found[:0]


def with_heavy_tails(
    comparison: Comparison, order: Tensor, fit: KernelFits, best: Fit, asked: bool
) -> tuple[KernelFits, list[Fit], Fit]:
    """Compare Student-t noise; see `with_student_t`.

    Where gross errors are so rare that the compared rows lack them, kernels are compared again on rows that have them,
    and their nearest rows, which tell a narrow peak from an outlier.

    Returns:
        The fits with Gaussian noise, those with Student-t noise, and the best of all that may be chosen.
    """
    skewed = comparison.has_skewed_inputs(order)
    heavy, chosen = with_student_t(fit, comparison.own, comparison.shared, best, asked, skewed)
    gross = order[:0] if chosen.score.plan.student_t else comparison.gross(fit, best, order)
    if len(gross):
        data = comparison.data
        again = to_the_front(_nearest(data[0][order], gross), order)
        scales = best.score.plan.log_scales  # of which rows with gross errors say nothing
        tried = trial(some_rows(data, again[:TRIAL_ROWS]), {}, log_scales=scales)
        if tried is not None and tried.explained:
            fit_again, best_again = comparison(again, scales)
            heavy_again, chosen_again = with_student_t(
                fit_again, comparison.own, comparison.shared, best_again, asked=False
            )
            if chosen_again.score.plan.student_t:
                return fit_again, heavy_again, chosen_again
    return fit, heavy, chosen


def _nearest(X: Tensor, rows: Tensor) -> Tensor:
    """Return rows, and the `NEAREST` to each of them, in units of the inputs' ranges. O(n d) for each."""
    ranges = X.amax(0) - X.amin(0)
    units = X / torch.where(ranges > 0, ranges, torch.ones_like(ranges))
    nearest = torch.cdist(units[rows], units).topk(min(NEAREST + 1, len(X)), largest=False).indices
    return torch.cat([rows, nearest.flatten()]).unique()
