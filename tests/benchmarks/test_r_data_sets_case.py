"""The case of data sets of R's packages: which problem a table is, and what the report says."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import r_data_sets
from benchmarks.r_data_sets import MODELS


def frame(rows: int = 80) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "rownames": np.arange(rows),
            "case": 1950.0 + np.arange(rows),
            "dose": random.integers(0, 5, rows),
            "sex": random.choice(["f", "m"], rows),
            "site": random.choice(["a", "b", "c"], rows),
            "name": [f"n{i}" for i in range(rows)],
            "constant": 3.0,
            "seldom": np.where(np.arange(rows) < 40, np.nan, 1.0),
            "weight": np.where(np.arange(rows) == 7, np.nan, random.normal(size=rows)),
            "treated": random.random(rows) < 0.5,
        }
    )


def test_a_table_is_a_problem() -> None:
    found = r_data_sets.problem(frame())
    assert found is not None
    target, X, y = found
    assert target == "weight"
    assert X.shape == (79, 6)  # dose, sex, three sites, treated
    assert y.shape == (79,)
    assert X.isfinite().all()


@pytest.mark.parametrize("columns", [["dose", "sex"], ["weight"], ["case", "name", "constant", "weight"]])
def test_other_tables_are_none(columns: list[str]) -> None:
    assert r_data_sets.problem(frame()[columns]) is None
    assert r_data_sets.problem(frame(50)) is None


def test_the_table_says_how_often_choose_is_better_and_what_failed() -> None:
    fit = {"rmse": 1.0, "nll": 1.0, "coverage": [0.5, 0.8, 0.95], "width": 4.0, "seconds": 1.0}
    better = {model: fit | {"nll": 0.0 if model == "choose" else 9.0} for model in MODELS}
    same = dict.fromkeys(MODELS, fit)
    failed = same | {"SoftKI": {"error": "FitError: …"}}
    models = {"a": better, "b": same, "c": failed}
    units = {
        "u": {"n": 50, "part": 0, "problems": {name: {"inputs": 2, "models": each} for name, each in models.items()}}
    }
    said = r_data_sets.table({"units": units})
    assert "3 problems with 50 rows (fits that failed, left out: `SoftKI` 1) and 0 problems with 200 rows" in said
    assert "| 50 | choose | 1.000 | 0.50 | 0.50 | 0.00 | 95 % | 4.00 | 1.0 s |  |  |" in said
    assert "| 50 | GRIEF | 1.000 | 3.00 | 5.00 | 2.50 | 95 % | 4.00 | 1.0 s | 50 % | 0 % |" in said
    ((_, ours, theirs),) = r_data_sets.headline({"units": units})
    assert ours == "`choose` 1.00, better in 33 %"
    assert theirs == "`SingleTaskGP` 1.00"
    assert r_data_sets.headline({"units": {}}) == []
