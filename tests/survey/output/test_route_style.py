import numpy as np
import pytest
from pictures import rgb

from bo_scale.survey.output.route_style import COLOURS, colour, dash

CONES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("cones", CONES)
def test_colours_of_routes_are_told_apart_by_the_colour_blind(cones: str) -> None:
    """CIELAB distances of what Machado, Oliveira and Fernandes (2009) say is seen; 2.3 is just noticeable."""
    levels = np.array([rgb(code) for code in COLOURS]) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(np.array(CONES[cones]) @ linear.T, 0, 1) / to_xyz.sum(1)[:, None])
    lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], -1)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(len(lab), 1)]

    assert apart.min() > 20


def test_routes_beyond_the_colours_differ_by_their_dashes() -> None:
    styles = [(colour(number), dash(number)) for number in range(18)]

    assert len(set(styles)) == 18
    assert all(pattern == () for _, pattern in styles[: len(COLOURS)])
