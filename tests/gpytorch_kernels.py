"""Kernels of GPyTorch with everything that a copy or a product of factors has to keep."""

import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel, SpectralMixtureKernel
from gpytorch.priors import GammaPrior, LogNormalPrior


def randomise(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Float64, with every parameter moved away from its default."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.rand(p.shape, generator=generator, dtype=p.dtype) - 0.5)
    return module


def nested_matern() -> Kernel:
    matern = MaternKernel(
        nu=1.5,
        ard_num_dims=2,
        lengthscale_prior=LogNormalPrior(0.0, 1.0),
        lengthscale_constraint=Interval(1e-2, 10.0),
    )
    outer = ScaleKernel(
        ProductKernel(matern, RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0))),
        outputscale_prior=GammaPrior(2.0, 0.5),
        outputscale_constraint=GreaterThan(1e-3),
    )
    return randomise(outer)


def mixture() -> Kernel:
    kernel = SpectralMixtureKernel(num_mixtures=2).double()
    kernel.mixture_weights = torch.tensor([0.7, 0.4])
    kernel.mixture_means = torch.tensor([[[0.3]], [[1.2]]])
    kernel.mixture_scales = torch.tensor([[[0.5]], [[0.2]]])
    return kernel


def prior_table(kernel: Kernel) -> dict[str, tuple[object, float]]:
    return {name: (p, p.log_prob(c(owner)).sum().item()) for name, owner, p, c, _ in kernel.named_priors()}
