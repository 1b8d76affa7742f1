import warnings

import pytest


@pytest.fixture(autouse=True)
def _coarse_grids(_seed_and_strict_warnings: None) -> None:
    """Grids of the tests are small, for speed: that they are coarse for a kernel is no news."""
    from bo_scale.errors import InterpolationWarning

    warnings.simplefilter("ignore", InterpolationWarning)


@pytest.fixture(autouse=True)
def _short(short_unless_whole: None) -> None:
    """Fits and searches of the loop's tests are short."""
