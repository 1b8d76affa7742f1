"""Models that learn one observation at a time: bo_scale's, an exact GP, and GPyTorch's SVGP, behind one interface.

All share their start where they can: lengthscales and noise by the evidence of the first observations, and, where
inputs are projected, directions in closed form. Then each takes one step of Adam an observation.
"""

from collections.abc import Callable
from typing import Any, Protocol

import gpytorch
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from benchmarks.rivals import kmeans
from bo_scale import WISKI, LinearProjection, OnlineClassifier, OnlineLearner, WISKIClassifier
from bo_scale.models.fitting.evidence import loss_of
from bo_scale.models.wiski.classifier import dirichlet_targets
from bo_scale.training.relative_adam import RelativeAdam

LR, PROJECTION_LR = 5e-3, 5e-4
"""Of a step, as in the paper's table C.1 for skillcraft and powerplant."""
SVGP_POINTS, SVGP_START, BETA = 256, 200, 1e-3
"""Inducing points, steps on the first observations, and the weight of the KL divergence: the paper's."""
ROWS_A_PARAMETER, START = 10, 200
"""Where the first observations are at least so many for each parameter of the projection, it is learned of them too,
in so many steps of ten times the online rates. Fewer are soon fitted too well: it stays as it starts."""
KernelOf = Callable[[int], Kernel]


class Regression(Protocol):
    """Learns values."""

    def step(self, X: Tensor, Y: Tensor) -> None:
        """One more observation, `1 × d` and `1 × 1`, and one step."""

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of observations at `M × d`: `M` each."""


class Classification(Protocol):
    """Learns two classes."""

    def step(self, X: Tensor, label: Tensor) -> None:
        """One more label, `1 × d` and `1`, and one step."""

    def probabilities(self, X: Tensor) -> Tensor:
        """Of the classes at `M × d`: `M × 2`."""


def scaled_rbf(d: int) -> Kernel:
    """An RBF with a lengthscale a dimension and an outputscale."""
    return ScaleKernel(RBFKernel(ard_num_dims=d))


# ---------------------------------------------------------------------- regression


class Wiski:
    """WISKI with a projection to a plane, or in the dimensions that there are.

    Args:
        X: First inputs `n × d`, in the unit cube where they are not projected.
        Y: First values `n × 1`.
        grid_size: Points a dimension.
        project: Whether to a plane.
        kernel: From the dimension; None for an RBF.
        lr: Of an online step.
        start: Steps of 0.05 on the first observations in place of a fit to convergence; None for that.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        grid_size: int = 16,
        project: bool = True,
        kernel: KernelOf | None = None,
        lr: float = LR,
        start: int | None = None,
    ) -> None:
        model = wiski(X, Y, grid_size, project, kernel, learn=False, fit=start is None)
        steps = start or 0
        if project and enough(model.projection, len(X)):
            model.projection.requires_grad_(True)
            steps = START
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        adams = optimisers(mll, model.projection)
        for _ in range(steps):
            ascend(adams, lambda: loss_of(model, mll, model._log_evidence()))
        self._learner = OnlineLearner(model.eval(), lr, PROJECTION_LR)

    def step(self, X: Tensor, Y: Tensor) -> None:
        """As in the protocol."""
        self._learner.step(X, Y)

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """As in the protocol."""
        with torch.no_grad():
            posterior = self._learner.posterior(X, observation_noise=True)
        return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)

    @property
    def scores(self) -> dict[str, float]:
        """Of predictions made before values were seen."""
        scores = self._learner.scores
        return {name: getattr(scores, name).item() for name in ("rmse", "nll", "coverage")}


def wiski(
    X: Tensor,
    Y: Tensor,
    grid_size: int = 16,
    project: bool = True,
    kernel: KernelOf | None = None,
    learn: bool = True,
    fit: bool = True,
) -> WISKI:
    """Fitted in batch unless told otherwise, the projection too if `learn`."""
    projection = LinearProjection(X.shape[-1], 2).requires_grad_(learn) if project else None
    covar_module = (kernel or scaled_rbf)(2 if project else X.shape[-1])
    model = WISKI(
        X,
        Y,
        grid_size=grid_size,
        covar_module=covar_module,
        outcome_transform=None,
        projection=projection,
    )
    if fit:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def enough(projection: Any, n: int) -> bool:
    """Whether n observations are enough to learn a projection from."""
    return n >= ROWS_A_PARAMETER * sum(p.numel() for p in projection.parameters())


