import copy
from functools import reduce

import pytest
import torch
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    LinearKernel,
    Matern52KernelGrad,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior
from torch import Size, Tensor
from torch.autograd import gradcheck

from bo_scale.errors import UnsupportedKernelError
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.kernels import KernelProduct, ProductMaternKernel, as_product_kernel

close = torch.testing.assert_close


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomise(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Float64, with every parameter moved away from its default."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.rand(p.shape, generator=generator, dtype=p.dtype) - 0.5)
    return module


def one_dimensional_product(nu: float, lengthscale: Tensor, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """The product of GPyTorch's own Matérn kernels over the columns of the inputs."""
    factors = []
    for axis in range(x1.shape[-1]):
        kernel = MaternKernel(nu=nu, batch_shape=lengthscale.shape[:-2]).double()
        kernel.lengthscale = lengthscale[..., [axis if lengthscale.shape[-1] > 1 else 0]].detach()
        u, v = x1[..., [axis]], x2[..., [axis]]
        factors.append(kernel(u, v, diag=True) if diag else kernel(u, v).to_dense())
    return torch.stack(factors).prod(0)


# ---------------------------------------------------------------- the product Matérn


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["plain", "batch"])
@pytest.mark.parametrize("ard", [None, 3], ids=["isotropic", "ard"])
def test_product_matern_is_the_product_of_one_dimensional_materns(nu, batch, ard) -> None:
    kernel = randomise(ProductMaternKernel(nu=nu, ard_num_dims=ard, batch_shape=Size(batch)))
    x1, x2 = rand(*batch, 5, 3), rand(*batch, 4, 3, seed=1)
    close(kernel(x1, x2).to_dense(), one_dimensional_product(nu, kernel.lengthscale, x1, x2))
    close(kernel(x1, x1).to_dense(), one_dimensional_product(nu, kernel.lengthscale, x1, x1))
    other = rand(*batch, 5, 3, seed=2)
    close(kernel(x1, other, diag=True), one_dimensional_product(nu, kernel.lengthscale, x1, other, diag=True))


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_product_matern_gives_the_inputs_t_batches(nu) -> None:
    kernel = randomise(ProductMaternKernel(nu=nu, ard_num_dims=2))
    x1, x2 = rand(3, 2, 4, 2), rand(3, 2, 5, 2, seed=1)
    K = kernel(x1, x2).to_dense()
    assert K.shape == (3, 2, 4, 5)
    close(K[1, 0], kernel(x1[1, 0], x2[1, 0]).to_dense())


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_product_matern_gradients_are_finite_differences(nu) -> None:
    kernel = randomise(ProductMaternKernel(nu=nu, ard_num_dims=2))
    x1, x2 = rand(3, 2).requires_grad_(), rand(4, 2, seed=1).requires_grad_()
    assert gradcheck(lambda a, b: kernel.forward(a, b), (x1, x2))

    def of_raw(raw: Tensor) -> Tensor:
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x1.detach(), x2.detach())).to_dense()

    assert gradcheck(of_raw, (kernel.raw_lengthscale.detach().clone().requires_grad_(),))


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_product_matern_has_a_finite_gradient_where_points_coincide(nu) -> None:
    kernel = ProductMaternKernel(nu=nu, ard_num_dims=2).double()
    x = rand(3, 2).requires_grad_()
    kernel(x, x).to_dense().sum().backward()
    assert torch.isfinite(x.grad).all()


def test_product_matern_is_gpytorchs_in_one_dimension() -> None:
    kernel = randomise(MaternKernel(nu=2.5))
    product = ProductMaternKernel(nu=2.5).double()
    product.load_state_dict(kernel.state_dict())
    x = rand(6, 1)
    close(product(x).to_dense(), kernel(x).to_dense())


# ---------------------------------------------------------------- as_product_kernel


def prior_table(kernel: Kernel) -> dict[str, tuple[object, float]]:
    return {name: (p, p.log_prob(c(owner)).sum().item()) for name, owner, p, c, _ in kernel.named_priors()}


def constraint_table(kernel: Kernel) -> dict[str, object]:
    return dict(kernel.named_constraints())


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


def test_as_product_kernel_keeps_priors_and_constraints() -> None:
    kernel = nested_matern()
    product = as_product_kernel(kernel, 2)
    assert prior_table(product) == prior_table(kernel)
    assert constraint_table(product) == constraint_table(kernel)
    part = product.base_kernel.kernels[0]
    assert type(part) is ProductMaternKernel
    assert part.nu == 1.5


