import copy

import pytest
import torch
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from cases import rand, rough_and_smooth
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import LogNormalPrior, NormalPrior
from gpytorch_kernels import mixture, nested_matern, prior_table, randomise
from torch import Size, Tensor

from bo_scale.models.shell.cloning import clone_module, output_view, subset_batch
from bo_scale.models.shell.kernels import as_product_kernel

close = torch.testing.assert_close


def tied_kernel() -> Kernel:
    first, second = RBFKernel(), PeriodicKernel()
    second.raw_lengthscale = first.raw_lengthscale
    return first * second


def trained_standardize() -> Standardize:
    transform = Standardize(1)
    transform(rand(5, 1))
    return transform.eval()


MODULES = {
    "nested-kernel": nested_matern,
    "product-matern": lambda: as_product_kernel(nested_matern(), 2),
    "botorch-kernel": lambda: get_covar_module_with_dim_scaled_prior(ard_num_dims=2, batch_shape=Size([2])).double(),
    "mixture": mixture,
    "likelihood": lambda: get_gaussian_likelihood_with_lognormal_prior().double(),
    "fixed-noise": lambda: FixedNoiseGaussianLikelihood(rand(4)),
    "mean": lambda: ConstantMean(constant_prior=NormalPrior(0.0, 1.0)).double(),
    "standardize": trained_standardize,
    "normalize": lambda: Normalize(2, bounds=torch.tensor([[0.0, 1.0], [2.0, 3.0]])).double(),
    "chained": lambda: ChainedInputTransform(a=Normalize(2), b=Warp(d=2, indices=[0])).double(),
    "tied": tied_kernel,
}


@pytest.fixture(params=MODULES.values(), ids=MODULES.keys())
def module(request) -> torch.nn.Module:
    return request.param()


def tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def test_clone_has_the_state_of_its_original(module) -> None:
    cloned, reference = clone_module(module), copy.deepcopy(module)
    assert [type(part) for part in cloned.modules()] == [type(part) for part in reference.modules()]
    assert cloned.state_dict().keys() == reference.state_dict().keys()
    for name, value in tensors(reference).items():
        assert torch.equal(tensors(cloned)[name], value)
    assert [p.requires_grad for p in cloned.parameters()] == [p.requires_grad for p in reference.parameters()]
    assert cloned.training == reference.training


def test_clone_shares_no_tensor_with_its_original(module) -> None:
    before = {name: value.detach().clone() for name, value in tensors(module).items()}
    cloned = clone_module(module)
    with torch.no_grad():
        for value in tensors(cloned).values():
            value.zero_()
    assert all(torch.equal(value, before[name]) for name, value in tensors(module).items())
    assert {id(part) for part in cloned.modules()}.isdisjoint(id(part) for part in module.modules())


def test_float_of_a_clone_leaves_its_original_alone(module) -> None:
    before = {name: value.dtype for name, value in tensors(module).items()}
    cloned = clone_module(module).float()
    assert all(value.dtype == torch.float32 for value in tensors(cloned).values() if value.is_floating_point())
    assert {name: value.dtype for name, value in tensors(module).items()} == before


def gpytorch_parts(module: torch.nn.Module) -> list[torch.nn.Module]:
    return [part for part in module.modules() if hasattr(part, "_priors")]


def test_the_tables_of_a_clone_point_to_its_own_priors(module) -> None:
    for part in gpytorch_parts(clone_module(module)):
        assert all(prior is part._modules[name] for name, (prior, *_) in part._priors.items())


def test_the_tables_of_a_clone_point_to_its_own_constraints(module) -> None:
    for part in gpytorch_parts(clone_module(module)):
        assert all(constraint is part._modules[name] for name, constraint in part._constraints.items())


def bound_to(module: torch.nn.Module) -> set[int]:
    """The modules that the hooks of a module and its children are methods of."""
    hooks = [
        h for part in module.modules() for name, v in vars(part).items() if "hooks" in name and v for h in v.values()
    ]
    owners = [getattr(getattr(hook, "hook", hook), "__self__", None) for hook in hooks]
    return {id(owner) for owner in owners if owner is not None}


def test_the_hooks_of_a_clone_are_bound_to_it(module) -> None:
    cloned, reference = clone_module(module), copy.deepcopy(module)
    own = {id(part) for part in module.modules()}
    assert bound_to(reference).isdisjoint(own)
    assert bound_to(cloned).isdisjoint(own)


