"""Designs for presence times amount: against their parts, and variances against draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit

from bo_scale.survey.choice.design_state import JointDesignState
from bo_scale.survey.choice.two_parts import TwoPartDesignState

POINTS = torch.linspace(0, 1, 6, dtype=torch.float64).reshape(3, 2)
CELLS = torch.linspace(0, 1, 10, dtype=torch.float64).reshape(5, 2)


def part(seed: int, noise: float = 0.3) -> JointDesignState:
    """Return a state with any covariance of points and cells."""
    root = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    K = root @ root.mT
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    own, cross, cells = K[:3, :3], K[:3, 3:], K[3:, 3:].diagonal()
    zero = torch.zeros(3, dtype=torch.float64)
    return JointDesignState(POINTS, torch.tensor(noise).double(), weights, zero, own, cross, torch.zeros(5), cells)


def state(share: float) -> TwoPartDesignState:
    amount, presence = part(0), part(1)
    slopes = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([0.2, 0.0, 3.0]).double()
    return TwoPartDesignState(
        POINTS, amount.noise, amount, presence, torch.full((3,), share).double(), slopes, (2.0, 0.5)
    )


def test_where_it_is_present_a_measurement_lowers_the_total_by_its_reduction() -> None:
    whole = state(1.0)
    for index in range(3):
        assert whole.total() - whole.after(index).total() == pytest.approx(float(whole.reduction()[index]))
    assert whole.after(0).after(1).total() < whole.after(0).total()


def test_where_it_is_absent_a_measurement_tells_of_presence_alone() -> None:
    whole = state(0.0)
    told = whole.after(2)
    assert told.presence.total() == pytest.approx(whole.presence.after(2).total())
    assert told.amount.total() == pytest.approx(whole.amount.total(), rel=1e-4)
    torch.testing.assert_close(whole.reduction(), 0.5 * whole.presence.reduction())
    assert told.amount.noise == whole.amount.noise


def test_variances_are_those_of_the_product_where_little_is_unknown() -> None:
    rng = np.random.default_rng(0)
    log_a, logit_p, small = 0.4, -0.3, 1e-2
    p, a = expit(logit_p), np.exp(log_a)
    amount, presence = (replace(part(k), own=small**2 * torch.eye(3).double()) for k in (0, 1))
    slopes = torch.full((3,), p * a).double(), torch.full((3,), p * (1 - p) * a).double()
    whole = TwoPartDesignState(POINTS, amount.noise, amount, presence, torch.ones(3).double(), slopes, (1.0, 1.0))
    z = small * rng.standard_normal((2, 200_000))
    drawn = expit(logit_p + z[0]) * np.exp(log_a + z[1])
    assert float(whole.variances()[0]) == pytest.approx(drawn.var(), rel=0.03)
    assert float(whole.joint().diagonal()[0]) == pytest.approx(float(whole.variances()[0]))
