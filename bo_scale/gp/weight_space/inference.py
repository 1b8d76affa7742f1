"""Inference of a weight-space model: statistics of the data, and the posterior over weights at some hyperparameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.inference import Inference
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.sparse_rows import Features
from bo_scale.gp.weight_space.forgetting import KEEPS_ALL, OLDEST, Forgetting
from bo_scale.gp.weight_space.posterior import WeightProcess, WeightSpacePosterior
from bo_scale.gp.weight_space.predictive_variance import NOTHING_ADDED, PredictiveVariance
from bo_scale.gp.weight_space.sparse_precision import PrecisionPosterior, sparse_prior_of
from bo_scale.gp.weight_space.statistics import SufficientStatistics

Statistics = tuple[SufficientStatistics, ...]
"""Those of all outputs together, where they share their noise and features; else of one output each."""


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of a weight-space model as inference uses them, frozen.

    Attributes:
        theta: Their values in a row.
        features: φ and the prior root of every output.
        noise: σ² of every output, before any approximation error is counted in.
        constants: μ of every output.
        shared: Whether φ is the same for all outputs.
        inflation: Mean squared error of the approximation, to be added to the noise; None to add nothing.
        forgetting: How observations lose weight.
        extra: What predictions have beyond the weights' variance.
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
        """Those of some outputs; `theta` stays, and the model that takes them has its own."""
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
"""Rows that may wait to be summed."""


@dataclass(frozen=True)
class FromRows:
    """Posteriors made of the rows themselves: n×n matrices where rows are few, or a QR decomposition.

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
        """The posterior of every output."""
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
    """f(x) = μ + φ(x)ᵀw of every output, given data that are known by their statistics alone.

    Attributes:
        hyperparameters: What it was made at.
        summed: Statistics of the data, but for rows that are pending.
        feature_values: Values of the parameters that φ depends on, in a row; None where it has none.
        pending: Rows that the statistics lack yet: they are summed many at a time, when somebody wants the sums.
        waiting: How many rows these are.
        may_wait: Whether rows may wait at all: where nobody keeps data, none are kept here either.
        rows: The rows, where posteriors are better made of these; None to make them of the statistics.
        updated: The processes, where they came from those before by an update; None to make them when wanted.
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
    def theta(self) -> Float[Tensor, " h"]:  # type: ignore[override]
        return self.hyperparameters.theta

    @cached_property
    def statistics(self) -> Statistics:
        """The sufficient statistics of all rows: pending ones are summed here, in one pass."""
        if not self.pending:
            return self.summed
        known = self.hyperparameters
        X, Y, D = (torch.cat(values) for values in zip(*self.pending))
        with torch.no_grad():
            return accumulated(known.features, known.shared, X, Y, D, self.summed)

    @property
    def count(self) -> int:
        """How many rows were observed."""
        return self.summed[0].count + self.waiting

    def statistics_of(self, output: int) -> SufficientStatistics:
        """The statistics of one output."""
        return statistics_of(self.statistics, output, len(self.hyperparameters.features))

    @cached_property
    @override
    def noise(self) -> Float[Tensor, " m"]:
        """σ², with the approximation's error counted in where that is asked for.

        Known variances can only be scaled without losing sufficiency: they grow by the share that the error is of their
        harmonic mean, which is exact where they are equal.
        """
        known = self.hyperparameters
        return known.noise if known.inflation is None else inflated(known.noise, known.inflation, self.statistics)

    @cached_property
    @override
    def processes(self) -> tuple[PosteriorProcess, ...]:
        """Posteriors from the statistics: O(s³ + p s²) each, free of n."""
        if self.updated is not None:
            return self.updated
        known = self.hyperparameters
        with torch.no_grad():
            if self.rows is not None:
                return self.rows.processes(known, self.noise)
            return tuple(
                posterior_of(phi, self.statistics_of(j), self.noise[j], known.constants[j])
                for j, phi in enumerate(known.features)
            )

    @property
    def made(self) -> tuple[PosteriorProcess, ...] | None:
        """The processes if anybody has asked for them; None before."""
        found: tuple[PosteriorProcess, ...] | None = self.__dict__.get("processes", self.updated)
        return found

    def derived_from(self, **changes: Any) -> "WeightSpaceInference":
        """The same with some fields changed, and processes to be made anew, of the statistics unless rows are given."""
        return replace(self, **{"updated": None, "rows": None, **changes})

    @override
    def observe(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]
    ) -> "WeightSpaceInference":
        """φ of the new rows once, the posterior updated, the sums left for later: O(p s q), free of n."""
        known = self.hyperparameters
        if self.made is None or known.forgetting.forgets:  # a Kalman update forgets nothing
            return self.counting(X, Y, D)
        if known.inflation is None:
            return replace(self.counting(X, Y, D), updated=self._updated(X, Y, self.noise * D))
        child = self._summed_with(X, Y, D)
        same = torch.allclose(self.noise, child.noise, rtol=1e-12, atol=0.0)
        return replace(child, updated=self._updated(X, Y, child.noise * D)) if same else child

    def counting(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]
    ) -> "WeightSpaceInference":
        """The inference with rows more, waiting to be summed or summed; processes are to be made anew."""
        if not bool((D > 0).all()):
            raise InvalidDataError("noise: variances must be positive.")
        waiting, known = self.waiting + len(X), self.hyperparameters
        if not self.may_wait or waiting > PENDING or known.forgetting.forgets or known.inflation is not None:
            return self._summed_with(X, Y, D)
        return self.derived_from(pending=(*self.pending, (X, Y, D)), waiting=waiting)

    def _summed_with(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]
    ) -> "WeightSpaceInference":
        """The inference whose statistics are aged and have these rows, too."""
        known, forgetting = self.hyperparameters, self.hyperparameters.forgetting
        aged, weights = forgetting.after(len(X)), forgetting.weights(len(X), X.device)
        earlier = self.statistics if aged == 1.0 else tuple(stats.discounted(aged) for stats in self.statistics)
        statistics = accumulated(known.features, known.shared, X, Y, D, earlier, weights)
        return self.derived_from(summed=statistics, pending=(), waiting=0)

    def _updated(
        self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], noise: Float[Tensor, "q m"]
    ) -> tuple[PosteriorProcess, ...] | None:
        """Processes by a square-root Kalman update, where they have one that is cheaper than a factorisation."""
        known, processes = self.hyperparameters, list[PosteriorProcess]()
        Phi: Features | None = None
        for j, process in enumerate(self.processes):
            if not isinstance(process, WeightSpacePosterior) or len(X) > process.root.shape[-1] // 2:
                return None
            if Phi is None or not known.shared or process.features is not known.features[j]:
                Phi = process.features(X)
            processes.append(process.update(process.located(Phi), Y[:, j], noise[:, j]))
        return tuple(processes)

    def at(self, hyperparameters: Hyperparameters) -> "WeightSpaceInference":
        """The same data at other hyperparameters of the prior and the noise. O(1); processes are made when wanted."""
        return self.derived_from(hyperparameters=hyperparameters, summed=self.statistics, pending=(), waiting=0)

    def without(
        self, X: Float[Tensor, "k d"], Y: Float[Tensor, "k m"], D: Float[Tensor, "k m"]
    ) -> "WeightSpaceInference":
        """The inference as if these rows had never been told: their statistics are subtracted."""
        known, groups = self.hyperparameters, len(self.statistics)
        nothing = no_statistics(known.features, groups, X.device)
        part = accumulated(known.features, known.shared, X, Y, D, nothing)
        if len(part) > groups:
            raise InvalidDataError("noise: differs between outputs, as that of no observation did.")
        rest = tuple(a - b for a, b in zip(self.statistics, part, strict=True))
        return self.derived_from(
            summed=nothing if rest[0].count == 0 else rest, pending=(), waiting=0
        )  # no rounding of nothing

    @override
    def extra_variance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        return self.extra_variance_after(X, output, removed=0)

    def adds_variance(self, removed: int = 0) -> bool:
        """Whether predictions have extra variance, or would with some observations fewer."""
        known = self.hyperparameters
        if known.extra is NOTHING_ADDED:
            return False
        count = self.statistics[0].effective_count.item() if known.forgetting.forgets else float(self.count)
        return known.extra.applies(count - removed, known.features[0])

    def extra_variance_after(
        self, X: Float[Tensor, "*b q d"], output: int, removed: int
    ) -> Float[Tensor, "*b q"] | None:
        """White noise of predictions with some observations fewer; None for none."""
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
    def to(self, device: torch.device) -> "WeightSpaceInference":
        """Statistics elsewhere; everything else follows from hyperparameters that are there."""
        return self.derived_from(summed=tuple(stats.to(device) for stats in self.statistics), pending=(), waiting=0)

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
    """The inference that a saved state is of. A sparse precision's posterior is derived anew from the statistics.

    Args:
        hyperparameters: Those it was made at.
        saved: What `state` gave.
        device: Where its tensors go.
        pending: The rows that its statistics lack.
    """
    groups = saved["statistics"]
    empty = no_statistics(hyperparameters.features, len(groups), device)
    statistics = tuple(none.restored(state) for none, state in zip(empty, groups, strict=True))
    every = [
        WeightSpacePosterior.restored(phi, state)
        for phi, state in zip(hyperparameters.features, saved["posterior"])
        if state
    ]
    waiting = saved.get("waiting", 0)
    return WeightSpaceInference(
        hyperparameters, statistics, pending=pending, waiting=waiting, updated=tuple(every) or None
    )


def inflated(
    noise: Float[Tensor, " m"], inflation: Float[Tensor, " m"] | None, statistics: Statistics
) -> Float[Tensor, " m"]:
    """σ² plus the approximation's error times the mean precision of the observations."""
    if inflation is None:
        return noise
    every = [statistics_of(statistics, j, len(noise)) for j in range(len(noise))]
    precision = torch.stack([stats.weight_sum / stats.effective_count.clamp_min(OLDEST) for stats in every])
    return noise + inflation * precision


