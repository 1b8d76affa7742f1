"""Student-t noise of a model: a Gaussian likelihood whose variance differs from row to row, as a fit finds."""

from typing import Any

import torch
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from gpytorch.likelihoods import GaussianLikelihood
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.student_t import DEGREES, bound_gain, squares_of
from bo_scale.models.shell.rows import Rows

SUSPICIOUS = 9.0
"""Expected squared residual, relative to the noise variance, beyond which a row is suspicious: three deviations."""


class StudentTNoise(GaussianLikelihood):
    """Noise with heavy tails, for data with outliers: σ times a Student-t variable with ν degrees of freedom.

    A fit gives each row a noise variance of its own, large where the residual is, and chooses ν among 3, 5, 10 and 30
    by the variational bound of the evidence. Later observations have variance σ² until the next fit. A posterior is
    Gaussian, as for other models; `observation_noise=True` adds the mean squared residual. `model.suspects` lists rows
    that the model takes for outliers.

    Args:
        batch_shape: Batch shape of σ² and ν: empty for one output, m for several.
        **kwargs: Further arguments of GPyTorch's GaussianLikelihood; by default BoTorch's prior and constraint.

    References:
        M. E. Tipping, N. D. Lawrence. Variational inference for Student-t models. Neurocomputing 69, 2005.

    Examples:
        >>> from botorch.fit import fit_gpytorch_mll
        >>> from gpytorch.mlls import ExactMarginalLogLikelihood
        >>> from bo_scale import CaGP
        >>> X = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
        >>> Y = X.sin()
        >>> Y[3] = 100.0
        >>> model = CaGP(X, Y, likelihood="student_t")
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.suspects
        [3]
    """

    def __init__(self, batch_shape: torch.Size | None = None, **kwargs: Any) -> None:
        shape = torch.Size([]) if batch_shape is None else batch_shape
        super().__init__(batch_shape=shape, **kwargs)
        if not kwargs:
            self.noise_covar = get_gaussian_likelihood_with_lognormal_prior(batch_shape=shape).noise_covar
        degrees = torch.full((*shape, 1), DEGREES[0])
        self.register_parameter("degrees_of_freedom", torch.nn.Parameter(degrees, requires_grad=False))

    degrees_of_freedom: torch.nn.Parameter
    """ν, of shape `batch_shape × 1`. A fit chooses it."""

    def mean_squares(self, rows: Rows) -> Float[Tensor, " m"]:
        """Return the mean of the rows' expected squared residuals, relative to σ²."""
        squares: Tensor = squares_of(rows.D, self.degrees_of_freedom.reshape(-1)).clamp_min(0.0)
        return squares.mean(0) if len(squares) > 0 else torch.ones_like(self.degrees_of_freedom).reshape(-1)

    def bound_gain(self, rows: Rows) -> Float[Tensor, " m"]:
        """Return what the variational bound has beyond the log evidence of the weighted rows."""
        degrees = self.degrees_of_freedom.reshape(-1)
        columns = squares_of(rows.D, degrees).clamp_min(0.0).unbind(-1)
        gains = [bound_gain(column, nu).sum() for column, nu in zip(columns, degrees.tolist(), strict=True)]
        return torch.stack(gains)

    def suspects(self, rows: Rows) -> list[int]:
        """Return the indices of suspicious rows, the most suspicious first."""
        squares = squares_of(rows.D, self.degrees_of_freedom.reshape(-1)).amax(-1)
        order = squares.argsort(descending=True)
        return [int(row) for row in order[squares[order] > SUSPICIOUS]]
