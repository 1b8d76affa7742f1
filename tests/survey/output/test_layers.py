import numpy as np
from pictures import UTM

from bo_scale.survey.geography.raster import Raster
from bo_scale.survey.output.layers import blocks, coarsening, grown, limits


def test_blocks_are_means_of_the_cells_inside() -> None:
    inside = np.random.default_rng(3).uniform(size=(7, 11)) < 0.6
    raster = Raster(0.0, 70.0, 10.0, inside, UTM)
    values = np.random.default_rng(4).normal(size=raster.count)
    image = raster.image(values)
    found = blocks(raster, values, 3)

    assert found.shape == (3, 4)
    for i, j in np.ndindex(3, 4):
        part = image[3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
        expected = part[~np.isnan(part)].mean() if (~np.isnan(part)).any() else np.nan
        np.testing.assert_allclose(found[i, j], expected)
    assert coarsening(raster, 77) == 1
    assert coarsening(raster, 20) == 2


def test_an_image_grows_by_one_cell() -> None:
    image = np.full((5, 6), np.nan)
    image[1, 1], image[1, 2], image[4, 5] = 1.0, 3.0, 7.0
    found = grown(image)

    np.testing.assert_array_equal(found[~np.isnan(image)], [1.0, 3.0, 7.0])
    np.testing.assert_array_equal(found[0], [1.0, 2.0, 2.0, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(found[:, 5], [np.nan, np.nan, np.nan, 7.0, 7.0])


def test_a_few_extremes_do_not_take_the_colours() -> None:
    values = np.append(np.linspace(0, 1, 1000), 500.0)

    assert limits(values)[1] < 1.01
    assert limits(values[:-1]) == (0.0, 1.0)
