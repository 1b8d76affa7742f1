"""What is DecoupledGP's own: how its optimum follows, its state, its decisions."""

from typing import Any

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from cases import data
from decoupled_models import KINDS, bounds, fitted, kinds, mll_of, small, state
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch.autograd import gradcheck
from torch.distributions import MultivariateNormal

from bo_scale import load_model, qNegIntegratedPosteriorVariance, save_model
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.shell.kernels import default_scaled_kernel

pytestmark = pytest.mark.filterwarnings("ignore::bo_scale.errors.FitWarning")  # a few steps may lower the bound


def assert_same(a: Any, b: Any, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(a.mean, b.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.variance, b.variance, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- bases


@kinds
@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize("repeated", [0, 6])
def test_bases_that_hold_all_rows_make_it_the_exact_gp(kind: str, known: bool, repeated: int) -> None:
    X, Y = data(15, 2)
    X, Y = torch.cat([X, X[:repeated]]), torch.cat([Y, Y[:repeated] + 0.3])
    Yvar, Xt = (0.01 + 0.1 * Y.square() if known else None), data(6, 2, seed=1)[0]
    model = DecoupledGP(X, Y, Yvar, parameterization=kind, outcome_transform=None)
    kernel = default_scaled_kernel(2, torch.Size([])).double()
    exact = SingleTaskGP(X, Y, Yvar, covar_module=kernel, outcome_transform=None).eval()
    assert_same(model.eval().posterior(Xt), exact.posterior(Xt), 1e-7)
    assert model.num_covar_points == model.num_mean_points == 15


@kinds
def test_more_rows_than_points_are_solved_for_in_closed_form(kind: str) -> None:
    X, Y = data(60, 2, 2)
    model = small(X, Y, parameterization=kind).eval()
    assert (model.num_mean_points, model.num_covar_points) == (12, 6)
    best = bounds(model)
    for name in ("variational_weights", "variational_root", "variational_innovation"):
        p = getattr(model, name)
        for seed in range(3 if p.numel() else 0):
            kept, generator = p.detach().clone(), torch.Generator().manual_seed(seed)
            with torch.no_grad():
                p += 0.02 * p.abs().max() * torch.randn(p.shape, generator=generator, dtype=p.dtype)
                assert (bounds(model) < best).all()
                p.copy_(kept)


@kinds
def test_a_larger_basis_of_the_mean_raises_the_bound_at_the_same_covariance(kind: str) -> None:
    X, Y = data(100, 3)
    found = [
        bounds(small(X, Y, parameterization=kind, num_mean_inducing=count, num_covar_inducing=8).eval()).item()
        for count in (8, 16, 60)
    ]
    assert found[0] < found[1] < found[2]


def test_the_covariance_basis_is_spread_out_and_that_of_a_hybrids_mean_is_elsewhere() -> None:
    X, Y = data(60, 2)
    model = small(X, Y, parameterization="hybrid")
    assert model._held.bases.sizes == (6, 6)
    points = model._held.bases.of_mean
    assert len(points.unique(dim=0)) == 12
    assert ((points.unsqueeze(1) == X).all(-1).sum(-1) == 1).all()
    assert torch.equal(model.eval()._held.bases.of_mean, points)
    alone = small(X, Y, parameterization="hybrid", num_mean_inducing=6)
    assert alone.mean_inducing_points.shape == (0, 2)
    assert alone.eval().posterior(X[:3]).mean.isfinite().all()


@kinds
def test_hard_data_are_served(kind: str) -> None:
    X, Y = data(40, 2, 2)
    cases = {
        "one observation": (X[:1], Y[:1]),
        "fewer than points": (X[:4], Y[:4]),
        "constant targets": (X, torch.ones_like(Y)),
        "one point": (X[:1].expand(40, 2), Y),
        "near duplicates": (torch.cat([X[:20], X[:20] + 1e-10]), Y),
    }
    for name, (x, y) in cases.items():
        model = fitted(small(x, y, parameterization=kind, num_steps=3))
        p = model.condition_on_observations(x[:1], y[:1]).posterior(X[:4])
        assert p.mean.isfinite().all(), name
        assert (p.variance > 0).all(), name


@kinds
def test_noise_of_a_millionth_keeps_digits(kind: str) -> None:
    X, Y = data(40, 2)
    Y = torch.sin(3 * X.sum(-1, keepdim=True))
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-8)).double()
    model = DecoupledGP(X, Y, likelihood=likelihood, parameterization=kind, outcome_transform=None)
    model.likelihood.noise = 1e-6
    process = model.eval().processes[0]
    K = process.kernel(X, X)
    mean = K @ torch.linalg.solve(K + 1e-6 * torch.eye(40), Y[:, 0])
    torch.testing.assert_close(model.posterior(X).mean[:, 0], mean, rtol=0, atol=1e-7)
    few = small(X, Y, likelihood=likelihood, parameterization=kind, outcome_transform=None).eval()
    points = few._held.bases.of_mean
    root = torch.linalg.cholesky(process.kernel(points, points) + 1e-12 * torch.eye(12))
    A = torch.cat([1e3 * process.kernel(X, points), root.mT])
    weights = torch.linalg.lstsq(A, torch.cat([1e3 * Y, torch.zeros(12, 1)]), driver="gelsd").solution
    torch.testing.assert_close(few.posterior(X).mean, process.kernel(X, points) @ weights, rtol=0, atol=1e-7)


