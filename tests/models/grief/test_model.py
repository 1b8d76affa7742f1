"""What is GRIEF's own: the grid and its eigenfunctions, the stages of its fit, learned weights."""

import warnings
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from cases import data
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor

from bo_scale.errors import GridError, InterpolationWarning, UnsupportedKernelError
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.grief.model import GRIEF
from bo_scale.models.shell.kernels import AxisKernels, KernelProduct, as_product_kernel


def grief(X: Tensor, Y: Tensor, **options: Any) -> GRIEF:
    return GRIEF(X, Y, **{"num_eigenfunctions": 40, "grid_points": 7, "subset_size": 20, **options})


def mll_of(model: Any) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model)


def loss(model: GRIEF) -> Tensor:
    return model.compute_custom_loss(mll_of(model))


def lengthscales(model: GRIEF) -> Tensor:
    return model.covar_module.base_kernel.lengthscale.detach().clone()


# ---------------------------------------------------------------- kernels

KERNELS = [
    RBFKernel(ard_num_dims=3),
    RBFKernel(),
    MaternKernel(0.5, ard_num_dims=3),
    MaternKernel(1.5),
    ScaleKernel(MaternKernel(2.5, ard_num_dims=3)),
    PeriodicKernel(ard_num_dims=3),
    ScaleKernel(ScaleKernel(RBFKernel()) * MaternKernel(2.5, ard_num_dims=3)),
    ScaleKernel(RBFKernel(active_dims=(2,)) * MaternKernel(1.5, ard_num_dims=2, active_dims=(1, 0))),
    ScaleKernel(RBFKernel(active_dims=(0, 2), ard_num_dims=2)) * PeriodicKernel(active_dims=(1,)),
    ScaleKernel(RBFKernel(active_dims=(1,)) * RBFKernel(), active_dims=(0, 2)),
]


