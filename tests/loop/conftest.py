import warnings

import pytest


@pytest.fixture(autouse=True)
def _coarse_grids(_seed_and_strict_warnings: None) -> None:
    """Grids of the tests are small, for speed: that they are coarse for a kernel is no news."""
    from bo_scale.errors import InterpolationWarning

    warnings.simplefilter("ignore", InterpolationWarning)


@pytest.fixture(autouse=True)
def _short_unless_whole(request: pytest.FixtureRequest) -> None:
    """Fits and searches of these tests are short, but for those that ask for `whole_fits`."""
    if "whole_fits" not in request.fixturenames:
        request.getfixturevalue("short_fits")


@pytest.fixture
def whole_fits() -> None:
    """Fits and searches go on to their ends, which matter."""
