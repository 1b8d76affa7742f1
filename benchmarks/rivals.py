"""GPyTorch's and BoTorch's own models for data sets of any size: SVGP, SGPR and, where it is possible, the exact GP.

Inputs and values are expected standardised. Kernels are RBF with a lengthscale a dimension unless another is given; the
two sparse models have an outputscale and start from k-means inducing points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from gpytorch.models import ApproximateGP, ExactGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from scipy.cluster.vq import kmeans2
from scipy.linalg import cho_solve, cholesky, solve_triangular
from torch import Tensor

SVGP_POINTS, SVGP_EPOCHS, SVGP_BATCH, SVGP_RATE = 1024, 50, 1024, 0.01
SGPR_POINTS, SGPR_STEPS, SGPR_RATE = 512, 100, 0.1
SUBSET = 2000
"""Rows that the hyperparameters of an exact GP of all rows are learned from."""
CHUNK = 1000
"""Test points predicted at once."""
KMEANS_ROWS, KMEANS_STEPS = 20_000, 10

Predictions = tuple[Tensor, Tensor]
KernelOf = Callable[[int], Kernel]
"""From the dimension to a kernel."""


def scaled_rbf(d: int) -> Kernel:
    """GPyTorch's RBF with a lengthscale a dimension and an outputscale, without priors."""
    return ScaleKernel(RBFKernel(ard_num_dims=d))


def gpytorch_defaults() -> Any:
    """GPyTorch's settings as they are before BoTorch's import, with which SGPR would factorise n × n matrices."""
    return gpytorch.settings.fast_computations(covar_root_decomposition=True, log_prob=True, solves=True)


@dataclass(frozen=True)
class Fitted:
    """A fitted model: means and variances of observations at points `M × d`, and the noise variance it learned."""

    observe: Callable[[Tensor], Predictions]
    noise: float

    def predict(self, X: Tensor) -> Predictions:
        """Mean and variance of an observation at each point: `M` each, in float64 on the CPU."""
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            parts = [self.observe(part) for part in X.split(CHUNK)]
        mean, variance = (torch.cat([part[i].reshape(-1).double().cpu() for part in parts]) for i in (0, 1))
        return mean, variance


class SVGP(ApproximateGP):
    """A whitened variational GP with a full covariance over its inducing points `m × d`, which are learned."""

    def __init__(self, points: Tensor, kernel: KernelOf = scaled_rbf) -> None:
        distribution = CholeskyVariationalDistribution(len(points))
        super().__init__(VariationalStrategy(self, points.clone(), distribution, learn_inducing_locations=True))
        self.mean_module = ConstantMean()
        self.covar_module = kernel(points.shape[-1])
        self.likelihood = GaussianLikelihood()
        self.to(points)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior at points `… q d`."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


class SGPR(ExactGP):
    """An exact GP under the Nyström kernel of learned inducing points `m × d`."""

    def __init__(self, X: Tensor, Y: Tensor, points: Tensor, kernel: KernelOf = scaled_rbf) -> None:
        super().__init__(X, Y, GaussianLikelihood())
        self.mean_module = ConstantMean()
        self.covar_module = InducingPointKernel(kernel(X.shape[-1]), points.clone(), self.likelihood)
        self.to(X)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior at points `… q d`."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def svgp_step(model: SVGP, n: int, rate: float = SVGP_RATE) -> Callable[[Tensor, Tensor], None]:
    """One step of Adam on the ELBO of a minibatch of n observations."""
    mll = VariationalELBO(model.likelihood, model, num_data=n)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def step(X: Tensor, Y: Tensor) -> None:
        optimizer.zero_grad()
        (-mll(model(X), Y)).backward()
        optimizer.step()

    return step


def fit_svgp(X: Tensor, Y: Tensor, kernel: KernelOf = scaled_rbf) -> Fitted:
    """SVGP by minibatches, in float32."""
    X, Y = X.float(), Y.float()
    model = SVGP(kmeans(X, SVGP_POINTS), kernel).train()
    step = svgp_step(model, len(X))
    generator = torch.Generator().manual_seed(0)
    with gpytorch_defaults():
        for _ in range(SVGP_EPOCHS):
            for rows in torch.randperm(len(X), generator=generator).to(X.device).split(SVGP_BATCH):
                step(X[rows], Y[rows])
    return _fitted(model)


