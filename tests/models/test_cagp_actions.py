"""Policies for actions: what is made, continued, merged and fixed, by values alone."""

from dataclasses import replace

import pytest
import torch
from cases import data, rand
from gpytorch.kernels import Kernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor

from bo_scale.gp.function_space.actions import BlockActions, DenseActions
from bo_scale.gp.function_space.observations import Observations
from bo_scale.models.cagp_actions import CGActions, LearnedActions, Shares, _in_coarse_units, policy_named
from bo_scale.models.shell.kernels import OutputKernel

LEARNED, CG = LearnedActions(6, 6, 5, seed=0), CGActions(6, 6, 5)
POLICIES = [LEARNED, CG]


def scaled(kernel: Kernel, lengthscale: float | list[float]) -> Kernel:
    whole = ScaleKernel(kernel).double()
    kernel.lengthscale = torch.as_tensor(lengthscale, dtype=torch.float64)
    return whole


def seen(
    X: Tensor, lengthscale: float | list[float] = 0.4, base: Kernel | None = None, noise: float = 0.1
) -> Observations:
    """Observations of a smooth function, with noise that differs between rows."""
    kernel = scaled(RBFKernel(ard_num_dims=2) if base is None else base, lengthscale)
    relative = torch.linspace(0.5, 2.0, len(X)).double()
    return Observations(
        OutputKernel.of(kernel, 0, 1), X, (3 * X.sum(-1)).sin(), relative, torch.tensor(noise, dtype=torch.float64)
    )


def matrix(actions: BlockActions | DenseActions, n: int) -> Tensor:
    """S."""
    return actions.project(torch.eye(n, dtype=torch.float64)).mT


def two_outputs(X: Tensor) -> list[Observations]:
    return [seen(X, [0.2, 2.0]), seen(X, [2.0, 0.2])]


# ---------------------------------------------------------------- shares


def test_units_are_one_action_for_each_row_and_give_the_noise_as_gram() -> None:
    X = data(7, 2)[0]
    shares = Shares.units(2, 7, X.device)
    assert (shares.joined, shares.count, shares.fitted, shares.are_units) == (7, 7, 7, True)
    one = seen(X)
    torch.testing.assert_close(matrix(shares.actions(1, one), 7), one.noise.rsqrt().diag())


def test_there_may_be_no_rows() -> None:
    shares = Shares.units(1, 0, torch.device("cpu"))
    assert (shares.joined, shares.count, shares.are_units) == (0, 0, True)


def test_rows_that_follow_were_not_in_the_last_fit() -> None:
    labels, entries = torch.tensor([[0, 1, 0], [1, 0, 0]]), torch.arange(6.0).double().reshape(2, 3)
    shares = Shares(labels, entries, 3)
    longer = shares.followed_by(torch.tensor([[2, 2], [2, 1]]), torch.ones(2, 2).double())
    assert (longer.joined, longer.count, longer.fitted, longer.are_units) == (5, 3, 3, False)
    assert torch.equal(longer.of_last_fit().labels, labels)
    assert torch.equal(longer.of_last_fit().entries, entries)
    assert torch.equal(longer.outputs([1]).labels, longer.labels[1:])
    assert torch.equal(longer.outputs([1, 0]).entries, longer.entries[[1, 0]])


def test_rows_that_have_not_joined_get_one_action_each() -> None:
    X = data(6, 2)[0]
    shares, one = Shares(torch.tensor([[0, 1, 0]]), torch.tensor([[1.0, 2.0, -3.0]]).double(), 3), seen(X)
    S = matrix(shares.actions(0, one), 6)
    expected = torch.tensor([[1, 0], [0, 2], [-3, 0]]).double()
    expected = torch.block_diag(expected, torch.eye(3).double())
    scale = (expected.square() * one.noise.unsqueeze(-1)).sum(0).rsqrt()
    torch.testing.assert_close(S, expected * scale)


