import copy
import pickle

import pytest
import torch
from torch import Tensor

from bo_scale.models.shell.rows import Rows


def values(start: int, n: int, m: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """n rows numbered from `start`, no two entries of X, Y and D alike."""
    index = torch.arange(start, start + n, dtype=torch.float64).unsqueeze(-1)
    columns = torch.arange(m, dtype=torch.float64) / 10
    return torch.cat([index, index + 0.5], -1), index + 1000 + columns, index + 2000 + columns


def assert_rows(rows: Rows, *parts: tuple[Tensor, Tensor, Tensor]) -> None:
    """Rows are exactly these parts, one behind the other."""
    for found, expected in zip((rows.X, rows.Y, rows.D), (torch.cat(v) for v in zip(*parts)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert rows.count == len(rows.X)


def same_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_rows_of_tensors_are_these_tensors_uncopied() -> None:
    X, Y, D = values(0, 3)
    rows = Rows.of(X, Y, D)
    assert_rows(rows, (X, Y, D))
    assert same_storage(rows.X, X)


def test_append_leaves_the_shorter_view_and_the_tensors_given_alone() -> None:
    first, second = values(0, 3), values(3, 2)
    given = [v.clone() for v in first]
    rows = Rows.of(*first)
    longer = rows.append(*second)
    assert_rows(rows, tuple(given))
    assert_rows(longer, tuple(given), second)
    assert all(torch.equal(a, b) for a, b in zip(first, given))


def test_append_shares_the_buffer_while_there_is_room() -> None:
    rows = Rows.of(*values(0, 8)).append(*values(8, 1))
    longer = rows.append(*values(9, 1))
    for name in ("X", "Y", "D"):
        assert same_storage(getattr(rows, name), getattr(longer, name))
    assert_rows(longer, values(0, 10))


def test_appending_one_by_one_copies_a_logarithmic_number_of_times() -> None:
    rows, storages = Rows.of(*values(0, 1)), set()
    for i in range(1, 200):
        rows = rows.append(*values(i, 1))
        storages.add(rows.X.untyped_storage().data_ptr())
    assert len(storages) <= 6
    assert_rows(rows, values(0, 200))


def test_branches_of_one_view_do_not_see_each_other() -> None:
    trunk = Rows.of(*values(0, 5)).append(*values(5, 1))
    left, right = trunk.append(*values(10, 2)), trunk.append(*values(20, 3))
    again = left.append(*values(30, 1))
    assert_rows(trunk, values(0, 6))
    assert_rows(left, values(0, 6), values(10, 2))
    assert_rows(right, values(0, 6), values(20, 3))
    assert_rows(again, values(0, 6), values(10, 2), values(30, 1))


def test_appending_nothing_gives_the_same_rows() -> None:
    rows = Rows.of(*values(0, 4))
    assert_rows(rows.append(*values(4, 0)), values(0, 4))
    assert_rows(rows.append(*values(4, 0)).append(*values(4, 1)), values(0, 5))


def test_append_to_no_rows() -> None:
    assert_rows(Rows.of(*values(0, 0)).append(*values(0, 2)), values(0, 2))


def test_append_needs_no_gradient_of_what_it_is_given() -> None:
    X, Y, D = values(4, 1)
    longer = Rows.of(*values(0, 4)).append(X.detach(), Y.detach(), D.detach())
    assert not longer.X.requires_grad


def test_a_graph_through_a_view_survives_an_append() -> None:
    rows = Rows.of(*values(0, 8)).append(*values(8, 1))
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    loss = (rows.X * weight).sum()
    rows.append(*values(9, 1))
    loss.backward()
    torch.testing.assert_close(weight.grad, rows.X.sum(0))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))], ids=["copy", "pickle"]
)
def test_copies_are_equal_independent_and_carry_no_spare_room(copied) -> None:
    rows = Rows.of(*values(0, 20)).append(*values(20, 1))
    twin = copied(rows)
    assert_rows(twin, values(0, 21))
    assert not same_storage(twin.X, rows.X)
    assert twin.X.untyped_storage().nbytes() == 21 * 2 * 8
    assert_rows(twin.append(*values(50, 1)), values(0, 21), values(50, 1))
    assert_rows(rows.append(*values(60, 1)), values(0, 21), values(60, 1))


def test_with_targets_keeps_inputs_and_noise_unless_noise_is_given() -> None:
    rows = Rows.of(*values(0, 4))
    Y, D = -rows.Y, 2 * rows.D
    assert_rows(rows.with_targets(Y), (rows.X, Y, rows.D))
    assert_rows(rows.with_targets(Y, D), (rows.X, Y, D))
    assert_rows(rows, values(0, 4))


def test_outputs_selects_and_reorders_targets_and_noise() -> None:
    X, Y, D = values(0, 4, m=3)
    rows = Rows.of(X, Y, D)
    assert_rows(rows.outputs([2, 0]), (X, Y[:, [2, 0]], D[:, [2, 0]]))
    assert_rows(rows, (X, Y, D))


def test_what_was_derived_from_rows_may_grow_without_touching_them() -> None:
    rows = Rows.of(*values(0, 8)).append(*values(8, 1))
    rows.outputs([0]).append(*values(30, 1))
    rows.with_targets(-rows.Y).append(*values(40, 1))
    rows.to(torch.empty(0, dtype=torch.float64)).append(*values(50, 1))
    assert_rows(rows.append(*values(9, 1)), values(0, 10))


def test_without_leaves_rows_out_and_the_others_in_order() -> None:
    rows = Rows.of(*values(0, 4)).append(*values(4, 2))
    branch = rows.append(*values(6, 1)) and rows.append(*values(10, 2))
    assert_rows(branch.without(torch.tensor([6, 0, 4])), values(1, 3), values(5, 1), values(11, 1))
    assert_rows(branch, values(0, 6), values(10, 2))
    assert rows.without(torch.arange(6)).count == 0


def test_to_changes_the_dtype_of_all_columns() -> None:
    rows = Rows.of(*values(0, 3)).to(torch.empty(0, dtype=torch.float32))
    assert {rows.X.dtype, rows.Y.dtype, rows.D.dtype} == {torch.float32}
