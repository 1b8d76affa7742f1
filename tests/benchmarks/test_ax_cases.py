"""Cases of Ax's client: what they say of made-up results, and tiny units of each."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import ax_overhead, ax_quality, report
from benchmarks.harness import run_case
from benchmarks.store import Store


@pytest.fixture
def _brief_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acquisition functions are optimised from few points."""
    for name, value in {"NUM_RESTARTS": 1, "RAW_SAMPLES": 4}.items():
        monkeypatch.setattr(f"ax.generators.torch.botorch_modular.optimizer_argparse.{name}", value)


def results(*units: dict[str, Any]) -> dict[str, Any]:
    return {"units": {f"{unit['problem']} {unit['model']} seed {unit['seed']}": unit for unit in units}}


def shown(module: Any, result: dict[str, Any], folder: Path) -> str:
    """The table, after the plots have been drawn."""
    module.plot(result, folder)
    assert {path.name for path in folder.iterdir()} == set(module.PLOTS)
    return module.table(result)


# ---------------------------------------------------------------------- overhead


def timed(model: str, total: float, fit: float, n: int = 1000) -> tuple[str, dict[str, Any]]:
    taken = {"total": total, "fit": fit, "acquisition": 0.1, "bookkeeping": total - fit - 0.1}
    slow = {part: 100.0 for part in taken}
    return f"d=3 n={n} {model}", {"model": model, "d": 3, "n": n, "first": taken, "trials": [taken, taken, slow]}


def test_refits_are_spread_over_trials(tmp_path: Path) -> None:
    units = dict([timed("default", 20.0, 18.0), timed("wiski streaming", 0.2, 0.01), timed("wiski refits", 25.2, 25.0)])
    table = shown(ax_overhead, {"units": units}, tmp_path)
    assert "| 3 | 1,000 | default | 20 s | 1.9 s | 18 s | 100 ms |  |  |  |" in table
    # 0.2 s and one fit of 25 s in 250 trials
    assert "| 3 | 1,000 | wiski streaming | 200 ms | 90 ms | 10 ms | 100 ms | 100× | 300 ms | 67× |" in table
    ((what, ours, rival),) = ax_overhead.headline({"units": units})
    assert "n = 1,000, d = 3" in what
    assert "200 ms, 100× less" in ours
    assert rival == "default 20 s"


@pytest.mark.parametrize("failed", [False, True])
def test_a_half_done_overhead_case_is_shown(failed: bool, tmp_path: Path) -> None:
    name, unit = timed("default", 20.0, 18.0, n=3000)
    if failed:
        del unit["trials"]
        unit["error"] = "the first trial alone took 700 s"
    table = shown(ax_overhead, {"units": {name: unit}}, tmp_path)
    assert ("700 s" if failed else "| 3 | 3,000 | default | 20 s |") in table
    assert ax_overhead.headline({"units": {name: unit}}) == []


@pytest.mark.usefixtures("_brief_search")
def test_the_overhead_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIZES": (12,), "DIMENSIONS": {1: "wiski"}, "REPEATS": 1, "HEADLINE": 12}.items():
        monkeypatch.setattr(ax_overhead, name, value)
    run_case("ax_overhead", None, folder=tmp_path)
    result = Store("ax_overhead", tmp_path).read()
    assert set(result["units"]) == {f"d=1 n=12 {model}" for model in ("default", "wiski streaming", "wiski refits")}
    for unit in result["units"].values():
        for trial in unit["trials"]:
            parts = [trial[part] for part in ("fit", "acquisition", "bookkeeping")]
            assert min(parts) > 0
            assert sum(parts) == pytest.approx(trial["total"], rel=1e-4)
    assert result["units"]["d=1 n=12 wiski streaming"]["stream"] == {"refitted": 1, "streamed": 1, "accumulated": 0}
    assert result["units"]["d=1 n=12 wiski refits"]["stream"] == {"refitted": 2, "streamed": 0, "accumulated": 0}
    assert f"## {ax_overhead.TITLE}" in report.render_tables({"ax_overhead": result})
    assert len(ax_overhead.headline(result)) == 1


def test_a_trial_too_slow_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ax_overhead, "LIMIT", 0.0)
    assert "first trial" in ax_overhead.measure("default", 2, 5)["error"]


# ---------------------------------------------------------------------- quality


