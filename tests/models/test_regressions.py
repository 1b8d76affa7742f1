"""Bugs that were found, each with the test that would have caught it."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import ChainedInputTransform, InputPerturbation
from botorch.sampling import SobolQMCNormalSampler
from cases import MODELS, data
from gpytorch.settings import min_fixed_noise
from linear_operator.operators import LowRankRootLinearOperator
from torch import Tensor

from bo_scale import WISKI, qNegIntegratedPosteriorVariance
from bo_scale.models.shell.rows import Rows


def model(n: int = 20, m: int = 1, **options: object) -> WISKI:
    X, Y = data(n, 2, m)
    return WISKI(X, Y, grid_size=10, **options).eval()


def same_posterior(a: WISKI, b: WISKI) -> None:
    Xt = data(5, 2, seed=1)[0]
    torch.testing.assert_close(a.posterior(Xt).mean, b.posterior(Xt).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(a.posterior(Xt).variance, b.posterior(Xt).variance, rtol=1e-8, atol=1e-10)


def test_hyperparameters_set_after_a_posterior_call_count() -> None:
    """GPyTorch's setters write through .data, which leaves a parameter's version as it was."""
    before, after = model(), model()
    before.likelihood.noise, before.covar_module.lengthscale = 0.5, 0.3
    after.posterior(torch.rand(1, 2, dtype=torch.float64))
    after.likelihood.noise, after.covar_module.lengthscale = 0.5, 0.3
    same_posterior(before, after)
    X, Y = data(2, 2, seed=5)
    same_posterior(before.condition_on_observations(X, Y), after.condition_on_observations(X, Y))  # type: ignore[arg-type]


def test_a_state_is_not_loaded_into_fantasies_nor_through_them() -> None:
    original = model()
    fantasies = original.fantasize(torch.rand(1, 2, dtype=torch.float64), SobolQMCNormalSampler(torch.Size([2])))
    with pytest.raises(UnsupportedError, match="fantasies"):
        fantasies.load_state_dict(model(m=1).state_dict())
    assert fantasies._modules is not original._modules


def test_conservative_nipv_with_known_variances_equals_fantasies_and_can_be_differentiated_twice() -> None:
    X, Y = data(20, 2)
    m = WISKI(X, Y, torch.full_like(Y, 0.01), grid_size=6, conservative=True, outcome_transform=None).eval()
    Z, Xq = data(30, 2, seed=1)[0], torch.rand(1, 2, 2, dtype=torch.float64)
    acquisition = qNegIntegratedPosteriorVariance(m, Z)
    fantasy = m.fantasize(Xq[0], SobolQMCNormalSampler(torch.Size([1])))
    torch.testing.assert_close(acquisition(Xq), -fantasy.posterior(Z).variance.mean().unsqueeze(0))
    assert not acquisition(Xq).requires_grad
    for _ in range(2):
        acquisition(Xq.clone().requires_grad_()).sum().backward()
    assert all(p.grad is None for p in m.parameters())


@pytest.mark.parametrize("m", [1, 2])
def test_many_points_keep_a_root_through_standardize(m: int) -> None:
    whole = model(m=m)
    rank = max(process.root.shape[-1] for process in whole.processes)  # type: ignore[attr-defined]
    Xt = torch.rand(2 * rank + 1, 2, dtype=torch.float64)
    operator = whole.posterior(Xt).distribution.lazy_covariance_matrix
    base = operator if m == 1 else operator.base_linear_op
    assert isinstance(base, LowRankRootLinearOperator)
    marginal = whole.posterior(Xt.unsqueeze(1)).variance.squeeze(1)
    torch.testing.assert_close(whole.posterior(Xt).variance, marginal, rtol=1e-6, atol=1e-9)
    draws = whole.posterior(Xt).rsample(torch.Size([400]))
    torch.testing.assert_close(draws.var(0), marginal, rtol=0.5, atol=1e-4)


def test_bounds_pass_through_a_perturbation_of_the_inputs() -> None:
    X, Y = data(20, 2)
    perturbation = InputPerturbation(torch.tensor([[0.01, 0.0], [-0.01, 0.0]], dtype=torch.float64))
    bounds = torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.float64)
    chain = ChainedInputTransform(perturb=perturbation, scale=Normalize(2, bounds=bounds))
    grid = WISKI(2 * X, Y, bounds=bounds, grid_size=9, input_transform=chain).grid
    assert grid.lower == pytest.approx((0.0, 0.0))
    assert grid.upper == pytest.approx((1.0, 1.0))


def test_children_of_one_parent_copy_none_of_its_rows() -> None:
    parent = Rows.of(*(torch.rand(50, c, dtype=torch.float64) for c in (2, 1, 1)))
    new = [torch.rand(1, c, dtype=torch.float64) for c in (2, 1, 1)]
    children = [parent.append(*new) for _ in range(3)]
    assert len({child._buffer.X.data_ptr() for child in children}) == 1
    for child in children:
        assert torch.equal(child.X, torch.cat([parent.X, new[0]]))
    grown = children[1]
    for _ in range(60):
        grown = grown.append(*new)
    assert torch.equal(grown.Y, torch.cat([parent.Y, new[1].expand(61, 1)]))


def test_conservative_streaming_with_unequal_known_variances_equals_refitting() -> None:
    X, Y = data(30, 2)
    variances = 10 ** (-3 + 2 * X[:, :1])

    def build(rows: slice) -> WISKI:
        options = {"grid_size": 7, "conservative": True, "outcome_transform": None}
        return WISKI(X[rows], Y[rows], variances[rows], **options).eval()

    base = build(slice(0, 25))
    base.posterior(X[:1])
    same_posterior(base.condition_on_observations(X[25:], Y[25:], noise=variances[25:]), build(slice(0, 30)))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Very small noise values")
def test_the_smallest_variance_is_the_same_whenever_it_arrives() -> None:
    X, Y = data(20, 2)
    tiny = torch.full_like(Y, 1e-9)
    whole = WISKI(X, Y, tiny, grid_size=10, outcome_transform=None).eval()
    part = WISKI(X[:15], Y[:15], tiny[:15], grid_size=10, outcome_transform=None).eval()
    part.posterior(X[:1])
    assert whole.likelihood.noise.min() == min_fixed_noise.value(torch.float64)
    same_posterior(part.condition_on_observations(X[15:], Y[15:], noise=tiny[15:]), whole)  # type: ignore[arg-type]


def test_known_variances_without_data_move_with_the_model() -> None:
    X, Y = data(20, 2)
    m = WISKI(X, Y, torch.full_like(Y, 0.1), grid_size=8, keep_data=False).eval()
    assert m.float().likelihood.noise.dtype == torch.float32
    assert m.posterior(X.float(), observation_noise=True).variance.dtype == torch.float32


def test_a_move_to_where_it_is_keeps_the_posterior() -> None:
    m = model()
    m.posterior(torch.rand(1, 2, dtype=torch.float64))
    process = m.processes[0]
    assert m.to(torch.rand(1, dtype=torch.float64)).processes[0] is process


def test_prior_without_observations() -> None:
    X, Y = data(0, 2)
    m = WISKI(X, Y, grid_size=8, outcome_transform=None).eval()
    posterior = m.posterior(torch.rand(3, 2, dtype=torch.float64))
    torch.testing.assert_close(posterior.variance, torch.ones(3, 1, dtype=torch.float64), rtol=0.03, atol=0)
    conditioned: Tensor = m.condition_on_observations(*data(5, 2)).posterior(data(5, 2)[0]).mean
    assert torch.isfinite(conditioned).all()


@pytest.mark.parametrize(("d", "build"), MODELS)
def test_a_model_is_freed_with_its_last_reference(d: int, build: Callable[..., Any]) -> None:
    """GPyTorch's hook for loading states was a cycle: what was superseded stayed until the collector ran."""
    model = build(*data(12, d))
    streamed = model.condition_on_observations(*data(2, d, seed=1))
    for each in (model, streamed):
        _ = each.posterior(data(2, d)[0]).variance
    living = [weakref.ref(model), weakref.ref(streamed)]
    gc.disable()
    try:
        del model, streamed, each
        assert [reference() for reference in living] == [None, None]
    finally:
        gc.enable()
