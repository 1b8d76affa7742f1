"""Models whose data enter as additive statistics of a feature map."""

from abc import abstractmethod
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import Standardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.features.base import FeatureMap
from bo_scale.models.base import ScalableModel
from bo_scale.models.modules import clone_module
from bo_scale.models.rows import Rows
from bo_scale.posterior import PosteriorProcess, WeightSpacePosterior, log_density, log_evidence
from bo_scale.statistics import SufficientStatistics

FEW = 4
"""With at most p over this many observations, n×n matrices are the cheaper way to evidence and posterior."""


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
        features = [self._feature_map(j) for j in range(self._num_outputs)]
        few = self._few_rows()
        if few is not None:
            X, Y, D = few
            return torch.stack(
                [
                    log_density(phi.prior_covariance(X), Y[:, j], D[:, j], noise[j], constants[j])
                    for j, phi in enumerate(features)
                ]
            )
        return torch.stack(
            [
                log_evidence(phi.prior_root(), self._statistics_of(j), noise[j], constants[j])
                for j, phi in enumerate(features)
            ]
        )

    @override
    def _build_processes(self) -> list[PosteriorProcess]:
        noise, constants = self._inference_noise().clone(), self._constants().clone()
        features = [self._feature_map(j, frozen=True) for j in range(self._num_outputs)]
        few = self._few_rows()
        if few is not None:
            X, Y, D = few
            priors = [WeightSpacePosterior.prior(phi, constants[j]) for j, phi in enumerate(features)]
            return [prior.update(prior.locate(X), Y[:, j], noise[j] * D[:, j]) for j, prior in enumerate(priors)]
        return [
            WeightSpacePosterior.from_statistics(phi, self._statistics_of(j), noise[j], constants[j])
            for j, phi in enumerate(features)
        ]

    def _few_rows(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"]] | None:
        """Transformed inputs, targets and D, where there are so few that n×n matrices are the cheaper ones."""
        rows = self._rows
        if rows is None or rows.count == 0 or rows.count > self._feature_map(0).num_features // FEW:
            return None
        X = rows.X if not hasattr(self, "input_transform") else self.input_transform.preprocess_transform(rows.X)
        return X.to(torch.float64), rows.Y.to(torch.float64), rows.D.to(torch.float64)

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

    def restandardised(self, means: Float[Tensor, "1 m"], stdvs: Float[Tensor, "1 m"]) -> "WeightSpaceModel":
        """The same data and hyperparameters with targets standardised anew: (y − means)/stdvs. Free of n but for rows.

        Statistics change affinely and exactly. What a fit after many new observations wants: priors and starting values
        are meant for standardised targets.

        Args:
            means: Of the raw targets.
            stdvs: Their standard deviations.

        Raises:
            UnsupportedError: if the outcome transform is not a Standardize of all outputs, or there are fantasies.
        """
        old = getattr(self, "outcome_transform", None)
        if type(old) is not Standardize or old._outputs is not None or self._fantasies is not None:
            raise UnsupportedError("restandardised: needs an outcome_transform of Standardize, and no fantasies.")
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        child, m = clone_module(self), self._num_outputs
        scale = (old.stdvs / stdvs).to(torch.float64).reshape(m)
        offset = ((old.means - means) / stdvs).to(torch.float64).reshape(m)
        if known and len(self.statistics) == 1 and m > 1 and not bool((scale == scale[0]).all()):
            child._stats = tuple(self.statistics[0].outputs([j]) for j in range(m))
        groups: list[Any] = list(range(m)) if len(child.statistics) == m else [slice(None)]
        child._stats = tuple(
            stats.affine(scale[j].reshape(-1), offset[j].reshape(-1), scale[j].square().max().item() if known else 1.0)
            for j, stats in zip(groups, child.statistics, strict=True)
        )
        child.outcome_transform.means = means.to(old.means)
        child.outcome_transform.stdvs = stdvs.to(old.stdvs)
        child.outcome_transform._stdvs_sq = stdvs.to(old.stdvs).square()
        if self._rows is not None:
            Y, D = self._rows.Y * scale.to(self._rows.Y) + offset.to(self._rows.Y), self._rows.D
            child._rows = self._rows.with_targets(Y, D * scale.square().to(D) if known else D)
        if known:
            child.likelihood.noise_covar.rows = child._rows
            child._set_mean_noise()
        child._processes = None
        return child

    def _current_weight_space(self) -> list[WeightSpacePosterior]:
        """The posterior of every output of a model without fantasies."""
        return [process for process in self._current_processes() if isinstance(process, WeightSpacePosterior)]

    def _restore(
        self,
        state: dict[str, Tensor],
        rows: Rows | None,
        statistics: list[dict[str, Tensor | int]],
        posterior: list[dict[str, Tensor]],
    ) -> None:
        """Become a saved model: hyperparameters, rows, statistics and posterior."""
        torch.nn.Module.load_state_dict(self, state)
        self._rows = rows
        empty = SufficientStatistics.empty(self._feature_map(0), self._num_outputs // len(statistics), self._device)
        self._stats = tuple(empty.restored(saved) for saved in statistics)
        self._processes = [
            WeightSpacePosterior(self._feature_map(j, frozen=True), **saved) for j, saved in enumerate(posterior)
        ]
        self._fingerprint = self._hyperparameters()
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
