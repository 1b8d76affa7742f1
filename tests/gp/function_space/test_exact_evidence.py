"""The exact evidence against a dense computation, and its gradient against finite differences."""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.gp.function_space.exact_evidence import exact_log_evidence, leave_one_out
from bo_scale.models.shell.kernels import OutputKernel

KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "matern12": lambda: ScaleKernel(MaternKernel(0.5, ard_num_dims=3)),
    "matern32": lambda: MaternKernel(1.5, ard_num_dims=3),
    "matern52": lambda: ScaleKernel(MaternKernel(2.5)),
    "no function of distance": lambda: ScaleKernel(RQKernel(ard_num_dims=3)),
}


def problem(n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    X, y = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((n, 3), (n,)))
    return X, y, 0.1 + torch.rand(n, generator=generator, dtype=torch.float64)


def kernel(name: str) -> Kernel:
    made = KERNELS[name]().double()
    for number, part in enumerate(each for each in made.modules() if isinstance(each, Kernel)):
        if part.has_lengthscale:
            part.lengthscale = torch.linspace(0.5, 1.5, part.lengthscale.shape[-1]).double() + 0.1 * number
    return made


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("repeated", [False, True])
def test_it_is_the_dense_one(name: str, repeated: bool) -> None:
    X, y, variance = problem()
    if repeated:
        X[3:6] = X[0]
    k = kernel(name)
    found = exact_log_evidence(OutputKernel.of(k, 0, 1), X, y, variance)
    A = k(X, X).to_dense() + variance.diag()
    torch.testing.assert_close(found, MultivariateNormal(torch.zeros_like(y), A).log_prob(y), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_its_gradient_is_that_of_the_dense_one(name: str) -> None:
    X, y, variance = problem()
    k = kernel(name)
    inputs = [y.requires_grad_(), variance.requires_grad_(), *k.parameters()]
    found = torch.autograd.grad(exact_log_evidence(OutputKernel.of(k, 0, 1), X, y, variance), inputs)
    A = k(X, X).to_dense() + variance.diag()
    dense = torch.autograd.grad(MultivariateNormal(torch.zeros(12).double(), A).log_prob(y), inputs)
    for ours, theirs in zip(found, dense, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_small_noise_and_repeated_rows_need_no_jitter() -> None:
    X, y, _ = problem(40)
    X[20:] = X[:20]
    found = exact_log_evidence(OutputKernel.of(kernel("rbf"), 0, 1), X, y, torch.full((40,), 1e-6).double())
    assert found.isfinite()
    assert found < 0


def test_nan_is_refused() -> None:
    X, y, variance = problem()
    X[0, 0] = torch.nan
    with pytest.raises(NotPositiveDefiniteError, match="NaN"):
        exact_log_evidence(OutputKernel.of(kernel("rbf"), 0, 1), X, y, variance)


@pytest.mark.parametrize("name", KERNELS)
def test_leaving_one_out_is_predicting_it_from_the_others(name: str) -> None:
    X, y, variance = problem()
    k = kernel(name)
    errors, variances = leave_one_out(OutputKernel.of(k, 0, 1), X, y, variance)
    K = k(X, X).to_dense().detach()
    A = K + variance.diag()
    for i in range(len(X)):
        rest = [j for j in range(len(X)) if j != i]
        solved = torch.linalg.solve(A[rest][:, rest], torch.stack([y[rest], K[rest, i]], -1))
        mean, explained = (K[i, rest] @ solved).tolist()
        assert errors[i].item() == pytest.approx(y[i].item() - mean, rel=1e-6, abs=1e-9)
        assert variances[i].item() == pytest.approx(A[i, i].item() - explained, rel=1e-6)
