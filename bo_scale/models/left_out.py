"""The rows of a model as one Gaussian vector, y ~ N(μ, A) at fixed hyperparameters, for predictions without some rows.

With P = A⁻¹ and u = P(y − μ), rows I as predicted from all others have errors P_II⁻¹ u_I and covariance P_II⁻¹, noise
included. For an exact GP A = K + N. For a weight-space model P = N⁻¹ − N⁻¹VN⁻¹ with V the posterior covariance of f at
the rows, so that P_ii = (1 − h_i)/σ_i² with the leverage h_i = V_ii/σ_i².

C. E. Rasmussen, C. K. I. Williams. Gaussian processes for machine learning. MIT Press, 2006: equation 5.12.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from botorch.utils.transforms import is_ensemble
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.models import ExactGP
from jaxtyping import Float, Int
from linear_operator import to_dense
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.weight_space.posterior import WeightLocated
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.function_space import FunctionSpaceModel
from bo_scale.models.shell.kernels import OutputKernel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.student_t import StudentTNoise
from bo_scale.models.shell.weight_space import WeightSpaceModel

MOST = 6000
"""Largest number of rows of which a matrix n × n is made."""
CHUNK = 8192


class Precision(ABC):
    """P = A⁻¹, the inverse covariance of the rows."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, " n"]:
        """Return P_ii."""

    @abstractmethod
    def columns(self, rows: Int[Tensor, " k"]) -> Float[Tensor, "n k"]:
        """Return the columns of some rows."""

    @abstractmethod
    def times(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return P times a vector."""


@dataclass(frozen=True)
class DensePrecision(Precision):
    """P as a matrix.

    Attributes:
        matrix: P.
    """

    matrix: Float[Tensor, "n n"]

    @classmethod
    def of(cls, K: Float[Tensor, "n n"], noise: Float[Tensor, " n"]) -> "DensePrecision":
        """Return the inverse of K + N, whitened by the noise, so that it needs no jitter. K is overwritten. O(n³)."""
        H = noise.rsqrt()
        K.mul_(H).mul_(H.unsqueeze(-1)).diagonal().add_(1.0)
        P = torch.cholesky_inverse(cholesky(K, "K + N of all rows, whitened by the noise"))
        return cls(P.mul_(H).mul_(H.unsqueeze(-1)))

    @override
    def diagonal(self) -> Float[Tensor, " n"]:
        return self.matrix.diagonal()

    @override
    def columns(self, rows: Int[Tensor, " k"]) -> Float[Tensor, "n k"]:
        return self.matrix[:, rows]

    @override
    def times(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.matrix @ values


@dataclass(frozen=True)
class RootPrecision(Precision):
    """P = N⁻¹ − G Gᵀ with G = N⁻¹F, from the posterior of a weight-space model, whose covariance at the rows is F Fᵀ.

    Attributes:
        noise: The diagonal of N.
        root: G.
    """

    noise: Float[Tensor, " n"]
    root: Float[Tensor, "n s"]

    @override
    def diagonal(self) -> Float[Tensor, " n"]:
        """P_ii = (1 − h_i)/σ_i², of which rounding leaves at least 1e-12/σ_i²."""
        share = 1 - self.noise * self.root.square().sum(-1)
        return share.clamp_min(1e-12) / self.noise

    @override
    def columns(self, rows: Int[Tensor, " k"]) -> Float[Tensor, "n k"]:
        found = -self.root @ self.root[rows].mT
        found[rows, torch.arange(len(rows), device=rows.device)] = self.diagonal()[rows]
        return found

    @override
    def times(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return values / self.noise - self.root @ (self.root.mT @ values)


@dataclass(frozen=True)
class GaussianRows:
    """The rows of a model of one output as y ~ N(μ, A), in transformed units.

    Attributes:
        precision: A⁻¹.
        residual: y − μ.
        noise: Noise variances with which the rows were observed, the diagonal of N.
        noise_of_new: Noise variances with which they would be observed again; under Student-t noise those of any row.
        extra: Variance that predictions add to those of the process.
        scale: The raw unit of the transformed targets.
        regular: Under Student-t noise σ², the variance of noise that is no outlier's; None for other noise.
        local: Factor by which predictions scale variances, as errors of rows elsewhere have it; None for one.
    """

    precision: Precision
    residual: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]
    noise_of_new: Float[Tensor, " n"]
    extra: Float[Tensor, " n"]
    scale: float
    regular: Float[Tensor, " n"] | None = None
    local: Float[Tensor, " n"] | None = None

    def left_out(
        self, folds: list[Int[Tensor, " _"]] | None = None, noise: Float[Tensor, " n"] | None = None
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return errors y − E[y] and variances of every row as predicted without its fold, in raw units.

        Args:
            folds: Rows of each fold, every row in one; None for one row each.
            noise: Noise variances of the predicted rows; None for `noise_of_new`.
        """
        again = self.noise_of_new if noise is None else noise
        u, own = self.precision.times(self.residual), again + self.extra - self.noise
        if folds is None:
            diagonal = self.precision.diagonal()
            errors, variances = u / diagonal, 1 / diagonal
        else:
            errors, variances = torch.empty_like(u), torch.empty_like(u)
            for fold in folds:
                errors[fold], variances[fold] = _solved(self.precision.columns(fold)[fold], u[fold])
        variances = (variances + own) if self.local is None else self.local * (variances + own)
        return self.scale * errors, self.scale**2 * variances


def _solved(P: Float[Tensor, "k k"], u: Float[Tensor, " k"]) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Return P⁻¹u and the diagonal of P⁻¹."""
    C = cholesky(0.5 * (P + P.mT), "precision of the rows of a fold")
    return torch.cholesky_solve(u.unsqueeze(-1), C).squeeze(-1), torch.cholesky_inverse(C).diagonal()


@torch.no_grad()
def gaussian_rows(model: Model) -> GaussianRows:
    """Return the rows of a fitted model as one Gaussian vector, at its present hyperparameters.

    A function-space model with fewer actions or bases than rows is taken for the exact GP that it approximates. O(n³)
    for it and for BoTorch's exact GPs, O(n s) memory and O(n p s) time for a weight-space model.

    Args:
        model: A model of one output.

    Raises:
        UnsupportedError: for models that are no Gaussian vector of this kind, or of too many rows.
    """
    model.eval()
    found: Any = model
    reason = _unlike(found)
    if reason is not None:
        raise UnsupportedError(f"model: {type(model).__name__} has no leave-one-out in closed form: {reason}.")
    if isinstance(found, WeightSpaceModel):
        return _of_weights(found)
    return _of_kernel(found) if isinstance(found, FunctionSpaceModel) else _of_exact(found)


def _unlike(model: Any) -> str | None:
    """Return why a model's rows are no Gaussian vector with a simple precision; None if they are."""
    transform = getattr(model, "outcome_transform", None)
    if model.num_outputs > 1 or is_ensemble(model) or model.batch_shape:
        return "it has several outputs, is an ensemble or holds fantasies"
    if transform is not None and type(transform) is not Standardize:
        return f"{type(transform).__name__} as outcome_transform is not linear"
    if isinstance(model, ScalableModel):
        return _unlike_ours(model)
    plain = isinstance(model, ExactGP) and type(model.likelihood) in (GaussianLikelihood, FixedNoiseGaussianLikelihood)
    if not plain:
        return "it is no exact GP with Gaussian noise"
    return _too_many(len(model.train_targets))


def _unlike_ours(model: ScalableModel) -> str | None:
    if model.rows is None:
        return "it keeps no rows; use keep_data=True"
    if not isinstance(model, WeightSpaceModel):
        return _too_many(model.rows.count)
    return "decay changes the weights of other rows" if model.forgetting.forgets else None


def _too_many(n: int) -> str | None:
    return f"{n} rows, of at most {MOST}" if n > MOST else None


def _of_weights(model: WeightSpaceModel) -> GaussianRows:
    X, Y, D = model._transformed_rows()
    process, noise = model.processes[0], model.inference.noise[0] * D[:, 0]
    parts = [process.locate(part) for part in X.split(CHUNK)]
    roots = [part.root for part in parts if isinstance(part, WeightLocated)]
    if len(roots) == len(parts):
        precision: Precision = RootPrecision(noise, torch.cat(roots) / noise.unsqueeze(-1))
    elif len(X) > MOST:
        raise UnsupportedError(f"model: {len(X)} rows on a grid without a root; leave-one-out is for at most {MOST}.")
    else:
        V, H = process.covariance(X), 1 / noise
        precision = DensePrecision(torch.diag(H) - H * V * H.unsqueeze(-1))
    extra = model.inference.extra_variance(X, 0)
    extra = torch.zeros_like(noise) if extra is None else extra
    return _gathered(model, precision, Y[:, 0] - model._constants()[0], noise, extra, D[:, 0])


def _of_kernel(model: FunctionSpaceModel) -> GaussianRows:
    X, Y, D = model._transformed_rows()
    noise = model._noise_scale()[0].detach() * D[:, 0]
    K = OutputKernel.of(model.covar_module, 0, 1)(X, X).detach().clone()
    residual = Y[:, 0] - model._constants()[0]
    found = _gathered(model, DensePrecision.of(K, noise), residual, noise, torch.zeros_like(noise), D[:, 0])
    local = model.inference.local(0) if isinstance(model.inference, FunctionSpaceInference) else None
    return found if local is None else replace(found, local=local.left_out(X))


def _gathered(
    model: ScalableModel, precision: Precision, residual: Tensor, noise: Tensor, extra: Tensor, D: Tensor
) -> GaussianRows:
    again, regular = noise, None
    if isinstance(model.likelihood, StudentTNoise) and model.rows is not None:
        regular = noise / D
        again = regular * model.likelihood.mean_squares(model.rows).to(noise)
    return GaussianRows(precision, residual.detach(), noise, again, extra, _scale(model), regular)


def _of_exact(model: Any) -> GaussianRows:
    """Return the rows of BoTorch's exact GP."""
    X, y = model.train_inputs[0], model.train_targets
    prior = model.forward(X)
    noise = model.likelihood.noise.detach().double().expand(len(y)).clone()
    K = to_dense(prior.covariance_matrix).detach().double().clone()
    return GaussianRows(
        DensePrecision.of(K, noise),
        (y - prior.mean).detach().double(),
        noise,
        noise,
        torch.zeros_like(noise),
        _scale(model),
    )


def _scale(model: Any) -> float:
    transform = getattr(model, "outcome_transform", None)
    return 1.0 if transform is None else float(transform.stdvs.double().reshape(-1)[0])
