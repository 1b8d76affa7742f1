"""Inference of a weight-space model: statistics of the data and, at fixed hyperparameters, the posterior of weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.inference import Inference
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.waiting import holds, reading_apart
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.sparse_rows import Features
from bo_scale.gp.weight_space.forgetting import KEEPS_ALL, OLDEST, Forgetting
from bo_scale.gp.weight_space.posterior import WeightProcess, WeightSpacePosterior
from bo_scale.gp.weight_space.predictive_variance import NOTHING_ADDED, PredictiveVariance
from bo_scale.gp.weight_space.sparse_precision import PrecisionPosterior, sparse_prior_of
from bo_scale.gp.weight_space.statistics import SufficientStatistics

Statistics = tuple[SufficientStatistics, ...]
"""One element for all outputs if they share noise and features; otherwise one element per output."""


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of a weight-space model as inference uses them, frozen.

    Attributes:
        theta: All values in one vector.
        features: φ and the prior root of every output.
        noise: σ² of every output, before any approximation error is added.
        constants: μ of every output.
        shared: Whether φ is the same for all outputs.
        inflation: Mean squared error of the approximation, added to the noise; None to add nothing.
        forgetting: Rule by which observations lose weight.
        extra: Predictive variance beyond that of the weights.
    """

    theta: Float[Tensor, " h"]
    features: tuple[FeatureMap, ...]
    noise: Float[Tensor, " m"]
    constants: Float[Tensor, " m"]
    shared: bool = True
    inflation: Float[Tensor, " m"] | None = None
    forgetting: Forgetting = KEEPS_ALL
    extra: PredictiveVariance = NOTHING_ADDED

    def outputs(self, indices: list[int]) -> "Hyperparameters":
        """Hyperparameters of some outputs. `theta` stays: the model that takes them has its own."""
        return replace(
            self,
            features=tuple(self.features[j] for j in indices),
            noise=self.noise[indices],
            constants=self.constants[indices],
            inflation=None if self.inflation is None else self.inflation[indices],
        )


Observed = tuple[Float[Tensor, "_ d"], Float[Tensor, "_ m"], Float[Tensor, "_ m"]]
"""Transformed inputs, transformed targets and relative noise variances of some rows."""
PENDING = 64
"""Largest number of rows that wait to be summed."""


@dataclass(frozen=True)
class FromRows:
    """Posteriors computed from the rows: by n×n matrices when rows are few, or by a QR decomposition.

    Attributes:
        X: Transformed inputs.
        Y: Transformed targets.
        D: Relative noise variances, larger where observations count less.
        dtype: Dtype of the QR decomposition; None for an update of the prior by n×n matrices.
    """

    X: Float[Tensor, "n d"]
    Y: Float[Tensor, "n m"]
    D: Float[Tensor, "n m"]
    dtype: torch.dtype | None = None

    def processes(self, known: Hyperparameters, noise: Float[Tensor, " m"]) -> tuple[PosteriorProcess, ...]:
        """Posterior of every output."""
        every: list[PosteriorProcess] = []
        for j, (phi, constant) in enumerate(zip(known.features, known.constants)):
            variances = noise[j] * self.D[:, j]
            if self.dtype is None:
                prior = WeightSpacePosterior.prior(phi, constant)
                every.append(prior.update(prior.locate(self.X), self.Y[:, j], variances))
            else:
                every.append(WeightSpacePosterior.from_rows(phi, self.X, self.Y[:, j], variances, constant, self.dtype))
        return tuple(every)