def test_the_prior_density_of_a_clone_is_that_of_its_own_parameters() -> None:
    kernel = nested_matern()
    cloned, before = clone_module(kernel), {name: value for name, (_, value) in prior_table(kernel).items()}
    assert {name: value for name, (_, value) in prior_table(cloned).items()} == pytest.approx(before)
    cloned.outputscale = 7.0
    cloned.base_kernel.kernels[0].sample_from_prior("lengthscale_prior")
    assert {name: value for name, (_, value) in prior_table(kernel).items()} == pytest.approx(before)
    assert prior_table(cloned)["outputscale_prior"][1] != pytest.approx(before["outputscale_prior"])


def test_tied_parameters_stay_tied_in_a_clone() -> None:
    assert len(list(clone_module(tied_kernel()).parameters())) == len(list(copy.deepcopy(tied_kernel()).parameters()))


def test_a_clone_is_itself_cloned_and_copied_like_a_module() -> None:
    cloned = clone_module(clone_module(nested_matern()))
    x = rand(4, 2)
    close(copy.deepcopy(cloned)(x).to_dense(), nested_matern()(x).to_dense())
    cloned(x).to_dense().sum().backward()
    assert all(p.grad is not None for p in cloned.parameters())


def test_a_clone_has_no_gradients_yet() -> None:
    kernel = nested_matern()
    kernel(rand(4, 2)).to_dense().sum().backward()
    assert all(p.grad is None for p in clone_module(kernel).parameters())


# ---------------------------------------------------------------- some outputs of a batch


def batched(m: int) -> Kernel:
    """A kernel of m outputs whose lengthscales have a prior, none of them equal."""
    batch = Size([m])
    matern = MaternKernel(1.5, ard_num_dims=2, batch_shape=batch, lengthscale_prior=LogNormalPrior(0.0, 1.0))
    return randomise(ScaleKernel(matern + RBFKernel(batch_shape=batch), batch_shape=batch))


@pytest.mark.parametrize("outputs", [[1], [2, 0], [0, 1, 2]], ids=str)
def test_a_subset_of_a_batch_is_the_kernel_of_these_outputs(outputs: list[int]) -> None:
    kernel, X = batched(3), rand(4, 2)
    whole = kernel(X).to_dense()
    kept = clone_module(kernel)
    subset_batch(kept, outputs, 3)
    found = kept(X).to_dense()
    assert kept.batch_shape == (Size([len(outputs)]) if len(outputs) > 1 else Size([]))
    assert found.shape == (*kept.batch_shape, 4, 4)
    close(found, whole[outputs] if len(outputs) > 1 else whole[outputs[0]])
    close(kernel(X).to_dense(), whole)
    with torch.no_grad():
        for p in kept.parameters():
            p.zero_()
    close(kernel(X).to_dense(), whole)


def test_a_subset_keeps_what_learns_and_what_all_outputs_share() -> None:
    kernel = batched(3)
    kernel.raw_outputscale.requires_grad_(False)
    shared = torch.nn.ModuleList([kernel, randomise(RBFKernel(ard_num_dims=3))])
    subset_batch(shared, [1, 2], 3)
    assert not kernel.raw_outputscale.requires_grad
    assert kernel.base_kernel.kernels[0].raw_lengthscale.requires_grad
    assert shared[1].raw_lengthscale.shape == (1, 3)


@pytest.mark.parametrize("output", [0, 2])
def test_a_view_is_the_kernel_of_one_output_and_has_its_gradient(output: int) -> None:
    kernel, X = batched(3), rand(4, 2)
    view = output_view(kernel, output, 3)
    assert view.batch_shape == Size([])
    close(view(X).to_dense(), kernel(X).to_dense()[output])
    view(X).to_dense().sum().backward()
    for p in kernel.parameters():
        assert p.grad is not None
        others = [j for j in range(3) if j != output]
        assert p.grad[output].any()
        assert not p.grad[others].any()


def test_a_view_of_a_kernel_without_a_batch_is_of_all_outputs_alike() -> None:
    kernel, X = rough_and_smooth(1), rand(4, 1)
    assert output_view(kernel, 0, 1) is kernel
    close(output_view(kernel, 1, 2)(X).to_dense(), kernel(X).to_dense())
