"""Adam: of steps on all rows the best is kept; batches are of distinct rows, the same for the same seed."""

from collections.abc import Callable

import torch
from botorch.models import SingleTaskGP
from cases import data
from gpytorch.constraints import Interval
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale.models.fitting.adam import fit_by_adam

Parameters = dict[str, torch.nn.Parameter]


def some_mll() -> tuple[ExactMarginalLogLikelihood, Parameters]:
    model = SingleTaskGP(*data(12, 2))
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll, dict(mll.named_parameters())


def near_the_start(parameters: Parameters) -> Callable[..., Tensor]:
    """A loss whose minimum is close to the values that it is first asked for: a long step goes past it."""
    targets: list[Tensor] = []

    def loss(batch: Tensor | None) -> Tensor:
        if not targets:
            targets.extend(p.detach() + 1e-3 for p in parameters.values())
        return torch.stack([(p - t).square().sum() for p, t in zip(parameters.values(), targets)]).sum()

    return loss


def test_of_steps_on_all_rows_the_best_is_kept() -> None:
    mll, parameters = some_mll()
    loss, values = near_the_start(parameters), list[float]()

    def noted(batch: Tensor | None) -> Tensor:
        assert batch is None
        values.append(loss(None).item())
        return loss(None)

    fit_by_adam(mll, noted, parameters, 12, 4, None, 1.0, 0, False)
    assert len(values) == 4 + 1
    assert min(values) == values[0] < values[-1]
    assert loss(None).item() == values[0]


def test_batches_are_of_distinct_rows_and_the_last_step_is_kept() -> None:
    found = []
    for seed, disturbance in ((0, 1), (0, 2), (1, 1)):
        mll, parameters = some_mll()
        loss, batches = near_the_start(parameters), list[Tensor]()

        def noted(batch: Tensor, loss: Callable[..., Tensor] = loss, batches: list[Tensor] = batches) -> Tensor:
            batches.append(batch)
            return loss(batch)

        torch.manual_seed(disturbance)
        fit_by_adam(mll, noted, parameters, 12, 3, 5, 1.0, seed, False)
        assert [len(batch.unique()) for batch in batches] == [5] * 3
        assert loss(None) > 0.1
        found.append(torch.cat(batches))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_only_the_noise_is_fitted_before_the_first_step() -> None:
    mll, parameters = some_mll()
    before, first = {name: p.detach().clone() for name, p in parameters.items()}, dict[str, Tensor]()

    def noted(batch: Tensor | None) -> Tensor:
        first.update({name: p.detach().clone() for name, p in parameters.items() if name not in first})
        return far_from_zero(parameters)

    fit_by_adam(mll, noted, parameters, 12, 1, None, 0.01, 0, False)
    changed = {name for name, value in first.items() if not torch.equal(value, before[name])}
    assert changed == {"likelihood.noise_covar.raw_noise"}


def far_from_zero(parameters: Parameters) -> Tensor:
    return torch.stack([p.square().sum() for p in parameters.values()]).sum()


def test_parameters_stay_within_their_bounds() -> None:
    mll, _ = some_mll()
    mll.model.covar_module.register_constraint("raw_lengthscale", Interval(0.1, 2.0, transform=None))
    mll.model.covar_module.lengthscale = 1.9
    name = "model.covar_module.raw_lengthscale"
    parameters = {name: dict(mll.named_parameters())[name]}
    fit_by_adam(mll, lambda batch: -parameters[name].sum(), parameters, 12, 3, None, 1.0, 0, False)
    assert (parameters[name] <= 2.0).all()
