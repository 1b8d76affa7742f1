"""Models whose data enter only as additive statistics of a feature map."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from linear_operator import LinearOperator
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.inference import Fantasised
from bo_scale.gp.waiting import same
from bo_scale.gp.weight_space.evidence import log_density, log_evidence, log_evidence_of_kernel
from bo_scale.gp.weight_space.feature_gradients import Gradients, differentiable, pulled_back
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.forgetting import KEEPS_ALL, Forgetting
from bo_scale.gp.weight_space.host_rows import CHUNK
from bo_scale.gp.weight_space.inference import (
    FromRows,
    Hyperparameters,
    Observed,
    Statistics,
    WeightSpaceInference,
    accumulated,
    inflated,
    restored,
    statistics_of,
)
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.predictive_variance import (
    NOTHING_ADDED,
    DistanceVariance,
    MissingVariance,
    PredictiveVariance,
)
from bo_scale.gp.weight_space.sparse_precision import log_evidence_of_precision, sparse_prior_of
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.arguments import require_row_numbers
from bo_scale.models.shell.distributions import inputs_of_outputs
from bo_scale.models.shell.feature_check import check_feature_map
from bo_scale.models.shell.lending import borrows, own_modules
from bo_scale.models.shell.merging import merged, with_host_rows
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.partial_statistics import PartialStatistics, blank_inference, summed_apart, with_statistics
from bo_scale.models.shell.removal import without_rows, without_values
from bo_scale.models.shell.rows import Rows

FEW = 4
"""Divisor of the prior's rank: with at most rank/FEW observations, n×n matrices give the evidence more cheaply."""
FAR = 0.01
"""Share of the noise variance beyond which added variance at a row counts."""
Missing = bool | Literal["few"]
"""Whether to add the variance that features lack; "few" adds it while observations do not outnumber features."""


def correction_of(missing: Missing, otherwise: PredictiveVariance = NOTHING_ADDED) -> PredictiveVariance:
    """Return the diagonal correction that a model's `missing_variance` asks for."""
    return MissingVariance(few=missing == "few") if missing else otherwise


def missing_of(extra: PredictiveVariance) -> Missing:
    """Return the `missing_variance` that asks for a correction; the inverse of `correction_of`."""
    return False if not isinstance(extra, MissingVariance) else "few" if extra.few else True


@runtime_checkable
class Elsewhere(Protocol):
    """Rows that are not here, and what a fit asks of them."""

    def summed(self, model: "WeightSpaceModel") -> Statistics:
        """Return the statistics of all rows under a model's present features."""

    def pulled_back(self, model: "WeightSpaceModel", grads: list[Gradients]) -> list[Tensor]:
        """Return derivatives with respect to a model's feature parameters that require one, given those of the sums."""


