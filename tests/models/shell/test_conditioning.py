from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.models.utils.assorted import fantasize
from cases import MODELS, data

from bo_scale.models.shell.conditioning import fantasised, new_inputs, streamed
from bo_scale.models.shell.lending import borrows

KINDS = ("WISKI-2d", "SoftKI-2d", "GRIEF-2d", "CaGP-1d", "Decoupled-2d")
ALL = pytest.mark.parametrize(("d", "build"), [each for each in MODELS if each.id in KINDS])


def seen_and_new(d: int) -> tuple[Any, ...]:
    """Rows, two more with their noise, and points."""
    X, Y = data(16, d)
    return X[:12], Y[:12], X[12:14], Y[12:14], torch.tensor([[1.0], [4.0]], dtype=torch.float64), X[14:]


@ALL
def test_streamed_rows_are_rows_of_the_new_model_alone(d: int, build: Any) -> None:
    X, Y, x, y, D, Z = seen_and_new(d)
    model = build(X, Y, outcome_transform=None).eval()
    before = model.posterior(Z).mean
    child = streamed(model, x, x, y, D)
    assert borrows(child)
    assert torch.equal(child.rows.X, torch.cat([X, x]))
    assert torch.equal(child.rows.D[-2:], D)
    assert child.num_observations == 14
    assert model.num_observations == 12
    assert torch.equal(model.posterior(Z).mean, before)
    assert not torch.equal(child.posterior(Z).mean, before)


@ALL
def test_fantasies_give_the_posterior_of_rows_but_are_none(d: int, build: Any) -> None:
    X, Y, x, y, D, Z = seen_and_new(d)
    model = build(X, Y, outcome_transform=None).eval()
    dreamt = fantasised(model, x, x, torch.stack([y, y + 1]), D)
    assert dreamt.batch_shape == (2,)
    assert dreamt.num_observations == 12
    assert dreamt.train_targets.shape == (2, 14)
    told = streamed(model, x, x, y, D)
    torch.testing.assert_close(dreamt.posterior(Z).mean[0], told.posterior(Z).mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(dreamt.posterior(Z).variance[0], told.posterior(Z).variance, rtol=1e-6, atol=1e-8)
    twice = fantasised(dreamt, Z, Z, y.new_zeros(3, 1, 2, 1), D)
    assert twice.batch_shape == (3, 2)
    assert twice.train_targets.shape == (3, 2, 16)


def test_inputs_of_fantasies_go_through_transforms_for_evaluation_only() -> None:
    (X, Y), build = data(12, 2), next(each for each in MODELS if each.id == "WISKI-2d").values[1]
    transform = Normalize(2, bounds=torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).to(X), transform_on_train=False)
    model = build(X, Y, input_transform=transform).eval()
    assert torch.equal(new_inputs(model, X), X)
    with fantasize():
        torch.testing.assert_close(new_inputs(model, X), (X + 1) / 2)
