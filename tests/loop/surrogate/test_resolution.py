import torch
from botorch.models import SingleTaskGP

from bo_scale import WISKI
from bo_scale.loop.surrogate.resolution import coarse_grid


def data() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.rand(20, 1, dtype=torch.float64)
    return X, X.sin()


def test_a_grid_is_coarse_for_short_lengthscales_only() -> None:
    model = WISKI(*data(), grid_size=16)
    with torch.no_grad():
        model.covar_module.lengthscale = 2.0
        model.likelihood.noise = 0.1
    assert coarse_grid(model.eval()) is None
    other = WISKI(*data(), grid_size=16)
    with torch.no_grad():
        other.covar_module.lengthscale = 0.05
        other.likelihood.noise = 1e-3
    message = coarse_grid(other.eval())
    assert message is not None
    assert "the grid (16,) is too coarse" in message
    assert "grid_size" in message


def test_other_models_have_no_grid() -> None:
    assert coarse_grid(SingleTaskGP(*data())) is None
