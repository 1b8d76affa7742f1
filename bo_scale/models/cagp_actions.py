"""Policies for the actions of a computation-aware GP: which rows share an action, and what becomes of later rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.function_space.actions import (
    Actions,
    BlockActions,
    Blocks,
    DenseActions,
    bisection,
    conjugate_gradient_actions,
    lexicographic,
    nearest,
)
from bo_scale.gp.function_space.observations import Observations

Policy = Literal["learned", "cg"]

SPREAD = 0.05
"""Standard deviation of the initial entries about 1. With equal entries, coincident points get equal gradients."""
UNEVEN = 2.0
"""Size of the largest block, relative to the mean, beyond which later rows cause new blocks."""
COARSE = 4.0
"""Ratio of neighbouring units in which blocks are made."""
CG_TOLERANCE = 1e-4
"""Relative residual at which conjugate gradients stop adding actions."""
EXACT_ROWS = 4096
"""Number of rows up to which every row has its own action if no number of actions is asked for: a Cholesky
factorisation then takes no longer than the actions, and they would only widen intervals."""
ACTIONS = 512
"""Number of actions beyond, if none is asked for."""
CG_ROUNDS = 3
"""Runs of L-BFGS; CG actions are recomputed before each."""


@dataclass(frozen=True)
class Shares:
    """Sparse actions of every output: each row that has joined belongs to exactly one.

    Attributes:
        labels: Index of each row's action.
        entries: Entry of S for each row, of any scale.
        fitted: Number of first rows that were in the last fit.
    """

    labels: Int[Tensor, "m n"]
    entries: Float[Tensor, "m n"]
    fitted: int

    @classmethod
    def units(cls, m: int, n: int, device: torch.device) -> "Shares":
        """Return one action for each of n rows: the exact GP."""
        labels = torch.arange(n, device=device).expand(m, n)
        return cls(labels, torch.ones(m, n, dtype=torch.float64, device=device), n)

    @property
    def joined(self) -> int:
        """The number of rows that have joined."""
        return self.labels.shape[-1]

    @property
    def count(self) -> int:
        """The number of actions."""
        return int(self.labels.max()) + 1 if self.joined > 0 else 0

    @property
    def are_units(self) -> bool:
        """Whether no two rows share an action."""
        return self.count == self.joined

    def of_last_fit(self) -> "Shares":
        """Return the shares of the rows in the last fit."""
        return Shares(self.labels[:, : self.fitted], self.entries[:, : self.fitted], self.fitted)

    def followed_by(self, labels: Int[Tensor, "m q"], entries: Float[Tensor, "m q"]) -> "Shares":
        """Return these shares and those of q more rows, which were not in the last fit."""
        return replace(
            self, labels=torch.cat([self.labels, labels], -1), entries=torch.cat([self.entries, entries], -1)
        )

    def outputs(self, indices: list[int]) -> "Shares":
        """Return the shares of some outputs."""
        return Shares(self.labels[indices], self.entries[indices], self.fitted)

    def actions(self, output: int, seen: Observations) -> BlockActions:
        """Return S of one output, differentiable in its entries; rows that have not joined get one action each."""
        units = torch.arange(len(seen.X) - self.joined, device=seen.X.device)
        labels = torch.cat([self.labels[output], self.count + units])
        entries = torch.cat([self.entries[output], torch.ones_like(units).to(seen.X)])
        return BlockActions.of(seen.X, entries, seen.noise, Blocks.of(labels))


@dataclass(frozen=True)
class ActionPolicy(ABC):
    """A rule for the actions of a model.

    Attributes:
        num_actions: Number of actions of all rows in a fit.
        exact_rows: Number of rows up to which each has its own action.
        max_unit_actions: Number of later rows that may have an action each before they are merged.
    """

    name: ClassVar[Policy]
    rounds: ClassVar[int] = 1
    """Runs of L-BFGS in a fit, each on actions that are `fixed` before it."""
    num_actions: int
    exact_rows: int
    max_unit_actions: int

    @abstractmethod
    def made(self, every: Sequence[Observations]) -> Shares:
        """Return new shares of all rows, with nothing learned yet.

        Args:
            every: All observations of every output.
        """

    def continued(self, every: Sequence[Observations], shares: Shares) -> Shares:
        """Return shares of all rows for another fit; unless overridden, new ones."""
        return self.made(every)

    def merged(self, every: Sequence[Observations], shares: Shares) -> Shares:
        """Return shares of all rows in which later ones have few actions; unless overridden, new ones."""
        return self.made(every)

    def count(self, shares: Shares) -> int:
        """Return the number of actions of the rows that have joined."""
        return shares.count

    def actions(self, output: int, seen: Observations, shares: Shares) -> Actions:
        """Return S of one output for its first rows; rows that have not joined get one action each."""
        return shares.actions(output, seen)

    def fixed(self, every: Sequence[Observations]) -> "ActionPolicy":
        """Return the policy with actions that do not follow the hyperparameters: L-BFGS needs a fixed function."""
        return self


@dataclass(frozen=True)
class LearnedActions(ActionPolicy):
    """Blocks of nearby rows, whose entries are learned with the hyperparameters.

    Attributes:
        seed: Seed for the initial entries.
    """

    name = "learned"
    seed: int

    @override
    def made(self, every: Sequence[Observations]) -> Shares:
        m, n, device = len(every), len(every[0].X), every[0].X.device
        if n <= self.exact_rows:
            return Shares.units(m, n, device)
        noise = torch.randn(n, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64).to(device)
        entries = torch.empty_like(noise).scatter(0, lexicographic(every[0].X), 1 + SPREAD * noise)
        return Shares(_blocks(every, self.num_actions), entries.expand(m, n), n)

    @override
    def continued(self, every: Sequence[Observations], shares: Shares) -> Shares:
        """Let later rows join their nearest neighbours' actions, with the same entries; make uneven blocks anew."""
        kept, n = shares.of_last_fit(), len(every[0].X)
        if shares.are_units or kept.count != self.num_actions:
            return self.made(every)
        places = [seen.scaled() for seen in every]
        neighbours = torch.stack([nearest(Z[kept.joined :], Z[: kept.joined]) for Z in places])
        grown = kept.followed_by(kept.labels.gather(-1, neighbours), kept.entries.gather(-1, neighbours))
        uneven = max(int(each.bincount().max()) for each in grown.labels) > UNEVEN * n / self.num_actions
        return Shares(_blocks(every, self.num_actions) if uneven else grown.labels, grown.entries, n)

    @override
    def merged(self, every: Sequence[Observations], shares: Shares) -> Shares:
        """Merge later rows into blocks of nearby ones, half as many as `max_unit_actions`.

        Entries are 1/d for relative noise d, so merging rows at the same point loses nothing.
        """
        kept = shares.of_last_fit()
        later = [seen.part(slice(kept.joined, None)) for seen in every]
        labels = kept.count + _blocks(later, max(1, self.max_unit_actions // 2))
        return kept.followed_by(labels, torch.stack([1 / seen.relative for seen in later]))


@dataclass(frozen=True)
class CGActions(ActionPolicy):
    """Residuals of conjugate gradients at the current hyperparameters, over all rows that have joined.

    Attributes:
        directions: Orthonormal directions of every output, if they are fixed.
    """

    name = "cg"
    rounds = CG_ROUNDS
    directions: tuple[Float[Tensor, "n _"], ...] | None = None

    @override
    def made(self, every: Sequence[Observations]) -> Shares:
        return Shares.units(len(every), len(every[0].X), every[0].X.device)

    @override
    def count(self, shares: Shares) -> int:
        return shares.count if shares.joined <= self.exact_rows else min(shares.count, self.num_actions)

    @override
    def actions(self, output: int, seen: Observations, shares: Shares) -> Actions:
        """Return S, with a gradient towards the noise alone. As many products with K as actions, unless fixed."""
        if shares.joined <= self.exact_rows:
            return shares.actions(output, seen)
        Q = self._found(seen.part(slice(shares.joined))) if self.directions is None else self.directions[output]
        whole = torch.block_diag(Q, torch.eye(len(seen.X) - len(Q), dtype=Q.dtype, device=Q.device))
        return DenseActions(seen.X, seen.noise.rsqrt().unsqueeze(-1) * whole)

    @override
    def fixed(self, every: Sequence[Observations]) -> "CGActions":
        return replace(self, directions=tuple(self._found(seen) for seen in every))

    @torch.no_grad()
    def _found(self, seen: Observations) -> Float[Tensor, "n i"]:
        return conjugate_gradient_actions(
            seen.kernel, seen.X, seen.residual, seen.noise, self.num_actions, CG_TOLERANCE
        )


def policy_named(name: Policy, num_actions: int | None, max_unit_actions: int, seed: int) -> ActionPolicy:
    """Return a policy by its name; with None for the number of actions, every row has one as long as that is cheap."""
    sizes = (ACTIONS, EXACT_ROWS) if num_actions is None else (num_actions, num_actions)
    return CGActions(*sizes, max_unit_actions) if name == "cg" else LearnedActions(*sizes, max_unit_actions, seed)


def _blocks(every: Sequence[Observations], count: int) -> Int[Tensor, "m n"]:
    """Return blocks of nearby rows for every output."""
    return torch.stack([bisection(_in_coarse_units(seen.scaled()), count) for seen in every])


def _in_coarse_units(Z: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return inputs in units of lengthscales, rounded so that the extents of two columns differ by a power of 4.

    Lengthscales that differ a little, as after another fit or in another precision, give the same blocks.
    """
    extent = Z.amax(0) - Z.amin(0)
    extent = torch.where(extent > 0, extent, 1.0)
    relative = extent.log() - extent.log().mean()
    return Z / extent * COARSE ** (relative / math.log(COARSE)).round()
