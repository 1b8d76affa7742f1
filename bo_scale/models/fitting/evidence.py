"""L-BFGS on a model's evidence over some of its hyperparameters, with the others fixed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from botorch.optim.closures.core import ForwardBackwardClosure
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.models.errors import FitError


def fit_evidence(
    mll: MarginalLogLikelihood,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer_kwargs: dict[str, Any] | None = None,
    evidence: Callable[[], Float[Tensor, " m"]] | None = None,
) -> None:
    """Maximise a model's evidence over some of its parameters, in place. One evaluation per iteration.

    Args:
        mll: The mll of the model, in train mode.
        parameters: Parameters to fit, by their names in `mll`. All others require no gradient meanwhile, so statistics
            stay valid if only parameters of the prior and the noise are given.
        optimizer_kwargs: Options for BoTorch's `fit_gpytorch_mll_scipy`: `options`, `method`, `timeout_sec`, ….
        evidence: Objective for every output, instead of the model's evidence; priors are added.

    Raises:
        FitError: if the optimiser stops without a finite result, or a matrix cannot be factorised. The parameters then
            keep their values.
    """
    if not parameters:
        return
    chosen: dict[str, Tensor] = dict(parameters)
    closure = None
    if evidence is not None:
        closure = ForwardBackwardClosure(lambda **_: loss_of(mll.model, mll, evidence()), chosen)
    with restored_on_failure(parameters.values()), only_these_learn(mll, parameters):
        try:
            result = fit_gpytorch_mll_scipy(mll, chosen, closure=closure, **(optimizer_kwargs or {}))
        except (NotPSDError, ValueError) as error:  # a ValueError is a prior's, of a hyperparameter outside its support
            raise FitError(_FAILED.format(sorted(parameters), error)) from error
        if not _succeeded(result, parameters):
            raise FitError(_FAILED.format(sorted(parameters), result.message))


def loss_of(model: Any, mll: MarginalLogLikelihood, evidence: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    """Return −(log evidence + log priors)/n, the loss that BoTorch's fit minimises, and record the evaluation.

    Args:
        model: A `ScalableModel`.
        mll: Its mll, which knows the priors.
        evidence: The log evidence of every output, or a bound.
    """
    if model._recorder is not None:
        model._recorder.evaluated(evidence)
    total: Tensor = mll._add_other_terms(evidence.sum() if model.num_outputs == 1 else evidence + 0.0, [])
    return -total.sum() / model._evidence_size()


_FAILED = "the evidence could not be maximised over {}: {}. Rescale the data, or start from other hyperparameters."


def _succeeded(result: OptimizationResult, parameters: Mapping[str, torch.nn.Parameter]) -> bool:
    """Whether a fit succeeded; a line search without progress ("ABNORMAL") ends at the best point, which is fine."""
    failed = result.status == OptimizationStatus.FAILURE and "ABNORMAL" not in str(result.message)
    finite = math.isfinite(result.fval) and all(bool(p.isfinite().all()) for p in parameters.values())
    return finite and not failed


@contextmanager
def restored_on_failure(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Restore the parameters if anything is raised within the context, interrupts included, and pass it on."""
    before = [(p, p.detach().clone()) for p in parameters]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for p, values in before:
                p.copy_(values)
        raise


@contextmanager
def only_these_learn(module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Let no other parameter of the module require a gradient within the context."""
    kept = {id(p) for p in parameters.values()}
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in kept]
    try:
        for p in others:
            p.requires_grad_(False)
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
