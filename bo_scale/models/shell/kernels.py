"""GPyTorch kernels as products of one factor per dimension."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan
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
from gpytorch.priors import LogNormalPrior
from gpytorch.settings import lazily_evaluate_kernels
from jaxtyping import Float
from linear_operator import to_dense
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import UnsupportedKernelError
from bo_scale.gp.function_space.kernel_products.profiles import matern12, matern32, matern52, rbf
from bo_scale.gp.function_space.process import Radial
from bo_scale.gp.moving import Movable
from bo_scale.models.shell.cloning import clone_module, on_host, output_view
from bo_scale.threads import Together

_ONE_DIMENSIONAL = (SpectralMixtureKernel, RQKernel, CosineKernel, AdditiveKernel)


SHORTEST = 1e-4
"""Smallest lengthscale of default kernels, in units of the range of an input. BoTorch's, .025, is too long for a season
in forty."""
DIFFERENCES = 1 << 24
"""Number of differences of coordinates up to which distances on a GPU are computed from them."""
TINY = 1e-30
"""Smallest squared distance: at 0 the root has no derivative."""
_EAGERLY = Together(partial(lazily_evaluate_kernels, False))
"""The context in which GPyTorch evaluates kernels of kernels at once."""


class ProductMaternKernel(MaternKernel):
    """The product over dimensions of one-dimensional Matérn kernels: k(x, x') = Π_l k_ν(|x_l − x'_l| / ℓ_l).

    GPyTorch's MaternKernel is radial, a function of the distance in all dimensions. For d > 1 the two differ by
    30-50 % in posterior variance. Grid methods need the product. Parameters, constraints and priors are the same.
    """

    @override
    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        """Return the covariance of x1 (… n d) with x2 (… r d): … n r, or … n with `diag`."""
        a, b = x1.div(self.lengthscale), x2.div(self.lengthscale)
        gap = (a - b) if diag else (a.unsqueeze(-2) - b.unsqueeze(-3))
        r = math.sqrt(2 * self.nu) * gap.abs()
        return (_matern_polynomial(r, self.nu) * torch.exp(-r)).prod(-1)


def _matern_polynomial(r: Float[Tensor, "*n"], nu: float) -> Float[Tensor, "*n"]:
    """Return the factor of e^(−r) in a Matérn kernel of order ν, r = √(2ν) |x − x'|/ℓ."""
    if nu == 0.5:
        return torch.ones_like(r)
    return 1 + r if nu == 1.5 else 1 + r + r.square() / 3


@dataclass(frozen=True)
class KernelProduct:
    """A stationary kernel k = k₀ Π_l k_l/k₀, whose factors are evaluated along each axis.

    Along axis l all other coordinates agree, so a product of one-dimensional kernels k₀ κ_1 ⋯ κ_d reduces to k₀ κ_l.

    Attributes:
        kernel: A kernel accepted by `as_product_kernel`.
        output: Index into the kernel's batch of outputs; None if it has no batch shape.
        host: The kernel of a GPU on the CPU, for points that are there; None to copy it when it is asked for.
    """

    kernel: Kernel
    output: int | None = None
    host: Kernel | None = None

    def __call__(self, U: list[Float[Tensor, " _"]], V: list[Float[Tensor, " _"]]) -> list[Float[Tensor, "_ _"]]:
        """Return the factors k_l(u_l, v_l); the first carries the outputscale."""
        axes, kernel = range(len(U)), self._kernel_for(U[0])
        slices = [
            self._evaluate(kernel, _on_axis(u, axis, len(U)), _on_axis(v, axis, len(U)))
            for u, v, axis in zip(U, V, axes)
        ]
        if len(U) == 1:
            return slices
        origin = U[0].new_zeros(1, len(U))
        k0 = self._evaluate(kernel, origin, origin)
        return [slices[0], *(K / k0 for K in slices[1:])]

    def _kernel_for(self, points: Tensor) -> Kernel:
        """Return the kernel where the points are."""
        kept = self.kernel if self.host is None or points.is_cuda else self.host
        copied = not points.is_cuda and next(kept.parameters()).is_cuda
        return on_host(kept)[0] if copied else kept

    def _evaluate(self, kernel: Kernel, x: Float[Tensor, "n d"], z: Float[Tensor, "r d"]) -> Float[Tensor, "n r"]:
        K: Tensor = on_gpu(kernel, x, z) if x.is_cuda else kernel(x, z).to_dense()
        return K if self.output is None or K.ndim == 2 else K[self.output]