def test_as_product_kernel_shares_parameters() -> None:
    kernel = nested_matern()
    product = as_product_kernel(kernel, 2)
    assert {n: id(p) for n, p in product.named_parameters()} == {n: id(p) for n, p in kernel.named_parameters()}
    with torch.no_grad():
        kernel.base_kernel.kernels[0].raw_lengthscale.add_(1.0)
    close(product.base_kernel.kernels[0].lengthscale, kernel.base_kernel.kernels[0].lengthscale)


def test_as_product_kernel_leaves_its_argument_alone() -> None:
    kernel = nested_matern()
    x = rand(5, 2)
    types, before = [type(k) for k in kernel.modules()], kernel(x).to_dense().detach()
    product = as_product_kernel(kernel, 2)
    assert [type(k) for k in kernel.modules()] == types
    close(kernel(x).to_dense(), before)
    assert (product(x).to_dense() - before).abs().max() > 1e-5


def test_as_product_kernel_setting_a_prior_reaches_the_shared_parameter() -> None:
    kernel = nested_matern()
    product = as_product_kernel(kernel, 2)
    product.base_kernel.kernels[0].sample_from_prior("lengthscale_prior")
    close(product.base_kernel.kernels[0].lengthscale, kernel.base_kernel.kernels[0].lengthscale)


@pytest.mark.parametrize("d", [1, 2])
def test_as_product_kernel_returns_a_product_itself(d) -> None:
    for kernel in (RBFKernel(), ProductMaternKernel(), ScaleKernel(PeriodicKernel()), RBFKernel() * PeriodicKernel()):
        assert as_product_kernel(kernel, d) is kernel
    assert as_product_kernel(as_product_kernel(nested_matern(), 2), 2) is not None


def test_as_product_kernel_keeps_batch_shape_and_active_dims() -> None:
    kernel = randomise(MaternKernel(nu=0.5, ard_num_dims=2, active_dims=(0, 2), batch_shape=Size([2])))
    product = as_product_kernel(kernel, 3)
    assert product.batch_shape == (2,)
    x = rand(4, 3)
    close(product(x).to_dense(), one_dimensional_product(0.5, kernel.lengthscale, x[:, [0, 2]], x[:, [0, 2]]))


def test_as_product_kernel_leaves_a_one_dimensional_matern() -> None:
    kernel = MaternKernel(nu=1.5)
    assert as_product_kernel(kernel, 1) is kernel


# ---------------------------------------------------------------- factors


def mixture() -> Kernel:
    kernel = SpectralMixtureKernel(num_mixtures=2).double()
    kernel.mixture_weights = torch.tensor([0.7, 0.4])
    kernel.mixture_means = torch.tensor([[[0.3]], [[1.2]]])
    kernel.mixture_scales = torch.tensor([[[0.5]], [[0.2]]])
    return kernel


KERNELS = {
    "rbf": (lambda d: RBFKernel(), (1, 2, 3)),
    "rbf-ard": (lambda d: RBFKernel(ard_num_dims=d), (1, 2, 3)),
    "botorch": (lambda d: get_covar_module_with_dim_scaled_prior(ard_num_dims=d), (1, 2, 3)),
    "matern-1": (lambda d: MaternKernel(nu=0.5, ard_num_dims=d), (1, 2, 3)),
    "matern-3": (lambda d: MaternKernel(nu=1.5), (1, 2, 3)),
    "matern-5": (lambda d: MaternKernel(nu=2.5, ard_num_dims=d), (1, 2, 3)),
    "periodic": (lambda d: PeriodicKernel(ard_num_dims=d), (1, 2, 3)),
    "scaled": (lambda d: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d)), (1, 2, 3)),
    "twice-scaled": (lambda d: ScaleKernel(ScaleKernel(RBFKernel(ard_num_dims=d))), (1, 3)),
    "product": (lambda d: ScaleKernel(RBFKernel(ard_num_dims=d) * PeriodicKernel()), (1, 2)),
    "scaled-product": (lambda d: ScaleKernel(RBFKernel()) * ScaleKernel(MaternKernel(nu=1.5)), (2,)),
    "by-dimension": (lambda d: RBFKernel(active_dims=(0,)) * MaternKernel(nu=0.5, active_dims=(1,)), (2,)),
    "one-dimension-only": (lambda d: MaternKernel(active_dims=(1,)), (2, 3)),
    "spectral-mixture": (lambda d: mixture(), (1,)),
    "rational-quadratic": (lambda d: RQKernel(), (1,)),
    "cosine": (lambda d: CosineKernel(), (1,)),
    "sum": (lambda d: ScaleKernel(RBFKernel() + MaternKernel(nu=1.5)), (1,)),
}


