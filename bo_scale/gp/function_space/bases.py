"""Bases of a decoupled GP: the points of its mean and of its covariance, how they are chosen, and how they grow."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.gp.function_space.process import Kernel, Radial
from bo_scale.gp.moving import Movable

CANDIDATES, GREEDY_ROWS = 20_000, 4096
"""Maximum number of rows to choose points from: for the mean basis, and for the covariance basis."""


@dataclass(frozen=True)
class Bases:
    """The points of mean and covariance.

    Attributes:
        mean: Points that serve the mean alone: α, or a hybrid's α_r.
        covar: β.
        hybrid: Whether β serves the mean too.
    """

    mean: Float[Tensor, "j d"]
    covar: Float[Tensor, "i d"]
    hybrid: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of points that serve the mean alone, and of covariance points."""
        return len(self.mean), len(self.covar)

    @property
    def of_mean(self) -> Float[Tensor, "k d"]:
        """All points of the mean; a hybrid's begin with β."""
        return torch.cat([self.covar, self.mean]) if self.hybrid else self.mean

    def hold(self, X: Float[Tensor, "n d"]) -> bool:
        """Whether every row is a point of both bases."""
        return all(len(without(X, points)) == 0 for points in (self.of_mean, self.covar))

    def frozen(self) -> "Bases":
        """Return the same points in tensors of their own, without gradients."""
        return replace(self, mean=self.mean.detach().clone(), covar=self.covar.detach().clone())


@dataclass(frozen=True)
class Choice:
    """New bases, and what they leave to choose.

    Attributes:
        bases: The points.
        mean_holds: Whether the mean basis holds all rows.
        covar_holds: Whether the covariance basis does.
        mean_moves: Whether moving the points of the mean could improve them.
    """

    bases: Bases
    mean_holds: bool
    covar_holds: bool
    mean_moves: bool


@dataclass(frozen=True)
class BasisRule:
    """A rule by which bases are chosen among rows, and by which they grow.

    Attributes:
        hybrid: Whether covariance points serve the mean too; then no point is in both.
        mean_size: Maximum number of points that serve the mean alone.
        covar_size: Maximum number of covariance points.
        start_size: Maximum number of mean points to start with.
        growth: Number of points N_Δ by which a batch grows a basis.
        seed: Seed for the choice of rows.
    """

    hybrid: bool
    mean_size: int
    covar_size: int
    start_size: int
    growth: int
    seed: int

    def choose(self, X: Float[Tensor, "n d"], kernel: Kernel, kept: Bases | None = None) -> Choice:
        """Choose points: all distinct rows if a basis can hold them, else some of them, spread out for the covariance.

        Args:
            X: Rows.
            kernel: k, by which rows are spread out.
            kept: Bases to keep where they cannot hold all rows, if there are already enough points.
        """
        candidates, complete = self._candidates(X)
        covar_holds = complete and len(candidates) <= self.covar_size
        if covar_holds:
            covar = candidates
        elif kept is not None and len(kept.covar) == self.covar_size:
            covar = kept.covar
        else:
            spread = candidates[:GREEDY_ROWS]
            covar = spread[spread_out(kernel, spread, self.covar_size)]
        others = without(candidates, covar) if self.hybrid else candidates
        size = min(self.mean_size, max(0, self.start_size - (len(covar) if self.hybrid else 0)))
        mean_holds = complete and len(others) <= size
        enough = kept is not None and not mean_holds and len(kept.mean) >= min(size, len(others))
        mean = kept.mean if kept is not None and enough else others[:size]
        return Choice(Bases(mean, covar, self.hybrid), mean_holds, covar_holds, not mean_holds and size > 0)

    def _candidates(self, X: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "k d"], bool]:
        """Return distinct rows among at most 20,000, in random order, and whether these are all."""
        generator = torch.Generator().manual_seed(self.seed)
        chosen = X[torch.randperm(len(X), generator=generator)[:CANDIDATES].to(X.device)].unique(dim=0)
        order = torch.randperm(len(chosen), generator=generator).to(X.device)
        return chosen[order], len(X) <= CANDIDATES

    def grown(self, bases: Bases, X: Float[Tensor, "b d"]) -> Bases:
        """Return bases with points of a batch after their own, at most N_Δ each, until full. [DGP] algorithm 1."""
        own, covar = bases.sizes
        if (own, covar) == (self.mean_size, self.covar_size):
            return bases
        new = without(X, bases.covar)[: self.growth][: self.covar_size - covar]
        wider = replace(bases, covar=torch.cat([bases.covar, new]))
        new = without(X, wider.of_mean)[: self.growth][: self.mean_size - own]
        return replace(wider, mean=torch.cat([bases.mean, new]))


