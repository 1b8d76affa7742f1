"""GPyTorch distributions of located points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils.assorted import fantasize as fantasize_flag
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    DenseLinearOperator,
    LowRankRootLinearOperator,
    TriangularLinearOperator,
)
from linear_operator.utils.memoize import add_to_cache, cached
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.inference import Inference
from bo_scale.gp.processes import Located
from bo_scale.gp.waiting import granting, holds
from bo_scale.gp.weight_space.posterior import WeightLocated
from bo_scale.models.shell.any_units import LEAST_VARIANCE, AnyUnits, AnyUnitsMultitask, raised

NO_BATCH = torch.Size([])
FACTORISED = 64
"""Number of points up to which a posterior on a GPU has its Cholesky factor at once."""
MANY = 1024
"""Number of points beyond which a posterior's covariance is computed only on demand: Ax asks for 4096 at once."""


def standardisation(transform: OutcomeTransform | None, outputs: list[int]) -> list[tuple[Tensor, Tensor]] | None:
    """Return offset and scale of each output from a Standardize; None for any other transform.

    Scaling the root of a covariance keeps it a root; Standardize's own untransform would make it dense.
    """
    if type(transform) is not Standardize or transform._outputs is not None:
        return None
    means, scales = transform.means.double().reshape(-1), transform.stdvs.double().reshape(-1)
    return [(means[j], scales[j]) for j in outputs]


@dataclass(frozen=True)
class Added:
    """Variances added to the posterior process in a prediction at q points: white noise and measurement noise.

    Attributes:
        points: The q points.
        white: Variance of e(x), which has one value at each point: equal rows share it. None for no e.
        noise: Variance of measurements, for all rows or for each, independent between rows. None for none.
    """

    points: Float[Tensor, "*b q d"]
    white: Float[Tensor, "*b q"] | None = None
    noise: Float[Tensor, "*n r"] | None = None

    def diagonal(self) -> Float[Tensor, "*c q"] | None:
        """Return the sum of these variances; None for none."""
        if self.white is None or self.noise is None:
            return self.noise if self.white is None else self.white
        return self.white + self.noise

    def repeats(self) -> bool:
        """Whether some point with e occurs twice in a batch, so that its covariance is not diagonal. O(q log q)."""
        q, d = self.points.shape[-2:]
        if self.white is None or q < 2:
            return False
        rows = self.points.detach().reshape(-1, q, d)
        batch = torch.arange(len(rows), device=rows.device).to(rows).reshape(-1, 1, 1).expand(-1, q, 1)
        return len(torch.cat([batch, rows], -1).flatten(0, 1).unique(dim=0)) < rows.shape[:-1].numel()

    def add_to(self, covariance: Float[Tensor, "*c q q"], scale: Tensor | float) -> Float[Tensor, "*e q q"]:
        """Return the covariance with these variances added, times scale²."""
        q = covariance.shape[-1]
        if self.noise is not None:
            covariance = covariance + torch.diag_embed((scale * scale * self.noise).expand(*self.noise.shape[:-1], q))
        if self.white is not None:
            same = torch.eye(q, dtype=torch.bool, device=covariance.device)
            if self.points.is_cuda or self.repeats():  # on a GPU comparing all is cheaper than to wait
                same = (self.points.unsqueeze(-2) == self.points.unsqueeze(-3)).all(-1)
            covariance = covariance + (scale * scale * self.white).unsqueeze(-1) * same
        return covariance