class WeightSpaceModel(ScalableModel):
    """A model f(x) = μ + φ(x)ᵀw. Abstract.

    A change of the noise or of the prior over w needs no pass over the data. A change of φ's own parameters, if any,
    needs one pass, and their gradient a second.

    With `missing_variance` the model is f(x) = μ + φ(x)ᵀw + e(x). White noise e of variance k(x, x) − φ(x)ᵀSφ(x), one
    value at each point, adds to predictions the variance that the features lack. Equal rows of one joint posterior
    share their e. Observations, real or fantasised, inform w alone; e is never updated. Fantasies are drawn without e,
    so that expected and actual information gains agree.

    With a forgetting factor below 1, each observation that joins the data reduces the weight of all earlier ones.
    Fantasies and batched conditioning only condition the posterior, and age nothing.
    """

    _inference: WeightSpaceInference | Fantasised | None
    _infers_first = True
    shares_features = False
    """Whether φ is the same for all outputs, so that one pass over the data serves them all."""
    _elsewhere: "Elsewhere | None" = None
    """Rows that are kept elsewhere, while hyperparameters are fitted to them."""
    forgetting: Forgetting = KEEPS_ALL
    """The rule by which observations lose weight as later ones arrive."""
    _extra: PredictiveVariance = NOTHING_ADDED
    _size_option = "number of features"
    """Name of the option that sets the number of features, for messages."""

    @abstractmethod
    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        """Return φ and the prior root of one output; outputs share φ if `shares_features`.

        If frozen, they keep copies of the present hyperparameters, detached from the graph.
        """

    def _feature_values(self) -> Float[Tensor, " h"] | None:
        """Return the values of `_feature_parameters` in a row."""
        values = [p.detach().reshape(-1).to(torch.float64) for p in self._feature_parameters()]
        return torch.cat(values) if values else None

    def _inflation(self) -> Float[Tensor, " m"] | None:
        """Return an approximation error to add to the noise, differentiable; None for none."""
        return None

    @override
    def _inference_noise(self) -> Float[Tensor, " m"]:
        """Return σ² as inference uses it, differentiable."""
        inflation = self._inflation()
        return self._noise_scale() if inflation is None else inflated(self._noise_scale(), inflation, self.statistics)

    # ------------------------------------------------------------------ inference

    @property
    def statistics(self) -> Statistics:
        """The sufficient statistics: one for all outputs if they share noise and features, else one per output.

        They are accumulated anew, in one pass over the rows, if parameters of the features have changed.

        Raises:
            UnsupportedError: if they have changed and the model keeps no rows.
        """
        return self._seen().statistics

    def _seen(self) -> WeightSpaceInference:
        """Return an inference with the statistics of all observations; prior and noise may be out of date."""
        found = self._inference.base if isinstance(self._inference, Fantasised) else self._inference
        assert found is None or isinstance(found, WeightSpaceInference), "fantasies condition one"
        if found is not None and self._fantasies is not None:
            return found
        if found is not None and borrows(self):
            return found
        values = self._feature_values()
        if found is not None and (values is None or _equal(values, found.feature_values)):
            return found
        if self._rows is None:
            self._inference = self._seen_elsewhere(0 if found is None else found.count)
            return self._inference
        X, Y, D = self._transformed_rows()
        check_feature_map(self, X)
        with torch.no_grad():
            known = self._hyperparameters_now(self._hyperparameters())
            weights = self.forgetting.weights(len(X), X.device)
            statistics = accumulated(known.features, known.shared, X, Y, D, None, weights)
            rows = self._better_rows(known)
            self._inference = self._inference_from(
                WeightSpaceInference(known, statistics, values, may_wait=True, rows=rows)
            )
        return self._inference

    @property
    def _may_sum_anew(self) -> bool:
        """Return whether there are rows to sum under other features: here, or elsewhere during a fit."""
        return self._rows is not None or self._elsewhere is not None

    def _seen_elsewhere(self, count: int) -> WeightSpaceInference:
        """Return an inference under changed features, from rows that are elsewhere, or none.

        Raises:
            UnsupportedError: if there are rows, and nothing is known of where.
        """
        if self._elsewhere is not None:
            return blank_inference(self).derived_from(summed=self._elsewhere.summed(self))
        if count > 0:
            raise UnsupportedError(
                "The parameters of the features have changed, and no data are kept to recompute the statistics. Use "
                "keep_data=True."
            )
        return blank_inference(self)

    @override
    def _infer(self, theta: Float[Tensor, " h"]) -> WeightSpaceInference:
        before = self._inference
        seen = self._seen()
        if seen is not before and seen is self._inference:  # it was made just now
            return seen
        known = self._hyperparameters_now(theta)
        return replace(seen.at(known), rows=self._better_rows(known))

    def _inference_from(self, inference: WeightSpaceInference) -> WeightSpaceInference:
        """Return the kind of inference that this model makes of its statistics: its own, or one made from it."""
        return inference

    def _hyperparameters_now(
        self, theta: Float[Tensor, " h"], features: tuple[FeatureMap, ...] | None = None
    ) -> Hyperparameters:
        inflation = self._inflation()
        return Hyperparameters(
            theta,
            tuple(self._feature_map(j, frozen=True) for j in range(self._num_outputs))
            if features is None
            else features,
            self._noise_scale().detach().clone(),
            self._constants().detach().clone(),
            self.shares_features,
            None if inflation is None else inflation.detach(),
            self.forgetting,
            self._extra,
        )

    def _better_rows(self, known: Hyperparameters) -> FromRows | None:
        """Return the rows if they are so few that n×n matrices are cheaper than the statistics; else None."""
        few = few_rows(self)
        if few is None or sparse_prior_of(known.features[0]) is not None:  # whose root would be cut
            return None
        return FromRows(few[0], few[1], self.forgetting.noise_of(few[2]))

    @property
    def adds_variance(self) -> bool:
        """Whether predictions add white noise for the part of the kernel's variance that features lack."""
        return self._seen().adds_variance()

    @override
    def subset_output(self, idcs: list[int]) -> "ScalableModel":
        _ = self.inference  # made anew where it is stale, or refused
        subset = super().subset_output(idcs)
        assert isinstance(subset, WeightSpaceModel)
        if subset._fantasies is None:
            keep_statistics(subset)
        subset._tell_likelihood()
        return subset

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "ScalableModel":
        if self._rows is None and self._inference is not None and self._feature_parameters():
            _ = self.statistics
            if fn(torch.empty(0, dtype=self._dtype, device=self._device)).dtype != self._dtype:
                raise UnsupportedError(
                    "another dtype would change the parameters of the features, and no data are kept to recompute the "
                    "statistics. Use keep_data=True."
                )
        super()._apply(fn, recurse)
        if self._rows is None and self._fantasies is None:
            keep_statistics(self)
        return self

    @property
    @override
    def num_observations(self) -> int:
        """The number of observations in the statistics."""
        return self._seen().count

    @override
    def _evidence_size(self) -> float:
        if not self.forgetting.forgets:
            return max(1.0, float(self._seen().count))
        return max(1.0, self.statistics[0].effective_count.item())

    @property
    @override
    def mean_noise(self) -> Float[Tensor, " m"]:
        """The learned noise variance, or the mean of the known ones, weighted by how much each observation counts."""
        if not self.forgetting.forgets or not self.knows_noise or self.num_observations == 0:
            return super().mean_noise
        return self._seen().mean_known_noise.to(self._dtype)

    # ------------------------------------------------------------------ evidence

    @override
    def _log_evidence(self) -> Float[Tensor, " m"]:
        few = few_rows(self)
        if few is None:
            return evidence_of(self, _differentiable_statistics(self))
        (X, Y, D), noise, constants = few, self._inference_noise(), self._constants()
        weights = self.forgetting.weights(len(X), X.device)
        return torch.stack(
            [
                log_density(self._feature_map(j).prior_covariance(X), Y[:, j], D[:, j], noise[j], constants[j], weights)
                for j in range(self._num_outputs)
            ]
        )

    @override
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q q"]:
        """Return Φ S Φᵀ, from the same prior root as posteriors if they use one."""
        phi = self._feature_map(output)
        if sparse_prior_of(phi) is not None:
            flat = X.reshape(-1, *X.shape[-2:])
            return torch.stack([phi.prior_covariance(x) for x in flat]).reshape(*X.shape[:-1], X.shape[-2])
        located = WeightSpacePosterior.prior(phi, self._constants()[output]).locate(X)
        return located.covariance(located)

    @override
    def _training_covariance(self, X: Float[Tensor, "*b q d"]) -> DenseLinearOperator:
        """Return Φ S Φᵀ of every output."""
        every = []
        for output, part in enumerate(inputs_of_outputs(X, self._num_outputs)):
            phi, flat = self._feature_map(output), part.to(torch.float64).reshape(-1, *part.shape[-2:])
            K = torch.stack([phi.prior_covariance(x) for x in flat])
            every.append(K.reshape(*part.shape[:-1], part.shape[-2]))
        return DenseLinearOperator((torch.stack(every, -3) if self._num_outputs > 1 else every[0]).to(X))

    @override
    def _unlike_prior(self) -> str | None:
        reason = super()._unlike_prior()
        if reason is not None:
            return reason
        if self.forgetting.forgets:
            return "decay: the weights of the other rows change when a row is left out"
        inference = self._seen()
        if isinstance(self._extra, DistanceVariance):
            return self._far_rows(inference)
        if inference.adds_variance(removed=1) or inference.adds_variance():
            return "missing_variance, conservative: they add variance to predictions but not to observations"
        return None

    @torch.no_grad()
    def _far_rows(self, inference: WeightSpaceInference) -> str | None:
        """Return that some rows are where predictions have more variance than the weights; None if there are none."""
        X = self._transformed_rows()[0]
        for output in range(self._num_outputs):
            extra = inference.extra_variance(X, output)
            if extra is not None and bool((extra > FAR * self._noise_scale()[output]).any()):
                return "some rows are far from the points or outside the grid, where predictions have more variance"
        return None

    # ------------------------------------------------------------------ observations reordered, and taken back

    def reorder_rows(self, order: Int[Tensor, " n"]) -> None:
        """Hold the observed rows in another order, in place. The posterior does not depend on it.

        Args:
            order: Present indices of the rows, in their new order.

        Raises:
            UnsupportedError: if the model keeps no rows, holds fantasies, or forgets: ages then go by the order.
        """
        if self._rows is None or self._fantasies is not None or self.forgetting.forgets:
            raise UnsupportedError(
                "reorder_rows: needs a model that keeps its rows, without decay and without fantasies."
            )
        own_modules(self)
        rows, numbers = self._rows, require_row_numbers(order, self._rows.count)
        if len(numbers) != rows.count:
            raise InvalidDataError(f"order: {len(numbers)} indices for {rows.count} rows. Give each index once.")
        if isinstance(self._inference, WeightSpaceInference):
            self._inference = self._inference.settled()  # pending rows are the last of the old order
        self._take_rows(Rows.of(rows.X[numbers], rows.Y[numbers], rows.D[numbers]))

    def remove_observations(
        self,
        rows: Sequence[int] | Tensor | None = None,
        *,
        X: Tensor | None = None,
        Y: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> "WeightSpaceModel":
        """Return the model without some of its observations; this one is unchanged. Exact up to rounding.

        The statistics of these observations are subtracted, at the cost of adding as many and a copy of the other rows.
        Rounding matters for extreme outliers: removing one 10⁷ times as large as the rest leaves the evidence half a
        nat off, since its square is in the sums. With a forgetting factor (WISKI's `decay`) one pass over the other
        rows gives them new weights. Hyperparameters, grids and transforms do not change.

        Args:
            rows: Indices in order of arrival, from 0, or backwards from −1; each once. For models that keep rows.
            X: Raw inputs `k × d`, for models that keep only statistics. Pass exactly the values that were observed: the
                model cannot check them.
            Y: Raw values `k × m`, as observed.
            noise: Noise variances `k × m` in transformed units, as for `condition_on_observations`. Required if the
                model was given `train_Yvar`.

        Raises:
            InvalidDataError: if `rows` are not valid indices, if X and Y have wrong shapes, or if the model needs the
                other of the two.
            UnsupportedError: if the model holds fantasies, or forgets and keeps no rows.
        """
        if self._fantasies is not None:
            raise UnsupportedError(
                "remove_observations: the model holds fantasies. Use the model that they were made from."
            )
        with torch.no_grad():
            without = without_values if self._rows is None else without_rows
            return without(self, rows, X, Y, noise)

    def merged(self, *others: "WeightSpaceModel") -> "WeightSpaceModel":
        """Return a model of this one's observations and those of others, which may be on other devices. Exact.

        Statistics are sums, so they may be made apart and added: on several GPUs, each with a part of the rows, or in
        several processes. Targets are taken into this model's units. Hyperparameters are this model's.

        Args:
            *others: Models with the same features: the same grid, points and projection. As this one, they keep
                statistics alone (`keep_data=False`).

        Raises:
            UnsupportedError: for a model that keeps rows, forgets or holds fantasies.
            InvalidDataError: for other features, or another kind of noise.
        """
        return merged(self, others)

    def observe_from_host(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, rows: int = CHUNK
    ) -> "WeightSpaceModel":
        """Return a model that has also observed rows of the host; this one, which keeps statistics alone, is unchanged.

        Equal to `condition_on_observations`, for more rows than a GPU has memory for: chunks are copied from pinned
        memory without waiting, and summed. Pin the rows (`X.pin_memory()`) to spare the CPU a copy of them, and give
        float32 to copy half as much.

        Args:
            X: Raw inputs `n × d`, on the CPU.
            Y: Raw values `n × m`, on the CPU.
            noise: Noise variances `n × m` as for `condition_on_observations`, on the CPU.
            rows: Number of rows that are copied at once.

        Raises:
            UnsupportedError: for a model that keeps rows, or holds fantasies.
            InvalidDataError: if the rows are not on the CPU, do not fit or are not finite.
        """
        return with_host_rows(self, X, Y, noise, rows)

    def statistics_of(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, rows: int = CHUNK) -> PartialStatistics:
        """Return the statistics of rows under this model's features. Its own rows have no part in it.

        Parts may be made anywhere, with copies of one model, saved, sent and added: `with_statistics` makes the model
        of all rows. Costs what `observe_from_host` does.

        Args:
            X: Raw inputs `n × d`, on the CPU.
            Y: Raw values `n × m`, on the CPU.
            noise: Noise variances `n × m` as for `condition_on_observations`, on the CPU.
            rows: Number of rows that are summed at once.

        Raises:
            UnsupportedError: for a model with fantasies, decay or `StudentTNoise`, whose sums do not add up.
            InvalidDataError: if rows do not fit, are not finite or are not on the CPU.
        """
        return summed_apart(self, X, Y, noise, rows)

    def with_statistics(self, statistics: PartialStatistics) -> "WeightSpaceModel":
        """Return the model of the rows in these statistics instead of its own. It keeps statistics alone.

        Hyperparameters, features and units are this model's. O(p), and O(s³) for the first prediction.

        Args:
            statistics: Statistics that were made with this model or a copy of it, or a sum of such.

        Raises:
            UnsupportedError: as for `statistics_of`.
            InvalidDataError: for statistics of other features, units or noise.
        """
        return with_statistics(self, statistics)

    @override
    def _tell_likelihood(self) -> None:
        """Pass to the likelihood the rows with known variances, or their mean if rows are not kept."""
        super()._tell_likelihood()
        if self.knows_noise and self._rows is None and self._inference is not None and not borrows(self):
            mean = self._seen().mean_known_noise.unsqueeze(-1).to(self._dtype)
            mean = mean[:, : self.num_observations]  # none of no observations
            self.likelihood.noise_covar.mean = mean.squeeze(0) if self._num_outputs == 1 else mean

    @override
    def _inference_in_units(self, scale: Float[Tensor, " m"], offset: Float[Tensor, " m"]) -> WeightSpaceInference:
        inference = self._seen().in_units(scale, offset, self.knows_noise)
        return replace(inference, hyperparameters=replace(inference.hyperparameters, theta=_NOWHERE))

    @override
    def _saved_options(self) -> dict[str, Any]:
        return {**super()._saved_options(), "missing_variance": missing_of(self._extra)}

    @override
    def _restored_inference(self, saved: dict[str, Any]) -> WeightSpaceInference:
        known = self._hyperparameters_now(self._hyperparameters())
        for j, state in enumerate(saved["statistics"]):
            _require_size(self._size_option, len(state["feature_sum"]), known.features[j].num_features)
        waiting = saved.get("waiting", 0)
        pending: tuple[Observed, ...] = ()
        if waiting > 0:
            X, Y, D = self._transformed_rows()
            pending = ((X[-waiting:], Y[-waiting:], D[-waiting:]),)
        found = restored(known, saved, self._device, pending)
        for process in found.updated or ():
            if isinstance(process, WeightSpacePosterior):
                _require_size("rank of the prior", len(process.weights), process.features.num_features)
        found = replace(found, feature_values=self._feature_values(), may_wait=self._rows is not None)
        self._inference = self._inference_from(found)
        self._tell_likelihood()
        return self._inference


def outdate(model: WeightSpaceModel) -> None:
    """Take hyperparameters for changed, without a look at them: the next inference is made anew. In place."""
    if isinstance(model._inference, WeightSpaceInference):
        model._inference = model._inference.at_theta(_NOWHERE)


@contextmanager
def rows_elsewhere(model: WeightSpaceModel, elsewhere: Elsewhere) -> Iterator[None]:
    """Let a model that keeps statistics alone learn its features, from rows that are elsewhere, within the context."""
    model._elsewhere = elsewhere
    try:
        yield
    finally:
        model._elsewhere = None


def drop_rows(model: WeightSpaceModel) -> None:
    """Drop the rows of a model in place and keep only the statistics."""
    model._inference = replace(model._seen().settled(), may_wait=False)
    model._take_rows(None)


def keep_statistics(model: WeightSpaceModel) -> None:
    """Keep the present statistics of a model although features have changed; observations stay as they entered."""
    found, values = model._inference, model._feature_values()
    if not isinstance(found, WeightSpaceInference):
        return
    if found.feature_values is not None and not _equal(found.feature_values, values):  # sums of several features
        found = replace(found, summed=tuple(replace(each, features=()) for each in found.summed))
    model._inference = replace(found, feature_values=values)


def few_rows(model: WeightSpaceModel) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"]] | None:
    """Return transformed inputs, targets and D if they are so few that n×n matrices are cheaper; else None."""
    rows = model._rows
    if rows is None or rows.count == 0 or rows.count > model._feature_map(0).max_rank // FEW:
        return None
    return model._transformed_rows()


def evidence_of(
    model: WeightSpaceModel,
    statistics: tuple[SufficientStatistics, ...],
    roots: Sequence[LinearOperator] | None = None,
) -> Float[Tensor, " m"]:
    """Return log p of the observations in given statistics, at the current hyperparameters, for every output.

    Args:
        model: The model.
        statistics: Statistics of its features.
        roots: The prior root of every output, if already computed.
    """
    noise, constants = model._inference_noise(), model._constants()
    every = []
    for j in range(model._num_outputs):
        known = statistics_of(statistics, j, len(noise)), noise[j], constants[j]
        every.append(_evidence(model._feature_map(j), *known) if roots is None else log_evidence(roots[j], *known))
    return torch.stack(every)


def _differentiable_statistics(model: WeightSpaceModel) -> tuple[SufficientStatistics, ...]:
    """Return the statistics, differentiable in the features' parameters if these are learned."""
    statistics = model.statistics
    learned = learned_features(model)
    if not learned or not torch.is_grad_enabled():
        return statistics
    elsewhere = model._elsewhere
    if elsewhere is not None:
        return differentiable(statistics, partial(elsewhere.pulled_back, model), learned)
    if model._rows is None:
        raise UnsupportedError("Parameters of features can be learned only if rows are kept. Use keep_data=True.")
    X, Y, D = model._transformed_rows()
    D = model.forgetting.noise_of(D)  # the gradient knows no other sums than those with ω/D
    centers = [stats.center for stats in statistics]
    return differentiable(statistics, partial(pulled_back_through, model, centers, (X, Y, D)), learned)


def learned_features(model: WeightSpaceModel) -> list[torch.nn.Parameter]:
    """Return the parameters of the features that require a gradient."""
    return [p for p in model._feature_parameters() if p.requires_grad]


def pulled_back_through(
    model: WeightSpaceModel, centers: Sequence[Tensor], rows: Observed, grads: list[Gradients]
) -> list[Tensor]:
    """Return derivatives with respect to the learned parameters of the features, in one pass over rows.

    Args:
        model: The model, with the parameters that the derivatives are of.
        centers: Center of the targets in each group of statistics.
        rows: Transformed rows.
        grads: Derivatives with respect to the sums of each group.
    """
    (X, Y, D), learned, one = rows, learned_features(model), len(centers) == 1
    parts = []
    for j, (center, of_sums) in enumerate(zip(centers, grads, strict=True)):
        outputs = slice(None) if one else slice(j, j + 1)
        given = X, Y[:, outputs] - center, D[:, outputs][:, 0]
        parts.append(pulled_back(partial(model._feature_map, j), learned, given, of_sums))
    return [torch.stack(each).sum(0) for each in zip(*parts, strict=True)]


_NOWHERE = torch.empty(0, dtype=torch.float64)
"""Hyperparameters that match no model: an inference at these has valid statistics but stale processes."""


def _evidence(phi: FeatureMap, stats: SufficientStatistics, noise: Tensor, constant: Tensor) -> Float[Tensor, ""]:
    """Return the log evidence by the sparse inverse of S if there is one, else by S, or by its structured root."""
    S, sparse = phi.prior_matrix(), phi.sparse_prior()
    if sparse is not None:
        return log_evidence_of_precision(sparse, stats, noise, constant)
    if S is not None:
        return log_evidence_of_kernel(S, stats, noise, constant)
    return log_evidence(phi.prior_root(), stats, noise, constant)


def _require_size(what: str, saved: int, own: int) -> None:
    """Refuse saved tensors of another size."""
    if saved != own:
        raise InvalidDataError(
            f"{what} is {saved} in the saved model and {own} in this one. Construct this model with the options and "
            f"the kernel of the saved one."
        )


def _equal(a: Tensor, b: Tensor | None) -> bool:
    """Whether both hold the same values on the same device."""
    return b is not None and a.device == b.device and same(a, b)