def _on_axis(u: Float[Tensor, " n"], axis: int, d: int) -> Float[Tensor, "n d"]:
    return torch.nn.functional.pad(u.unsqueeze(-1), (axis, d - 1 - axis))


@dataclass(frozen=True)
class AxisKernels:
    """A stationary product kernel k = k₀ Π_l κ_l with κ_l(u, u) = 1, with all factors at once and in closed form.

    A kernel on some `active_dims` has the factor 1 in the others. This takes O(n d g); evaluating the kernel along one
    axis after the other (`KernelProduct`) takes O(n d² g).

    Attributes:
        kernel: RBF, product Matérn, periodic, and products and scalings of these, as returned by `as_product_kernel`.
        output: Index into the kernel's batch of outputs; None if it has no batch shape.

    Raises:
        UnsupportedKernelError: for any other kernel, which the message names.
    """

    kernel: Kernel
    output: int | None = None

    def __post_init__(self) -> None:
        for part, _ in _parts(self.kernel, []):
            if not isinstance(part, ScaleKernel | RBFKernel | MaternKernel | PeriodicKernel):
                raise UnsupportedKernelError(
                    f"covar_module: {type(part).__name__} has no factors in closed form. Use RBF, Matérn, periodic, "
                    f"or scalings and products of them."
                )

    def __call__(self, X: Float[Tensor, "*b n d"], nodes: Float[Tensor, "d g"]) -> Float[Tensor, "*b n d g"]:
        """Return κ_l(x_l, u_lj) for every dimension l and node j."""
        gap, factors = X.unsqueeze(-1) - nodes, None
        for part, columns in _parts(self.kernel, list(range(X.shape[-1]))):
            if not isinstance(part, ScaleKernel):
                found = self._factors(part, columns, gap)
                factors = found if factors is None else factors * found
        assert factors is not None, "every kernel has a part that is no scaling"
        return factors

    @property
    def outputscale(self) -> Float[Tensor, ""]:
        """The outputscale k₀ = k(x, x)."""
        scale = next(iter(self.kernel.parameters())).new_ones((), dtype=torch.float64)
        for part, _ in _parts(self.kernel, []):
            if isinstance(part, ScaleKernel):
                scale = scale * self._of_output(part.outputscale.unsqueeze(-1)).squeeze(-1)
        return scale

    def _factors(self, part: Kernel, columns: list[int], gap: Float[Tensor, "*b d g"]) -> Float[Tensor, "*b d g"]:
        """Return the factors of one kernel from differences; inverse lengthscales are zero in inactive dimensions."""
        d = gap.shape[-2]
        inverse = _spread(1 / self._of_output(part.lengthscale.squeeze(-2)), columns, d).unsqueeze(-1)
        if isinstance(part, PeriodicKernel):
            period = self._of_output(part.period_length.squeeze(-2))
            turns = gap * _spread(1 / period, columns, d).unsqueeze(-1)
            return torch.exp(-2 * inverse * torch.sin(math.pi * turns).square())
        if isinstance(part, MaternKernel):
            r = gap.abs() * (math.sqrt(2 * part.nu) * inverse)
            return _matern_polynomial(r, part.nu) * torch.exp(-r)
        return torch.exp(-0.5 * (gap * inverse).square())

    def _of_output(self, values: Float[Tensor, "*m k"]) -> Float[Tensor, " k"]:
        """Return one output's row of a batch of hyperparameters, or the row that all outputs share."""
        rows = values.reshape(-1, values.shape[-1]).to(torch.float64)
        return rows[0 if len(rows) == 1 or self.output is None else self.output]


def _parts(kernel: Kernel, columns: list[int], select: bool = True) -> Iterator[tuple[Kernel, list[int]]]:
    """Return scalings and kernels of a product, each with the input dimensions it uses."""
    if select and kernel.active_dims is not None and columns:
        columns = [columns[i] for i in kernel.active_dims.tolist()]
    if isinstance(kernel, ProductKernel):
        for part in kernel.kernels:
            yield from _parts(part, columns)
        return
    yield kernel, columns
    if isinstance(kernel, ScaleKernel):  # it calls `forward` of its base kernel, which then selects nothing
        yield from _parts(kernel.base_kernel, columns, select=False)


def _spread(values: Float[Tensor, " k"], columns: list[int], d: int) -> Float[Tensor, " d"]:
    """Return values for some dimensions (one each, or one for all of them), with zeros in the others."""
    if len(columns) == d and columns == list(range(d)):
        return values.expand(d)
    index = torch.tensor(columns, device=values.device)
    return values.new_zeros(d).index_copy(0, index, values.expand(len(columns)))


