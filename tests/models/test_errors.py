import botorch.exceptions.errors as botorch_errors
import pytest

from bo_scale.errors import BoScaleError
from bo_scale.models.errors import FitError, UnsupportedError


@pytest.mark.parametrize(
    ("error", "botorchs"),
    [(UnsupportedError, botorch_errors.UnsupportedError), (FitError, botorch_errors.ModelFittingError)],
)
def test_errors_are_ours_and_botorchs_too(error: type[Exception], botorchs: type[Exception]) -> None:
    for caught in (BoScaleError, botorchs):
        with pytest.raises(caught, match="the remedy"):
            raise error("the remedy")
