"""Models whose data enter as additive statistics of a feature map."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.conditioning import Conditioned
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.evidence import log_density, log_evidence, log_evidence_of_kernel
from bo_scale.gp.weight_space.feature_gradients import with_gradient
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.posterior import WeightProcess, WeightSpacePosterior
from bo_scale.gp.weight_space.sparse_precision import PrecisionPosterior, log_evidence_of_precision, sparse_prior_of
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.shell.arguments import require_finite, require_row_numbers
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.model import ScalableModel

FEW = 4
"""With at most the prior's rank over this many observations, n×n matrices are the cheaper way to the evidence."""


OLDEST = 1e-200
"""The least that an observation counts: far below rounding, far above underflow."""
Missing = bool | Literal["few"]
"""Whether to add the variance that features lack; "few": while there are not more observations than features."""


class WeightSpaceModel(ScalableModel):
    """f(x) = μ + φ(x)ᵀw. Abstract.

    Hyperparameters of the prior over w and the noise cost no pass over the data. Those of φ, where it has any, cost
    one, and their gradient a second.

    With `missing_variance` it is f(x) = μ + φ(x)ᵀw + e(x): white noise of variance k(x, x) − φ(x)ᵀSφ(x), one value at
    each place, adds to predictions what the features lack of the kernel's variance. Equal rows of one joint posterior
    share their e. Observations, real or fantasised, teach the model about w alone: e stays as it was, everywhere, and
    fantasies are drawn without it, so that what they are expected to teach is what they do.

    With a `_decay` below 1 every observation that joins the data makes all earlier ones count that much as they did:
    the likelihood is Π_i N(y_i | f(x_i), σ²D_i)^ω_i with ω_i = decay^(n−1−i) by order of arrival. What only conditions
    the posterior, fantasies and what is conditioned in batches, makes nothing older.
    """

    _stats: tuple[SufficientStatistics, ...] | None = None
    _stats_at: Tensor | None = None
    _shared_features = True
    _missing_variance: Missing = False
    _decay = 1.0

    @abstractmethod
    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        """φ and the prior root of one output; φ is the same for all outputs where `_shared_features` says so.

        Frozen, they stay as the hyperparameters are now, with no graph to them.
        """

    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        """The hyperparameters that φ depends on: the statistics change with them. None here."""
        return []

    def _feature_values(self) -> Float[Tensor, " h"] | None:
        """The values of `_feature_parameters` in a row."""
        values = [p.detach().reshape(-1).to(torch.float64) for p in self._feature_parameters()]
        return torch.cat(values) if values else None

    @property
    def statistics(self) -> tuple[SufficientStatistics, ...]:
        """The sufficient statistics: of all outputs together where noise and features are shared, else of one each.

        Accumulated anew, in one pass over the rows, where parameters of the features have changed.

        Raises:
            UnsupportedError: if they have and the model keeps no rows.
        """
        values = self._feature_values()
        if self._stats is not None and values is not None and not _equal(values, self._stats_at):
            if self._rows is None:
                raise UnsupportedError("the features' parameters changed, and no data are kept; use keep_data=True.")
            self._stats = None
        if self._stats is None:
            with torch.no_grad():
                X, Y, D = self._transformed_rows()
                self._stats, self._stats_at = self._accumulate(X, Y, D, None, self._weights(len(X))), values
        return self._stats

    def _keep_statistics(self) -> None:
        """Take those of now for the statistics of changed features: what was observed stays as it was seen then."""
        self._stats_at = self._feature_values()

    @override
    def subset_output(self, idcs: list[int]) -> "ScalableModel":
        if self._stats is not None:
            _ = self.statistics  # made anew where they are stale, or refused
        return super().subset_output(idcs)

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "ScalableModel":
        if self._rows is None and self._stats is not None and self._feature_parameters():
            _ = self.statistics
            if fn(torch.empty(0, dtype=self._dtype, device=self._device)).dtype != self._dtype:
                raise UnsupportedError("another dtype would change the features' parameters, and no data are kept.")
        return super()._apply(fn, recurse)

    @override
    def _fixed_state(self) -> set[str]:
        of_features = {id(p) for p in self._feature_parameters()}
        return {name for name, p in self.named_parameters() if id(p) in of_features} | super()._fixed_state()

    def _transformed_rows(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Inputs after their transform, targets and D."""
        rows = self._rows
        assert rows is not None, "a model without rows keeps its statistics"
        X = rows.X if not hasattr(self, "input_transform") else self.input_transform.preprocess_transform(rows.X)
        return X.to(torch.float64), rows.Y.to(torch.float64), rows.D.to(torch.float64)

    @property
    @override
    def num_observations(self) -> int:
        """Observations in the statistics."""
        return self.statistics[0].count

    @override
    def _evidence_size(self) -> float:
        return max(1.0, self.statistics[0].effective_count.item())

    @property
    @override
    def mean_noise(self) -> Float[Tensor, " m"]:
        """As for all models, but known variances are averaged by how much their observations count."""
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if self._decay == 1.0 or not known or self.num_observations == 0:
            return super().mean_noise
        return self._mean_known_noise().to(self._dtype)

    def _mean_known_noise(self) -> Float[Tensor, " m"]:
        every = [self._statistics_of(j) for j in range(self._num_outputs)]
        return torch.stack([stats.noise_sum / stats.effective_count for stats in every])

    def _weights(self, n: int) -> Float[Tensor, " n"] | None:
        """How much each of n observations counts when the last of them has just come; None where all count once."""
        if self._decay == 1.0:
            return None
        ages = torch.arange(n - 1, -1, -1, dtype=torch.float64, device=self._device)
        return (self._decay**ages).clamp_min(OLDEST)

    def _noise_of(self, D: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """D/ω of all rows, for posteriors: they know observations that count less by their larger noise."""
        weights = self._weights(len(D))
        return D if weights is None else D / weights.unsqueeze(-1)

    def _accumulate(
        self,
        X: Tensor,
        Y: Tensor,
        D: Tensor,
        start: tuple[SufficientStatistics, ...] | None,
        weights: Tensor | None = None,
    ) -> tuple[SufficientStatistics, ...]:
        """Statistics of rows, on top of those there are; one Gram matrix only where all outputs share their noise."""
        m = self._num_outputs
        shared = m == 1 or (self._shared_features and bool((D[:, :1] == D).all()))
        if start is None:
            start = self._no_statistics(1 if shared else m, X.device)
        elif not shared and len(start) == 1:
            start = tuple(start[0].outputs([j]) for j in range(m))
        if len(start) == 1:
            return (start[0].observe(self._feature_map(0), X, Y, D[:, 0], weights),)
        return tuple(
            stats.observe(self._feature_map(j), X, Y[:, j : j + 1], D[:, j], weights) for j, stats in enumerate(start)
        )

    def _no_statistics(self, groups: int, device: torch.device) -> tuple[SufficientStatistics, ...]:
        """Those of no data, of all outputs together or of each."""
        m = self._num_outputs
        return tuple(SufficientStatistics.empty(self._feature_map(j), m // groups, device) for j in range(groups))

    def _statistics_of(
        self, output: int, statistics: tuple[SufficientStatistics, ...] | None = None
    ) -> SufficientStatistics:
        stats = self.statistics if statistics is None else statistics
        if len(stats) > 1:
            return stats[output]
        return stats[0] if self._num_outputs == 1 else stats[0].outputs([output])

    @override
    def _log_evidence(self) -> Float[Tensor, " m"]:
        few = self._few_rows()
        if few is None:
            return self._evidence_of(self._differentiable_statistics())
        (X, Y, D), noise, constants = few, self._inference_noise(), self._constants()
        weights = self._weights(len(X))
        return torch.stack(
            [
                log_density(self._feature_map(j).prior_covariance(X), Y[:, j], D[:, j], noise[j], constants[j], weights)
                for j in range(self._num_outputs)
            ]
        )

    def _evidence_of(self, statistics: tuple[SufficientStatistics, ...]) -> Float[Tensor, " m"]:
        """Log p of the observations in some statistics, at the hyperparameters as they are, for every output."""
        noise, constants = self._inference_noise(), self._constants()
        return torch.stack(
            [
                _evidence(self._feature_map(j), self._statistics_of(j, statistics), noise[j], constants[j])
                for j in range(self._num_outputs)
            ]
        )

    def _differentiable_statistics(self) -> tuple[SufficientStatistics, ...]:
        """The statistics, with a gradient towards the features' parameters where these are to be learned."""
        statistics = self.statistics
        learned = [p for p in self._feature_parameters() if p.requires_grad]
        if not learned or not torch.is_grad_enabled():
            return statistics
        if self._rows is None:
            raise UnsupportedError("the features' parameters can only be learned where data are kept: keep_data=True.")
        X, Y, D = self._transformed_rows()
        D = self._noise_of(D)  # the gradient knows no other sums than those with ω/D
        groups = [slice(None)] if len(statistics) == 1 else [slice(j, j + 1) for j in range(len(statistics))]
        return tuple(
            with_gradient(stats, partial(self._feature_map, j), learned, X, Y[:, outputs], D[:, outputs][:, 0])
            for j, (stats, outputs) in enumerate(zip(statistics, groups, strict=True))
        )

    @override
    def _extra_variance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        return self._features_of(output).missing_variance(X) if self._adds_missing_variance() else None

    @override
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q q"]:
        """Φ S Φᵀ, by the root that posteriors are made of where they are made of one."""
        phi = self._feature_map(output)
        if sparse_prior_of(phi) is not None:
            flat = X.reshape(-1, *X.shape[-2:])
            return torch.stack([phi.prior_covariance(x) for x in flat]).reshape(*X.shape[:-1], X.shape[-2])
        located = WeightSpacePosterior.prior(phi, self._constants()[output]).locate(X)
        return located.covariance(located)

    @override
    def _unlike_prior(self) -> str | None:
        reason = super()._unlike_prior()
        if reason is not None:
            return reason
        if self._decay < 1.0:
            return "decay: the others count more, or less, without a row"
        if self._adds_missing_variance(fewer=1) or self._extra_variance(self.train_inputs[0][:1], 0) is not None:
            return "missing_variance, conservative: predictions vary by more than observations are taken to"
        return None

    def _adds_missing_variance(self, fewer: int = 0) -> bool:
        """Whether predictions have it, or would with some observations fewer."""
        if self._missing_variance != "few":
            return bool(self._missing_variance)
        if self._decay < 1.0:
            n = self._evidence_size()
        else:
            n = self.num_observations if self._rows is None else self._rows.count
        return n - fewer <= self._feature_map(0).max_rank

    def _features_of(self, output: int) -> FeatureMap:
        """φ of the posterior that there is, conditioned on fantasies or not."""
        process = self._current_processes()[output]
        base = process.base if isinstance(process, Conditioned) else process
        assert isinstance(base, WeightProcess)
        return base.features

    @override
    def _build_processes(self) -> list[PosteriorProcess]:
        noise, constants = self._inference_noise().clone(), self._constants().clone()
        features = [self._feature_map(j, frozen=True) for j in range(self._num_outputs)]
        few = self._few_rows()
        if few is not None and sparse_prior_of(features[0]) is None:  # whose root would be cut
            X, Y, D = few[0], few[1], self._noise_of(few[2])
            priors = [WeightSpacePosterior.prior(phi, constants[j]) for j, phi in enumerate(features)]
            return [prior.update(prior.locate(X), Y[:, j], noise[j] * D[:, j]) for j, prior in enumerate(priors)]
        return [_posterior(phi, self._statistics_of(j), noise[j], constants[j]) for j, phi in enumerate(features)]

    def _few_rows(self) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"]] | None:
        """Transformed inputs, targets and D, where there are so few that n×n matrices are the cheaper ones."""
        rows = self._rows
        if rows is None or rows.count == 0 or rows.count > self._feature_map(0).max_rank // FEW:
            return None
        return self._transformed_rows()

    @override
    def _absorb(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> None:
        before = self._inference_noise()
        aged = max(self._decay ** len(X), OLDEST)
        earlier = self.statistics if aged == 1.0 else tuple(stats.discounted(aged) for stats in self.statistics)
        self._stats = self._accumulate(X, Y, D, earlier, self._weights(len(X)))
        if self._rows is None:
            self._set_mean_noise()
        if aged < 1.0:  # a Kalman update forgets nothing: the posterior is that of the statistics
            self._processes = None
        noise = self._inference_noise()
        if not torch.allclose(before, noise, rtol=1e-12, atol=0.0):  # known variances with a share of error counted in
            self._processes = None
        processes: list[PosteriorProcess] = []
        for j, process in enumerate(self._processes or []):
            if not isinstance(process, WeightSpacePosterior):  # a sparse precision is factorised anew
                self._processes = None
                return
            if len(X) > process.root.shape[-1] // 2:  # one factorisation is cheaper than that many columns
                self._processes = None
                return
            processes.append(process.update(process.locate(X), Y[:, j], noise[j] * D[:, j]))
        self._processes = processes or None

    def remove_observations(
        self,
        rows: Sequence[int] | Tensor | None = None,
        *,
        X: Tensor | None = None,
        Y: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> "WeightSpaceModel":
        """The model as if some observations had never been told; this one is unchanged. Exact, but for rounding.

        (An outlier 10⁷ times as large as the rest leaves an evidence half a nat off, for its square is in the sums.)
        Their statistics are subtracted: the cost is that of adding as many, and a copy of the rows that stay. Where
        observations lose weight with age (WISKI's `decay`) the ages of all that stay are counted anew, in one pass over
        them. Hyperparameters, grids and transforms stay as they are.

        Args:
            rows: Their numbers in order of arrival, from 0, or backwards from −1; each once. For models that keep rows.
            X: Raw inputs `k × d`, for models that keep statistics alone. These cannot tell whether they have seen what
                they are told to forget: it must be what they were told.
            Y: Raw values `k × m`.
            noise: Noise variances `k × m` as for `condition_on_observations`: needed where the model was given
                train_Yvar, in transformed units.

        Raises:
            InvalidDataError: if these are not numbers of rows, or not k inputs and values of as many as there are.
            UnsupportedError: if the model holds fantasies, or knows no rows to number, or no ages of what is told.
        """
        if self._fantasies is not None:
            raise UnsupportedError("remove_observations: a model with fantasies; use the model it was made from.")
        with torch.no_grad():
            without = self._without_values if self._rows is None else self._without_rows
            return without(rows, X, Y, noise)

    def _without_rows(self, rows: Sequence[int] | Tensor | None, *values: Tensor | None) -> "WeightSpaceModel":
        """Some rows fewer, where they are kept."""
        assert self._rows is not None, "called where rows are kept"
        if rows is None or any(given is not None for given in values):
            raise InvalidDataError("rows: this model keeps its data; give the rows' numbers, and no X, Y or noise.")
        numbers = require_row_numbers(rows, self._rows.count).to(self._device)
        child = clone_module(self)
        if self._decay < 1.0 or self._stats is None:
            child._forget_data()
        else:
            child._subtract(*(each[numbers] for each in self._transformed_rows()))
        child._rows = self._rows.without(numbers)
        if isinstance(child.likelihood, FixedNoiseGaussianLikelihood):
            child.likelihood.noise_covar.rows = child._rows
        return child

    def _without_values(
        self, rows: Sequence[int] | Tensor | None, X: Tensor | None, Y: Tensor | None, noise: Tensor | None
    ) -> "WeightSpaceModel":
        """Some observations fewer, where the statistics are all there is."""
        if rows is not None or X is None or Y is None:
            raise InvalidDataError("X, Y: this model keeps no rows that had numbers; give both as they were told.")
        if self._decay < 1.0:
            raise UnsupportedError("decay: without rows nobody knows how old observations are; use keep_data=True.")
        require_finite(X=X, Y=Y, noise=noise)
        if X.ndim != 2 or Y.shape != (len(X), self._num_outputs) or X.shape[-1] != self._num_inputs:
            expected = f"k × {self._num_inputs} and k × {self._num_outputs}"
            raise InvalidDataError(f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected {expected}.")
        transformed = self._transform_new_inputs(X)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform(Y=Y, Yvar=None, X=transformed)
        D = self._relative_noise(Y, noise).expand_as(Y)
        child = clone_module(self)
        child._subtract(transformed.to(torch.float64), Y.to(torch.float64), D)
        child._set_mean_noise()
        return child

    def _subtract(self, X: Float[Tensor, "k d"], Y: Float[Tensor, "k m"], D: Float[Tensor, "k m"]) -> None:
        """Take transformed rows out of the statistics, in place, on a model nobody else has seen yet."""
        whole = self.statistics
        nothing = self._no_statistics(len(whole), X.device)
        part = self._accumulate(X, Y, D, nothing)
        if len(part) > len(whole):
            raise InvalidDataError("noise: differs between outputs, as that of no observation did.")
        rest = tuple(a - b for a, b in zip(whole, part, strict=True))
        self._stats = nothing if rest[0].count == 0 else rest  # of nothing there is no rounding either
        self._processes = None

    def _set_mean_noise(self) -> None:
        """For a fixed-noise model that keeps no rows."""
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            mean = self._mean_known_noise().unsqueeze(-1).to(self._dtype)
            mean = mean[:, : self.num_observations]  # none of no observations
            self.likelihood.noise_covar.mean = mean.squeeze(0) if self._num_outputs == 1 else mean

    def _drop_rows(self) -> None:
        """Keep the statistics alone."""
        _ = self.statistics
        self._rows = None
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            self.likelihood.noise_covar.rows = None
            self._set_mean_noise()

    @override
    def _change_units(self, scale: Float[Tensor, " m"], offset: Float[Tensor, " m"]) -> None:
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        stats, m = self.statistics, self._num_outputs
        if known and len(stats) == 1 and m > 1 and not bool((scale == scale[0]).all()):
            stats = tuple(stats[0].outputs([j]) for j in range(m))
        groups: list[Any] = list(range(m)) if len(stats) == m else [slice(None)]
        self._stats = tuple(
            each.affine(scale[j].reshape(-1), offset[j].reshape(-1), scale[j].square().max().item() if known else 1.0)
            for j, each in zip(groups, stats, strict=True)
        )
        super()._change_units(scale, offset)
        if known:
            self._set_mean_noise()

    @override
    def _derived(self) -> dict[str, Any]:
        return {
            "statistics": [stats.state() for stats in self.statistics],
            "posterior": [
                process.state() if isinstance(process, WeightSpacePosterior) else {}
                for process in self._current_processes()
            ],
        }

    @override
    def _restore_derived(self, saved: dict[str, Any]) -> None:
        statistics = saved["statistics"]
        empty = self._no_statistics(len(statistics), self._device)
        self._stats = tuple(none.restored(state) for none, state in zip(empty, statistics, strict=True))
        self._stats_at = self._feature_values()
        self._processes = [
            WeightSpacePosterior.restored(self._feature_map(j, frozen=True), state)
            for j, state in enumerate(saved["posterior"])
            if state
        ] or None  # a sparse precision's is derived anew from the statistics
        self._set_mean_noise()

    @override
    def _forget_data(self) -> None:
        self._stats = None
        self._processes = None

    @override
    def _move(self, device: torch.device) -> None:
        if self._stats is not None:
            self._stats = tuple(stats.to(device) for stats in self._stats)
            self._stats_at = self._feature_values() if self._rows is None else self._stats_at

    @override
    def _subset_derived(self, outputs: list[int]) -> None:
        if self._stats is None:
            return
        whole = len(self._stats) == 1
        self._stats = (self._stats[0].outputs(outputs),) if whole else tuple(self._stats[j] for j in outputs)
        self._stats_at = self._feature_values()
        if self._rows is None:
            self._set_mean_noise()


def _posterior(phi: FeatureMap, stats: SufficientStatistics, noise: Tensor, constant: Tensor) -> PosteriorProcess:
    """By the sparse precision of the prior where its rank would be cut, else by its root."""
    prior = sparse_prior_of(phi)
    if prior is not None:
        return PrecisionPosterior.from_statistics(phi, prior, stats, noise, constant)
    return WeightSpacePosterior.from_statistics(phi, stats, noise, constant)


def _evidence(phi: FeatureMap, stats: SufficientStatistics, noise: Tensor, constant: Tensor) -> Float[Tensor, ""]:
    """By S itself where the features know no better; by its sparse inverse, or its structured root, where they do."""
    S, sparse = phi.prior_matrix(), phi.sparse_prior()
    if sparse is not None:
        return log_evidence_of_precision(sparse, stats, noise, constant)
    if S is not None:
        return log_evidence_of_kernel(S, stats, noise, constant)
    return log_evidence(phi.prior_root(), stats, noise, constant)


def _equal(a: Tensor, b: Tensor | None) -> bool:
    """Whether both are the same values on the same device."""
    return b is not None and a.device == b.device and torch.equal(a, b)
