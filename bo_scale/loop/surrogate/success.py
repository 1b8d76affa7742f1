"""The probability that an evaluation succeeds: a GP classifier by Laplace's approximation."""

import math

import torch
from botorch.models.gp_regression import SingleTaskGP
from botorch.optim.core import scipy_minimize
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import LogNormalPrior, NormalPrior
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

ROWS = 256
"""Rows that the classifier sees."""
LEVEL = 0.0
"""The latent function above which a success is more probable than a failure."""
STEPS, EVALUATIONS = 40, 60
"""Most Newton steps to the mode, and most steps of the fit."""
SLACK, LEAST = 1e-9, 1e-8
"""Change of the objective at which the mode is found, and the smallest curvature of a likelihood."""


def success_model(X: Float[Tensor, "n d"], failures: Float[Tensor, "f d"]) -> SingleTaskGP:
    """Return a model of a latent function f, where a success at x has probability 1 / (1 + exp(−f(x))).

    Laplace's approximation of its posterior is that of a GP regression with targets f̂ + W⁻¹ ∇ log p(y | f̂) and noise
    variances W⁻¹, at the mode f̂; it is returned as such. Hyperparameters maximise the approximate evidence. It costs
    O(ROWS³) for each of some hundred Newton steps.

    It sees the latest failures, up to half of `ROWS`. If there are more successes than the rest, half of those it sees
    are the nearest to failures, and half are spread over all.

    C. Rasmussen, C. Williams. Gaussian processes for machine learning, 2006: sections 3.4 and 5.5.1.

    Args:
        X: Points that succeeded, in the unit cube, at least one.
        failures: Points that failed, at least one.
    """
    failures = failures[-(ROWS // 2) :]
    points = torch.cat([X[_some_near(X, failures, ROWS - len(failures))], failures])
    labels = points.new_zeros(len(points))
    labels[: len(points) - len(failures)] = 1.0
    mean, kernel = _priors(points)
    parameters = {f"{i}": p for i, p in enumerate([*mean.parameters(), *kernel.parameters()])}

    def closure() -> tuple[Tensor, list[Tensor | None]]:
        loss = -_evidence(mean, kernel, points, labels)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        return loss.detach(), [*gradients]

    scipy_minimize(closure, parameters, options={"maxiter": EVALUATIONS})
    with torch.no_grad():
        f = _mode(mean(points), kernel(points).to_dense(), labels)
        p = f.sigmoid()
        W = (p * (1 - p)).clamp_min(LEAST)
        targets = f + (labels - p) / W
    model = SingleTaskGP(
        points,
        targets.unsqueeze(-1),
        (1 / W).unsqueeze(-1),
        covar_module=kernel,
        mean_module=mean,
        outcome_transform=None,
    )
    model.eval()
    return model


def _priors(X: Float[Tensor, "n d"]) -> tuple[ConstantMean, Kernel]:
    """Return mean and kernel of the latent function: of standard deviation some 10, so that most points are clear."""
    mean = ConstantMean(constant_prior=NormalPrior(0.0, 2.0))
    d = X.shape[-1]
    lengthscales = LogNormalPrior(math.log(0.5 * d**0.5), 0.75)
    base = MaternKernel(2.5, ard_num_dims=d, lengthscale_prior=lengthscales)
    kernel = ScaleKernel(base, outputscale_prior=LogNormalPrior(4.6, 0.75))
    base.lengthscale, kernel.outputscale = 0.5 * d**0.5, 100.0
    return mean.to(X), kernel.to(X)


def _evidence(mean: ConstantMean, kernel: Kernel, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> Tensor:
    """Return the log of the approximate evidence, eq. 3.32, and of the priors.

    One Newton step from the mode is differentiated. It carries how the mode depends on hyperparameters, since the step
    does not depend on where it began, to first order.
    """
    m, K = mean(X), kernel(X).to_dense()
    f, a, L = _newton(_mode(m.detach(), K.detach(), y), m, K, y)
    value = logsigmoid(torch.where(y > 0, f, -f)).sum() - 0.5 * a @ (f - m) - L.diagonal().log().sum()
    for module in (mean, kernel):
        for _, owner, prior, of, _ in module.named_priors():
            value = value + prior.log_prob(of(owner)).sum()
    return value


def _mode(m: Float[Tensor, " n"], K: Float[Tensor, "n n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the mode of the posterior at the rows: algorithm 3.1, each step shortened until the density rises."""
    f, height = m, logsigmoid(torch.where(y > 0, m, -m)).sum()
    a = torch.zeros_like(m)
    for _ in range(STEPS):
        new, ahead, _ = _newton(f, m, K, y)
        share = 1.0
        while True:
            g, b = f + share * (new - f), a + share * (ahead - a)
            risen = logsigmoid(torch.where(y > 0, g, -g)).sum() - 0.5 * b @ (g - m)
            if risen >= height or share < 1e-3:
                break
            share *= 0.5
        done = risen - height <= SLACK
        f, a, height = g, b, risen
        if bool(done):
            break
    return f


def _newton(
    f: Float[Tensor, " n"], m: Float[Tensor, " n"], K: Float[Tensor, "n n"], y: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, "n n"]]:
    """Return the next f, a = K⁻¹(f − m), and the Cholesky factor of I + W½ K W½."""
    p = f.sigmoid()
    W = (p * (1 - p)).clamp_min(LEAST)
    root = W.sqrt()
    L = torch.linalg.cholesky(torch.eye(len(f)).to(K) + root.unsqueeze(-1) * K * root)
    b = W * (f - m) + y - p
    a = b - root * torch.cholesky_solve((root * (K @ b)).unsqueeze(-1), L).squeeze(-1)
    return m + K @ a, a, L


def _some_near(X: Float[Tensor, "n d"], others: Float[Tensor, "f d"], count: int) -> Int[Tensor, " k"]:
    """Return up to `count` rows: the nearest to other points, and as many spread over all."""
    if len(X) <= count:
        return torch.arange(len(X), device=X.device)
    distances = torch.cat([torch.cdist(part, others).amin(-1) for part in X.split(10_000)])
    nearest = distances.topk(count // 2, largest=False).indices
    spread = torch.linspace(0, len(X) - 1, count - len(nearest), device=X.device).round().long()
    return torch.cat([nearest, spread]).unique()
