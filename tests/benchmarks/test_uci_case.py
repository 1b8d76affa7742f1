"""The UCI case: its measures against numerical ones, the rivals on a small problem, tables of made-up results."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import kegg_errors, report, rivals, uci
from benchmarks.child import in_child, peak_megabytes
from benchmarks.harness import run_case
from benchmarks.rivals import Fitted
from benchmarks.store import Store

TINY = {"SVGP_POINTS": 20, "SVGP_EPOCHS": 60, "SVGP_BATCH": 64, "SVGP_RATE": 0.05, "SGPR_POINTS": 20, "SGPR_STEPS": 30}


def write_data(folder: Path, name: str = "skillcraft", n: int = 220) -> Tensor:
    """Inputs, one of them constant, of a smooth function with noise of standard deviation 1 in raw units."""
    g = torch.Generator().manual_seed(0)
    X = 3 + 5 * torch.rand(n, 3, generator=g, dtype=torch.float64)
    X[:, 2] = 7.0
    y = 100 + 10 * torch.sin(X[:, 0]) + X[:, 1] + torch.randn(n, generator=g, dtype=torch.float64)
    mask = (torch.arange(n) % 10).unsqueeze(-1) == torch.arange(10)
    np.savez(folder / f"{name}.npz", X=X.numpy(), y=y.numpy(), test_mask=mask.numpy())
    return y


def mean_of(X: Tensor, Y: Tensor) -> Fitted:
    """The model that knows the mean and variance of the targets only."""
    return Fitted(lambda Z: (Y.mean().expand(len(Z)), Y.var().expand(len(Z))), Y.var().item())


def failing(X: Tensor, Y: Tensor) -> Fitted:
    raise FloatingPointError("no factor of this matrix")


def test_scores_are_those_of_a_gaussian() -> None:
    g = torch.Generator().manual_seed(0)
    Y, mean, variance = torch.randn(50, generator=g), torch.randn(50, generator=g), 0.1 + torch.rand(50, generator=g)
    Y, mean, variance = Y.double(), mean.double(), variance.double()
    found = uci.scores(Y, mean, variance, unit=3.0)
    normal = torch.distributions.Normal(mean, variance.sqrt())
    assert found["nll"] == pytest.approx(-normal.log_prob(Y).mean().item())
    assert found["rmse_raw"] == pytest.approx(3 * (Y - mean).square().mean().sqrt().item())
    grid = torch.linspace(-12, 12, 40_001, dtype=torch.float64).unsqueeze(-1)
    crps = torch.trapezoid((normal.cdf(grid) - (grid >= Y).double()).square(), grid, dim=0).mean().item()
    assert found["crps"] == pytest.approx(crps, abs=1e-3)
    quantiles = [normal.icdf(torch.tensor(q, dtype=torch.float64)) for q in (0.25, 0.75)]
    assert found["coverage_50"] == ((quantiles[0] <= Y) & (quantiles[1] >= Y)).double().mean().item()


def test_a_constant_column_is_left_alone() -> None:
    values = torch.tensor([[1.0, 5.0], [3.0, 5.0], [100.0, 5.0]], dtype=torch.float64)
    scaled, unit = uci.standardised(values, torch.tensor([True, True, False]))
    assert unit.tolist() == [math.sqrt(2), 1.0]
    torch.testing.assert_close(scaled[:, 1], torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(scaled[2, 0].item(), 98 / math.sqrt(2))


@pytest.mark.parametrize("model", ["SGPR", "SVGP", "exact", "all rows"])
def test_rivals_learn_a_small_problem(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY.items():
        monkeypatch.setattr(rivals, name, value)
    y = write_data(tmp_path)
    found = uci.evaluate(tmp_path / "skillcraft.npz", uci.MODELS[model], 0)
    assert (found["n"], found["test"], found["d"]) == (198, 22, 3)
    assert found["rmse"] < 0.35
    assert found["rmse_raw"] == pytest.approx(found["rmse"] * y[torch.arange(220) % 10 != 0].std().item())
    assert found["coverage_95"] > 0.8
    assert 0 < found["noise"] < 0.2
    assert found["megabytes"] >= 0.99 * found["megabytes_before"] > 50  # the kernel counts pages approximately


def test_kmeans_takes_all_rows_where_there_are_few() -> None:
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    assert rivals.kmeans(X, 50).shape == (30, 2)
    assert rivals.kmeans(X, 10).shape == (10, 2)


def test_a_child_has_memory_of_its_own() -> None:
    here = torch.ones(400_000_000, dtype=torch.uint8)
    assert in_child(peak_megabytes) < peak_megabytes() - 0.5e-6 * len(here)


@pytest.mark.usefixtures("in_process")
def test_the_case_keeps_failures_and_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    monkeypatch.setattr(uci, "DATA_SETS", {"skillcraft": 2})
    monkeypatch.setattr(uci, "MODELS", {"SoftKI": failing, "SVGP": mean_of})
    run_case("uci", tmp_path, folder=tmp_path)
    result = Store("uci", tmp_path).read()
    assert set(result["units"]) == {f"skillcraft {each}" for each in ("SoftKI fold 0", "SoftKI fold 1", "SVGP fold 0")}
    shown = report.render_tables({"uci": result})
    assert "- skillcraft SoftKI fold 0: FloatingPointError: no factor of this matrix" in shown
    assert "| SVGP | 1 |" in shown
    assert uci.headline(result) == []


def test_rivals_of_large_sets_come_last_and_once() -> None:
    every = list(uci.units(None))
    assert every[0] == "skillcraft choose fold 0"
    assert every[-1] == "protein all rows fold 0"
    assert {"powerplant GRIEF fold 19", "pol SoftKI fold 2", "skillcraft exact fold 0"} <= set(every)
    assert not {"pol SoftKI fold 3", "pol SVGP fold 1", "pol exact fold 0"} & set(every)


def unit(model: str, rmse: float, nll: float, fold: int = 0) -> dict[str, Any]:
    scored = {"rmse": rmse, "rmse_raw": 2 * rmse, "nll": nll, "crps": 0.1, "coverage_50": 0.5, "coverage_95": 0.94}
    cost = {"noise": 0.1, "fit_seconds": 3.0, "predict_seconds": 0.1, "megabytes": 500.0, "megabytes_before": 300.0}
    return {"data": "pol", "model": model, "fold": fold, "n": 100, "d": 2, "test": 10, **scored, **cost}


def test_the_best_of_a_data_set_is_in_bold(tmp_path: Path) -> None:
    units = [
        unit("SoftKI", 0.2, -0.5),
        unit("SoftKI", 0.1, -0.7, fold=1),
        unit("SVGP", 0.3, -0.8),
        unit("SGPR", 0.4, 1),
    ]
    result = {"units": {str(i): each for i, each in enumerate(units)}}
    shown = uci.table(result)
    assert "| pol | 100, 2 | SoftKI | 2 | **0.150** | 0.3 | -0.600 |" in shown
    assert "| pol | 100, 2 | SVGP | 1 | 0.300 | 0.6 | **-0.800** |" in shown
    ((what, ours, theirs),) = uci.headline(result)
    assert "pol" in what
    assert (ours, theirs) == ("SoftKI 0.150 (94%)", "SVGP 0.300 (94%); SGPR 0.400 (94%)")
    uci.plot(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(uci.PLOTS)


def test_few_rows_may_have_most_of_the_squared_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kegg_errors.concentration(np.repeat([1.0, 100.0], [95, 5]))
    assert found["rmse"] == pytest.approx(math.sqrt(5.95))
    assert found["rmse_of_others"] == 1.0
    assert found["share"] == pytest.approx(500 / 595)
    assert found["deviation"] == pytest.approx(99 * math.sqrt(0.05 * 0.95 / 100) / (2 * math.sqrt(5.95)), rel=0.2)
    write_data(tmp_path, "keggundirected")
    monkeypatch.setattr(kegg_errors, "in_child_or_error", lambda unit, run, *a: unit | run(*a))
    run_case("kegg_errors", tmp_path, folder=tmp_path, pattern="* fold 1")
    assert "| GRIEF-II | 1 | 0." in kegg_errors.table(Store("kegg_errors", tmp_path).read())
