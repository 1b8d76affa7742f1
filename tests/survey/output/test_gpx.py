import sys
from pathlib import Path
from typing import Any

import gpxpy
import numpy as np
import pyogrio
import pytest
from pyproj import Transformer
from waypoints import DEPOTS, HARM, UTM, day

from bo_scale.errors import SurveyError
from bo_scale.survey.output.gpx import write_gpx
from bo_scale.survey.routes.route import Route


def places(points: list) -> np.ndarray:
    return np.array([[point.longitude, point.latitude] for point in points])


@pytest.mark.parametrize("where", DEPOTS)
def test_every_place_is_where_it_was_and_in_its_order(tmp_path: Path, where: str) -> None:
    crs, depot = DEPOTS[where]
    routes, known = day(depot)
    write_gpx(routes, known, crs, tmp_path / "day.gpx")
    found = gpxpy.parse((tmp_path / "day.gpx").read_text("utf-8"))
    transform = Transformer.from_crs(crs, 4326, always_xy=True).transform

    def check(points: list[Any], xy: np.ndarray) -> None:
        np.testing.assert_allclose(places(points), np.stack(transform(*xy.T), -1), atol=1e-6, rtol=0)

    assert found.version == "1.1"
    assert found.creator == "bo_scale"
    assert [point.name for point in found.waypoints] == ["P1", "P2", "P3", "Harbour"]
    assert [point.description for point in found.waypoints] == [*(f"predicted {k}.5" for k in range(3)), None]
    assert [point.type for point in found.waypoints] == ["site", "site", "site", "depot"]
    check(found.waypoints, np.stack([place.xy for place in known]))
    assert (
        [one.name for one in found.routes] == [one.name for one in found.tracks] == ["Day 2, team 1", "Day 2, team 2"]
    )
    assert [one.description for one in found.routes] == ["1,234.2 km, 6.1 h", "4.5 km"]
    assert [[point.name for point in one.points] for one in found.routes] == [
        ["Harbour", "P2", "P1", "Harbour"],
        ["Start", "P3"],
    ]
    check(found.routes[0].points, routes[0].line[[0, 1, 3, 4]])
    check(found.routes[1].points, routes[1].line)
    for track, route in zip(found.tracks, routes):
        assert len(track.segments) == 1
        check(track.segments[0].points, route.line)


def test_another_reader_finds_the_same(tmp_path: Path) -> None:
    crs, depot = DEPOTS["utm"]
    write_gpx(*day(depot), crs, tmp_path / "day.gpx")

    assert set(pyogrio.list_layers(tmp_path / "day.gpx")[:, 0]) >= {"waypoints", "routes", "tracks", "route_points"}
    assert list(pyogrio.read_dataframe(tmp_path / "day.gpx", layer="waypoints").name) == ["P1", "P2", "P3", "Harbour"]
    tracks = pyogrio.read_dataframe(tmp_path / "day.gpx", layer="tracks")
    assert list(tracks.number) == [1, 2]
    metric = tracks.geometry.to_crs(crs)
    assert metric.iloc[0].length == pytest.approx(np.linalg.norm(np.diff(day(depot)[0][0].line, axis=0), axis=-1).sum())


def test_names_are_texts(tmp_path: Path) -> None:
    crs, depot = DEPOTS["utm"]
    routes, known = day(depot, HARM + "\x07\ud800\uffff")
    write_gpx(routes, known, crs, tmp_path / "day.gpx")
    found = gpxpy.parse((tmp_path / "day.gpx").read_text("utf-8"))

    assert found.waypoints[0].name == HARM
    assert found.routes[0].points[2].name == HARM
    assert pyogrio.read_dataframe(tmp_path / "day.gpx", layer="waypoints").name.iloc[0] == HARM


def test_a_way_back_from_nowhere_and_a_day_without_anything(tmp_path: Path) -> None:
    crs, depot = DEPOTS["utm"]
    idle = Route(1, 1, [], np.stack([depot, depot]), 0.0, 0.0)
    ends = Route(1, 2, ["P3"], np.stack([day(depot)[1][2].xy, depot + 9.0]), 1.0, None)
    write_gpx([idle, ends], day(depot)[1], crs, tmp_path / "day.gpx")
    found = gpxpy.parse((tmp_path / "day.gpx").read_text("utf-8"))
    assert [[point.name for point in one.points] for one in found.routes] == [["Harbour"], ["P3", "End"]]

    write_gpx([], [], crs, tmp_path / "day.gpx")
    assert gpxpy.parse((tmp_path / "day.gpx").read_text("utf-8")).waypoints == []


@pytest.mark.parametrize(
    ("kept", "twice", "message"), [(slice(1, None), 0, "P1, but there are 0"), (slice(None), 1, "P1, but there are 2")]
)
def test_a_site_needs_one_waypoint(tmp_path: Path, kept: slice, twice: int, message: str) -> None:
    crs, depot = DEPOTS["utm"]
    routes, known = day(depot)
    (tmp_path / "day.gpx").write_text("old")
    with pytest.raises(SurveyError, match=rf"waypoints: Day 2, team 1 needs exactly one named {message}"):
        write_gpx(routes, [*known[kept], *known[:twice]], crs, tmp_path / "day.gpx")
    assert (tmp_path / "day.gpx").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_without_gpxpy_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpxpy", None)
    with pytest.raises(ImportError, match=r"gpxpy: pip install 'bo_scale\[survey\]'"):
        write_gpx([], [], UTM, tmp_path / "day.gpx")
