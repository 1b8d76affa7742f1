import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import PeriodicKernel

from bo_scale import GRIEF, WISKI, CaGP, SoftKI, draw_posterior_functions

MODELS = {
    "WISKI": lambda X, Y: WISKI(X, Y, grid_size=8),
    "SoftKI": lambda X, Y: SoftKI(X, Y, num_interpolation_points=8, epochs=1, progress=False),
    "GRIEF": lambda X, Y: GRIEF(X, Y, num_eigenfunctions=10, grid_points=5),
    "CaGP": lambda X, Y: CaGP(X, Y, num_actions=8, epochs=1, progress=False),
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.rand(20, 2, dtype=torch.float64)
    return X, X.sin().sum(-1, keepdim=True)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_draw_is_a_function_whatever_it_is_evaluated_with(name: str) -> None:
    paths = draw_posterior_functions(MODELS[name](*data()), torch.Size([3]))
    Z = torch.rand(6, 2, dtype=torch.float64)
    together = paths(Z)
    assert together.shape == (3, 6)
    torch.testing.assert_close(torch.cat([paths(Z[:2]), paths(Z[2:])], -1), together)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_generator_decides_the_draws(name: str) -> None:
    model, Z = MODELS[name](*data()), torch.rand(4, 2, dtype=torch.float64)
    one, same = (draw_posterior_functions(model, torch.Size([2]), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one(Z), same(Z))


def test_botorch_draws_by_these_functions() -> None:
    paths = draw_matheron_paths(MODELS["WISKI"](*data()), torch.Size([2]))
    assert type(paths).__module__ == "bo_scale.decisions.paths"


def test_kernels_without_fourier_features_are_refused() -> None:
    X, Y = data()
    model = CaGP(X, Y, num_actions=4, epochs=0, covar_module=PeriodicKernel(), progress=False)
    with pytest.raises(UnsupportedError, match="PeriodicKernel has no Fourier features"):
        draw_posterior_functions(model, torch.Size([1]))
