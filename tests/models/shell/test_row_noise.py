import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from cases import cagp, data, decoupled, rand, randn
from gpytorch.utils.warnings import NumericalWarning
from torch import Tensor

from bo_scale import WISKI
from bo_scale.errors import InvalidDataError
from bo_scale.models.shell.row_noise import RowNoise, relative_noise
from bo_scale.models.shell.rows import Rows

SCALE = torch.tensor([0.5, 0.2], dtype=torch.float64)


def rows(n: int, m: int) -> Rows:
    return Rows.of(rand(n, 2), randn(n, m), 0.1 + rand(n, m))


def test_the_variances_are_those_of_the_rows_as_gpytorch_has_them() -> None:
    one, two = rows(3, 1), rows(3, 2)
    assert torch.equal(RowNoise(one).noise, one.D[:, 0])
    assert torch.equal(RowNoise(two).noise, two.D.mT)
    assert RowNoise(rows(0, 1)).noise.shape == (0,)
    found = RowNoise(one)
    found.rows = one.append(*(values[:1] for values in (one.X, one.Y, one.D)))
    assert len(found.noise) == 4


def test_without_rows_it_is_the_mean_which_moves_with_the_model() -> None:
    found = RowNoise(None)
    found.mean = torch.tensor([0.3]).double()
    assert found.noise is found.mean
    assert found.float().noise.dtype == torch.float32
    kept = rows(3, 1)
    assert RowNoise(kept).float().noise.dtype == torch.float64  # the model moves its rows itself


def test_noise_is_relative_to_what_is_learned() -> None:
    Y, noise = randn(4, 3, 2), 0.1 + rand(4, 3, 2)
    torch.testing.assert_close(relative_noise(Y, noise, SCALE), noise / SCALE)
    single = relative_noise(Y.float(), noise.float(), SCALE)
    assert single.dtype == torch.float64


@pytest.mark.parametrize("scale", [SCALE, None], ids=["learned", "known"])
def test_noise_that_is_not_given_is_learned_or_refused(scale: Tensor | None) -> None:
    Y = randn(4, 3, 2)
    if scale is None:
        with pytest.raises(UnsupportedError, match="noise: this model was given train_Yvar"):
            relative_noise(Y, None, scale)
    else:
        assert torch.equal(relative_noise(Y, None, scale), torch.ones(4, 1, 2).double())


def test_known_noise_is_absolute_and_not_below_botorchs_smallest() -> None:
    Y, noise = randn(3, 1), torch.tensor([[0.3], [0.2], [0.1]]).double()
    assert torch.equal(relative_noise(Y, noise, None), noise)
    with pytest.warns(NumericalWarning, match="Very small noise"):
        found = relative_noise(Y, torch.zeros(3, 1).double(), None)
    assert (found > 0).all()


@pytest.mark.parametrize("batch", [(), (1,)], ids=["streamed", "fantasies"])
@pytest.mark.parametrize("build", [cagp, decoupled, lambda X, Y: WISKI(X, Y, grid_size=8)])
def test_no_model_takes_a_negative_variance(build, batch: tuple[int, ...]) -> None:
    """A covariance less a little noise may have a Cholesky factor: variances were then too small, without a word."""
    X, Y = data(10, 2)
    model = build(X, Y).eval()
    new = [values.reshape(*batch, 2, -1) for values in (0.9 * X[:2], Y[:2], torch.full((2, 1), -0.01).double())]
    with pytest.raises(InvalidDataError, match="noise: variances must be positive"):
        model.condition_on_observations(*new)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("keep", [True, False])
def test_fantasies_have_a_variance_for_each_value(m: int, keep: bool) -> None:
    """So that a likelihood of a model with fantasies fits its targets, as for BoTorch's models."""
    X, Y = data(10, 2, m)
    model = WISKI(X, Y, 0.1 + rand(10, m), grid_size=8, keep_data=keep).eval()
    one = model.condition_on_observations(X[:3].unsqueeze(0), randn(4, 1, 3, m), noise=torch.full((3, m), 0.3).double())
    two = one.condition_on_observations(X[3:5].unsqueeze(0), randn(4, 1, 2, m), noise=torch.full((2, m), 0.7).double())
    for fantasies in (one, two):
        noise = fantasies.likelihood.noise
        assert noise.shape == fantasies.train_targets.shape
        if keep:
            torch.testing.assert_close(noise[2, 0, ..., :10], model.likelihood.noise)
        torch.testing.assert_close(fantasies.mean_noise, model.mean_noise)
    assert torch.equal(two.likelihood.noise[..., -5:].unique(), torch.tensor([0.3, 0.7]).double())
    if m == 2:
        part = two.subset_output([1])
        assert part.likelihood.noise.shape == part.train_targets.shape