def randomised(kernel: Kernel) -> Kernel:
    g = torch.Generator().manual_seed(0)
    for p in kernel.double().parameters():
        p.data = 0.5 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return kernel


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_the_product_of_the_factors_is_the_kernel(kernel: Kernel) -> None:
    kernel, X, Z = as_product_kernel(randomised(kernel), 3), data(6, 3)[0], data(5, 3, seed=1)[0]
    axes = AxisKernels(kernel)
    K = axes(X, Z.mT)
    assert K.shape == (6, 3, 5)
    torch.testing.assert_close(axes.outputscale * K.prod(1), kernel(X, Z).to_dense(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(axes.outputscale.expand(6), kernel(X, diag=True), rtol=1e-6, atol=1e-8)
    batch = X.reshape(2, 1, 3, 3)
    torch.testing.assert_close(axes(batch, Z.mT), K.reshape(2, 1, 3, 3, 5))


def test_factors_of_one_output_of_a_batch() -> None:
    b = torch.Size([2])
    kernel = randomised(
        ScaleKernel(RBFKernel(ard_num_dims=3, batch_shape=b) * PeriodicKernel(batch_shape=b), batch_shape=b)
    )
    X, Z = data(6, 3)[0], data(5, 3, seed=1)[0]
    for j in range(2):
        axes = AxisKernels(kernel, j)
        torch.testing.assert_close(axes.outputscale * axes(X, Z.mT).prod(1), kernel(X, Z).to_dense()[j])
        reference = KernelProduct(kernel, j)(list(X.unbind(-1)), list(Z.unbind(-1)))
        torch.testing.assert_close(axes(X, Z.mT)[:, 1], reference[1])


@pytest.mark.parametrize(
    "kernel", [SpectralMixtureKernel(num_mixtures=2), RQKernel(), CosineKernel(), RBFKernel() + RBFKernel()]
)
def test_kernels_without_factors_in_closed_form_are_refused(kernel: Kernel) -> None:
    with pytest.raises(UnsupportedKernelError, match=f"{type(kernel).__name__} has no factors in closed form"):
        grief(*data(10, 1), covar_module=kernel)
    with pytest.raises(UnsupportedKernelError, match="covar_module"):
        grief(*data(10, 2), covar_module=RQKernel())


@pytest.mark.parametrize(
    ("kernel", "tolerance"),
    [
        (ScaleKernel(RBFKernel(ard_num_dims=2)), 1e-4),
        (MaternKernel(2.5), 2e-3),
        (ScaleKernel(MaternKernel(1.5) * PeriodicKernel()), 3e-2),
    ],
    ids=["rbf", "matern", "product"],
)
def test_enough_eigenfunctions_give_the_exact_gp(kernel: Kernel, tolerance: float) -> None:
    X, Y = data(30, 2)
    for part in kernel.modules():
        if getattr(part, "has_lengthscale", False):
            part.lengthscale = 0.6
    model = grief(X, Y, covar_module=kernel, outcome_transform=None, num_eigenfunctions=900, grid_points=30).eval()
    model.likelihood.noise = 0.05
    exact = SingleTaskGP(
        X, Y, covar_module=model.covar_module, mean_module=model.mean_module, likelihood=model.likelihood,
        outcome_transform=None,
    )  # fmt: skip
    ours, reference = model.posterior(X[:20] * 0.9 + 0.05), exact.eval().posterior(X[:20] * 0.9 + 0.05)
    torch.testing.assert_close(ours.mean, reference.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(ours.variance, reference.variance, rtol=0.05, atol=tolerance)


# ---------------------------------------------------------------- grid


def test_the_grid_ignores_outliers_but_not_the_ends_of_few_points() -> None:
    X, Y = data(1000, 2)
    X[::400] = torch.tensor([1e3, -1e3]).double()
    model = GRIEF(X, Y, covar_module=RBFKernel())
    assert model.nodes.shape == (2, 10)
    assert model.nodes.min() > 0
    assert model.nodes.max() < 1
    few, Y = data(30, 2)
    nodes = grief(few, Y).nodes
    beyond = 5 * (few.amax(0) - few.amin(0)) / 29
    torch.testing.assert_close(nodes[:, 0], few.amin(0) - beyond)
    torch.testing.assert_close(nodes[:, -1], few.amax(0) + beyond)
    assert (GRIEF(few[:1], Y[:1]).nodes == few[:1].mT).all()


@pytest.mark.parametrize("seed", range(3))
def test_with_few_points_no_variance_is_added_where_others_lie(seed: int) -> None:
    """In six dimensions most points lie outside the box of twenty: conditioning there is exact."""
    rng = torch.Generator().manual_seed(seed)
    X, new = (torch.rand(n, 6, generator=rng, dtype=torch.float64) for n in (20, 40))
    model = GRIEF(X, X.sum(-1, keepdim=True), num_eigenfunctions=60).eval()
    outside = ((new < X.amin(0)) | (new > X.amax(0))).any(-1)
    assert outside.float().mean() > 0.3
    variance = model.outcome_transform.stdvs.square() * model._feature_map(0).prior_variance(new)
    added = model.posterior(new).variance - model.processes[0].locate(new).variance().unsqueeze(-1) * (
        model.outcome_transform.stdvs.square()
    )
    assert (added.squeeze(-1) / variance).max() < 1e-3


def test_a_column_that_is_constant_but_for_outliers_costs_nothing() -> None:
    X, Y = data(1000, 3)
    X[:, 1], X[:, 2] = 0.4, 0.0
    X[7, 2] = 100.0
    model = grief(X, Y, covar_module=RBFKernel())
    assert (model.nodes[1] == 0.4).all()
    assert (model.nodes[2] == 0.0).all()
    index = model._feature_map(0).basis.plan.index
    assert (index[:, 1:] == 0).all()
    assert len(index) <= 7
    assert model.posterior(X[:3]).variance.isfinite().all()


def test_bounds_are_raw_and_mapped_through_the_transform() -> None:
    X, Y = data(20, 2)
    raw, bounds = 3 + 4 * X, torch.tensor([[3.0, 3.0], [7.0, 7.0]]).double()
    wide = torch.tensor([[1.0, 3.0], [9.0, 7.0]]).double()
    model = grief(raw, Y, bounds=wide, input_transform=Normalize(2, bounds=bounds))
    assert model.nodes[0, [0, -1]].tolist() == pytest.approx([-0.5, 1.5])
    assert model.nodes[1, [0, -1]].tolist() == pytest.approx([0.0, 1.0])
    with pytest.raises(GridError, match=r"shape \(2, 2\)"):
        grief(X, Y, bounds=wide.mT[:1])
    with pytest.raises(GridError, match="finite"):
        grief(X, Y, bounds=wide * float("inf"))


def test_fewer_eigenfunctions_where_the_grid_has_no_more() -> None:
    X, Y = data(20, 1)
    model = grief(X, Y, num_eigenfunctions=1000, weights="type2")
    assert model._feature_map(0).num_features <= 7
    assert model.posterior(X).variance.min() > 0
    one = grief(X[:1], Y[:1], num_eigenfunctions=1000)
    assert one._feature_map(0).num_features == 1
    assert one.posterior(X).mean.isfinite().all()


def test_variance_beyond_the_grid_is_that_of_its_edge_and_all_of_the_kernels_if_missing_variance_is_added() -> None:
    X, Y = data(40, 2)
    Y = (Y - Y.mean()) / Y.std()
    far, near = torch.full((1, 2), 1.9).double(), X[:5]
    plain, added = (grief(X, Y, missing_variance=v, outcome_transform=None).eval() for v in (False, True))
    features = plain._feature_map(0)
    edge = features.prior_variance(plain.nodes[:, -1].unsqueeze(0)).item()
    assert plain.posterior(far).variance.item() == pytest.approx(0.99 * edge, rel=1e-4)
    assert added.posterior(far).variance.item() == pytest.approx(added.covar_module.outputscale.item(), rel=1e-6)
    missing = features.kernel_variance(near) - features.prior_covariance(near).diagonal()
    gap = added.posterior(near).variance - plain.posterior(near).variance
    torch.testing.assert_close(gap.squeeze(-1), missing.clamp_min(0), rtol=1e-6, atol=1e-8)


def test_a_little_outside_the_grid_conditioning_is_exact() -> None:
    """No variance is added there, which observations would not inform."""
    X, Y = data(40, 2)
    model, near = GRIEF(X, Y).eval(), X.amax(0, keepdim=True) + 0.01
    there = torch.cat([near, X[:3]])
    prior = model.posterior(there)
    K, noise = prior.distribution.covariance_matrix, model.measurement_noise(0)
    noise = noise * model.outcome_transform.stdvs.square().squeeze()
    expected = K[1:, 1:] - K[1:, :1] @ K[:1, 1:] / (K[0, 0] + noise)
    found = model.condition_on_observations(near, Y[:1]).posterior(X[:3]).distribution.covariance_matrix
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- fit


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of few eigenfunctions
def test_a_fit_takes_lengthscales_from_the_subset_and_the_rest_from_all_the_data() -> None:
    X, Y = data(120, 2)
    Y[30:] = Y[30:] + 0.4 * torch.randn(90, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, same = grief(X, Y, seed=1), grief(X, Y, seed=1)
    state = torch.random.get_rng_state()
    fit_gpytorch_mll(mll_of(model))
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(5)
    fit_gpytorch_mll(mll_of(same))
    for a, b in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.requires_grad
    start = grief(X, Y, seed=1)
    start_from_subset(start, 20, seed=1)
    assert torch.equal(lengthscales(start), lengthscales(model))
    learned = [model.likelihood.raw_noise, model.covar_module.raw_outputscale, model.mean_module.raw_constant]
    assert not torch.allclose(start.likelihood.noise, model.likelihood.noise, rtol=0.05)
    for gradient in torch.autograd.grad(loss(model), learned):
        assert gradient.abs().max() < 1e-3
    others = grief(X, Y, seed=2)
    fit_gpytorch_mll(mll_of(others))
    assert not torch.allclose(lengthscales(others), lengthscales(model), rtol=1e-3)


def test_learning_the_kernel_from_all_the_data_raises_the_evidence() -> None:
    X, Y = data(120, 2)
    losses, models = [], [grief(X, Y, subset_size=6, learn_kernel=v) for v in (False, True)]
    for model in models:
        fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 30}})
        losses.append(loss(model.train()).item())
    assert losses[1] < losses[0] - 0.01
    assert not torch.allclose(lengthscales(models[0]), lengthscales(models[1]), rtol=0.05)


@pytest.mark.parametrize("weights", ["nystrom", "type2"])
@pytest.mark.parametrize("n", [6, 50])
@pytest.mark.parametrize("m", [1, 2])
def test_gradients_of_the_loss_equal_finite_differences(m: int, n: int, weights: Any) -> None:
    model = grief(*data(n, 2, m), weights=weights, num_eigenfunctions=24).train()
    model.covar_module.base_kernel.lengthscale = torch.tensor([0.5, 0.8]).double()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss(model), list(named.values()))
    for (name, p), gradient in zip(named.items(), gradients, strict=True):
        position, step, values = 0 if p.ndim < 2 else (-1,) * p.ndim, 1e-5, []
        for sign in (1, -1):
            with torch.no_grad():
                kept = p.clone()
                p.reshape(-1)[0 if position == 0 else -1] += sign * step
                values.append(loss(model).item())
                p.copy_(kept)
        difference = (values[0] - values[1]) / (2 * step)
        found = gradient.reshape(-1)[0 if position == 0 else -1].item()
        assert found == pytest.approx(difference, rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize("m", [1, 2])
def test_learned_weights(m: int) -> None:
    X, Y = data(60, 2, m)
    models = [grief(X, Y, weights=weights, num_eigenfunctions=15) for weights in ("nystrom", "type2")]
    evidence = []
    for model in models:
        fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 30}})
        evidence.append(model._log_evidence().sum().item())
    weights = models[1].weights
    assert weights is not None
    assert weights.shape == (15,) if m == 1 else (m, 15)
    assert torch.equal(lengthscales(models[0]), lengthscales(models[1]))
    assert evidence[1] > evidence[0] + 1.0
    assert (weights - 1).abs().max() > 0.1
    one = models[1].subset_output([m - 1])
    assert one.weights.shape == (15,)
    torch.testing.assert_close(one.posterior(X[:4]).variance[..., 0], models[1].posterior(X[:4]).variance[..., -1])


