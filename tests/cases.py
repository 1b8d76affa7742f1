"""What the laws are tested on: every feature map, every model, and data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, SoftKI, qNegIntegratedPosteriorVariance
from bo_scale.gp.function_space.process import Evaluations, FunctionSpacePosterior
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.eigenfunctions import Eigenbasis, EigenfunctionFeatures
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Grid
from bo_scale.gp.weight_space.features.projection import LinearProjection, ProjectedFeatures, in_double
from bo_scale.gp.weight_space.features.softmax import SoftmaxFeatures
from bo_scale.gp.weight_space.features.sums import SumFeatures


def stationary(lengthscales: Tensor, name: str = "rbf") -> Callable[[list[Tensor], list[Tensor]], list[Tensor]]:
    """Factors of a product kernel with unit variance."""

    def factors(U: list[Tensor], V: list[Tensor]) -> list[Tensor]:
        r = [(u.unsqueeze(-1) - v) / length for u, v, length in zip(U, V, lengthscales.to(U[0].device))]
        return [torch.exp(-0.5 * x.square()) if name == "rbf" else torch.exp(-x.abs()) for x in r]

    return factors


def grid_features(size: tuple[int, ...], basis: Any = "spline", name: str = "rbf") -> Callable[[Tensor], FeatureMap]:
    """From lengthscales to features on the unit cube."""
    d = len(size)

    def build(lengthscales: Tensor) -> FeatureMap:
        return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(lengthscales, name), basis)

    return build


def in_the_margin_too(n: int, grid: Grid) -> Tensor:
    """Points up to the last node on every side."""
    lower, spacing, last = (torch.tensor(v, dtype=torch.float64) for v in (grid.lower, grid.spacing, grid.size))
    X = torch.rand(n, len(grid.size), dtype=torch.float64) * (last - 1)
    X[:3] = X[:3].round()
    X[3], X[4] = 0.0, last - 1
    return lower + (X - 1) * spacing


@dataclass(frozen=True)
class CosineFeatures(FeatureMap):
    """A dense feature map, small and smooth: stands for those without structure."""

    lengthscales: Tensor
    p: int = 9

    @property
    def num_features(self) -> int:
        return self.p

    def __call__(self, X: Tensor) -> Tensor:
        order = torch.arange(self.p, dtype=torch.float64, device=X.device)
        return torch.cos(X.to(torch.float64).sum(-1, keepdim=True) * order)

    def kernel_variance(self, X: Tensor) -> Tensor:
        return self.prior_variance(X) + 0.1

    def prior_root(self) -> DenseLinearOperator:
        order = torch.arange(self.p, dtype=torch.float64, device=self.lengthscales.device)
        return DenseLinearOperator(torch.diag(torch.exp(-self.lengthscales.sum() * order)))


def softmax_features(lengthscales: Tensor) -> FeatureMap:
    """Softmax interpolation from points in general position, with an RBF kernel of unit variance."""
    d = len(lengthscales)
    points = torch.quasirandom.SobolEngine(d, scramble=True, seed=1).draw(9, dtype=torch.float64)

    def covariance(Z: Tensor) -> Tensor:
        return torch.exp(-0.5 * (Z.unsqueeze(1) - Z).div(lengthscales).square().sum(-1))

    return SoftmaxFeatures(points, torch.full((d,), 0.2).double(), covariance, lambda X: torch.ones_like(X[..., 0]))


def eigenfunctions(lengthscales: Tensor) -> FeatureMap:
    """The 11 leading eigenfunctions of an RBF kernel on 5 nodes a dimension, half of them with other weights than 1."""

    def factors(X: Tensor, nodes: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((X.unsqueeze(-1) - nodes) / lengthscales.unsqueeze(-1)).square())

    nodes = torch.linspace(0.0, 1.0, 5, dtype=torch.float64).expand(len(lengthscales), 5)
    weights = torch.linspace(0.5, 1.5, 11, dtype=torch.float64)
    return EigenfunctionFeatures(Eigenbasis(nodes, factors, 11), torch.tensor(1.3).double(), weights)


def sum_features(*builds: Callable[[Tensor], FeatureMap]) -> Callable[[Tensor], FeatureMap]:
    """Independent functions, each with features of its own."""
    return lambda lengthscales: SumFeatures(tuple(build(lengthscales) for build in builds))


def projected(*size: int) -> Callable[[Tensor], FeatureMap]:
    """On a grid of fewer dimensions than the inputs have."""

    def build(lengthscales: Tensor) -> FeatureMap:
        k, d = len(size), len(lengthscales)
        weight = torch.linspace(-1.0, 1.2, k * d, dtype=torch.float64).reshape(k, d)
        base = GridFeatures(Grid((-1.0,) * k, (1.0,) * k, size), stationary(lengthscales))
        return ProjectedFeatures(base, in_double(LinearProjection(d, k, weight), frozen=True))

    return build


def rough_and_smooth(m: int) -> Kernel:
    """A Matérn-1/2 kernel and an RBF, each with its scale, for m outputs."""
    batch = torch.Size([m] if m > 1 else [])
    kernels = MaternKernel(0.5, batch_shape=batch), RBFKernel(batch_shape=batch)
    rough, smooth = (ScaleKernel(kernel, batch_shape=batch) for kernel in kernels)
    return rough + smooth


def wiski_sum(X: Tensor, Y: Tensor, **options: Any) -> WISKI:
    """A grid for what is rough, and a coarser one for what is smooth."""
    sizes = [(14,), 9] if X.shape[-1] == 1 else [(7, 6), 5]
    return WISKI(X, Y, **{"grid_size": sizes, "covar_module": rough_and_smooth(Y.shape[-1]), **options})


def projected_wiski(X: Tensor, Y: Tensor, **options: Any) -> WISKI:
    """On a plane of inputs, which does not depend on the data; to be learned."""
    projection = torch.nn.Sequential(torch.nn.Linear(X.shape[-1], 2), torch.nn.Tanh()).to(X)
    with torch.no_grad():
        for i, p in enumerate(projection.parameters()):
            p.copy_(torch.linspace(-0.8, 1.0 - 0.3 * i, p.numel()).reshape(p.shape))
    options = {name: value for name, value in options.items() if name != "bounds"}  # its own are those of the cube
    return WISKI(X, Y, **{"grid_size": (8, 7), "projection": projection, **options})


def softki(X: Tensor, Y: Tensor, **options: Any) -> SoftKI:
    """From points that do not depend on the data."""
    d = X.shape[-1]
    points = torch.quasirandom.SobolEngine(d, scramble=True, seed=1).draw(20, dtype=torch.float64)
    return SoftKI(X, Y, **{"interpolation_points": points, "temperature": 0.15, "epochs": 3, **options})


def grief(X: Tensor, Y: Tensor, **options: Any) -> GRIEF:
    """On a grid that does not depend on the data."""
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, X.shape[-1])
    return GRIEF(X, Y, **{"bounds": bounds, "num_eigenfunctions": 24, "grid_points": 6, **options})


def cagp(X: Tensor, Y: Tensor, **options: Any) -> CaGP:
    """Of few actions."""
    return CaGP(X, Y, **{"num_actions": 5, "epochs": 5, **options})


def decoupled(X: Tensor, Y: Tensor, **options: Any) -> DecoupledGP:
    """With as many points as there are rows below."""
    return DecoupledGP(X, Y, **{"num_mean_inducing": 64, "num_covar_inducing": 40, "num_steps": 3, **options})


FEATURES = [
    pytest.param(1, grid_features((11,)), id="spline-1d"),
    pytest.param(2, grid_features((8, 7)), id="spline-2d"),
    pytest.param(3, grid_features((6, 5, 7)), id="spline-3d"),
    pytest.param(2, grid_features((8, 7), "keys"), id="keys-2d"),
    pytest.param(2, grid_features((9, 6), "spline", "exponential"), id="rough-2d"),
    pytest.param(2, CosineFeatures, id="dense-2d"),
    pytest.param(2, softmax_features, id="softmax-2d"),
    pytest.param(2, eigenfunctions, id="eigenfunctions-2d"),
    pytest.param(3, projected(7, 6), id="projected-3d"),
    pytest.param(2, sum_features(grid_features((7, 6)), grid_features((5, 6), "keys", "rough")), id="sum-2d"),
    pytest.param(2, sum_features(softmax_features, grid_features((6, 5)), CosineFeatures), id="sum-mixed-2d"),
]

WEIGHT_SPACE = [
    pytest.param(1, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 12, **kw}), id="WISKI-1d"),
    pytest.param(2, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 10, **kw}), id="WISKI-2d"),
    pytest.param(3, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 7, **kw}), id="WISKI-3d"),
    pytest.param(2, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 10, "basis": "keys", **kw}), id="WISKI-keys"),
    pytest.param(
        2, lambda X, Y, **kw: WISKI(X, Y, **{"grid_size": 10, "conservative": True, **kw}), id="WISKI-conservative"
    ),
    pytest.param(2, wiski_sum, id="WISKI-sum-2d"),
    pytest.param(1, lambda X, Y, **kw: wiski_sum(X, Y, **{"rank": 8, **kw}), id="WISKI-precision-sum"),
    pytest.param(5, projected_wiski, id="WISKI-projected"),
    pytest.param(2, softki, id="SoftKI-2d"),
    pytest.param(5, softki, id="SoftKI-5d"),
    pytest.param(2, lambda X, Y, **kw: softki(X, Y, missing_variance=True, **kw), id="SoftKI-missing"),
    pytest.param(2, grief, id="GRIEF-2d"),
    pytest.param(5, grief, id="GRIEF-5d"),
    pytest.param(
        2, lambda X, Y, **kw: grief(X, Y, weights="type2", missing_variance=True, **kw), id="GRIEF-II-missing"
    ),
]

FUNCTION_SPACE = [
    pytest.param(1, lambda X, Y, **kw: cagp(X, Y, **{"num_actions": 40, **kw}), id="CaGP-1d"),
    pytest.param(3, lambda X, Y, **kw: cagp(X, Y, **{"num_actions": 40, **kw}), id="CaGP-3d"),
    pytest.param(2, lambda X, Y, **kw: decoupled(X, Y, **kw), id="Decoupled-2d"),
    pytest.param(2, lambda X, Y, **kw: decoupled(X, Y, **{"parameterization": "hybrid", **kw}), id="Decoupled-hybrid"),
]
"""At most as many rows as actions or inducing points: conditioning equals refitting."""

APPROXIMATE = [
    pytest.param(2, lambda X, Y, **kw: cagp(X, Y, **kw), id="CaGP-few"),
    pytest.param(2, lambda X, Y, **kw: cagp(X, Y, **{"policy": "cg", **kw}), id="CaGP-cg"),
    pytest.param(
        2,
        lambda X, Y, **kw: decoupled(X, Y, **{"num_mean_inducing": 10, "num_covar_inducing": 5, **kw}),
        id="Decoupled-few",
    ),
]
"""More rows than these: what they are approximated by depends on which came when."""

REFITTED = WEIGHT_SPACE + FUNCTION_SPACE
MODELS = REFITTED + APPROXIMATE


def end_to_end(model: Any, box: bool = True) -> dict[str, Tensor]:
    """What a model of the unit cube says in all the ways it can be asked, and after it was told more."""
    d, m = model.train_inputs[0].shape[-1], model.num_outputs
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    loss = model.compute_custom_loss(mll)
    learned = [p for p in model.parameters() if p.requires_grad]
    said = {"loss": loss.detach(), "gradient": torch.cat([g.flatten() for g in torch.autograd.grad(loss, learned)])}
    like = model.train_inputs[0]
    X, Xn, Yn = (values.to(like) for values in (data(5, d, m, seed=11)[0], *data(4, d, m, seed=12)))
    more = model.eval().condition_on_observations(Xn, Yn)
    one = model.condition_on_observations(Xn[:2].unsqueeze(0), Yn[:2].unsqueeze(0))
    two = one.condition_on_observations(Xn[2:].unsqueeze(0), Yn[2:].unsqueeze(0))
    for name, each in {"": model, "streamed ": more, "fantasies ": one, "more fantasies ": two}.items():
        posterior = each.posterior(X, observation_noise=False)
        said |= {f"{name}mean": posterior.mean, f"{name}covariance": posterior.distribution.covariance_matrix}
        said[f"{name}batch"] = each.posterior(X.unflatten(0, (5, 1, 1))).variance
    if m == 1:
        for name, points in {"NIPV": X, "NIPV over the box": None}.items():
            if points is not None or box:
                nipv = qNegIntegratedPosteriorVariance(model, points, X_pending=Xn[:1])
                said[name] = nipv(Xn[1:].unflatten(0, (3, 1)))
    return {name: value.detach() for name, value in said.items()}


def assert_alike(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-8) -> None:
    """The same was said; gradients to a hundredth of the accuracy."""
    for name in a:
        wide = 100 * tolerance if name == "gradient" else tolerance
        torch.testing.assert_close(
            a[name], b[name], rtol=wide, atol=wide, msg=lambda text, name=name: f"{name}: {text}"
        )


def rand(*shape: int, seed: int = 0) -> Tensor:
    """Uniform numbers of their own seed."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(n: int, d: int = 2, seed: int = 0) -> Tensor:
    """Points in the unit cube."""
    return rand(n, d, seed=seed)


