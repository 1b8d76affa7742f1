"""States of surveys, to write and to compare."""

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from pyproj import CRS

from bo_scale.survey.store.geopackage import State

LAMBERT = CRS.from_proj4("+proj=laea +lat_0=52.12 +lon_0=-170.33 +datum=WGS84 +units=m +no_defs")


def sites(xy: np.ndarray, crs: CRS, **columns: object) -> gpd.GeoDataFrame:
    n = len(xy)
    frame = {
        "number": np.arange(n),
        "value": np.linspace(0.1, 0.9, n) / 3.0,
        "error": np.full(n, np.nan),
        "of": np.full(n, np.nan),
        "site": [""] * n,
        "file": ["first.csv"] * n,
        "row": np.arange(n) + 2,
        "text": [f'{k},"a, b",ü' for k in range(n)],
        "batch": np.full(n, -1),
    }
    return gpd.GeoDataFrame({**frame, **columns}, geometry=shapely.points(xy), crs=crs)


def planned(xy: np.ndarray, crs: CRS) -> gpd.GeoDataFrame:
    n = len(xy)
    frame = {
        "site": pd.Series([f"P{k + 1}" for k in range(n)], dtype="str"),
        "name": pd.Series([""] * n, dtype="str"),
        "batch": np.zeros(n, dtype=np.int64),
        "status": pd.Series(["planned"] * n, dtype="str"),
        "score": np.linspace(0.0, 1.0, n),
    }
    return gpd.GeoDataFrame(frame, geometry=shapely.points(xy), crs=crs)


def small(generation: int = 0, n: int = 5) -> State:
    """A state that says its generation in all its parts."""
    rng = np.random.default_rng(generation)
    crs = CRS.from_epsg(4326)
    area = shapely.MultiPolygon([shapely.box(0, 0, 1, 1).difference(shapely.box(0.4, 0.4, 0.6, 0.6))])
    rejected = pd.DataFrame(
        {"file": ["a.csv"], "row": [7], "text": ["x;;,\n\"'"], "reason": [f"generation {generation}"]}
    )
    return State(
        {
            "generation": generation,
            "seed": 7,
            "name": "Zink ü",
            "nested": {"a": [1.5, None, True]},
            "lambda": 0.1 + 0.2,
        },
        sites(rng.random((n, 2)), crs, number=np.arange(n) + generation),
        gpd.GeoDataFrame(geometry=[area], crs=LAMBERT),
        None,
        None,
        None,
        planned(rng.random((3, 2)), crs),
        rejected,
    )


def assert_same(a: State, b: State) -> None:
    assert a.settings == b.settings
    for name in ("sites", "area", "forbidden", "candidates", "weights", "planned", "rejected"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert_same_frame(one, other)


def assert_same_frame(a: pd.DataFrame, b: pd.DataFrame) -> None:
    assert list(a.columns) == list(b.columns)
    assert len(a) == len(b)
    for column in a.columns:
        if column == "geometry":
            assert a.crs == b.crs
            assert [shape.wkb for shape in a.geometry] == [shape.wkb for shape in b.geometry]
        elif a[column].dtype.kind == "f":
            np.testing.assert_array_equal(a[column].to_numpy(), b[column].to_numpy())
        else:
            assert a[column].tolist() == b[column].tolist(), column