@dataclass(frozen=True)
class KernelSum(Movable):
    """The sum of the kernels of all outputs, used to choose the points they share."""

    kernels: list[Kernel]

    def __call__(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"]) -> Float[Tensor, "*e n r"]:
        """Return K_xz."""
        return torch.stack([kernel(X, Z) for kernel in self.kernels]).sum(0)

    def variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Return k(x, x)."""
        return torch.stack([kernel.variance(X) for kernel in self.kernels]).sum(0)

    def radial(self) -> Radial | None:
        """Return None: a sum is not a scaled radial kernel."""
        return None


# ---------------------------------------------------------------- which rows are points


def positions(points: Float[Tensor, "j d"], X: Float[Tensor, "n d"]) -> Int[Tensor, " n"] | None:
    """Index of the point that each row equals; None if some row equals none. O((n + j) log(n + j))."""
    if len(X) > 0 and len(points) == 0:
        return None
    distinct, inverse = torch.cat([points, X]).unique(dim=0, return_inverse=True)
    if len(distinct) > len(points):
        return None
    where = inverse.new_full((len(distinct),), -1)
    where[inverse[: len(points)]] = torch.arange(len(points), device=X.device)
    index = where[inverse[len(points) :]]
    return index if bool((index >= 0).all()) else None


def without(X: Float[Tensor, "n d"], points: Float[Tensor, "j d"]) -> Float[Tensor, "k d"]:
    """Distinct rows that are not among the points, in order of first appearance."""
    together = torch.cat([points, X])
    _, inverse = together.unique(dim=0, return_inverse=True)
    first = inverse.new_full((int(inverse.max()) + 1 if len(inverse) else 0,), len(together))
    order = torch.arange(len(together), device=X.device)
    first = first.scatter_reduce(0, inverse, order, "amin")
    new = first[inverse] == order
    new[: len(points)] = False
    return together[new]


def spread_out(kernel: Kernel, X: Float[Tensor, "n d"], count: int) -> Int[Tensor, " i"]:
    """Indices of well-spread rows: each has the largest variance given those before; then the first other rows.

    This is a pivoted Cholesky decomposition of K, O(n i²). The chosen points leave little of the prior unexplained.
    """
    variance = kernel.variance(X).clone()
    smallest = 1e-10 * variance.max()
    rows, taken = X.new_zeros(count, len(X)), torch.zeros(len(X), dtype=torch.bool, device=X.device)
    chosen: list[int] = []
    while len(chosen) < min(count, len(X)):
        pivot = int(variance.masked_fill(taken, -math.inf).argmax())
        if variance[pivot] <= smallest:
            break
        done = rows[: len(chosen)]
        row = (kernel(X[[pivot]], X).squeeze(0) - done[:, pivot] @ done) / variance[pivot].sqrt()
        rows[len(chosen)] = row
        variance, taken[pivot] = variance - row.square(), True
        chosen.append(pivot)
    others = (~taken).nonzero().squeeze(-1)[: min(count, len(X)) - len(chosen)]
    return torch.cat([torch.tensor(chosen, dtype=torch.long, device=X.device), others])
