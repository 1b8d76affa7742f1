"""The recipes of extensions: each is run as it is, and what it does is checked against its formula."""

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale.decisions.by_name import ACQUISITIONS
from bo_scale.loop import Optimizer
from bo_scale.models.catalogue import MODELS
from bo_scale.survey import Survey
from bo_scale.survey.choice.objectives import OBJECTIVES

RECIPES = Path(__file__).parent.parent / "examples" / "recipes"
Recipe = Callable[[str], ModuleType]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """Imports a recipe anew, which registers it; what was registered is forgotten afterwards."""
    before = [(table, dict(table)) for table in (MODELS, ACQUISITIONS, OBJECTIVES)]

    def imported(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield imported
    for table, entries in before:
        table.clear()
        table.update(entries)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"), [("feature_map", "FourierGP: x = "), ("acquisition", "after 8 observations; β is now")]
)
def test_recipes_run(recipe: Recipe, capsys: pytest.CaptureFixture[str], name: str, says: str) -> None:
    recipe(name).main(4)
    assert says in capsys.readouterr().out


# ---------------------------------------------------------------- a feature map

POINTS = torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def rows(n: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
    X = torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    Y = torch.stack([torch.sin(5 * X[:, 0]) + X[:, 1], torch.cos(7 * X[:, 1])], -1)
    return X, ((Y - Y.mean(0)) / Y.std(0))[:, :outputs]


def features(model: torch.nn.Module, X: Tensor) -> Tensor:
    """√s φ(X), from the formula and the model's parameters."""
    omega, kernel = model.frequencies, model.covar_module
    rotated = X / kernel.base_kernel.lengthscale @ omega.T
    return (kernel.outputscale / len(omega)).sqrt() * torch.cat([rotated.cos(), rotated.sin()], -1)


def dense(model: torch.nn.Module, X: Tensor, y: Tensor, noise: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance at POINTS of the Bayesian linear model with weights N(0, I), by solves with a dense matrix."""
    Phi, at = features(model, X), features(model, POINTS)
    precision = torch.eye(Phi.shape[1], dtype=torch.float64) + Phi.T @ Phi / noise
    weights = torch.linalg.solve(precision, Phi.T @ (y - mean) / noise)
    return mean + at @ weights, (at * torch.linalg.solve(precision, at.T).T).sum(-1)


@pytest.mark.parametrize("n", [6, 150], ids=["few rows, by matrices of rows", "many, by statistics"])
def test_the_posterior_is_that_of_the_dense_linear_model_whatever_was_changed(recipe: Recipe, n: int) -> None:
    X, Y = rows(n, outputs=2)
    model = recipe("feature_map").FourierGP(X, Y, num_frequencies=20, outcome_transform=None)
    model.posterior(POINTS)  # at hyperparameters that are then changed
    frozen = model.inference
    before = frozen.processes[0].mean(POINTS)
    with torch.no_grad():
        model.covar_module.base_kernel.raw_lengthscale.copy_(torch.tensor([[0.4, 0.7]]))
        model.covar_module.outputscale = 1.7
        model.likelihood.noise = 0.02
        model.mean_module.constant.copy_(torch.tensor([0.3, -0.2]).reshape(model.mean_module.constant.shape))
        posterior = model.posterior(POINTS)
        for j, mean in enumerate((0.3, -0.2)):
            noise, constant = torch.tensor(0.02).double(), torch.tensor(mean).to(model.mean_module.constant).double()
            expected = dense(model, X, Y[:, j], noise, constant)
            torch.testing.assert_close(posterior.mean[:, j], expected[0], rtol=0, atol=1e-8)
            torch.testing.assert_close(posterior.variance[:, j], expected[1], rtol=0, atol=1e-8)
        assert torch.equal(frozen.processes[0].mean(POINTS), before)


def test_the_evidence_and_its_gradients_are_those_of_the_dense_linear_model(recipe: Recipe) -> None:
    X, Y = rows(150)
    model = recipe("feature_map").FourierGP(X, Y, num_frequencies=20, outcome_transform=None)
    model.likelihood.noise = 0.02
    covariance = features(model, X) @ features(model, X).T + model.likelihood.noise * torch.eye(len(X)).double()
    mean = model.mean_module.constant.double().expand(len(X))
    expected = torch.distributions.MultivariateNormal(mean, covariance).log_prob(Y[:, 0])
    parameters = list(model.parameters())
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    priors = mll._add_other_terms(torch.zeros((), dtype=torch.float64), [])
    loss = model.compute_custom_loss(mll)
    torch.testing.assert_close(loss, -(expected + priors) / len(X), rtol=1e-8, atol=0)
    found, wanted = (torch.autograd.grad(x, parameters) for x in (loss, -(expected + priors) / len(X)))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


def test_one_more_observation_gives_the_model_of_all(recipe: Recipe) -> None:
    X, Y = rows(150)
    make = recipe("feature_map").FourierGP
    model = make(X[:-5], Y[:-5], num_frequencies=20, outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 5}})
    streamed = model.condition_on_observations(X[-5:], Y[-5:]).posterior(POINTS)
    rebuilt = make(X, Y, num_frequencies=20, outcome_transform=None)
    rebuilt.load_state_dict(model.state_dict())
    whole = rebuilt.eval().posterior(POINTS)
    torch.testing.assert_close(streamed.mean, whole.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(streamed.variance, whole.variance, rtol=0, atol=1e-8)


def test_the_features_approach_the_kernel(recipe: Recipe) -> None:
    fourier = recipe("feature_map")
    phi = fourier.FourierFeatures(
        torch.randn(4000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),
        torch.tensor([[0.4, 0.7]], dtype=torch.float64),
        torch.tensor(1.7, dtype=torch.float64),
    )
    kernel = 1.7 * torch.exp(-0.5 * torch.cdist(POINTS / phi.lengthscale, POINTS / phi.lengthscale).square())
    Phi = phi(POINTS)
    torch.testing.assert_close(1.7 * Phi @ Phi.T, kernel, rtol=0, atol=6 * 1.7 / math.sqrt(4000))
    torch.testing.assert_close(1.7 * Phi.square().sum(-1), phi.kernel_variance(POINTS))


# ---------------------------------------------------------------- an acquisition


def test_the_bound_widens_with_n_and_its_maximiser_is_proposed(recipe: Recipe) -> None:
    wider = recipe("acquisition")
    assert wider.width(10, 1, 0.1) < wider.width(20, 1, 0.1) < wider.width(20, 1, 0.01)
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64).unsqueeze(-1)
    X = torch.tensor([[0.05], [0.3], [0.45], [0.6], [0.95]], dtype=torch.float64)
    for delta in (0.1, 3.0):
        optimizer = Optimizer(
            [(0.0, 1.0)],
            acquisition="wider_ucb",
            acquisition_options={"delta": delta},
            model="wiski",
            model_options={"grid_size": 30},
            num_initial=2,
        )
        optimizer.tell(X, torch.sin(6 * X[:, 0]))
        posterior = optimizer.model.posterior(torch.cat([grid, optimizer.ask(1)]).unsqueeze(1))
        beta = 2 * math.log(5**2.5 * math.pi**2 / (3 * delta))
        bound = (posterior.mean + math.sqrt(beta) * posterior.variance.sqrt()).flatten()
        assert bound[-1] > bound[:-1].max() - 1e-3 * (bound.max() - bound.min())


def test_a_pending_point_is_not_proposed_again(recipe: Recipe) -> None:
    recipe("acquisition")
    optimizer = Optimizer(
        [(0.0, 1.0)], acquisition="wider_ucb", model="wiski", model_options={"grid_size": 30}, num_initial=2
    )
    optimizer.tell([[0.1], [0.9]], [0.0, 0.1])
    first, second = optimizer.ask(1), optimizer.ask(1)
    assert (first - second).abs() > 0.05


# ---------------------------------------------------------------- an objective of surveys


def survey_of_candidates(module: ModuleType, folder: Path) -> tuple[Survey, pd.DataFrame]:
    """A survey that chooses from the nodes of a lattice inside its area, and its predictions there."""
    module.surveyed(folder)
    x, y = (axis.ravel() for axis in np.meshgrid(*[np.linspace(1500, 8500, 15)] * 2))
    pd.DataFrame({"easting": x, "northing": y}).to_csv(folder / "places.csv", index=False)
    survey = Survey.create(
        folder / "chosen.gpkg",
        folder / "sites.csv",
        value="lead",
        crs="EPSG:32631",
        candidates=folder / "places.csv",
        threshold=module.THRESHOLD,
        kernel="matern52",
    )
    return survey, survey.predict_at(x, y).assign(easting=x, northing=y)


def test_the_site_proposed_has_the_highest_score(recipe: Recipe, tmp_path: Path) -> None:
    boundary = recipe("survey_objective")
    survey, known = survey_of_candidates(boundary, tmp_path)
    score = known.sd**2 * np.exp(-0.5 * ((known["mean"] - boundary.THRESHOLD) / known.sd) ** 2)
    (site,) = survey.plan(1, "boundary").table[["easting", "northing"]].astype(float).to_numpy()
    there = np.hypot(known.easting - site[0], known.northing - site[1]) < 1
    assert score[there].item() > 0.7 * score.max() > 2 * score.median()  # a plan draws its own cells


def test_sites_lie_along_the_threshold(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    boundary = recipe("survey_objective")
    boundary.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    away = [abs(float(row[3]) - boundary.THRESHOLD) for row in rows if row[0] in {f"P{i}" for i in range(1, 9)}]
    assert len(away) == 8
    assert max(away[:4]) < 0.1 < max(away[4:])
