"""L-BFGS on a model's evidence over some of its hyperparameters, with the others fixed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import ForwardBackwardClosure
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import FitError
from bo_scale.models.shell.cloning import on_host
from bo_scale.training.time_limit import seconds_left

STEPS = 200
"""Default maximum number of iterations of a fit."""


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
        optimizer_kwargs: Options for BoTorch's `fit_gpytorch_mll_scipy`: `options`, `method`, `timeout_sec`, …. By
            default L-BFGS takes at most 200 iterations.
        evidence: Objective for every output, instead of the model's evidence; priors are added.

    Raises:
        FitError: if the optimiser stops without a finite result, or a matrix cannot be factorised. The parameters then
            keep their values.
    """
    if not parameters:
        return
    loss = None if evidence is None else lambda: loss_of(mll.model, mll, evidence())
    with only_these_learn(mll, parameters):
        minimise(mll, parameters, loss, optimizer_kwargs)


def minimise(
    mll: MarginalLogLikelihood,
    parameters: Mapping[str, torch.nn.Parameter],
    loss: Callable[[], Float[Tensor, ""]] | None = None,
    optimizer_kwargs: dict[str, Any] | None = None,
) -> OptimizationResult:
    """Minimise a loss over some parameters of an mll, in place, by L-BFGS-B within their bounds.

    Args:
        mll: The mll, in train mode. Its constraints give the bounds.
        parameters: Parameters by their names in `mll`, or others that the loss depends on.
        loss: The loss at their present values; None for that of the mll.
        optimizer_kwargs: As for `fit_evidence`.

    Returns:
        The least loss, and how the search ended.

    Raises:
        FitError: as for `fit_evidence`.
    """
    closure = None if loss is None else ForwardBackwardClosure(lambda **_: loss(), dict(parameters))
    given = optimizer_kwargs or {}
    options = {"maxiter": STEPS, **given.get("options", {})}
    given = {**given, "options": options}
    return fit_or_restore(parameters, lambda: lbfgs(mll, dict(parameters), closure=closure, **given))


def fit_or_restore(
    parameters: Mapping[str, torch.nn.Parameter], fit: Callable[[], OptimizationResult]
) -> OptimizationResult:
    """Run an optimiser. If it fails, the parameters have their values again.

    Args:
        parameters: The parameters that it changes, by name.
        fit: The optimiser.

    Raises:
        FitError: if it stops without a finite result, or a matrix cannot be factorised.
    """
    with restored_on_failure(parameters.values()):
        try:
            result = fit()
        except InvalidDataError:  # of rows that are read only now
            raise
        except (NotPSDError, ValueError) as error:  # a ValueError is a prior's, of a hyperparameter outside its support
            raise FitError(_FAILED.format(sorted(parameters), error)) from error
        if not _succeeded(result, parameters):
            raise FitError(_FAILED.format(sorted(parameters), result.message))
        return result


