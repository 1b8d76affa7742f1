"""The survey's model against PyKrige's ordinary kriging and GPBoost: accuracy, calibration and time on the same splits.

PyKrige at its best: of its bounded variogram models, numbers of lags and weightings the one with the least error in
cross-validation on (at most) a thousand of the training rows; `exact_values=False`, so that values at a place are
measurements with a nugget; once with all rows and once with a moving window, whose size is chosen with the rest.
GPBoost with the smoothness of the greatest likelihood on (at most) `COMPARED` rows; exactly up to `EXACT` rows, else by
Vecchia's approximation with its default neighbours. Each side runs in a process of its own, within limits of time and
memory, on the same metric coordinates and the same scale. Splits are random, and for the satellite's field that of its
published comparison, where clouds hide the test.

References:
    M. J. Heaton et al. A case study competition among methods for analyzing large spatial data. JABES 2019.
"""

import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import in_child_within, peak_megabytes
from benchmarks.fields import Array, Rows, load_field, mask_of, scores
from benchmarks.harness import Unit
from benchmarks.kriging_report import TITLE, headline, table
from bo_scale.survey.mapping.model import box_of, fit_model, predict
from bo_scale.survey.mapping.sites import Sites

__all__ = ["TITLE", "headline", "table", "units"]

SECONDS, MEGABYTES = 300.0, 8000
"""Limits of each side of a unit."""
GPBOOST_SECONDS = 900.0
"""Its limit: long enough to see how much longer it takes."""
TEST = 2000
ALL = -1
"""Stands for all rows but those of the test."""
MASK = -2
"""Stands for all rows but those that the data set's own mask keeps for the test."""
SIZES: dict[str, dict[int, int]] = {
    "meuse": {ALL: 5},
    "jura": {ALL: 5},
    "satellite_temp": {500: 3, 2000: 3, 5000: 3, 10_000: 3, 20_000: 1, ALL: 1, MASK: 1},
    "shelikof_sst": {500: 3, 2000: 3, 5000: 3, ALL: 1},
    "malaria": {500: 3, 2000: 3, 5000: 3, 10_000: 3, 20_000: 1, 200_000: 1, ALL: 1},
}
"""Training rows of every field, with the number of seeds."""
VARIOGRAMS, LAGS, WEIGHTED = ("spherical", "exponential", "gaussian"), (6, 15, 50), (False, True)
WINDOWS = (30, 100)
FOLDS, VALIDATED = 5, 1000
SHAPES, COMPARED, EXACT = (0.5, 1.5, 2.5), 5000, 1000


def units(data: Path | None) -> dict[str, Unit]:
    """One for every field, number of rows and seed."""
    every = [(f, n, s) for f, sizes in SIZES.items() for n, seeds in sizes.items() for s in range(seeds)]
    named = {ALL: "all", MASK: "mask"}
    return {f"{f} n={named.get(n, n)} seed {s}": partial(measure, data, f, n, s) for f, n, s in every}


def measure(data: Path | None, field: str, n: int, seed: int) -> dict[str, Any]:
    """All sides on one split; of a side that fails, why."""
    xy, z = load_field(data, field)
    train, test = split_by(mask_of(data, field)) if n == MASK else split(len(z), n, seed)
    unit: dict[str, Any] = {"field": field, "n": len(train), "test": len(test), "seed": seed, "mask": n == MASK}
    for side, run, seconds in (
        ("ours", ours, SECONDS),
        ("pykrige", partial(pykrige, False), SECONDS),
        ("window", partial(pykrige, True), SECONDS),
        ("gpboost", gpboost, GPBOOST_SECONDS),
    ):
        unit[side] = within_limits(seconds, run, xy[train], z[train], xy[test], z[test])
    return unit


