"""The error of matrices without a Cholesky factor. Import it from `bo_scale.errors`, like all others."""

from linear_operator.utils.errors import NotPSDError

from bo_scale.errors import BoScaleError


class NotPositiveDefiniteError(BoScaleError, NotPSDError):
    """A matrix without a Cholesky factor at the largest jitter.

    A subclass of linear_operator's NotPSDError, so that BoTorch's fit retries.
    """
