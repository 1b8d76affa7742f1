"""Posterior processes, the common form of every fitted model.

A process is its mean and covariance; `conditioning` conditions any process on a few points. Points are located first:
the expensive part, such as their features, is computed once. Means, covariances and cross-covariances then reuse it.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor

from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.moving import Movable


class Located(Movable, ABC):
    """Points with everything the process needs to relate them to other points."""

    mean: Float[Tensor, "*b q"]

    @abstractmethod
    def covariance(self, other: Any) -> Float[Tensor, "*b q r"]:
        """Posterior covariance of these points (rows) with others (columns)."""

    @abstractmethod
    def variance(self) -> Float[Tensor, "*b q"]:
        """Posterior variance of these points; never negative."""

    @abstractmethod
    def join(self, other: Any) -> "Located":
        """These points followed by others, with batch shapes broadcast."""


class PosteriorProcess(Movable, ABC):
    """A Gaussian process posterior over one output. Immutable: conditioning returns a new process."""

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size:
        """Batch shape of the process, which precedes that of the points."""

    @abstractmethod
    def locate(self, X: Float[Tensor, "*b q d"]) -> Located:
        """Prepare points for means and covariances. Differentiable in X."""

    def mean(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
        """Posterior mean."""
        return self.locate(X).mean

    def covariance(
        self, X: Float[Tensor, "*b q d"], Z: Float[Tensor, "*e r d"] | None = None
    ) -> Float[Tensor, "*c q r"]:
        """Posterior covariance of X with Z, or of X with itself."""
        located = self.locate(X)
        return located.covariance(located if Z is None else self.locate(Z))

    def variance(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
        """Posterior variance: the diagonal of the covariance."""
        return self.locate(X).variance()

    def sample(
        self, X: Float[Tensor, "q d"], num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*c q"]:
        """Draw values at q points jointly, with samples as the first dimensions. O(q³)."""
        located = self.locate(X)
        L = cholesky(located.covariance(located), "posterior covariance of the points to sample")
        shape = torch.broadcast_shapes(located.mean.shape, L.shape[:-1])  # values of fantasies are in the mean alone
        z = torch.randn(num_samples, *shape, generator=generator, dtype=L.dtype, device=L.device)
        return located.mean + (L @ z.movedim(0, -1)).movedim(-1, 0)  # one product: by vectors it is 20 times as slow


def join_entries(a: Num[Tensor, "*a i"], b: Num[Tensor, "*b j"]) -> Num[Tensor, "*c k"]:
    """Entries of a followed by entries of b, with batch shapes broadcast."""
    return join_rows(a.unsqueeze(-1), b.unsqueeze(-1)).squeeze(-1)


def join_rows(A: Num[Tensor, "*a i k"], B: Num[Tensor, "*b j k"]) -> Num[Tensor, "*c l k"]:
    """Rows of A followed by rows of B, with batch shapes broadcast."""
    batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return torch.cat([A.expand(*batch, *A.shape[-2:]), B.expand(*batch, *B.shape[-2:])], -2)