def fit_sgpr(X: Tensor, Y: Tensor, kernel: KernelOf = scaled_rbf, points: int | None = None) -> Fitted:
    """SGPR by Adam over all the data, in float64: in float32 its Cholesky factors fail. `points`: SGPR_POINTS."""
    model = SGPR(X, Y, kmeans(X, points or SGPR_POINTS), kernel).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=SGPR_RATE)
    with gpytorch_defaults():
        for _ in range(SGPR_STEPS):
            optimizer.zero_grad()
            (-mll(model(X), Y)).backward()
            optimizer.step()
    return _fitted(model)


def fit_exact(X: Tensor, Y: Tensor) -> Fitted:
    """BoTorch's SingleTaskGP."""
    model = SingleTaskGP(X, Y.unsqueeze(-1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return of_botorch(model)


def fit_exact_of_all_rows(X: Tensor, Y: Tensor) -> Fitted:
    """An exact GP of all rows with a Matérn-3/2 kernel: one Cholesky factor, in place, at hyperparameters of a subset.

    For 41,000 rows in float64 it takes 13.5 GB and n³ / 3 multiplications.

    References:
        K. A. Wang et al. Exact Gaussian processes on a million data points. NeurIPS 2019: its kernel; there all rows
        learn the hyperparameters.
    """
    rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:SUBSET]
    kernel = ScaleKernel(MaternKernel(1.5, ard_num_dims=X.shape[-1]))
    subset = SingleTaskGP(
        X[rows], Y[rows].unsqueeze(-1), likelihood=GaussianLikelihood(), covar_module=kernel, outcome_transform=None
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(subset.likelihood, subset))
    noise, scale = subset.likelihood.noise.item(), kernel.outputscale.item()
    constant = subset.mean_module(X[:1]).item()

    def covariance(Z: Tensor) -> Tensor:
        with torch.no_grad():
            return kernel(X, Z).to_dense()

    factor = np.empty((len(X), len(X)), order="F")
    for start in range(0, len(X), CHUNK):
        factor[:, start : start + CHUNK] = covariance(X[start : start + CHUNK])
    factor[np.diag_indices(len(X))] += noise
    factor = cholesky(factor, lower=True, overwrite_a=True, check_finite=False)
    weights = cho_solve((factor, True), (Y - constant).numpy(), check_finite=False)

    def observe(Z: Tensor) -> Predictions:
        cross = covariance(Z).numpy()
        explained = solve_triangular(factor, cross, lower=True, check_finite=False)
        mean, variance = constant + cross.T @ weights, scale + noise - np.square(explained).sum(0)
        return torch.from_numpy(mean), torch.from_numpy(variance)

    return Fitted(observe, noise)


def fit_exact_with(X: Tensor, Y: Tensor, kernel: KernelOf, steps: int) -> Fitted:
    """SingleTaskGP with a kernel and a likelihood as the sparse models have them, by so many iterations of L-BFGS."""
    options = {"covar_module": kernel(X.shape[-1]), "likelihood": GaussianLikelihood(), "outcome_transform": None}
    model = SingleTaskGP(X, Y.unsqueeze(-1), **options)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": steps}})
    return of_botorch(model)


def of_botorch(model: Any) -> Fitted:
    """A fitted model behind BoTorch's contract, with one output. Its noise is in units of standardised values."""

    def observe(X: Tensor) -> Predictions:
        posterior = model.posterior(X, observation_noise=True)
        return posterior.mean, posterior.variance

    return Fitted(observe, model.likelihood.noise.detach().double().mean().item())


def _fitted(model: Any) -> Fitted:
    model.eval()
    dtype = next(model.parameters()).dtype

    def observe(X: Tensor) -> Predictions:
        with gpytorch_defaults():
            distribution = model.likelihood(model(X.to(dtype)))
            return distribution.mean, distribution.variance

    return Fitted(observe, model.likelihood.noise.item())


def kmeans(X: Tensor, count: int) -> Tensor:
    """Centres of k-means over at most KMEANS_ROWS distinct rows, from random ones; all of them if there are no more."""
    distinct = X.unique(dim=0)
    if len(distinct) <= count:
        return distinct
    generator = torch.Generator().manual_seed(0)
    rows = distinct[torch.randperm(len(distinct), generator=generator)[:KMEANS_ROWS].to(X.device)].double().cpu()
    start = rows[torch.randperm(len(rows), generator=generator)[:count]]
    centres, _ = kmeans2(rows.numpy(), start.numpy(), iter=KMEANS_STEPS, minit="matrix", missing="warn")
    return torch.as_tensor(centres).to(X)