@dataclass(frozen=True)
class WeightSpaceInference(Inference):
    """f(x) = μ + φ(x)ᵀw of every output, given data that enter through their statistics alone.

    Attributes:
        hyperparameters: Hyperparameters of this inference.
        summed: Statistics of the data without pending rows.
        feature_values: Parameters that φ depends on, in one vector; None if it has none.
        pending: Rows not in the statistics yet. They are summed together when the sums are needed.
        waiting: Number of pending rows.
        may_wait: Whether rows may be pending. A model that keeps no data must not keep them here either.
        rows: Rows from which posteriors are computed; None to compute them from the statistics.
        updated: Processes obtained by updating earlier ones; None to compute them on demand.
    """

    hyperparameters: Hyperparameters
    summed: Statistics
    feature_values: Float[Tensor, " f"] | None = None
    pending: tuple[Observed, ...] = ()
    waiting: int = 0
    may_wait: bool = False
    rows: FromRows | None = field(default=None, repr=False)
    updated: tuple[PosteriorProcess, ...] | None = None

    @property
    @override
    def theta(self) -> Float[Tensor, " h"]:
        return self.hyperparameters.theta

    @cached_property
    def statistics(self) -> Statistics:
        """Sufficient statistics of all rows. Pending rows are summed here, in one pass."""
        if not self.pending:
            return self.summed
        known = self.hyperparameters
        X, Y, D = (torch.cat(values) for values in zip(*self.pending))
        with torch.no_grad():
            return reading_apart(X.device, lambda: accumulated(known.features, known.shared, X, Y, D, self.summed))

    @property
    def count(self) -> int:
        """Number of observed rows."""
        return self.summed[0].count + self.waiting

    def statistics_of(self, output: int) -> SufficientStatistics:
        """Statistics of one output."""
        return statistics_of(self.statistics, output, len(self.hyperparameters.features))

    @property
    def mean_known_noise(self) -> Float[Tensor, " m"]:
        """Mean of the known noise variances of every output, weighted by how much each observation counts."""
        every = [self.statistics_of(j) for j in range(len(self.hyperparameters.features))]
        return torch.stack([stats.noise_sum / stats.effective_count for stats in every])

    @cached_property
    @override
    def noise(self) -> Float[Tensor, " m"]:
        """σ², plus the approximation error if the hyperparameters have an `inflation`.

        Statistics stay sufficient only if known variances are scaled, not shifted. They are scaled so that their
        harmonic mean grows by the error, which is exact when all are equal.
        """
        known = self.hyperparameters
        return known.noise if known.inflation is None else inflated(known.noise, known.inflation, self.statistics)

    @cached_property
    @override
    def processes(self) -> tuple[PosteriorProcess, ...]:
        """Posteriors from the statistics: O(s³ + p s²) each, free of n."""
        if self.updated is not None:
            return self.updated
        known, noise = self.hyperparameters, self.noise

        def computed() -> tuple[PosteriorProcess, ...]:
            if self.rows is not None:
                return self.rows.processes(known, noise)
            return tuple(
                posterior_of(phi, self.statistics_of(j), noise[j], known.constants[j])
                for j, phi in enumerate(known.features)
            )

        with torch.no_grad():
            return reading_apart(noise.device, computed)

    def with_roots(self, roots: Sequence[LinearOperator]) -> "WeightSpaceInference":
        """The same with processes made from prior roots of every output, already computed."""
        known, noise = self.hyperparameters, self.noise
        every = [
            WeightSpacePosterior.from_statistics(
                phi, self.statistics_of(j), noise[j], known.constants[j], root.detach()
            )
            for j, (phi, root) in enumerate(zip(known.features, roots, strict=True))
        ]
        return replace(self, updated=tuple(every))

    @property
    def made(self) -> tuple[PosteriorProcess, ...] | None:
        """Processes if they have been computed; None otherwise."""
        found: tuple[PosteriorProcess, ...] | None = self.__dict__.get("processes", self.updated)
        return found

    def derived_from(self, **changes: Any) -> "WeightSpaceInference":
        """Copy with some fields changed. Processes are recomputed, from the statistics unless rows are given."""
        return replace(self, **{"updated": None, "rows": None, **changes})

    @override
    def observe(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]
    ) -> "WeightSpaceInference":
        """Observe rows: compute φ once, update the posterior, leave the sums for later. O(p s q), free of n."""
        known = self.hyperparameters
        if self.made is None or known.forgetting.forgets:  # a Kalman update forgets nothing
            return self.counting(X, Y, D)
        if known.inflation is None:
            return replace(self.counting(X, Y, D), updated=self._updated(X, Y, self.noise * D))
        child = self._summed_with(X, Y, D)
        same = holds((self.noise - child.noise).abs() <= 1e-12 * child.noise.abs())
        return replace(child, updated=self._updated(X, Y, child.noise * D)) if same else child

    def counting(
        self,
        X: Float[Tensor, "q d"],
        Y: Float[Tensor, "q m"],
        D: Float[Tensor, "q m"],
        Phi: Sequence[Features] | None = None,
    ) -> "WeightSpaceInference":
        """Count rows that wait to be summed, or sum them; processes are computed anew on demand.

        Args:
            X: Transformed inputs.
            Y: Transformed targets.
            D: Relative noise variances.
            Phi: φ(X) of every output, if already computed.
        """
        if not holds(D > 0):
            raise InvalidDataError("noise: variances must be positive.")
        waiting, known = self.waiting + len(X), self.hyperparameters
        if not self.may_wait or waiting > PENDING or known.forgetting.forgets or known.inflation is not None:
            return self._summed_with(X, Y, D, Phi)
        return self.derived_from(pending=(*self.pending, (X, Y, D)), waiting=waiting)

    def _summed_with(
        self,
        X: Float[Tensor, "q d"],
        Y: Float[Tensor, "q m"],
        D: Float[Tensor, "q m"],
        Phi: Sequence[Features] | None = None,
    ) -> "WeightSpaceInference":
        """Discount the statistics and add rows."""
        known, forgetting = self.hyperparameters, self.hyperparameters.forgetting
        aged, weights = forgetting.after(len(X)), forgetting.weights(len(X), X.device)
        earlier = self.statistics if aged == 1.0 else tuple(stats.discounted(aged) for stats in self.statistics)
        statistics = accumulated(known.features, known.shared, X, Y, D, earlier, weights, Phi)
        return self.derived_from(summed=statistics, pending=(), waiting=0)

    def _updated(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], noise: Float[Tensor, "q m"]
    ) -> tuple[PosteriorProcess, ...] | None:
        """Processes by a square-root Kalman update; None if a factorisation is cheaper or there is no update."""
        known, processes = self.hyperparameters, list[PosteriorProcess]()
        Phi: Features | None = None
        for j, process in enumerate(self.processes):
            if not isinstance(process, WeightSpacePosterior) or len(X) > process.root.shape[-1] // 2:
                return None
            if Phi is None or not known.shared or process.features is not known.features[j]:
                Phi = process.features(X)
            processes.append(process.update(process.located(Phi), Y[:, j], noise[:, j]))
        return tuple(processes)

    @override
    def settled(self) -> "WeightSpaceInference":
        """The same inference with all rows summed: it no longer refers to rows that a model keeps."""
        return replace(self, summed=self.statistics, pending=(), waiting=0, updated=self.made)

    def at(self, hyperparameters: Hyperparameters) -> "WeightSpaceInference":
        """The same data at other hyperparameters of the prior and the noise. O(1); processes are computed on demand."""
        return self.derived_from(hyperparameters=hyperparameters, summed=self.statistics, pending=(), waiting=0)

    def without(
        self, X: Float[Tensor, "k d"], Y: Float[Tensor, "k m"], D: Float[Tensor, "k m"]
    ) -> "WeightSpaceInference":
        """Inference without these rows: their statistics are subtracted."""
        known, groups = self.hyperparameters, len(self.statistics)
        nothing = no_statistics(known.features, groups, X.device)
        part = accumulated(known.features, known.shared, X, Y, D, nothing)
        if len(part) > groups:
            raise InvalidDataError(
                "noise: differs between outputs, but no observation had such noise. Give it as observed."
            )
        rest = tuple(a - b for a, b in zip(self.statistics, part, strict=True))
        return self.derived_from(
            summed=nothing if rest[0].count == 0 else rest, pending=(), waiting=0
        )  # no rounding of nothing

    @override
    def extra_variance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        return self.extra_variance_after(X, output, removed=0)

    def adds_variance(self, removed: int = 0) -> bool:
        """Whether predictions have extra variance after `removed` observations are taken away."""
        known = self.hyperparameters
        if known.extra is NOTHING_ADDED:
            return False
        count = self.statistics[0].effective_count.item() if known.forgetting.forgets else float(self.count)
        return known.extra.applies(count - removed, known.features[0])

    def extra_variance_after(
        self, X: Float[Tensor, "*b q d"], output: int, removed: int
    ) -> Float[Tensor, "*b q"] | None:
        """Extra white-noise variance of predictions with `removed` fewer observations; None for none."""
        if not self.adds_variance(removed):
            return None
        process = self.processes[output]
        features = process.features if isinstance(process, WeightProcess) else self.hyperparameters.features[output]
        return self.hyperparameters.extra.at(features, X)

    def in_units(
        self, scale: Float[Tensor, " m"], offset: Float[Tensor, " m"], known_noise: bool
    ) -> "WeightSpaceInference":
        """Statistics of scale · y + offset, exactly. Hyperparameters stay."""
        stats, m = self.statistics, len(self.hyperparameters.features)
        if known_noise and len(stats) == 1 and m > 1 and not bool((scale == scale[0]).all()):
            stats = tuple(stats[0].outputs([j]) for j in range(m))
        groups: list[Any] = list(range(m)) if len(stats) == m else [slice(None)]
        changed = tuple(
            each.affine(
                scale[j].reshape(-1), offset[j].reshape(-1), scale[j].square().max().item() if known_noise else 1.0
            )
            for j, each in zip(groups, stats, strict=True)
        )
        return self.derived_from(summed=changed, pending=(), waiting=0)

    @override
    def outputs(self, indices: list[int]) -> "WeightSpaceInference":
        together = len(self.statistics) == 1
        kept = (self.statistics[0].outputs(indices),) if together else tuple(self.statistics[j] for j in indices)
        return self.derived_from(
            hyperparameters=self.hyperparameters.outputs(indices), summed=kept, pending=(), waiting=0
        )

    @override
    def at_theta(self, theta: Float[Tensor, " h"]) -> "WeightSpaceInference":
        return replace(self, hyperparameters=replace(self.hyperparameters, theta=theta))

    @override
    def state(self) -> dict[str, Any]:
        return {
            "statistics": [stats.state() for stats in self.summed],
            "waiting": self.waiting,
            "posterior": [
                process.state() if isinstance(process, WeightSpacePosterior) else {} for process in self.processes
            ],
        }


