"""Two GPUs: models on the second, while the first is the current one; randomness of each; sums over both."""

from typing import Any

import pytest
import torch
from botorch.sampling.pathwise import draw_matheron_paths
from cases import MODELS, cagp, data, grid_features, points, softmax_features
from matching import assert_all_on, assert_matches

from bo_scale import WISKI
from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.random import mixed, seeded, seeded_as
from bo_scale.thompson import thompson_batch

SECOND = torch.device("cuda:1")
NAMES = {"WISKI-2d", "WISKI-sum-2d", "WISKI-precision-sum", "WISKI-projected", "SoftKI-2d", "GRIEF-2d", "CaGP-few", "Decoupled-few"}  # fmt: skip # noqa: E501
FAMILIES = pytest.mark.parametrize(("d", "build"), [case for case in MODELS if case.id in NAMES])


@FAMILIES
def test_a_model_on_the_second_device_never_visits_the_first(two_gpus: Any, d: int, build: Any) -> None:
    (X, Y), (Xn, Yn), Z = data(14, d), data(2, d, seed=5), points(3, d, seed=9)
    expected = build(X, Y).eval().condition_on_observations(Xn, Yn).posterior(Z)
    model = build(X.to(SECOND), Y.to(SECOND)).eval()
    more = model.condition_on_observations(Xn.to(SECOND), Yn.to(SECOND))
    found = more.posterior(Z.to(SECOND))
    assert_all_on(more, SECOND)
    assert_matches(found.mean.detach(), expected.mean.detach(), SECOND)
    assert_matches(found.variance.detach(), expected.variance.detach(), SECOND)
    fantasies = model.condition_on_observations(Xn.to(SECOND).expand(2, 2, d), Yn.to(SECOND).expand(2, 2, 1))
    there = fantasies.posterior(Z.to(SECOND)).mean.detach()
    assert_matches(fantasies.to("cuda:0").posterior(Z.to("cuda:0")).mean.detach(), there, "cuda:0")


def states() -> list[Any]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def changed(before: list[Any]) -> list[bool]:
    """Of the CPU and of each device, whether its random state is another one."""
    return [not torch.equal(a, b) for a, b in zip(states(), before, strict=True)]


def test_seeding_reaches_the_device_alone_and_leaves_no_trace(two_gpus: Any) -> None:
    torch.cuda.set_device(1)
    current = torch.rand(2, device="cuda", dtype=torch.float64)
    assert current.device == SECOND
    before = states()
    drawn = []
    for device in ("cuda", "cuda:1"):
        with seeded_as(5, torch.device(device)):
            assert changed(before) == [True, False, True]
            drawn.append(torch.rand(2, device=device))
    assert torch.equal(*drawn)
    with seeded(5, torch.device("cpu"), 1):
        assert changed(before) == [True, False, False]
        seed = torch.initial_seed()
    with seeded_as(mixed(5, 1), torch.device("cpu")):
        assert torch.initial_seed() == seed
    assert changed(before) == [False, False, False]


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
def test_drawing_functions_draws_where_the_model_is_alone(two_gpus: Any, where: str) -> None:
    X, Y = (values.to(where) for values in data(12, 2))
    for model in (cagp(X, Y), WISKI(X, Y, grid_size=6)):
        before = states()
        draw_matheron_paths(model.eval(), torch.Size([3]))
        assert not any(changed(before)[1:2] + (changed(before)[2:] if where == "cpu" else []))
        thompson_batch(model, X.new_tensor([[0.0, 0.0], [1.0, 1.0]]), 2, raw_samples=16, max_steps=1)
        assert not any(changed(before)[1:2] + (changed(before)[2:] if where == "cpu" else []))


@FAMILIES
def test_drawn_functions_move(two_gpus: Any, d: int, build: Any) -> None:
    (X, Y), Z = data(14, d), points(3, d, seed=9)
    model = build(X, Y).eval()
    given = model.condition_on_observations(X[:2].unsqueeze(0), Y[:2].unsqueeze(0))
    for each in (model, given):
        paths = draw_matheron_paths(each, torch.Size([2]))
        expected = paths(Z).detach()
        for device in ("cuda:1", "cuda:0", "cpu"):
            paths = paths.to(device)
            assert_matches(paths(Z.to(device)).detach(), expected, device)


@pytest.mark.parametrize("build", [grid_features((6, 7)), softmax_features], ids=["grid", "softmax"])
def test_statistics_of_several_devices_are_merged(two_gpus: Any, build: Any) -> None:
    X, Y = data(30, 2)
    whole = SufficientStatistics.from_data(build(torch.tensor([0.3, 0.4]).double()), X, Y)
    parts = []
    for i, device in enumerate(("cuda:0", "cuda:1", "cpu")):
        features = build(torch.tensor([0.3, 0.4], dtype=torch.float64)).to(torch.device(device))
        rows = slice(10 * i, 10 * i + 10)
        parts.append(SufficientStatistics.from_data(features, X[rows].to(device), Y[rows].to(device)))
    with pytest.raises(InvalidDataError, match="one is on cuda:0, the other on cuda:1"):
        _ = parts[0] + parts[1]
    merged = sum((part.to(SECOND) for part in parts[1:]), start=parts[0].to(SECOND))
    assert merged.count == 30
    assert_matches(merged.gram.to_dense(), whole.gram.to_dense(), SECOND)
    features = build(torch.tensor([0.3, 0.4], dtype=torch.float64)).to(SECOND)
    noise = torch.tensor(0.1, dtype=torch.float64)
    found = WeightSpacePosterior.from_statistics(features, merged, noise.to(SECOND), noise.to(SECOND))
    here = build(torch.tensor([0.3, 0.4], dtype=torch.float64))
    expected = WeightSpacePosterior.from_statistics(here, whole, noise, noise)
    assert_matches(found.mean(X.to(SECOND)), expected.mean(X), SECOND)