def test_the_prior_of_the_weights_has_mode_1_and_variance_100() -> None:
    model = grief(*data(10, 2), weights="type2")
    prior = model.weights_prior
    w = torch.linspace(0.5, 1.5, 101).double()
    assert w[prior.log_prob(w).argmax()].item() == pytest.approx(1.0, abs=0.011)
    assert prior.variance.item() == pytest.approx(100, rel=0.01)
    assert (model.weights == 1).all()
    assert any(name.endswith("weights_prior") for name, *_ in model.named_priors())


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
def test_several_outputs_have_eigenfunctions_of_their_own(known: bool) -> None:
    m = 2
    X, Y = data(60, 2, m)
    Y[:, -1] = torch.sin(9 * X[:, 0])
    Yvar = 0.01 + 0.02 * X[:, :1].expand(60, m) if known else None
    model = grief(X, Y, train_Yvar=Yvar)
    fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 40}})
    whole = model.posterior(X[:7])
    for j in range(m):
        alone = model.subset_output([j])
        torch.testing.assert_close(alone.posterior(X[:7]).mean[:, 0], whole.mean[:, j])
        torch.testing.assert_close(alone.posterior(X[:7]).variance[:, 0], whole.variance[:, j])
    assert (whole.mean - Y[:7]).abs().max() < 0.5


