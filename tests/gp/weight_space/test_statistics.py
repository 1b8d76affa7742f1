"""Every sum against the matrices it is made of; how sums are joined and changed are laws, in `test_laws`."""

from dataclasses import dataclass, fields

import pytest
import torch
from cases import CosineFeatures, data, rand
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.statistics import SufficientStatistics

N = 7
X, Y = data(N, 2, 2)
D, WEIGHTS = 0.5 + rand(N), 0.1 + 0.9 * rand(N, seed=1)


@dataclass(frozen=True)
class InChunks(CosineFeatures):
    chunk: int = 3

    def chunk_size(self) -> int:
        return self.chunk


PHI = InChunks(torch.tensor([0.05]).double())


def assert_same(a: SufficientStatistics, b: SufficientStatistics) -> None:
    torch.testing.assert_close(a.gram.to_dense(), b.gram.to_dense())
    for name in {field.name for field in fields(a)} - {"gram"}:
        one, other = (torch.as_tensor(getattr(each, name)) for each in (a, b))
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


def test_sums_are_those_of_their_definitions() -> None:
    stats = SufficientStatistics.from_data(PHI, X, Y, D, WEIGHTS)
    Phi, W = PHI(X), torch.diag(WEIGHTS / D)
    ones, center = torch.ones(N).double(), (W @ Y).sum(0) / W.sum()
    Z = Y - center
    expected = {
        "projection": Phi.mT @ W @ Z,
        "square": (Z.mT @ W @ Z).diagonal(),
        "feature_sum": Phi.mT @ W @ ones,
        "target_sum": torch.zeros(2).double(),
        "weight_sum": W.sum(),
        "log_noise": WEIGHTS @ D.log(),
        "noise_sum": WEIGHTS @ D,
        "effective_count": WEIGHTS.sum(),
        "center": center,
    }
    torch.testing.assert_close(stats.gram.to_dense(), Phi.mT @ W @ Phi)
    assert stats.count == N
    for name, value in expected.items():
        torch.testing.assert_close(getattr(stats, name), value, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_make_the_same_sums(chunk: int) -> None:
    whole = SufficientStatistics.from_data(InChunks(PHI.lengthscales, chunk=chunk), X, Y, D, WEIGHTS)
    assert_same(whole, SufficientStatistics.from_data(PHI, X, Y, D, WEIGHTS))


def test_features_that_are_known_are_not_computed() -> None:
    stats, elsewhere = SufficientStatistics.from_data(PHI, X[:3], Y[:3], D[:3]), torch.full((4, 2), torch.nan).double()
    found = stats.observe(PHI, elsewhere, Y[3:], D[3:], Phi=PHI(X[3:]))
    assert_same(found, stats.observe(PHI, X[3:], Y[3:], D[3:]))


def test_no_rows_change_nothing_and_the_first_rows_set_the_centre() -> None:
    empty = SufficientStatistics.empty(PHI, 2)
    assert empty.observe(PHI, X[:0], Y[:0]) is empty
    first = empty.observe(PHI, X[:1], Y[:1])
    torch.testing.assert_close(first.center, Y[0])
    torch.testing.assert_close(first.square, torch.zeros(2).double())
    assert torch.equal(first.observe(PHI, X[1:], Y[1:]).center, first.center)
    assert empty + first is first


def test_single_precision_is_summed_in_double() -> None:
    found = SufficientStatistics.from_data(PHI, X.float(), Y.float(), D.float(), WEIGHTS.float())
    assert {value.dtype for value in vars(found).values() if isinstance(value, Tensor)} == {torch.float64}
    double = SufficientStatistics.from_data(PHI, *(v.float().double() for v in (X, Y, D, WEIGHTS)))
    assert_same(found, double)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_noise_that_is_not_positive_is_refused_by_name(bad: float) -> None:
    spoilt = D.clone()
    spoilt[2] = bad
    with pytest.raises(InvalidDataError, match="D: noise variances must be positive"):
        SufficientStatistics.from_data(PHI, X, Y, spoilt)


def test_some_outputs_share_what_does_not_depend_on_them() -> None:
    whole = SufficientStatistics.from_data(PHI, X, Y, D, WEIGHTS)
    assert_same(whole.outputs([1]), SufficientStatistics.from_data(PHI, X, Y[:, 1:], D, WEIGHTS))
    assert_same(whole.outputs([1, 0]).outputs([1, 0]), whole)
    assert whole.outputs([1]).gram is whole.gram


def test_a_state_is_of_plain_tensors_and_restores_them() -> None:
    whole = SufficientStatistics.from_data(PHI, X, Y, D, WEIGHTS)
    state = whole.state()
    assert all(isinstance(value, Tensor | int) for value in state.values())
    assert_same(SufficientStatistics.empty(PHI, 2).restored(state), whole)
