import numpy as np
import pytest
from matplotlib.figure import Figure
from pyproj import CRS

from bo_scale.survey.geography.world import earth
from bo_scale.survey.output.frame import draw_frame, length_text, round_length
from bo_scale.survey.output.labels import boxes_overlap

UTM, WORLD = CRS.from_epsg(32633), CRS.from_epsg(8857)
NORWAY = CRS("+proj=laea +lat_0=69 +lon_0=17 +datum=WGS84")
NOWHERE = np.zeros((0, 2))


def panel(bounds: tuple[float, float, float, float]):  # type: ignore[no-untyped-def]
    axes = Figure(figsize=(5, 5), dpi=100).add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(bounds[0], bounds[2])
    axes.set_ylim(bounds[1], bounds[3])
    return axes


def drawn(crs: CRS, bounds: tuple[float, float, float, float], marks: np.ndarray = NOWHERE, alone: bool = True):  # type: ignore[no-untyped-def]
    axes = panel(bounds)
    taken = draw_frame(axes, crs, bounds, marks, alone)
    return axes, taken, [text.get_text() for text in axes.texts if text.get_text()]


def test_a_panel_has_labels_a_scale_bar_and_an_arrow_that_keep_apart() -> None:
    bounds = (480_000.0, 5_800_000.0, 520_000.0, 5_840_000.0)
    _, taken, texts = drawn(UTM, bounds)
    assert {"10 km", "N", "15.0° E"} <= set(texts)
    assert any(text.endswith("° N") for text in texts)
    for number, box in enumerate(taken):
        assert (box[:2] < box[2:]).all()
        assert not any(boxes_overlap(box, other) for other in taken[:number])
    _, _, texts = drawn(UTM, bounds, alone=False)
    assert not {"10 km", "N"} & set(texts)


@pytest.mark.parametrize("left", [True, False])
def test_the_scale_bar_keeps_away_from_sites(left: bool) -> None:
    bounds = (480_000.0, 5_800_000.0, 520_000.0, 5_840_000.0)
    marks = np.array([[483_000.0 if left else 517_000.0, 5_801_500.0]])
    _, taken, _ = drawn(UTM, bounds, marks)
    assert (taken[0][0] > 180) == left  # of 360 points


def test_a_map_without_one_north_or_one_scale_does_not_claim_one() -> None:
    _, _, texts = drawn(NORWAY, (-400_000.0, -300_000.0, 400_000.0, 300_000.0))
    assert "200 km" in texts
    assert "N" not in texts
    _, _, texts = drawn(NORWAY, (-5e6, -5e6, 5e6, 5e6))
    assert "2000 km in the middle" in texts
    _, _, texts = drawn(WORLD, earth(WORLD).bounds)
    assert not any("km" in text or text == "N" for text in texts)
    assert {"0°", "60° E", "120° W", "30° S"} <= set(texts)


@pytest.mark.parametrize(("most", "expected"), [(1.0, 1), (0.99, 0.5), (4999.0, 2000), (5000.0, 5000), (0.03, 0.02)])
def test_round_lengths(most: float, expected: float) -> None:
    assert round_length(most) == pytest.approx(expected)


def test_lengths_are_in_metres_or_kilometres() -> None:
    assert [length_text(metres) for metres in (0.5, 200.0, 1000.0, 50_000.0)] == ["0.5 m", "200 m", "1 km", "50 km"]
