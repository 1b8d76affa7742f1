"""Cases of function-space models: what they say of made-up results, and a tiny unit of each."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import cagp, cagp_regret, conditioning, decoupled, report
from benchmarks.harness import run_case
from benchmarks.store import Store

SCORES = {"rmse": 0.2, "rmse_raw": 0.4, "nll": -0.5, "crps": 0.1, "coverage_50": 0.5, "coverage_95": 0.94}


def results(*units: dict[str, Any]) -> dict[str, Any]:
    return {"units": {str(i): unit for i, unit in enumerate(units)}}


def write_data(folder: Path, name: str, n: int = 150) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    y = torch.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    mask = (torch.arange(n) % 5).unsqueeze(-1) == torch.arange(5)
    np.savez(folder / f"{name}.npz", X=X.numpy(), y=y.numpy(), test_mask=mask.numpy())


def shown(module: Any, result: dict[str, Any], folder: Path) -> str:
    """The table, after the plots have been drawn."""
    module.plot(result, folder)
    assert {path.name for path in folder.iterdir()} == set(module.PLOTS)
    return module.table(result)


def measured(case: str, data: Path | None, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """The result of a run of a case with these settings."""
    module = getattr(sys.modules[__name__], case)
    for name, value in settings.items():
        monkeypatch.setattr(module, name, value)
    run_case(case, data, folder=folder)
    result = Store(case, folder).read()
    assert not [unit for unit in result["units"].values() if "error" in unit]
    assert f"## {module.TITLE}" in report.render_tables({case: result})
    shown(module, result, folder / "docs")
    return result


# ---------------------------------------------------------------------- cagp


def fit(model: str, **other: Any) -> dict[str, Any]:
    cost = {"noise": 1e-4, "fit_seconds": 3.0, "predict_seconds": 0.1, "megabytes": 500.0, "megabytes_before": 300.0}
    return {"data": "bike", "model": model, "fold": 0, "n": 100, "d": 2, "test": 10, **SCORES, **cost, **other}


def cost(n: int, i: int, seconds: float) -> dict[str, Any]:
    sizes = {"n": n, "actions": i, "d": 10, "seed": 0}
    return {**sizes, "seconds": seconds, "batch_seconds": seconds / 2, "megabytes_beyond": n / 10}


def test_the_best_fit_is_in_bold_and_costs_have_a_power(tmp_path: Path) -> None:
    costs = [cost(1000, 64, 0.1), cost(10_000, 64, 10.0), cost(1000, 512, 0.2)]
    result = results(fit("CaGP", nll=-2.5), fit("SVGP", rmse=0.1, coverage_95=0.951), *costs)
    table = shown(cagp, result, tmp_path)
    assert "| bike | 100, 2 | CaGP | **-2.500** | 0.2000 | 0.010 | 94.0% |" in table
    assert "| bike | 100, 2 | SVGP | -0.500 | **0.1000** | **0.001** | 95.1% |" in table
    assert "| 64 | all rows | 100 ms | 10 s | 2.0 |" in table
    assert "| 64 | memory | 100 MB | 1,000 MB | 1.0 |" in table
    assert "| 512 | all rows | 200 ms | – | – |" in table
    ((what, ours, theirs),) = cagp.headline(result)
    assert "bike" in what
    assert (ours, theirs) == ("CaGP -2.50 (94%; 3.0 s)", "SVGP -0.50 (95%; 3.0 s)")


@pytest.mark.parametrize("unit", [fit("CaGP"), cost(1000, 64, 0.1), {**fit("exact"), "error": "no factor"}])
def test_a_half_done_cagp_case_is_shown(unit: dict[str, Any], tmp_path: Path) -> None:
    result = results(unit)
    assert "| model |" in shown(cagp, result, tmp_path)
    assert cagp.headline(result) == []


@pytest.mark.usefixtures("in_process")
def test_the_cagp_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path, "skillcraft")
    sizes = {"POINTS": 20, "ACTIONS": 10, "ITERATIONS": 3, "EXACT_STEPS": 3, "COST_ROWS": (60,), "COST_ACTIONS": (5,)}
    sizes |= {"DATA_SETS": {"skillcraft": ("CaGP", "exact")}, "BATCH": 20}
    result = measured("cagp", tmp_path, tmp_path, monkeypatch, **sizes)
    assert set(result["units"]) == {"cost n=60 i=5", *(f"skillcraft {model}" for model in ("CaGP", "exact"))}
    assert result["units"]["skillcraft CaGP"]["rmse"] < 0.5


def test_kernel_and_noise_have_floors() -> None:
    X = torch.rand(30, 2, dtype=torch.float64)
    model = cagp.make(X, X[:, 0], floor=1e-6, num_actions=5)
    model.covar_module.base_kernel.raw_lengthscale.data.fill_(-1e3)
    model.likelihood.raw_noise.data.fill_(-1e3)
    assert model.covar_module.base_kernel.lengthscale.min().item() == pytest.approx(cagp.SHORTEST)
    assert model.likelihood.noise.item() == pytest.approx(1e-6)


# ---------------------------------------------------------------------- regret


def run(model: str, seed: int, last: float) -> dict[str, Any]:
    return {"model": model, "seed": seed, "regret": [1.0, last], "noise": 0.02, "seconds": 2.0}


def test_the_bound_is_that_of_paired_differences(tmp_path: Path) -> None:
    ours = [run("cg", seed, value) for seed, value in enumerate((0.5, 0.4, 0.6))]
    theirs = [run(cagp_regret.EXACT, seed, value) for seed, value in enumerate((0.4, 0.4, 0.4, 0.1))]
    result = results(*ours, *theirs)
    found = cagp_regret.difference(result, "cg")
    assert found is not None
    assert found == pytest.approx((3, 0.1, 0.1 + 1.885618 * 0.1 / 3**0.5))  # Student's t with 2 degrees of freedom
    assert f"| +0.100 | {found[2]:+.3f} | 0.02 | 2.0 s |" in shown(cagp_regret, result, tmp_path)
    ((_, bound, _),) = cagp_regret.headline(result)
    assert f"{found[2]:+.3f}" in bound
    assert "3 seeds" in bound


@pytest.mark.parametrize("failed", [False, True])
def test_half_done_regret_is_shown(failed: bool, tmp_path: Path) -> None:
    unit = run("learned", 0, 0.5)
    if failed:
        del unit["regret"]
        unit["error"] = "RuntimeError at n = 501: no fit"
    result = results(unit)
    assert ("no fit" if failed else "by the bound | 1 | 0.500 | – | – |") in shown(cagp_regret, result, tmp_path)
    assert cagp_regret.headline(result) == []


def test_the_regret_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = {"num_restarts": 1, "raw_samples": 8, "max_steps": 2, "mc_samples": 4}
    sizes = {"FIRST": 20, "EVALUATIONS": 2, "SEEDS": range(1), "ACTIONS": 8, "SEARCH": search}
    sizes |= {"VARIANTS": {"learned": {"epochs": 3}, "cg": {"policy": "cg", "epochs": 0}}}
    sizes |= {"LABELS": {name: name for name in ("learned", "cg", cagp_regret.EXACT)}}
    result = measured("cagp_regret", None, tmp_path, monkeypatch, **sizes)
    assert len({unit["regret"][0] for unit in result["units"].values()}) == 1
    assert all(len(unit["regret"]) == 3 and unit["noise"] > 0 for unit in result["units"].values())


# ---------------------------------------------------------------------- conditioning


@pytest.mark.parametrize("model", ["GRIEF", "CaGP, cg", "decoupled, hybrid"])
def test_updates_are_exact(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"ROWS": 40, "UPDATES": 4, "TEST": 10, "ACTIONS": 8, "ITERATIONS": 3, "FEATURES": 30}
    sizes |= {"MEAN_POINTS": 20, "COVAR_POINTS": 8, "STEPS": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(conditioning, name, value)
    found = conditioning.measure(model)
    assert max(found["errors"][model].values()) < 1e-6
    assert len(found["update"][model]) == len(found["update"][conditioning.RIVAL]) == 4
    if model == "GRIEF":
        assert max(found["to_rebuilt"][model].values()) < 1e-6
    if "CaGP" in model:
        assert max(found["to_formula"][model].values()) < 1e-6


def test_updates_are_shown(tmp_path: Path) -> None:
    names = ("GRIEF", conditioning.RIVAL)
    errors = dict(zip(names, ({"mean": 1e-9, "sd": 2e-9}, {"mean": 1e-8, "sd": 2e-8}), strict=True))
    unit = {"model": "GRIEF", "d": 4, "n": 500, "errors": errors, "to_rebuilt": errors}
    unit["update"] = {"GRIEF": [1e-3, 2e-3, 3e-3], conditioning.RIVAL: [0.1, 0.2, 0.3]}
    unit["rebuild"] = unit["refit"] = dict.fromkeys(names, 4.0)
    table = shown(conditioning, results(unit), tmp_path)
    assert "| GRIEF, d = 4 | 2.0 ms | 4.0 s | 4.0 s | 1e-09, 2e-09 | 1e-09, 2e-09 | – | 200 ms | 4.0 s |" in table
    ((_, ours, theirs),) = conditioning.headline(results(unit))
    assert "2e-09 sd" in ours
    assert "200 ms, 2e-08 sd" in theirs
    assert conditioning.headline(results()) == []


# ---------------------------------------------------------------------- decoupled


def training(model: str, *marks: float, **scores: float) -> dict[str, Any]:
    looks = [
        {"mark": mark, "seconds": mark + 1, "steps": 10, "step_seconds": 0.1, "bound": -0.3, **SCORES, **scores}
        for mark in marks
    ]
    return {"data": "kin40k", "model": model, "n": 100, "d": 2, "marks": looks, "megabytes": 1.0}


def test_trainings_are_compared_at_common_times(tmp_path: Path) -> None:
    result = results(training("direct", 30, 60, rmse=0.1), training(decoupled.RIVAL, 30, bound=-0.2))
    table = shown(decoupled, result, tmp_path)
    assert "| kin40k | 100, 2 | 30 s | direct | **0.1000** | **-0.500** | -0.300 | 94.0% | 10 | 100 ms |" in table
    ((what, ours, theirs),) = decoupled.headline(result)
    assert "after 30 s" in what
    assert ours == "decoupled direct 0.100, -0.300"
    assert theirs == f"{decoupled.RIVAL} 0.200, -0.200"


@pytest.mark.parametrize("unit", [training("direct", 30), {"data": "kin40k", "model": "direct", "error": "no factor"}])
def test_a_half_done_training_is_shown(unit: dict[str, Any], tmp_path: Path) -> None:
    result = results(unit)
    assert ("30 s" if "marks" in unit else "- 0: no factor") in shown(decoupled, result, tmp_path)
    assert decoupled.headline(result) == []


def test_the_clock_stands_still_while_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(decoupled.time, "perf_counter", lambda: now[0])
    clock = decoupled.Clock([2.0, 3.0, 5.0])

    def look() -> dict[str, float]:
        now[0] += 100
        return {}

    while not clock.before_step(look):
        now[0] += 1.5
    assert [(look["mark"], look["seconds"], look["steps"]) for look in clock.found] == [(3, 3, 2), (5, 6, 4)]


@pytest.mark.usefixtures("in_process")
def test_the_decoupled_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path, "kin40k")
    sizes = {"MARKS": (0.05, 0.1), "BATCH": 20, "SUBSET": 40, "MEAN_POINTS": 30, "COVAR_POINTS": 10, "SVGP_POINTS": 10}
    result = measured("decoupled", tmp_path, tmp_path, monkeypatch, DATA_SETS=("kin40k",), **sizes)
    for unit in result["units"].values():
        assert unit["marks"][-1]["mark"] == 0.1
        assert np.isfinite([look[key] for look in unit["marks"] for key in ("bound", *SCORES)]).all()
