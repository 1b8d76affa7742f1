from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import bayes, million

SCORES = {"rmse": 0.2, "nll": -0.5, "coverage_50": 0.5, "coverage_95": 0.94}
SECONDS = {"fit": 60.0, "posterior": 1.5}


def unit(**values: Any) -> dict[str, Any]:
    return {"data": "kin40k", "n": 36000, "d": 8, "seconds": SECONDS, **SCORES, **values}


CHAINS = {
    "iterations": 10_000,
    "chains": 4,
    "seconds": {"langevin": 5.0, "exact": 1.0},
    "acceptance": 0.574,
    "effective_size": 640.0,
    "r_hat_noise": 1.001,
    "r_hat_mean": 1.01,
}
SIZE = {"n": 1000, "seconds": {"fit": 50.0, "statistics": 0.0, "samples": 0.3, "observation": 0.003}}


def shown(result: dict[str, Any], folder: Path) -> str:
    bayes.plot(result, folder)
    assert (folder / "bayes.png").stat().st_size > 1000
    return bayes.table(result)


def test_a_whole_case_and_half_a_one_are_shown(tmp_path: Path) -> None:
    done = {
        "kin40k GRIEF-I": unit(),
        "kin40k GRIEF-II": unit(nll=-0.4),
        "skillcraft exact": {"error": "no factor"},
        "chains": CHAINS,
        "n=1000": SIZE,
    }
    table = shown({"units": done}, tmp_path)
    assert "| kin40k | 36,000 | GRIEF-I | 0.2000 | -0.5000 | 50.0% | 94.0% | 60 s | 1.5 s |" in table
    assert "10,000 iterations of 4 in 5.0 s (2,000 a second)" in table
    assert "- skillcraft exact: no factor" in table
    first, second = bayes.headline({"units": done})
    assert "300 ms" in first[1]
    assert second == ("NLL of test rows: kin40k", "GRIEF-I -0.500", "GRIEF-II -0.400")
    assert bayes.headline({"units": {}}) == []
    shown({"units": {"kin40k GRIEF-I": unit()}}, tmp_path)
    assert "GRIEF-I" in shown({"units": {}}, tmp_path)


@pytest.mark.filterwarnings("ignore::bo_scale.errors.SamplingWarning")  # chains are short
@pytest.mark.parametrize("model", ["GRIEF-I", "GRIEF-I, Langevin", "GRIEF-II"])
def test_a_unit_is_measured(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = np.random.default_rng(0)
    X = g.random((60, 2))
    mask = np.arange(60)[:, None] % 6 == 0
    np.savez(tmp_path / "kin40k.npz", X=X, y=X.sum(-1) + 0.1 * g.standard_normal(60), test_mask=mask)
    for name, value in {"P": 20, "SAMPLES": 4, "ITERATIONS": 2000}.items():
        monkeypatch.setattr(bayes, name, value)
    found = bayes.evaluate(tmp_path / "kin40k.npz", model)
    assert found["n"] == 50
    assert found["rmse"] < 0.5
    assert ("diagnostics" in found) == (model != "GRIEF-II")


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of few eigenfunctions
def test_time_against_n_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayes, "SMALL_P", 10)
    monkeypatch.setattr(bayes, "SAMPLES", 3)
    monkeypatch.setattr(million, "D", 5)
    found = bayes.against_n(30)
    assert set(found["seconds"]) == {"fit", "statistics", "samples", "observation"}
    assert torch.tensor(list(found["seconds"].values())).isfinite().all()
