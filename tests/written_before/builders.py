"""What the fixtures were made of: models, loops and experiments, built the same way when they are written and read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from bo_scale import (
    GRIEF,
    WISKI,
    CaGP,
    DecoupledGP,
    GRIEFBayes,
    LinearProjection,
    OnlineClassifier,
    OnlineLearner,
    SoftKI,
    WISKIClassifier,
)
from bo_scale.ax import LocalRunner, generation_strategy
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real

FOLDER = Path(__file__).parent


def points(n: int, d: int, first: int = 0) -> Tensor:
    """Rows of a sequence that fills the unit cube, the same on every machine."""
    steps = torch.arange(first + 1, first + n + 1, dtype=torch.float64)
    return steps.unsqueeze(-1) * torch.tensor([2.0, 3.0, 5.0, 7.0], dtype=torch.float64)[:d].sqrt() % 1


def values(X: Tensor) -> Tensor:
    """Smooth, and a little rough besides: `n × 1`."""
    return (3 * X.sum(-1, keepdim=True)).sin() + 0.1 * (40 * X.sum(-1, keepdim=True)).cos()


def two_values(X: Tensor) -> Tensor:
    return torch.cat([values(X), values(X / 2) + 1], -1)


def variances(X: Tensor) -> Tensor:
    """Of noise that is known."""
    return 0.05 + 0.05 * X[:, :1]


def classes(X: Tensor) -> Tensor:
    return (X[:, 0] > 0.5).long()


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class Case:
    """A model of so many inputs, how it is made of them, and whether the noise of its values is known."""

    d: int
    make: Callable[[Tensor], Any]
    known: bool = False

    def told(self, model: Any, X: Tensor) -> Any:
        """The model, having seen its function at more points."""
        Y = values(X) if model.num_outputs == 1 else two_values(X)
        return model.condition_on_observations(X, Y, noise=variances(X) if self.known else None)


def corners(d: int) -> Tensor:
    return torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, d)


def rough_and_smooth() -> Any:
    """Two kernels, for a grid each."""
    rough, smooth = MaternKernel(nu=0.5, ard_num_dims=1), RBFKernel(ard_num_dims=1)
    rough.lengthscale, smooth.lengthscale = 0.5, 0.8
    return ScaleKernel(rough) + ScaleKernel(smooth)


def grief_options(d: int) -> dict[str, Any]:
    return {"bounds": corners(d), "num_eigenfunctions": 14, "grid_points": 5}


MODELS: dict[str, Case] = {
    "wiski": Case(2, lambda X: WISKI(X, values(X), grid_size=5)),
    "wiski_two_outputs": Case(1, lambda X: WISKI(X, two_values(X), grid_size=9)),
    "wiski_sum": Case(1, lambda X: WISKI(X, values(X), grid_size=[(12,), 8], covar_module=rough_and_smooth())),
    "wiski_projected": Case(4, lambda X: WISKI(X, values(X), grid_size=8, projection=LinearProjection(4, 1))),
    "wiski_matern_12": Case(
        2,
        lambda X: WISKI(
            X,
            values(X),
            variances(X),
            grid_size=5,
            covar_module=ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=2)),
            keep_data=False,
            outcome_transform=None,
        ),
        known=True,
    ),
    "wiski_decay": Case(2, lambda X: WISKI(X, values(X), grid_size=5, decay=0.95)),
    "softki": Case(
        4,
        lambda X: SoftKI(
            X, values(X), interpolation_points=points(12, 4, 300), temperature=0.3, epochs=2, progress=False
        ),
    ),
    "grief": Case(4, lambda X: GRIEF(X, values(X), **grief_options(4))),
    "grief_type2": Case(2, lambda X: GRIEF(X, values(X), weights="type2", **grief_options(2))),
    "grief_bayes": Case(2, lambda X: GRIEFBayes(X, values(X), num_samples=4, **grief_options(2))),
    "cagp_learned": Case(3, lambda X: CaGP(X, values(X), num_actions=6, epochs=3, progress=False)),
    "cagp_cg": Case(3, lambda X: CaGP(X, values(X), num_actions=6, policy="cg", epochs=0, progress=False)),
    "decoupled": Case(3, lambda X: decoupled(X, "direct")),
    "decoupled_hybrid": Case(3, lambda X: decoupled(X, "hybrid")),
}
"""By the names of their files."""
STATE_DICTS = ("wiski", "decoupled")


def decoupled(X: Tensor, parameterization: Any) -> DecoupledGP:
    sizes = {"num_mean_inducing": 10, "num_covar_inducing": 5, "num_steps": 3}
    return DecoupledGP(X, values(X), parameterization=parameterization, progress=False, **sizes)


def classifier(X: Tensor) -> WISKIClassifier:
    return WISKIClassifier(X, classes(X), num_classes=2, grid_size=8)


def learner(X: Tensor) -> OnlineLearner:
    return OnlineLearner(MODELS["wiski_projected"].make(X))


def online_classifier(X: Tensor) -> OnlineClassifier:
    return OnlineClassifier(classifier(X))


# ---------------------------------------------------------------- loops

SEARCH = {"num_restarts": 2, "raw_samples": 16, "max_steps": 10, "mc_samples": 16}
LOOPS: dict[str, dict[str, Any]] = {
    "loop_box": {
        "space": [(0.0, 1.0), (-2.0, 3.0)],
        "acquisition": "qUCB",
        "model_options": {"grid_size": 5},
        "num_initial": 5,
    },
    "loop_mixed": {
        "space": {
            "rate": Real(1e-4, 1.0, log=True),
            "share": (0.0, 0.5),
            "layers": Integer(1, 8),
            "solver": Choice(("adam", "sgd", "lbfgs")),
            "device": Fixed("cpu"),
        },
        "parameter_constraints": ["layers + 4 * share <= 8"],
        "objectives": {"loss": "minimize"},
        "constraints": ["cost <= 6"],
        "model": "grief",
        "model_options": {"num_eigenfunctions": 16, "grid_points": 4},
        "num_initial": 6,
    },
    "loop_two": {
        "space": {"x": (0.0, 1.0), "y": (0.0, 2.0)},
        "objectives": {"loss": "minimize", "gain": "maximize"},
        "reference_point": {"loss": 2.0, "gain": -1.0},
        "model": "cagp",
        "num_initial": 5,
    },
}
"""Arguments of the Optimizers, by the names of their folders."""
UNASKED: dict[str, Any] = {
    "loop_box": [0.7, 0.25],
    "loop_mixed": {"rate": 0.05, "share": 0.25, "layers": 3, "solver": "sgd", "device": "cpu"},
    "loop_two": {"x": 0.4, "y": 0.5},
}
"""A point for each that is told of and was never asked for."""
FROM_AX = {"model": "softki", "model_options": {"num_interpolation_points": 8, "epochs": 2}, "num_initial": 4}
"""And of the one that an experiment of Ax became."""


def loop(name: str, folder: Path) -> Optimizer:
    return Optimizer(**LOOPS[name], path=folder, seed=3, refit_growth=1.5, acquisition_options=SEARCH)


def loop_from_ax(client: Client, folder: Path) -> Optimizer:
    return Optimizer.from_ax(client, path=folder, seed=3, acquisition_options=SEARCH, **FROM_AX)


def measured(name: str, point: Any) -> Any:
    """What a loop is told of a point."""
    if name == "loop_box":
        return float((point[0] - 0.6) ** 2 * -3 - (point[1] - 0.5) ** 2 / 4)
    if name == "loop_mixed":
        slow = {"adam": 0.0, "sgd": 0.7, "lbfgs": 0.3}[point["solver"]]
        loss = (point["layers"] - 4) ** 2 / 2 + point["rate"] + 20 * (point["share"] - 0.2) ** 2 + slow
        return {"loss": loss, "cost": point["layers"] + slow}
    return {"loss": (point["x"] - 0.3) ** 2 + point["y"] / 2, "gain": point["x"] + point["y"] ** 2 / 4}


def tell(made: Optimizer, name: str, asked: Any) -> None:
    """What is measured at points, with variances where they are known."""
    known = [{"loss": 0.01, "gain": 0.02} for _ in asked] if name == "loop_two" else None
    made.tell(asked, [measured(name, point) for point in asked], known)


# ---------------------------------------------------------------- Ax


def experiment(strategy: bool = True, objective: str = "-loss", limits: tuple[str, ...] = ("gain >= -1",)) -> Client:
    """Over two parameters."""
    client = Client()
    ranges = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0)) for name in ("x", "y")]
    client.configure_experiment(ranges, name="written before")
    client.configure_optimization(objective, outcome_constraints=list(limits) or None)
    if strategy:
        client.set_generation_strategy(generation_strategy("wiski", seed=0, initialization_budget=3, grid_size=7))
    return client


def outcomes(point: Any) -> dict[str, float]:
    """What an experiment's trials are told of."""
    return {"loss": (point["x"] - 0.7) ** 2 + point["y"] / 2, "gain": point["x"] - point["y"] / 4}


def runner(folder: Path) -> LocalRunner:
    """Of trials whose outcomes are their parameters by name: for this function a worker needs no file."""
    return LocalRunner("builtins:dict", folder, retries=1)
