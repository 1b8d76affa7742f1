"""Models whose data enter as additive statistics of a feature map."""

from abc import abstractmethod

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.features.base import FeatureMap
from bo_scale.models.base import ScalableModel
from bo_scale.models.rows import Rows
from bo_scale.posterior import PosteriorProcess, WeightSpacePosterior, log_evidence
from bo_scale.statistics import SufficientStatistics


class WeightSpaceModel(ScalableModel):
    """f(x) = μ + φ(x)ᵀw, with φ free of hyperparameters: fitting never passes over the data again. Abstract."""

    _stats: tuple[SufficientStatistics, ...] | None = None

    @abstractmethod
    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        """φ and the prior root of one output; φ is the same for all outputs.

        Frozen, they stay as the hyperparameters are now, with no graph to them.
        """

    @property
    def statistics(self) -> tuple[SufficientStatistics, ...]:
        """The sufficient statistics: of all outputs together where their noise is shared, else of one output each."""
        if self._stats is None:
            assert self._rows is not None, "a model without rows keeps its statistics"
            with torch.no_grad():
                X = self._rows.X
                X = self.input_transform.preprocess_transform(X) if hasattr(self, "input_transform") else X
                self._stats = self._accumulate(X.to(torch.float64), self._rows.Y, self._rows.D, None)
        return self._stats

    @property
    @override
    def num_observations(self) -> int:
        """Observations in the statistics."""
        return self.statistics[0].count

    def _accumulate(
        self, X: Tensor, Y: Tensor, D: Tensor, start: tuple[SufficientStatistics, ...] | None
    ) -> tuple[SufficientStatistics, ...]:
        """Statistics of rows, on top of those there are; one Gram matrix only where all outputs share their noise."""
        m, features = self._num_outputs, self._feature_map(0)
        shared = m == 1 or bool((D[:, :1] == D).all())
        if start is None:
            groups = 1 if shared else m
            start = (SufficientStatistics.empty(features, m // groups, X.device),) * groups
        elif not shared and len(start) == 1:
            start = tuple(start[0].outputs([j]) for j in range(m))
        if len(start) == 1:
            return (start[0].observe(features, X, Y, D[:, 0]),)
        return tuple(stats.observe(features, X, Y[:, j : j + 1], D[:, j]) for j, stats in enumerate(start))

    def _statistics_of(self, output: int) -> SufficientStatistics:
        stats = self.statistics
        if len(stats) > 1:
            return stats[output]
        return stats[0] if self._num_outputs == 1 else stats[0].outputs([output])

    @override
    def _log_evidence(self) -> Float[Tensor, " m"]:
        noise, constants = self._inference_noise(), self._constants()
        return torch.stack(
            [
                log_evidence(self._feature_map(j).prior_root(), self._statistics_of(j), noise[j], constants[j])
                for j in range(self._num_outputs)
            ]
        )

    @override
    def _build_processes(self) -> list[PosteriorProcess]:
        noise, constants = self._inference_noise().clone(), self._constants().clone()
        return [
            WeightSpacePosterior.from_statistics(
                self._feature_map(j, frozen=True), self._statistics_of(j), noise[j], constants[j]
            )
            for j in range(self._num_outputs)
        ]

    @override
    def _absorb(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> None:
        before = self._inference_noise()
        self._stats = self._accumulate(X, Y, D, self.statistics)
        if self._rows is None:
            self._set_mean_noise()
        noise = self._inference_noise()
        if not torch.allclose(before, noise, rtol=1e-12, atol=0.0):  # known variances with a share of error counted in
            self._processes = None
        processes: list[PosteriorProcess] = []
        for j, process in enumerate(self._processes or []):
            assert isinstance(process, WeightSpacePosterior)
            if len(X) > process.root.shape[-1] // 2:  # one factorisation is cheaper than that many columns
                self._processes = None
                return
            processes.append(process.update(process.locate(X), Y[:, j], noise[j] * D[:, j]))
        self._processes = processes or None

    def _set_mean_noise(self) -> None:
        """For a fixed-noise model that keeps no rows."""
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            means = [self._statistics_of(j).noise_sum / self.num_observations for j in range(self._num_outputs)]
            mean = torch.stack(means).unsqueeze(-1).to(self._dtype)
            self.likelihood.noise_covar.mean = mean.squeeze(0) if self._num_outputs == 1 else mean

    def _drop_rows(self) -> None:
        """Keep the statistics alone."""
        _ = self.statistics
        self._rows = None
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            self.likelihood.noise_covar.rows = None
            self._set_mean_noise()

    def _restore(self, state: dict[str, Tensor], rows: Rows | None, statistics: list[dict[str, Tensor | int]]) -> None:
        """Become a saved model: hyperparameters, rows and statistics."""
        torch.nn.Module.load_state_dict(self, state)
        self._rows = rows
        empty = SufficientStatistics.empty(self._feature_map(0), self._num_outputs // len(statistics), self._device)
        self._stats = tuple(empty.restored(saved) for saved in statistics)
        self._processes = None
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            self.likelihood.noise_covar.rows = rows
            self._set_mean_noise()

    @override
    def _forget_data(self) -> None:
        self._stats = None
        self._processes = None

    @override
    def _move(self, device: torch.device) -> None:
        if self._stats is not None:
            self._stats = tuple(stats.to(device) for stats in self._stats)

    @override
    def _subset_derived(self, outputs: list[int]) -> None:
        if self._stats is None:
            return
        whole = len(self._stats) == 1
        self._stats = (self._stats[0].outputs(outputs),) if whole else tuple(self._stats[j] for j in outputs)
        if self._rows is None:
            self._set_mean_noise()