def test_float32_is_fitted_as_float64() -> None:
    X, Y = data(60, 2)
    with pytest.warns(InputDataWarning):
        models = [grief(X, Y), grief(X.float(), Y.float())]
    for model in models:
        fit_gpytorch_mll(mll_of(model))
    p, q = models[0].posterior(X[:5]), models[1].posterior(X[:5].float())
    assert q.mean.dtype == torch.float32
    torch.testing.assert_close(q.mean.double(), p.mean, rtol=0, atol=5e-3)


def test_without_rows_the_lengthscales_stay() -> None:
    X, Y = data(60, 2)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    whole, model = (grief(X, Y, covar_module=kernel, keep_data=kept) for kept in (True, False))
    assert all(p.requires_grad for p in kernel.parameters())
    before, noise = lengthscales(model), model.likelihood.noise.item()
    fit_gpytorch_mll(mll_of(model))
    assert torch.equal(lengthscales(model), before)
    assert model.likelihood.noise.item() != pytest.approx(noise)
    whole.load_state_dict(model.state_dict())
    torch.testing.assert_close(whole.eval().posterior(X[:3]).mean, model.posterior(X[:3]).mean)
    with pytest.raises(UnsupportedError, match="keep_data=True"):
        grief(X, Y, keep_data=False, learn_kernel=True)


def test_a_model_list_is_fitted() -> None:
    X, Y = data(30, 2, 2)
    models = ModelListGP(grief(X, Y[:, :1]), grief(X, Y[:, 1:], weights="type2"))
    fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models), optimizer_kwargs={"options": {"maxiter": 10}})
    assert not models.training
    assert models.posterior(X[:3]).mean.shape == (3, 2)


