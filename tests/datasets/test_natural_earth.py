import numpy as np
import pytest

from bo_scale.datasets.natural_earth import SCALES, load_atlas, packed

ARCS = [[[2, 0], [0, 2]], [[2, 2], [-2, 0], [0, -2], [2, 0]], [[2, 2], [2, 0], [0, -2], [-2, 0]]]
TWO_COUNTRIES = {
    "transform": {"scale": [0.5, 0.25], "translate": [-10.0, 20.0]},
    "arcs": ARCS,
    "objects": {
        "countries": {
            "geometries": [{"type": "Polygon", "arcs": [[0, 1]]}, {"type": "MultiPolygon", "arcs": [[[0, 2]]]}]
        },
        "land": {"geometries": [{"type": "MultiPolygon", "arcs": [[[1, ~2]]]}]},
    },
}
"""Squares beside each other: arc 0 is their border, arcs 1 and 2 are their coasts."""


def test_borders_are_what_two_countries_share_and_coasts_are_joined_to_rings() -> None:
    found = packed(TWO_COUNTRIES)
    assert found["land"].cumsum(0).tolist() == [[2, 2], [0, 2], [0, 0], [2, 0], [4, 0], [4, 2], [2, 2]]
    assert found["borders"].cumsum(0).tolist() == [[2, 0], [2, 2]]
    assert (found["rings"].tolist(), found["parts"].tolist(), found["lines"].tolist()) == ([7], [1], [2])
    assert found["quantum"].tolist() == [[0.5, 0.25], [-10.0, 20.0]]


@pytest.mark.parametrize("scale", SCALES)
def test_the_world_that_ships(scale: str) -> None:
    atlas = load_atlas(scale)
    assert load_atlas(scale) is atlas
    assert len(atlas.land) > 100
    assert len(atlas.borders) > 300
    rings = [ring for rings in atlas.land for ring in rings]
    for lines in (rings, atlas.borders):
        assert (np.abs(np.concatenate(lines)) <= [180.001, 90.0]).all()
        assert min(map(len, lines)) > 1
    assert all((ring[0] == ring[-1]).all() for ring in rings)
    assert sum(map(len, rings)) > {"50m": 60_000, "110m": 5_000}[scale]