def ring(X: Tensor) -> Tensor:
    """Three classes: inside, ring, outside."""
    r = (X[..., :2] - 0.5).norm(dim=-1)
    return (r > 0.2).long() + (r > 0.45).long()


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers of their own seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class SmoothKernel:
    """An RBF kernel for processes in function space, without a shell."""

    lengthscale: float = 0.4
    scale: float = 1.3

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        squares = ((X.unsqueeze(-2) - Z.unsqueeze(-3)) / self.lengthscale).square().sum(-1)
        return self.scale * torch.exp(-0.5 * squares)

    def variance(self, X: Tensor) -> Tensor:
        return torch.full(X.shape[:-1], self.scale, dtype=torch.float64)

    def radial(self) -> None:
        return None

    def to(self, device: torch.device) -> "SmoothKernel":
        return self


def exact_gp(X: Tensor, y: Tensor, noise: float, constant: float = 0.3) -> FunctionSpacePosterior:
    """The process of a smooth kernel given noisy values."""
    kernel, mu = SmoothKernel(), torch.tensor(constant, dtype=torch.float64)
    factor = torch.linalg.cholesky(kernel(X, X) + noise * torch.eye(len(X), dtype=torch.float64))
    innovation = torch.linalg.solve_triangular(factor, (y - mu).unsqueeze(-1), upper=False).squeeze(-1)
    return FunctionSpacePosterior(kernel, mu, Evaluations(X), factor, innovation, noise)


def conditioned(process: PosteriorProcess, X: Tensor, y: Tensor, noise: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance at Z of a process that has also seen y at X, by a dense solve of its joint moments."""
    gain = torch.linalg.solve(process.covariance(X) + torch.diag_embed(noise), process.covariance(X, Z)).mT
    mean = process.mean(Z) + (gain @ (y - process.mean(X)).unsqueeze(-1)).squeeze(-1)
    return mean, process.covariance(Z) - gain @ process.covariance(X, Z)


def data(n: int, d: int, m: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs in the unit cube and smooth values with a little noise."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    Y = torch.stack([torch.sin((3 + j) * X.sum(-1) + j) for j in range(m)], -1)
    return X, Y + 0.1 * torch.randn(n, m, generator=g, dtype=torch.float64)
