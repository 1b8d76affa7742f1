"""Report how well a grid resolves the kernel of a fitted model."""

from botorch.models.model import Model

from bo_scale.models.wiski.grid_sizes import TOLERATED_SHARE
from bo_scale.models.wiski.model import WISKI


def coarse_grid(model: Model) -> str | None:
    """Describe how a model's grid is too coarse for its kernel, and the remedy; None if it is not.

    Args:
        model: Any model; only a WISKI has a grid.
    """
    share = model.interpolation_share if isinstance(model, WISKI) else 0.0
    if share <= TOLERATED_SHARE:
        return None
    return (
        f"the grid {model.grid.size} is too coarse for the fitted kernel. The interpolation error is "
        f"{100 * share:.3g} % of the noise variance, so predicted variances may be too small. Pass "
        f"model_options={{'grid_size': …}} with more points, or {{'conservative': True}}."
    )
