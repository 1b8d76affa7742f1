import numpy as np
import pytest
import shapely
from pyproj import CRS, Transformer

from bo_scale.survey.geography.curves import on_map
from bo_scale.survey.geography.world import earth

UTM = CRS.from_epsg(32633)
WORLDS = [CRS.from_epsg(code) for code in (8857, 8858, 8859)]
EUROPE = CRS("+proj=laea +lat_0=50 +lon_0=10 +datum=WGS84")
FIJI = CRS("+proj=laea +lat_0=-18 +lon_0=180 +datum=WGS84")


def test_a_parallel_is_curved_as_the_map_curves_it() -> None:
    box = (300_000.0, 7_000_000.0, 700_000.0, 8_000_000.0)
    ((piece,),) = on_map([np.array([[9.0, 68.0], [21.0, 68.0]])], UTM, box)
    _, lat = Transformer.from_crs(UTM, 4326, always_xy=True).transform(*piece.T)
    inner = slice(1, -1)  # the ends are where the box cuts a straight piece
    np.testing.assert_allclose(lat[inner], 68.0, atol=1e-9)
    np.testing.assert_allclose(piece[[0, -1], 0], [300_000, 700_000], atol=1e-6)
    assert np.ptp(piece[:, 1]) > 500


def test_each_line_keeps_its_pieces_and_what_is_outside_has_none() -> None:
    box = (499_000.0, 5_800_000.0, 501_000.0, 5_801_000.0)
    through = np.array([[14.9, 52.352], [15.1, 52.352], [15.1, 52.353], [14.9, 52.353]])
    found = on_map(
        [np.array([[40.0, 10.0], [41.0, 11.0]]), through, np.array([[-165.0, -52.0], [-164.0, -52.0]])], UTM, box
    )
    assert [len(pieces) for pieces in found] == [0, 2, 0]
    assert on_map([], UTM, box) == []


@pytest.mark.parametrize("crs", WORLDS, ids=str)
def test_a_line_around_the_world_is_cut_at_the_edge_of_its_map(crs: CRS) -> None:
    outline = earth(crs).buffer(1.0)
    around = np.stack([np.linspace(-180, 180, 37), np.full(37, 40.0)], -1)
    jumping = np.array([[170.0, -20.0], [-170.0, -20.0], [-100.0, -25.0]])
    for pieces, long in zip(on_map([around, jumping], crs, earth(crs).bounds), (360.0, 90.0)):
        assert all(shapely.covers(outline, shapely.LineString(piece)) for piece in pieces)
        width = sum(np.linalg.norm(np.diff(piece, axis=0), axis=-1).sum() for piece in pieces)
        assert 0.6 < width / (long * 111_195) < 1.05


@pytest.mark.parametrize("crs", [UTM, EUROPE, FIJI], ids=["utm", "europe", "fiji"])
def test_no_line_leaps_across_a_map(crs: CRS) -> None:
    """Lines all over the world, on maps that reach far beyond where they are true."""
    x = 500_000.0 if crs == UTM else 0.0
    half = 8e6
    box = (x - half, -half, x + half, half)
    lines = [np.stack([np.linspace(-180, 180, 721), np.full(721, lat)], -1) for lat in range(-85, 90, 5)]
    lines += [np.stack([np.full(361, lon), np.linspace(-90, 90, 361)], -1) for lon in range(-180, 180, 15)]
    pieces = [piece for found in on_map(lines, crs, box) for piece in found]
    assert len(pieces) > 30
    assert max(np.linalg.norm(np.diff(piece, axis=0), axis=-1).max() for piece in pieces) < 4.1 * 0.5 * 111_700
    assert np.isfinite(np.concatenate(pieces)).all()


def test_a_line_across_the_antimeridian_is_one_piece() -> None:
    box = (-300_000.0, -300_000.0, 300_000.0, 300_000.0)
    (one,), (same,) = on_map(
        [np.array([[179.0, -18.0], [-179.0, -18.0]]), np.array([[179.0, -18.0], [181.0, -18.0]])], FIJI, box
    )
    np.testing.assert_allclose(one, same)
    assert one[0, 0] < -100_000 < 100_000 < one[-1, 0]
