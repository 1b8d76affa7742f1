"""A CaGP whose variances errors of left-out rows scale: what it predicts, keeps, and is conditioned on."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.fit import fit_gpytorch_mll
from botorch.models.utils.assorted import fantasize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import LinearKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import CaGP, choose, draw_posterior_functions, load_model, qNegIntegratedPosteriorVariance, save_model
from bo_scale.gp.conditioning import Conditioned
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.left_out import gaussian_rows

QUIET, LOUD = 0.02, 0.5


def rows(n: int = 260, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth function with 25 times the noise in one half of the inputs."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    noise = torch.where(X[:, :1] < 0.5, QUIET, LOUD)
    return X, 5 + (6 * X[:, :1]).sin() + X[:, 1:] + noise * torch.randn(n, 1, generator=g, dtype=torch.float64)


X, Y = rows()
Z = torch.tensor([[0.1, 0.3], [0.25, 0.7], [0.75, 0.3], [0.9, 0.6]], dtype=torch.float64)


def unscaled(**options: Any) -> CaGP:
    model = CaGP(X, Y, policy="cg", progress=False, epochs=0, **options)
    model.likelihood.noise = 0.1
    return model.eval()


@pytest.fixture(scope="module")
def made() -> CaGP:
    model = unscaled()
    model.scale_locally()
    return model


@pytest.fixture
def model(made: CaGP) -> CaGP:
    return deepcopy(made)


def test_it_is_surer_where_errors_are_small_and_its_mean_stays(model: CaGP) -> None:
    plain = unscaled()
    torch.testing.assert_close(model.posterior(Z).mean, plain.posterior(Z).mean)
    for noisy in (False, True):
        ratio = (
            model.posterior(Z, observation_noise=noisy).variance / plain.posterior(Z, observation_noise=noisy).variance
        )
        torch.testing.assert_close(ratio.flatten(), model.inference.local_scale(Z, 0))
    assert ratio[:2].amax() < 0.4
    assert ratio[2:].amin() > 0.8
    far = Z + 50.0
    torch.testing.assert_close(model.posterior(far).variance, plain.posterior(far).variance)


def test_intervals_are_narrower_where_noise_is_less_and_hold_as_many(model: CaGP) -> None:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    new, observed = rows(1000, seed=1)
    posterior = model.posterior(new.unsqueeze(1), observation_noise=True)
    held = ((observed - posterior.mean.squeeze(-1)).abs() < 1.96 * posterior.variance.squeeze(-1).sqrt()).double()
    quiet, loud = new[:, 0] < 0.4, new[:, 0] > 0.6
    assert held[quiet].mean() > 0.9
    assert 0.9 < held[loud].mean() < 0.99
    narrow = posterior.variance.flatten()[quiet].sqrt().mean()
    model.scale_locally(False)
    wide = model.posterior(new[quiet].unsqueeze(1), observation_noise=True).variance.sqrt().mean()
    assert narrow < 0.6 * wide


def test_a_fit_makes_the_factors_anew(model: CaGP) -> None:
    before = model.inference.local_scale(Z, 0)
    model.likelihood.noise = 1.0
    after = model.inference.local_scale(Z, 0)
    assert before is not None
    assert after is not None
    assert (after < before).all()


def test_few_rows_shared_actions_and_kernels_without_lengthscales_stay_as_they_are() -> None:
    few = CaGP(X[:150], Y[:150], progress=False)
    shared = CaGP(X, Y, num_actions=20, max_unit_actions=10, progress=False)
    linear = CaGP(X, Y, covar_module=ScaleKernel(LinearKernel()), progress=False)
    for model in (few, shared, linear):
        variance = model.posterior(Z).variance
        model.scale_locally()
        assert not model.inference.scales_locally
        torch.testing.assert_close(model.posterior(Z).variance, variance)


def test_rows_given_twice_do_not_make_it_surer_elsewhere() -> None:
    """One would be predicted by the other without an error."""
    smooth = (6 * X[:, :1]).sin() + X[:, 1:].square()
    model = CaGP(X.repeat(2, 1), smooth.repeat(2, 1), policy="cg", progress=False)
    model.likelihood.noise = 1e-4
    variance = model.eval().posterior(Z).variance
    model.scale_locally()
    torch.testing.assert_close(model.posterior(Z).variance, variance)


def test_later_rows_and_fantasies_condition_the_scaled_gaussian(model: CaGP) -> None:
    new, values = Z[:2] + 0.05, torch.tensor([[6.5], [5.5]]).double()
    at = torch.cat([new, Z])
    joint = model.posterior(at)
    K, mean = joint.distribution.covariance_matrix.detach(), joint.mean.detach()
    noise = (model.posterior(at, observation_noise=True).variance - joint.variance).detach()[:2, 0]
    gain = torch.linalg.solve(K[:2, :2] + noise.diag(), K[:2, 2:]).mT
    later = model.condition_on_observations(new, values)
    assert isinstance(later.processes[0], Conditioned)
    torch.testing.assert_close(later.posterior(Z).mean, mean[2:] + gain @ (values - mean[:2]))
    expected = (K[2:, 2:] - gain @ K[:2, 2:]).diagonal().unsqueeze(-1)
    torch.testing.assert_close(later.posterior(Z).variance, expected)
    with fantasize():
        imagined = model.fantasize(new, SobolQMCNormalSampler(torch.Size([3]), seed=0))
    torch.testing.assert_close(imagined.posterior(Z).variance, expected.expand(3, 4, 1))


def test_look_ahead_in_closed_form_is_that_of_its_fantasies(model: CaGP) -> None:
    grid = rows(50, seed=3)[0]
    for pending in (None, Z[3:]):
        found = qNegIntegratedPosteriorVariance(model, mc_points=grid, X_pending=pending)(Z[:2].unsqueeze(0))
        measured = Z[:2] if pending is None else torch.cat([Z[:2], pending])
        later = model.condition_on_observations(measured, torch.zeros(len(measured), 1).double())
        torch.testing.assert_close(found, -later.posterior(grid).variance.mean().reshape(1))


def test_drawn_functions_have_its_variance(model: CaGP) -> None:
    for each in (model, model.condition_on_observations(Z[:1], Y[:1])):
        drawn = draw_posterior_functions(each, torch.Size([2000]), torch.Generator().manual_seed(0))(Z)
        ratio = drawn.squeeze(-1).var(0) / each.posterior(Z).variance.flatten()
        assert ratio.amin() > 0.8
        assert ratio.amax() < 1.25


def test_rows_left_out_have_scaled_variances(model: CaGP) -> None:
    errors, variances = gaussian_rows(model).left_out()
    alike, plain = gaussian_rows(unscaled()).left_out()
    torch.testing.assert_close(errors, alike)
    left = X[:, 0] < 0.4
    assert (variances / plain)[left].mean() < 0.4
    with pytest.raises(UnsupportedError, match="left-out rows scale its variances"):
        loo_cv(model)


def test_it_comes_back_from_a_file_and_from_a_copy(model: CaGP, tmp_path: Path) -> None:
    later = model.condition_on_observations(Z[:1], Y[:1])
    save_model(later, tmp_path / "model.pt")
    loaded: Any = load_model(unscaled(), tmp_path / "model.pt")
    for each in (loaded, deepcopy(later)):
        assert torch.equal(each.posterior(Z).variance, later.posterior(Z).variance)
    loaded.likelihood.noise = 0.2
    assert loaded.inference.scales_locally
    few = CaGP(X[:30], Y[:30], progress=False)
    few.scale_locally()
    save_model(few, tmp_path / "few.pt")
    again: Any = load_model(CaGP(X[:30], Y[:30], progress=False), tmp_path / "few.pt")
    assert again._scales_locally  # once there are enough rows
    plain: Any = model
    save_model(unscaled(), tmp_path / "plain.pt")
    load_model(plain, tmp_path / "plain.pt")
    assert not plain.inference.scales_locally


def test_each_output_has_its_own(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    even = (6 * X[:, 1:]).sin() + 0.3 * torch.randn(len(X), 1, generator=g, dtype=torch.float64)
    both = CaGP(X, torch.cat([Y, even], -1), policy="cg", progress=False)
    both.likelihood.noise = torch.tensor([0.1, 0.15]).double()
    before = both.eval().posterior(Z, observation_noise=True).variance
    both.scale_locally()
    save_model(both, tmp_path / "both.pt")
    loaded: Any = load_model(CaGP(X, torch.cat([Y, even], -1), policy="cg", progress=False), tmp_path / "both.pt")
    for each in (both, loaded):
        ratio = each.posterior(Z, observation_noise=True).variance / before
        for j in range(2):
            factor = each.inference.local_scale(Z, j)
            torch.testing.assert_close(ratio[:, j], torch.ones(4).double() if factor is None else factor)
        assert ratio[:2, 0].amax() < 0.4
        alone = each.subset_output([0]).posterior(Z, observation_noise=True).variance
        torch.testing.assert_close(alone[:, 0] / before[:, 0], ratio[:, 0])


def test_single_precision_and_gradients(model: CaGP) -> None:
    single = deepcopy(model).float()
    found = single.posterior(Z.float(), observation_noise=True).variance
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), model.posterior(Z, observation_noise=True).variance, rtol=1e-2, atol=1e-5
    )
    assert torch.autograd.gradcheck(
        lambda x: model.posterior(x, observation_noise=True).variance, (Z.clone().requires_grad_(),)
    )


def test_choose_scales_locally_where_left_out_rows_are_the_more_likely_for_it() -> None:
    model: Any = choose(X, Y, student_t=False)
    ratio = model.inference.local_scale(Z, 0)
    assert ratio[:2].amax() < 0.4 * ratio[2:].amin()
    even = 5 + (6 * X[:, :1]).sin() + 0.1 * torch.randn(len(X), 1, generator=torch.Generator().manual_seed(0)).double()
    other: Any = choose(X, even, student_t=False)
    assert not other.inference.scales_locally
    assert "scaled by errors" in str(model.choice)
    assert "scaled by errors" not in str(other.choice)


def test_known_noise_and_heavy_tails_are_refused() -> None:
    for options in ({"train_Yvar": torch.full_like(Y, 0.1)}, {"likelihood": "student_t"}):
        model: Any = CaGP(X, Y, progress=False, **options)
        with pytest.raises(UnsupportedError, match="scale_locally"):
            model.scale_locally()
        model.scale_locally(False)