def restored(
    hyperparameters: Hyperparameters, saved: dict[str, Any], device: torch.device, pending: tuple[Observed, ...]
) -> WeightSpaceInference:
    """Restore an inference from a saved state. A posterior by sparse precision is recomputed from the statistics.

    Args:
        hyperparameters: Hyperparameters of the saved inference.
        saved: Result of `state`.
        device: Device for its tensors.
        pending: Rows that are not in its statistics yet.
    """
    groups = saved["statistics"]
    empty = no_statistics(hyperparameters.features, len(groups), device)
    statistics = tuple(none.restored(state) for none, state in zip(empty, groups, strict=True))
    every = [
        WeightSpacePosterior.restored(phi, state)
        for phi, state in zip(hyperparameters.features, saved.get("posterior", ()))
        if state
    ]
    waiting = saved.get("waiting", 0)
    return WeightSpaceInference(
        hyperparameters, statistics, pending=pending, waiting=waiting, updated=tuple(every) or None
    )


def inflated(
    noise: Float[Tensor, " m"], inflation: Float[Tensor, " m"] | None, statistics: Statistics
) -> Float[Tensor, " m"]:
    """σ² plus the approximation error times the mean precision of the observations."""
    if inflation is None:
        return noise
    every = [statistics_of(statistics, j, len(noise)) for j in range(len(noise))]
    precision = torch.stack([stats.weight_sum / stats.effective_count.clamp_min(OLDEST) for stats in every])
    return noise + inflation * precision


