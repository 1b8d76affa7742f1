"""Products of kernel matrices with actions against the matrices themselves, in value, gradient and memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cases import data
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bo_scale.gp.function_space.actions import Blocks
from bo_scale.gp.function_space.kernel_products import chunked as products
from bo_scale.gp.function_space.kernel_products.chunked import kernel_products
from bo_scale.gp.function_space.kernel_products.profiles import matern12, matern32, matern52, rbf
from bo_scale.gp.function_space.process import Radial
from bo_scale.models.shell.kernels import OutputKernel

NUS = {"rbf": None, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
PROFILES = {"rbf": rbf, "matern12": matern12, "matern32": matern32, "matern52": matern52}
FORMS = ["dense", "blocks"]


def correlation(r: Tensor, name: str) -> Tensor:
    a = math.sqrt(2 * (NUS[name] or 0.0)) * r
    polynomial = {"matern12": 1 + 0 * a, "matern32": 1 + a, "matern52": 1 + a + a.square() / 3}
    return torch.exp(-0.5 * r.square()) if name == "rbf" else polynomial[name] * torch.exp(-a)


def distances(Z: Tensor, X: Tensor, lengthscale: Tensor) -> Tensor:
    gap = (Z.unsqueeze(-2) - X) / lengthscale
    return torch.linalg.vector_norm(gap, dim=-1)


def base(name: str, ard: int | None, **options: Any) -> Kernel:
    kernel = RBFKernel(ard, **options) if name == "rbf" else MaternKernel(NUS[name], ard_num_dims=ard, **options)
    kernel = kernel.double()
    kernel.lengthscale = torch.linspace(0.3, 0.9, ard or 1).double()
    return kernel


def scaled(kernel: Kernel, scale: float = 1.7) -> ScaleKernel:
    made = ScaleKernel(kernel).double()
    made.outputscale = torch.tensor(scale, dtype=torch.float64)
    return made


def summed() -> Kernel:
    return AdditiveKernel(scaled(base("rbf", 2, active_dims=(0, 2))), scaled(RQKernel().double(), 0.4))


def actions(form: str, n: int = 13, i: int = 4, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Points and entries of a form, and the S that they stand for with rows in the order of X."""
    X, g = data(n, d, seed=seed)[0], torch.Generator().manual_seed(seed)
    if form == "dense":
        S = torch.randn(n, i, generator=g, dtype=torch.float64)
        return X, S, S
    blocks = Blocks.of(torch.arange(n) % i)
    s = torch.randn(n, generator=g, dtype=torch.float64)
    S = torch.zeros(n, i, dtype=torch.float64)
    S[torch.arange(n), torch.arange(n) % i] = s
    return blocks.gather(X), blocks.gather(s) * blocks.mask, S


@dataclass(frozen=True)
class Stand:
    """A radial kernel of given tensors."""

    lengthscale: Tensor
    scale: Tensor
    name: str

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.scale * correlation(distances(X, Z, self.lengthscale), self.name)

    def variance(self, X: Tensor) -> Tensor:
        return self.scale.expand(X.shape[:-1])

    def radial(self) -> Radial | None:
        return Radial(self.scale, self.lengthscale, PROFILES[self.name])

    def to(self, device: torch.device) -> "Stand":
        return self


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "KEPT", 0)
    monkeypatch.setattr(products, "ENTRIES", 40)


@pytest.fixture(params=["whole", "chunked"])
def either_path(request: pytest.FixtureRequest) -> None:
    if request.param == "chunked":
        request.getfixturevalue("chunked")


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ard", [None, 3], ids=["one lengthscale", "ard"])
@pytest.mark.parametrize("name", NUS)
def test_products_with_radial_kernels_equal_the_dense_product(
    name: str, ard: int | None, form: str, either_path: None
) -> None:
    kernel = base(name, ard)
    points, entries, S = actions(form)
    (X, _), (Z, _) = data(13, 3), data(7, 3, seed=1)
    K = correlation(distances(Z, X, kernel.lengthscale), name)
    for whole, scale in ((kernel, 1.0), (scaled(scaled(kernel), 2.0), 3.4)):
        found = kernel_products(OutputKernel(whole), Z, points, entries)
        torch.testing.assert_close(found, scale * K @ S, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kernel", "radial"),
    [
        (lambda: scaled(base("rbf", 2, active_dims=(2, 0))), False),
        (lambda: scaled(base("matern32", None, active_dims=(1,))), False),
        (summed, False),
        (lambda: ProductKernel(base("matern52", 3), RQKernel().double()), False),
        (lambda: scaled(base("matern52", 3)), True),
    ],
    ids=["active dims", "one active dim", "sum", "product", "radial"],
)
def test_products_with_any_kernel_equal_the_dense_product(
    kernel: Callable[[], Kernel], radial: bool, form: str, either_path: None
) -> None:
    made, (points, entries, S), Z = kernel(), actions(form), data(7, 3, seed=1)[0]
    assert (OutputKernel(made).radial() is not None) == radial
    found = kernel_products(OutputKernel(made), Z, points, entries)
    torch.testing.assert_close(found, made(Z, data(13, 3)[0]).to_dense() @ S, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [lambda: scaled(base("matern32", 3)), summed], ids=["radial", "sum"])