def test_actions_are_differentiable_in_entries_and_noise() -> None:
    X, scale = data(6, 2)[0], torch.tensor(0.1).double().requires_grad_()
    entries = torch.tensor([[1.0, 2.0, -3.0]]).double().requires_grad_()

    def some(entries: Tensor, scale: Tensor) -> Tensor:
        return matrix(Shares(torch.tensor([[0, 1, 0]]), entries, 3).actions(0, replace(seen(X), scale=scale)), 6)

    assert torch.autograd.gradcheck(some, (entries, scale))


# ---------------------------------------------------------------- what is made


@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("policy", POLICIES, ids=["learned", "cg"])
def test_no_more_rows_than_actions_share_none(policy: LearnedActions | CGActions, n: int) -> None:
    made = policy.made([seen(data(n, 2)[0])])
    assert made.are_units
    assert policy.count(made) == made.fitted == n
    assert policy.actions(0, seen(data(n, 2)[0]), made).count == n


def test_made_blocks_are_as_many_as_actions_for_every_output() -> None:
    made = LEARNED.made(two_outputs(data(23, 2)[0]))
    assert (LEARNED.count(made), made.fitted, made.joined) == (6, 23, 23)
    for labels in made.labels:
        sizes = labels.bincount()
        assert sizes.max() - sizes.min() <= 2
    assert not torch.equal(*made.labels)


