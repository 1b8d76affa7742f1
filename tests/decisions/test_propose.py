"""What is proposed: in the box, away from what is under way, and whatever the units."""

from dataclasses import replace

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound, qUpperConfidenceBound
from settings import NAMES, model, setting
from torch import Tensor

from bo_scale.decisions.acquisition import posterior_means
from bo_scale.decisions.by_name import acquisition_kind
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.models.errors import UnsupportedError


@NAMES
def test_every_acquisition_proposes_distinct_points_of_the_cube(name: str) -> None:
    X = propose(acquisition_kind(name).make, setting(model()))
    assert X.shape == (2, 2)
    assert X.dtype == torch.float64
    assert not X.requires_grad
    assert ((X >= 0) & (X <= 1)).all()
    assert not torch.equal(X[0], X[1])


def test_large_batches_are_chosen_point_by_point() -> None:
    X = propose(acquisition_kind("qUCB").make, setting(model(), q=9, max_steps=4))
    assert X.shape == (9, 2)
    assert torch.pdist(X).min() > 1e-4


@NAMES
def test_randomness_is_the_seeds(name: str) -> None:
    m, X = model(), []
    for seed in (3, 3):
        torch.manual_seed(seed)
        X.append(propose(acquisition_kind(name).make, setting(m)))
    assert torch.equal(*X)


def test_a_factory_gives_an_acquisition_function_or_the_points_themselves() -> None:
    points = torch.full((2, 2), 0.25, dtype=torch.float64, requires_grad=True)
    assert torch.equal(propose(lambda s: points, setting(model())), points)

    def ucb(s: Setting) -> AcquisitionFunction:
        return qUpperConfidenceBound(s.model, 2.0, sampler=s.sampler(), X_pending=s.pending)

    torch.manual_seed(0)
    ours = propose(ucb, setting(model()))
    torch.manual_seed(0)
    assert torch.equal(propose(acquisition_kind("qUCB").make, setting(model())), ours)


class Doubled(AcquisitionFunction):
    """A function of an acquisition function, without a model of its own."""

    def __init__(self, of: AcquisitionFunction) -> None:
        torch.nn.Module.__init__(self)
        self.of = of

    def forward(self, X: Tensor) -> Tensor:
        value: Tensor = 2 * self.of(X)
        return value


@pytest.mark.parametrize("scale", [2.0**-40, 1.0])
def test_a_function_of_an_acquisition_function_is_maximised(scale: float) -> None:
    s = setting(model(scale=scale), q=1)

    def ucb(s: Setting) -> AcquisitionFunction:
        return qUpperConfidenceBound(s.model, 2.0, sampler=s.sampler())

    torch.manual_seed(0)
    ours = propose(lambda s: Doubled(ucb(s)), s)
    torch.manual_seed(0)
    torch.testing.assert_close(ours, propose(ucb, s), rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", ["WISKI", "SingleTaskGP"])
def test_posterior_means_are_the_posteriors_in_any_number(kind: str) -> None:
    m, X = model(kind), torch.rand(1003, 2, dtype=torch.float64)
    torch.testing.assert_close(posterior_means(m, X), m.posterior(X).mean, rtol=1e-9, atol=1e-9)


def test_an_analytic_function_is_for_one_point_at_a_time() -> None:
    def bound(of: Setting) -> AcquisitionFunction:
        return UpperConfidenceBound(of.model, beta=1.0)

    with pytest.raises(UnsupportedError, match="UpperConfidenceBound scores one point at a time"):
        propose(bound, setting(model()))
    assert propose(bound, replace(setting(model()), q=1)).shape == (1, 2)