def optimisers(mll: Any, projection: Any, share: float = 10.0, lr: float = LR) -> tuple[RelativeAdam, torch.optim.Adam]:
    """Of a model's hyperparameters and of its projection, at a multiple of the online rates."""
    of_h = set() if projection is None else {id(p) for p in projection.parameters()}
    others = {name: p for name, p in mll.named_parameters() if id(p) not in of_h}
    bounds = get_parameters_and_bounds(mll)[1]
    parameters = [torch.zeros(1)] if not of_h else list(projection.parameters())
    return RelativeAdam(others, bounds, share * lr), torch.optim.Adam(parameters, share * PROJECTION_LR)


def ascend(adams: tuple[RelativeAdam, torch.optim.Adam], loss: Callable[[], Tensor]) -> None:
    """A step of both on one evaluation."""
    adams[1].zero_grad()
    adams[0].step(loss)
    adams[1].step()


class Exact:
    """An exact GP, with the projection over all its rows at every step: O(n³) each.

    Args:
        X: As for `Wiski`.
        Y: As for `Wiski`.
        project: As for `Wiski`.
        kernel: As for `Wiski`.
        lr: As for `Wiski`.
        start: As for `Wiski`.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        project: bool = True,
        kernel: KernelOf | None = None,
        lr: float = LR,
        start: int | None = None,
    ) -> None:
        self._h: Any = LinearProjection(X.shape[-1], 2).for_data(X, Y) if project else torch.nn.Identity()
        self._X, self._Y = X, Y
        covar_module = (kernel or scaled_rbf)(2 if project else X.shape[-1])
        with torch.no_grad():
            Z = self._h(X)
        self._model = SingleTaskGP(Z, Y, covar_module=covar_module, outcome_transform=None)
        self._mll = ExactMarginalLogLikelihood(self._model.likelihood, self._model)
        if start is None:
            fit_gpytorch_mll(self._mll)
        steps = START if project and enough(self._h, len(X)) else start or 0
        adams = optimisers(self._mll.train(), self._h)
        for _ in range(steps):
            ascend(adams, self._loss)
        self._adams = optimisers(self._mll, self._h, 1.0, lr)

    def step(self, X: Tensor, Y: Tensor) -> None:
        """As in the protocol."""
        self._X, self._Y = torch.cat([self._X, X]), torch.cat([self._Y, Y])
        self._mll.train()
        ascend(self._adams, self._loss)

    def _loss(self) -> Tensor:
        Z = self._h(self._X)
        self._model.set_train_data(Z, self._Y.squeeze(-1), strict=False)
        return -self._mll(self._model(Z), self._Y.squeeze(-1))

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """As in the protocol."""
        with torch.no_grad():
            self._model.set_train_data(self._h(self._X), self._Y.squeeze(-1), strict=False)
            posterior = self._model.eval().posterior(self._h(X), observation_noise=True)
        return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)


class VariationalModel(ApproximateGP):
    """A whitened variational GP over inducing points `m × k`, which are learned."""

    def __init__(self, points: Tensor, kernel: Kernel) -> None:
        distribution = CholeskyVariationalDistribution(len(points))
        super().__init__(VariationalStrategy(self, points.clone(), distribution, learn_inducing_locations=True))
        self.mean_module = ConstantMean()
        self.covar_module = kernel
        self.to(points)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior at points `… q k`."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


class Svgp:
    """GPyTorch's SVGP: Adam on the bound of the first observations, then of each one, with the KL times β.

    Args:
        X: As for `Wiski`.
        Y: Values `n × 1`, or labels 0 and 1 for a Bernoulli likelihood.
        project: As for `Wiski`.
        kernel: As for `Wiski`.
        likelihood: None for a Gaussian one.
        steps: An observation.
        lr: Of an online step.
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        project: bool = True,
        kernel: KernelOf | None = None,
        likelihood: Likelihood | None = None,
        steps: int = 1,
        lr: float = LR,
    ) -> None:
        self._h: Any = LinearProjection(X.shape[-1], 2).for_data(X, Y) if project else torch.nn.Identity()
        with torch.no_grad():
            points = self._points(self._h(X))
        self._model = VariationalModel(points, (kernel or scaled_rbf)(points.shape[-1]))
        self._likelihood = (GaussianLikelihood() if likelihood is None else likelihood).to(X)
        self._steps, self._count = steps, len(X)
        groups = [*self._model.parameters(), *self._likelihood.parameters()]
        rate = 10 * PROJECTION_LR if project and enough(self._h, len(X)) else 0.0
        projection = [{"params": list(self._h.parameters()), "lr": rate}] if project else []
        self._adam = torch.optim.Adam([{"params": groups, "lr": 10 * LR}, *projection])
        for _ in range(SVGP_START):
            self._ascend(X, Y, beta=1.0)
        for group, online in zip(self._adam.param_groups, (lr, PROJECTION_LR), strict=False):
            group["lr"] = online

    @staticmethod
    def _points(Z: Tensor) -> Tensor:
        """Centres of the first inputs, and random points of their box where these are fewer."""
        centres = kmeans(Z, SVGP_POINTS)
        lower, upper = Z.amin(0), Z.amax(0)
        g = torch.Generator().manual_seed(0)
        missing = SVGP_POINTS - len(centres)
        return torch.cat([centres, lower + (upper - lower) * torch.rand(missing, Z.shape[-1], generator=g).to(Z)])

    def _ascend(self, X: Tensor, Y: Tensor, beta: float) -> None:
        self._model.train()
        mll = VariationalELBO(self._likelihood, self._model, num_data=self._count, beta=beta)
        self._adam.zero_grad()
        (-mll(self._model(self._h(X)), Y.reshape(-1).to(X))).backward()
        self._adam.step()

    def step(self, X: Tensor, Y: Tensor) -> None:
        """As in the protocols."""
        self._count += len(X)
        for _ in range(self._steps):
            self._ascend(X, Y, BETA)

    def _predicted(self, X: Tensor) -> Any:
        self._model.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            return self._likelihood(self._model(self._h(X)))

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """As in the protocol."""
        found = self._predicted(X)
        return found.mean, found.variance

    def probabilities(self, X: Tensor) -> Tensor:
        """As in the protocol."""
        one: Tensor = self._predicted(X).probs
        return torch.stack([1 - one, one], -1)


