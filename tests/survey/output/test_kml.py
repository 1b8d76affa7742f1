from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyogrio
import pytest
from pyproj import CRS, Transformer
from waypoints import DEPOTS, HARM, day

from bo_scale.survey.output.gpx import Waypoint
from bo_scale.survey.output.kml import write_kml

KML = "{http://www.opengis.net/kml/2.2}"


@pytest.mark.parametrize("where", DEPOTS)
def test_every_place_is_where_it_was_and_in_its_order(tmp_path: Path, where: str) -> None:
    crs, depot = DEPOTS[where]
    routes, known = day(depot)
    write_kml(routes, known, crs, tmp_path / "day.kml")
    marks = list(ElementTree.parse(tmp_path / "day.kml").iter(f"{KML}Placemark"))
    assert [mark.findtext(f"{KML}name") for mark in marks] == [
        "P1",
        "P2",
        "P3",
        "Harbour",
        "Day 2, team 1",
        "Day 2, team 2",
    ]
    assert marks[0].findtext(f"{KML}description") == "predicted 0.5"
    assert marks[4].findtext(f"{KML}description") == "1,234.2 km, 6.1 h"
    transform = Transformer.from_crs(crs, 4326, always_xy=True).transform
    for mark, xy in zip(marks, [*(place.xy[None] for place in known), *(route.line for route in routes)]):
        text = next(mark.iter(f"{KML}coordinates")).text or ""
        found = np.array([list(map(float, place.split(",")[:2])) for place in text.split()])
        np.testing.assert_allclose(found, np.stack(transform(*xy.T), -1), atol=1e-6, rtol=0)


def test_names_are_escaped_and_another_reader_finds_them(tmp_path: Path) -> None:
    crs, depot = DEPOTS["utm"]
    write_kml([], [Waypoint(HARM + "\x01", depot, HARM)], crs, tmp_path / "a.kml")
    ElementTree.parse(tmp_path / "a.kml")
    frame = pyogrio.read_dataframe(tmp_path / "a.kml")
    texts = frame.rename(columns=str.lower)
    assert list(texts["name"]) == list(texts.description) == [HARM]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.kml").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("bo_scale.survey.output.kml.pyogrio.write_dataframe", fail)
    with pytest.raises(OSError, match="disk full"):
        write_kml([], [Waypoint("P1", np.zeros(2))], CRS.from_epsg(32633), tmp_path / "a.kml")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
