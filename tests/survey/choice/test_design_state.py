import numpy as np
import pytest
import torch
from posteriors import SCORED, Case, Dense, scores

from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.sparse_precision import PrecisionPosterior
from bo_scale.survey.choice.design_state import ClosedDesignState, DesignState, JointDesignState, design_state
from bo_scale.survey.mapping.model import model_of
from bo_scale.survey.mapping.sites import Sites


def assert_agree(state: DesignState, dense: Dense) -> None:
    n = dense.count
    weights, mean, variance, cross = state.cells()
    close = {"rtol": 1e-6, "atol": 1e-9}
    np.testing.assert_allclose(state.means(), dense.mean[:n], **close)
    np.testing.assert_allclose(state.variances(), dense.K.diagonal()[:n], **close)
    np.testing.assert_allclose(state.joint(), dense.K[:n, :n], **close)
    np.testing.assert_allclose(state.total(), dense.total(), **close)
    np.testing.assert_allclose(state.reduction(), [dense.value("variance", i) for i in range(n)], **close)
    np.testing.assert_allclose(weights, dense.weights, **close)
    np.testing.assert_allclose(mean, dense.mean[n:], **close)
    np.testing.assert_allclose(variance, dense.K.diagonal()[n:], **close)
    np.testing.assert_allclose(cross, dense.K[:n, n:], **close)


def test_the_cases_are_the_kinds_of_posteriors_that_there_are(cases: dict[str, Case]) -> None:
    assert isinstance(cases["wiski"].process, WeightSpacePosterior)
    assert isinstance(cases["sparse"].process, PrecisionPosterior)
    assert isinstance(cases["wiski"].state(), ClosedDesignState)
    assert all(isinstance(cases[name].state(), JointDesignState) for name in ("sparse", "exact"))


def test_a_state_is_dense_algebra_however_much_is_measured(case: Case) -> None:
    state, dense = case.state(), case.dense()
    assert_agree(state, dense)
    for index in (3, 11, 3):  # the third is a repeat
        state, dense = state.after(index), dense.after(index)
        assert_agree(state, dense)


def test_the_total_falls_by_what_was_promised(case: Case) -> None:
    state = case.state()
    for index in (0, 7):
        promised = float(state.reduction()[index])
        assert state.total() - state.after(index).total() == pytest.approx(promised, rel=1e-8)
        state = state.after(index)


def test_both_kinds_of_states_agree(wiski: Case) -> None:
    closed = wiski.state()
    weights = wiski.weights / wiski.weights.sum()
    joint: DesignState = JointDesignState.of(wiski.process, wiski.points, (wiski.cells, weights), wiski.noise)
    for index in (5, 9):
        for objective in SCORED:
            ours, others = (scores(state, objective) for state in (closed, joint))
            np.testing.assert_allclose(ours, others, rtol=1e-8, atol=1e-10)
        closed, joint = closed.after(index), joint.after(index)


def test_after_a_measurement_is_the_posterior_with_it(case: Case) -> None:
    place = case.xy[4:5]
    more = Sites(np.concatenate([case.sites.xy, place]), np.append(case.sites.z, -3.0), None)
    anew = model_of(more, case.fit).processes[0]
    state = case.state().after(4)
    np.testing.assert_allclose(state.variances(), anew.variance(case.points), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(state.joint(), anew.covariance(case.points), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.cells()[2], anew.variance(case.cells), rtol=1e-4, atol=1e-7)


def test_pending_places_count_as_measured(case: Case) -> None:
    pending = np.array([[820.0, 400.0], [900.0, 100.0]])
    state = case.state(pending=pending)
    dense = case.dense(np.concatenate([case.xy, pending])).after(20).after(21)
    kept = [*range(20), *range(22, len(dense.mean))]
    assert_agree(state, Dense(dense.mean[kept], dense.K[np.ix_(kept, kept)], 20, dense.weights, dense.noise))
    assert state.total() < case.state().total()


def test_the_closed_integral_is_over_all_cells(wiski: Case) -> None:
    state, dense = wiski.state(joint_cells=10), wiski.dense()
    assert state.total() == pytest.approx(dense.total())
    np.testing.assert_allclose(state.reduction(), [dense.value("variance", i) for i in range(20)], rtol=1e-6)
    assert state.cells()[3].shape == (20, 10)


def test_cells_are_drawn_by_their_weights(exact: Case) -> None:
    weights = torch.ones(60, dtype=torch.float64)
    weights[7], weights[8:20] = 60.0, 0.0  # one place has 56 % of the weight, twelve have none
    counts = torch.zeros(60, dtype=torch.float64)
    for seed in range(80):
        generator = torch.Generator().manual_seed(seed)
        state = design_state(
            exact.process, exact.points[:1], exact.cells, weights, exact.noise, generator, joint_cells=40
        )
        share, mean, *_ = state.cells()
        which = (mean[:, None] - exact.process.mean(exact.cells)).abs().argmin(1)
        counts += torch.bincount(which, weights=40 * share, minlength=60)
    expected = 40 * 80 * weights / weights.sum()
    assert counts.sum() == pytest.approx(40 * 80)
    assert counts[8:20].sum() == 0
    assert counts[7] == pytest.approx(float(expected[7]), rel=0.02)
    others = torch.cat([counts[:7], counts[20:]])
    assert (others - expected[0]).abs().max() < 5 * expected[0] ** 0.5


def test_equal_cells_are_drawn_once(exact: Case) -> None:
    generator = torch.Generator().manual_seed(1)
    state = design_state(
        exact.process,
        exact.points,
        exact.cells,
        torch.full((60,), 0.3).double(),
        exact.noise,
        generator,
        joint_cells=40,
    )
    assert len(np.unique(state.cells()[1].numpy().round(10))) == 40


def test_draws_have_the_mean_and_covariance_of_the_posterior(case: Case) -> None:
    state = case.state()
    draws = state.draw(40_000, torch.Generator().manual_seed(0)).numpy()
    sd = state.variances().sqrt().numpy()
    np.testing.assert_allclose(draws.mean(0), state.means(), atol=5 * sd.max() / 200)
    np.testing.assert_allclose(np.cov(draws.T), state.joint(), atol=6 * sd.max() ** 2 / 200)
