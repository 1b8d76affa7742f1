from functools import reduce

import pytest
import torch
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
)
from cases import rand
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    LinearKernel,
    Matern52KernelGrad,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch_kernels import mixture, nested_matern, prior_table, randomise
from torch import Size, Tensor
from torch.autograd import gradcheck

from bo_scale.errors import UnsupportedKernelError
from bo_scale.models.shell.kernels import (
    KernelProduct,
    ProductMaternKernel,
    as_product_kernel,
    default_kernel,
    metric_of,
)

close = torch.testing.assert_close


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


def constraint_table(kernel: Kernel) -> dict[str, object]:
    return dict(kernel.named_constraints())


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


def test_the_metric_is_the_shortest_lengthscale_of_each_input() -> None:
    first, second = RBFKernel(ard_num_dims=2, active_dims=(0, 2)), MaternKernel(1.5, active_dims=(2,))
    first.lengthscale, second.lengthscale = torch.tensor([0.3, 2.0]), 0.7
    found = metric_of(ScaleKernel(first * second), 4)
    torch.testing.assert_close(found, torch.tensor([0.3, 0.7, 0.7, 0.7]).double(), rtol=1e-6, atol=0)
    several = RBFKernel(ard_num_dims=2, batch_shape=Size([2]))
    several.lengthscale = torch.tensor([[[0.3, 2.0]], [[0.5, 1.0]]])
    torch.testing.assert_close(metric_of(several, 2), torch.tensor([0.3, 1.0]).double(), rtol=1e-6, atol=0)
    assert metric_of(LinearKernel(), 2) is None


@pytest.mark.parametrize("smoothness", [0.5, 2.5, float("inf")])
def test_the_default_kernel_is_in_units_of_the_inputs(smoothness: float) -> None:
    X = torch.rand(20, 2, dtype=torch.float64)
    units = torch.tensor([1e-3, 1e4]).double()
    cube = default_kernel(2, Size(), X, smoothness)
    lower, upper = X.amin(0), X.amax(0)
    raw = default_kernel(2, Size(), (X - lower) / (upper - lower) * units + 5, smoothness)
    torch.testing.assert_close(raw.lengthscale.double(), cube.lengthscale * units, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        raw.raw_lengthscale_constraint.lower_bound.double(),
        cube.raw_lengthscale_constraint.lower_bound * units,
        rtol=1e-5,
        atol=0,
    )
    start = cube.lengthscale.detach().double().clone()
    for kernel in (cube, raw):
        ((_, module, prior, closure, set_value),) = kernel.named_priors()
        assert prior.loc == cube.lengthscale_prior.loc
        torch.testing.assert_close(closure(module).double(), start, rtol=1e-4, atol=0)
        set_value(module, torch.full((1, 2), 0.4))
        torch.testing.assert_close(closure(module), torch.full((1, 2), 0.4).to(closure(module)), rtol=1e-5, atol=0)
    raw.load_state_dict(cube.state_dict())
    torch.testing.assert_close(raw.lengthscale.double(), cube.lengthscale.double())
