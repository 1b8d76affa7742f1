"""Sites chosen so that the integrated variance falls most: with WISKI here, with an exact GP in `exact_design`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import qNegIntegratedPosteriorVariance

GROWTH = 1.25
"""Hyperparameters are fitted again when there are so many times the observations of the last fit."""
WARM_START = 200
"""Fits with fewer observations start from the default hyperparameters, others from the last ones."""


class Design(ABC):
    """Sites chosen greedily from a pool, and the model of what was measured there. Abstract.

    Args:
        build: Makes a model from inputs `n × d` and observations `n × 1`.
        pool: Candidates `N × d`.
        test: Integration points `M × d`, where predictions are asked for too.
        X: First inputs `n × d`.
        Y: First observations `n × 1`.
    """

    def __init__(
        self, build: Callable[[Tensor, Tensor], Any], pool: Tensor, test: Tensor, X: Tensor, Y: Tensor
    ) -> None:
        self.build, self.pool, self.test, self.X, self.Y = build, pool, test, X, Y
        self.open = torch.ones(len(pool), dtype=torch.bool)
        self.model: Any = None
        self.refit()

    def refit(self) -> None:
        """Fit the hyperparameters to all that was observed, standardised anew."""
        model = self.build(self.X, self.Y)
        if len(self.X) >= WARM_START:
            for part in ("mean_module", "covar_module", "likelihood"):
                getattr(model, part).load_state_dict(getattr(self.model, part).state_dict())
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        self.model, self._fitted = model.eval(), len(self.X)
        with torch.no_grad():
            self._prepare()

    @property
    def due(self) -> bool:
        """Whether it is time to refit."""
        return len(self.X) >= GROWTH * self._fitted

    def choose(self, q: int) -> list[int]:
        """Row numbers of q sites of the pool that were not chosen before."""
        chosen: list[int] = []
        with torch.no_grad():
            self._begin_batch()
            for _ in range(q):
                chosen.append(self._choose_one(chosen))
                self.open[chosen[-1]] = False
        return chosen

    def observe(self, sites: list[int], Y: Tensor) -> None:
        """Condition on what was measured `q × 1` at sites just chosen."""
        self.X, self.Y = torch.cat([self.X, self.pool[sites]]), torch.cat([self.Y, Y])
        with torch.no_grad():
            self._condition(sites, Y)

    @abstractmethod
    def predict(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of a measurement at the integration points: `M` each, in raw units."""

    @abstractmethod
    def _prepare(self) -> None:
        """Whatever follows from new hyperparameters."""

    @abstractmethod
    def _begin_batch(self) -> None:
        """Whatever a batch needs once."""

    @abstractmethod
    def _choose_one(self, pending: list[int]) -> int:
        """The best site given those of this batch chosen before."""

    @abstractmethod
    def _condition(self, sites: list[int], Y: Tensor) -> None:
        """Condition the model."""


class WISKIDesign(Design):
    """`qNegIntegratedPosteriorVariance` with pending points, scored lazily.

    A candidate gains less and less as sites near it are measured, so that its last known gain bounds it: only those of
    the largest bounds are scored anew, until the best of them is above all other bounds.
    """

    CHUNK = 512

    @torch.no_grad()
    def predict(self) -> tuple[Tensor, Tensor]:
        """See Design."""
        posterior = self.model.posterior(self.test.unsqueeze(1), observation_noise=True)
        return posterior.mean.reshape(-1), posterior.variance.reshape(-1)

    def _prepare(self) -> None:
        self._begin_batch()
        self._value = -self.model.posterior(self.test.unsqueeze(1)).variance.mean()
        self._bounds = self._acquisition(self.pool.unsqueeze(1)) - self._value

    def _begin_batch(self) -> None:
        self._acquisition = qNegIntegratedPosteriorVariance(self.model, mc_points=self.test)

    def _choose_one(self, pending: list[int]) -> int:
        self._acquisition.set_X_pending(self.pool[pending] if pending else None)
        stale = self.open.clone()
        while True:
            top = torch.where(stale, self._bounds, -torch.inf).topk(min(self.CHUNK, int(stale.sum()))).indices
            self._bounds[top] = self._acquisition(self.pool[top].unsqueeze(1)) - self._value
            stale[top] = False
            best = int(torch.where(self.open & ~stale, self._bounds, -torch.inf).argmax())
            if not stale.any() or self._bounds[best] >= self._bounds[stale].max():
                self._value = self._value + self._bounds[best]
                return best

    def _condition(self, sites: list[int], Y: Tensor) -> None:
        self.model = self.model.condition_on_observations(self.pool[sites], Y)
