"""GPyTorch kernels as products of one factor a dimension."""

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import UnsupportedKernelError

_ONE_DIMENSIONAL = (SpectralMixtureKernel, RQKernel, CosineKernel, AdditiveKernel)


class ProductMaternKernel(MaternKernel):
    """The product over dimensions of one-dimensional Matérn kernels: k(x, x') = Π_l k_ν(|x_l − x'_l| / ℓ_l).

    GPyTorch's MaternKernel is radial, a function of the distance in all dimensions; in d > 1 the two differ by
    30-50 % in posterior variance. Grid methods need the product. Same parameters, constraints and priors.
    """

    @override
    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        """Covariance of x1 (… n d) with x2 (… r d): … n r, or … n with `diag`."""
        a, b = x1.div(self.lengthscale), x2.div(self.lengthscale)
        gap = (a - b) if diag else (a.unsqueeze(-2) - b.unsqueeze(-3))
        r = math.sqrt(2 * self.nu) * gap.abs()
        polynomial = {0.5: torch.ones_like(r), 1.5: 1 + r, 2.5: 1 + r + r.square() / 3}[self.nu]
        return (polynomial * torch.exp(-r)).prod(-1)


@dataclass(frozen=True)
class KernelProduct:
    """A stationary kernel k = k₀ Π_l k_l/k₀, read off the kernel along each axis.

    Along axis l the other coordinates agree, so that a product of one-dimensional kernels k₀ κ_1 ⋯ κ_d gives k₀ κ_l.

    Attributes:
        kernel: A kernel accepted by `as_product_kernel`.
        output: Which of the kernel's batch of outputs; None where it has no batch shape.
    """

    kernel: Kernel
    output: int | None = None

    def __call__(self, U: list[Float[Tensor, " _"]], V: list[Float[Tensor, " _"]]) -> list[Float[Tensor, "_ _"]]:
        """The factors k_l(u_l, v_l); the first carries the outputscale."""
        axes = range(len(U))
        slices = [
            self._evaluate(_on_axis(u, axis, len(U)), _on_axis(v, axis, len(U))) for u, v, axis in zip(U, V, axes)
        ]
        if len(U) == 1:
            return slices
        origin = U[0].new_zeros(1, len(U))
        k0 = self._evaluate(origin, origin)
        return [slices[0], *(K / k0 for K in slices[1:])]

    def _evaluate(self, x: Float[Tensor, "n d"], z: Float[Tensor, "r d"]) -> Float[Tensor, "n r"]:
        K: Tensor = self.kernel(x, z).to_dense()
        return K if self.output is None or K.ndim == 2 else K[self.output]


def _on_axis(u: Float[Tensor, " n"], axis: int, d: int) -> Float[Tensor, "n d"]:
    return torch.nn.functional.pad(u.unsqueeze(-1), (axis, d - 1 - axis))


def as_product_kernel(kernel: Kernel, d: int) -> Kernel:
    """The kernel itself where it is a product over dimensions, with radial Matérn kernels made into products.

    Parameters are shared with the kernel given, which is not changed.

    Args:
        kernel: RBF, Matérn 1/2, 3/2, 5/2, periodic, products and scalings of them; in one dimension also spectral
            mixtures, rational quadratic, cosine and sums.
        d: Input dimensions.

    Raises:
        UnsupportedKernelError: naming the kernel that has no factors.
    """
    if type(kernel) is MaternKernel and d > 1:
        return _product_matern(kernel)
    if isinstance(kernel, ScaleKernel):
        return _with_children(kernel, {"base_kernel": as_product_kernel(kernel.base_kernel, d)})
    if isinstance(kernel, ProductKernel) or (d == 1 and isinstance(kernel, AdditiveKernel)):
        parts = torch.nn.ModuleList([as_product_kernel(part, d) for part in kernel.kernels])
        return _with_children(kernel, {"kernels": parts})
    if type(kernel) in (RBFKernel, MaternKernel, ProductMaternKernel, PeriodicKernel):
        return kernel
    if d == 1 and isinstance(kernel, _ONE_DIMENSIONAL):
        return kernel
    raise UnsupportedKernelError(
        f"covar_module: {type(kernel).__name__} is not a product of stationary one-dimensional kernels in d = {d}. "
        f"Use RBF, Matérn, periodic, or scalings and products of them"
        f"{'' if d == 1 else '; spectral mixtures and sums only in d = 1'}."
    )


def _product_matern(kernel: MaternKernel) -> ProductMaternKernel:
    product = ProductMaternKernel(
        nu=kernel.nu,
        ard_num_dims=kernel.ard_num_dims,
        batch_shape=kernel.batch_shape,
        active_dims=None if kernel.active_dims is None else tuple(kernel.active_dims.tolist()),
        lengthscale_constraint=kernel.raw_lengthscale_constraint,
    )
    product.raw_lengthscale = kernel.raw_lengthscale
    for name, (prior, closure, setting_closure) in kernel._priors.items():
        product.register_prior(name, prior, closure, setting_closure)
    return product


def _with_children(kernel: Kernel, children: dict[str, torch.nn.Module]) -> Kernel:
    """A shallow copy with some children exchanged; the very kernel where nothing changes."""
    if all(_same(getattr(kernel, name), child) for name, child in children.items()):
        return kernel
    copied: Kernel = object.__new__(type(kernel))
    copied.__dict__.update(kernel.__dict__)
    copied._modules = {**kernel._modules, **children}
    return copied


def _same(old: torch.nn.Module, new: torch.nn.Module) -> bool:
    if isinstance(old, torch.nn.ModuleList) and isinstance(new, torch.nn.ModuleList):
        return all(a is b for a, b in zip(old, new, strict=True))
    return old is new