class DiagonalFirst(LinearOperator):
    """A covariance of many points whose diagonal is known; the rest is computed on demand.

    It has no gradients: generic code would see only the diagonal of the operator.
    """

    def __init__(self, diagonal: Float[Tensor, "*b q"], dense: Callable[[], Float[Tensor, "*b q q"]]) -> None:
        super().__init__(diagonal, dense=dense)
        self._known, self._dense = diagonal, dense

    @override
    def _diagonal(self) -> Float[Tensor, "*b q"]:
        return self._known

    @override
    def _size(self) -> torch.Size:
        return torch.Size([*self._known.shape, self._known.shape[-1]])

    @override
    def _transpose_nonbatch(self) -> "DiagonalFirst":
        return self

    @override
    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.to_dense() @ rhs

    @override
    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return DenseLinearOperator(self.to_dense()).expand(*batch_shape, *self.shape[-2:])

    @override
    def type(self, dtype: torch.dtype) -> LinearOperator:
        return DenseLinearOperator(self.to_dense()).type(dtype)

    @override
    def to(self, *args: Any, **kwargs: Any) -> LinearOperator:
        return DenseLinearOperator(self.to_dense()).to(*args, **kwargs)

    @override
    def unsqueeze(self, dim: int) -> LinearOperator:
        return DenseLinearOperator(self.to_dense()).unsqueeze(dim)

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return DenseLinearOperator, (self.to_dense(),)

    @cached(name="dense")  # type: ignore[untyped-decorator]
    @override
    def to_dense(self) -> Float[Tensor, "*b q q"]:
        return self._dense()


def covariance_operator(
    located: Located, added: Added, scale: Tensor | float, dtype: torch.dtype, batch: torch.Size
) -> LinearOperator:
    """Return the covariance times scale²: dense for few points, a root for many more points than the posterior's rank.

    For more than `MANY` points without such a root, it is computed only when more than variances is needed.
    """
    q, least = located.mean.shape[-1], LEAST_VARIANCE * scale * scale
    if isinstance(located, WeightLocated) and q > 2 * located.root.shape[-1] and not added.repeats():
        root, diagonal = (scale * located.root).to(dtype), added.diagonal()
        operator: LinearOperator = LowRankRootLinearOperator(root.expand(*batch, *root.shape[-2:]))
        if diagonal is None:
            return operator
        return operator.add_diagonal((scale * scale * diagonal).to(dtype).expand(*batch, q))

    def dense() -> Tensor:
        covariance = scale * scale * located.covariance(located)
        covariance = raised(added.add_to(0.5 * (covariance + covariance.mT), scale), least)
        return covariance.to(dtype).expand(*batch, q, q)

    if q <= MANY:
        return with_root(dense())
    diagonal = added.diagonal()
    variance = scale * scale * (located.variance() if diagonal is None else located.variance() + diagonal)
    known = variance.clamp_min(least).to(dtype).expand(*batch, q)
    return DenseLinearOperator(dense()) if known.requires_grad else DiagonalFirst(known, dense)


def with_root(covariance: Float[Tensor, "*b q q"]) -> DenseLinearOperator:
    """Return the covariance of few points, on a GPU with its Cholesky factor.

    Whoever draws from it need not wait to learn whether there is one, since that is read with all other conditions. If
    there is none, GPyTorch adds jitter, and says so.
    """
    operator = DenseLinearOperator(covariance)
    if granting() and 1 < covariance.shape[-1] <= FACTORISED:
        factor, info = torch.linalg.cholesky_ex(covariance)
        if holds(info == 0):
            add_to_cache(operator, "cholesky", TriangularLinearOperator(factor), upper=False)
    return operator


def for_each_output(X: Float[Tensor, "*b q d"], outputs: int) -> bool:
    """Return whether inputs are shaped like the `train_inputs` of a model with several outputs."""
    return outputs > 1 and X.ndim > 2 and X.shape[-3] == outputs


def inputs_of_outputs(X: Float[Tensor, "*b q d"], outputs: int) -> list[Float[Tensor, "*c q d"]]:
    """Return the inputs of each output: its own if there are some for each, else all."""
    return list(X.unbind(-3)) if for_each_output(X, outputs) else [X] * outputs


