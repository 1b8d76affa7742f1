"""The evidence in the same memory against that in memory of its own, which tests compare with dense computations."""

import math

import pytest
import torch
from torch import Tensor

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.gp.function_space.exact_evidence import radial_evidence, radial_gradients
from bo_scale.gp.function_space.repeated_evidence import RepeatedEvidence
from bo_scale.gp.linalg import in_place
from bo_scale.models.choice.plan import KERNELS
from bo_scale.models.shell.kernels import OutputKernel, default_scaled_kernel

DOUBLE = torch.float64
SIZES = pytest.mark.parametrize("n", [10, 400])


def problem(n: int, seed: int = 0, repeated: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(n, 3, generator=generator, dtype=DOUBLE)
    if repeated:
        Z[5:9] = Z[4]
    return Z, torch.sin(2 * Z[:, 0]), 1e-4 + 0.1 * torch.rand(n, generator=generator, dtype=DOUBLE)


@SIZES
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_again_and_again_it_is_the_same(n: int, kernel: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    radial = OutputKernel.of(default_scaled_kernel(3, torch.Size(), smoothness=KERNELS[kernel]), 0, 1).radial()
    assert radial is not None
    evidence = RepeatedEvidence(n)
    for seed, scale in enumerate((1.3, 0.02, 50.0)):
        Z, y, variance = problem(n, seed, repeated=kernel != "matern12")  # whose slope is infinite at no distance
        value, saved = radial_evidence(Z, torch.tensor(scale, dtype=DOUBLE), y, variance, radial.profile)
        found, gradients = evidence(Z.numpy(), scale, y.numpy(), variance.numpy(), radial.profile)
        assert found == pytest.approx(value.item(), rel=1e-11)
        for ours, theirs in zip(gradients, radial_gradients(*saved), strict=True):
            within = 1e-9 * theirs.abs().max().item()
            torch.testing.assert_close(torch.as_tensor(ours, dtype=DOUBLE), theirs, rtol=1e-9, atol=within)


@SIZES
def test_nan_is_refused_and_the_next_evaluation_is_right(n: int) -> None:
    radial = OutputKernel.of(default_scaled_kernel(3, torch.Size(), smoothness=math.inf), 0, 1).radial()
    assert radial is not None
    Z, y, variance = problem(n)
    evidence, rest = RepeatedEvidence(n), (1.0, y.numpy(), variance.numpy(), radial.profile)
    with pytest.raises(NotPositiveDefiniteError, match="NaN"):
        evidence(Z.numpy() * math.nan, *rest)
    right = radial_evidence(Z, torch.ones((), dtype=DOUBLE), y, variance, radial.profile)[0].item()
    assert evidence(Z.numpy(), *rest)[0] == pytest.approx(right, rel=1e-11)


def test_rounding_adds_jitter_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    radial = OutputKernel.of(default_scaled_kernel(3, torch.Size(), smoothness=math.inf), 0, 1).radial()
    assert radial is not None
    Z, y, variance = problem(10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(in_place, "factorise_", lambda A: False)
    value, saved = radial_evidence(Z, torch.ones((), dtype=DOUBLE), y, variance, radial.profile)
    found, gradients = RepeatedEvidence(10)(Z.numpy(), 1.0, y.numpy(), variance.numpy(), radial.profile)
    assert found == value.item()
    for ours, theirs in zip(gradients, radial_gradients(*saved), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours, dtype=DOUBLE), theirs)