def posterior_of(
    phi: FeatureMap, stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> PosteriorProcess:
    """Posterior by the prior's sparse precision if its root would be truncated; otherwise by the root."""
    prior = sparse_prior_of(phi)
    if prior is not None:
        return PrecisionPosterior.from_statistics(phi, prior, stats, noise, constant)
    return WeightSpacePosterior.from_statistics(phi, stats, noise, constant)


def statistics_of(statistics: Statistics, output: int, outputs: int) -> SufficientStatistics:
    """Statistics of one of several outputs."""
    if len(statistics) > 1:
        return statistics[output]
    return statistics[0] if outputs == 1 else statistics[0].outputs([output])


def no_statistics(features: Sequence[FeatureMap], groups: int, device: torch.device) -> Statistics:
    """Empty statistics, for all outputs together or for each."""
    m = len(features)
    return tuple(SufficientStatistics.empty(features[j], m // groups, device) for j in range(groups))


def accumulated(
    features: Sequence[FeatureMap],
    shared: bool,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    D: Float[Tensor, "n m"],
    start: Statistics | None,
    weights: Float[Tensor, " n"] | None = None,
    Phi: Sequence[Features] | None = None,
) -> Statistics:
    """Add rows to statistics, with a single Gram matrix if all outputs share their noise.

    Args:
        features: φ of every output.
        shared: Whether φ is the same for all outputs.
        X: Transformed inputs.
        Y: Transformed targets.
        D: Relative noise variances.
        start: Statistics to add to; None for none.
        weights: Weight of each row; None for ones.
        Phi: φ(X) of every output, if already computed.
    """
    m = len(features)
    together = m == 1 or (shared and holds(D[:, :1] == D))
    if start is None:
        start = no_statistics(features, 1 if together else m, X.device)
    elif not together and len(start) == 1:
        start = tuple(start[0].outputs([j]) for j in range(m))
    if len(start) == 1:
        return (start[0].observe(features[0], X, Y, D[:, 0], weights, None if Phi is None else Phi[0]),)
    return tuple(
        stats.observe(features[j], X, Y[:, j : j + 1], D[:, j], weights, None if Phi is None else Phi[j])
        for j, stats in enumerate(start)
    )
