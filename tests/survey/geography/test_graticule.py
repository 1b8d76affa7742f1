import numpy as np
import pytest
import shapely
from pyproj import CRS, Transformer

from bo_scale.survey.geography.graticule import meridians, parallels, step_of
from bo_scale.survey.geography.world import earth

MAPS = {
    "village": (CRS.from_epsg(32631), (700_000.0, 5_650_000.0, 705_000.0, 5_654_000.0)),
    "norway": (CRS.from_epsg(32633), (200_000.0, 7_300_000.0, 900_000.0, 7_900_000.0)),
    "fiji": (CRS("+proj=laea +lat_0=-18 +lon_0=180 +datum=WGS84"), (-3e5, -2.5e5, 3e5, 2.5e5)),
    "pole": (CRS("+proj=laea +lat_0=90 +lon_0=0 +datum=WGS84"), (-3e6, -3e6, 3e6, 3e6)),
    "garden": (CRS.from_epsg(32631), (500_000.0, 5_650_000.0, 500_030.0, 5_650_020.0)),
    "world": (CRS.from_epsg(8857), earth(CRS.from_epsg(8857)).bounds),
    "pacific": (CRS.from_epsg(8859), earth(CRS.from_epsg(8859)).bounds),
}


def degrees(text: str) -> float:
    number, _, side = text.replace("°", "").partition(" ")
    return float(number) * (-1 if side in ("S", "W") else 1)


@pytest.mark.parametrize("name", MAPS)
def test_lines_are_where_their_labels_say(name: str) -> None:
    crs, box = MAPS[name]
    back, size = Transformer.from_crs(crs, 4326, always_xy=True), max(box[2] - box[0], box[3] - box[1])
    frame = shapely.box(*box).buffer(1e-6 * size)
    for which, lines_of in enumerate((meridians, parallels)):
        found = lines_of(size / 4, crs, box)
        assert 2 <= len(found.lines) <= 26
        assert len({line.text for line in found.lines}) == len(found.lines)
        for line in found.lines:
            for piece in line.pieces:
                assert shapely.covers(frame, shapely.LineString(piece))
                at = back.transform(*piece[1:-1].T)[which]  # ends are cut by the box from straight lines
                off = np.abs((np.asarray(at) - degrees(line.text) + 180) % 360 - 180)
                assert name == "pole" or off.max(initial=0) < 1e-6, line.text


def test_the_labels_of_some_maps() -> None:
    def told(name: str) -> tuple[list[str], list[str]]:
        crs, box = MAPS[name]
        apart = max(box[2] - box[0], box[3] - box[1]) / 4
        return tuple([line.text for line in lines_of(apart, crs, box).lines] for lines_of in (meridians, parallels))

    assert told("fiji") == (
        ["178° E", "179° E", "180°", "179° W", "178° W"],
        ["20° S", "19° S", "18° S", "17° S", "16° S"],
    )
    assert told("world")[0] == [
        *(f"{lon}° W" for lon in (150, 120, 90, 60, 30)), "0°", *(f"{lon}° E" for lon in (30, 60, 90, 120, 150))
    ]  # fmt: skip
    assert told("world")[1] == told("pacific")[1] == ["60° S", "30° S", "0°", "30° N", "60° N"]
    assert told("pacific")[0][:2] == ["0°", "30° E"]
    assert told("pole")[1] == ["60° N", "70° N", "80° N"]
    assert len(told("pole")[0]) == 12
    assert set(told("village")[1]) >= {"50.98° N", "50.99° N"}
    assert all(text.endswith("° E") and len(text) == len("3.0001° E") for text in told("garden")[0])


@pytest.mark.parametrize(
    ("most", "step"),
    [
        (200.0, 30.0),
        (30.0, 30.0),
        (29.0, 10.0),
        (4.9, 2.0),
        (1.0, 1.0),
        (0.99, 0.5),
        (0.5, 0.5),
        (0.013, 0.01),
        (1e-4, 1e-4),
    ],
)
def test_steps_are_round(most: float, step: float) -> None:
    assert step_of(most) == pytest.approx(step)