@dataclass(frozen=True)
class OutputKernel(Movable):
    """One output's view of any kernel, with values in float64, differentiable in points and parameters.

    Attributes:
        kernel: The kernel, without a batch of outputs.
    """

    kernel: Kernel

    @classmethod
    def of(cls, kernel: Kernel, output: int, num_outputs: int, frozen: bool = False) -> "OutputKernel":
        """Return the kernel of one output. If frozen, it keeps the present hyperparameters, detached from the graph."""
        if frozen:
            kernel = clone_module(kernel).requires_grad_(False).double()
        return cls(output_view(kernel, output, num_outputs))

    def __call__(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"]) -> Float[Tensor, "*e n r"]:
        """Return K_xz."""
        if X.is_cuda:
            return on_gpu(self.kernel, X, Z)
        return _at_once(self.kernel, *_selected(self.kernel, X, Z))

    def matrix(self, Z: Float[Tensor, "p d"]) -> Float[Tensor, "p p"]:
        """Return K_zz."""
        return self(Z, Z)

    def variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Return k(x, x)."""
        if X.is_cuda and _is_stationary(self.kernel):
            origin = X.new_zeros(1, X.shape[-1])
            return on_gpu(self.kernel, origin, origin).reshape(()).expand(X.shape[:-1])
        k: Tensor = self.kernel(X.reshape(-1, X.shape[-1]), diag=True)
        return k.reshape(X.shape[:-1])

    def radial(self) -> Radial | None:
        """Return a scaled RBF or Matérn kernel on all inputs as a function of distance; None for other kernels."""
        kernel, scale = self.kernel, torch.ones((), dtype=torch.float64, device=next(self.kernel.parameters()).device)
        while type(kernel) is ScaleKernel and kernel.active_dims is None:
            kernel, scale = kernel.base_kernel, scale * kernel.outputscale.to(torch.float64)
        profile = _PROFILES.get((type(kernel), getattr(kernel, "nu", None)))
        if profile is None or kernel.active_dims is not None:
            return None
        return Radial(scale, kernel.lengthscale.reshape(-1).to(torch.float64), profile)


def on_gpu(kernel: Kernel, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"]) -> Float[Tensor, "*e n r"]:
    """Return a kernel matrix without waiting for the GPU.

    GPyTorch's distances ask whether the points are the same, which the host reads from the device. Other kernels than
    RBF, Matérn, and products and scalings of these, are left to GPyTorch.
    """
    X, Z = _selected(kernel, X, Z)
    if type(kernel) is ScaleKernel:
        return kernel.outputscale[..., None, None] * on_gpu(kernel.base_kernel, X, Z)
    if type(kernel) is ProductKernel:
        return reduce(torch.mul, [on_gpu(part, X, Z) for part in kernel.kernels])
    if type(kernel) is ProductMaternKernel:
        found: Tensor = kernel.forward(X, Z)
        return found
    if type(kernel) not in (RBFKernel, MaternKernel):
        return _at_once(kernel, X, Z)
    squares = _squared_distances(X, Z, kernel.lengthscale)
    if type(kernel) is RBFKernel:
        return torch.exp(-0.5 * squares)
    r = math.sqrt(2 * kernel.nu) * squares.clamp_min(TINY).sqrt()
    return _matern_polynomial(r, kernel.nu) * torch.exp(-r)


def _selected(kernel: Kernel, X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of a kernel."""
    if kernel.active_dims is None:
        return X, Z
    return X.index_select(-1, kernel.active_dims), Z.index_select(-1, kernel.active_dims)


def _at_once(kernel: Kernel, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"]) -> Float[Tensor, "*e n r"]:
    """Return a kernel matrix of a kernel's own inputs.

    Kernels of kernels return a matrix that is yet to be evaluated, unless a setting of all threads says otherwise. The
    others need no setting, and a thread with another model is not disturbed.
    """
    inner = kernel
    while type(inner) is ScaleKernel:
        inner = inner.base_kernel
    if next(inner.sub_kernels(), None) is None and type(inner).__call__ is Kernel.__call__:
        return to_dense(kernel.forward(X, Z))
    with _EAGERLY:
        return to_dense(kernel.__call__(X, Z) if kernel.active_dims is None else kernel.forward(X, Z))


def _is_stationary(kernel: Kernel) -> bool:
    """Whether k(x, x) is the same everywhere, of a kernel that `on_gpu` knows."""
    if type(kernel) is ProductKernel:
        return all(_is_stationary(part) for part in kernel.kernels)
    if type(kernel) is ScaleKernel:
        return _is_stationary(kernel.base_kernel)
    return type(kernel) in (RBFKernel, MaternKernel, ProductMaternKernel)


def _squared_distances(
    X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*c r d"], lengthscale: Float[Tensor, "*m 1 l"]
) -> Float[Tensor, "*e n r"]:
    """Return ‖(x − z)/ℓ‖², from differences while these take little memory."""
    if X.numel() * Z.shape[-2] <= DIFFERENCES:
        return ((X.unsqueeze(-2) - Z.unsqueeze(-3)) / lengthscale.unsqueeze(-2)).square().sum(-1)
    centre = X.reshape(-1, X.shape[-1]).mean(0)
    X, Z = (X - centre) / lengthscale, (Z - centre) / lengthscale
    squares = X.square().sum(-1, keepdim=True) + Z.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * X @ Z.mT).clamp_min(0.0)


_PROFILES = {
    (RBFKernel, None): rbf,
    (MaternKernel, 0.5): matern12,
    (MaternKernel, 1.5): matern32,
    (MaternKernel, 2.5): matern52,
}

CUBE_TOLERANCE = 1e-2
"""Distance from the unit cube up to which inputs count as inside, as for BoTorch's warning."""
SMALLEST_OUTPUTSCALE = 1e-4
"""Lower bound on the default kernel's outputscale, in squared units of standardised targets, for long line searches."""


def metric_of(kernel: Kernel, d: int) -> Float[Tensor, " d"] | None:
    """Return the lengthscale of every input: the shortest of a kernel's parts and outputs; None if no part has any.

    An input that no part uses has the longest of the others.
    """
    found = torch.full((d,), math.inf, dtype=torch.float64)
    for part, columns in _parts(kernel, list(range(d))):
        if part.has_lengthscale:
            scales = part.lengthscale.detach().double().cpu()
            scales = scales.reshape(-1, scales.shape[-1]).amin(0)
            index = torch.tensor(columns)
            found[index] = found[index].minimum(scales.expand(len(columns)))
    used = found.isfinite()
    return torch.where(used, found, found[used].max()) if bool(used.any()) else None


def units_of(X: Float[Tensor, "n d"]) -> Float[Tensor, " d"] | None:
    """Return the range of each input, 1 for constant ones; None for inputs in the unit cube."""
    if len(X) == 0:
        return None
    lower, upper = X.detach().amin(0), X.detach().amax(0)
    if bool((lower >= -CUBE_TOLERANCE).all()) and bool((upper <= 1 + CUBE_TOLERANCE).all()):
        return None
    return torch.where(upper > lower, upper - lower, 1.0)


def default_kernel(
    d: int,
    batch_shape: torch.Size,
    X: Float[Tensor, "n d"] | None = None,
    smoothness: float = math.inf,
    shared: bool = False,
) -> RBFKernel | MaternKernel:
    """Return BoTorch's default kernel, an RBF with a prior scaled by d, which is meant for inputs in the unit cube.

    For other inputs its prior, constraint and initial value are of the lengthscales in units of each input's range.
    Lengthscales go down to `SHORTEST` rather than BoTorch's .025.

    Args:
        d: Number of inputs.
        batch_shape: Batch shape of the lengthscales.
        X: Transformed inputs of the model; None for inputs in the unit cube.
        smoothness: ν of a Matérn kernel with the same prior, 0.5, 1.5 or 2.5; infinite for the RBF.
        shared: Whether all inputs, which must be in the same units, share a lengthscale.
    """
    botorch = get_covar_module_with_dim_scaled_prior(ard_num_dims=d, batch_shape=batch_shape)
    units = None if X is None or shared else units_of(X)
    factor = torch.ones(()) if units is None else units.detach().cpu()
    bound = botorch.raw_lengthscale_constraint
    lengthscale = botorch.lengthscale[..., :1] if shared else botorch.lengthscale
    start = (bound.initial_value * factor).expand_as(lengthscale).to(lengthscale)
    rough = smoothness < math.inf
    kernel = (partial(MaternKernel, smoothness) if rough else RBFKernel)(
        ard_num_dims=None if shared else d,
        batch_shape=batch_shape,
        lengthscale_prior=botorch.lengthscale_prior if units is None else None,
        lengthscale_constraint=LengthscaleBound(SHORTEST * factor, transform=None, initial_value=start),
    )
    if units is not None:
        kernel.register_buffer("input_units", factor.to(botorch.lengthscale), persistent=False)
        prior = botorch.lengthscale_prior
        kernel.register_prior("lengthscale_prior", prior, _lengthscale_in_units, _set_lengthscale_in_units)
    return kernel


def units_of_prior(kernel: Kernel, value: Callable[[Any], Tensor]) -> Tensor | None:
    """Return the units in which a prior sees a kernel's lengthscales; None if it sees something else.

    Args:
        kernel: The kernel that has the prior.
        value: The function by which the prior gets its value from the kernel.
    """
    if value is _lengthscale_in_units:
        units: Tensor = kernel.input_units
        return units.double()
    return (
        torch.ones((), dtype=torch.float64) if getattr(value, "__func__", None) is Kernel._lengthscale_param else None
    )


class LengthscaleBound(GreaterThan):
    """A lower bound on lengthscales, one for all or one each. A loaded state brings its own."""

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("lower_bound", "upper_bound"):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != getattr(self, name).shape:
                setattr(self, name, saved.clone().to(getattr(self, name)))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _lengthscale_in_units(kernel: Kernel) -> Tensor:
    return kernel.lengthscale / kernel.input_units


def _set_lengthscale_in_units(kernel: Kernel, value: Tensor) -> None:
    kernel._set_lengthscale(value * kernel.input_units)


def default_scaled_kernel(
    d: int,
    batch_shape: torch.Size,
    X: Float[Tensor, "n d"] | None = None,
    smoothness: float = math.inf,
    shared: bool = False,
) -> ScaleKernel:
    """Return `default_kernel` times an outputscale with prior median 1."""
    return ScaleKernel(
        default_kernel(d, batch_shape, X, smoothness, shared),
        batch_shape=batch_shape,
        outputscale_prior=LogNormalPrior(0.0, 1.0),
        outputscale_constraint=GreaterThan(SMALLEST_OUTPUTSCALE, initial_value=1.0),
    )


def require_inputs_of(kernel: Kernel, d: int) -> Kernel:
    """Return a kernel; refuse one with lengthscales for another number of inputs.

    Raises:
        UnsupportedKernelError: for that; the message names the kernel.
    """
    for part in kernel.modules():
        if isinstance(part, Kernel) and part.active_dims is None and part.ard_num_dims not in (None, 1, d):
            raise UnsupportedKernelError(
                f"covar_module: {type(part).__name__} has lengthscales for {part.ard_num_dims} inputs, but there are "
                f"{d}. Make it with ard_num_dims={d}."
            )
    return kernel


def as_product_kernel(kernel: Kernel, d: int) -> Kernel:
    """Return a kernel as a product over dimensions: radial Matérn kernels are replaced by products.

    The result shares parameters with the given kernel, which is not changed.

    Args:
        kernel: RBF, Matérn 1/2, 3/2, 5/2, periodic, and products and scalings of these; in one dimension also spectral
            mixtures, rational quadratic, cosine and sums.
        d: Number of input dimensions.

    Raises:
        UnsupportedKernelError: if a kernel, which the message names, has no factors.
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
        f"{'' if d == 1 else '; spectral mixtures only in d = 1, sums only outermost: scale each summand'}."
    )


def as_sum_of_products(kernel: Kernel, d: int) -> Kernel:
    """Return a sum with every summand passed through `as_product_kernel`; any other kernel counts as one summand."""
    if not isinstance(kernel, AdditiveKernel):
        return as_product_kernel(kernel, d)
    parts = torch.nn.ModuleList([as_product_kernel(part, d) for part in kernel.kernels])
    return _with_children(kernel, {"kernels": parts})


def summands_of(kernel: Kernel) -> list[Kernel]:
    """Return the kernels of a sum."""
    assert isinstance(kernel, AdditiveKernel), "a sum"
    return [part for part in kernel.kernels if isinstance(part, Kernel)]


def is_exponential(kernel: Kernel, d: int) -> bool:
    """Whether a product kernel is a product of Matérn-1/2 kernels and scalings, with a factor in every dimension."""
    parts = [(part, columns) for part, columns in _parts(kernel, list(range(d))) if not isinstance(part, ScaleKernel)]
    rough = all(isinstance(part, MaternKernel) and part.nu == 0.5 for part, _ in parts)
    return rough and {i for _, columns in parts for i in columns} == set(range(d))


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
    """Return a shallow copy with some children replaced; the kernel itself if nothing changes."""
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
