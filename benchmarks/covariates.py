"""The survey's model with covariates against a random forest, regression kriging and GPBoost, on the same splits.

All sides have the same columns: coordinates in metres and covariates. The forest (scikit-learn) has 500 trees, and for
its intervals a normal error with the deviation of its out-of-bag errors. Regression kriging (PyKrige) is a linear
regression, and ordinary kriging of what it leaves. GPBoost has linear fixed effects and a Matérn-3/2 process, and once
more boosted trees instead of the linear effects. A side that is not installed is left out.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import text
from benchmarks.child import in_child_within
from benchmarks.fields import Array, scores
from benchmarks.harness import Unit, require_data
from benchmarks.store import Result
from bo_scale.survey.geography.coordinates import WGS84, metric_crs, to_metric
from bo_scale.survey.mapping.model import box_of, fit_model, predict
from bo_scale.survey.mapping.scales import scale_of
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.trend import Trend

TITLE = "Covariates"
SECONDS, MEGABYTES = 900.0, 6000
TEST = 1000
SETS = {"meuse": (5, 1.0, "log"), "hotspots_civ": (3, None, "logit"), "hotspots_mwi": (3, None, "logit")}
SETS |= {"mi_tsca": (3, 1000.0, "none")}
"""Seeds, metres of a unit of coordinates (None for degrees), and the scale of values, of every set."""
MOST = 800
"""Rows for training."""
TREES, ROUNDS = 500, 100


def units(data: Path | None) -> dict[str, Unit]:
    """One for every set and seed."""
    return {f"{s} seed {k}": partial(measure, data, s, k) for s, (seeds, *_) in SETS.items() for k in range(seeds)}


def measure(data: Path | None, name: str, seed: int) -> dict[str, Any]:
    """All sides on one split; of a side that fails, why."""
    _, metres, scale = SETS[name]
    with np.load(require_data(data, f"{name}.npz")) as arrays:
        X, y = arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    xy = to_metric(X[:, :2], WGS84, metric_crs(*X[:, :2].T)[0]) if metres is None else X[:, :2] * metres
    z, covariates = scale_of(scale).forward(y), X[:, 2:]
    order = np.random.default_rng(seed).permutation(len(z))
    held = min(TEST, len(z) // 4)
    train, test = order[held : held + MOST], order[:held]
    unit: dict[str, Any] = {"set": name, "n": len(train), "test": len(test), "seed": seed}
    for side, run in SIDES.items():
        unit[side] = _within_limits(run, *(part[rows] for rows in (train, test) for part in (xy, covariates, z)))
    return unit


def _within_limits(run: Any, *arrays: Array) -> dict[str, Any]:
    try:
        return dict(in_child_within(SECONDS, MEGABYTES, run, *arrays))
    except Exception as error:  # that a side fails is a result, and shown with its reason
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def ours(kind: str | None, xy: Array, c: Array, z: Array, places: Array, there: Array, values: Array) -> dict[str, Any]:
    """As `Survey` fits and predicts; without covariates if there is no kind."""
    start = time.perf_counter()
    trend = None if kind is None else Trend.of([f"c{k}" for k in range(c.shape[1])], [kind] * c.shape[1], c)
    sites = Sites(xy, z, None, covariates=None if kind is None else c)
    box = box_of(np.concatenate([xy, places]), (np.inf, np.inf, -np.inf, -np.inf))
    fit, model = fit_model(sites, box, trend=trend, beside=None if kind is None else lambda _: there)
    mean, sd = predict(model, fit, sites, places, False, None if kind is None else there)
    noise = fit.unit**2 * float(model.measurement_noise(0)) if fit.nearest is None else fit.nearest["noise"]
    return scores(values, mean, np.sqrt(np.square(sd) + noise)) | {"seconds": time.perf_counter() - start}


def forest(xy: Array, c: Array, z: Array, places: Array, there: Array, values: Array) -> dict[str, Any]:
    """A random forest of coordinates and covariates."""
    from sklearn.ensemble import RandomForestRegressor

    start = time.perf_counter()
    model = RandomForestRegressor(TREES, oob_score=True, random_state=0).fit(np.c_[xy, c], z)
    sd = float(np.sqrt(np.mean(np.square(z - model.oob_prediction_))))
    mean = model.predict(np.c_[places, there])
    return scores(values, mean, np.full(len(mean), sd)) | {"seconds": time.perf_counter() - start}


def regression_kriging(xy: Array, c: Array, z: Array, places: Array, there: Array, values: Array) -> dict[str, Any]:
    """PyKrige's, which gives no variances."""
    from pykrige.rk import RegressionKriging
    from sklearn.linear_model import LinearRegression

    start = time.perf_counter()
    unit, middle = c.std(0), c.mean(0)
    model = RegressionKriging(LinearRegression(), method="ordinary", variogram_model="spherical", n_closest_points=30)
    model.fit((c - middle) / unit, xy, z)
    off = model.predict((there - middle) / unit, places) - values
    return {"rmse": float(np.sqrt(np.mean(np.square(off)))), "seconds": time.perf_counter() - start}