# ---------------------------------------------------------------------- classification


class WiskiClasses:
    """The online classifier.

    Args:
        X: First inputs `n × d` in the unit cube.
        labels: 0 and 1.
        grid_size: Points a dimension.
        rank: Of the prior.
    """

    def __init__(self, X: Tensor, labels: Tensor, grid_size: int, rank: int) -> None:
        options = {"grid_size": grid_size, "rank": rank}
        self._learner = OnlineClassifier(WISKIClassifier(X, labels, num_classes=2, **options).fit(), LR)

    def step(self, X: Tensor, label: Tensor) -> None:
        """As in the protocol."""
        self._learner.step(X, label)

    def probabilities(self, X: Tensor) -> Tensor:
        """As in the protocol."""
        with torch.no_grad():
            return self._learner.probabilities(X)


class ExactClasses:
    """An exact Dirichlet GP with the kernel and the start of the WISKI classifier: O(n³) a step.

    Args:
        X: First inputs `n × d` in the unit cube.
        labels: 0 and 1.
        grid_size: Of the classifier that it takes its start from.
        rank: Of that classifier.
    """

    def __init__(self, X: Tensor, labels: Tensor, grid_size: int, rank: int) -> None:
        started = WISKIClassifier(X, labels, num_classes=2, grid_size=grid_size, rank=rank).fit()
        self._X, self._labels = X, labels
        self._modules = {"covar_module": started.model.covar_module, "mean_module": started.model.mean_module}
        mll = self._mll()
        self._adam = RelativeAdam(dict(mll.named_parameters()), get_parameters_and_bounds(mll)[1], LR)

    def _mll(self) -> ExactMarginalLogLikelihood:
        """Of all rows so far; its parameters are always the same."""
        Y, noise = dirichlet_targets(self._labels, 2)
        model = SingleTaskGP(self._X, Y, noise, outcome_transform=None, **self._modules)
        return ExactMarginalLogLikelihood(model.likelihood, model)

    def step(self, X: Tensor, label: Tensor) -> None:
        """As in the protocol."""
        self._X, self._labels = torch.cat([self._X, X]), torch.cat([self._labels, label])
        mll = self._mll().train()
        self._adam.step(lambda: -mll(mll.model(*mll.model.train_inputs), mll.model.train_targets).sum())

    def probabilities(self, X: Tensor) -> Tensor:
        """As in the protocol."""
        model = self._mll().model.eval()
        with torch.no_grad():
            posteriors = [model.posterior(part) for part in X.split(500)]
        mean, variance = (torch.cat([getattr(each, name) for each in posteriors]) for name in ("mean", "variance"))
        z = torch.randn(256, 1, 2, generator=torch.Generator().manual_seed(0), dtype=X.dtype)
        return (mean + variance.sqrt() * z).softmax(-1).mean(0)


def svgp_classes(X: Tensor, labels: Tensor, grid_size: int, rank: int) -> Svgp:
    """SVGP with a Bernoulli likelihood; what is of grids is ignored."""
    return Svgp(X, labels, project=False, likelihood=BernoulliLikelihood())
