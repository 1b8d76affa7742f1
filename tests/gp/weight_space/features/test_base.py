"""What every feature map can do from the four members that its author writes."""

import pytest
import torch
from cases import CosineFeatures, rand
from linear_operator.operators import DenseLinearOperator, IdentityLinearOperator

from bo_scale.gp.weight_space.features.base import FeatureMap, Whitened, WhitenedFeatures
from bo_scale.gp.weight_space.gram import DenseGram

PHI = CosineFeatures(torch.tensor([0.05]).double(), p=4)
X = rand(2, 5, 2)


def test_a_map_lacks_nothing_but_its_four_members() -> None:
    with pytest.raises(TypeError, match=r"__call__.*kernel_variance.*num_features.*prior_root"):
        FeatureMap()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="__call__"):
        Whitened(PHI, torch.eye(4))  # type: ignore[abstract]


def test_without_structure_there_are_no_shortcuts() -> None:
    root = PHI.prior_root()
    assert PHI.max_rank == PHI.num_features == 4
    assert PHI.free_of_prior
    assert PHI.reduced(root) is PHI.sparse_prior() is PHI.prior_matrix() is None
    gram = PHI.empty_gram(torch.device("cpu"))
    assert isinstance(gram, DenseGram)
    assert torch.equal(gram.to_dense(), torch.zeros(4, 4).double())


def test_moments_of_the_prior_are_those_of_the_weights() -> None:
    R, Phi = PHI.prior_root().to_dense(), PHI(X[0])
    torch.testing.assert_close(PHI.prior_covariance(X[0]), Phi @ R @ R.mT @ Phi.mT)
    torch.testing.assert_close(PHI.prior_variance(X)[0], PHI.prior_covariance(X[0]).diagonal())
    torch.testing.assert_close(PHI.missing_variance(X), torch.full((2, 5), 0.1).double())


def test_variance_is_never_missing_below_zero() -> None:
    over = type("Over", (CosineFeatures,), {"kernel_variance": lambda self, X: self.prior_variance(X) - 0.1})
    assert torch.equal(over(PHI.lengthscales).missing_variance(X), torch.zeros(2, 5).double())


def test_chunks_hold_ten_million_numbers_or_one_point() -> None:
    assert CosineFeatures(PHI.lengthscales, p=10_000).chunk_size() == 1000
    assert CosineFeatures(PHI.lengthscales, p=10**8).chunk_size() == 1


def test_whitened_features_have_independent_weights_and_the_same_prior() -> None:
    root = rand(4, 3)
    psi = PHI.whitened(DenseLinearOperator(root))
    assert isinstance(psi, WhitenedFeatures)
    torch.testing.assert_close(psi(X), PHI(X) @ root)
    assert psi.num_features == 3
    assert not psi.free_of_prior
    assert isinstance(psi.prior_root(), IdentityLinearOperator)
    assert psi.prior_root().dtype == torch.float64
    torch.testing.assert_close(psi.prior_root().to_dense(), torch.eye(3).double())
    Phi = PHI(X[0])
    torch.testing.assert_close(psi.prior_covariance(X[0]), Phi @ root @ root.mT @ Phi.mT)
    torch.testing.assert_close(psi.prior_variance(X), (PHI(X) @ root).square().sum(-1))
    torch.testing.assert_close(psi.kernel_variance(X), PHI.kernel_variance(X))
    torch.testing.assert_close(psi.missing_variance(X), (PHI.kernel_variance(X) - psi.prior_variance(X)).clamp_min(0))
    assert torch.autograd.gradcheck(psi, (X.clone().requires_grad_(),))