def test_a_state_goes_into_a_model_of_other_rows_grid_included() -> None:
    (X, Y), (Z, V) = data(40, 2), data(9, 2, seed=4)
    model, other = grief(X, Y, weights="type2"), grief(0.5 * Z, V, weights="type2")
    fit_gpytorch_mll(mll_of(model))
    other.load_state_dict(model.state_dict())
    fresh = grief(0.5 * Z, V, weights="type2", bounds=model.nodes[:, [0, -1]].mT)
    fresh.load_state_dict(model.state_dict(), keep_transforms=True)
    assert torch.equal(other.nodes, model.nodes)
    p, q = (x.eval().posterior(X[:5]) for x in (other, fresh))
    torch.testing.assert_close(p.mean, q.mean)
    torch.testing.assert_close(p.variance, q.variance)


def test_what_makes_no_sense_is_refused() -> None:
    X, Y = data(10, 2)
    with pytest.raises(ValueError, match="at least 1"):
        grief(X, Y, grid_points=0)
    model = grief(X, Y)
    with pytest.raises(UnsupportedError, match="stages"):
        fit_gpytorch_mll(mll_of(model), closure=lambda: None)


def test_equal_products_are_chosen_in_the_order_of_their_indices() -> None:
    """Whatever rounding makes of them: statistics outlive the plan that they were made with."""
    X, Y = torch.rand(40, 6, dtype=torch.float64), torch.rand(40, 1, dtype=torch.float64)
    cube = torch.stack([torch.zeros(6), torch.ones(6)]).double()
    model = grief(X, Y, bounds=cube, num_eigenfunctions=300, grid_points=10)
    plans = []
    for lengthscale in (0.7, 0.7 * (1 + 1e-12), 0.7 * (1 - 1e-9)):
        model.covar_module.base_kernel.lengthscale = lengthscale
        plans.append(model._feature_map(0).basis.plan.index)
    assert torch.equal(plans[0], plans[1])
    assert torch.equal(plans[0], plans[2])
    firsts = (plans[0] == 0).sum(-1)
    assert firsts[0] == 6
    assert (firsts[1:7] == 5).all()
    assert plans[0][1:7].argmax(-1).tolist() == [5, 4, 3, 2, 1, 0]


def test_stale_statistics_are_made_anew_or_refused() -> None:
    X, Y = data(30, 2, 2)
    model = grief(X, Y).eval()
    _ = model.posterior(X[:1])
    model.covar_module.base_kernel.lengthscale = torch.tensor([[[0.3, 0.4]], [[0.9, 0.8]]])
    part, whole = model.subset_output([0]), model.posterior(X[:4])
    torch.testing.assert_close(part.posterior(X[:4]).mean, whole.mean[:, :1], rtol=1e-8, atol=1e-8)
    bare = grief(X, Y, keep_data=False).eval()
    with pytest.raises(UnsupportedError, match="another dtype"):
        bare.float()
    state = bare.state_dict()
    with pytest.raises(UnsupportedError, match="cannot change"):
        bare.load_state_dict({**state, "nodes": state["nodes"] + 1})
    name = "covar_module.base_kernel.raw_lengthscale"
    with pytest.raises(UnsupportedError, match="cannot change"):
        bare.load_state_dict({**state, name: state[name] * 2})
    bare.load_state_dict(state)
    bare.covar_module.base_kernel.lengthscale = 0.2
    with pytest.raises(UnsupportedError, match="no data are kept"):
        bare.posterior(X[:1])


def test_a_fit_whose_eigenfunctions_miss_the_kernel_warns_with_the_remedy() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(300, 1, generator=generator, dtype=torch.float64)
    X = u + 0.01 * torch.randn(300, 6, generator=generator, dtype=torch.float64)
    Y = torch.sin(20 * u)
    poor = GRIEF(X, Y, num_eigenfunctions=60)
    with pytest.warns(InterpolationWarning, match=r"60 eigenfunctions hold .* % .*PrincipalAxes\(train_X\).*choose"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(poor.likelihood, poor))
    assert poor.kernel_share.shape == (1,)
    assert any("eigenfunctions hold" in warning for warning in poor.fit_report.warnings)
    Z = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    good = GRIEF(Z, Z.sum(-1, keepdim=True), num_eigenfunctions=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InterpolationWarning)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(good.likelihood, good))
    assert good.kernel_share.item() > 0.95
