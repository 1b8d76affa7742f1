"""L-BFGS on a model's evidence over some of its hyperparameters, the others held fixed."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.optim.closures.core import ForwardBackwardClosure
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float
from linear_operator.utils.errors import NotPSDError
from torch import Tensor


def fit_evidence(
    mll: MarginalLogLikelihood,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer_kwargs: dict[str, Any] | None = None,
    evidence: Callable[[], Float[Tensor, " m"]] | None = None,
) -> None:
    """Maximise a model's evidence over some of its parameters, in place. One evaluation an iteration.

    Args:
        mll: Of the model, in train mode.
        parameters: By their names in `mll`. All others require no gradient meanwhile, so that statistics stay valid
            where only parameters of the prior and the noise are given.
        optimizer_kwargs: For BoTorch's `fit_gpytorch_mll_scipy`: `options`, `method`, `timeout_sec`, …

        evidence: What to maximise in place of the model's own, for every output; priors are added.

    Raises:
        ModelFittingError: if the optimiser stops without a finite result, or a matrix cannot be factorised on the way.
            The parameters are then as they were.
    """
    if not parameters:
        return
    before = {name: p.detach().clone() for name, p in parameters.items()}
    chosen: dict[str, Tensor] = dict(parameters)
    closure = None
    if evidence is not None:
        closure = ForwardBackwardClosure(lambda **_: mll.model._loss(mll, evidence()), chosen)
    try:
        with only_these_learn(mll, parameters):
            result = fit_gpytorch_mll_scipy(mll, chosen, closure=closure, **(optimizer_kwargs or {}))
        if not _succeeded(result, parameters):
            raise ModelFittingError(_FAILED.format(sorted(parameters), result.message))
    except Exception as error:
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(before[name])
        if isinstance(error, NotPSDError | ValueError):
            raise ModelFittingError(_FAILED.format(sorted(parameters), error)) from error
        raise


_FAILED = "the evidence could not be maximised over {}: {}. Rescale the data, or start from other hyperparameters."


def _succeeded(result: OptimizationResult, parameters: Mapping[str, torch.nn.Parameter]) -> bool:
    """A line search that finds nothing better ("ABNORMAL") ends at the best point so far, which is no failure."""
    failed = result.status == OptimizationStatus.FAILURE and "ABNORMAL" not in str(result.message)
    finite = math.isfinite(result.fval) and all(bool(p.isfinite().all()) for p in parameters.values())
    return finite and not failed


@contextmanager
def only_these_learn(module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Within, no other parameter of the module requires a gradient."""
    kept = {id(p) for p in parameters.values()}
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in kept]
    try:
        for p in others:
            p.requires_grad_(False)
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