def test_the_seed_decides_the_entries_and_they_differ_a_little() -> None:
    one = [seen(data(23, 2)[0])]
    first, same, other = (LearnedActions(6, 6, 5, seed=seed).made(one).entries for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert 0 < (first - 1).abs().max() < 0.5


def test_blocks_are_near_in_units_of_the_lengthscales() -> None:
    X = data(32, 2)[0]
    labels = LearnedActions(4, 4, 5, seed=0).made([seen(X, [1.0, 100.0])]).labels[0][X[:, 0].argsort()]
    assert torch.equal(labels.unique_consecutive(), labels[::8])


def test_blocks_are_near_in_units_of_the_spread_for_a_kernel_that_is_not_radial() -> None:
    X = data(32, 2)[0]
    policy = LearnedActions(4, 4, 5, seed=0)
    plain, wide = (policy.made([seen(Z, 1.0, RQKernel())]).labels for Z in (X, X * torch.tensor([100.0, 1.0]).double()))
    assert torch.equal(plain, wide)


# ---------------------------------------------------------------- rows that come later


def test_later_rows_join_the_actions_of_their_nearest_neighbours_with_their_entries() -> None:
    X = data(24, 2)[0]
    shares = LEARNED.made(two_outputs(X))
    more = LEARNED.continued(two_outputs(torch.cat([X, X[:3] + 1e-6])), shares)
    assert more.fitted == more.joined == 27
    assert torch.equal(more.labels, torch.cat([shares.labels, shares.labels[:, :3]], -1))
    assert torch.equal(more.entries, torch.cat([shares.entries, shares.entries[:, :3]], -1))


def test_uneven_blocks_are_made_anew_and_entries_kept() -> None:
    X, near = data(24, 2)[0], 0.5 + 1e-3 * data(36, 2, seed=3)[0]
    shares = LEARNED.made([seen(X)])
    crowded = LEARNED.continued([seen(torch.cat([X, near]))], shares)
    sizes = crowded.labels[0].bincount()
    assert len(sizes) == 6
    assert sizes.max() <= 11  # 60 rows in 6 blocks
    assert torch.equal(crowded.entries[:, :24], shares.entries)


@pytest.mark.parametrize("before", [4, 6], ids=["fewer rows than actions", "as many"])
def test_actions_of_single_rows_are_not_continued(before: int) -> None:
    X = data(20, 2)[0]
    one = [seen(X)]
    continued, made = LEARNED.continued(one, LEARNED.made([seen(X[:before])])), LEARNED.made(one)
    assert torch.equal(continued.labels, made.labels)
    assert torch.equal(continued.entries, made.entries)


def test_fewer_actions_than_asked_for_are_not_continued() -> None:
    one = [seen(data(24, 2)[0])]
    assert LEARNED.continued(one, LearnedActions(4, 4, 5, seed=1).made(one)).count == 6


def test_merged_rows_have_few_blocks_and_entries_of_one_over_their_noise() -> None:
    X = data(30, 2)[0]
    shares, every = LEARNED.made(two_outputs(X[:20])), two_outputs(X)
    merged = LEARNED.merged(every, shares)
    assert (merged.joined, merged.fitted, LEARNED.count(merged)) == (30, 20, 6 + 2)
    assert torch.equal(merged.labels[:, :20], shares.labels)
    assert torch.equal(merged.entries[:, :20], shares.entries)
    for each, entries in zip(every, merged.entries, strict=True):
        torch.testing.assert_close(entries[20:], 1 / each.relative[20:])
    again = LEARNED.merged(two_outputs(data(40, 2)[0]), merged)
    assert (again.joined, again.fitted, again.count) == (40, 20, 8)


# ---------------------------------------------------------------- conjugate gradients


def test_conjugate_gradients_give_dense_actions_for_the_rows_that_have_joined() -> None:
    X = data(20, 2)[0]
    shares, one = CG.made([seen(X[:15])]), seen(X)
    actions = CG.actions(0, one, shares)
    assert isinstance(actions, DenseActions)
    S = matrix(actions, 20)
    assert S.shape == (20, CG.count(shares) + 5)
    torch.testing.assert_close(S.mT @ (one.noise.unsqueeze(-1) * S), torch.eye(11).double())
    assert (S[:15, 6:] == 0).all()
    assert (S[15:, :6] == 0).all()


def test_all_rows_join_when_actions_are_continued_or_merged() -> None:
    every = two_outputs(data(20, 2)[0])
    shares = CG.made(two_outputs(data(12, 2)[0]))
    for found in (CG.continued(every, shares), CG.merged(every, shares)):
        assert (found.joined, found.fitted, CG.count(found)) == (20, 20, 6)


def test_fixed_directions_do_not_follow_the_kernel_and_scale_with_the_noise() -> None:
    X = data(20, 2)[0]
    before, after = seen(X, 0.1), seen(X, 0.2, noise=0.4)
    shares, fixed = CG.made([before]), CG.fixed([before])
    found = matrix(fixed.actions(0, after, shares), 20)
    torch.testing.assert_close(found, matrix(CG.actions(0, before, shares), 20) / 2)
    assert not torch.allclose(found, matrix(CG.actions(0, after, shares), 20), rtol=0.1)
    assert CG.directions is None
    assert LEARNED.fixed([before]) is LEARNED


def test_residuals_have_a_gradient_towards_the_noise_alone() -> None:
    X = data(20, 2)[0]
    scale = torch.tensor(0.1).double().requires_grad_()
    one = replace(seen(X), scale=scale)
    total = matrix(CG.actions(0, one, CG.made([one])), 20).abs().sum()
    (slope,) = torch.autograd.grad(total, scale)
    torch.testing.assert_close(slope, -0.5 * total.detach() / scale.detach())  # S ∝ σ⁻¹ at fixed directions


def test_policies_are_found_by_name() -> None:
    assert policy_named("learned", 6, 5, 0) == LEARNED
    assert policy_named("cg", 6, 5, 0) == CG
    assert [policy_named(policy.name, 6, 5, 0) for policy in POLICIES] == POLICIES


def test_units_of_blocks_follow_lengthscales_in_powers_of_four() -> None:
    """So blocks stay where lengthscales change a little, and cut along the short ones where they differ much."""
    X = rand(40, 3)
    ranges = X.amax(0) - X.amin(0)
    alike = _in_coarse_units(X / torch.tensor([0.3, 0.35, 0.25]).double())
    torch.testing.assert_close(alike, _in_coarse_units(X / 0.3))
    torch.testing.assert_close(alike, X / ranges)
    far = _in_coarse_units(X / torch.tensor([0.03, 0.5, 0.5]).double())
    extents = far.amax(0) - far.amin(0)
    assert torch.equal((extents[0] / extents[1]).log2().round(), torch.tensor(4.0).double())
    constant = torch.cat([X[:, :1], torch.ones(40, 1).double()], -1)
    assert _in_coarse_units(constant).isfinite().all()