# ---------------------------------------------------------------- the optimum follows


@kinds
def test_the_optimum_follows_hyperparameters_and_rows(kind: str) -> None:
    X, Y = data(60, 2)
    model = small(X, Y, parameterization=kind).eval()
    before = model.posterior(X[:5]).mean
    model.likelihood.noise = 0.3
    after, again = model.posterior(X[:5]), small(X, Y, parameterization=kind)
    again.likelihood.noise = 0.3
    assert (after.mean - before).abs().max() > 1e-3
    assert_same(after, again.eval().posterior(X[:5]))
    model.set_train_data(targets=-model.train_targets)
    assert (model.posterior(X[:5]).mean + after.mean - 2 * Y.mean()).abs().max() < 1e-6
    left = small(X, Y, parameterization=kind, polish=False).eval()
    kept = left.variational_weights.detach().clone()
    left.likelihood.noise = 0.3
    left.posterior(X[:5])
    assert torch.equal(left.variational_weights, kept)


@kinds
def test_the_loss_is_the_bound_whatever_came_before(kind: str) -> None:
    """Variational parameters are solved for before it is evaluated: they have no gradient, and rows all count."""
    X, Y = data(60, 2)
    part = small(X[:50], Y[:50], parameterization=kind, outcome_transform=None).eval()
    child = part.condition_on_observations(X[50:], Y[50:])
    mll = mll_of(child).train()
    child.compute_custom_loss(mll)
    child._held.learn_variational(True)
    loss = child.compute_custom_loss(mll)
    loss.backward()
    for p in (child._held.weights, child._held.root, child._held.innovation):
        assert p.numel() == 0 or p.grad.abs().max() < 1e-5
    priors = mll._add_other_terms(torch.zeros(()).double(), [])
    torch.testing.assert_close(-60 * loss, bounds(child).sum() + priors)
    rows = child._rows.count
    assert child._joined == rows == 60
    assert part._joined == 50


@kinds
def test_streamed_rows_condition_the_process_until_they_are_too_many(kind: str) -> None:
    X, Y = data(60, 2)
    options = {"parameterization": kind, "outcome_transform": None}
    model = small(X[:50], Y[:50], **options, max_unit_observations=8).eval()
    streamed = model
    for i in range(50, 60, 2):
        streamed = streamed.condition_on_observations(X[i : i + 2], Y[i : i + 2])
        streamed.posterior(X[:1])
    assert streamed._joined == 60
    points = model.state_dict()
    whole = small(X, Y, **options)
    whole.load_state_dict(points)
    assert_same(streamed.posterior(X[:5]), whole.eval().posterior(X[:5]))
    assert model._joined == 50


def test_a_subset_of_outputs_keeps_what_adam_left() -> None:
    X, Y = data(60, 2, 3)
    for kind in KINDS:
        model = fitted(small(X, Y, parameterization=kind, polish=False, num_steps=4, lr=1e-4))
        whole, subset = model.posterior(X[:5]), model.subset_output([2, 0])
        part = subset.posterior(X[:5])
        torch.testing.assert_close(part.mean, whole.mean[:, [2, 0]])
        torch.testing.assert_close(part.variance, whole.variance[:, [2, 0]])
        assert subset.variational_root.shape == (2, 6, 6)


