import torch

from bo_scale import WISKI, CaGP
from bo_scale.decisions.model_parts import (
    known_rows_of,
    measurement_noise_of,
    observe_transformed,
    processes_of,
    rows_of,
    set_rows,
    transformed_dimension_of,
    weighs_by_age,
)
from bo_scale.models.shell.rows import Rows


def data(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.rand(n, 2, dtype=torch.float64)
    return X, X.sum(-1, keepdim=True)


def test_rows_are_those_of_the_data_or_none() -> None:
    X, Y = data()
    model = WISKI(X, Y, grid_size=8, outcome_transform=None)
    assert torch.equal(rows_of(model).Y, Y)
    assert known_rows_of(WISKI(X, Y, grid_size=8, keep_data=False)) is None
    flipped = Rows.of(X.flip(0), Y.flip(0), torch.ones_like(Y))
    set_rows(model, flipped)
    assert rows_of(model) is flipped


def test_observing_is_conditioning_in_the_units_of_the_model() -> None:
    X, Y = data()
    model = WISKI(X[:9], Y[:9], grid_size=8, outcome_transform=None).eval()
    model.posterior(X)
    seen = observe_transformed(model, X[9:], Y[9:], torch.ones_like(Y[9:]))
    whole = model.condition_on_observations(X[9:], Y[9:])
    torch.testing.assert_close(seen.posterior(X).mean, whole.posterior(X).mean)
    assert rows_of(model).count == 9


def test_parts_that_decisions_read() -> None:
    X, Y = data()
    model = WISKI(X, Y, grid_size=8, outcome_transform=None).eval()
    assert len(processes_of(model)) == 1
    torch.testing.assert_close(measurement_noise_of(model, 0), model.likelihood.noise.squeeze())
    assert not weighs_by_age(model)
    assert weighs_by_age(WISKI(X, Y, grid_size=8, decay=0.9))
    cagp = CaGP(X, Y, num_actions=4, epochs=0, progress=False).eval()
    assert weighs_by_age(cagp)
    assert transformed_dimension_of(cagp) == 2
