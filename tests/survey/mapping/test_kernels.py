import pytest
import torch
from gpytorch.kernels import AdditiveKernel

from bo_scale.survey.mapping.kernels import KERNELS, SMOOTHNESS, TWO_SCALES, map_kernel, noise_likelihood, square_box


def test_priors_have_their_mode_where_fits_start() -> None:
    """Fits maximise the density in the parameter itself."""
    kernel = map_kernel("matern32", [], isotropic=True)
    for prior, at in (
        (kernel.base_kernel.lengthscale_prior, 0.2),
        (kernel.outputscale_prior, 1.0),
        (noise_likelihood().noise_covar.noise_prior, 0.2),
    ):
        density = prior.log_prob(at * torch.tensor([0.9, 1.0, 1.1]))
        assert density.argmax() == 1


@pytest.mark.parametrize("name", KERNELS[1:])
def test_lengthscales_are_at_least_a_cell(name: str) -> None:
    kernel = map_kernel(name, [[40, 20], [10, 8]], isotropic=False)
    assert isinstance(kernel, AdditiveKernel) == (name == TWO_SCALES)
    parts = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    for part, cell in zip(parts, (1 / 40, 1 / 10)):
        assert part.base_kernel.raw_lengthscale_constraint.lower_bound == pytest.approx(cell)
        assert part.base_kernel.lengthscale.shape == (1, 2)
    if name in SMOOTHNESS:
        assert kernel.base_kernel.nu == SMOOTHNESS[name]


def test_a_box_is_seen_in_a_square_of_one_unit() -> None:
    corners = torch.tensor([[100.0, 50.0], [300.0, 50.0], [100.0, 150.0]], dtype=torch.float64)
    wanted = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(square_box((100.0, 50.0, 300.0, 150.0))(corners), wanted)