# ---------------------------------------------------------------- state


@kinds
@pytest.mark.parametrize("polish", [False, True])
def test_a_state_of_the_same_rows_is_taken_up_exactly(kind: str, polish: bool) -> None:
    X, Y = data(60, 2, 2)
    model = fitted(small(X, Y, parameterization=kind, polish=polish))
    twin = small(X, Y, parameterization=kind, polish=polish, seed=5)
    twin.load_state_dict(model.state_dict())
    p, q = twin.eval().posterior(X[:7]), model.posterior(X[:7])
    assert torch.equal(p.mean, q.mean)
    assert torch.equal(p.variance, q.variance)
    assert torch.equal(state(twin), state(model))


@kinds
@pytest.mark.parametrize("polish", [False, True])
def test_a_state_of_other_rows_knows_nothing_of_them(kind: str, polish: bool) -> None:
    """On pure noise: a fold's model that kept the whole model's variational parameters would predict its rows."""
    X = data(60, 2)[0]
    Y = torch.randn(60, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = fitted(small(X, Y, parameterization=kind, polish=polish, outcome_transform=None))
    fold = small(X[:40], Y[:40], parameterization=kind, polish=polish, outcome_transform=None)
    fold.load_state_dict(whole.state_dict())
    assert torch.equal(fold.covar_inducing_points, whole.covar_inducing_points)
    other = small(X[:40], Y[:40], parameterization=kind, polish=polish, outcome_transform=None)
    changed = whole.state_dict()
    for name in ("variational_weights", "variational_root", "variational_innovation"):
        changed[name] = torch.zeros_like(changed[name])
    other.load_state_dict(changed)
    assert_same(fold.eval().posterior(X[40:]), other.eval().posterior(X[40:]), 1e-12)
    assert bounds(fold).item() == pytest.approx(bounds(other).item())


@kinds
@pytest.mark.parametrize("polish", [False, True])
def test_a_saved_model_goes_on_to_the_last_bit(kind: str, polish: bool, tmp_path: Any) -> None:
    X, Y = data(60, 2, 2)
    saved = fitted(small(X[:50], Y[:50], parameterization=kind, polish=polish))
    saved.likelihood.noise = saved.likelihood.noise.detach() * 1.1  # what was derived of before is out of date
    saved = saved.condition_on_observations(X[50:], Y[50:])
    save_model(saved, tmp_path / "model.pt")
    loaded = load_model(small(X[:3], Y[:3], parameterization=kind, polish=polish), tmp_path / "model.pt")
    for _ in range(2):
        p, q = saved.posterior(X[:7]), loaded.posterior(X[:7])
        assert torch.equal(p.mean, q.mean)
        assert torch.equal(p.variance, q.variance)
        losses = [each.compute_custom_loss(mll_of(each)) for each in (saved, loaded)]
        assert torch.equal(*losses)


@kinds
def test_float32_agrees_and_a_change_of_dtype_keeps_what_adam_left(kind: str) -> None:
    X, Y = data(60, 2)
    model = fitted(small(X, Y, parameterization=kind, polish=False))
    before = model.posterior(X[:5])
    single = model.float().posterior(X[:5].float())
    assert single.mean.dtype == torch.float32
    torch.testing.assert_close(single.mean.double(), before.mean, rtol=1e-3, atol=1e-3)
    with pytest.warns(InputDataWarning):
        fresh = fitted(small(X.float(), Y.float(), parameterization=kind))
    assert {p.dtype for p in fresh.parameters()} == {torch.float32}
    double = fitted(small(X, Y, parameterization=kind))
    torch.testing.assert_close(
        fresh.posterior(X[:5].float()).mean.double(), double.posterior(X[:5]).mean, rtol=1e-2, atol=1e-2
    )


# ---------------------------------------------------------------- options


def test_jacobis_preconditioner_frees_the_parameters_of_the_outputscale() -> None:
    """In other units of y they are those of before in the new units, where a and L are those over the new units."""
    X, Y = data(30, 2)
    found = []
    for scale in (1.0, 9.0):
        model = small(X, scale**0.5 * Y, outcome_transform=None)
        model.covar_module.outputscale, model.likelihood.noise = scale, 0.1 * scale
        model.eval()
        found.append((model.variational_weights.detach().clone(), model.variational_root.detach().clone()))
    torch.testing.assert_close(found[1][0], 3.0 * found[0][0], rtol=1e-4, atol=1e-4)  # in units of y
    B = [root[0] @ root[0].mT for _, root in found]
    torch.testing.assert_close(B[1], 9.0 * B[0], rtol=1e-4, atol=1e-4)  # of f


@kinds
@pytest.mark.parametrize("learned", [False, True])
def test_points_move_only_if_asked_and_not_where_they_hold_all_rows(kind: str, learned: bool) -> None:
    X, Y = data(60, 2)
    model = small(X, Y, parameterization=kind, learn_inducing_points=learned, num_mean_inducing=100)
    fitted(model)
    covar = model._held.bases.covar
    assert ((covar.unsqueeze(1) == X).all(-1).any(-1)).all() == (not learned)
    assert not model.mean_inducing_points.requires_grad
    assert model.covar_inducing_points.requires_grad == learned


@pytest.mark.parametrize("kernel", ["matern", "linear"])
def test_any_kernel_serves(kernel: str) -> None:
    X, Y = data(60, 2)
    for kind in KINDS:
        part = MaternKernel(1.5) if kernel == "matern" else LinearKernel()
        model = fitted(small(X, Y, parameterization=kind, covar_module=ScaleKernel(part), num_steps=3))
        assert model.posterior(torch.zeros(3, 2).double()).mean.isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_options_that_do_not_fit_are_refused_by_name() -> None:
    X, Y = data(10, 2)
    for options in ({"parameterization": "both"}, {"initialization": "best"}, {"growth": 0}, {"lr": 0.0}):
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            DecoupledGP(X, Y, **options)
    with pytest.raises((InvalidDataError, ValueError)):
        DecoupledGP(X[:0], Y[:0], outcome_transform=None)


# ---------------------------------------------------------------- decisions


@kinds
def test_gradients_through_acquisition_functions_are_finite_differences(kind: str) -> None:
    X, Y = data(40, 2)
    model = fitted(small(X, Y, parameterization=kind))
    nipv = qNegIntegratedPosteriorVariance(model, data(10, 2, seed=1)[0])
    assert gradcheck(nipv, ((0.1 + 0.8 * data(2, 2, seed=2)[0]).unsqueeze(0).requires_grad_(),), atol=1e-6)
    qkg = qKnowledgeGradient(model, num_fantasies=2, sampler=SobolQMCNormalSampler(torch.Size([2]), seed=0))
    points = (0.1 + 0.8 * data(3, 2, seed=3)[0]).unsqueeze(0).requires_grad_()
    assert gradcheck(qkg, (points,), atol=1e-6)


@kinds
def test_conditioning_is_gaussian_conditioning_of_the_process(kind: str) -> None:
    X, Y = data(60, 2)
    model = fitted(small(X[:50], Y[:50], parameterization=kind, outcome_transform=None))
    Xn, yn, Z, noise = X[50:], Y[50:, 0], data(4, 2, seed=1)[0], model.likelihood.noise.item()
    process = model.processes[0]
    joint = torch.cat([Xn, Z])
    C, mean = process.covariance(joint), process.mean(joint)
    gain = torch.linalg.solve(C[:10, :10] + noise * torch.eye(10), C[:10, 10:])
    child = model.condition_on_observations(Xn, Y[50:]).posterior(Z)
    torch.testing.assert_close(child.mean[:, 0], mean[10:] + gain.mT @ (yn - mean[:10]), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        child.distribution.covariance_matrix, C[10:, 10:] - C[10:, :10] @ gain, rtol=1e-7, atol=1e-7
    )
    evidence = MultivariateNormal(mean[:10], C[:10, :10] + noise * torch.eye(10)).log_prob(yn)
    assert evidence.isfinite()


@pytest.mark.parametrize("polish", [False, True])
def test_its_own_state_changes_nothing_in_a_streamed_model(polish: bool) -> None:
    X, Y = data(40, 2)
    model = fitted(small(X[:34], Y[:34], polish=polish, lr=1e-4)).condition_on_observations(X[34:], Y[34:])
    before = model.posterior(X[:5])
    model.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval().posterior(X[:5]).mean, before.mean)
    torch.testing.assert_close(model.posterior(X[:5]).variance, before.variance)