@pytest.mark.parametrize(
    ("make", "d"),
    [pytest.param(make, d, id=f"{name}-{d}d") for name, (make, ds) in KERNELS.items() for d in ds],
)
def test_factors_multiply_to_the_kernel(make, d) -> None:
    kernel = as_product_kernel(randomise(make(d)), d)
    U = [rand(3 + axis, seed=axis) for axis in range(d)]
    V = [rand(4 - axis, seed=10 + axis) for axis in range(d)]
    factors = KernelProduct(kernel)(U, V)
    assert [tuple(K.shape) for K in factors] == [(len(u), len(v)) for u, v in zip(U, V)]
    whole = kernel(torch.cartesian_prod(*U).reshape(-1, d), torch.cartesian_prod(*V).reshape(-1, d)).to_dense()
    close(reduce(torch.kron, factors), whole)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("output", [0, 1])
def test_factors_of_an_output_are_those_of_its_kernel(d, output) -> None:
    batch = Size([2])
    matern = MaternKernel(nu=1.5, ard_num_dims=d, batch_shape=batch)
    kernel = as_product_kernel(randomise(ScaleKernel(matern, batch_shape=batch)), d)
    U, V = [rand(3, seed=axis) for axis in range(d)], [rand(2, seed=5 + axis) for axis in range(d)]
    whole = kernel(torch.cartesian_prod(*U).reshape(-1, d), torch.cartesian_prod(*V).reshape(-1, d)).to_dense()
    close(reduce(torch.kron, KernelProduct(kernel, output)(U, V)), whole[output])


def test_factors_without_a_batch_serve_every_output() -> None:
    kernel = randomise(RBFKernel(ard_num_dims=2))
    U = [rand(3), rand(2)]
    close(KernelProduct(kernel, 1)(U, U), KernelProduct(kernel)(U, U))


def test_factors_are_differentiable_in_all_hyperparameters() -> None:
    kernel = as_product_kernel(nested_matern(), 2)
    U = [rand(3), rand(2)]
    sum(K.sum() for K in KernelProduct(kernel)(U, U)).backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in kernel.parameters())


@pytest.mark.parametrize(
    ("kernel", "d", "name"),
    [
        (LinearKernel(), 1, "LinearKernel"),
        (LinearKernel(), 2, "LinearKernel"),
        (PolynomialKernel(power=2), 2, "PolynomialKernel"),
        (PiecewisePolynomialKernel(q=2), 2, "PiecewisePolynomialKernel"),
        (RQKernel(), 2, "RQKernel"),
        (CosineKernel(), 2, "CosineKernel"),
        (SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2), 2, "SpectralMixtureKernel"),
        (RBFKernel() + RBFKernel(), 2, "AdditiveKernel"),
        (ScaleKernel(RQKernel()), 3, "RQKernel"),
        (RBFKernel() * LinearKernel(), 2, "LinearKernel"),
        (RBFKernel() + LinearKernel(), 1, "LinearKernel"),
        (RBFKernelGrad(), 2, "RBFKernelGrad"),
        (Matern52KernelGrad(), 1, "Matern52KernelGrad"),
        (Matern52KernelGrad(), 2, "Matern52KernelGrad"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Kernel) else str(value),
)
def test_a_kernel_without_factors_is_refused_by_name(kernel, d, name) -> None:
    with pytest.raises(UnsupportedKernelError, match=f"{name} is not a product.* d = {d}"):
        as_product_kernel(kernel, d)


# ---------------------------------------------------------------- clone_module


def tied_kernel() -> Kernel:
    first, second = RBFKernel(), PeriodicKernel()
    second.raw_lengthscale = first.raw_lengthscale
    return first * second


def trained_standardize() -> Standardize:
    transform = Standardize(1)
    transform(rand(5, 1))
    return transform.eval()


MODULES = {
    "nested-kernel": nested_matern,
    "product-matern": lambda: as_product_kernel(nested_matern(), 2),
    "botorch-kernel": lambda: get_covar_module_with_dim_scaled_prior(ard_num_dims=2, batch_shape=Size([2])).double(),
    "mixture": mixture,
    "likelihood": lambda: get_gaussian_likelihood_with_lognormal_prior().double(),
    "fixed-noise": lambda: FixedNoiseGaussianLikelihood(rand(4)),
    "mean": lambda: ConstantMean(constant_prior=NormalPrior(0.0, 1.0)).double(),
    "standardize": trained_standardize,
    "normalize": lambda: Normalize(2, bounds=torch.tensor([[0.0, 1.0], [2.0, 3.0]])).double(),
    "chained": lambda: ChainedInputTransform(a=Normalize(2), b=Warp(d=2, indices=[0])).double(),
    "tied": tied_kernel,
}


