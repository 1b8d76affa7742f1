import pytest


@pytest.fixture(autouse=True)
def _short(short_unless_whole: None) -> None:
    """Fits and searches of the benchmarks' tests are short."""
