"""What is proposed: in the box, away from what is under way, and whatever the units."""

from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from cases import data
from gpytorch.likelihoods import GaussianLikelihood
from loops import CHEAP
from torch import Tensor

from bo_scale import WISKI
from bo_scale.acquisition import posterior_means
from bo_scale.loop.proposals import ACQUISITIONS, BASELINE, Setting, acquisition_by_name, propose

OPTIONS = {**CHEAP["acquisition_options"], "num_fantasies": 2, "mc_points": 32}
NAMES = pytest.mark.parametrize("name", list(ACQUISITIONS))


def model(kind: str = "WISKI", n: int = 12, scale: float = 1.0) -> Model:
    """A model of a smooth function, with hyperparameters at their starting values but for the noise."""
    X, Y = data(n, 2)
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.01
    if kind == "WISKI":
        return WISKI(X, scale * Y, grid_size=10, likelihood=likelihood).eval()
    return SingleTaskGP(X, scale * Y, likelihood=likelihood).eval()


def setting(model: Model, q: int = 2, pending: Tensor | None = None, **options: Any) -> Setting:
    return Setting(model, data(12, 2)[0], pending, q, 7, {**OPTIONS, **options})


@NAMES
@pytest.mark.parametrize("kind", ["WISKI", "SingleTaskGP"])
def test_every_acquisition_proposes_distinct_points_of_the_cube(kind: str, name: str) -> None:
    X = propose(acquisition_by_name(name, None), setting(model(kind)))
    assert X.shape == (2, 2)
    assert X.dtype == torch.float64
    assert not X.requires_grad
    assert ((X >= 0) & (X <= 1)).all()
    assert not torch.equal(X[0], X[1])


@NAMES
def test_every_acquisition_takes_pending_points_into_account(name: str) -> None:
    m = model()
    torch.manual_seed(0)
    alone = propose(acquisition_by_name(name, None), setting(m, q=1))
    torch.manual_seed(0)
    beside = propose(acquisition_by_name(name, None), setting(m, q=1, pending=alone))
    assert (alone - beside).abs().max() >= 1e-3


@NAMES
def test_what_is_proposed_does_not_depend_on_the_unit_of_the_values(name: str) -> None:
    """A power of two, so that the standardised targets and hence the models are the same to the last bit."""
    X, options = [], {"num_restarts": 4, "raw_samples": 32, "max_steps": 60}
    for scale in (1.0, 2.0**-14):
        torch.manual_seed(0)
        X.append(propose(acquisition_by_name(name, None), setting(model(scale=scale), q=1, **options)))
    if name == "Thompson":
        torch.testing.assert_close(X[1], X[0], rtol=0, atol=0.02)
        return
    torch.manual_seed(0)
    made = acquisition_by_name(name, None)(setting(model(), q=1, **options))
    others = torch.rand(60, 1, 2, dtype=torch.float64)
    if name == "qKG":
        box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        points = torch.cat([torch.stack(X), others[:9]])
        values = made.evaluate(points, bounds=box, num_restarts=2, raw_samples=16)
        assert (values[:2] > values[2:].median()).all()
        return
    for x in X:  # the values beside it are no higher, as they would be where a search was given up
        value, beside, there = (made(each).detach() for each in (x, (x + 0.06 * (others - 0.5)).clamp(0, 1), others))
        assert beside.max() - value < 0.02 * (there.max() - there.min())


def test_large_batches_are_chosen_point_by_point() -> None:
    X = propose(acquisition_by_name("qUCB", None), setting(model(), q=9, max_steps=4))
    assert X.shape == (9, 2)
    assert torch.pdist(X).min() > 1e-4


@NAMES
def test_randomness_is_the_seeds(name: str) -> None:
    m, X = model(), []
    for seed in (3, 3):
        torch.manual_seed(seed)
        X.append(propose(acquisition_by_name(name, None), setting(m)))
    assert torch.equal(*X)


def test_beta_counts() -> None:
    m = model()
    values = [
        acquisition_by_name("qUCB", None)(setting(m, beta=beta))(m.train_inputs[0][:1]).item() for beta in (0.1, 9.0)
    ]
    assert values[0] < values[1]


def test_a_factory_gives_an_acquisition_function_or_the_points_themselves() -> None:
    points = torch.full((2, 2), 0.25, dtype=torch.float64, requires_grad=True)
    assert torch.equal(propose(lambda s: points, setting(model())), points)

    def ucb(s: Setting) -> AcquisitionFunction:
        return qUpperConfidenceBound(s.model, 2.0, sampler=s.sampler(), X_pending=s.pending)

    torch.manual_seed(0)
    ours = propose(ucb, setting(model()))
    torch.manual_seed(0)
    assert torch.equal(propose(acquisition_by_name("qUCB", None), setting(model())), ours)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"acquisition='EI': choose one of \['qUCB', 'qLogEI'.*or pass a factory"):
        acquisition_by_name("EI", None)
    with pytest.raises(
        ValueError, match=r"acquisition_options: \['restarts'\] are unknown; choose from .*num_restarts"
    ):
        acquisition_by_name("qUCB", {"restarts": 3})


@pytest.mark.parametrize("kind", ["WISKI", "SingleTaskGP"])
def test_posterior_means_are_the_posteriors_in_any_number(kind: str) -> None:
    m, X = model(kind), torch.rand(1003, 2, dtype=torch.float64)
    torch.testing.assert_close(posterior_means(m, X), m.posterior(X).mean, rtol=1e-9, atol=1e-9)


def test_the_best_told_points_are_those_of_highest_posterior_mean() -> None:
    s = setting(model())
    order = s.means.argsort(descending=True)
    assert torch.equal(s.best(3), s.observed[order[:3]])
    assert len(s.best(BASELINE)) == 12
