"""Hyperparameters fitted to all rows of shards, those of features by passes over the shards."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.models.transforms import Standardize
from gpytorch.kernels import RBFKernel, ScaleKernel
from made_rows import AT, SAMPLE, box, rows_of, same, wiski
from torch import Tensor

from bo_scale import GRIEF, WISKI, SoftKI
from bo_scale.distributed import accumulate
from bo_scale.distributed.passes import Passes
from bo_scale.distributed.refit import RowsOfShards
from bo_scale.distributed.shards import listed
from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.weight_space import evidence_of, rows_elsewhere

SHARDS = [rows_of(k) for k in range(4)]
X, Y = (torch.cat(parts) for parts in zip(*SHARDS, strict=True))
FEW = {"options": {"maxiter": 3}}


def two_outputs(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return rows[0], torch.cat([rows[1], rows[1].square()], -1)


def same_rows(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return rows


def grief(rows: Any = SAMPLE, **options: Any) -> GRIEF:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.lengthscale = torch.tensor([[0.3, 0.6]])
    given = {"num_eigenfunctions": 20, "bounds": box(), "covar_module": kernel, "learn_kernel": True}
    return GRIEF(*rows, **{**given, **options})


def softki(rows: Any = SAMPLE) -> SoftKI:
    return SoftKI(*rows, num_interpolation_points=12, epochs=0, joint_steps=3)


def projected(rows: Any = SAMPLE) -> WISKI:
    projection = torch.nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        projection.weight.copy_(torch.tensor([[0.8, 0.4]]))
    bounds = torch.tensor([[-2.0], [3.0]], dtype=torch.float64)
    return WISKI(*rows, grid_size=30, bounds=bounds, projection=projection)


MODELS = {
    "GRIEF": (grief, same_rows),
    "GRIEF of two outputs": (lambda rows=SAMPLE: grief(two_outputs(SAMPLE), covar_module=None), two_outputs),
    "SoftKI": (softki, same_rows),
    "a projected WISKI": (projected, same_rows),
}


def evaluated(model: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the log evidence of every output, and the derivatives of their sum."""
    model.zero_grad()
    found = model._log_evidence()
    found.sum().backward()
    return found.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("build", "rows"), MODELS.values(), ids=MODELS)
