"""What all tests of surveys share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _few_scored() -> Iterator[None]:
    """Processes of the nearest sites are fitted to few; where that matters, tests say how many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bo_scale.survey.mapping.nearest.SCORED", 80)
        patch.setattr("bo_scale.survey.mapping.nearest.SPARSE", 60)
        patch.setattr("bo_scale.survey.mapping.nearest.STEPS", 15)
        yield
