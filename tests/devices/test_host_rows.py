"""Rows that are larger than a device: parts on several devices, chunks from the host."""

from typing import Any

import pytest
import torch
from cases import data, points, softki
from matching import assert_matches

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.host_rows import require_host, summed_from_host
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.wiski.model import WISKI


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_chunks_of_the_host_are_summed_with_one_wait(log: Any, pinned: bool) -> None:
    X, Y = data(1000, 2)
    model = WISKI(X[:20], Y[:20], grid_size=8)
    expected = SufficientStatistics.from_data(model._feature_map(0, frozen=True), X, Y, D := 1 + X[:, 0])
    features, device = model.to("cuda")._feature_map(0, frozen=True), torch.device("cuda:0")
    rows = [values.pin_memory() if pinned else values for values in (X, Y, D)]
    summed_from_host(features, *rows, device=device, rows=300)  # makes the tensors of the grid's geometry
    with log.counting() as counted:
        found = summed_from_host(features, *rows, device=device, rows=300)
    assert counted.waits == 1, counted.report()
    assert counted.copied("pinned") == X.numel() + Y.numel() + D.numel()
    assert found.count == 1000
    for name in ("projection", "square", "weight_sum", "log_noise"):
        assert_matches(getattr(found.recenter(expected.center.to(device)), name), getattr(expected, name), device, name)
    assert_matches(found.gram.to_dense(), expected.gram.to_dense(), device)
    more = summed_from_host(features, *rows, device=device, start=found)
    assert more.count == 2000


def test_what_is_wrong_with_rows_of_the_host_is_said(device: torch.device) -> None:
    X, Y = data(50, 2)
    features = WISKI(X.to(device), Y.to(device), grid_size=8)._feature_map(0, frozen=True)
    with pytest.raises(InvalidDataError, match=r"^Y: 49 rows on cpu, expected 50 on the CPU"):
        require_host(X, Y=Y[1:])
    with pytest.raises(ValueError, match="rows \\[3\\]"):
        summed_from_host(features, X.index_fill(0, torch.tensor([13]), 9.0), Y, device=device, rows=10)
    assert summed_from_host(features, X, Y, device=device, rows=7).count == 50


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
def test_a_model_observes_rows_of_the_host(log: Any, known: bool) -> None:
    (X, Y), (Xn, Yn), Z = data(20, 2), data(500, 2, seed=3), points(4, seed=9)
    noise = 0.1 + Xn[:, :1] if known else None
    model = WISKI(X, Y, 0.1 + X[:, :1] if known else None, grid_size=8, keep_data=False)
    expected = model.condition_on_observations(Xn, Yn, noise)
    there = model.cuda()
    there.observe_from_host(Xn, Yn, noise, rows=99)
    with log.counting() as counted:
        found = there.observe_from_host(Xn, Yn, noise, rows=99)
    assert counted.waits <= 1, counted.report()
    assert (there.num_observations, found.num_observations) == (20, 520)
    assert_matches(found.posterior(Z.cuda()).mean.detach(), expected.posterior(Z).mean.detach(), "cuda:0")
    with pytest.raises(InvalidDataError, match="Y: NaN or inf"):
        there.observe_from_host(Xn, Yn.index_fill(0, torch.tensor([3]), float("nan")), noise)
    with pytest.raises(InvalidDataError, match="Y: 500 rows on cuda:0, expected 500 on the CPU"):
        there.observe_from_host(Xn, Yn.cuda(), noise)


def build(X: Any, Y: Any) -> WISKI:
    return WISKI(X, Y, grid_size=8, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), keep_data=False)


def test_models_of_two_devices_are_merged(two_gpus: Any) -> None:
    (X, Y), Z = data(40, 2), points(4, seed=9)
    parts = [build(X[i::2].to(f"cuda:{i}"), Y[i::2].to(f"cuda:{i}")) for i in range(2)]
    whole = parts[0].merged(parts[1])
    expected = build(X[::2], Y[::2]).condition_on_observations(X[1::2], Y[1::2])
    assert whole.num_observations == 40
    assert parts[0].num_observations == 20
    found = whole.posterior(Z.to("cuda:0"))
    assert_matches(found.mean.detach(), expected.posterior(Z).mean.detach(), "cuda:0")
    assert_matches(found.variance.detach(), expected.posterior(Z).variance.detach(), "cuda:0")


def test_what_cannot_be_merged_is_refused() -> None:
    X, Y = data(20, 2)
    model = build(X, Y)
    with pytest.raises(UnsupportedError, match="keep_data=False"):
        model.merged(WISKI(X, Y, grid_size=8))
    with pytest.raises(InvalidDataError, match="others: expected WISKIs"):
        model.merged(softki(X, Y))
    with pytest.raises(InvalidDataError, match="different features"):
        model.merged(WISKI(X, Y, grid_size=9, keep_data=False))
    with pytest.raises(InvalidDataError, match="noise is known in some"):
        model.merged(WISKI(X, Y, torch.ones_like(Y), grid_size=8, keep_data=False))
    assert model.merged().num_observations == 20