def run(model: str, seed: int, last: float, **other: Any) -> dict[str, Any]:
    counts = {"CenterOfSearchSpace": 1, "Sobol": 6, "BoTorch": 53}
    regret = [2.0] * 59 + [last]
    return {"problem": "Gramacy", "model": model, "seed": seed, "regret": regret, "seconds": 2.0} | {
        "generators": counts,
        **other,
    }


def test_bounds_are_those_of_paired_differences(tmp_path: Path) -> None:
    ours = [run("wiski", seed, value) for seed, value in enumerate((0.5, 0.4, 0.6))]
    theirs = [run(ax_quality.DEFAULT, seed, value) for seed, value in enumerate((0.4, 0.4, 0.4, 0.1))]
    result = results(*ours, *theirs)
    found = ax_quality.difference(result, "Gramacy", "wiski")
    assert found is not None
    # of a range of 2; Student's t with 2 degrees of freedom
    assert found == pytest.approx((3, 5.0, 5.0 + 50 * 1.885618 * 0.1 / 3**0.5))
    table = shown(ax_quality, result, tmp_path)
    assert f"| Gramacy | wiski | 3 | 100.00 | 100.00 | 25.00 | +5.00 | {found[2]:+.2f} | 6 |" in table
    ((_, best, _),) = ax_quality.headline(result)
    assert f"Gramacy: {found[2]:+.2f} % of the range with `wiski` (3 seeds)" in best


def test_failed_runs_are_named_and_left_out(tmp_path: Path) -> None:
    result = results(run("wiski", 0, 0.5, regret=[2.0], error="RuntimeError at n = 7: no fit"))
    table = shown(ax_quality, result, tmp_path)
    assert "- Gramacy wiski seed 0: RuntimeError at n = 7: no fit" in table
    assert "| Gramacy | wiski |" not in table
    assert ax_quality.headline(result) == []


def test_a_run_may_end_with_any_block_of_seeds() -> None:
    names = list(ax_quality.units(None))
    assert len(names) == 20 * (3 * 7 - 1)
    assert all(int(name.split()[-1]) < 5 for name in names[: len(names) // 4])
    assert all("grief_bayes" in name for name in names[len(names) // 4 - 15 : len(names) // 4])
    assert not [name for name in names if name.startswith("Hartmann-6 wiski")]


def test_regrets_vanish_at_the_optimum() -> None:
    optimum = torch.tensor([[ax_quality.GRAMACY_OPTIMUM, 0.0, 1.0], [0.1, -0.1, 1.0]], dtype=torch.float64)
    assert ax_quality.feasible_regret(optimum) == 0
    assert ax_quality.feasible_regret(optimum[1:]) == 2.0 - ax_quality.GRAMACY_OPTIMUM
    best = ax_quality.HARTMANN._optimizers[0]
    observed = ax_quality.PROBLEMS["Hartmann-6"].observe(torch.tensor(best, dtype=torch.float64))
    assert ax_quality.hartmann_regret(observed.unsqueeze(0)) == pytest.approx(0, abs=1e-4)
    Y = torch.tensor([[17.0, 4.0], [16.0, 5.0], [20.0, 1.0]], dtype=torch.float64)
    largest = ax_quality.BRANIN_CURRIN.max_hv
    assert ax_quality.hypervolume_regret(Y) == pytest.approx(largest - 3.0)


@pytest.mark.usefixtures("_brief_search")
def test_the_quality_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ax_quality, "TRIALS", 6)
    monkeypatch.setattr(ax_quality, "MARKS", (3, 6))
    monkeypatch.setattr(ax_quality, "MODELS", (ax_quality.DEFAULT, "cagp"))
    for pattern in ("Branin-Currin * seed 0", "Gramacy cagp seed 0", "Hartmann-6 cagp seed 0"):
        run_case("ax_quality", None, folder=tmp_path, pattern=pattern)
    result = Store("ax_quality", tmp_path).read()
    assert len(result["units"]) == 4
    for unit in result["units"].values():
        assert "error" not in unit
        assert len(unit["regret"]) == 6
        assert unit["generators"] == {"CenterOfSearchSpace": 1, "Sobol": 4, "BoTorch": 1}
    pair = [result["units"][f"Branin-Currin {model} seed 0"]["regret"] for model in (ax_quality.DEFAULT, "cagp")]
    assert pair[0][:5] == pair[1][:5]
    assert f"## {ax_quality.TITLE}" in report.render_tables({"ax_quality": result})
    assert ax_quality.headline(result) == []  # of a single seed