@pytest.fixture(params=MODULES.values(), ids=MODULES.keys())
def module(request) -> torch.nn.Module:
    return request.param()


def tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def test_clone_has_the_state_of_its_original(module) -> None:
    cloned, reference = clone_module(module), copy.deepcopy(module)
    assert [type(part) for part in cloned.modules()] == [type(part) for part in reference.modules()]
    assert cloned.state_dict().keys() == reference.state_dict().keys()
    for name, value in tensors(reference).items():
        assert torch.equal(tensors(cloned)[name], value)
    assert [p.requires_grad for p in cloned.parameters()] == [p.requires_grad for p in reference.parameters()]
    assert cloned.training == reference.training


def test_clone_shares_no_tensor_with_its_original(module) -> None:
    before = {name: value.detach().clone() for name, value in tensors(module).items()}
    cloned = clone_module(module)
    with torch.no_grad():
        for value in tensors(cloned).values():
            value.zero_()
    assert all(torch.equal(value, before[name]) for name, value in tensors(module).items())
    assert {id(part) for part in cloned.modules()}.isdisjoint(id(part) for part in module.modules())


def test_float_of_a_clone_leaves_its_original_alone(module) -> None:
    before = {name: value.dtype for name, value in tensors(module).items()}
    cloned = clone_module(module).float()
    assert all(value.dtype == torch.float32 for value in tensors(cloned).values() if value.is_floating_point())
    assert {name: value.dtype for name, value in tensors(module).items()} == before


def gpytorch_parts(module: torch.nn.Module) -> list[torch.nn.Module]:
    return [part for part in module.modules() if hasattr(part, "_priors")]


def test_the_tables_of_a_clone_point_to_its_own_priors(module) -> None:
    for part in gpytorch_parts(clone_module(module)):
        assert all(prior is part._modules[name] for name, (prior, *_) in part._priors.items())


def test_the_tables_of_a_clone_point_to_its_own_constraints(module) -> None:
    for part in gpytorch_parts(clone_module(module)):
        assert all(constraint is part._modules[name] for name, constraint in part._constraints.items())


def bound_to(module: torch.nn.Module) -> set[int]:
    """The modules that the hooks of a module and its children are methods of."""
    hooks = [
        h for part in module.modules() for name, v in vars(part).items() if "hooks" in name and v for h in v.values()
    ]
    owners = [getattr(getattr(hook, "hook", hook), "__self__", None) for hook in hooks]
    return {id(owner) for owner in owners if owner is not None}


def test_the_hooks_of_a_clone_are_bound_to_it(module) -> None:
    cloned, reference = clone_module(module), copy.deepcopy(module)
    own = {id(part) for part in module.modules()}
    assert bound_to(reference).isdisjoint(own)
    assert bound_to(cloned).isdisjoint(own)


def test_the_prior_density_of_a_clone_is_that_of_its_own_parameters() -> None:
    kernel = nested_matern()
    cloned, before = clone_module(kernel), {name: value for name, (_, value) in prior_table(kernel).items()}
    assert {name: value for name, (_, value) in prior_table(cloned).items()} == pytest.approx(before)
    cloned.outputscale = 7.0
    cloned.base_kernel.kernels[0].sample_from_prior("lengthscale_prior")
    assert {name: value for name, (_, value) in prior_table(kernel).items()} == pytest.approx(before)
    assert prior_table(cloned)["outputscale_prior"][1] != pytest.approx(before["outputscale_prior"])


def test_tied_parameters_stay_tied_in_a_clone() -> None:
    assert len(list(clone_module(tied_kernel()).parameters())) == len(list(copy.deepcopy(tied_kernel()).parameters()))


def test_a_clone_is_itself_cloned_and_copied_like_a_module() -> None:
    cloned = clone_module(clone_module(nested_matern()))
    x = rand(4, 2)
    close(copy.deepcopy(cloned)(x).to_dense(), nested_matern()(x).to_dense())
    cloned(x).to_dense().sum().backward()
    assert all(p.grad is not None for p in cloned.parameters())


def test_a_clone_has_no_gradients_yet() -> None:
    kernel = nested_matern()
    kernel(rand(4, 2)).to_dense().sum().backward()
    assert all(p.grad is None for p in clone_module(kernel).parameters())
