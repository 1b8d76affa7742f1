"""Observations with known noise beside ones without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import asked, cheap, events, f, single_task
from torch import Tensor

from bo_scale.loop import Optimizer
from bo_scale.loop.surrogate.unknown_noise import unknown_variance

pytestmark = pytest.mark.usefixtures("whole_fits")

NAN = float("nan")
MODELS = pytest.mark.parametrize("model", ["wiski", "cagp", "auto", single_task])


def points(n: int, seed: int = 0) -> Tensor:
    low, high = torch.tensor([[0.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
    return low + (high - low) * torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def half_known(loop: Optimizer, n: int = 12) -> tuple[Tensor, Tensor]:
    """Tell noisy values, every other one with its variance of 0.01; that of the others is 0.09."""
    X, known = points(n), torch.arange(n) % 2 == 0
    sd = torch.where(known, 0.1, 0.3).double()
    Y = f(X) + sd * torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loop.tell(X[known], Y[known], torch.full((int(known.sum()),), 0.01))
    loop.tell(X[~known], Y[~known])
    return X, Y


@pytest.mark.parametrize(("n", "true"), [(60, 0.09), (300, 0.25), (300, 0.01)])
@pytest.mark.parametrize("unit", [1.0, 1e3])
def test_the_unknown_variance_is_found(n: int, true: float, unit: float) -> None:
    X = points(n) * torch.tensor([1.0, 0.2]).double() + torch.tensor([0.0, 0.4]).double()
    Yvar = torch.full((n, 1), 0.02, dtype=torch.float64)
    Yvar[::2] = NAN
    noise = torch.randn(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    Y = torch.sin(5 * X[:, :1]) + X[:, 1:] + noise * Yvar.nan_to_num(true).sqrt()
    assert unknown_variance(X, unit * Y, unit**2 * Yvar) / unit**2 == pytest.approx(true, rel=0.5)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_or_constant_values_have_a_variance(n: int) -> None:
    Yvar = torch.full((n, 1), 0.02, dtype=torch.float64)
    Yvar[0] = NAN
    assert unknown_variance(points(n), torch.ones(n, 1, dtype=torch.float64), Yvar) > 0


@MODELS
def test_an_exact_model_of_known_and_estimated_variances(model: Any) -> None:
    """The loop's model is the one that a user makes of the same variances."""
    loop = cheap(model=model, model_options={} if model != "wiski" else {"grid_size": 10})
    half_known(loop)
    noise = loop._run.present().noise
    assert noise is not None
    D = loop.history.told.first(12)[2]
    assert int(D.isnan().sum()) == 6
    _, _, filled = loop._run.data(loop._run.present())
    torch.testing.assert_close(filled, D.nan_to_num(noise))
    assert loop.cross_validate(4)
    assert len(loop.predict(points(2))) == 2
    loop.ask(1)


@MODELS
def test_a_resumed_run_is_the_same(tmp_path: Path, model: Any) -> None:
    options: dict[str, Any] = {"model": model}
    with cheap(tmp_path / "a", **options) as whole:
        half_known(whole)
        asked(whole, 1)
        whole.tell(points(1, 5), [0.3], [0.04])
        asked(whole, 2)
    with cheap(tmp_path / "b", **options) as first:
        half_known(first)
        asked(first, 1)
        first.tell(points(1, 5), [0.3], [0.04])
    with cheap(tmp_path / "b", **options) as again:
        asked(again, 2)
    assert events(tmp_path / "a") == events(tmp_path / "b")


@pytest.mark.parametrize("known_first", [True, False])
@pytest.mark.parametrize("model", ["wiski", single_task])
def test_the_first_of_the_other_kind_comes_late(known_first: bool, model: Any) -> None:
    loop = cheap(model=model, refit_growth=4.0)
    loop.tell(points(6), f(points(6)), [0.01] * 6 if known_first else None)
    loop.ask(1)
    loop.tell(points(1, 3), [0.5], None if known_first else [0.01])
    assert len(loop.predict(points(2))) == 2
    before = len(loop.steps)
    loop.ask(1)
    assert loop.steps[before].fitted == (not known_first)
    assert (loop._run.present().noise is None) is False


def test_variances_come_in_one_call_and_go_through_tables(tmp_path: Path) -> None:
    loop = cheap()
    loop.tell(points(3), [1.0, 2.0, 3.0], [0.1, None, NAN], id=["a", "b", "c"])
    _, _, Yvar = loop.observations
    assert torch.equal(Yvar.isnan(), torch.tensor([False, True, True]))
    assert loop.tell(points(3), [1.0, 2.0, 3.0], [0.1, None, NAN], id=["a", "b", "c"]) == ["a", "b", "c"]
    loop.revise("b", Yvar=[0.2])
    loop.to_csv(tmp_path / "past.csv")
    space = {"x0": (0.0, 1.0), "x1": (-2.0, 3.0)}
    other = Optimizer.from_csv(tmp_path / "past.csv", space, value="value", objective="maximize")
    D = other.history.told.first(3)[2]
    torch.testing.assert_close(D[:, 0], torch.tensor([0.1, 0.2, NAN], dtype=torch.float64), equal_nan=True)
    loop.forget(["a", "b"])
    assert loop.history.told.first(1)[2] is None


def test_an_outcome_without_any_variance_learns_its_noise() -> None:
    loop = cheap(objectives={"a": "maximize"}, constraints=["b <= 1"], acquisition="qLogNEI", model="cagp")
    X = points(8)
    Y = [{"a": float(v), "b": float(w)} for v, w in zip(f(X), X[:, 0])]
    loop.tell(X, Y, [{"a": 0.01 if i % 2 else None, "b": None} for i in range(8)])
    first, second = loop._run.present().parts
    assert first.noise is not None
    assert second.noise is None
    assert loop.cross_validate(4)
    loop.ask(1)


def test_a_variance_set_aside_comes_back(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        loop.tell([[0.2, 0.0], [0.9, 0.0], [0.8, 0.0]], [1.0, 2.0, 3.0], [None, 0.1, None])
        loop.migrate([(0.0, 0.5), (-2.0, 3.0)])
        assert loop.history.told.first(1)[2] is None
        loop.migrate([(0.0, 1.0), (-2.0, 3.0)])
    with Optimizer.open(tmp_path, mode="r") as again:
        D = again.history.told.first(3)[2]
        torch.testing.assert_close(D[:, 0], torch.tensor([NAN, 0.1, NAN], dtype=torch.float64), equal_nan=True)