def gpboost(trees: bool, xy: Array, c: Array, z: Array, places: Array, there: Array, values: Array) -> dict[str, Any]:
    """GPBoost, with linear effects or boosted trees."""
    import gpboost as gpb

    start = time.perf_counter()
    side, middle, unit = np.ptp(xy), c.mean(0), c.std(0)
    here, X = (xy - xy.mean(0)) / side, (c - middle) / unit
    at, new = (places - xy.mean(0)) / side, (there - middle) / unit
    model = gpb.GPModel(gp_coords=here, cov_function="matern", cov_fct_shape=1.5, likelihood="gaussian")
    if trees:
        data = gpb.Dataset(X, label=z)
        settings = {"learning_rate": 0.05, "max_depth": 3, "min_data_in_leaf": 10, "verbose": -1}
        booster = gpb.train(params=settings, train_set=data, gp_model=model, num_boost_round=ROUNDS)
        found = booster.predict(data=new, gp_coords_pred=at, predict_var=True, pred_latent=False)
        mean, variance = found["response_mean"], found["response_var"]
    else:
        model.fit(y=z, X=np.c_[np.ones(len(z)), X])
        found = model.predict(gp_coords_pred=at, X_pred=np.c_[np.ones(len(at)), new], predict_var=True)
        mean, variance = found["mu"], found["var"]
    return scores(values, mean, np.sqrt(variance)) | {"seconds": time.perf_counter() - start}


SIDES = {
    "without covariates": partial(ours, None),
    "linear": partial(ours, "linear"),
    "kernel": partial(ours, "kernel"),
    "forest": forest,
    "regression kriging": regression_kriging,
    "GPBoost, linear": partial(gpboost, False),
    "GPBoost, trees": partial(gpboost, True),
}
NAMES = {
    "without covariates": "`bo_scale` without covariates",
    "linear": "`bo_scale`, linear trend",
    "kernel": "`bo_scale`, trend and kernel",
    "forest": "random forest",
    "regression kriging": "PyKrige, regression kriging",
}


def _runs(result: Result, name: str, side: str) -> list[dict[str, Any]]:
    return [u[side] for u in result["units"].values() if u["set"] == name and "error" not in u[side]]


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    values = [run[key] for run in runs if key in run]
    return float(np.mean(values)) if values else float("nan")


def table(result: Result) -> str:
    """Scores of every side."""
    rows = []
    for name in SETS:
        for side in SIDES:
            runs = _runs(result, name, side)
            if runs:
                numbers = [_mean(runs, key) for key in ("rmse", "crps", "coverage_95")]
                shown = [
                    form.format(x) if np.isfinite(x) else "–"
                    for form, x in zip(("{:.4g}", "{:.4g}", "{:.1%}"), numbers)
                ]
                rows.append([name, NAMES.get(side, side), *shown, text.seconds(_mean(runs, "seconds")), str(len(runs))])
    header = ["Set", "Model", "RMSE", "CRPS", "in 95 %", "Time", "Splits"]
    said = (
        f"- All have the same columns and random splits: up to {MOST} rows for training, and a quarter, at most "
        f"{TEST:,}, for the test. Scores are of held-out measurements, means over splits, on the model's scale: log "
        "zinc, logit prevalence, hemlock present (1) or not (0).\n"
        "- The forest's intervals have the deviation of its out-of-bag errors everywhere. PyKrige gives none."
    )
    return f"{said}\n\n{text.table(header, rows)}"


def headline(result: Result) -> list[text.Row]:
    """RMSE beside the best rival's, at the worst set."""
    ratios = {}
    for name in SETS:
        own = min(_mean(_runs(result, name, side), "rmse") for side in ("linear", "kernel"))
        rivals = [_mean(_runs(result, name, side), "rmse") for side in list(SIDES)[3:]]
        if np.isfinite(own) and np.isfinite(rivals).any():
            ratios[name] = own / np.nanmin(rivals)
    if not ratios:
        return []
    worst = max(ratios, key=lambda name: ratios[name])
    return [
        ("RMSE with covariates relative to the best rival, four sets", f"at most {ratios[worst]:.3f} ({worst})", "1")
    ]