def split(count: int, n: int, seed: int) -> tuple[Rows, Rows]:
    """Rows for training and for the test: a quarter, or `TEST` where there are more."""
    order = np.random.default_rng(seed).permutation(count)
    held = min(TEST, count // 4)
    return order[held:] if n == ALL else order[held : held + n], order[:held]


def split_by(held: Array) -> tuple[Rows, Rows]:
    """Rows for training and for the test: those that a mask holds out."""
    return np.flatnonzero(held == 0), np.flatnonzero(held)


def within_limits(seconds: float, run: Any, *arrays: Array) -> dict[str, Any]:
    """What a side returns; its error where it fails or takes more than the limits."""
    try:
        return dict(in_child_within(seconds, MEGABYTES, run, *arrays))
    except ImportError as error:
        return {"error": f"not installed: {error}"}
    except Exception as error:  # that a side fails is a result, and shown with its reason
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def ours(xy: Array, z: Array, places: Array, values: Array) -> dict[str, Any]:
    """As `Survey` fits and predicts, with its own choice of kernel."""
    before, start = peak_megabytes(), time.perf_counter()
    everything = np.concatenate([xy, places])
    sites = Sites(xy, z, None)
    fit, model = fit_model(sites, box_of(everything, (np.inf, np.inf, -np.inf, -np.inf)))
    fitted = time.perf_counter()
    mean, sd = predict(model, fit, sites, places, progress=False)
    noise = fit.unit**2 * float(model.measurement_noise(0)) if fit.nearest is None else fit.nearest["noise"]
    sd = np.sqrt(np.square(sd) + noise)
    seconds = {"fit": fitted - start, "predict": time.perf_counter() - fitted}
    chosen = fit.kernel if fit.nearest is None else f"the nearest sites, {fit.nearest}"
    return scores(values, mean, sd) | {"seconds": seconds, "megabytes": peak_megabytes() - before, "chosen": chosen}


def pykrige(window: bool, xy: Array, z: Array, places: Array, values: Array) -> dict[str, Any]:
    """Chosen by cross-validation, then fitted to all rows.

    Raises:
        ImportError: without PyKrige.
    """
    import pykrige.ok  # noqa: F401  what its import takes is not counted

    before, start = peak_megabytes(), time.perf_counter()
    options, failed = choose(xy, z, WINDOWS if window else (None,))
    chosen = time.perf_counter()
    mean, variance, pseudo = krige(options, xy, z, places)
    seconds = {"choose": chosen - start, "fit and predict": time.perf_counter() - chosen}
    found = scores(values, mean, np.sqrt(np.maximum(variance, 1e-12)))  # at places of rows they are 0 but for rounding
    found |= {"options_that_fail": failed, "pseudo_inverse": pseudo}
    return found | {"seconds": seconds, "megabytes": peak_megabytes() - before, "chosen": options}


def gpboost(xy: Array, z: Array, places: Array, values: Array) -> dict[str, Any]:
    """A Gaussian process of GPBoost with a constant mean, its smoothness chosen by the likelihood.

    Raises:
        ImportError: without GPBoost.
    """
    import gpboost as library

    def fitted(shape: float, rows: Rows) -> Any:
        approximation = "none" if len(rows) <= EXACT else "vecchia"
        options = {"cov_function": "matern", "cov_fct_shape": shape, "gp_approx": approximation}
        model = library.GPModel(gp_coords=xy[rows], likelihood="gaussian", **options)
        model.fit(y=z[rows], X=np.ones((len(rows), 1)))
        return model

    before, start = peak_megabytes(), time.perf_counter()
    few = np.random.default_rng(0).permutation(len(z))[:COMPARED]
    likelihoods = {shape: -float(fitted(shape, few).get_current_neg_log_likelihood()) for shape in SHAPES}
    shape = max(likelihoods, key=lambda each: likelihoods[each])
    chosen = time.perf_counter()
    model = fitted(shape, np.arange(len(z)))
    found = model.predict(gp_coords_pred=places, X_pred=np.ones((len(places), 1)), predict_var=True)
    seconds = {"choose": chosen - start, "fit and predict": time.perf_counter() - chosen}
    described = {"seconds": seconds, "megabytes": peak_megabytes() - before, "chosen": {"shape": shape}}
    return scores(values, found["mu"], np.sqrt(found["var"])) | described


def choose(xy: Array, z: Array, windows: tuple[int | None, ...]) -> tuple[dict[str, Any], int]:
    """The options with the least error in cross-validation, and how many fail.

    Raises:
        RuntimeError: if none works.
    """
    rows = np.random.default_rng(0).permutation(len(z))[:VALIDATED]
    folds = np.arange(len(rows)) % FOLDS
    best: tuple[float, dict[str, Any]] | None = None
    failed = 0
    for variogram, lags, weight, closest in product(VARIOGRAMS, LAGS, WEIGHTED, windows):
        options = {"variogram_model": variogram, "nlags": lags, "weight": weight, "n_closest_points": closest}
        try:
            error = sum(_fold_error(options, xy[rows], z[rows], folds == fold) for fold in range(FOLDS))
        except (ValueError, np.linalg.LinAlgError):
            failed += 1
            continue
        if np.isfinite(error) and (best is None or error < best[0]):
            best = error, options
    if best is None:
        raise RuntimeError("no variogram could be fitted")
    return best[1], failed


def _fold_error(options: dict[str, Any], xy: Array, z: Array, out: Any) -> float:
    mean, *_ = krige(options, xy[~out], z[~out], xy[out])
    return float(np.square(mean - z[out]).sum())


def krige(options: dict[str, Any], xy: Array, z: Array, places: Array) -> tuple[Array, Array, bool]:
    """Means and variances of measurements at places, and whether the matrix is singular: then by its pseudo-inverse."""
    from pykrige.ok import OrdinaryKriging

    fitted = {key: value for key, value in options.items() if key != "n_closest_points"}
    closest = options["n_closest_points"]
    closest = None if closest is None else min(closest, len(z))
    backend = "vectorized" if closest is None else "C"
    for pseudo in (False, True):
        kriging = OrdinaryKriging(*xy.T, z, exact_values=False, pseudo_inv=pseudo, **fitted)
        try:
            mean, variance = kriging.execute("points", *places.T, backend=backend, n_closest_points=closest)
        except np.linalg.LinAlgError:
            continue
        return np.asarray(mean), np.asarray(variance), pseudo
    raise np.linalg.LinAlgError("the kriging matrix is singular")