def test_evidence_and_gradient_by_passes_are_those_of_all_rows(build: Any, rows: Any) -> None:
    """The parameters are not those at which the rows were summed, so both passes are made."""
    model = build()
    kept = model.condition_on_observations(*rows((X, Y)))
    kept = kept.remove_observations(list(range(60)))
    shards = [rows(each) for each in SHARDS]
    found = accumulate(model, shards, progress=False)
    for each in (found, kept):
        with torch.no_grad():
            for p in each._feature_parameters():
                p.mul_(1.05)
    with rows_elsewhere(found, RowsOfShards(Passes(listed(shards, None), 100, None, False), None)):
        value, grads = evaluated(found)
    expected, of_all = evaluated(kept)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    assert len(grads) == len(of_all) > 0
    for one, other in zip(grads, of_all, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_lengthscales_are_learned_from_all_rows_and_predict_better() -> None:
    options: dict[str, Any] = {"refit": True, "optimizer_kwargs": {"options": {"maxiter": 8}}, "progress": False}
    model = grief(outcome_transform=Standardize(1))
    fixed = accumulate(grief(outcome_transform=Standardize(1), learn_kernel=False), SHARDS, **options)
    learned = accumulate(model, SHARDS, **options)
    assert torch.equal(fixed._feature_parameters()[0], model._feature_parameters()[0])
    assert not torch.equal(learned._feature_parameters()[0], model._feature_parameters()[0])
    with torch.no_grad():
        density = [evidence_of(each, each.statistics).item() for each in (fixed, learned)]
    assert density[1] > density[0] + 5
    whole = grief((X, Y), outcome_transform=Standardize(1))
    whole.load_state_dict(learned.state_dict())
    torch.testing.assert_close(learned.posterior(AT).mean, whole.posterior(AT).mean, rtol=1e-7, atol=1e-7)
    assert evaluated(whole.train())[0].item() == pytest.approx(density[1], abs=1e-5)


class FailsOnce:
    """Shards that cannot be read the k-th time."""

    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def rows(self, number: int) -> tuple[Tensor, Tensor]:
        self.calls += 1
        if self.calls == self.at:
            raise OSError("Stale file handle")
        return rows_of(number)

    @property
    def shards(self) -> list[Any]:
        return [partial(self.rows, number) for number in range(4)]


def test_a_fit_goes_on_from_its_evaluations_to_the_same_bits(tmp_path: Path) -> None:
    options: dict[str, Any] = {"refit": True, "optimizer_kwargs": FEW, "progress": False}
    made, never = FailsOnce(30), FailsOnce(0)
    with pytest.raises(InvalidDataError, match="Stale file handle"):
        accumulate(grief(), made.shards, folder=tmp_path, **options)
    kept = list((tmp_path / "fit").glob("*.pt"))
    assert len(kept) == (30 - 1) // 4 - 1  # passes, the first of which is kept by shards
    kept[0].write_bytes(kept[0].read_bytes()[:100])
    found = accumulate(grief(), made.shards, folder=tmp_path, **options)
    assert not (tmp_path / "fit").exists()
    alone = accumulate(grief(), never.shards, **options)
    assert same(found, alone)
    assert made.calls <= never.calls + 6  # a pass that was damaged, and parts of one that failed
    with ThreadPoolExecutor(2) as threads:
        assert same(found, accumulate(grief(), SHARDS, executor=threads, **options))


def test_rows_that_lose_weight_serve_no_learned_features() -> None:
    model = projected()
    decaying = WISKI(
        *SAMPLE, grid_size=30, bounds=torch.tensor([[-2.0], [3.0]]), projection=model.projection, decay=0.999
    )
    with pytest.raises(UnsupportedError, match="refit: features are not learned from shards with decay"):
        accumulate(decaying, SHARDS, refit=True, progress=False)
    assert accumulate(wiski(decay=0.999), SHARDS, refit=True, progress=False, optimizer_kwargs=FEW).fit_report


def test_a_model_without_rows_may_take_other_features() -> None:
    """A model that keeps statistics alone, and has none yet."""
    model = grief()
    blank = model.with_statistics(model.statistics_of(X[:0], Y[:0]))
    with torch.no_grad():
        for p in (*blank._feature_parameters(), *model._feature_parameters()):
            p.mul_(0.9)
    blank = blank.condition_on_observations(X, Y)
    torch.testing.assert_close(
        blank.posterior(AT).mean, accumulate(model, SHARDS, progress=False).posterior(AT).mean, rtol=1e-9, atol=1e-9
    )
    with torch.no_grad():
        blank._feature_parameters()[0].mul_(0.9)
    with pytest.raises(UnsupportedError, match="no data are kept"):
        _ = blank.statistics


def test_a_grid_that_is_too_coarse_for_all_rows_is_refined_and_filled_again() -> None:
    def rough(seed: int, count: int) -> tuple[Tensor, Tensor]:
        X, noise = rows_of(seed, count)[0], torch.randn(count, 1, generator=torch.Generator().manual_seed(seed))
        return X, (25 * X).sin().prod(-1, keepdim=True) + 0.02 * noise

    model, shards = WISKI(*rough(0, 60), bounds=box()), [rough(k, 1000) for k in (1, 2, 3)]
    with torch.no_grad():  # where a local optimum, all of it noise, is far
        model.covar_module.lengthscale = 0.07
        model.likelihood.noise = 0.01
    found = accumulate(model, shards, refit=True, progress=False)
    assert found.grid.size > model.grid.size
    assert found.interpolation_share < 0.01
    X, Y = (torch.cat(parts) for parts in zip(*shards, strict=True))
    assert (found.posterior(X).mean - Y).square().mean().sqrt().item() < 0.03
    whole = WISKI(X, Y, bounds=box())
    whole.load_state_dict(found.state_dict())
    torch.testing.assert_close(found.posterior(AT).mean, whole.posterior(AT).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.posterior(AT).variance, whole.posterior(AT).variance, rtol=1e-6, atol=1e-9)


def test_features_of_a_model_on_a_gpu_are_learned_by_passes_of_the_cpu(gpu: torch.device) -> None:
    options: dict[str, Any] = {"refit": True, "optimizer_kwargs": {"options": {"maxiter": 1}}, "progress": False}
    there, here = (accumulate(each, SHARDS[:1], **options) for each in (grief().to(gpu), grief()))
    assert there.statistics[0].center.device == gpu
    torch.testing.assert_close(there.posterior(AT.to(gpu)).mean.cpu(), here.posterior(AT).mean, rtol=1e-6, atol=1e-6)
