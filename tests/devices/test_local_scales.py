"""Variances that errors of left-out rows scale, on every device."""

import torch
from matching import assert_all_on, assert_matches

from bo_scale import CaGP, choose, qNegIntegratedPosteriorVariance


def test_scaled_variances_are_the_same_on_every_device(gpu: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(220, 2, generator=g, dtype=torch.float64)
    loud = torch.where(X[:, :1] < 0.5, 0.02, 0.5)
    Y = (6 * X[:, :1]).sin() + loud * torch.randn(220, 1, generator=g, dtype=torch.float64)
    here = CaGP(X, Y, policy="cg", progress=False)
    here.scale_locally()
    there = CaGP(X.to(gpu), Y.to(gpu), policy="cg", progress=False)
    there.scale_locally()
    moved = CaGP(X, Y, policy="cg", progress=False)
    moved.scale_locally()
    assert moved.inference.scales_locally
    moved = moved.to(gpu)
    Z, new = X[:5] + 0.01, X[:2] + 0.02
    expected = here.eval().posterior(Z, observation_noise=True)
    later = here.condition_on_observations(new, Y[:2]).posterior(Z).variance
    integral = qNegIntegratedPosteriorVariance(here, mc_points=X[:20])(new.unsqueeze(0))
    for model in (there, moved):
        found = model.eval().posterior(Z.to(gpu), observation_noise=True)
        assert_matches(found.variance, expected.variance, gpu, "variance")
        assert_matches(found.mean, expected.mean, gpu, "mean")
        conditioned = model.condition_on_observations(new.to(gpu), Y[:2].to(gpu))
        assert_matches(conditioned.posterior(Z.to(gpu)).variance, later, gpu, "after two more rows")
        acquisition = qNegIntegratedPosteriorVariance(model, mc_points=X[:20].to(gpu))
        assert_matches(acquisition(new.unsqueeze(0).to(gpu)), integral, gpu, "integrated variance")
        assert_all_on(model, gpu)


def test_choose_scales_them_on_every_device(gpu: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(220, 1, generator=g, dtype=torch.float64)
    Y = (6 * X).sin() + torch.where(X < 0.5, 0.02, 0.5) * torch.randn(220, 1, generator=g, dtype=torch.float64)
    there = choose(X.to(gpu), Y.to(gpu), student_t=False)
    assert there.choice.scales_locally
    assert there.posterior(X[:3].to(gpu)).variance.device == gpu
