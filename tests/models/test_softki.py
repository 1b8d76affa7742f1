"""What is SoftKI's own: the stages of its fit, its solvers, where its points start."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize
from cases import data
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale.errors import FitWarning, InvalidDataError, NotPositiveDefiniteError
from bo_scale.models import softki as module
from bo_scale.models.choice.plan import Plan
from bo_scale.models.fitting.evidence import loss_of
from bo_scale.models.shell.kernels import default_scaled_kernel
from bo_scale.models.softki import SoftKI


def softki(X: Tensor, Y: Tensor, *args: Any, **options: Any) -> SoftKI:
    return SoftKI(X, Y, *args, **{"num_interpolation_points": 15, "epochs": 4, "batch_size": 16, **options})


def mll_of(model: Any) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model)


def fitted(model: SoftKI, **options: Any) -> SoftKI:
    fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 20}}, **options)
    return model


def loss(model: SoftKI) -> float:
    return model.compute_custom_loss(mll_of(model)).item()


def state(model: SoftKI) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def dense_evidence(model: SoftKI, rows: Tensor | None = None) -> Tensor:
    """Log N(y; μ, W K_zz Wᵀ + σ²D) of some rows, for every output."""
    X, Y, D = (v if rows is None else v[rows] for v in model._transformed_rows())
    noise, constants, values = model._noise_scale(), model._constants(), []
    for j in range(Y.shape[-1]):
        K = model._feature_map(j).prior_covariance(X) + noise[j] * torch.diag(D[:, j])
        values.append(MultivariateNormal(constants[j].expand(len(X)), K).log_prob(Y[:, j]))
    return torch.stack(values)


# ---------------------------------------------------------------- stages


def test_points_that_move_predict_better_than_those_that_stay() -> None:
    X = torch.rand(400, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = 2 * ((X - 0.5) * torch.tensor([2.0, 1.0, 1.0, 0.5, 0.5, 0.0])).square().sum(-1, keepdim=True)
    Y, errors = f + 0.05 * torch.randn(400, 1, dtype=torch.float64), []
    for epochs in (None, 0, 10):
        model = SoftKI(X[:300], Y[:300], num_interpolation_points=40, epochs=epochs or 0, batch_size=64)
        if epochs is not None:
            fit_gpytorch_mll(mll_of(model))
        errors.append((model.posterior(X[300:]).mean - f[300:]).square().mean().sqrt().item())
    assert errors[1] < 1.1 * errors[0]  # the evidence of points that stay promises no more: 0.99 ± 0.023 over 50 seeds
    assert errors[2] < 0.75 * errors[1]  # 0.40 ± 0.047
    assert errors[2] < 0.6 * f.std()  # 0.35 ± 0.049


@pytest.mark.parametrize("m", [1, 2])
def test_the_noise_is_what_maximises_the_density_of_the_rows_held_out_given_the_others(m: int) -> None:
    X, Y = data(60, 2, m)
    model = fitted(softki(X, Y, held_out=0.25))
    seen, held = model._split()
    assert len(held) == 15
    assert torch.equal(torch.cat([seen, held]).sort().values, torch.arange(60))
    raw, prior = model.likelihood.noise_covar.raw_noise, model.likelihood.noise_covar.noise_prior

    def wanted() -> Tensor:
        return (dense_evidence(model) - dense_evidence(model, seen)).sum() + prior.log_prob(
            model.likelihood.noise
        ).sum()

    (gradient,) = torch.autograd.grad(wanted(), raw)
    assert gradient.abs().max() < 0.05
    best, kept = wanted().item(), raw.detach().clone()
    for factor in (0.8, 1.25):
        with torch.no_grad():
            raw.copy_(kept * factor)
        assert wanted().item() < best - 0.01
    with torch.no_grad():
        raw.copy_(kept)
    whole = model.compute_custom_loss(mll_of(model))
    assert torch.autograd.grad(whole, raw)[0].abs().max() > 1e-3  # the evidence of all rows wants another noise


@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_the_evidence_of_all_rows_sets_kernel_and_mean_and_the_noise_too_where_none_are_held_out(
    held_out: float,
) -> None:
    model = softki(*data(60, 2), held_out=held_out)
    fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 300}})
    loss = loss_of(model, mll_of(model), dense_evidence(model))
    noise, rest = (
        model.likelihood.noise_covar.raw_noise,
        [*model.covar_module.parameters(), *model.mean_module.parameters()],
    )
    of_noise, *others = torch.autograd.grad(loss, [noise, *rest])
    if held_out == 0:
        assert all(gradient.abs().max() < 2e-3 for gradient in (of_noise, *others))
    else:
        assert of_noise.abs().max() > 0.01


def test_without_epochs_the_points_stay_where_they_are_and_joint_steps_move_them() -> None:
    X, Y = data(60, 2)
    start = softki(X, Y).interpolation_points
    stays = {"subset_size": 0, "epochs": 0}
    assert torch.equal(fitted(softki(X, Y, **stays)).interpolation_points, start)
    assert not torch.allclose(fitted(softki(X, Y, subset_size=0)).interpolation_points, start, rtol=0.01)
    assert not torch.allclose(fitted(softki(X, Y, **stays, joint_steps=5)).interpolation_points, start, rtol=0.01)


def test_points_and_temperature_follow_the_kernel_unless_given() -> None:
    """The second input does not matter: all points are apart in the first."""
    X, _ = data(80, 2)
    Y = torch.sin(9 * X[:, :1])
    points = data(15, 2, seed=4)[0]
    model = fitted(softki(X, Y, epochs=0))
    scales = model.covar_module.base_kernel.lengthscale.detach().squeeze()
    assert scales[1] > 5 * scales[0]
    assert model.log_temperature[1] > model.log_temperature[0] + 1.5
    first = model.interpolation_points.detach()[:, 0].sort().values
    assert first.diff().min() > 0.005
    given = fitted(softki(X, Y, epochs=0, interpolation_points=points, temperature=0.2))
    assert torch.equal(given.interpolation_points, points)
    torch.testing.assert_close(given.log_temperature.exp().detach(), torch.full((2,), 0.2).double())
    fixed = softki(X, Y, epochs=0)
    fixed.interpolation_points.requires_grad_(False)
    before = fixed.interpolation_points.detach().clone()
    assert torch.equal(fitted(fixed).interpolation_points, before)


@pytest.mark.parametrize(("n", "epochs"), [(99, 0), (100, 50), (1024, 50), (1025, 25), (60_000, 1), (90_000, 1)])
def test_the_number_of_epochs_makes_fifty_steps(n: int, epochs: int) -> None:
    X = torch.rand(n, 1, dtype=torch.float64)
    model = SoftKI(X, X, num_interpolation_points=2)
    assert model._num_epochs() == epochs
    assert SoftKI(X, X, num_interpolation_points=2, epochs=7)._num_epochs() == 7


def test_a_few_rows_are_not_predicted_without_error() -> None:
    """With as many points as rows, 95 % intervals of new rows held 8 to 63 % of them, without a warning."""
    torch.manual_seed(1)
    X = torch.rand(500, 6, dtype=torch.float64)
    Y = torch.sin(4 * X[:, :1]) + X[:, 1:2] * X[:, 2:3] + 0.3 * torch.randn(500, 1, dtype=torch.float64)
    for n in (50, 250):
        model = SoftKI(X[:n], Y[:n], progress=False)
        assert len(model.interpolation_points) <= n // 2
        fitted(model)
        assert len(model.interpolation_points) <= n // 2
        posterior = model.posterior(X[250:], observation_noise=True)
        z = (posterior.mean - Y[250:]).abs() / posterior.variance.sqrt()
        assert (z < 1.96).double().mean() > (0.85 if n > 100 else 0.65)


def test_inputs_in_raw_units_give_the_same_model() -> None:
    torch.manual_seed(0)
    X = torch.rand(150, 3, dtype=torch.float64)
    X[0], X[1] = 0.0, 1.0
    Y = torch.sin(5 * X[:, :1]) + X[:, 1:2] + 0.1 * torch.randn(150, 1, dtype=torch.float64)
    scale, offset = torch.tensor([1e-3, 1.0, 1e4]).double(), torch.tensor([5.0, -2.0, 1e5]).double()
    plain = fitted(SoftKI(X, Y, progress=False)).posterior(X[:20])
    raw = fitted(SoftKI(scale * X + offset, Y, progress=False)).posterior((scale * X + offset)[:20])
    torch.testing.assert_close(raw.mean, plain.mean, rtol=0.02, atol=0.02)
    torch.testing.assert_close(raw.variance, plain.variance, rtol=0.1, atol=1e-4)


@pytest.mark.parametrize("m", [1, 2])
def test_joint_steps_raise_the_evidence(m: int) -> None:
    X, Y = data(60, 2, m)
    losses = []
    for steps in (0, 10):
        model = softki(X, Y, joint_steps=steps, held_out=0.0)
        fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 80}})
        losses.append(loss(model.train()))
    assert losses[1] < losses[0] - 0.01


@pytest.mark.parametrize("joint_steps", [0, 3])
def test_known_variances_are_left_alone_in_all_stages(joint_steps: int) -> None:
    X, Y = data(60, 2, 2)
    Yvar = torch.cat([0.01 + 0.1 * X[:, :1], 0.02 + 0.05 * X[:, 1:]], -1)
    model = softki(X, Y, Yvar, joint_steps=joint_steps)
    before, start = model.likelihood.noise.clone(), loss(model.train())
    scale = model.outcome_transform.stdvs.square()
    torch.testing.assert_close(model._rows.D, Yvar / scale)
    fitted(model)
    assert torch.equal(model.likelihood.noise, before)
    torch.testing.assert_close(model._rows.D, Yvar / scale)
    torch.testing.assert_close(model._log_evidence(), dense_evidence(model), rtol=1e-8, atol=1e-8)
    assert loss(model.train()) < start


@pytest.mark.parametrize("learned", [False, True])
def test_the_temperature_is_learned_only_when_asked_for(learned: bool) -> None:
    model = softki(*data(60, 2), learn_temperature=learned, temperature=0.2)
    before = model.log_temperature.detach().clone()
    fitted(model)
    assert model.log_temperature.requires_grad == learned
    assert torch.equal(model.log_temperature, before) == (not learned)


def test_without_rows_the_points_stay_and_the_rest_is_fitted() -> None:
    X, Y = data(60, 2)
    model, whole = (softki(X, Y, keep_data=kept, epochs=0, held_out=0.0, subset_size=0) for kept in (False, True))
    stages = softki(X, Y, keep_data=False, joint_steps=3, learn_temperature=True)
    points, noise = model.interpolation_points.detach().clone(), model.likelihood.noise.item()
    for one in (model, whole, stages):
        fitted(one)
        assert torch.equal(one.interpolation_points, points)
    assert model.likelihood.noise.item() != pytest.approx(noise)
    assert not model.interpolation_points.requires_grad
    for other in (whole, stages):
        torch.testing.assert_close(state(model), state(other), rtol=1e-6, atol=1e-6)
    assert model.train_inputs[0].shape == (0, 2)
    torch.testing.assert_close(model.posterior(X[:4]).mean, whole.posterior(X[:4]).mean)


def test_the_seed_alone_decides() -> None:
    X, Y = data(60, 2)
    found = []
    for seed, disturbance in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)  # noqa: NPY002
        before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        found.append(state(fitted(softki(X, Y, seed=seed))))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], rtol=1e-3)


def test_several_outputs_share_points_and_nothing_else() -> None:
    X, Y = data(60, 2, 2)
    Y[:, 1] = torch.sin(9 * X[:, 0])
    model = fitted(softki(X, Y, epochs=30))
    assert model.interpolation_points.shape == (15, 2)
    lengthscale, noise = model.covar_module.base_kernel.lengthscale.squeeze(), model.likelihood.noise.squeeze()
    assert not torch.allclose(lengthscale[0], lengthscale[1], rtol=0.05)
    assert not torch.allclose(noise[0], noise[1], rtol=0.05)
    whole = model.posterior(X[:7])
    assert (whole.mean - Y[:7]).abs().max() < 0.5
    torch.testing.assert_close(model._log_evidence(), dense_evidence(model), rtol=1e-8, atol=1e-8)
    for j in range(2):
        alone = model.subset_output([j]).posterior(X[:7])
        torch.testing.assert_close(alone.mean[:, 0], whole.mean[:, j])
        torch.testing.assert_close(alone.variance[:, 0], whole.variance[:, j])


def test_a_batch_without_evidence_is_trained_by_its_pseudoloss_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, Y = data(60, 2)

    def refuse(*args: Tensor) -> Tensor:
        raise NotPositiveDefiniteError("no factor")

    exact, models = fitted(softki(X, Y, epochs=6)), [softki(X, Y, epochs=6) for _ in range(2)]
    start = exact.interpolation_points.new_tensor(models[0].interpolation_points.tolist())
    monkeypatch.setattr(module, "batch_log_evidence", refuse)
    for model in models:
        with pytest.warns(FitWarning, match="pseudoloss: no factor") as warned:
            fitted(model)
        assert sum(issubclass(w.category, FitWarning) for w in warned) == 1
    moved, expected = models[0].interpolation_points - start, exact.interpolation_points - start
    assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.7
    assert torch.equal(state(models[0]), state(models[1]))


def test_a_model_list_is_fitted() -> None:
    X, Y = data(40, 2, 2)
    models = ModelListGP(softki(X, Y[:, :1]), softki(X, Y[:, 1:], solver="qr"))
    fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models), optimizer_kwargs={"options": {"maxiter": 10}})
    assert not models.training
    assert models.posterior(X[:3]).mean.shape == (3, 2)


def test_float32_is_fitted_nearly_as_float64() -> None:
    X, Y = data(60, 2)
    with pytest.warns(InputDataWarning):
        models = [fitted(softki(X, Y)), fitted(softki(X.float(), Y.float()))]
    p, q = models[0].posterior(X[:5]), models[1].posterior(X[:5].float())
    assert q.mean.dtype == torch.float32
    torch.testing.assert_close(q.mean.double(), p.mean, rtol=0, atol=0.02)


def test_a_progress_bar_is_shown_only_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (None, False, True):
        fitted(softki(*data(20, 2), progress=progress, epochs=1))
        out, err = capsys.readouterr()
        assert out == ""
        assert ("epochs" in err) == (progress is True)


# ---------------------------------------------------------------- solvers


def solve_exactly(A: list[list[Fraction]], b: list[Fraction]) -> list[Fraction]:
    """Gauss's elimination in rational numbers."""
    rows = [[*row, value] for row, value in zip(A, b, strict=True)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(len(rows)):
            if i != k:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [x - factor * y if y else x for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[-1] / row[k] for k, row in enumerate(rows)]


def exact_weights(model: SoftKI) -> Tensor:
    """Of one output: R (σ²I + RᵀGR)⁻¹ Rᵀ(r − μg), with no rounding at all between W, R and the result."""
    phi, (X, Y, _) = model._feature_map(0, frozen=True), model._transformed_rows()
    W, R = ([[Fraction(v) for v in row] for row in M.tolist()] for M in (phi(X), phi.prior_root().to_dense()))
    noise, mu = Fraction(model._noise_scale().item()), Fraction(model._constants().item())

    def dot(a: Any, b: Any) -> Fraction:
        return sum((u * v for u, v in zip(a, b, strict=True)), Fraction(0))

    columns = [[dot(w, r) for w in W] for r in zip(*R, strict=True)]
    y = [Fraction(v) - mu for v in Y[:, 0].tolist()]
    M = [[dot(a, b) + (noise if i == j else 0) for j, b in enumerate(columns)] for i, a in enumerate(columns)]
    u = solve_exactly(M, [dot(a, y) for a in columns])
    return torch.tensor([float(dot(r, u)) for r in R], dtype=torch.float64)


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize("m", [1, 2])
def test_both_solvers_give_the_same_posterior(m: int, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(60, 2, m)
    Yvar = 0.01 + 0.1 * Y.abs() if known else None
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
    reference = softki(X, Y, Yvar, input_transform=transform).eval().posterior(X[:9])
    for chunk in (None, 7):
        if chunk is not None:
            monkeypatch.setattr(module.SoftmaxFeatures, "chunk_size", lambda self: 7)
        model = softki(X, Y, Yvar, input_transform=transform, solver="qr").eval()
        p = model.posterior(X[:9])
        torch.testing.assert_close(p.mean, reference.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(p.covariance_matrix, reference.covariance_matrix, rtol=1e-8, atol=1e-8)


def test_qr_is_the_more_accurate_at_little_noise() -> None:
    X, Y = data(60, 2)
    errors = []
    for solver in ("statistics", "qr"):
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-12)).double()
        model = softki(X, Y, likelihood=likelihood, solver=solver, num_interpolation_points=12, temperature=1.0)
        model.likelihood.noise = 1e-10
        model.covar_module.base_kernel.lengthscale = 3.0
        weights = model.eval().processes[0].weights
        exact = exact_weights(model)
        errors.append(((weights - exact).norm() / exact.norm()).item())
    assert errors[1] < 0.05 * errors[0]
    assert errors[1] < 1e-13


def test_qr_in_float32_agrees_with_float64() -> None:
    X, Y = data(200, 3)
    with pytest.warns(InputDataWarning):
        models = [softki(v, w, solver="qr").eval() for v, w in ((X, Y), (X.float(), Y.float()))]
    (p, q), Xt = (model.posterior for model in models), data(9, 3, seed=1)[0]
    assert q(Xt.float()).mean.dtype == torch.float32
    torch.testing.assert_close(q(Xt.float()).mean.double(), p(Xt).mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(q(Xt.float()).variance.double(), p(Xt).variance, rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_observations_after_a_qr_are_those_of_a_new_model() -> None:
    X, Y = data(60, 2)
    points = softki(X, Y).interpolation_points.detach()
    options: dict[str, Any] = {"interpolation_points": points, "temperature": 0.2, "solver": "qr"}
    part = softki(X[:50], Y[:50], outcome_transform=None, **options).eval()
    part.posterior(X[:1])
    whole = softki(X, Y, outcome_transform=None, **options).eval()
    child = part.condition_on_observations(X[50:], Y[50:])
    torch.testing.assert_close(child.posterior(X[:4]).mean, whole.posterior(X[:4]).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(child.posterior(X[:4]).variance, whole.posterior(X[:4]).variance, rtol=1e-8, atol=1e-8)


# ---------------------------------------------------------------- points and temperature


def test_points_start_at_centres_of_the_rows() -> None:
    X, Y = data(300, 2)
    points = softki(X, Y, num_interpolation_points=15).interpolation_points.detach()
    nearest = torch.cdist(X, points).argmin(-1)
    assert len(nearest.unique()) == 15
    centres = torch.stack([X[nearest == j].mean(0) for j in range(15)])
    torch.testing.assert_close(points, centres, rtol=0, atol=0.12)  # nearly: rounds are few
    apart, of_rows = (torch.cdist(X, each).amin(-1).square().mean() for each in (points, X[:15]))
    assert apart < 0.85 * of_rows


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize("n", [1, 2, 14])
def test_few_distinct_rows_are_the_points_themselves(n: int) -> None:
    X, Y = data(n, 3)
    X, Y = X.repeat(3, 1), Y.repeat(3, 1)
    model = softki(X, Y, num_interpolation_points=3 * n)
    points = model.interpolation_points.detach()
    assert len(points) == min(n, 3 * n // 2)
    assert ((X.unsqueeze(1) - points).abs().amax(-1).amin(-1) < 1e-12).all()
    posterior = fitted(model).posterior(X[:2])
    assert posterior.mean.isfinite().all()
    assert (posterior.variance > 0).all()


def test_there_are_at_most_half_as_many_points_as_rows() -> None:
    X, Y = data(10, 2)
    counts = [len(softki(X, Y, num_interpolation_points=p).interpolation_points) for p in (1, 4, 5, 9, 512)]
    assert counts == [1, 4, 5, 5, 5]
    one = softki(X[:1], Y[:1]).interpolation_points
    assert torch.equal(one, X[:1])


def test_points_that_are_given_are_used_and_not_changed() -> None:
    X, Y = data(40, 2)
    points = data(9, 2, seed=5)[0]
    kept = points.clone()
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [2.0, 2.0]]).double())
    model = softki(2 * X, Y, interpolation_points=points, input_transform=transform)
    assert torch.equal(model.interpolation_points, kept)
    fitted(model)
    assert torch.equal(points, kept)
    assert not torch.equal(model.interpolation_points, kept)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize(("nu", "lengthscales"), [(None, 0.4), (2.5, 0.31), (1.5, 0.26), (0.5, 0.08)])
def test_the_temperature_of_a_fit_follows_the_roughness_of_the_kernel(nu: float | None, lengthscales: float) -> None:
    """Values that far apart have a correlation of .92. Few points are farther apart, and the temperature with them."""
    X, Y = data(400, 1)
    base = RBFKernel(ard_num_dims=1) if nu is None else MaternKernel(nu, ard_num_dims=1)
    kernel = ScaleKernel(base).double()
    base.lengthscale = 0.5
    for points in (200, 8, 1):
        model = softki(X, Y, covar_module=kernel, num_interpolation_points=points)
        model._follow_kernel()
        apart = module._gap(model.interpolation_points.detach() / 0.5).item()
        expected = min(0.4, max(lengthscales, apart))
        assert (model.log_temperature.exp() / 0.5).item() == pytest.approx(expected, rel=0.25)
        assert apart > {200: 0.0, 8: 0.1, 1: 0.4}[points]
        assert points < 200 or expected == lengthscales


def test_the_temperature_follows_the_distance_of_the_points_that_are_given() -> None:
    X, Y = data(400, 1)
    kernel = ScaleKernel(MaternKernel(0.5, ard_num_dims=1)).double()
    kernel.base_kernel.lengthscale = 0.5
    apart = torch.arange(0, 1.01, 0.1).double().unsqueeze(-1)  # .2 lengthscales; centres of k-means would be nearer
    model = softki(X, Y, covar_module=kernel, num_interpolation_points=200, interpolation_points=apart)
    model._follow_kernel()
    assert torch.equal(model.interpolation_points, apart)
    torch.testing.assert_close(model.log_temperature.exp().detach(), torch.tensor([0.1]).double())


def test_the_temperature_follows_the_roughest_of_several_outputs() -> None:
    X, Y = data(400, 1, m=2)
    batch = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(ard_num_dims=1, batch_shape=batch), batch_shape=batch).double()
    kernel.base_kernel.lengthscale = torch.tensor([0.8, 0.2]).double().reshape(2, 1, 1)
    model = softki(X, Y, covar_module=kernel, num_interpolation_points=200)
    model._follow_kernel()
    assert model.log_temperature.exp().item() == pytest.approx(0.4 * 0.2, rel=0.1)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")  # of inputs below 0
def test_a_linear_kernel_is_smooth_also_where_its_variance_is_nothing() -> None:
    """The mean of centred inputs is 0 but for rounding, and so is the variance there."""
    for seed in range(5):
        X, Y = data(300, 1, seed=seed)
        X = X - X.mean(0)
        model = softki(X, Y, covar_module=ScaleKernel(LinearKernel()).double())
        model._follow_kernel()
        assert (model.log_temperature.exp() / X.std(0)).item() == pytest.approx(0.4, rel=0.1)


def test_many_points_do_not_smooth_a_rough_function_away() -> None:
    """With a temperature of .4 lengthscales, whatever the kernel, the error was .30."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(1400, 2, generator=generator, dtype=torch.float64)
    covariance = torch.exp(-torch.cdist(X, X) / 2) + 1e-6 * torch.eye(1400, dtype=torch.float64)
    f = torch.linalg.cholesky(covariance) @ torch.randn(1400, 1, generator=generator, dtype=torch.float64)
    f = f / f.std()
    Y = f + 0.1 * torch.randn(1400, 1, generator=generator, dtype=torch.float64)
    kernel = default_scaled_kernel(2, torch.Size(), X[:1200], 0.5).to(X)
    model = SoftKI(X[:1200], Y[:1200], covar_module=kernel, num_interpolation_points=500, progress=False)
    exact = Plan("exact", "matern12").build(X[:1200], Y[:1200])
    errors = []
    for each in (model, exact):
        fit_gpytorch_mll(mll_of(each))
        errors.append((each.posterior(X[1200:]).mean - f[1200:]).square().mean().sqrt().item())
    assert errors[0] < 1.2 * errors[1]


def test_the_temperature_is_in_standard_deviations_unless_given() -> None:
    X, Y = data(40, 2)
    X = X * torch.tensor([1.0, 20.0]).double()
    expected = {None: X.std(0), 0.7: torch.tensor([0.7, 0.7]).double()}
    for given, value in expected.items():
        torch.testing.assert_close(softki(X, Y, temperature=given).log_temperature.exp().detach(), value)
    each = softki(X, Y, temperature=torch.tensor([0.1, 3.0])).log_temperature.exp().detach()
    torch.testing.assert_close(each, torch.tensor([0.1, 3.0]).double())


def test_units_of_the_inputs_do_not_matter() -> None:
    """Points and temperature follow them."""
    X, Y = data(60, 2)
    scale = torch.tensor([3.0, 0.01]).double()
    plain = softki(X, Y)
    scaled = softki(scale * X, Y)
    torch.testing.assert_close(scaled.interpolation_points, scale * plain.interpolation_points)
    torch.testing.assert_close(scaled._feature_map(0)(scale * X), plain._feature_map(0)(X))


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize(("m", "solver"), [(1, "statistics"), (2, "qr")])
def test_hard_data_are_fitted(m: int, solver: Any) -> None:
    X, Y = data(40, 2, m)
    cases = {
        "one observation": (X[:1], Y[:1]),
        "two": (X[:2], Y[:2]),
        "constant input column": (X.clone().index_fill_(1, torch.tensor([0]), 0.5), Y),
        "duplicated rows": (X[:10].repeat(4, 1), Y),
        "one place": (X[:1].expand(40, 2), Y),
        "constant targets": (X, torch.ones_like(Y)),
    }
    for name, (x, y) in cases.items():
        p = fitted(softki(x, y, solver=solver, num_interpolation_points=8, epochs=1)).posterior(X[:5])
        assert p.mean.isfinite().all(), name
        assert (p.variance > 0).all(), name


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_one_interpolation_point_makes_f_a_constant() -> None:
    X, Y = data(40, 2)
    model = fitted(softki(X, Y, num_interpolation_points=1, epochs=2))
    mean = model.posterior(X).mean
    torch.testing.assert_close(mean, mean[:1].expand(40, 1))


# ---------------------------------------------------------------- states and arguments


@pytest.mark.parametrize("m", [1, 2])
def test_a_state_goes_into_a_model_of_another_number_of_points(m: int) -> None:
    (X, Y), (Z, V) = data(60, 2, m), data(20, 2, m, seed=4)
    model = fitted(softki(X, Y))
    other = softki(Z, V, num_interpolation_points=9).eval()
    other.posterior(X[:1])
    other.load_state_dict(model.state_dict())
    fresh = softki(Z, V, interpolation_points=model.interpolation_points).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(other.interpolation_points, model.interpolation_points)
    assert other.interpolation_points.requires_grad
    p, q = other.posterior(X[:5]), fresh.posterior(X[:5])
    torch.testing.assert_close(p.mean, q.mean)
    torch.testing.assert_close(p.variance, q.variance)
    fitted(other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_interpolation_points": 0}, "num_interpolation_points"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": -1}, "epochs"),
        ({"joint_steps": -1}, "joint_steps"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"training_noise": 0.0}, "training_noise"),
        ({"held_out": 1.0}, "held_out"),
        ({"held_out": -0.1}, "held_out"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": torch.tensor([1.0, torch.nan])}, "temperature"),
        ({"interpolation_points": torch.zeros(0, 2)}, "interpolation_points"),
        ({"interpolation_points": torch.zeros(4, 3)}, "interpolation_points"),
        ({"interpolation_points": torch.zeros(4)}, "interpolation_points"),
        ({"interpolation_points": torch.full((4, 2), torch.inf)}, "interpolation_points"),
        ({"temperature": torch.ones(3)}, "temperature"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_their_names(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, InvalidDataError), match=message):
        softki(*data(10, 2), **options)


def test_a_closure_and_fantasies_are_refused() -> None:
    model = softki(*data(30, 2))
    with pytest.raises(UnsupportedError, match="stages"):
        fit_gpytorch_mll(mll_of(model), closure=lambda: None)
    with pytest.raises(UnsupportedError, match="stages"):
        fit_gpytorch_mll(mll_of(model), closure_kwargs={"a": 1})
    X, Y = data(4, 2, seed=1)
    fantasies = model.eval().condition_on_observations(X.unsqueeze(0), Y.unsqueeze(0))
    with pytest.raises(UnsupportedError, match="fantasies"):
        fit_gpytorch_mll(mll_of(fantasies))


# ---------------------------------------------------------------- known defects


@pytest.mark.parametrize("part", ["likelihood", "nothing"])
def test_hyperparameters_that_are_held_fixed_stay(part: str) -> None:
    model = softki(*data(30, 2))
    model.requires_grad_(False)
    if part == "likelihood":
        model.likelihood.requires_grad_(True)
    before = state(model)
    fitted(model)
    assert torch.equal(state(model), before) == (part == "nothing")


def test_training_keeps_lengthscales_within_their_bounds() -> None:
    X = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
    Y = torch.randn(200, 1, dtype=torch.float64)
    fitted(softki(X, Y, num_interpolation_points=60, epochs=10, batch_size=32, lr=0.1))


def test_a_model_may_start_without_observations() -> None:
    X, Y = data(20, 2)
    points = data(9, 2, seed=1)[0]
    options: dict[str, Any] = {"interpolation_points": points, "temperature": 0.3, "outcome_transform": None}
    model = softki(X[:0], Y[:0], **options).eval().condition_on_observations(X, Y)
    torch.testing.assert_close(model.posterior(X[:3]).mean, softki(X, Y, **options).posterior(X[:3]).mean)


def test_the_gradient_at_a_point_is_that_of_both_sides_however_it_is_rounded() -> None:
    """Points at rows miss them by a rounding error, whose direction would be the gradient's."""
    X, Y = data(20, 2)
    model = softki(X, Y, interpolation_points=(X / 3) * 3 + 1e-16, temperature=0.3).eval()
    at = X[:5].clone().requires_grad_()
    (slopes,) = torch.autograd.grad(model.posterior(at).mean.sum(), at)
    for j, step in enumerate(1e-5 * torch.eye(2).double()):
        with torch.no_grad():
            found = (model.posterior(X[:5] + step).mean - model.posterior(X[:5] - step).mean) / 2e-5
        torch.testing.assert_close(slopes[:, j], found.squeeze(-1), rtol=1e-3, atol=1e-3)


def test_no_point_lies_at_a_row_where_the_mean_would_have_a_cusp() -> None:
    X, Y = data(20, 2)
    model = fitted(SoftKI(X, Y, progress=False))
    assert torch.cdist(X, model.interpolation_points.detach()).min() > 1e-6
    at = X[:1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.posterior(at).mean.sum(), at)
    step = torch.tensor([[1e-6, 0.0]]).double()
    with torch.no_grad():
        found = (model.posterior(X[:1] + step).mean - model.posterior(X[:1] - step).mean) / 2e-6
    assert slope[0, 0].item() == pytest.approx(found.item(), rel=1e-3, abs=1e-4)