def posterior_of(
    phi: FeatureMap, stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> PosteriorProcess:
    """By the sparse precision of the prior where its rank would be cut, else by its root."""
    prior = sparse_prior_of(phi)
    if prior is not None:
        return PrecisionPosterior.from_statistics(phi, prior, stats, noise, constant)
    return WeightSpacePosterior.from_statistics(phi, stats, noise, constant)


def statistics_of(statistics: Statistics, output: int, outputs: int) -> SufficientStatistics:
    """The statistics of one of several outputs."""
    if len(statistics) > 1:
        return statistics[output]
    return statistics[0] if outputs == 1 else statistics[0].outputs([output])


def no_statistics(features: Sequence[FeatureMap], groups: int, device: torch.device) -> Statistics:
    """Statistics of no data, of all outputs together or of each."""
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
    """Statistics of rows, on top of those there are; one Gram matrix only where all outputs share their noise.

    Args:
        features: φ of every output.
        shared: Whether it is the same for all.
        X: Transformed inputs.
        Y: Transformed targets.
        D: Relative noise variances.
        start: The statistics before; None for none.
        weights: How much each row counts; None for once.
        Phi: φ(X) of every output, if it is known already.
    """
    m = len(features)
    together = m == 1 or (shared and bool((D[:, :1] == D).all()))
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
