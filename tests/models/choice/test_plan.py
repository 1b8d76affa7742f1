"""Plans build models of any data, and come back from plain values."""

import json
from pathlib import Path

import pytest
import torch

from bo_scale import GRIEF, load_model, save_model
from bo_scale.models.choice.plan import FAMILIES, KERNELS, LEAST_NOISE, Plan
from bo_scale.models.inputs import LogScales, PrincipalAxes
from bo_scale.models.shell.kernels import SHORTEST

X = torch.rand(30, 2, dtype=torch.float64)
Y = X.sum(-1, keepdim=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_each_builds_its_class_with_its_kernel(family: str, kernel: str) -> None:
    plan = Plan(family, kernel)
    model = plan.build(X, Y)
    assert type(model) is plan.model is FAMILIES[family]
    assert kernel in str(plan)
    assert getattr(model.covar_module.base_kernel, "nu", float("inf")) == KERNELS[kernel]
    assert model.posterior(X[:3]).mean.shape == (3, 1)


def test_plans_come_back_from_plain_values() -> None:
    plan = Plan("grief", "matern52", principal_axes=True, size=40)
    assert Plan(**json.loads(json.dumps(plan.describe()))) == plan


def test_several_outputs_have_kernels_of_their_own() -> None:
    model = Plan("exact").build(X, torch.cat([Y, Y.square()], -1))
    assert model.covar_module.base_kernel.lengthscale.shape == (2, 1, 2)


def test_exact_gps_learn_little_noise() -> None:
    both = torch.cat([Y, Y.square()], -1)
    for model in (Plan("exact").build(X, Y), Plan("exact").build(X.float(), Y.float()), Plan("exact").build(X, both)):
        bound = model.likelihood.noise_covar.raw_noise_constraint
        assert float(bound.lower_bound) == pytest.approx(LEAST_NOISE)
        assert model.likelihood.noise.dtype == model.train_inputs[0].dtype
        assert model.likelihood.noise.numel() == model.num_outputs
        model.likelihood.noise = LEAST_NOISE * 1.01
        assert model.posterior(X.to(model.likelihood.noise)).variance.isfinite().all()
    assert Plan("exact").build(X, Y, torch.ones_like(Y)).knows_noise
    default = Plan("exact").build(X, Y, likelihood=None)
    assert float(default.likelihood.noise_covar.raw_noise_constraint.lower_bound) == pytest.approx(1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_lengthscales_may_be_short(shared: bool, unit: float) -> None:
    inputs = unit * X / X.amax(0)
    kernel = Plan("exact", shared_lengthscale=shared).build(inputs, Y).covar_module.base_kernel
    ranges = 1.0 if shared or unit == 1 else inputs.amax(0) - inputs.amin(0)
    bounds = (kernel.raw_lengthscale_constraint.lower_bound.double() / ranges).expand(kernel.lengthscale.shape[-1])
    torch.testing.assert_close(bounds, torch.full_like(bounds, SHORTEST), rtol=1e-6, atol=0)


def test_rows_are_chosen_and_axes_rotated() -> None:
    model = Plan("exact", rows=10).build(X, Y)
    assert model.num_observations == 10
    rotated = Plan("grief", principal_axes=True, size=20).build(X, Y)
    assert isinstance(rotated.input_transform, PrincipalAxes)
    assert rotated.posterior(X[:3]).mean.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"shared_lengthscale": True}, {"principal_axes": True}])
@pytest.mark.parametrize("family", ["exact", "softki", "grief"])
def test_inputs_have_logarithmic_scales_before_they_are_rotated_or_share_a_unit(
    family: str, options: dict, tmp_path: Path
) -> None:
    skewed = 10 ** (4 * X)
    plan = Plan(family, "rbf", log_scales=True, **options)
    model = plan.build(skewed, Y).eval()
    scales = LogScales(skewed)
    plain = Plan(family, "rbf", **options).build(scales(skewed), Y).eval()
    torch.testing.assert_close(model.posterior(skewed[:3]).mean, plain.posterior(scales(skewed[:3])).mean)
    assert "log scales" in str(plan)
    save_model(model, tmp_path / "model.pt")
    back = load_model(plan.build(skewed[:2], Y[:2]), tmp_path / "model.pt").eval()
    torch.testing.assert_close(back.posterior(skewed[:3]).mean, model.posterior(skewed[:3]).mean)


def test_options_replace_those_of_the_plan() -> None:
    assert len(Plan("softki", size=9).build(X, Y, num_interpolation_points=4).interpolation_points) == 4


def test_eigenfunctions_that_hold_nearly_all_variance_add_none_for_the_rest() -> None:
    """A small share of a large outputscale is large beside the noise: intervals were three times as wide."""
    model = Plan("grief").build(X, Y)
    model.covar_module.outputscale = 1e4
    plain, added = (GRIEF(X, Y, missing_variance=missing) for missing in (False, True))
    for each in (plain, added):
        each.load_state_dict(model.state_dict())
    inside = X.mean(0, keepdim=True)
    assert torch.equal(model.eval().posterior(inside).variance, plain.eval().posterior(inside).variance)
    assert added.eval().posterior(inside).variance > model.posterior(inside).variance
