"""Predictions of many cells by tiles: `bo-scale survey predict --workers N` or `--dask ADDRESS`."""

import argparse

from bo_scale.cli.executors import executor_of
from bo_scale.errors import SurveyError
from bo_scale.survey.paths import RASTER_ENDINGS, require_survey, require_target


def add_tile_arguments(group: argparse._ActionsContainer) -> None:
    """Add the options that say who makes the tiles."""
    add = group.add_argument
    add("--workers", type=int, metavar="N", help="processes of this machine that make the tiles")
    add("--dask", metavar="ADDRESS", help="address of a Dask scheduler whose workers make them: tcp://host:8786")


def is_tiled(given: argparse.Namespace) -> bool:
    """Return whether predictions are asked for by tiles."""
    return given.workers is not None or given.dask is not None


def write_tiles(given: argparse.Namespace) -> None:
    """Predict by tiles, into one GeoTIFF; say beforehand what it takes."""
    require_survey(given.survey)
    if given.workers is not None and given.dask is not None:
        raise SurveyError("--workers, --dask: tiles are made by processes of this machine or by Dask; give one.")
    if given.workers is not None and given.workers < 1:
        raise SurveyError(f"--workers {given.workers}: give 1 or more processes.")
    if len(given.out) > 1:
        raise SurveyError("--out: by tiles there is one GeoTIFF; give one file.")
    path = given.out[0]
    require_target(path, RASTER_ENDINGS, [given.survey])

    from bo_scale.survey import Survey

    survey = Survey(given.survey)
    options = {"intervals": given.prediction, "date": given.date}
    tiles = survey.tiles(given.cells, given.size, given.threshold, **options)
    with executor_of(given) as (executor, processes):
        print("\n".join([*survey.workspace.at_time(given.date).notes_on_date, tiles.costs.told(processes)]), flush=True)
        tiles.write(path, executor)
    print(f"Written: {path}, {tiles.costs.size:.4g} m a cell, {path.stat().st_size / 1e6:,.1f} MB")
    if tiles.overview.exceeding is not None:
        print(tiles.overview.exceeding.summary)
