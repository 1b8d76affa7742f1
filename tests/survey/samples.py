"""Tables, areas and surveys that tests of surveys share."""

import shutil
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from pyproj import Transformer

from bo_scale.survey import Survey

AREA = shapely.box(5.70, 50.95, 5.78, 51.00).difference(shapely.box(5.74, 50.97, 5.76, 50.99))
UTM = Transformer.from_crs(4326, 32631, always_xy=True)


def field(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    return np.asarray(5 + np.sin((lon - 5.7) * 90) + np.cos((lat - 50.95) * 110))


def metres(frame: pd.DataFrame) -> np.ndarray:
    return np.stack(UTM.transform(frame.lon.to_numpy(), frame.lat.to_numpy()), -1)


def sites_table(n: int = 48, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    lon, lat = rng.uniform(5.70, 5.78, 4 * n), rng.uniform(50.95, 51.00, 4 * n)
    inside = shapely.intersects_xy(AREA, lon, lat)
    lon, lat = lon[inside][:n].round(6), lat[inside][:n].round(6)
    zinc = np.exp(field(lon, lat) / 2 + 0.05 * rng.normal(size=n))
    return pd.DataFrame({"lon": lon, "lat": lat, "zinc": zinc.round(3)})


def write(folder: Path, name: str, frame: pd.DataFrame) -> Path:
    frame.to_csv(folder / name, index=False)
    return folder / name


def write_area(folder: Path, shape: Any = AREA, name: str = "area.geojson") -> Path:
    gpd.GeoDataFrame(geometry=[shape], crs=4326).to_file(folder / name, driver="GeoJSON")
    return folder / name


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("crash")


def filled(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """With measurements of some sites, by id."""
    done = table.copy().astype({"zinc": object})
    for name, value in values.items():
        done.loc[done.site == name, "zinc"] = value
    return done


def copied(source: Path, folder: Path) -> Survey:
    return Survey(shutil.copy(source, folder / source.name))


def people_inside(survey: Survey, dutch: Path) -> pd.DataFrame:
    people = pd.read_csv(dutch / "weights.csv")
    return people[survey.region.contains(people[["x", "y"]].to_numpy())]


def saved(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "sites.csv"
    path.write_bytes(text.encode(encoding))
    return path