def prior_of(covariance: Any, constants: Float[Tensor, " m"], X: Float[Tensor, "*b q d"]) -> MultivariateNormal:
    """Return the prior of all outputs, which are independent, at transformed inputs with a given covariance.

    Inputs `… m × n × d`, as `train_inputs` are for m outputs, give a batch of m distributions, as BoTorch's models do.
    """
    mean = constants.to(X)
    if len(constants) == 1:
        return MultivariateNormal(mean.expand(X.shape[:-1]), covariance)
    if for_each_output(X, len(constants)):
        return MultivariateNormal(mean.unsqueeze(-1).expand(X.shape[:-1]), covariance)
    batch = MultivariateNormal(mean.unsqueeze(-1).expand(*X.shape[:-2], -1, X.shape[-2]), covariance)
    return MultitaskMultivariateNormal.from_batch_mvn(batch)


def predicted(
    inference: Inference,
    X: Float[Tensor, "*b q d"],
    outputs: Sequence[int],
    noise: Float[Tensor, "*n r k"] | None = None,
    units: Sequence[tuple[Tensor, Tensor]] | None = None,
    batch: torch.Size = NO_BATCH,
    dtype: torch.dtype = torch.float64,
) -> MultivariateNormal:
    """Return the joint distribution of some outputs at transformed inputs.

    Args:
        inference: The posterior.
        X: Transformed inputs.
        outputs: Indices of the outputs.
        noise: Variances of measurements of these outputs; None for none.
        units: Offset and scale of each of these outputs; None for 0 and 1.
        batch: Batch shape of the posterior's fantasies, or of its samples.
        dtype: Dtype of the result; computation is in float64.
    """
    here = torch.Size([*X.shape[:-2], *inference.samples_shape])
    batch = here if batch == here or not batch else torch.broadcast_shapes(here, batch)
    means, covariances = [], []
    for position, j in enumerate(outputs):
        located = inference.processes[j].locate(X.to(torch.float64))
        white = None if fantasize_flag.on() else inference.extra_variance(X, j)
        added = Added(X, white, None if noise is None else noise[..., position].to(torch.float64))
        offset, scale = (0.0, 1.0) if units is None else units[position]
        means.append((offset + scale * located.mean).to(dtype).expand(*batch, X.shape[-2]))
        covariances.append(covariance_operator(located, added, scale, dtype, batch))
    return joint_distribution(means, covariances)


def marginals(
    inference: Inference,
    X: Float[Tensor, "q d"],
    located: Sequence[Located],
    noise: Float[Tensor, "*n m"],
    units: Sequence[tuple[Tensor, Tensor]] | None = None,
) -> tuple[Float[Tensor, "q m"], Float[Tensor, "q m"]]:
    """Return means and variances of measurements of all outputs at points, without their covariances.

    Args:
        inference: The posterior.
        X: Transformed inputs.
        located: The points in the process of every output.
        noise: Variances of the measurements.
        units: As for `predicted`.
    """
    variances = []
    for j, points in enumerate(located):
        white, own = inference.extra_variance(X, j), points.variance()
        variances.append(own if white is None else own + white)
    mean, variance = torch.stack([points.mean for points in located], -1), torch.stack(variances, -1) + noise
    if units is None:
        return mean, variance
    offset, scale = units[0] if len(units) == 1 else (torch.stack(values) for values in zip(*units, strict=True))
    return offset + scale * mean, scale * scale * variance


def joint_distribution(means: list[Tensor], covariances: list[LinearOperator]) -> MultivariateNormal:
    """Return the distribution of one output, or the joint distribution of several independent ones."""
    if len(means) == 1:
        return AnyUnits(means[0], covariances[0])
    if all(isinstance(covariance, LowRankRootLinearOperator) for covariance in covariances):
        roots = [covariance.root.to_dense() for covariance in covariances]
        width = max(root.shape[-1] for root in roots)
        padded = [torch.nn.functional.pad(root, (0, width - root.shape[-1])) for root in roots]
        blocks: LinearOperator = LowRankRootLinearOperator(torch.stack(padded, -3))
    else:
        blocks = DenseLinearOperator(torch.stack([covariance.to_dense() for covariance in covariances], -3))
    return AnyUnitsMultitask(torch.stack(means, -1), BlockDiagLinearOperator(blocks), interleaved=False)
