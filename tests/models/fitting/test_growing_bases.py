"""The stages of a decoupled GP's fit, and the growth of its bases."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from cases import data
from decoupled_models import bounds, fitted, kinds, mll_of, small, state
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor

from bo_scale.errors import FitWarning, NotPositiveDefiniteError
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.fitting import growing_bases as module
from bo_scale.models.fitting.growing_bases import GrowingFit, grow_bases, step_size
from bo_scale.models.shell.kernels import OutputKernel, default_scaled_kernel

pytestmark = pytest.mark.filterwarnings("ignore::bo_scale.errors.FitWarning")  # a few steps may lower the bound


def test_the_step_size_falls_as_the_papers() -> None:
    assert step_size(0.1, 0) == 0.1
    assert step_size(0.1, 100) == pytest.approx(0.05)


def test_without_a_number_of_steps_it_is_that_of_some_passes() -> None:
    fit = DecoupledGP(*data(20, 2))._stages
    assert [fit.steps_for(n) for n in (20, 3000, 51_200, 10**6)] == [300, 300, 1000, 2000]
    assert DecoupledGP(*data(20, 2), num_steps=7)._stages.steps_for(10**6) == 7


@kinds
def test_training_raises_the_bound_and_polishing_raises_it_further(kind: str) -> None:
    X, Y = data(80, 2, 2)
    found = []
    for polish, steps in ((True, 0), (False, 25), (True, 25)):
        model = small(X, Y, parameterization=kind, num_steps=steps, polish=polish, lr=0.003)
        found.append(bounds(fitted(model)).sum().item())
    assert found[0] < found[1] <= found[2]


@pytest.mark.parametrize("polish", [False, True])
def test_steps_that_lower_the_bound_are_undone(polish: bool) -> None:
    X, Y = data(80, 2)
    start = fitted(small(X, Y, num_steps=0, polish=polish))
    with pytest.warns(FitWarning, match="smaller lr"):
        model = fitted(small(X, Y, num_steps=2, lr=3.0, polish=polish))
    assert torch.equal(state(model), state(start))
    assert torch.equal(model.posterior(X[:5]).mean, start.posterior(X[:5]).mean)


@kinds
def test_known_noise_is_trained_with(kind: str) -> None:
    X, Y = data(80, 2, 2)
    Yvar = 0.01 + 0.1 * data(80, 2, 2, seed=4)[1].square()
    found = []
    for steps in (0, 25):
        model = fitted(small(X, Y, Yvar, parameterization=kind, num_steps=steps, lr=0.01))
        found.append(bounds(model).sum().item())
    assert found[0] < found[1]
    torch.testing.assert_close(model._rows.D, Yvar / model.outcome_transform.stdvs.square())


@kinds
def test_bases_grow_with_the_batches_up_to_their_size(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(80, 2)
    counts = []

    def record(model: DecoupledGP, rows: Tensor) -> None:
        grow_bases(model, rows)
        counts.append(model.num_mean_points)

    monkeypatch.setattr(module, "grow_bases", record)
    options = {"num_mean_inducing": 40, "num_covar_inducing": 5, "start_size": 10, "growth": 4, "num_steps": 12}
    model = small(X, Y, parameterization=kind, learn_inducing_points=False, **options)
    assert model.num_mean_points == 10
    fitted(model)
    assert counts == [min(10 + 4 * (step + 1), 40) for step in range(12)]
    points = model._held.bases.of_mean
    assert len(points.unique(dim=0)) == 40
    assert ((points.unsqueeze(1) == X).all(-1).sum(-1) == 1).all()


@kinds
def test_a_new_point_of_the_covariance_changes_little_and_of_the_mean_nothing(kind: str) -> None:
    X, Y = data(80, 2)
    model = small(X[:4], Y[:4], parameterization=kind, num_mean_inducing=30, num_covar_inducing=15, growth=6).eval()
    before, kept = model.posterior(X[:20]), model._process(0)
    grow_bases(model, X[10:40])
    assert (model.num_mean_points, model.num_covar_points) == ((16, 10) if kind == "hybrid" else (10, 10))
    grown = model._process(0)
    torch.testing.assert_close(grown.mean(X), kept.mean(X), rtol=1e-7, atol=1e-7)
    ratio = grown.variance(X) / kept.variance(X)
    assert ratio.min() > 0.9
    assert ratio.max() < 1 + 1e-6
    assert before.mean.isfinite().all()


def test_a_step_at_the_papers_size_makes_no_square_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    count, seen = 128**2, []
    X, Y = data(count + 50, 2)
    original = OutputKernel.__call__

    def recorded(self: OutputKernel, A: Tensor, B: Tensor) -> Tensor:
        seen.append(A.shape[-2] * B.shape[-2])
        return original(self, A, B)

    monkeypatch.setattr(OutputKernel, "__call__", recorded)
    options = {"num_covar_inducing": 8, "start_size": 64, "growth": count, "column_batch": 32}
    model = small(X, Y, num_mean_inducing=count, batch_size=count + 50, num_steps=0, **options)
    fitted(model)
    grow_bases(model, X)
    assert model.num_mean_points == count
    model._held.learn_variational(True)
    loss = model.train()._stages.batch_loss(model, mll_of(model))(torch.arange(16))
    loss.backward()
    assert model.variational_weights.grad.abs().min() > 0
    assert max(seen) <= 2**22
    assert not model._polishes


def test_an_exact_gp_on_all_rows_needs_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(40, 2)
    monkeypatch.setattr(GrowingFit, "ascend", lambda *_: pytest.fail("trained"))
    model = fitted(small(X, Y, num_mean_inducing=40, initialization="subset"))
    kernel = default_scaled_kernel(2, torch.Size([])).double()
    exact = SingleTaskGP(X, Y, covar_module=kernel)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(exact.likelihood, exact), optimizer_kwargs={"options": {"maxiter": 20}})
    torch.testing.assert_close(model.posterior(X).mean, exact.posterior(X).mean, rtol=0.1, atol=0.01)


def test_starts_are_those_asked_for() -> None:
    X, Y = data(60, 2)
    X[:, 1] *= 100
    current, median, subset = (
        fitted(small(X, Y, num_steps=0, initialization=start)) for start in ("current", "median", "subset")
    )
    fresh = small(X, Y)
    torch.testing.assert_close(current.likelihood.noise, fresh.likelihood.noise)
    lengthscale = median.covar_module.base_kernel.lengthscale.squeeze()
    pairs = (X.unsqueeze(1) - X).abs()[*torch.triu_indices(60, 60, 1)]
    torch.testing.assert_close(lengthscale, 2**0.5 * pairs.median(0).values)
    torch.testing.assert_close(median.likelihood.noise.squeeze(), Y.var(correction=0) / Y.var())
    assert (subset.covar_module.base_kernel.lengthscale - lengthscale).abs().max() > 1e-2


def test_the_seed_alone_decides() -> None:
    X, Y = data(60, 2)
    found = []
    for seed, disturbance in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(disturbance)
        before = torch.random.get_rng_state()
        found.append(state(fitted(small(X, Y, seed=seed, column_batch=4))))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], rtol=1e-3)


def test_a_fit_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(60, 2)
    model = small(X, Y, start_size=8, num_mean_inducing=40, growth=4).eval()
    before, parameters = model.posterior(X[:5]), state(model)

    def fail(*_: Any, **__: Any) -> None:
        raise NotPositiveDefiniteError("no factor")

    monkeypatch.setattr(GrowingFit, "batch_loss", lambda *_: fail)
    with pytest.raises((NotPositiveDefiniteError, ModelFittingError)):
        fitted(model)
    assert torch.equal(state(model), parameters)
    assert model.num_mean_points == 8
    assert torch.equal(model.eval().posterior(X[:5]).mean, before.mean)


def test_a_model_list_is_fitted_and_a_progress_bar_shown_only_when_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    X, Y = data(40, 2, 2)
    for progress in (None, True):
        models = ModelListGP(small(X, Y[:, :1], progress=progress), small(X, Y[:, 1:], parameterization="hybrid"))
        fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models))
        assert not models.training
        assert ("steps" in capsys.readouterr().err) == (progress is True)