def test_no_points_have_no_products(kernel: Callable[[], Kernel], form: str, either_path: None) -> None:
    points, entries, _ = actions(form)
    assert kernel_products(OutputKernel(kernel()), data(0, 3)[0], points, entries).shape == (0, 4)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NUS)
def test_gradients_in_chunks_equal_finite_differences(name: str, form: str, chunked: None) -> None:
    points, entries, _ = actions(form, 7, 3, 2)
    inputs = (
        data(4, 2, seed=1)[0],
        points,
        entries,
        torch.tensor([0.6, 1.1]).double(),
        torch.tensor(1.4).double(),
    )

    def product(Z: Tensor, points: Tensor, entries: Tensor, lengthscale: Tensor, scale: Tensor) -> Tensor:
        return kernel_products(Stand(lengthscale, scale, name), Z, points, entries)

    assert torch.autograd.gradcheck(product, tuple(v.clone().requires_grad_() for v in inputs), atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [lambda: scaled(base("matern32", 3)), summed], ids=["radial", "sum"])
def test_values_and_gradients_in_chunks_are_those_of_the_whole(
    kernel: Callable[[], Kernel], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, entries, _ = actions(form)
    upstream, found = torch.randn(7, 4, dtype=torch.float64), []
    for kept in (10**9, 0):
        monkeypatch.setattr(products, "KEPT", kept)
        monkeypatch.setattr(products, "ENTRIES", 40)
        made = kernel()
        leaves = [v.clone().requires_grad_() for v in (data(7, 3, seed=1)[0], points, entries)]
        value = kernel_products(OutputKernel(made), *leaves)
        gradients = torch.autograd.grad((value * upstream).sum(), [*leaves, *made.parameters()])
        found.append([value, *gradients])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NUS)
def test_coincident_points_have_a_finite_gradient_without_a_part_of_their_own(
    name: str, form: str, chunked: None
) -> None:
    X = torch.zeros(3, 2, dtype=torch.float64)
    points, entries = (X, torch.ones(3, 1).double()) if form == "dense" else (X.unsqueeze(0), torch.ones(1, 3).double())
    Z, lengthscale = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([0.5, 0.5]).double()
    leaves = [Z.requires_grad_(), points.requires_grad_(), lengthscale.requires_grad_()]
    value = kernel_products(Stand(lengthscale, torch.tensor(1.0).double(), name), Z, points, entries)
    torch.testing.assert_close(value, torch.full((2, 1), 3.0).double())
    for gradient in torch.autograd.grad(value.sum(), leaves):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("name", NUS)
def test_some_coincident_points_leave_the_gradient_of_the_others(name: str, chunked: None) -> None:
    X = data(6, 2)[0]
    Z = torch.cat([X[:2], data(2, 2, seed=1)[0]])
    S, lengthscale = torch.randn(6, 2, dtype=torch.float64), torch.tensor([0.4, 0.8]).double().requires_grad_()
    kernel = Stand(lengthscale, torch.tensor(1.3).double(), name)
    value = kernel_products(kernel, Z, X, S)
    gap = (Z.unsqueeze(-2) - X) / lengthscale
    apart = gap.square().sum(-1)
    r = torch.where(apart > 0, torch.where(apart > 0, apart, 1.0).sqrt(), 0.0)
    reference = 1.3 * correlation(r, name) @ S
    torch.testing.assert_close(value, reference, rtol=1e-7, atol=1e-7)
    ours, theirs = (torch.autograd.grad(v.square().sum(), lengthscale)[0] for v in (value, reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NUS)
def test_points_far_from_the_origin_keep_their_digits(name: str, chunked: None) -> None:
    points, entries, _ = actions("dense")
    Z, kernel = data(5, 3, seed=1)[0], Stand(torch.full((3,), 0.5).double(), torch.tensor(1.0).double(), name)
    near, far = (kernel_products(kernel, Z + shift, points + shift, entries) for shift in (0.0, 1e4))
    torch.testing.assert_close(near, far, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            self.size = max(self.size, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kernel", "n"),
    [pytest.param(lambda: scaled(base("matern32", 3)), 2000, id="radial"), pytest.param(summed, 800, id="sum")],
)
def test_no_matrix_of_all_entries_is_made_for_value_or_gradient(
    kernel: Callable[[], Kernel], n: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    i, made = 8, kernel()
    monkeypatch.setattr(products, "KEPT", 2**18)
    monkeypatch.setattr(products, "ENTRIES", 2**15)
    points, entries, _ = actions(form, n, i)
    entries.requires_grad_()
    with Largest() as largest:
        value = kernel_products(OutputKernel(made), data(n, 3)[0], points, entries)
        torch.autograd.grad(value.sum(), [entries, *made.parameters()])
    assert n * i <= largest.size <= products.ENTRIES < n * n / 10


def test_a_profile_sees_no_more_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []

    def recorded(squares: Tensor, slope: bool) -> tuple[Tensor, Tensor | None]:
        seen.append(squares.shape)
        return rbf(squares, slope)

    monkeypatch.setitem(PROFILES, "rbf", recorded)
    monkeypatch.setattr(products, "KEPT", 0)
    monkeypatch.setattr(products, "ENTRIES", 100)
    points, entries, _ = actions("dense", 30, 4)
    kernel = Stand(torch.ones(3).double(), torch.tensor(1.0).double(), "rbf")
    kernel_products(kernel, data(7, 3, seed=1)[0], points, entries)
    assert seen == [(3, 30), (3, 30), (1, 30)]
