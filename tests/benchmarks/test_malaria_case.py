"""The malaria case: both ways to choose sites against dense and exhaustive computations, and a tiny run."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import malaria, report
from benchmarks.designs import Design, WISKIDesign
from benchmarks.harness import run_case
from benchmarks.store import Store
from bo_scale import qNegIntegratedPosteriorVariance
from bo_scale.datasets import load_malaria

PLACES = load_malaria()
ORDER = torch.randperm(len(PLACES), generator=torch.Generator().manual_seed(0))
TEST, FIRST, POOL = ORDER[:300], ORDER[300:340], ORDER[340:640]
BOUNDS = torch.stack([PLACES.X.amin(0), PLACES.X.amax(0)])


def make(model: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(malaria, "GRID", 20)
    variant = malaria.VARIANTS[model]
    return variant.design(
        partial(variant.build, BOUNDS), PLACES.X[POOL], PLACES.X[TEST], PLACES.X[FIRST], PLACES.Y[FIRST]
    )


def measure(design: Design) -> list[int]:
    sites = design.choose(4)
    design.observe(sites, PLACES.Y[POOL[sites]])
    return sites


@pytest.mark.parametrize("model", [name for name in malaria.VARIANTS if "exact" in name])
def test_the_exact_design_is_the_dense_one(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    design = make(model, monkeypatch)
    before, chosen = measure(design), measure(design)
    gp = design.model
    kernel, noise, c = gp.covar_module, gp.likelihood.noise, gp.mean_module.constant
    pool, test = gp.transform_inputs(PLACES.X[POOL]), gp.transform_inputs(PLACES.X[TEST])
    X = torch.cat([gp.transform_inputs(PLACES.X[FIRST]), pool[before]])
    with torch.no_grad():
        for site in chosen:
            inverse = torch.linalg.inv(kernel(X, X).to_dense() + noise * torch.eye(len(X)))
            to_pool, to_test = kernel(pool, X).to_dense(), kernel(test, X).to_dense()
            covariance = kernel(pool, test).to_dense() - to_pool @ inverse @ to_test.mT
            variance = kernel.outputscale - (to_pool @ inverse * to_pool).sum(-1)
            gain = covariance.square().sum(-1) / (variance + noise)
            assert gain[site] >= (1 - 1e-5) * torch.where(design.open, gain, 0.0).max()
            X = torch.cat([X, pool[site : site + 1]])
        inverse = torch.linalg.inv(kernel(X, X).to_dense() + noise * torch.eye(len(X)))
        to_test, targets = kernel(test, X).to_dense(), gp.outcome_transform(design.Y)[0] - c
        scale, offset = gp.outcome_transform.stdvs, gp.outcome_transform.means
        mean = offset + scale * (c + to_test @ inverse @ targets)
        variance = scale.square() * (kernel.outputscale + noise - (to_test @ inverse * to_test).sum(-1))
    found = design.predict()
    torch.testing.assert_close(found[0], mean.squeeze(-1))
    torch.testing.assert_close(found[1], variance.squeeze(0))


def test_lazy_scoring_finds_what_scoring_all_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WISKIDesign, "CHUNK", 16)
    design = make("WISKI", monkeypatch)
    for _ in range(3):
        acquisition = qNegIntegratedPosteriorVariance(design.model, mc_points=PLACES.X[TEST])
        expected: list[int] = []
        left = design.open.clone()
        with torch.no_grad():
            for _ in range(4):
                acquisition.set_X_pending(PLACES.X[POOL[expected]] if expected else None)
                scores = acquisition(PLACES.X[POOL].unsqueeze(1))
                expected.append(int(torch.where(left, scores, -torch.inf).argmax()))
                left[expected[-1]] = False
        assert measure(design) == expected


def test_the_case_runs_and_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    width = PLACES.sd.numpy()[:, 0] * 3.92
    np.savez(tmp_path / malaria.DATA, X=PLACES.X.numpy(), y=PLACES.Y.numpy()[:, 0], ci95_width=width)
    variants = {name: replace(variant, batches=5, seeds=1) for name, variant in malaria.VARIANTS.items()}
    for name, value in {"VARIANTS": variants, "PLACES": 200, "GRID": 12}.items():
        monkeypatch.setattr(malaria, name, value)
    run_case("malaria", tmp_path, folder=tmp_path)
    results = {"malaria": Store("malaria", tmp_path).read()}
    assert "sites on, WISKI's RMSE (mean over 1 seed) is on average" in report.render_tables(results)
    malaria.plot(results["malaria"], tmp_path / "docs")
    assert {path.name for path in (tmp_path / "docs").iterdir()} == set(malaria.PLOTS)