def lbfgs(
    mll: MarginalLogLikelihood,
    parameters: Mapping[str, Tensor] | None = None,
    bounds: Mapping[str, Any] | None = None,
    closure: Callable[..., tuple[Tensor, Sequence[Tensor | None]]] | None = None,
    **options: Any,
) -> OptimizationResult:
    """Do the same as BoTorch's `fit_gpytorch_mll_scipy`, with positive parameters on a logarithmic scale.

    These are the parameters with a positive lower bound that GPyTorch does not transform, such as lengthscales and
    noise of BoTorch's default kernel. The loss is far closer to a quadratic function of their logarithms.

    Args:
        mll: The mll, in train mode. Its constraints give the bounds.
        parameters: Parameters by their names in `mll`; None for all that require a gradient.
        bounds: Bounds that replace those of the constraints.
        closure: Function that returns the loss and its gradients; None for the loss of the mll.
        **options: Further arguments of `fit_gpytorch_mll_scipy`.
    """
    found, own = get_parameters_and_bounds(mll)
    learned = {name: p for name, p in found.items() if p.requires_grad} if parameters is None else dict(parameters)
    evaluate = get_loss_closure_with_grads(mll, learned) if closure is None else closure
    limits, positive = searched_limits(
        mll, {name: pair for name, pair in {**own, **(bounds or {})}.items() if name in learned}
    )
    with torch.no_grad():
        searched = {name: (p.log() if name in positive else p).detach().clone() for name, p in learned.items()}

    last = [torch.tensor(math.inf)]  # BoTorch gives no value where the time was over

    def set_parameters() -> None:
        with torch.no_grad():
            for name, p in learned.items():
                p.copy_(searched[name].exp() if name in positive else searched[name])

    def on_logarithms(**given: Any) -> tuple[Tensor, list[Tensor | None]]:
        set_parameters()
        value, grads = evaluate(**given)
        last[0] = value.detach()
        slopes = zip(learned.items(), grads, strict=True)
        return value, [g * p.detach() if name in positive and g is not None else g for (name, p), g in slopes]

    if seconds_left() < math.inf:
        options["timeout_sec"] = min(seconds_left(), options.get("timeout_sec", math.inf))
    result = fit_gpytorch_mll_scipy(mll, searched, limits, on_logarithms, **options)
    set_parameters()
    return replace(result, fval=float(last[0])) if "timed out" in str(result.message) else result


def searched_limits(mll: MarginalLogLikelihood, limits: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Return the limits of what `lbfgs` searches, and the names of parameters that it has on a logarithmic scale.

    Args:
        mll: The mll.
        limits: Lower and upper bounds of parameters, by their names in `mll`.
    """
    positive = {name for name in _untransformed(mll) & limits.keys() if _is_positive(limits[name])}
    logarithms = {
        name: tuple(None if x is None else torch.as_tensor(x).double().log() for x in limits[name]) for name in positive
    }
    return {**limits, **logarithms}, positive


def _untransformed(mll: MarginalLogLikelihood) -> set[str]:
    """Return the names of parameters whose constraints do not transform them."""
    every = mll.named_parameters_and_constraints()
    return {name for name, _, constraint in every if constraint is not None and not constraint.enforced}


def _is_positive(limits: tuple[Any, Any]) -> bool:
    return limits[0] is not None and bool((torch.as_tensor(limits[0]) > 0).all())


def loss_of(model: Any, mll: MarginalLogLikelihood, evidence: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    """Return −(log evidence + log priors)/n, the loss that BoTorch's fit minimises, and record the evaluation.

    Args:
        model: A `ScalableModel`.
        mll: Its mll, which knows the priors.
        evidence: The log evidence of every output, or a bound.
    """
    if model._recorder is not None:
        model._recorder.evaluated(evidence)
    with _unvalidated(mll) if evidence.is_cuda else nullcontext():
        total: Tensor = mll._add_other_terms(evidence.sum() if model.num_outputs == 1 else evidence + 0.0, [])
    return -total.sum() / model._evidence_size()


def loss_in_parts(model: Any, mll: MarginalLogLikelihood, evidence: Float[Tensor, " m"]) -> list[Float[Tensor, ""]]:
    """Return what adds up to `loss_of`. Priors of a GPU's hyperparameters, which are few numbers, are on the CPU."""
    if not evidence.is_cuda:
        return [loss_of(model, mll, evidence)]
    size, (here, _) = model._evidence_size(), on_host(mll)
    priors = here._add_other_terms(torch.zeros(evidence.shape if len(evidence) > 1 else (), dtype=evidence.dtype), [])
    return [-evidence.sum() / size, -priors.sum() / size]


@contextmanager
def _unvalidated(mll: MarginalLogLikelihood) -> Iterator[None]:
    """Let priors take for granted that hyperparameters are in their support: constraints see to it.

    PyTorch's distributions would read from a GPU whether it is so.
    """
    priors = [prior for _, _, prior, *_ in mll.named_priors()]
    every = [each for prior in priors for each in (prior, getattr(prior, "base_dist", None)) if each is not None]
    before = [each._validate_args for each in every]
    for each in every:
        each._validate_args = False
    try:
        yield
    finally:
        for each, validates in zip(every, before, strict=True):
            each._validate_args = validates


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
