"""Quantities measured over a map, in metres and on the scale on which both sides of a comparison model them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import grid
from benchmarks.harness import require_data
from bo_scale.survey.geography.coordinates import WGS84, metric_crs, to_metric
from bo_scale.survey.mapping.scales import scale_of

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Field:
    """A data set of places and values.

    Attributes:
        file: Its name.
        quantity: What was measured, for tables.
        metres: Of a unit of its coordinates; None where they are longitude and latitude.
        scale: Of its values, by the name that a survey gives it: skewed ones are modelled by their logarithm.
    """

    file: str
    quantity: str
    metres: float | None = None
    scale: str = "none"


FIELDS = {
    "meuse": Field("meuse.npz", "log zinc", 1.0, "log"),
    "jura": Field("jura.npz", "log cadmium", 1000.0, "log"),
    "satellite_temp": Field("satellite_temp.npz", "surface temperature, °C"),
    "shelikof_sst": Field("shelikof_sst.npz", "sea surface temperature, °C"),
    "malaria": Field("malaria_central_africa_2017.npz", "incidence"),
    "hotspots": Field("hotspots_mwi.npz", "logit prevalence", scale="logit"),
    "roads": Field("3droad_head5k.npz", "altitude along roads, m"),
}


def quantities(names: Iterable[str]) -> str:
    """What was measured in some fields, for the text of a table."""
    return "; ".join(f"{name}: {FIELDS[name].quantity}" for name in dict.fromkeys(names))


def load_field(data: Path | None, name: str) -> tuple[Array, Array]:
    """Places `n × 2` in metres and values `n` on their scale.

    Args:
        data: Folder of data sets.
        name: One of `FIELDS`.

    Raises:
        MissingDataError: if it is not there.
    """
    field = FIELDS[name]
    with np.load(require_data(data, field.file)) as arrays:
        xy, y = arrays["X"][:, :2].astype(np.float64), arrays["y"].astype(np.float64)
    metric = to_metric(xy, WGS84, metric_crs(*xy.T)[0]) if field.metres is None else xy * field.metres
    return metric, scale_of(field.scale).forward(y)


def mask_of(data: Path | None, name: str) -> Array:
    """1 for the rows that a data set holds out itself, else 0: `n`."""
    with np.load(require_data(data, FIELDS[name].file)) as arrays:
        return arrays["test_mask"].ravel().astype(np.float64)


def scores(z: Array, mean: Array, sd: Array) -> dict[str, float]:
    """Of Gaussian predictions of measurements, `M` each: rmse, crps, coverage_95 and the width of that interval."""
    found = grid.scores(*(torch.from_numpy(part) for part in (z, mean, np.square(sd))))
    return {key: found[key] for key in ("rmse", "crps", "coverage_95", "width")}
